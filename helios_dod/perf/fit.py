"""`python -m helios_dod.perf fit`: costs of programs, and how often drafts are right, from flight
recordings of real runs.

Each operation's duration is a sum of its features (costs.FEATURES) with coefficients that are not
negative; programs that the device waited for also take the host's time. Relative errors count, and
those beyond a quarter only linearly, so that a disturbed step does not bend the rest; then each
operation is scaled to the sum of what was measured, which such steps are a part of. So are programs
of few tokens, for each number of them: how many rows a product has is felt in steps there.
"""

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.errors import UserError
from helios_dod.executors.acceptance import ONE, fitted
from helios_dod.executors.costs import (
    FEATURES,
    OPERATIONS,
    PS,
    SCALE,
    SCALED_MAX,
    TABLE_SHAPE,
    WHOLE,
    Costs,
    unscaled,
)
from helios_dod.perf.machine import conditions
from helios_dod.recording import check_target
from helios_dod.simulation.observed import Steps, observe_file
from helios_dod.simulation.roofline import WITHOUT_MODEL

SAMPLES_MIN = 6  # of an operation that gets coefficients of its own
HUBER = 0.25
ROUNDS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fit`."""
    parser.add_argument("recordings", nargs="+", type=Path,
                        help="what `helios serve --record` or `perf record` wrote")
    parser.add_argument("--out", type=Path, required=True, help="where the costs go")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x >= 0 that minimises |matrix x - wanted|: Lawson and Hanson's active sets (1974, chapter
    23). matrix: float64 [n, k]; columns of zeros stay at 0."""
    size = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(size > 0, size, 1)
    count = scaled.shape[1]
    x, free = np.zeros(count), np.zeros(count, bool)
    for _ in range(3 * count):
        gradient = scaled.T @ (wanted - scaled @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10 * np.linalg.norm(wanted):
            break
        free[best] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(scaled[:, free], wanted, rcond=None)[0]
            negative = free & (trial <= 0)
            if not negative.any():
                break
            step = np.min(x[negative] / np.maximum(x[negative] - trial[negative], 1e-300))
            x += step * (trial - x)
            free &= x > 1e-12 * max(x.max(), 1e-300)
            x[~free] = 0
        x = trial
    return x / np.where(size > 0, size, 1)


def robust(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The same for relative errors with Huber's weights."""
    weights = 1 / wanted
    for _ in range(ROUNDS):
        found = least_squares(matrix * weights[:, None], wanted * weights)
        off = np.abs(matrix @ found / wanted - 1)
        weights = np.sqrt(np.minimum(1, HUBER / np.maximum(off, 1e-12))) / wanted
    return found


def design(steps: Steps, rows: list[int]) -> np.ndarray:
    """float64 [n, 1 + 6 k]: whether the device was idle, then each operation's own features."""
    parts = [steps.idle[:, None].astype(np.float64)]
    for operation in rows:
        own = np.ones(len(steps.idle), bool) if operation == 0 else steps.operation == operation
        parts.append(np.where(own[:, None], steps.features, 0).astype(np.float64))
    return np.concatenate(parts, axis=1)


def only(steps: Steps, kept: np.ndarray) -> Steps:
    """Some of the programs."""
    return Steps(steps.operation[kept], steps.features[kept], steps.duration_ns[kept],
                 steps.idle[kept], steps.drafts)


def pools(steps: Steps) -> list[tuple[list[int], Steps]]:
    """Operations, and the programs that are like them: of those that run the model, and of those
    that do not; all, where there are none."""
    light = np.isin(steps.operation, [OPERATIONS[name] for name in WITHOUT_MODEL])
    rows = list(OPERATIONS.values())
    return [([row for row in rows if (row in {OPERATIONS[n] for n in WITHOUT_MODEL}) == without],
             only(steps, kept) if kept.any() else steps)
            for without, kept in ((True, light), (False, ~light))]


def fit(steps: Steps) -> tuple[Costs, dict[str, Any]]:
    """Costs, and how far they are from what was measured. Raises UserError."""
    known = [row for row in OPERATIONS.values() if (steps.operation == row).sum() >= SAMPLES_MIN]
    if not known:
        raise UserError(f"recordings: expected at least {SAMPLES_MIN} programs of one operation, "
                        f"got {len(steps.operation)} in all")
    enough = np.isin(steps.operation, known) & (steps.duration_ns > 0)
    kept = only(steps, enough)
    wanted, matrix = kept.duration_ns.astype(np.float64), design(kept, known)
    found = robust(matrix, wanted)
    width = len(FEATURES)
    table = np.zeros(TABLE_SHAPE, np.int64)
    for unseen, alike in pools(kept):
        pooled = robust(design(alike, [0]), alike.duration_ns.astype(np.float64))
        table[unseen, 0] = np.rint(pooled[1:] * PS)
    for number, row in enumerate(known):
        own, part = kept.operation == row, slice(1 + number * width, 1 + (number + 1) * width)
        spent = np.maximum(wanted - found[0] * kept.idle, 0)[own].sum()
        found[part] *= spent / max(float((kept.features[own] @ found[part]).sum()), 1.0)
        table[row, 0] = np.rint(found[part] * PS)
    expected, scale = matrix @ found, unscaled()
    packed = kept.features[:, FEATURES.index("packed")]
    for row, count in product(known, range(1, SCALED_MAX + 1)):
        own = (kept.operation == row) & (packed == count)
        if own.sum() >= SAMPLES_MIN:
            host = found[0] * kept.idle[own]
            share = np.maximum(wanted[own] - host, 0).sum() / (expected[own] - host).sum()
            scale[row, count] = round(WHOLE * share)
            expected[own] = (expected[own] - host) * share + host
    off = np.abs(expected / wanted - 1)
    report = {name: {
        "samples": int((kept.operation == row).sum()),
        "median_ms": round(float(np.median(wanted[kept.operation == row])) / 1e6, 4),
        "lowest_ms": round(float(wanted[kept.operation == row].min()) / 1e6, 4),
        "highest_ms": round(float(wanted[kept.operation == row].max()) / 1e6, 4),
        "off_median": round(float(np.median(off[kept.operation == row])), 4),
        "off_p90": round(float(np.percentile(off[kept.operation == row], 90)), 4)}
        for name, row in OPERATIONS.items() if row in known}
    return Costs(table, round(found[0]), scale), {
        "operations": report, "pooled": [name for name, row in OPERATIONS.items()
                                         if row not in known]}


def joined(parts: list[Steps]) -> Steps:
    """Of several recordings."""
    operation, features, duration, idle = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("operation", "features", "duration_ns", "idle"))
    return Steps(operation, features, duration, idle,
                 np.sum([part.drafts for part in parts], axis=0))


def run(options: argparse.Namespace) -> int:
    """Writes costs; prints what they were fitted to and how well."""
    check_target(options.out)
    steps = joined([observe_file(path).steps for path in options.recordings])
    costs, report = fit(steps)
    acceptance = fitted(*steps.drafts)
    plain = replace(costs, acceptance=acceptance).plain()
    came = conditions(None, 0, len(options.recordings))
    options.out.write_text(json.dumps({**plain, "fitted": report, **came}, indent=1))
    if options.json:
        print(json.dumps({**came, "costs": plain, **report}))
        return 0
    print(f"host time of a launch: {costs.host_ns / 1e3:g} us")
    for name, part in report["operations"].items():
        features = plain["operations"].get(name, {}).get("bytes", {})
        terms = ", ".join(f"{value / 1e6:g} us a {key}" for key, value in features.items())
        scaled = plain["operations"].get(name, {}).get(SCALE, {})
        terms += "".join(f"; {value / WHOLE:g} of it for {count}"
                         for count, value in scaled.items())
        print(f"{name}: {part['samples']} programs, median {part['median_ms']:g} ms, off by "
              f"{part['off_median']:.1%} (p90 {part['off_p90']:.1%}): {terms}")
    if acceptance is not None:
        print("drafts that were right, by place: " + ", ".join(
            f"{chance / ONE:.1%}" for chance in acceptance.chances))
    print(f"operations that were not seen take the coefficients of those like them: "
          f"{', '.join(report['pooled'])}", file=sys.stderr)
    return 0

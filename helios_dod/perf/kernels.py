"""`python -m helios_dod.perf kernels`: programs of recorded runs against their floors, the bytes
that they must move and the operations that they must do on a declared machine."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.arguments import amount, share
from helios_dod.contract.decode import decode
from helios_dod.cores.reader import open_core
from helios_dod.executors.costs import FEATURES, OPERATIONS, PS, SIDES, Costs
from helios_dod.perf.fit import joined
from helios_dod.perf.machine import conditions
from helios_dod.simulation.observed import Steps, observe_file
from helios_dod.simulation.roofline import Device, Work, roofline, work_of

LANES, PACKED = FEATURES.index("lanes"), FEATURES.index("packed")
SAMPLES_MIN = 5  # of a row that is shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kernels`."""
    add = parser.add_argument
    add("core", type=Path, help="the core that ran")
    add("recordings", nargs="+", type=Path, help="what `perf record` or `helios serve --record` "
                                                 "wrote")
    add_device_arguments(parser)
    add("--json", action="store_true", help="one JSON object on standard output")


def add_device_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """A declared machine."""
    add = parser.add_argument
    add("--bandwidth-gb", type=amount, required=required, help="bytes it reads, 10^9 a second")
    add("--teraflops", type=amount, required=required, help="operations it does, 10^12 a second")
    add("--overhead-us", type=amount, default=0.0, help="of each program (default %(default)s)")
    add("--efficiency", type=share, default=1.0,
        help="share of both rates that counts (default %(default)s)")


def work_in(path: Path) -> Work:
    """Of the core at a path. Raises UserError, CoreError."""
    core = open_core(path)
    manifest = core.manifest()
    return work_of(manifest, decode(core.serving, manifest))


def device_of(options: argparse.Namespace) -> Device:
    """The declared machine. Raises UserError."""
    return Device(options.bandwidth_gb * 1e9, options.teraflops * 1e12,
                  round(options.overhead_us * 1e3), options.efficiency)


def costs_of(options: argparse.Namespace) -> Costs:
    """The roofline of options.core on the declared machine. Raises UserError, CoreError."""
    return roofline(work_in(options.core), device_of(options))


def against(steps: Steps, costs: Costs) -> list[dict[str, Any]]:
    """A row for each operation, number of lanes and power of two of packed tokens. Programs that
    the device waited for are left out: the host's time is in them."""
    sides = np.einsum("nf,nsf->ns", steps.features, costs.table[steps.operation]) / PS
    busy = ~steps.idle & (steps.duration_ns > 0)
    size = 1 << np.ceil(np.log2(np.maximum(steps.features[:, PACKED], 1))).astype(np.int64)
    keys = np.stack([steps.operation, steps.features[:, LANES], size], axis=1)
    names, rows = {row: name for name, row in OPERATIONS.items()}, []
    for key in np.unique(keys[busy], axis=0):
        own = busy & (keys == key).all(axis=1)
        if own.sum() < SAMPLES_MIN:
            continue
        floor = sides[own].max(axis=1)
        rows.append({
            "operation": names[int(key[0])], "lanes": int(key[1]), "packed_up_to": int(key[2]),
            "programs": int(own.sum()),
            "median_ms": round(float(np.median(steps.duration_ns[own])) / 1e6, 4),
            "lowest_ms": round(int(steps.duration_ns[own].min()) / 1e6, 4),
            "highest_ms": round(int(steps.duration_ns[own].max()) / 1e6, 4),
            "floor_ms": round(float(np.median(floor)) / 1e6, 4),
            "of_floor": round(float(np.median(floor / steps.duration_ns[own])), 4),
            "bound": SIDES[int(np.median(np.argmax(sides[own], axis=1)))]})
    return rows


def run(options: argparse.Namespace) -> int:
    """Prints every kind of program beside its floor."""
    rows = against(joined([observe_file(path).steps for path in options.recordings]),
                   costs_of(options))
    if options.json:
        print(json.dumps({**conditions(None, 0, len(options.recordings)), "programs": rows}))
        return 0
    print(f"{'operation':16} lanes  packed  programs  median ms   floor ms  reached  bound by")
    for row in rows:
        print(f"{row['operation']:16} {row['lanes']:5} {row['packed_up_to']:>6}- "
              f"{row['programs']:9} {row['median_ms']:10.4f} {row['floor_ms']:10.4f} "
              f"{row['of_floor']:7.1%}  {row['bound']}")
    return 0

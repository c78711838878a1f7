"""How long a core takes to load, by phase, and how its verification compares with plain SHA-256.

The program part is everything that is read of a core but weights, verified, decoded and validated.
The frontend is what a worker then makes of it: tokenizer, template, byte table, output syntax. An
engine starts with the first, a worker with both, side by side.

Everything but weights is measured in this process right after start, then again; the first time is
the cold one. Verification and the reference run in turn, so that both see the same machine.
"""

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.perf.machine import conditions, middle

WARM_UP = 1  # the cold load, which is a figure of its own


def clock(work: Callable[[], Any]) -> tuple[float, Any]:
    """(milliseconds, result)."""
    began = time.perf_counter()
    result = work()
    return (time.perf_counter() - began) * 1e3, result


def program_part(path: Path) -> tuple[dict[str, float], Any]:
    """Milliseconds of each part of a load but weights, and the core."""
    from helios_dod.cores.acceptance import authorize
    from helios_dod.cores.reader import open_core

    phases = {}
    phases["open"], core = clock(lambda: open_core(path))
    phases["authorize"], _ = clock(lambda: authorize(core))
    phases["manifest"], manifest = clock(core.manifest)
    phases["contract"], _ = clock(lambda: core.prepared(manifest))
    phases["tokenizer"], _ = clock(core.tokenizer)
    phases["chat_template"], _ = clock(core.chat_template)
    phases["token_bytes"], _ = clock(core.token_bytes)
    phases["program"] = sum(phases.values())
    return phases, core


def frontend_part(core: Any) -> dict[str, float]:
    """Milliseconds of what a worker makes of a core, what it reads included."""
    from helios_dod.frontend.preparation import Preparer
    from helios_dod.server.bootstrap import Bootstrap

    contract = core.prepared(core.manifest())
    phases = {}
    phases["assets"], bootstrap = clock(lambda: Bootstrap.of(core, contract))
    phases["preparer"], _ = clock(lambda: Preparer(bootstrap.assets))
    phases["frontend"] = sum(phases.values())
    return phases


def plain_sha256(arrays: list[np.ndarray], threads: int) -> None:
    """The reference: every byte hashed once, an equal share a thread."""
    parts = [part for data in arrays for part in np.array_split(data, threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: hashlib.sha256(part.data).digest(), parts))


def start_times(path: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds from a path to a loaded engine, with and without verified weights.

    The first start is a figure of its own: it compiles what the code cache does not have, which
    takes most of a minute after a change of sources."""
    from helios_dod.executors.host.executor import HostExecutor
    from helios_dod.runtime.native_model import NativeModel
    from helios_dod.runtime.selection import Options

    def start(trust: bool) -> NativeModel:
        return NativeModel.load(path, Options(), HostExecutor(0), trust_weights=trust)

    first, model = clock(partial(start, True))
    model.close()
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for trust in (False, True):
            spent, model = clock(partial(start, trust))
            found[trust].append(spent)
            model.close()
    return {"first": round(first, 1)} | {
        name: middle(found[trust], 1) for name, trust in (("verified", False), ("trusted", True))}


def medians(spread: dict[str, Any]) -> dict[str, Any]:
    """The same names with the medians alone."""
    return {name: part["median"] if "median" in part else medians(part)
            for name, part in spread.items()}


def run(path: Path, repeats: int = 7) -> dict[str, Any]:
    """Milliseconds, bytes per second and the ratio of verification to plain SHA-256."""

    def imports() -> None:
        import helios_dod.cores.acceptance
        import helios_dod.cores.reader  # noqa: F401

    imported, _ = clock(imports)
    spent = time.process_time()
    cold, core = program_part(path)
    spent = (time.process_time() - spent) * 1e3
    warm = [program_part(path)[0] for _ in range(repeats)]
    made = [frontend_part(core) for _ in range(repeats)]
    trusted, mapped = clock(lambda: core.weights(trust=True))
    arrays, threads = list(mapped.values()), os.cpu_count() or 1
    nbytes = sum(data.size for data in arrays)
    verify, reference = [], []
    for _ in range(repeats):
        verify.append(clock(core.weights)[0])
        reference.append(clock(lambda: plain_sha256(arrays, threads))[0])
    ratios = [b / a for a, b in zip(verify, reference, strict=True)]
    spread = {
        "warm_ms": {name: middle([part[name] for part in warm], 2) for name in cold},
        "frontend_ms": {name: middle([part[name] for part in made], 2) for name in made[0]},
        "weights_verified_ms": middle(verify, 2), "sha256_ms": middle(reference, 2),
        "of_sha256_rate": middle(ratios, 3)}
    return {
        **conditions(None, WARM_UP, repeats), "carrier": core.carrier,
        "weight_bytes": nbytes, "threads": threads,
        "imports_ms": round(imported, 1),
        "cold_ms": {name: round(value, 2) for name, value in cold.items()},
        "cold_cpu_ms": round(spent, 1),
        **medians(spread), "weights_trusted_ms": round(trusted, 2),
        "verify_bytes_per_second": round(nbytes / statistics.median(verify) * 1e3),
        "of_sha256_rate_best": round(min(reference) / min(verify), 3),
        "spread": spread,
    }

"""Many seeds: each draws a shape and a workload, runs, and must end with everything free.

What a seed took of the rare branches shows in the counters; over a swarm each of them must move.
"""

import hashlib
import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from helios_dod.schedule import TICK
from helios_dod.simulation.simulator import Simulator
from helios_dod.simulation.workers import workers

FUSED, WALKED, ORACLE = "fused", "walked", "oracle"
WARM_SEEDS = (9, 33, 3751)  # of all kinds of history, programs and tiers together
WARM_TICKS = 60


def shape(seed: int) -> dict[str, Any]:
    """The simulator's own options of a seed, extremes included."""
    pick = random.Random(f"shape of {seed}").choice
    return {"frames": pick((1, 2, 2)), "host_pending": pick((False, False, False, True)),
            "pages": pick((10, 16, 24)), "vocabulary": pick((50, 50, 6)),
            "lanes": pick((3, 3, 3, 1, 2))}


@dataclass
class Run:
    """One seed's end. violation: empty, or what broke."""

    seed: int
    ticks: int
    seconds: float = 0.0  # of processor time
    digest: str = ""
    finished: int = 0
    violation: str = ""
    counters: dict[str, int] = field(default_factory=dict)


def run_seed(seed: int, ticks: int, mode: str) -> Run:
    """Safety phase of `ticks`, then liveness. A violation is told, not raised."""
    began, run = time.process_time(), Run(seed, ticks)
    try:
        simulator = Simulator(seed, walked=mode != FUSED, contents=mode == ORACLE, **shape(seed))
        run.digest = simulator.run(ticks)
        run.finished = simulator.finished
        counters = simulator.world[0]["counters"]
        run.counters = {name: int(counters[name]) for name in counters.dtype.names}
        run.ticks = int(simulator.world[0]["clock"]["tick"])
    except (AssertionError, LookupError, ValueError, ArithmeticError) as error:
        # A Violation, or what a system stumbles over: an assertion, an index out of bounds.
        run.violation = f"{type(error).__name__}: {error}"
    run.seconds = time.process_time() - began
    return run


def compile_system(index: int) -> None:
    """Compiles a system of TICK into the cache, on a world without work."""
    TICK[index].run(Simulator(WARM_SEEDS[0], walked=False).world)


def compile_all(pool: ProcessPoolExecutor, mode: str) -> None:
    """Fills the cache of compiled code: first systems, side by side; then, in this process, what
    calls them and the device. So no two of the processes that run seeds compile the same."""
    list(pool.map(compile_system, range(len(TICK))))
    for seed in WARM_SEEDS:
        run_seed(seed, WARM_TICKS, mode)


def run_seeds(seeds: Iterable[int], ticks: int, mode: str, jobs: int) -> Iterator[Run]:
    """Every seed's end, in order. mode: FUSED, WALKED or ORACLE. jobs: processes."""
    one = partial(run_seed, ticks=ticks, mode=mode)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with workers(jobs) as pool:
        began = time.perf_counter()
        compile_all(pool, mode)
        print(f"compiled or loaded in {time.perf_counter() - began:.1f} s", flush=True)
        yield from pool.map(one, seeds)


@dataclass
class Tally:
    """A swarm's sum."""

    seeds: int = 0
    ticks: int = 0
    finished: int = 0
    seconds: float = 0.0  # of processor time
    violations: list[Run] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    hashed: Any = field(default_factory=hashlib.sha256)

    def add(self, run: Run) -> None:
        """One more seed."""
        self.seeds += 1
        self.ticks += run.ticks
        self.finished += run.finished
        self.seconds += run.seconds
        self.hashed.update(run.digest.encode())
        if run.violation:
            self.violations.append(run)
        for name, value in run.counters.items():
            self.counters[name] = self.counters.get(name, 0) + value

    @property
    def digest(self) -> str:
        """Of all digests, in the order of seeds."""
        return self.hashed.hexdigest()

    @property
    def untaken(self) -> list[str]:
        """Counters that no seed moved."""
        return [name for name, value in self.counters.items() if value == 0]

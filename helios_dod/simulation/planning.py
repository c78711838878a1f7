"""Capacity planning: the fewest replicas, then the least concurrency and cache, with which a trace
meets its targets. Every point is a simulation of the shipped scheduler over the whole trace."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np

from helios_dod.errors import UserError
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.study import Outcome, Study
from helios_dod.simulation.traces import COLUMNS, Trace
from helios_dod.simulation.workers import go_on, workers

CACHE_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True)
class Targets:
    """What a request must meet, milliseconds; and the share of requests that must meet it."""

    ttft_ms: float
    between_ms: float
    met: float = 0.95


@dataclass(frozen=True)
class Point:
    """One choice and what came of it, over all replicas."""

    replicas: int
    lanes: int
    pages: int
    met: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    between_p99_ms: float  # of each request's mean
    tokens_per_s: float
    cached: float  # share of prompt tokens
    preempted: int


@dataclass(frozen=True)
class Plan:
    """chosen: None where nothing meets the targets. points: all that was tried, in order."""

    chosen: Point | None
    points: tuple[Point, ...]


def part_of(trace: Trace, replicas: int, number: int) -> Trace:
    """The requests that one replica gets: in turn, those of a shared text together."""
    alone = np.arange(len(trace)) % replicas
    own = np.where(trace.prefix >= 0, trace.prefix % replicas, alone) == number
    return Trace(*(getattr(trace, name)[own] for name in COLUMNS))


def run_part(work: tuple[Machine, Trace, int]) -> Outcome:
    """One replica. The third: the requests' `output_limit`, as `Study` takes it."""
    machine, trace, output_limit = work
    return Study(machine, trace, output_limit=output_limit).run(go_on)


def judge(outcomes: Sequence[Outcome], machine: Machine, replicas: int, targets: Targets) -> Point:
    """All replicas of one choice; rejected requests do not meet anything."""
    def all_of(values: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([*values, np.zeros(0)])

    first = all_of(one.ttft_ns / 1e6 for one in outcomes)
    told = [(one, one.first_ns >= 0) for one in outcomes]
    between = all_of((one.last_ns - one.first_ns)[ok] / 1e6 / np.maximum(one.tokens[ok] - 1, 1)
                     for one, ok in told)
    met = (first <= targets.ttft_ms) & (between <= targets.between_ms)
    count = sum(len(one.arrival_ns) for one in outcomes)
    tokens = sum(int(one.tokens.sum()) for one in outcomes)
    seconds = max(int(one.last_ns.max(initial=1)) for one in outcomes) / 1e9
    prompts = sum(one.counters["prompt_tokens"] for one in outcomes)

    def percentile(values: np.ndarray, share: float) -> float:
        return round(float(np.percentile(values, share)), 3) if len(values) else float("inf")

    return Point(
        replicas, machine.lanes, machine.pages, round(float(met.sum()) / count, 4),
        percentile(first, 50), percentile(first, 99), percentile(between, 99),
        round(tokens / seconds, 1),
        round(sum(int(one.cached_tokens.sum()) for one in outcomes) / max(prompts, 1), 4),
        sum(one.counters["preempted"] for one in outcomes))


class Planner:
    """A trace, a machine at its largest, and processes that simulate."""

    def __init__(self, machine: Machine, trace: Trace, targets: Targets, jobs: int = 1,
                 tell: Callable[[Point], None] | None = None,
                 output_limit: int = 0) -> None:
        if len(trace) == 0:
            raise UserError("trace: expected at least one request, got none")
        self.machine, self.trace, self.targets, self.jobs = machine, trace, targets, jobs
        self.tell, self.points, self.output_limit = tell, list[Point](), output_limit

    def __enter__(self) -> "Planner":
        self.owned = ExitStack()
        self.pool = self.owned.enter_context(workers(self.jobs)) if self.jobs > 1 else None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.owned.__exit__(kind, error, trace)

    def tries(self, choices: Sequence[tuple[int, Machine]]) -> list[Point]:
        """Every choice (replicas, machine); all their replicas side by side."""
        work = [(machine, part, self.output_limit) for replicas, machine in choices
                for number in range(replicas) if len(part := part_of(self.trace, replicas, number))]
        done = iter(map(run_part, work) if self.pool is None else self.pool.map(run_part, work))
        found = []
        for replicas, machine in choices:
            outcomes = [next(done) for number in range(replicas)
                        if len(part_of(self.trace, replicas, number))]
            found.append(judge(outcomes, machine, replicas, self.targets))
            self.points.append(found[-1])
            if self.tell is not None:
                self.tell(found[-1])
        return found

    def meets(self, point: Point) -> bool:
        """Enough requests are within the targets."""
        return point.met >= self.targets.met

    def replicas(self, most: int) -> Point | None:
        """The fewest that meet the targets: doubled until they do, then halved in between."""
        low, high = 0, 1
        while True:
            (point,) = self.tries([(high, self.machine)])
            if self.meets(point):
                break
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
        best = point
        while best.replicas - low > 1:
            middle = (low + best.replicas) // 2
            (point,) = self.tries([(middle, self.machine)])
            if self.meets(point):
                best = point
            else:
                low = middle
        return best

    def smallest(self, best: Point, machines: Sequence[Machine]) -> Point:
        """The last of ever smaller machines that still meets the targets, all before it too."""
        for point in self.tries([(best.replicas, machine) for machine in machines]):
            if not self.meets(point):
                break
            best = point
        return best

    def plan(self, most: int) -> Plan:
        """Replicas, then lanes, then pages. Raises UserError."""
        best = self.replicas(most)
        if best is None:
            return Plan(None, tuple(self.points))
        lanes = self.machine.lanes
        best = self.smallest(best, [replace(self.machine, lanes=lanes >> shift)
                                    for shift in range(1, lanes.bit_length())])
        longest = int(self.trace.text_tokens(self.output_limit).max())
        least = -(-(longest + 1) // self.machine.page_tokens) + 1
        pages = [page for share in CACHE_SHARES[1:]
                 if (page := int(self.machine.pages * share)) >= least]
        best = self.smallest(best, [replace(self.machine, lanes=best.lanes, pages=count)
                                    for count in pages])
        return Plan(best, tuple(self.points))

"""A trace through the shipped scheduler, on a virtual device and clock: what users would have seen.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helios_dod.edges import Edge, Submission
from helios_dod.executors.simulated import SimulatedExecutor, VirtualClock
from helios_dod.simulation.machine import Machine, simulated_engine
from helios_dod.simulation.traces import ALONE, Trace
from helios_dod.system import kernel
from helios_dod.terms import EGRESS_FINISHED, EGRESS_REJECTED, EGRESS_TOKEN
from helios_dod.world import digest

NEVER = -1
GAP_BINS_OCTAVE = 64  # so a gap is known within 1.1 %
GAP_BINS = 64 * GAP_BINS_OCTAVE


@dataclass
class Outcome:
    """Nanoseconds of virtual time, one an element a request; NEVER where it did not come so far."""

    arrival_ns: np.ndarray
    first_ns: np.ndarray
    last_ns: np.ndarray
    tokens: np.ndarray
    finish: np.ndarray  # terms.FINISH_*, 0: rejected
    cached_tokens: np.ndarray
    gaps: np.ndarray  # histogram of times between tokens, in bins of `gap_bin`
    virtual_ns: int
    wall_s: float
    steps: int
    counters: dict[str, int]
    digest: str

    @property
    def ttft_ns(self) -> np.ndarray:
        """Time to first token, of requests that had one."""
        told = self.first_ns != NEVER
        return self.first_ns[told] - self.arrival_ns[told]

    @property
    def latency_ns(self) -> np.ndarray:
        """From arrival to the last token, of requests that had one."""
        told = self.first_ns != NEVER
        return self.last_ns[told] - self.arrival_ns[told]

    def gap_ns(self, percentile: float) -> float:
        """Of all times between two tokens of a request; within half a bin."""
        total = int(self.gaps.sum())
        if total == 0:
            return 0.0
        at = int(np.searchsorted(np.cumsum(self.gaps), percentile / 100 * total))
        return float(2 ** ((at + 0.5) / GAP_BINS_OCTAVE))


@kernel
def gap_bin(gap_ns):
    """Bin of a gap: logarithmic, GAP_BINS_OCTAVE an octave."""
    if gap_ns < 1:
        return 0
    return min(int(np.log2(gap_ns) * GAP_BINS_OCTAVE), GAP_BINS - 1)


@kernel
def note(kind, reason, tag, value, now_ns, first_ns, last_ns, tokens, finish, cached, gaps):
    """Adds a batch of events at one time; the number of requests that ended."""
    ended = 0
    for i in range(kind.shape[0]):
        row = tag[i]
        if kind[i] == EGRESS_TOKEN:
            if tokens[row] == 0:
                first_ns[row] = now_ns
            else:
                gaps[gap_bin(now_ns - last_ns[row])] += 1
            last_ns[row] = now_ns
            tokens[row] += 1
        elif kind[i] == EGRESS_FINISHED:
            finish[row] = reason[i]
            cached[row] = value[i]
            ended += 1
        elif kind[i] == EGRESS_REJECTED:
            ended += 1
    return ended


class Study:
    """One engine, one trace. concurrency 0: requests come when the trace says; else the next one
    comes when one of so many ends, whatever the trace says."""

    def __init__(self, machine: Machine, trace: Trace, concurrency: int = 0, seed: int = 1) -> None:
        self.machine, self.trace, self.concurrency, self.seed = machine, trace, concurrency, seed
        context = machine.context_tokens or -(-(trace.context_tokens + 1) // 256) * 256
        self.clock = VirtualClock()
        self.engine = simulated_engine(machine, context, self.clock)
        self.world = self.engine.world
        assert isinstance(self.engine.executor, SimulatedExecutor)
        self.executor = self.engine.executor
        self.edge = Edge(self.world, 0, batch=len(self.world[0]["egress"]["kind"][0]))
        self.texts: dict[int, np.ndarray] = {}
        count = len(trace)
        self.columns = tuple(np.full(count, NEVER, np.int64) for _ in range(2)) + tuple(
            np.zeros(count, np.int64) for _ in range(3)) + (np.zeros(GAP_BINS, np.int64),)
        self.next = self.ended = self.steps = 0
        self.arrived = trace.arrival_ns.copy()
        self.refused: deque[Submission] = deque()

    def prompt(self, index: int) -> np.ndarray:
        """The tokens of a request's prompt: a function of the seed and the trace."""
        trace, count = self.trace, int(self.trace.prompt_tokens[index])
        own = np.random.default_rng((self.seed, index)).integers(
            0, self.machine.vocabulary, count, dtype=np.int32)
        prefix, shared = int(trace.prefix[index]), int(trace.prefix_tokens[index])
        if prefix != ALONE and shared > 0:
            text = self.texts.get(prefix)
            if text is None or len(text) < shared:  # grown texts keep what they were
                text = np.random.default_rng((self.seed, prefix, 1)).integers(
                    0, self.machine.vocabulary, 2 * shared, dtype=np.int32)
                self.texts[prefix] = text
            own[:shared] = text[:shared]
        return own

    def arrive(self) -> None:
        """Submits what has come by now, in order; a full ring keeps the rest outside."""
        while self.next < len(self.trace):
            if self.concurrency:
                if self.next - self.ended >= self.concurrency:
                    return
                self.arrived[self.next] = self.clock.now_ns
            elif self.trace.arrival_ns[self.next] > self.clock.now_ns:
                return
            if not self.refused:
                self.refused.append(Submission(
                    tag=self.next, prompt=self.prompt(self.next), seed=self.next,
                    output_limit=int(self.trace.output_tokens[self.next])))
            if not self.edge.submit(self.refused[0]):
                return
            self.refused.popleft()
            self.next += 1

    def advance(self) -> None:
        """Time passes to the next fence or arrival."""
        ends = [end for end in (self.executor.next_end(),) if end is not None]
        if not self.concurrency and self.next < len(self.trace) and not self.refused:
            ends.append(int(self.trace.arrival_ns[self.next]))
        if ends:
            self.clock.now_ns = max(self.clock.now_ns, min(ends))

    def step(self) -> None:
        """Arrivals, one tick, events."""
        self.arrive()
        self.engine.step()
        self.steps += 1
        self.read()
        self.advance()

    def read(self) -> None:
        """Takes the events that the tick brought."""
        events = self.edge.events()
        if len(events):
            self.ended += note(
                events["kind"], events["reason"], events["tag"], events["value"],
                self.clock.now_ns, *self.columns)

    def run(self, progress: Callable[[int], None] | None = None) -> Outcome:
        """Until every request has ended. progress: called now and then, with how many more have."""
        began, told = time.perf_counter(), 0
        while self.ended < len(self.trace):
            self.step()
            if progress is not None and (self.steps % 4096 == 0 or self.ended == len(self.trace)):
                progress(self.ended - told)
                told = self.ended
        wall_s = time.perf_counter() - began
        counters = self.world[0]["counters"]
        first, last, tokens, finish, cached, gaps = self.columns
        return Outcome(
            self.arrived, first, last, tokens, finish, cached, gaps,
            virtual_ns=self.clock.now_ns, wall_s=wall_s, steps=self.steps,
            counters={name: int(counters[name]) for name in counters.dtype.names},
            digest=digest(self.world))

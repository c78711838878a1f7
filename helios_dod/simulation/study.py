"""A trace through the shipped scheduler, on a virtual device and clock: what users would have seen.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from helios_dod.bounds import INT32_MAX, whole
from helios_dod.edges import Submission, check_fits, row_of
from helios_dod.executors.simulated import VirtualClock
from helios_dod.executors.simulated_noise import END_TOKEN, NoiseExecutor
from helios_dod.limits import EOS_MAX, FRAMES_MAX, TOKEN_BLOCK
from helios_dod.simulation import study_loop
from helios_dod.simulation.machine import Machine, simulated_engine
from helios_dod.simulation.study_loop import GAP_BINS, GAP_BINS_OCTAVE
from helios_dod.simulation.traces import COLUMNS, Trace
from helios_dod.world import digest

NEVER = -1
STEPS = 4096  # of one jitted call


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


class Study:
    """One engine, one trace. concurrency 0: requests come when the trace says; else the next one
    comes when one of so many ends, whatever the trace says. Tokens of prompts are a function of the
    seed and the trace, and so is which drafts are right.

    output_limit: what each request asks at most; its answer ends by itself at the trace's length,
    which the scheduler does not know before. 0: the trace's length is the limit. Raises UserError
    for a request that no engine of this size could hold."""

    def __init__(self, machine: Machine, trace: Trace, concurrency: int = 0, seed: int = 1,
                 output_limit: int = 0) -> None:
        self.trace = trace
        whole("output_limit", output_limit, 0, INT32_MAX)
        longest_text = int(trace.text_tokens(output_limit).max(initial=0))
        context = machine.context_tokens or -(-(longest_text + 1) // 256) * 256
        if machine.acceptance is not None:
            machine = replace(machine, acceptance=replace(machine.acceptance, seed=seed))
        self.clock = VirtualClock()
        self.engine = simulated_engine(machine, context, self.clock, NoiseExecutor)
        self.world = self.engine.world
        assert isinstance(self.engine.executor, NoiseExecutor)
        self.executor = self.engine.executor
        count = len(trace)
        longest = Submission(0, np.zeros(trace.prompt_tokens.max(initial=1), np.int32), 1)
        check_fits(longest, self.world[0]["requests"]["blocks"].shape[1] * TOKEN_BLOCK)
        self.at = np.zeros(study_loop.LOAD_WORDS, np.int64)
        self.at[study_loop.FILLED] = NEVER
        self.at[study_loop.SEED], self.at[study_loop.CONCURRENCY] = seed, concurrency
        self.at[study_loop.VOCABULARY] = machine.vocabulary
        self.at[study_loop.LIMIT] = output_limit
        eos = np.full(EOS_MAX, -1, np.int32)
        if output_limit > 0:
            whole("vocabulary", machine.vocabulary, END_TOKEN + 2, INT32_MAX)
            self.executor.ends, eos[0] = trace.output_tokens.copy(), END_TOKEN
        self.columns = tuple(np.full(count, NEVER, np.int64) for _ in range(2)) + tuple(
            np.zeros(count, np.int64) for _ in range(3)) + (np.zeros(GAP_BINS, np.int64),)
        self.arrived = trace.arrival_ns.copy()
        self.load = (np.stack([getattr(trace, name) for name in COLUMNS]), self.arrived,
                     row_of(longest, 0), eos, longest.prompt)
        self.launches = np.zeros((FRAMES_MAX, 3), np.int64)
        self.steps = 0

    @property
    def ended(self) -> int:
        """Requests that were answered or rejected."""
        return int(self.at[study_loop.ENDED])

    def arrive(self) -> None:
        """Submits what has come by now."""
        self.at[study_loop.NOW] = self.clock.now_ns
        study_loop.arrive(self.world, self.at, *self.load)

    def read(self) -> None:
        """Takes the events that the tick brought."""
        study_loop.read(self.world, self.at, *self.columns)

    def advance(self, launched: bool) -> None:
        """Time passes to the next fence or arrival, unless the tick launched and may again."""
        study_loop.advance(self.world, self.at, self.executor.flight, self.load[0], launched)
        self.clock.now_ns = int(self.at[study_loop.NOW])

    def step(self) -> None:
        """Arrivals, one tick of the engine, events, time: call by call."""
        self.arrive()
        launched = self.engine.step()
        self.steps += 1
        self.read()
        self.advance(launched)

    def leap(self, steps: int) -> None:
        """The same, so many times in one call, or until every request has ended. A recorded tick,
        or one of other systems, is stepped."""
        if not self.engine.shipped:
            for _ in range(steps):
                if self.ended < len(self.trace):
                    self.step()
            return
        device, at = self.executor, self.at
        at[study_loop.NOW], at[study_loop.HOST_NS] = self.clock.now_ns, device.cost.host_ns
        at[study_loop.LAUNCHED] = self.world[0]["frames"]["next_sequence"] - 1
        self.steps += study_loop.run_steps(
            self.world, steps, at, *self.load, self.columns, device.flight, device.at,
            device.operations, device.cost.arrays, self.launches, device.features, device.drawn)
        self.clock.now_ns = int(at[study_loop.NOW])
        self.engine.resume()

    def run(self, progress: Callable[[int], None] | None = None) -> Outcome:
        """Until every request has ended. progress: called now and then, with how many more have."""
        began, told = time.perf_counter(), 0
        while self.ended < len(self.trace):
            self.leap(STEPS)
            if progress is not None:
                progress(self.ended - told)
                told = self.ended
        return self.outcome(time.perf_counter() - began)

    def outcome(self, wall_s: float) -> Outcome:
        """What there is by now. wall_s: what it took."""
        counters = self.world[0]["counters"]
        first, last, tokens, finish, cached, gaps = self.columns
        return Outcome(
            self.arrived, first, last, tokens, finish, cached, gaps,
            virtual_ns=self.clock.now_ns, wall_s=wall_s, steps=self.steps,
            counters={name: int(counters[name]) for name in counters.dtype.names},
            digest=digest(self.world))

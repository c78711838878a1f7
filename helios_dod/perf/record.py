"""`python -m helios_dod.perf record`: a trace through a core on the device that its programs are
for, in real time and in this process, into a flight recording."""

import argparse
import contextlib
import json
import os
import threading
import time
from pathlib import Path

import numpy as np

from helios_dod.arguments import positive, whole_number
from helios_dod.edges import Submission, check_fits, row_of
from helios_dod.engine import Engine
from helios_dod.errors import UserError
from helios_dod.limits import EOS_MAX, TOKEN_BLOCK
from helios_dod.perf.machine import conditions
from helios_dod.perf.simulate import add_trace_arguments, lines, summary, trace_of
from helios_dod.progress import Progress
from helios_dod.recording import Recorder, check_target
from helios_dod.runtime.devices import plan_for_device
from helios_dod.runtime.native_model import NativeModel
from helios_dod.runtime.selection import Options
from helios_dod.simulation import study_loop
from helios_dod.simulation.observed import observe_file
from helios_dod.simulation.traces import COLUMNS, Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `record`."""
    add = parser.add_argument
    add("core", type=Path, help="a prepared core")
    add("--out", type=Path, required=True, help="the recording")
    add("--threads", type=whole_number, default=0, help="of the host executor (0: processors)")
    add("--random-weights", action="store_true",
        help="make the matrices on the device instead of reading them")
    add("--max-active", type=positive, help="requests that run at once (default: the core's)")
    add("--warm-up", type=whole_number, default=16,
        help="requests of the trace that run before, by other prompts: a process is slower at "
             "first (default %(default)s)")
    add_trace_arguments(parser)


WARM_STREAMS = 2  # of the warm-up


class Driver:
    """A trace through an engine whose clock is the machine's."""

    def __init__(self, engine: Engine, trace: Trace, concurrency: int, seed: int) -> None:
        self.engine, self.world = engine, engine.world
        count = len(trace)
        longest = Submission(0, np.zeros(trace.prompt_tokens.max(initial=1), np.int32), 1)
        check_fits(longest, self.world[0]["requests"]["blocks"].shape[1] * TOKEN_BLOCK)
        self.at = np.zeros(study_loop.LOAD_WORDS, np.int64)
        self.at[study_loop.FILLED] = -1
        self.at[study_loop.SEED], self.at[study_loop.CONCURRENCY] = seed, concurrency
        self.at[study_loop.VOCABULARY] = self.world[0]["settings"]["input_vocabulary"]
        self.trace = np.stack([getattr(trace, name) for name in COLUMNS])
        self.load = (self.trace, trace.arrival_ns.copy(), row_of(longest, 0),
                     np.full(EOS_MAX, -1, np.int32), longest.prompt)
        self.columns = tuple(np.zeros(count, np.int64) for _ in range(5)) + (
            np.zeros(study_loop.GAP_BINS, np.int64),)
        self.began, self.told = 0, 0

    def look(self) -> bool:
        """Takes events, submits what has come; True when every request has ended."""
        self.at[study_loop.NOW] = self.engine.clock() - self.began
        study_loop.read(self.world, self.at, *self.columns)
        study_loop.arrive(self.world, self.at, *self.load)
        ended = int(self.at[study_loop.ENDED])
        self.progress(ended - self.told)
        self.told = ended
        return ended == self.trace.shape[1]

    def run(self, progress: Progress) -> None:
        """The engine's own loop, until every request has ended."""
        self.progress = progress
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.began = self.engine.clock()
        bell = threading.Thread(target=self._ring, args=(wake,), daemon=True)
        if not self.at[study_loop.CONCURRENCY]:
            bell.start()
        self.engine.run(self.look, wake)
        if bell.is_alive():
            bell.join()
        os.close(wake)

    def _ring(self, wake: int) -> None:
        """Wakes the loop at every arrival."""
        for due in (self.began + self.trace[0]).tolist():
            time.sleep(max(due - self.engine.clock(), 0) / 1e9)
            os.eventfd_write(wake, 1)


def warm_up(engine: Engine, trace: Trace, seed: int) -> None:
    """Runs a trace by prompts of that seed, unrecorded."""
    with Progress("warming up", len(trace), "requests") as progress:
        Driver(engine, trace, WARM_STREAMS, seed).run(progress)


def record(model: NativeModel, trace: Trace, concurrency: int, seed: int, out: Path) -> None:
    """Runs a trace through an idle engine and writes its recording."""
    engine = model.engine
    engine.recorder = Recorder(engine.world, model.plan.selection.limits.name)
    driver = Driver(engine, trace, concurrency, seed)
    with Progress("recording", len(trace), "requests") as progress:
        driver.run(progress)
    engine.recorder.save(out, "the trace ended")
    engine.recorder = None


def run(options: argparse.Namespace) -> int:
    """Writes the recording; prints what users would have seen."""
    try:
        check_target(options.out)
    except UserError as error:
        raise UserError(f"--out: {error}") from None
    trace = trace_of(options)
    made, executor = plan_for_device(options.core, Options(concurrency=options.max_active),
                                     options.threads, options.random_weights)
    model = NativeModel.of(made, executor, trust_weights=options.random_weights)
    with contextlib.closing(model):
        model.engine.warm()
        if options.warm_up:
            warm_up(model.engine, trace.first(options.warm_up), options.seed + 1)
        record(model, trace, options.concurrency, options.seed, options.out)
    result = summary(observe_file(options.out).outcome)
    if options.json:
        print(json.dumps({**conditions(options.seed, options.warm_up, 1), **result}))
    else:
        print("\n".join(lines(result)))
    return 0

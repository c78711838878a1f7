"""The engine's own process: loads a core into shared memory and runs the loop until stopped."""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numba import typeof

from helios_dod.compiling import compile_line
from helios_dod.engine import Engine
from helios_dod.errors import UserError
from helios_dod.executors.base import DeviceError, Executor
from helios_dod.ledger import EMPTY
from helios_dod.limits import SIZES
from helios_dod.recording import TICKS, Recorder, crash_text
from helios_dod.runtime.native_model import NativeModel, Plan, note_weights
from helios_dod.runtime.options import EngineOptions
from helios_dod.runtime.selection import Options, selection_options
from helios_dod.schedule import tick_first, tick_rest
from helios_dod.world import dtype_of

QUIET_S = 1.0

Planner = Callable[[Path, Options, int], tuple[Plan, Executor]]


def load_code(limits_name: str) -> None:
    """Compiles, or loads from the cache, the tick of a world of that size."""
    world = typeof(np.empty(1, dtype_of(SIZES[limits_name])))  # never touched: no memory
    for part in (tick_first, tick_rest):
        part.compile((world,))


class Quiet:
    """Makes grammars ready once nobody has asked for anything for a while: their tokenizer holds
    the interpreter's lock for up to a second, which the start and live requests should not wait
    for. A request that brings a grammar before that makes them ready itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.since = engine, time.monotonic()
        self.waits = engine.desk is not None

    def look(self) -> None:
        """Called again and again by the engine's loop."""
        if not self.waits:
            return
        now = time.monotonic()
        if not self.engine.idle():
            self.since = now
        elif now - self.since > QUIET_S:
            self.waits = False
            assert self.engine.desk is not None
            self.engine.desk.worker.prepare()


def run(core_path: Path, memory: memoryview, limits_name: str, wake_engine: int,
        wake_frontends: Sequence[int], options: EngineOptions,
        planner: Planner) -> None:
    """Serves a core from `memory` (a zeroed world of that size) until options.stopping().

    wake_engine: eventfd that frontends write after a submission. wake_frontends: eventfd of each
    frontend row, written when it has events. Returns after the device is quiet; raises what makes
    the engine unable to go on. planner: chooses capacities and the executor."""
    note_weights(options.trust_weights)
    began = time.perf_counter()
    with compile_line("compiling for this processor"):
        code = threading.Thread(target=load_code, args=(limits_name,), name="code")
        code.start()  # while a device starts and takes weights
        made, executor = planner(
            core_path, selection_options(options, limits_name), options.threads)
        phases = {"contract": time.perf_counter() - began}
        model = NativeModel.of(made, executor, memory, trust_weights=options.trust_weights,
                               phases=phases)
        engine = model.engine
        engine.world[0]["settings"]["queue_capacity"] = options.queue_capacity
        code.join()
        engine.warm()  # nothing compiles after `ready`
    print(model.report(), file=sys.stderr)
    options.ready()

    def notify(frontend: int) -> None:
        os.eventfd_write(wake_frontends[frontend], 1)

    if options.record is not None:
        engine.recorder = Recorder(engine.world, made.selection.limits.name,
                                   options.record_ticks or TICKS, ledger=options.ledger)
    failed: list[DeviceError] = []
    quiet = Quiet(engine)

    def stop() -> bool:
        """Ends on request, or once every live request was told of a device error."""
        quiet.look()
        if engine.failure is not None and engine.idle():
            failed.append(engine.failure)
            return True
        return options.stopping()

    ended = "stopped"
    try:
        engine.run(stop, wake_engine, notify)
        ended = f"device error: {failed[0]}" if failed else ended
    except BaseException as error:
        ended = crash_text(error)
        raise
    finally:
        if engine.recorder is not None and options.record is not None:
            save(engine.recorder, options.record, ended)
        engine.close()
    if failed:
        raise failed[0]


def save(recorder: Recorder, path: Path, ended: str) -> None:
    """Writes the recording, or says why there is none: what ended the engine is what it raises."""
    try:
        recorder.save(path, ended)
    except UserError as error:
        print(f"helios: --record: {error}", file=sys.stderr)
    recorder.ledger.state = EMPTY  # the parent has nothing more to write

"""The parent's loop: granian's, but workers that die start over for ever, slower when they die
young, and a failed engine may start over too."""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from granian.server.mp import MPServer

YOUNG_SECONDS = 5.0  # a worker that dies younger is in trouble
DELAY_SECONDS_MAX = 8.0
PIPE_BYTES = 1 << 16  # all that a pipe holds, pipe(7)


class Wake:
    """An event that signals and their handlers set. `threading.Event` takes a lock in every call: a
    handler that interrupts its thread there waits for that thread, which is itself, for ever."""

    def __init__(self) -> None:
        self.descriptor, self.end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """Signals set it from here on, whichever thread the kernel gives them to: a handler by
        itself runs only once the main thread does, which waits."""
        signal.set_wakeup_fd(self.end, warn_on_full_buffer=False)

    def set(self) -> None:
        """Ends the wait of now, or the next one."""
        with contextlib.suppress(BlockingIOError):  # full: it is set
            os.write(self.end, b"\0")

    def wait(self) -> None:
        """Until it is set; handlers run meanwhile."""
        select.select([self.descriptor], [], [])

    def clear(self) -> None:
        """What is set from here on is waited for."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, PIPE_BYTES)


class Supervisor(MPServer):
    """granian's parent. engine_ended: called when a child process ends and after each signal.
    stopping: called when a signal asks for the end; True if nothing need be waited for."""

    def __init__(self, *args: Any, engine_ended: Callable[[], None],
                 stopping: Callable[[], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine_ended, self.stopping = engine_ended, stopping
        self.main_loop_interrupt: Any = Wake()  # granian sets it in handlers and threads
        self.process = os.getpid()
        self.at_once = False
        self.delays: dict[int, float] = {}
        self.born: dict[int, float] = {}

    def on_child(self, *_: Any) -> None:
        """SIGCHLD: only wakes the loop."""
        self.main_loop_interrupt.set()

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """SIGTERM and SIGINT: ends the loop."""
        if os.getpid() != self.process:
            os._exit(1)  # a child just forked, which has no handlers of its own yet
        self.at_once = self.stopping() or self.at_once
        if self.at_once:  # the loop may be waiting for them already
            self.kill_workers()
        super().signal_handler_interrupt(*args, **kwargs)

    def kill_workers(self) -> None:
        """Ends every worker that there is."""
        for worker in self.wrks:
            worker.kill()

    def _stop_workers(self) -> None:
        if self.at_once:  # one may have been started since the signal
            self.kill_workers()
        super()._stop_workers()

    def _serve_loop(self, spawn_target: Any, target_loader: Any) -> None:
        """Until a signal: starts dead workers again and looks after the engine."""
        self.main_loop_interrupt.listen()
        signal.signal(signal.SIGCHLD, self.on_child)
        self.engine_ended()  # it may have ended before anybody listened
        while not self.interrupt_signal:
            self.main_loop_interrupt.wait()
            self.main_loop_interrupt.clear()
            if self.interrupt_signal:
                break
            self.engine_ended()
            dead = list(self.interrupt_children)
            self.interrupt_children.clear()
            for index in dead:
                self.start_again(index, spawn_target, target_loader)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)

    def start_again(self, index: int, spawn_target: Any, target_loader: Any) -> None:
        """One dead worker, after a pause that grows while it dies young."""
        now = time.monotonic()
        young = now - self.born.get(index, 0.0) < YOUNG_SECONDS
        delay = self.delays.get(index, 0.0) if young else 0.0
        self.delays[index] = min(max(2 * delay, 0.5), DELAY_SECONDS_MAX) if young else 0.0
        print(f"helios: worker {index} died; starting it again"
              + (f" in {delay:g} s" if delay else ""), file=sys.stderr)
        if delay:
            time.sleep(delay)
        self.born[index] = time.monotonic()
        self._respawn_workers([index], spawn_target, target_loader)

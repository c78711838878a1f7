"""The parent's loop: granian's, but workers that die start over for ever, slower when they die
young, and a failed engine may start over too."""

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from granian.server.mp import MPServer

YOUNG_SECONDS = 5.0  # a worker that dies younger is in trouble
DELAY_SECONDS_MAX = 8.0


class Supervisor(MPServer):
    """granian's parent. engine_ended: called when a child process ends and after each signal."""

    def __init__(self, *args: Any, engine_ended: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine_ended = engine_ended
        self.delays: dict[int, float] = {}
        self.born: dict[int, float] = {}

    def on_child(self, *_: Any) -> None:
        """SIGCHLD: only wakes the loop."""
        self.main_loop_interrupt.set()

    def _serve_loop(self, spawn_target: Any, target_loader: Any) -> None:
        """Until a signal: starts dead workers again and looks after the engine."""
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

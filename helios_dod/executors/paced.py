"""The simulated executor at real pace: its programs end when the wall clock says so."""

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from helios_dod.contract.prepared import PreparedContract
from helios_dod.executors.simulated import SimulatedExecutor, VirtualClock


class WallClock(VirtualClock):
    """Time passes by itself."""

    def __call__(self) -> int:
        return time.monotonic_ns()


class PacedExecutor(SimulatedExecutor):
    """Computes nothing, like its base; a timer makes its descriptor readable at every end."""

    def __init__(self, contract: PreparedContract, cost: Callable[[int], int]) -> None:
        super().__init__(contract, WallClock(), cost)
        self._timer = SimpleQueue[int | None]()
        self._thread = threading.Thread(target=self._tell, name="simulated device", daemon=True)
        self._thread.start()

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Queues a program behind the one before it, from now on."""
        super().submit(frame, program, sequence)
        self._timer.put(self._ends[-1][0])

    def _tell(self) -> None:
        while (end := self._timer.get()) is not None:
            time.sleep(max(end - time.monotonic_ns(), 0) / 1e9)
            os.eventfd_write(self._descriptor, 1)

    def drain(self) -> None:
        """Waits for the last end."""
        while (end := self.next_end()) is not None:
            time.sleep(max(end - time.monotonic_ns(), 0) / 1e9)
            self.poll()

    def close(self) -> None:
        """Drains, then ends the timer."""
        self._timer.put(None)
        self._thread.join()
        super().close()

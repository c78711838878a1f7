"""The simulated executor at real pace: its programs end when the wall clock says so."""

import heapq
import os
import threading
import time

from helios_dod.contract.prepared import PreparedContract
from helios_dod.executors.costs import Costs, FixedCost
from helios_dod.executors.simulated import SimulatedExecutor, VirtualClock


class WallClock(VirtualClock):
    """Time passes by itself."""

    def __call__(self) -> int:
        return time.monotonic_ns()


class PacedExecutor(SimulatedExecutor):
    """Computes nothing, like its base; a timer makes its descriptor readable at every end."""

    def __init__(self, contract: PreparedContract, cost: Costs | FixedCost) -> None:
        super().__init__(contract, WallClock(), cost)
        self._due: list[int] = []  # a heap
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._tell, name="simulated device", daemon=True)
        self._thread.start()

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Queues a program behind the one before it, from now on."""
        self._expect(self._take_off(frame, program, sequence))

    def copy(self, queue: int, first: int, end: int) -> None:
        """Queues copies behind those before them, from now on."""
        super().copy(queue, first, end)
        self._expect(*[queued for queued, number, _ in self._copies[queue] if number >= first])

    def _expect(self, *ends: int) -> None:
        with self._changed:
            for end in ends:
                heapq.heappush(self._due, end)
            self._changed.notify()

    def _tell(self) -> None:
        with self._changed:
            while not self._closing:
                left = self._due[0] - time.monotonic_ns() if self._due else None
                if left is None or left > 0:
                    self._changed.wait(None if left is None else left / 1e9)
                    continue
                heapq.heappop(self._due)
                os.eventfd_write(self._descriptor, 1)

    def _pass(self, end: int) -> None:
        time.sleep(max(end - time.monotonic_ns(), 0) / 1e9)

    def close(self) -> None:
        """Drains, then ends the timer."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        super().close()

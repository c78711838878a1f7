"""Pages that leave for pinned memory and come back, alone and while decode steps run.

    python perf/h200/offload.py 8b 64      # shape, batch; see measure.py for its programs
"""

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from measure import CONTEXT, Harness, loaded, stepped

from helios_dod.engine import drain_eventfd
from helios_dod.terms import COPY_OFFLOAD, COPY_RESTORE, QUEUE_MEMORY

PLACES = 1024  # pages that pinned memory holds
AHEAD = 96  # copies that are handed over at once
REPETITIONS = 3


def wait(executor: Any) -> None:
    """Until a program or a copy ends, as the engine's loop does."""
    if select.select([executor.descriptor()], [], [], 0.001)[0]:
        drain_eventfd(executor.descriptor())


class Pump:
    """Keeps AHEAD copies handed over, of the device's pages in turn, as the engine's loop does."""

    def __init__(self, harness: Harness) -> None:
        self.executor = harness.executor
        self.table = harness.world[0]["copies"]
        self.free = [page for page in harness.free if page < harness.geometry.pages][:PLACES]
        self.started = 0

    def start(self, kind: int) -> None:
        """As many as there is room for."""
        first, ended = self.started, self.executor.copied(QUEUE_MEMORY)
        slots = self.table["kind"].shape[1]
        while self.started - ended < min(AHEAD, slots):
            row, place = self.started % slots, self.started % PLACES
            page = self.free[self.started % len(self.free)]
            self.table["kind"][QUEUE_MEMORY, row] = kind
            source, target = (page, place) if kind == COPY_OFFLOAD else (place, page)
            self.table["source"][QUEUE_MEMORY, row] = source
            self.table["target"][QUEUE_MEMORY, row] = target
            self.started += 1
        if self.started > first:
            self.executor.copy(QUEUE_MEMORY, first, self.started)

    def timed(self, work: Callable[[], object]) -> float:
        """GB/s of the copies that ended while work was done; ends with none under way."""
        begun, before = time.monotonic(), self.executor.copied(QUEUE_MEMORY)
        work()
        copied, spent = self.executor.copied(QUEUE_MEMORY) - before, time.monotonic() - begun
        while self.executor.copied(QUEUE_MEMORY) < self.started:
            pass
        return copied * self.executor.page_bytes() / spent / 1e9

    def alone(self, kind: int, seconds: float = 0.5) -> None:
        """Copies and nothing else."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.start(kind)
            wait(self.executor)


def main() -> None:
    """Rates alone, then steps without copies and with each kind, in turn."""
    name, batch = sys.argv[1], int(sys.argv[2])
    harness = loaded(name, batch + 16)
    generator = np.random.default_rng(1)
    for slot in range(batch):
        harness.admit(slot)
        for _ in range(CONTEXT // 512):
            harness.prefill({slot: generator.integers(0, 128_000, 512).tolist()})
    for _ in range(3):
        harness.decode(list(range(batch)))
    number = [p.name for p in harness.manifest.programs].index(f"decode_{batch}")
    words = harness.world[0]["staging"]["words"]
    words[1 - harness.frame] = words[harness.frame]
    harness.executor.back(PLACES, None)
    pump = Pump(harness)
    print(f"pages of {harness.executor.page_bytes()} bytes, {len(pump.free)} in turn", flush=True)
    kinds = {"offload": COPY_OFFLOAD, "restore": COPY_RESTORE}
    for what, kind in kinds.items():
        rates = [pump.timed(lambda kind=kind: pump.alone(kind)) for _ in range(3)]
        print(f"{what} alone: {np.median(rates):.1f} GB/s ({min(rates):.1f} to {max(rates):.1f})")
    steps: dict[str, list[float]] = {"alone": [], **{what: [] for what in kinds}}
    rates_beside: dict[str, list[float]] = {what: [] for what in kinds}
    for _ in range(REPETITIONS):
        for what, kind in kinds.items():
            steps["alone"].append(stepped(harness, number, lambda: wait(harness.executor)))

            def between(kind: int = kind) -> None:
                pump.start(kind)
                wait(harness.executor)

            rates_beside[what].append(pump.timed(lambda what=what, between=between: steps[
                what].append(stepped(harness, number, between))))
    alone = float(np.median(steps["alone"]))
    print(f"{name} batch {batch}, steps alone: {alone:.3f} ms ({min(steps['alone']):.3f} to "
          f"{max(steps['alone']):.3f})")
    for what in kinds:
        beside = float(np.median(steps[what]))
        print(f"with {what}: {beside:.3f} ms ({min(steps[what]):.3f} to {max(steps[what]):.3f}), "
              f"{100 * (beside / alone - 1):+.2f} %, {np.median(rates_beside[what]):.1f} GB/s")
    harness.close()


if __name__ == "__main__":
    main()

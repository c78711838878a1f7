"""python -m helios_dod.simulation.leaks: requests that are cancelled at random ticks, and what is
lost by it.

Every request holds a permit of the server's own table from its submission to its end. Pages go to
host memory and disk and come back meanwhile, and some copies fail. At the end every page, place,
slot, request row, token block and permit must be free; and a slot whose request ended must be free
in the tick that sees its last fence.
"""

import argparse
import sys
import time
from collections import Counter

import numpy as np

from helios_dod.limits import NO_ROW
from helios_dod.server.control import control_dtype
from helios_dod.simulation.invariants import check, require
from helios_dod.simulation.simulator import Live, Simulator, Workload
from helios_dod.tables.service import claim_permits, permits_used, release_permits
from helios_dod.terms import (
    FINISH_CANCELLED,
    FREE,
    SLOT_ADMITTED,
    SLOT_DECODE,
    SLOT_DRAINING,
    SLOT_PREFILL,
    SLOT_RESTORING,
    WAITING,
)

OWNER = 1
PHASES = {SLOT_ADMITTED: "admitted", SLOT_PREFILL: "prefill", SLOT_DECODE: "decode",
          SLOT_DRAINING: "draining", SLOT_RESTORING: "restoring"}
LOAD = Workload(
    arrival=1.0, cancel=0.0, deadline=0.0, stops=0.1, ignore_eos=1.0, shared=0.7, scored=0.0,
    grammar=0.0, salted=0.0, oversize=0.0, drain=1.0, prompt_max=100, output_max=80, priority_max=2,
    memory_pages=24, disk_pages=8, copy_failure=0.05, copy_late=0.1, copy_ns=300)


class Leaks(Simulator):
    """A simulator whose requests end by a cancel at a tick drawn for each, unless they end before.
    """

    def __init__(self, seed: int, requests: int, age_max: int) -> None:
        super().__init__(seed, walked=False, workload=LOAD, pages=16)
        self.wanted, self.age_max = requests, age_max
        self.due: dict[int, list[int]] = {}  # tick -> tags
        self.ticks = self.sent = self.late_ticks = 0
        self.phases: Counter[str] = Counter()
        size = len(self.world[0]["requests"]["state"])
        self.control = np.zeros(1, control_dtype(self.limits))
        self.control[0]["service"]["permit_count"] = size
        self.permits: dict[int, np.ndarray] = {}

    def send(self, arrivals: bool) -> None:
        """New requests while there are permits; cancels that are due."""
        row = np.zeros(1, np.int64)
        while arrivals and claim_permits(self.control, OWNER, row):
            before = self.next_tag
            super().send(True)
            if self.next_tag == before:  # the ring was full
                self.give_back(row)
                break
            self.permits[before] = row.copy()
            self.sent += 1
            when = self.ticks + self.rng.randint(0, self.age_max)
            self.due.setdefault(when, []).append(before)
        for tag in self.due.pop(self.ticks, []):
            if tag in self.live:
                self.note_phase(tag)
                if self.edge.cancel(tag):
                    self.live[tag].cancelled = True
                else:
                    self.due.setdefault(self.ticks + 1, []).append(tag)

    def note_phase(self, tag: int) -> None:
        """Where a request is when it is cancelled."""
        requests = self.world[0]["requests"]
        rows = np.nonzero((requests["tag"] == tag) & (requests["state"] != FREE))[0]
        if not len(rows):
            self.phases["in the ring"] += 1
        elif requests["state"][rows[0]] == WAITING:
            self.phases["waiting"] += 1
        else:
            slot = int(requests["slot"][rows[0]])
            held = slot < len(self.world[0]["slots"]["state"])
            self.phases[PHASES[int(self.world[0]["slots"]["state"][slot])] if held
                        else "ended"] += 1

    def judge(self, live: Live, reason: int, count: int, bounds: tuple[int, int],
              which: int) -> None:
        """The oracle's judgement. Later requests begin like this one."""
        super().judge(live, reason, count, bounds, which)
        self.texts = [*self.texts[-3:], live.submission.prompt.tolist() + live.tokens[:40]]
        self.reasons[reason] += 1

    def read(self) -> None:
        """The reader's events; a permit comes back with the last one of its request."""
        super().read()
        for tag in [tag for tag in self.permits if tag not in self.live]:
            self.give_back(self.permits.pop(tag))

    def give_back(self, row: np.ndarray) -> None:
        """Returns a permit."""
        release_permits(self.control, OWNER - 1, row, self.clock.now_ns)

    def tick(self, arrivals: bool = True) -> None:
        """One tick; slots of ended requests that drain without a frame in flight are late."""
        super().tick(arrivals)
        self.ticks += 1
        slots = self.world[0]["slots"]
        idle = (slots["state"] == SLOT_DRAINING) & (slots["in_flight"] == 0) & (
            slots["request"] != NO_ROW)
        self.late_ticks += int((idle & ~slots["scores_held"].any(axis=1)).sum())
        if self.ticks % 1000 == 0:
            check(self.world)

    def finish(self) -> str:
        """Ticks until so many were cancelled and all have ended, then the quiet checks; the digest.
        """
        while self.reasons[FINISH_CANCELLED] < self.wanted:
            self.tick()
        return self.run(0)


def main() -> int:
    """Runs one seed and prints what was lost; nothing is to be."""
    parser = argparse.ArgumentParser(prog="python -m helios_dod.simulation.leaks",
                                     description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="to be cancelled")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--age", type=int, default=40, help="ticks that a request lives at most")
    options = parser.parse_args()
    began = time.perf_counter()
    leaks = Leaks(options.seed, options.requests, options.age)
    digest = leaks.finish()
    lost = permits_used(leaks.control)
    require(lost == 0, f"permits: {lost} are held")
    counters = leaks.world[0]["counters"]
    copied = {name: int(counters[name]) for name in counters.dtype.names
              if name.startswith(("pages_", "copies_")) or name == "preempted"}
    print(f"{leaks.sent} requests in {leaks.ticks} ticks and {time.perf_counter() - began:.0f} s: "
          f"{leaks.reasons[FINISH_CANCELLED]} ended by their cancel, others by themselves before")
    print("cancelled while: " + ", ".join(f"{name} {n}" for name, n in leaks.phases.most_common()))
    print(f"meanwhile: {copied}")
    print(f"lost: 0 pages, 0 slots, 0 permits; pages are free in the tick of the last fence, "
          f"{leaks.late_ticks} slots later than that")
    print(digest)
    return int(leaks.late_ticks > 0)


if __name__ == "__main__":
    sys.exit(main())

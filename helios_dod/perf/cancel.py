"""`python -m helios_dod.perf cancel`: from a cancelled request to its slot and pages, in ticks of a
simulated engine. What its programs in flight hold cannot go before their last fence."""

import argparse
import json
from typing import Any

import numpy as np

from helios_dod.arguments import seed, whole_number
from helios_dod.edges import Submission
from helios_dod.embedding import Engine
from helios_dod.errors import UserError
from helios_dod.executors.costs import FixedCost
from helios_dod.perf.machine import conditions, middle
from helios_dod.simulation.machine import Machine

LANES, PROMPT_TOKENS, PREFILL_TOKENS, VOCABULARY = 8, 400, 128, 1000
STEP_NS = 8_000_000
STAGES = 12  # ticks from arrival to cancel, at most
REQUESTS_MAX = 150  # while the others decode
WARM_UP = 4 * LANES  # ticks before the first cancel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cancel`."""
    parser.add_argument("--requests", type=whole_number, default=100, help="(default %(default)s)")
    parser.add_argument("--seed", type=seed, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


class Cancelling:
    """Requests that decode for long, and one more at a time that is cancelled."""

    def __init__(self, seed: int) -> None:
        self.engine = Engine.simulated(Machine(
            lanes=LANES, prefill_tokens=PREFILL_TOKENS, vocabulary=VOCABULARY,
            cost=FixedCost(STEP_NS, 0)))
        self.rng = np.random.default_rng(seed)
        for tag in range(1, LANES):
            self.submit(tag)
        for _ in range(WARM_UP):
            self.step()

    def submit(self, tag: int) -> None:
        """A request that would go on for as long as the context lets it."""
        assert self.engine.submit(Submission(
            tag, self.rng.integers(0, VOCABULARY, PROMPT_TOKENS, np.int32), 3000))

    def step(self) -> None:
        """One tick, and time up to the next end."""
        self.engine.tick()
        self.engine.events()
        self.engine.advance()

    def slots(self) -> set[int]:
        """Of requests that run."""
        slots = self.engine.loop.world[0]["slots"]
        return set(slots["live"][:slots["live_count"]].tolist())

    def one(self, steps: int) -> tuple[int, int, int]:
        """Cancels a request so many ticks after it came: (programs that it is in by then, ticks
        from its cancel to its last fence, and from that one to the one that leaves it nothing).
        """
        others = self.slots()
        self.submit(0)
        while not (mine := self.slots() - others):
            self.step()
        for _ in range(steps):
            self.step()
        (slot,), in_flight = mine, self.engine.loop.world[0]["slots"]["in_flight"]
        flying, fence, ticks = int(in_flight[slot]), 0, 0
        assert self.engine.cancel(0)
        while mine & self.slots():
            self.step()
            ticks += 1
            if not fence and not in_flight[slot]:
                fence = ticks
        assert not self.engine.loop.world[0]["slots"]["page_count"][slot]
        return flying, fence, ticks - fence


def measure(requests: int, seed: int) -> dict[str, Any]:
    """Requests cancelled at all stages, in prefill and while they decode. Raises UserError."""
    if not 1 <= requests <= REQUESTS_MAX:
        raise UserError(f"--requests: expected 1 to {REQUESTS_MAX}, got {requests}")
    load = Cancelling(seed)
    found = np.array([load.one(at % STAGES) for at in range(requests)])
    flying, fence, behind = found.T
    load.engine.close()
    return {**conditions(seed, WARM_UP, requests), "requests": requests,
            "in_flight": int((flying > 0).sum()), "to_fence_ticks_most": int(fence.max()),
            "to_fence_ticks": middle(fence.tolist(), 1), "ticks": middle(behind.tolist(), 1),
            "ticks_most": int(behind.max()),
            "ticks_mean": round(float(behind.mean()), 3)}


def run(options: argparse.Namespace) -> int:
    """Prints the ticks."""
    result = measure(options.requests, options.seed)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['requests']} cancelled requests: last fence after at most "
              f"{result['to_fence_ticks_most']} ticks, slot and pages free after at most "
              f"{result['ticks_most']} more")
    return 0

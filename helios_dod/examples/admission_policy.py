"""An admission policy of one's own, written as one system: short prompts first, none starves.

A system declares the columns that it reads and writes and touches tables only. This one runs before
`match` and moves each request that has just arrived to where it would stand had it come later by
its prompt's length. Run: python -m helios_dod.examples.admission_policy
"""

import argparse
from collections.abc import Sequence

import numpy as np

from helios_dod import Engine, Machine, Submission
from helios_dod.executors.costs import FixedCost
from helios_dod.schedule import TICK
from helios_dod.system import System, system
from helios_dod.systems.receive import AGING_NS
from helios_dod.tables.requests import waiting_insert, waiting_remove
from helios_dod.terms import EGRESS_TOKEN

TOKEN_NS = 2_000_000  # a token of a prompt counts as so much later an arrival
MACHINE = Machine(lanes=4, prefill_tokens=256, context_tokens=2048, vocabulary=1000,
                  cost=FixedCost(5_000_000, 20_000))


@system(
    reads="clock.now_ns requests.priority requests.prompt_count",
    writes="requests.order_ns requests.waiting_next requests.waiting_previous "
           "requests.waiting_first requests.waiting_last requests.waiting_count",
)
def prefer_short(world):
    """Orders new arrivals by arrival and length; the key is fixed, so waiting is bounded."""
    requests, now = world[0].requests, world[0].clock.now_ns
    row = requests.waiting_first
    for _ in range(requests.waiting_count):
        following = requests.waiting_next[row]
        arrived = now + requests.priority[row] * AGING_NS
        if requests.order_ns[row] == arrived:  # `receive` wrote it in this tick
            waiting_remove(world, row)
            requests.order_ns[row] = arrived + requests.prompt_count[row] * TOKEN_NS
            waiting_insert(world, row)
        row = following


def with_policy() -> tuple[System, ...]:
    """The shipped tick with one system more."""
    at = [step.name for step in TICK].index("match")
    return (*TICK[:at], prefer_short, *TICK[at:])


def first_tokens(systems: Sequence[System] | None, lengths: np.ndarray) -> np.ndarray:
    """Milliseconds to each first token; all requests come at once."""
    waited = np.zeros(len(lengths))
    with Engine.simulated(MACHINE, systems=systems) as engine:
        for tag, count in enumerate(lengths.tolist()):
            prompt = np.arange(count, dtype=np.int32) % MACHINE.vocabulary
            assert engine.submit(Submission(tag, np.roll(prompt, tag), 32)), "the ring is full"
        for events in engine.batches():
            for event in events[(events["kind"] == EGRESS_TOKEN) & (events["index"] == 0)]:
                waited[event["tag"]] = engine.now_ns / 1e6
    return waited


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=60)
    options = parser.parse_args()
    lengths = np.random.default_rng(2).choice([32, 1500], options.requests)
    for name, systems in (("by arrival", None), ("short first", with_policy())):
        waited = first_tokens(systems, lengths)
        short, long = (np.median(waited[lengths == count]) for count in (32, 1500))
        print(f"{name:12} first token, median: short prompts {short:8.1f} ms, long ones "
              f"{long:8.1f} ms; all done by {waited.max():8.1f} ms")


if __name__ == "__main__":
    main()

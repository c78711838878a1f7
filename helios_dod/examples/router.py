"""Four replicas behind a router: in turn, least loaded, or where the prompt's beginning is cached.

Four engines of one process share one virtual clock. Prompts belong to conversations that share
their first 1,024 tokens. Run: python -m helios_dod.examples.router
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helios_dod import Engine, Machine, Submission
from helios_dod.executors.costs import FixedCost
from helios_dod.executors.simulated import VirtualClock
from helios_dod.simulation.traces import arrivals
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN

REPLICAS, GROUPS, SHARED, OWN, ANSWER = 4, 24, 1024, 64, 32
MACHINE = Machine(lanes=8, prefill_tokens=512, context_tokens=2048, pages=1024, vocabulary=1000,
                  cost=FixedCost(5_000_000, 20_000))
Policy = Callable[[int, int, list[int]], int]  # (number, group, requests of each replica) -> which


def in_turn(number: int, group: int, loads: list[int]) -> int:
    """Round robin."""
    return number % len(loads)


def least_loaded(number: int, group: int, loads: list[int]) -> int:
    """The replica with the fewest requests."""
    return loads.index(min(loads))


def by_prefix(number: int, group: int, loads: list[int]) -> int:
    """A group's own replica, unless that has 8 requests more than the idlest one."""
    own = group % len(loads)
    return own if loads[own] - min(loads) < 8 else least_loaded(number, group, loads)


@dataclass
class Result:
    """Of all replicas together."""

    cached: float  # share of prompt tokens that were not computed
    p50_ms: float  # arrival to first token
    p90_ms: float


def run(policy: Policy, requests: int, rate: float) -> Result:
    """Every request through the router."""
    rng = np.random.default_rng(3)
    times = arrivals(rng, requests, rate, 1.0)
    groups = rng.integers(0, GROUPS, requests)
    texts = rng.integers(0, MACHINE.vocabulary, (GROUPS, SHARED), dtype=np.int32)
    clock = VirtualClock()
    replicas = [Engine.simulated(MACHINE, clock) for _ in range(REPLICAS)]
    loads, waited, cached, sent, ended = [0] * REPLICAS, np.zeros(requests), 0, 0, 0
    while ended < requests:
        while sent < requests and times[sent] <= clock.now_ns:
            group = int(groups[sent])
            prompt = np.concatenate([texts[group], rng.integers(
                0, MACHINE.vocabulary, OWN, dtype=np.int32)])
            chosen = policy(sent, group, loads)
            if not replicas[chosen].submit(Submission(sent, prompt, ANSWER)):
                break
            loads[chosen] += 1
            sent += 1
        for number, engine in enumerate(replicas):
            engine.tick()
            for event in engine.events():
                if event["kind"] == EGRESS_TOKEN and event["index"] == 0:
                    waited[event["tag"]] = clock.now_ns - times[event["tag"]]
                elif event["kind"] == EGRESS_FINISHED:
                    loads[number] -= 1
                    ended += 1
                    cached += int(event["value"])
        ends = [end for engine in replicas if (end := engine.next_ns()) is not None]
        ends += [int(times[sent])] if sent < requests else []
        clock.now_ns = max([clock.now_ns, min(ends)] if ends else [clock.now_ns])
    for engine in replicas:
        engine.close()
    p50, p90 = np.percentile(waited, (50, 90)) / 1e6
    return Result(cached / (requests * (SHARED + OWN)), float(p50), float(p90))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rate", type=float, default=80.0, help="requests a second, over all")
    options = parser.parse_args()
    for policy in (in_turn, least_loaded, by_prefix):
        result = run(policy, options.requests, options.rate)
        print(f"{policy.__name__:13} {result.cached:6.1%} of prompt tokens cached; first token "
              f"after {result.p50_ms:7.1f} ms, p90 {result.p90_ms:7.1f} ms")


if __name__ == "__main__":
    main()

"""How many requests a second one engine carries, before first tokens come too late.

The shipped scheduler runs on a simulated device: 16 requests at once, 5 ms and 20 us a token for
each program. Run: python -m helios_dod.examples.capacity_study
"""

import argparse
from collections.abc import Sequence

import numpy as np

from helios_dod import Engine, Machine, Submission
from helios_dod.executors.costs import FixedCost
from helios_dod.simulation.traces import Trace, drawn_trace
from helios_dod.terms import EGRESS_TOKEN

MACHINE = Machine(lanes=16, prefill_tokens=512, context_tokens=4096, vocabulary=1000,
                  cost=FixedCost(5_000_000, 20_000))
PROMPT_MAX, OUTPUT_MAX = 2000, 60


def first_tokens(trace: Trace) -> np.ndarray:
    """Nanoseconds from each request's arrival to its first token."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, MACHINE.vocabulary, min(count, PROMPT_MAX), dtype=np.int32)
               for count in trace.prompt_tokens]
    waited = np.zeros(len(trace), np.int64)
    sent = ended = 0
    with Engine.simulated(MACHINE) as engine:
        while ended < len(trace):
            while sent < len(trace) and trace.arrival_ns[sent] <= engine.now_ns and engine.submit(
                    Submission(tag=sent, prompt=prompts[sent],
                               output_limit=min(int(trace.output_tokens[sent]), OUTPUT_MAX))):
                sent += 1
            engine.tick()
            for event in engine.events():
                tag = int(event["tag"])
                if event["kind"] != EGRESS_TOKEN:
                    ended += 1
                elif event["index"] == 0:
                    waited[tag] = engine.now_ns - trace.arrival_ns[tag]
            engine.advance(int(trace.arrival_ns[sent]) if sent < len(trace) else None)
    return waited


def capacity(rates: Sequence[float], requests: int, bound_ms: float) -> float:
    """The largest rate whose 90th percentile is within the bound; 0: none. Prints every rate."""
    best = 0.0
    for rate in rates:
        p50, p90 = np.percentile(first_tokens(drawn_trace("code", requests, rate)), (50, 90)) / 1e6
        print(f"{rate:6.1f} requests/s: first token after {p50:8.1f} ms, p90 {p90:8.1f} ms")
        if p90 <= bound_ms:
            best = max(best, rate)
    return best


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="at each rate")
    parser.add_argument("--bound-ms", type=float, default=500.0, help="of the 90th percentile")
    parser.add_argument("--rates", type=float, nargs="+", default=[2, 4, 8, 12, 16, 20])
    options = parser.parse_args()
    best = capacity(options.rates, options.requests, options.bound_ms)
    print(f"within {options.bound_ms:g} ms: {best:g} requests/s")


if __name__ == "__main__":
    main()

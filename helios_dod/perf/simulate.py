"""`python -m helios_dod.perf simulate`: a load through the shipped scheduler in virtual time.

Without a trace it measures its own speed, simulated time over real time: `steady`, all lanes
decoding, and `mixed`, a closed loop of prompts that share their beginnings.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.arguments import amount, positive, seed, whole_number
from helios_dod.errors import UserError
from helios_dod.executors.costs import FixedCost, read_costs
from helios_dod.perf.machine import conditions
from helios_dod.progress import Progress
from helios_dod.recording import check_target
from helios_dod.simulation.drafting import add_drafting_arguments, drafting_of
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.observed import observe_file
from helios_dod.simulation.study import Outcome, Study
from helios_dod.simulation.traces import (
    SHAPES,
    Trace,
    drawn_trace,
    make_trace,
    read_trace,
    write_trace,
)

WARM_STEPS = 200
STEADY_STEPS = 4000
MIXED_STEPS = 6000
MIXED_SHARE = 244 / 256  # running requests of the mixed load, of the lanes
PERCENTILES = (50, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `simulate`."""
    add = parser.add_argument
    add("--lanes", type=positive, default=256,
        help="requests that run at once (default %(default)s)")
    add("--step-ms", type=amount, default=8.0, help="time of a program (default %(default)s)")
    add("--token-us", type=amount, default=0.0,
        help="and of each of its tokens (default %(default)s)")
    add("--prefill-tokens", type=positive, default=2048,
        help="tokens of one program at most (default %(default)s)")
    add("--pages", type=whole_number, default=0,
        help="pages of 16 tokens (default: as many as the lanes can fill)")
    add("--costs", type=Path, help="what `fit` or `roofline` wrote, instead of --step-ms")
    add("--recording", type=Path,
        help="requests and capacities of a flight recording instead of a trace and --lanes")
    add("--write-trace", type=Path, help="also write the load: .jsonl, or .parquet (pyarrow)")
    add("--repeats", type=positive, default=5,
        help="of the speed measurement (default %(default)s)")
    add_drafting_arguments(parser)
    add_trace_arguments(parser)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """A load: a trace or what to draw."""
    add = parser.add_argument
    add("--trace", type=Path, help="a trace: .jsonl, .parquet, or a public .csv")
    add("--shape", choices=SHAPES, help="draw a trace of that shape instead")
    add("--requests", type=positive, default=10_000, help="of --shape (default %(default)s)")
    add("--rate", type=amount, default=10.0,
        help="requests a second of --shape; 0: all at once (default %(default)s)")
    add("--burstiness", type=amount, default=1.0,
        help="coefficient of variation of the gaps between arrivals: 1 is Poisson (default 1)")
    add("--shared-tokens", type=whole_number, default=0,
        help="of each prompt of --shape (default 0)")
    add("--groups", type=positive, default=1, help="of prompts that share (default 1)")
    add("--concurrency", type=whole_number, default=0,
        help="closed loop: so many requests at a time, whatever the trace says (default: open)")
    add("--seed", type=seed, default=1)
    add("--json", action="store_true", help="one JSON object on standard output")


def trace_of(options: argparse.Namespace) -> Trace:
    """The load that was asked for. Raises UserError."""
    if options.trace is not None:
        return read_trace(options.trace)
    if options.shape is None:
        raise UserError("--trace or --shape: one is needed")
    return drawn_trace(options.shape, options.requests, options.rate, options.seed,
                       options.burstiness, options.shared_tokens, options.groups)


def run(options: argparse.Namespace) -> int:
    """Prints what users would have seen, or how fast simulating is."""
    cost = read_costs(options.costs) if options.costs else FixedCost(
        round(options.step_ms * 1e6), round(options.token_us * 1e3))
    made = Machine(lanes=options.lanes, prefill_tokens=options.prefill_tokens,
                   pages=options.pages, cost=cost)
    made = drafting_of(options, made)
    if options.trace is None and options.shape is None and options.recording is None:
        result: dict[str, Any] = speed(made, options.repeats, options.seed)
        warm_up, repeats = WARM_STEPS, options.repeats
        shown = [f"{name}: {part['times_real_time']} x real time ({part['lowest']} to "
                 f"{part['highest']}), {part['us_a_step']} us a step"
                 for name, part in result.items()]
    else:
        if options.recording is not None:
            seen = observe_file(options.recording)
            made = drafting_of(options, replace(seen.machine, cost=cost))
            trace = seen.trace
        else:
            trace = trace_of(options)
        if options.write_trace is not None:
            check_target(options.write_trace)
            write_trace(trace, options.write_trace)
        study = Study(made, trace, options.concurrency, options.seed, options.output_limit)
        with Progress("simulating", len(trace), "requests") as progress:
            result = summary(study.run(progress))
        warm_up, repeats = 0, 1
        shown = lines(result)
    if options.json:
        print(json.dumps({**conditions(options.seed, warm_up, repeats), **result}))
    else:
        print("\n".join(shown))
    return 0


def steady_trace(made: Machine, steps: int) -> Trace:
    """One short prompt a lane, then decoding."""
    return make_trace(np.zeros(made.lanes), np.full(made.lanes, 64), np.full(made.lanes, steps))


def mixed_trace(count: int) -> Trace:
    """512-token prompts that share 256 with one in eight others; answers of 128."""
    return make_trace(np.zeros(count), np.full(count, 512), np.full(count, 128),
                      np.arange(count) % 8, np.full(count, 256))


def speed(made: Machine, repeats: int, seed: int) -> dict[str, Any]:
    """Simulated over real time, end to end: arrivals, ticks, device, events. Medians."""
    running = max(1, round(made.lanes * MIXED_SHARE))
    each = made.drafts + 1  # tokens of a step at most
    rounds = MIXED_STEPS * each // 128 + 4
    loads = {"steady": (steady_trace(made, (WARM_STEPS + STEADY_STEPS) * each + 64), 0,
                        STEADY_STEPS),
             "mixed": (mixed_trace(running * rounds), running, MIXED_STEPS)}
    result = {}
    for name, (trace, concurrency, steps) in loads.items():
        ratios, costs = [], []
        for _ in range(repeats):
            study = Study(made, trace, concurrency, seed)
            study.leap(WARM_STEPS)
            virtual, began = study.clock.now_ns, time.perf_counter()
            study.leap(steps)
            wall = time.perf_counter() - began
            ratios.append((study.clock.now_ns - virtual) / 1e9 / wall)
            costs.append(wall / steps * 1e6)
        result[name] = {
            "lanes": made.lanes, "steps": steps, "repeats": repeats,
            "times_real_time": round(statistics.median(ratios), 1),
            "lowest": round(min(ratios), 1), "highest": round(max(ratios), 1),
            "us_a_step": round(statistics.median(costs), 1)}
    return result


def spread(values: np.ndarray) -> dict[str, float]:
    """Milliseconds: mean and percentiles."""
    if not len(values):
        return {}
    return {"mean": round(float(values.mean()) / 1e6, 3),
            **{f"p{p}": round(float(np.percentile(values, p)) / 1e6, 3) for p in PERCENTILES}}


def summary(outcome: Outcome) -> dict[str, Any]:
    """A study's figures."""
    seconds = outcome.virtual_ns / 1e9
    return {
        "requests": len(outcome.arrival_ns), "rejected": int((outcome.finish == 0).sum()),
        "virtual_s": round(seconds, 3), "wall_s": round(outcome.wall_s, 3),
        "steps": outcome.steps, "times_real_time": round(seconds / outcome.wall_s, 1),
        "output_tokens_per_s": round(float(outcome.tokens.sum()) / max(seconds, 1e-9), 1),
        "requests_per_s": round(len(outcome.arrival_ns) / max(seconds, 1e-9), 3),
        "cached_prompt_tokens": int(outcome.cached_tokens.sum()),
        "ttft_ms": spread(outcome.ttft_ns), "latency_ms": spread(outcome.latency_ns),
        "between_tokens_ms": {f"p{p}": round(outcome.gap_ns(p) / 1e6, 3) for p in PERCENTILES},
        "drafts_offered": outcome.counters["drafts_offered"],
        "drafts_accepted": outcome.counters["drafts_accepted"],
        "counters": outcome.counters, "digest": outcome.digest,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """A summary for people."""
    def told(part: dict[str, float]) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in part.items())

    return [
        f"{result['requests']} requests ({result['rejected']} rejected) in "
        f"{result['virtual_s']:g} s of virtual time: {result['output_tokens_per_s']:g} tokens/s, "
        f"{result['requests_per_s']:g} requests/s",
        f"time to first token, ms: {told(result['ttft_ms'])}",
        f"between tokens, ms: {told(result['between_tokens_ms'])}",
        f"arrival to end, ms: {told(result['latency_ms'])}",
        f"prompt tokens from the cache: {result['cached_prompt_tokens']}; preempted "
        f"{result['counters']['preempted']} times",
        f"drafts: {result['drafts_accepted']} accepted of {result['drafts_offered']} in "
        f"{result['counters']['rounds_speculative']} rounds",
        f"{result['wall_s']:g} s of real time, {result['times_real_time']:g} x; "
        f"{result['steps']} steps",
        f"digest {result['digest']}"]

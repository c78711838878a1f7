"""`helios plan`: how many replicas, requests at once and pages a load needs on a core."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from helios_dod.arguments import amount, positive, seed, share
from helios_dod.contract.decode import decode
from helios_dod.cores.reader import open_core
from helios_dod.errors import UserError
from helios_dod.executors.costs import Costs, read_costs
from helios_dod.progress import format_bytes
from helios_dod.recording import check_target
from helios_dod.simulation.charts import Series, axis, chart, page, table
from helios_dod.simulation.drafting import add_drafting_arguments, drafting_of
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.planning import Plan, Planner, Point, Targets
from helios_dod.simulation.roofline import Device, roofline, work_of
from helios_dod.simulation.traces import SHAPES, Trace, drawn_trace, read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `helios plan`."""
    add = parser.add_argument
    add("--core", type=Path, required=True, help="a prepared core")
    add("--trace", type=Path, help="a trace: .jsonl, .parquet, or a public .csv")
    add("--shape", choices=SHAPES, help="draw a trace of that shape instead")
    add("--requests", type=positive, default=2000, help="of --shape (default %(default)s)")
    add("--rate", type=amount, default=10.0, help="requests a second of --shape (default 10)")
    add("--seed", type=seed, default=1, help="of --shape (default 1)")
    add("--ttft-ms", type=amount, required=True, help="target: arrival to first token")
    add("--between-ms", type=amount, required=True, help="target: mean time between tokens")
    add("--met", type=float, default=0.95,
        help="share of requests that meet both (default %(default)s)")
    add("--costs", type=Path, help="what `python -m helios_dod.perf fit` wrote; else:")
    add("--bandwidth-gb", type=amount, help="bytes that the device reads, 10^9 a second")
    add("--teraflops", type=amount, help="operations that it does, 10^12 a second")
    add("--overhead-us", type=amount, default=10.0, help="of each program (default %(default)s)")
    add("--efficiency", type=share, default=0.8,
        help="share of both rates that programs reach (default %(default)s)")
    add("--concurrency", type=positive, help="requests at once, at most (default: the core's)")
    add("--cache-gb", type=amount, help="memory of one replica's cache (default: what they fill)")
    add_drafting_arguments(parser)
    add("--replicas-max", type=positive, default=64, help="(default %(default)s)")
    add("--jobs", type=positive, default=os.cpu_count() or 1, help="processes that simulate")
    add("--html", type=Path, help="write the plan as a page of plots")
    add("--json", action="store_true", help="one JSON object on standard output")


def trace_of(args: argparse.Namespace) -> Trace:
    """Raises UserError."""
    if (args.trace is None) == (args.shape is None):
        raise UserError("--trace or --shape: expected one of them")
    if args.trace is not None:
        return read_trace(args.trace)
    return drawn_trace(args.shape, args.requests, args.rate, args.seed)


def machine_of(args: argparse.Namespace, trace: Trace) -> tuple[Machine, int]:
    """The core at its largest, and the bytes of one page. Raises UserError, CoreError."""
    core = open_core(args.core)
    manifest = core.manifest()
    contract = decode(core.serving, manifest)
    texts = trace.text_tokens(args.output_limit)
    longest = int(texts.max(initial=0))
    if longest > contract.context_tokens:
        raise UserError(f"trace: request {int(np.argmax(texts))} holds {longest} tokens, at most "
                        f"{contract.context_tokens} possible in this core")
    lanes = args.concurrency or contract.concurrency
    if not 1 <= lanes <= contract.concurrency:
        raise UserError(f"--concurrency: {lanes} asked, 1 to {contract.concurrency} possible")
    tokens = contract.cache.page_tokens
    context = min(contract.context_tokens, -(-(longest + 1) // tokens) * tokens)
    pages = lanes * -(-context // tokens)
    if args.cache_gb is not None:
        pages = min(pages, int(args.cache_gb * 1e9) // contract.cache.page_bytes)
        if pages * tokens < longest:
            raise UserError(f"--cache-gb: {args.cache_gb:g} holds {pages * tokens} tokens, the "
                            f"longest request has {longest}")
    if args.costs is not None:
        cost: Costs = read_costs(args.costs)
    elif args.bandwidth_gb is None or args.teraflops is None:
        raise UserError("--costs, or --bandwidth-gb and --teraflops: needed for what a step takes")
    else:
        cost = roofline(work_of(manifest, contract), Device(
            args.bandwidth_gb * 1e9, args.teraflops * 1e12, round(args.overhead_us * 1e3),
            args.efficiency))
    return drafting_of(args, Machine(
        lanes=lanes, prefill_tokens=contract.prefill_tokens, pages=pages,
        vocabulary=contract.vocabulary, context_tokens=context, page_tokens=tokens,
        cost=cost)), contract.cache.page_bytes


HEAD = ("replicas", "requests at once", "pages", "met", "first token p50, ms", "p99",
        "between tokens p99, ms", "tokens/s", "prompt cached", "preempted")


def told(point: Point) -> str:
    """One line."""
    return (f"{point.replicas} x {point.lanes} requests, {point.pages} pages: {point.met:.1%} met; "
            f"first token p50 {point.ttft_p50_ms:g} ms, p99 {point.ttft_p99_ms:g} ms; between "
            f"tokens p99 {point.between_p99_ms:g} ms; {point.tokens_per_s:g} tokens/s")


def plan_page(plan: Plan, trace: Trace, targets: Targets, page_bytes: int, title: str) -> str:
    """The plan, what was tried, and the trace."""
    points, chosen = plan.points, plan.chosen
    charts = []
    full = max(point.pages for point in points)
    widest = max(point.lanes for point in points)
    groups = [("replicas", [p for p in points if p.lanes == widest and p.pages == full])]
    if chosen is not None:
        own = [p for p in points if p.replicas == chosen.replicas]
        groups += [("requests at once", [p for p in own if p.pages == full]),
                   ("pages", [p for p in own if p.lanes == chosen.lanes])]
    for name, some in groups:
        field = {"replicas": "replicas", "requests at once": "lanes", "pages": "pages"}[name]
        some = sorted(some, key=lambda p: getattr(p, field))
        x = np.array([getattr(p, field) for p in some], float)
        scale = axis(name, [x], log=field != "replicas")
        charts.append(chart(
            f"share within both targets over {name}",
            [Series("met", x, np.array([p.met for p in some]))], scale,
            axis("share of requests", [np.array([0, 1])]), [("asked", targets.met)]))
        times = [Series("first token p99", x, np.array([p.ttft_p99_ms for p in some])),
                 Series("between tokens p99", x, np.array([p.between_p99_ms for p in some]))]
        charts.append(chart(f"tails over {name}", times, scale,
                            axis("ms", [s.y for s in times], log=True),
                            [("first token, target", targets.ttft_ms),
                             ("between tokens, target", targets.between_ms)]))
    verdict = "Nothing that was tried meets the targets." if chosen is None else (
        f"{chosen.replicas} replicas of {chosen.lanes} requests at once, each with "
        f"{chosen.pages} pages ({format_bytes(chosen.pages * page_bytes)}) of cache.")
    rows = [list(asdict(point).values()) for point in points]
    seconds = float(trace.arrival_ns[-1]) / 1e9
    load = table(("requests", "seconds", "prompt tokens, median", "p99",
                  "answer tokens, median", "p99"),
                 [[len(trace), seconds, *np.percentile(trace.prompt_tokens, (50, 99)).tolist(),
                   *np.percentile(trace.output_tokens, (50, 99)).tolist()]])
    return page(title, f"Targets: first token within {targets.ttft_ms:g} ms and "
                f"{targets.between_ms:g} ms between tokens, for {targets.met:.1%} of requests.", [
                    ("Needed", f"<p>{verdict}</p>"),
                    ("Sweeps", f'<div class="charts">{"".join(charts)}</div>'),
                    ("Tried", table(HEAD, rows, points.index(chosen) if chosen else -1)),
                    ("The load", load)])


def say_partial(planner: Planner) -> None:
    """What an interrupted search knows by now, on standard error."""
    meeting = [point for point in planner.points if planner.meets(point)]
    print(f"interrupted: {len(planner.points)} choices tried, {len(meeting)} of them meet the "
          "targets; the last that does: "
          f"{told(meeting[-1]) if meeting else 'none'}", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """0: there is a plan; 1: nothing meets the targets. Raises UserError, CoreError."""
    if args.html is not None:
        check_target(args.html)
    trace = trace_of(args)
    machine, page_bytes = machine_of(args, trace)
    if not 0 < args.met <= 1:
        raise UserError(f"--met: expected more than 0 and at most 1, got {args.met:g}")
    targets = Targets(args.ttft_ms, args.between_ms, args.met)
    planner = Planner(machine, trace, targets, args.jobs,
                      None if args.json else lambda point: print(told(point), flush=True),
                      args.output_limit)
    try:
        with planner:
            plan = planner.plan(args.replicas_max)
    except KeyboardInterrupt:
        say_partial(planner)
        raise
    if args.html is not None:
        args.html.write_text(plan_page(plan, trace, targets, page_bytes,
                                       f"Plan of {args.core.name}"))
    if args.json:
        print(json.dumps({
            "chosen": None if plan.chosen is None else
            {**asdict(plan.chosen), "cache_bytes": plan.chosen.pages * page_bytes},
            "points": [asdict(point) for point in plan.points], "targets": asdict(targets)}))
    elif plan.chosen is None:
        print(f"not even {args.replicas_max} replicas meet the targets")
    else:
        print(f"needed: {plan.chosen.replicas} replicas, {plan.chosen.lanes} requests at once, "
              f"{plan.chosen.pages} pages ({format_bytes(plan.chosen.pages * page_bytes)}) of "
              "cache in each")
    return int(plan.chosen is None)

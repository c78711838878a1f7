"""`python -m helios_dod.perf report`: flight recordings and results of `perf serve` and `perf tick`
as a page of plots, in one file: latencies, programs in time and under their roofline, the systems
of a tick in time, throughput over load."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.errors import UserError
from helios_dod.executors.costs import FEATURES, OPERATIONS
from helios_dod.perf.compare import read
from helios_dod.perf.kernels import add_device_arguments, against, device_of, work_in
from helios_dod.perf.machine import CAME_ABOUT, conditions
from helios_dod.perf.simulate import summary
from helios_dod.recording import check_target
from helios_dod.simulation.charts import (
    Bar,
    Series,
    axis,
    chart,
    cumulative,
    page,
    table,
    timeline,
)
from helios_dod.simulation.observed import Observation, Steps, observe_file
from helios_dod.simulation.roofline import WITHOUT_MODEL, Device, Work, roofline
from helios_dod.simulation.study import Outcome

SHOWN_STEPS = 24  # of the timeline
NAMES = {row: name for name, row in OPERATIONS.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `report`."""
    add = parser.add_argument
    add("recordings", nargs="*", type=Path,
        help="what `helios serve --record` or `perf record` wrote")
    add("--results", nargs="+", type=Path, default=[],
        help="what `perf serve --json` printed, at one offered load each")
    add("--ticks", nargs="+", type=Path, default=[],
        help="what `perf tick --json` printed: systems in the time of a tick")
    add("--core", type=Path,
        help="the core that was recorded: its programs are drawn under their roofline, with "
             "--bandwidth-gb and --teraflops")
    add_device_arguments(parser, required=False)
    add("--out", type=Path, required=True, help="the page")


def outcome_charts(named: list[tuple[str, Outcome]]) -> str:
    """Distributions of what users saw, side by side."""
    charts = []
    for title, values in (
            ("arrival to first token", [(name, one.ttft_ns / 1e6) for name, one in named]),
            ("arrival to end", [(name, one.latency_ns / 1e6) for name, one in named])):
        series = [cumulative(name, part) for name, part in values]
        charts.append(chart(title, series, axis("ms", [s.x for s in series], log=True),
                            axis("share of requests", [np.array([0, 1])])))
    gaps = []
    for name, one in named:
        shares = list(np.arange(0.5, 100, 0.5))
        gaps.append(Series(name, np.array([one.gap_ns(q) / 1e6 for q in shares]),
                           np.array(shares) / 100))
    charts.append(chart("between tokens", gaps, axis("ms", [s.x for s in gaps], log=True),
                        axis("share of gaps", [np.array([0, 1])])))
    active = []
    for name, one in named:
        told = one.first_ns >= 0
        times = np.concatenate([one.arrival_ns[told], one.last_ns[told]])
        order = np.argsort(times, kind="stable")
        change = np.concatenate([np.ones(told.sum()), -np.ones(told.sum())])[order]
        active.append(Series(name, times[order] / 1e9, np.cumsum(change), "step"))
    charts.append(chart("requests that wait or run", active,
                        axis("s", [s.x for s in active]), axis("requests", [s.y for s in active])))
    return f'<div class="charts">{"".join(charts)}</div>'


def step_charts(steps: Steps) -> str:
    """What programs took by what they held, and some of them in time."""
    packed = steps.features[:, FEATURES.index("packed")]
    rows, series = np.unique(steps.operation).tolist(), []
    kinds = [NAMES[row] for row in rows]
    for row in rows:
        own = steps.operation == row
        series.append(Series(NAMES[row], packed[own].astype(float), steps.duration_ns[own] / 1e6,
                             "dots"))
    scatter = chart("time of a program by its packed tokens", series,
                    axis("packed tokens", [s.x for s in series], log=True),
                    axis("ms", [s.y for s in series], log=True))
    bars, now, middle = [], 0.0, len(steps.idle) // 2
    for index in range(middle, min(middle + SHOWN_STEPS, len(steps.idle))):
        length = float(steps.duration_ns[index]) / 1e6
        name, lanes = NAMES[int(steps.operation[index])], int(steps.features[index, 1])
        bars.append(Bar("device", name, now, now + length,
                        f"{name}, {lanes} lanes, {packed[index]} tokens: {length:.3f} ms"))
        now += length
    return (f'<div class="charts">{scatter}'
            f'{timeline(f"{len(bars)} programs one after the other", bars, "ms", kinds)}</div>')


def tick_section(part: dict[str, Any]) -> str:
    """One load of `perf tick`: medians of its systems one after the other, as a walked tick runs
    them, beside the fused tick; then all figures. Raises LookupError or TypeError."""
    walked, fused = "systems, walked", "the whole tick, fused"
    bars, now = [], 0.0
    for name, spent in [*part["systems"].items(), ("tick", part["tick"])]:
        median, p99 = float(spent["median_us"]), float(spent["p99_us"])
        start, kind = (now, walked) if name in part["systems"] else (0.0, fused)
        bars.append(Bar(name, kind, start, start + median,
                        f"{name}: {median:g} us in the median, p99 {p99:g}"))
        now = start + median
    whole = sum(bar.end - bar.start for bar in bars[:-1])
    rows = [[bar.track, bar.end - bar.start, float(spent["p99_us"]),
             f"{(bar.end - bar.start) / whole:.1%}" if whole else "-"]
            for bar, spent in zip(bars[:-1], part["systems"].values(), strict=True)]
    load = (f"{part['running']} mixed requests" if "running" in part
            else f"{part.get('stop_lanes', 0)} with stop strings")
    drawn = timeline(f"{part['lanes']} lanes, {load}: {len(rows)} systems of a tick", bars, "us",
                     [walked, fused])
    return f'<div class="charts">{drawn}</div>' + table(
        ("system", "median, us", "p99, us", "share of the walk"), rows)


def ticks_section(results: list[tuple[str, dict[str, Any]]]) -> str:
    """Every load of `perf tick`. Raises UserError."""
    drawn = ""
    for name, result in results:
        try:
            drawn += "".join(tick_section(part) for part in result["results"])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise UserError(f"{name}: expected what `perf tick --json` printed") from None
    return ('<p class="note">A walked tick calls its systems one by one and reads the clock '
            'between them; the fused one, which engines run, takes less.</p>'
            f'{drawn}{origins(results)}')


def roofline_chart(steps: Steps, work: Work, device: Device) -> str:
    """Operations a second by operations a byte: programs, and the roof that the machine is for
    them. Programs that the device waited for are left out: the host's time is in them."""
    moved, done = (steps.features @ work.sides.T).astype(float).T
    without = [OPERATIONS[name] for name in WITHOUT_MODEL]
    shown = ~steps.idle & (steps.duration_ns > 0) & ~np.isin(steps.operation, without)
    if not shown.any():
        return '<p class="note">No program ran without a wait for the host.</p>'
    intensity, reached = done / moved, done / np.maximum(steps.duration_ns, 1)  # GFLOP/s
    low, high = float(intensity[shown].min()) / 2, float(intensity[shown].max()) * 2
    edge = device.operations_per_s / device.bytes_per_s
    at = np.array([low, *([edge] if low < edge < high else []), high])
    roof = Series("the machine", at, np.minimum(
        at * device.bytes_per_s, device.operations_per_s) / 1e9)
    series = [roof] + [Series(NAMES[row], intensity[own], reached[own], "dots")
                       for row in np.unique(steps.operation[shown]).tolist()
                       for own in (shown & (steps.operation == row),)]
    drawn = chart("programs under their roofline", series,
                  axis("operations a byte", [s.x for s in series], log=True),
                  axis("10^9 operations/s", [s.y for s in series], log=True))
    rows = [[row[name] for name in ("operation", "lanes", "packed_up_to", "programs", "median_ms",
                                    "floor_ms", "of_floor", "bound")]
            for row in against(steps, roofline(work, device))
            if row["operation"] not in WITHOUT_MODEL]
    head = ("program", "lanes", "packed, up to", "of them", "median, ms", "floor, ms",
            "share of the roof", "bound by")
    return f'<div class="charts">{drawn}</div>{table(head, rows)}'


def roof_of(options: argparse.Namespace) -> tuple[Work, Device] | None:
    """What the core does, and the declared machine; None: nothing is asked. Raises UserError."""
    given = {"--core": options.core, "--bandwidth-gb": options.bandwidth_gb,
             "--teraflops": options.teraflops}
    absent = [name for name, value in given.items() if value is None]
    if len(absent) == len(given):
        return None
    if absent:
        raise UserError(f"{', '.join(given)}: go together, got none of {', '.join(absent)}")
    return work_in(options.core), device_of(options)


def figures_table(named: list[tuple[str, Outcome]]) -> str:
    """Medians and tails of each."""
    rows = []
    for name, one in named:
        told = summary(one)
        rows.append([name, told["requests"], told["output_tokens_per_s"], told["ttft_ms"]["p50"],
                     told["ttft_ms"]["p99"], told["between_tokens_ms"]["p50"],
                     told["between_tokens_ms"]["p99"], told["latency_ms"]["p50"],
                     told["latency_ms"]["p99"]])
    return table(("run", "requests", "tokens/s", "first token p50, ms", "p99",
                  "between tokens p50, ms", "p99", "to end p50, ms", "p99"), rows)


def load_charts(results: list[tuple[str, dict[str, Any]]]) -> str:
    """Throughput and latency over offered load, of `perf serve`."""
    runs = []
    for name, result in results:
        try:
            runs += [(float(result["offered"]["requests_per_s"] or part["requests_per_s"]), part)
                     for part in result["runs"]]
        except (LookupError, TypeError, ValueError):
            raise UserError(f"{name}: expected what `perf serve --json` printed") from None
    runs.sort(key=lambda run: run[0])
    offered = np.array([load for load, _ in runs])

    def column(*names: str) -> np.ndarray:
        values = []
        for _, part in runs:
            value: Any = part
            for name in names:
                value = value.get(name, {}) if isinstance(value, dict) else {}
            values.append(float(value) if isinstance(value, int | float) else np.nan)
        return np.array(values)

    rates = [Series("answered", offered, column("requests_per_s"))]
    if np.isfinite(column("goodput_per_s")).any():
        rates.append(Series("within the targets", offered, column("goodput_per_s")))
    x = axis("offered requests/s", [offered])
    first = [Series(p, offered, column("ttft_ms", p)) for p in ("p50", "p99")]
    gaps = [Series(p, offered, column("between_tokens_ms", p)) for p in ("p50", "p99")]
    return '<div class="charts">' + chart(
        "throughput over offered load", rates, x, axis("requests/s", [s.y for s in rates])
    ) + chart("time to first token", first, x, axis("ms", [s.y for s in first], log=True)
              ) + chart("between tokens", gaps, x, axis("ms", [s.y for s in gaps], log=True)
                        ) + "</div>"


def origins(results: list[tuple[str, dict[str, Any]]]) -> str:
    """How the results that are drawn came about."""
    rows = [[name, *(result["machine"].get(part, "-") for part in ("processor", "commit")),
             *(str(result.get(part, "-")) for part in CAME_ABOUT[1:])] for name, result in results]
    return table(("result", "processor", "commit", "seed", "warm-up", "repeats"), rows)


def header(recordings: int) -> str:
    """The conditions of the page itself."""
    came = conditions(None, 0, recordings)
    told = {**came.pop("machine"), "recordings": came["repeats"], "warm-up": came["warm_up"],
            "seed": "none, nothing was drawn"}
    return ", ".join(f"{name} {value}" for name, value in told.items())


def run(options: argparse.Namespace) -> int:
    """Writes the page."""
    if not options.recordings and not options.results and not options.ticks:
        raise UserError("expected recordings, --results or --ticks, got none of them")
    check_target(options.out)
    seen: list[tuple[str, Observation]] = [
        (path.stem, observe_file(path)) for path in options.recordings]
    sections, roof = [], roof_of(options)
    if seen:
        named = [(name, one.outcome) for name, one in seen]
        sections += [("What users saw", figures_table(named) + outcome_charts(named))]
        sections += [(f"Programs of {name}", step_charts(one.steps)) for name, one in seen]
    if roof is not None:
        sections += [(f"{name} beside what {options.bandwidth_gb:g} GB/s and {options.teraflops:g} "
                      "TFLOP/s allow", roofline_chart(one.steps, *roof)) for name, one in seen]
    if options.ticks:
        ticks = [(str(path), read(path)) for path in options.ticks]
        sections.append(("Systems of a tick", ticks_section(ticks)))
    if options.results:
        results = [(str(path), read(path)) for path in options.results]
        sections.append(("Over offered load", load_charts(results) + origins(results)))
    options.out.write_text(page("Measured", header(len(options.recordings)), sections))
    print(options.out)
    return 0

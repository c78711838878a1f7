"""`python -m helios_dod.perf validate`: a simulation of recorded real runs beside them.

Every recording's own requests are simulated on its own capacities. A figure is within the bar where
the simulated mean is within 10 % of the real mean (20 % for the 99th percentile) or inside the
spread of the real runs.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.arguments import seed
from helios_dod.executors.costs import read_costs
from helios_dod.perf.machine import conditions
from helios_dod.simulation.observed import observe_file
from helios_dod.simulation.study import Outcome, Study

FIGURES = (  # name, unit, most that the mean may be off where it is outside the spread
    ("first token, median", "ms", 0.1), ("first token, p99", "ms", 0.2),
    ("between tokens, median", "ms", 0.1), ("between tokens, p99", "ms", 0.2),
    ("arrival to end, median", "ms", 0.1), ("arrival to end, p99", "ms", 0.2),
    ("throughput", "tokens/s", 0.1),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `validate`."""
    parser.add_argument("recordings", nargs="+", type=Path, help="of repeats of one real run")
    parser.add_argument("--costs", type=Path, required=True,
                        help="what `fit` wrote, of other recordings")
    parser.add_argument("--seed", type=seed, default=1, help="of the simulations")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def figures(outcome: Outcome) -> list[float]:
    """In the order of FIGURES."""
    seconds = (int(outcome.last_ns.max()) - int(outcome.arrival_ns.min())) / 1e9
    return [float(np.percentile(outcome.ttft_ns, 50)) / 1e6,
            float(np.percentile(outcome.ttft_ns, 99)) / 1e6,
            outcome.gap_ns(50) / 1e6, outcome.gap_ns(99) / 1e6,
            float(np.percentile(outcome.latency_ns, 50)) / 1e6,
            float(np.percentile(outcome.latency_ns, 99)) / 1e6,
            int(outcome.tokens.sum()) / seconds]


def compare(real: np.ndarray, simulated: np.ndarray) -> list[dict[str, Any]]:
    """A row a figure. real, simulated: float64 [recordings, figures]."""
    rows = []
    for number, (name, unit, most) in enumerate(FIGURES):
        measured, mean = real[:, number], float(simulated[:, number].mean())
        off = mean / float(measured.mean()) - 1
        inside = bool(measured.min() <= mean <= measured.max())
        rows.append({
            "figure": name, "unit": unit, "real_mean": round(float(measured.mean()), 3),
            "real_median": round(float(np.median(measured)), 3),
            "real_lowest": round(float(measured.min()), 3),
            "real_highest": round(float(measured.max()), 3), "simulated": round(mean, 3),
            "off": round(off, 4), "inside_spread": inside, "bar": most,
            "within_bar": inside or abs(off) <= most})
    return rows


def run(options: argparse.Namespace) -> int:
    """Prints the table; 1 if a figure is outside its bar."""
    costs, real, simulated = read_costs(options.costs), [], []
    for path in options.recordings:
        seen = observe_file(path)
        real.append(figures(seen.outcome))
        outcome = Study(replace(seen.machine, cost=costs), seen.trace, seed=options.seed).run()
        simulated.append(figures(outcome))
    rows = compare(np.array(real), np.array(simulated))
    if options.json:
        print(json.dumps({**conditions(options.seed, 0, len(real)), "recordings": len(real),
                          "figures": rows}))
    else:
        print(f"| {len(real)} runs | real, mean (lowest to highest) | simulated | off | bar |\n"
              "|---|---|---|---|---|")
        for row in rows:
            verdict = "" if row["within_bar"] else ", missed"
            print(f"| {row['figure']}, {row['unit']} | {row['real_mean']:g} "
                  f"({row['real_lowest']:g} to {row['real_highest']:g}) | {row['simulated']:g} | "
                  f"{row['off']:+.1%} | {row['bar']:.0%} or inside{verdict} |")
    return int(not all(row["within_bar"] for row in rows))

"""`python -m helios_dod.perf bench`: what has a budget and needs no GPU, beside its budget.

Each figure comes from a process of its own, as its command prints it; those of a core are the
demo's. Budgets of an H200 are in perf/h200/.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from helios_dod.cores.demo import demo_core
from helios_dod.errors import UserError
from helios_dod.perf.compare import read
from helios_dod.perf.machine import machine
from helios_dod.progress import Progress


@dataclass(frozen=True)
class Budget:
    """One figure: the command's arguments, where it is in what --json prints, and the bound."""

    name: str
    command: tuple[str, ...]
    path: tuple[str | int, ...]
    unit: str
    bound: float
    least: bool = False  # the bound is the least that is wanted, not the most

    def met(self, value: float) -> bool:
        """Is the figure within the budget?"""
        return value >= self.bound if self.least else value <= self.bound


TICK = ("tick", "--lanes", "256,1024")
SIMULATE = ("simulate", "--lanes", "256", "--step-ms", "8", "--repeats", "3")
PREFIX = ("prefix", "--pages", "4096")
MASKS = ("masks", "--streams", "8")
CORE = "CORE"  # stands for the path of the demo's, which is there before anything is measured
START = ("start", CORE, "--repeats", "3")
STREAMING = ("streaming", CORE, "--seconds", "8")
LOAD = ("load", CORE, "--repeats", "3")
CANCEL = ("cancel",)
BUDGETS = (
    Budget("tick, 256 lanes", TICK, ("results", 0, "tick", "median_us"), "us", 50),
    Budget("tick, 1,024 lanes", TICK, ("results", 1, "tick", "median_us"), "us", 200),
    Budget("simulated over real time, steady", SIMULATE, ("steady", "times_real_time"), "x", 150,
           True),
    Budget("simulated over real time, mixed", SIMULATE, ("mixed", "times_real_time"), "x", 80,
           True),
    Budget("matching 32,768 cached tokens", PREFIX, ("results", 0, "repeated", "median_us"), "us",
           60),
    Budget("mask and advance, 8 answers", MASKS, ("median_us",), "us", 25),
    Budget("cancel to pages free, after its fence", CANCEL, ("ticks_most",), "ticks", 1),
    Budget("streamed token, HTTP workers", STREAMING, ("us_per_token",), "us", 12),
    Budget("serve to listening, caches warm", START, ("listening_s", "median"), "s", 1),
    Budget("program part of a load, cold", LOAD, ("cold_ms", "program"), "ms", 200),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    parser.add_argument("--only", default="", help="budgets whose name holds this text")
    parser.add_argument("--baseline", type=Path, help="what --json printed before")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def measure(command: tuple[str, ...]) -> Any:
    """What a perf command prints as JSON. Raises UserError where it fails."""
    words = [str(demo_core()) if word == CORE else word for word in command]
    done = subprocess.run([sys.executable, "-m", "helios_dod.perf", *words, "--json"],
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"perf {' '.join(command)}: ended with {done.returncode}")
    return json.loads(done.stdout)


def figure(result: Any, path: tuple[str | int, ...]) -> float:
    """One number of a result."""
    return float(reduce(lambda value, name: value[name], path, result))


def run(options: argparse.Namespace) -> int:
    """1 if a figure is outside its budget."""
    chosen = [budget for budget in BUDGETS if options.only in budget.name]
    if not chosen:
        raise UserError(f"--only: expected a part of a budget's name, got {options.only!r}; there "
                        f"are: {', '.join(budget.name for budget in BUDGETS)}")
    commands = list(dict.fromkeys(budget.command for budget in chosen))
    before = read(options.baseline).get("figures", {}) if options.baseline else {}
    results = {}
    with Progress("measuring", len(commands), "commands") as progress:
        for command in commands:
            results[command] = measure(command)
            progress(1)
    figures = {budget.name: figure(results[budget.command], budget.path) for budget in chosen}
    if options.json:
        print(json.dumps({"machine": machine(), "figures": figures}))
    else:
        for budget in chosen:
            value, sign = figures[budget.name], ">=" if budget.least else "<="
            old = before.get(budget.name)
            more = f"; {value / old:.2f} of the baseline's {old:g}" if old else ""
            print(f"{budget.name:38} {value:9.2f} {budget.unit:5}  {sign} {budget.bound:g} "
                  f"{'met' if budget.met(value) else 'MISSED'}{more}")
    return int(not all(budget.met(figures[budget.name]) for budget in chosen))

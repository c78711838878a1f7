"""`python -m helios_dod.perf bench`: every figure that has a budget, beside it.

Each figure comes from a process of its own, as its command prints it, and is printed as soon as it
is there; those of a core are the demo's. What needs a GPU is named and not measured.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from helios_dod.arguments import positive
from helios_dod.cores.demo import demo_core
from helios_dod.errors import UserError
from helios_dod.perf.compare import read
from helios_dod.perf.machine import conditions


@dataclass(frozen=True)
class Budget:
    """One figure: the command's arguments, where it is in what --json prints, and the bound.
    command (): nothing here can measure it."""

    name: str
    command: tuple[str, ...]
    path: tuple[str | int, ...]
    unit: str
    bound: float
    least: bool = False  # the bound is the least that is wanted, not the most

    def met(self, value: float) -> bool:
        """Is the figure within the budget?"""
        return value >= self.bound if self.least else value <= self.bound

    def line(self, value: float | None, why: str, before: float | None) -> str:
        """For people. why: it has no value."""
        bound = f"{'>=' if self.least else '<='} {self.bound:g}"
        if value is None:
            return f"{self.name:38} {'-':>9} {self.unit:5}  {bound} {why}"
        more = ""
        if before is not None:
            more = (f"; {value / before:.2f} of the baseline's {before:g}" if before
                    else "; no ratio, the baseline's is 0")
        verdict = "met" if self.met(value) else "MISSED"
        return f"{self.name:38} {value:9.2f} {self.unit:5}  {bound} {verdict}{more}"


TICK = ("tick", "--lanes", "256,1024")
SIMULATE = ("simulate", "--lanes", "256", "--step-ms", "8", "--repeats", "3")
PREFIX = ("prefix", "--pages", "4096")
MASKS = ("masks", "--streams", "8")
CORE = "CORE"  # stands for the path of the demo's, which is there before anything is measured
START = ("start", CORE, "--repeats", "3")
STREAMING = ("streaming", CORE, "--seconds", "3")
LOAD = ("load", CORE, "--repeats", "3")
CANCEL = ("cancel",)
ELSEWHERE = "not measured: needs an H200, see perf/h200"
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
    Budget("load of an 8B core's programs", (), (), "s", 1),
    Budget("8B bf16 decode, of read bandwidth", (), (), "%", 80, True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    parser.add_argument("--only", default="", help="budgets whose name holds this text")
    parser.add_argument("--baseline", type=Path, help="what --json printed before")
    parser.add_argument("--limit-s", type=positive, default=300,
                        help="of one command, compiling included (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


@contextlib.contextmanager
def process(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, servers that it starts included, which ends with
    this block."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def measure(command: tuple[str, ...], limit_s: int) -> Any:
    """What a perf command prints as JSON. Raises UserError where it fails or takes too long."""
    words = [str(demo_core()) if word == CORE else word for word in command]
    with process([sys.executable, "-m", "helios_dod.perf", *words, "--json"]) as child:
        try:
            text, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise UserError(f"not measured: did not end in {limit_s} s (--limit-s)") from None
    if child.returncode:
        raise UserError(f"not measured: ended with {child.returncode}")
    return json.loads(text)


def figure(result: Any, path: tuple[str | int, ...]) -> float:
    """One number of a result."""
    return float(reduce(lambda value, name: value[name], path, result))


def say(text: str) -> None:
    """A line of progress, beside the table."""
    print(text, file=sys.stderr, flush=True)


def results_of(chosen: list[Budget], limit_s: int) -> Iterator[tuple[Budget, Any, str]]:
    """Each budget with what its command printed, or None and why, as soon as that has ended."""
    commands = dict.fromkeys(budget.command for budget in chosen)  # () comes last
    count = len(commands) - (() in commands)
    for number, command in enumerate(commands, 1):
        result, why, began = None, ELSEWHERE, time.monotonic()
        if command:
            say(f"{number} of {count}: perf {' '.join(command)}")
            try:
                result = measure(command, limit_s)
            except UserError as error:
                why = str(error)
            say(f"{number} of {count}: ended after {time.monotonic() - began:.1f} s")
        for budget in chosen:
            if budget.command == command:
                yield budget, result, why


def run(options: argparse.Namespace) -> int:
    """1 if a figure is outside its budget, or could not be measured though it is to be."""
    chosen = [budget for budget in BUDGETS if options.only in budget.name]
    if not chosen:
        raise UserError(f"--only: expected a part of a budget's name, got {options.only!r}; there "
                        f"are: {', '.join(budget.name for budget in BUDGETS)}")
    before = read(options.baseline).get("figures") if options.baseline else {}
    if not isinstance(before, dict) or not all(
            value is None or isinstance(value, int | float) for value in before.values()):
        raise UserError(f"--baseline: {options.baseline}: expected what `bench --json` printed")
    figures, results, good = {}, dict[str, Any](), True
    for budget, result, why in results_of(chosen, options.limit_s):
        value = None if result is None else figure(result, budget.path)
        figures[budget.name] = value
        if result is not None:
            results[" ".join(budget.command)] = result
        good = good and (not budget.command or (value is not None and budget.met(value)))
        line = budget.line(value, why, before.get(budget.name))
        if options.json:
            say(line)
        else:
            print(line, flush=True)
    if options.json:
        print(json.dumps({**conditions(None, 0, 1), "figures": figures, "results": results}))
    return int(not good)

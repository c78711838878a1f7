"""`python -m helios_dod.perf start`: time of `helios serve` to listening and to ready, from the
start of its process. The first start, which fills caches, does not count."""

import argparse
import json
from pathlib import Path
from typing import Any

from helios_dod.arguments import positive
from helios_dod.perf.machine import conditions, middle
from helios_dod.perf.served import Served
from helios_dod.progress import Progress

WARM_UP = 1  # starts that fill caches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `start`."""
    add = parser.add_argument
    add("core", nargs="?", type=Path, help="a prepared core (default: the demo's)")
    add("--cache-memory", default="400M", help="of the server (default %(default)s)")
    add("--repeats", type=positive, default=5, help="that count (default %(default)s)")
    add("--json", action="store_true", help="one JSON object on standard output")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians and extremes, seconds. Raises UserError where the server does not start."""
    found: dict[str, list[float]] = {"listening_s": [], "ready_s": []}
    with Progress("starting", WARM_UP + options.repeats, "servers") as progress:
        for repeat in range(WARM_UP + options.repeats):
            server = Served(options.core, ["--cache-memory", options.cache_memory])
            server.stop()
            if repeat >= WARM_UP:
                for name, values in found.items():
                    values.append(getattr(server, name))
            progress(1)
    return {**conditions(None, WARM_UP, options.repeats),
            **{name: middle(values, 3) for name, values in found.items()}}


def run(options: argparse.Namespace) -> int:
    """Prints the times."""
    result = measure(options)
    if options.json:
        print(json.dumps(result))
        return 0
    for name, words in (("listening_s", "listening"), ("ready_s", "ready")):
        part = result[name]
        print(f"{words} after {part['median']} s ({part['lowest']} to {part['highest']})")
    return 0

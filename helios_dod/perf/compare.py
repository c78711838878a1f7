"""`python -m helios_dod.perf compare A B`: two results of one command, figure beside figure."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helios_dod.errors import UserError
from helios_dod.perf.machine import CAME_ABOUT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `compare`."""
    parser.add_argument("a", type=Path, help="what --json printed")
    parser.add_argument("b", type=Path, help="the same of another run")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number, under its dotted name, but those of how it came about."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in CAME_ABOUT:
                yield from figures(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from figures(part, f"{name}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def read(path: Path) -> dict[str, Any]:
    """A result; one without a machine has an empty one. Raises UserError."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected an object")
    if not isinstance(value.setdefault("machine", {}), dict):
        raise UserError(f"{path}: machine: expected an object")
    return value


def run(options: argparse.Namespace) -> int:
    """Prints figures that both have, and what they depend on where it differs."""
    a, b = read(options.a), read(options.b)
    mine, other = dict(figures(a)), dict(figures(b))
    shared = {name: (mine[name], other[name]) for name in mine if name in other}
    machines = {name: (value, b["machine"].get(name)) for name, value in a["machine"].items()
                if value != b["machine"].get(name)}
    came = {side: {name: result.get(name) for name in CAME_ABOUT}
            for side, result in (("a", a), ("b", b))}
    if options.json:
        print(json.dumps({"machines_differ": machines, "conditions": came, "figures": {
            name: {"a": x, "b": y, "ratio": y / x if x else None}
            for name, (x, y) in shared.items()}}))
        return 0
    differing = {name: (came["a"][name], came["b"][name]) for name in CAME_ABOUT[1:]
                 if came["a"][name] != came["b"][name]}
    for name, (x, y) in (machines | differing).items():
        print(f"not the same {name}: {x} / {y}")
    width = max(map(len, shared), default=0)
    for name, (x, y) in shared.items():
        ratio = f"{y / x:8.3f}" if x else "       -"
        print(f"{name:{width}}  {x:>14g}  {y:>14g}  {ratio}")
    for name in sorted(set(mine) ^ set(other)):
        print(f"{name:{width}}  only in {'A' if name in mine else 'B'}")
    return 0

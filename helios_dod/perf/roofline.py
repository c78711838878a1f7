"""`python -m helios_dod.perf roofline`: costs of a core's programs on a declared machine."""

import argparse
import json
from pathlib import Path

from helios_dod.perf.kernels import add_device_arguments, costs_of
from helios_dod.recording import check_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `roofline`."""
    parser.add_argument("core", type=Path, help="a prepared core")
    parser.add_argument("--out", type=Path, required=True, help="where the costs go")
    add_device_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Writes costs for `simulate`, `plan` and `validate`. Raises UserError."""
    check_target(options.out)
    options.out.write_text(json.dumps(costs_of(options).plain(), indent=1))
    print(options.out)
    return 0

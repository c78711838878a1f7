"""helios parse --cases FILE: runs output-syntax cases in every split."""

import argparse
from pathlib import Path

from helios_dod.frontend.output.cases import check, read_cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("--cases", type=Path, required=True, metavar="FILE",
                        help="cases, one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Runs the cases; 1 if any fails. Each failing case's id is printed with what differs."""
    cases = read_cases(args.cases)
    failed = 0
    for case in cases:
        found = check(case)
        failed += bool(found)
        for line in found:
            print(f"{case.get('id')}: {line}")
    print(f"{len(cases) - failed} of {len(cases)} cases pass")
    return 1 if failed else 0

"""helios inspect CORE: model, programs, buffers, pages, ranks, frontend, sizes, signer."""

import argparse
import json

from helios_dod.cores.inspection import describe, lines
from helios_dod.cores.reader import open_core
from helios_dod.errors import printable
from helios_dod.folders import named_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("core", type=named_path, metavar="CORE", help="a core's folder")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.add_argument("--license", action="store_true", help="print the licence text alone")


def run(args: argparse.Namespace) -> int:
    """Prints the core. Its signature and resources are verified; its weights are not read."""
    core = open_core(args.core)
    if args.license:
        print(printable(core.license_text))
        return 0
    manifest = core.manifest()
    report = describe(core, manifest, core.prepared(manifest))
    print(json.dumps(report, indent=1) if args.json else printable("\n".join(lines(report))))
    return 0

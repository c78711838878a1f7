"""helios import CORE --out FOLDER: a payload core, as preparation makes it, of any core."""

import argparse

from helios_dod.server.export_command import add_common, convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Makes a payload core."""
    return convert(args, "payload")

"""The command `helios`: finds the subcommand, imports only its module, runs it.

A command module has `add_arguments(parser)` and `run(args) -> int`. Exit status: 0 done, 1 failed
with one line on standard error, 2 wrongly used, 130 interrupted. `diff` answers with 1, so it fails
with 2.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from helios_dod import __version__
from helios_dod.errors import UserError, printable

COMMANDS = {  # name -> (module, summary)
    "serve": ("helios_dod.server.serve_command",
              "serve a core over HTTP; without one, the demo model"),
    "chat": ("helios_dod.server.chat_command", "talk to a served model in the terminal"),
    "prepare": ("helios_dod.ignition.prepare_command", "make a core from a checkpoint"),
    "parse": ("helios_dod.frontend.output.parse_command",
              "run output-syntax cases through the parsers"),
    "inspect": ("helios_dod.cores.inspect_command", "show what a core holds, and who signed it"),
    "verify": ("helios_dod.server.verify_command",
               "check every signature, digest and contract rule of a core"),
    "keygen": ("helios_dod.cores.keygen_command", "make a signing key, or a sealing key"),
    "sign": ("helios_dod.server.sign_command", "sign a core again, under your key or namespace"),
    "export": ("helios_dod.server.export_command", "make a logical-resource core of a core"),
    "import": ("helios_dod.server.import_command", "make a payload core of a core"),
    "replay": ("helios_dod.simulation.replay_command",
               "run a recording of the scheduler again, and say why a request waited"),
    "plan": ("helios_dod.simulation.plan_command",
             "how many replicas, requests at once and pages a load needs"),
    "diff": ("helios_dod.cores.diff_command", "show what differs between two cores"),
}
INTERRUPTED = 130


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The whole command's parser; only the chosen subcommand's module is imported."""
    parser = argparse.ArgumentParser(
        prog="helios", description="Serves language models from signed cores.",
        epilog="`helios COMMAND --help` says more about a command.")
    parser.add_argument("--version", action="version", version=f"helios {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            import_module(module).add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    try:
        args = make_parser(chosen).parse_args(words)
        return int(import_module(COMMANDS[args.command][0]).run(args))
    except UserError as error:
        print(f"helios {chosen}: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1

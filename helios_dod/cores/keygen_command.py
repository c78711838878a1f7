"""helios keygen: an Ed25519 signing key, or a secret for sealed cores."""

import argparse
import os

from helios_dod.cores.errors import CoreError
from helios_dod.cores.keys import make_key, public_bytes, user_key_path
from helios_dod.cores.sealed import make_secret, secret_path
from helios_dod.folders import named_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("--out", type=named_path, metavar="FILE",
                        help="where the key goes (default: this user's own place)")
    parser.add_argument("--sealing", action="store_true",
                        help="make the secret that seals logical-4 cores instead")


def run(args: argparse.Namespace) -> int:
    """Writes a key that only the user can read; never replaces one. Prints no secret."""
    path = args.out or (secret_path() if args.sealing else user_key_path())
    if os.path.lexists(path):
        raise CoreError(path, "exists already; a key is never replaced, since what was made with "
                              "it needs it: choose another place with --out")
    if args.sealing:
        make_secret(path)
        print(f"made the sealing key {path}")
        return 0
    print(f"made the signing key {path}, public key {public_bytes(make_key(path)).hex()}")
    return 0

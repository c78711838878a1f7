"""helios sign CORE: signs a core's index again, under another key or namespace, in place.

Signing is not accepting: what was accepted under another key or namespace no longer is, until
--accept here, or when the core is served, says so."""

import argparse

from helios_dod.cores.acceptance import authorize, hint, refusal
from helios_dod.cores.index import check_namespace
from helios_dod.cores.keys import user_key
from helios_dod.cores.reader import open_core
from helios_dod.cores.writer import sign_again
from helios_dod.errors import UserError
from helios_dod.folders import named_path
from helios_dod.progress import Progress
from helios_dod.server.verification import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("core", type=named_path, metavar="CORE", help="a core's folder")
    parser.add_argument("--key", type=named_path, metavar="FILE",
                        help="Ed25519 key in PEM form (default: this user's, made on first use)")
    parser.add_argument("--namespace", metavar="NAME",
                        help="publisher to sign for (default: the core's)")
    parser.add_argument("--accept", metavar="NAMESPACE",
                        help="also accept the signed core and its licence, for that namespace")


def run(args: argparse.Namespace) -> int:
    """Verifies the whole core first: nothing unverified is ever signed."""
    core = open_core(args.core)
    namespace = core.namespace if args.namespace is None else args.namespace
    check_namespace(namespace, core.path)
    key = user_key(args.key)
    if args.accept not in (None, namespace):
        raise UserError(f"--accept: expected {namespace!r}, the publisher that is signed for, "
                        f"got {args.accept!r}")
    total = sum(weight.nbytes for weight in core.body.weights)
    with Progress(f"verifying {core.path.name}", total) as progress:
        verify(core, progress)
    signed = sign_again(core, key, namespace)
    if args.accept is not None:
        authorize(signed, args.accept)
    print(f"signed {core.path} for {namespace}, key {signed.public_key.hex()[:16]}...")
    if refusal(signed) is not None:
        print(f"its publisher is not accepted yet: {hint(namespace)}")
    return 0

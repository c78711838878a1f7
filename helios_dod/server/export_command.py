"""helios export CORE --carrier NAME --out FOLDER, and helios import: a core in another carrier."""

import argparse

from helios_dod.cores.acceptance import authorize, hint
from helios_dod.cores.contents import contents_of
from helios_dod.cores.index import check_namespace
from helios_dod.cores.keys import user_key
from helios_dod.cores.layout import SEALED_VERSION
from helios_dod.cores.reader import open_core
from helios_dod.cores.sealed import load_secret
from helios_dod.cores.writer import CARRIERS, Publisher, check_target, write_contents
from helios_dod.errors import UserError
from helios_dod.folders import named_path
from helios_dod.progress import Progress
from helios_dod.server.verification import verify_frontend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `helios export`."""
    add_common(parser)
    parser.add_argument("--carrier", choices=[name for name in CARRIERS if name != "payload"],
                        default="logical-6", help="what to make (default: %(default)s)")


def add_common(parser: argparse.ArgumentParser) -> None:
    """What export and import share."""
    parser.add_argument("core", type=named_path, metavar="CORE", help="the core to convert")
    parser.add_argument("--out", type=named_path, required=True, metavar="FOLDER",
                        help="the core to make")
    parser.add_argument("--key", type=named_path, metavar="FILE",
                        help="Ed25519 key in PEM form (default: this user's, made on first use)")
    parser.add_argument("--namespace", metavar="NAME",
                        help="publisher to sign for (default: the core's)")
    parser.add_argument("--accept", metavar="NAMESPACE",
                        help="accept the core's publisher and licence first")
    parser.add_argument("--unseal", action="store_true",
                        help="make what everybody can read of a sealed core")
    parser.add_argument("--overwrite", action="store_true", help="replace a core that is there")


def run(args: argparse.Namespace) -> int:
    """Makes a logical-resource core of any core."""
    return convert(args, args.carrier)


def convert(args: argparse.Namespace, carrier: str) -> int:
    """Verifies, writes in the other carrier, signs with this user's key.

    The user has accepted the core's publisher; that holds for what is made of it under the same
    namespace, and not under another."""
    core = open_core(args.core)
    authorize(core, args.accept)
    sealed = CARRIERS[carrier] == SEALED_VERSION
    if core.cipher is not None and not sealed and not args.unseal:
        raise UserError(f"{core.path} is sealed, and a {carrier} core is not: everybody could read "
                        "what is made of it; give --unseal to make it all the same")
    namespace = core.namespace if args.namespace is None else args.namespace
    check_namespace(namespace, args.out)
    check_target(args.out, args.overwrite)
    if sealed:
        load_secret(args.out)
    publisher = Publisher(user_key(args.key), namespace)
    verify_frontend(core, core.prepared(core.manifest()))
    total = sum(weight.nbytes for weight in core.body.weights)
    with Progress(f"verifying {core.path.name}", total) as progress:
        contents = contents_of(core, progress)
    same = namespace == core.namespace
    with Progress(f"writing {args.out.name}", total) as progress:
        write_contents(contents, args.out, publisher, carrier=carrier, accept=same,
                       overwrite=args.overwrite, progress=progress)
    print(f"made {args.out}, a {carrier} core, from {core.path}")
    if not same:
        print(f"its publisher is not accepted yet: {hint(namespace)}")
    return 0

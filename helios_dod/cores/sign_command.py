"""helios sign CORE: signs a core's index again, under another key or namespace, in place."""

import argparse
import os
from pathlib import Path

from helios_dod.contract.wire import core_pb2
from helios_dod.cores.acceptance import record
from helios_dod.cores.keys import user_key
from helios_dod.cores.layout import CORE_FILE, LOGICAL_FILE
from helios_dod.cores.reader import check_namespace, open_core
from helios_dod.cores.verify_command import verify
from helios_dod.cores.writer import locked, sign_body, sign_index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.add_argument("core", type=Path, metavar="CORE", help="a core's folder")
    parser.add_argument("--key", type=Path, metavar="FILE",
                        help="Ed25519 key in PEM form (default: this user's, made on first use)")
    parser.add_argument("--namespace", metavar="NAME",
                        help="publisher to sign for (default: the core's)")


def run(args: argparse.Namespace) -> int:
    """Verifies the whole core first: nothing unverified is ever signed."""
    core = open_core(args.core)
    verify(core)
    key = user_key(args.key)
    namespace = core.namespace if args.namespace is None else args.namespace
    check_namespace(namespace, core.path)
    with locked(core.path):
        if core.index_version:
            place = core.path / LOGICAL_FILE
            protected = core_pb2.ProtectedIndex.FromString(place.read_bytes())
            index = core_pb2.ModelIndex.FromString(protected.index)
            index.publisher_namespace = namespace
            data = sign_index(index, key, protected.version, protected.salt)
        else:
            place = core.path / CORE_FILE
            body = core_pb2.CoreBody()
            body.CopyFrom(core.body)
            body.publisher_namespace = namespace
            data = sign_body(body, key)
        partial = place.with_name(f".{place.name}.{os.getpid()}")
        partial.write_bytes(data)
        os.replace(partial, place)
    signed = open_core(core.path)
    record(signed, signed.path)
    print(f"signed {core.path} for {namespace}, key {signed.public_key.hex()[:16]}...")
    return 0

"""helios diff A B: what differs between two cores, by field.

Exit status, as of diff(1): 0 nothing does, 1 something does, 2 they could not be compared."""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any

from google.protobuf.message import Message

from helios_dod.contract.wire import core_pb2
from helios_dod.cores.layout import RESOURCES
from helios_dod.cores.reader import Core, open_core
from helios_dod.errors import UserError, printable
from helios_dod.folders import named_path

SHOWN = 60  # characters of a value
ROWS_MAX = 1000  # differences that are shown; the others are counted
MESSAGE_NBYTES_MAX = 4096  # of a message that is in one core alone and is shown as text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    for name in ("a", "b"):
        parser.add_argument(name, type=named_path, metavar=name.upper(), help="a core's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Compares what is signed, and the decoded resources; weights by their signed digests."""
    try:
        found = differences(open_core(args.a), open_core(args.b))
        rows = list(islice(found, ROWS_MAX))
        more = sum(1 for _ in found)
    except UserError as error:
        print(f"helios diff: {printable(str(error))}", file=sys.stderr)
        return 2
    if args.json:
        report: dict[str, Any] = {field: {"a": a, "b": b} for field, a, b in rows}
        print(json.dumps(report | ({"more_differences": more} if more else {}), indent=1))
    elif rows:
        print(printable("\n".join(f"{field}: {a} | {b}" for field, a, b in rows)))
        if more:
            print(f"and {more} more differences")
    else:
        print("the same")
    return 1 if rows else 0


def differences(a: Core, b: Core) -> Iterator[tuple[str, str, str]]:
    """(field, value in a, value in b) of everything that differs."""
    for field in ("carrier", "namespace", "public_key", "license_text"):
        yield from _plain(field, getattr(a, field), getattr(b, field))
    yield from _messages(a.serving, b.serving, "contract")
    for kind, (name, _) in RESOURCES.items():
        if kind == core_pb2.EXECUTION_MANIFEST:
            yield from _messages(a.manifest(), b.manifest(), "manifest")
            continue
        one, other = a.read(kind), b.read(kind)
        if one != other:
            yield name, f"{len(one)} bytes", f"{len(other)} bytes"
    yield from _plain("rebuild_manifest", a.body.rebuild_manifest, b.body.rebuild_manifest)
    catalogs = zip_longest(a.body.weight_catalogs, b.body.weight_catalogs)
    for i, (here, there) in enumerate(catalogs):
        yield from _plain(f"weight_catalogs[{i}]", *("none" if part is None else part
                                                     for part in (here, there)))
    yield from _weights(a, b)


def _weights(a: Core, b: Core) -> Iterator[tuple[str, str, str]]:
    one, other = ({part.id: part for part in core.body.weights} for core in (a, b))
    for name in sorted(one.keys() | other.keys()):
        field = f"weights.{name}"
        if name not in one or name not in other:
            here, there = ("present" if name in part else "none" for part in (one, other))
            yield field, here, there
            continue
        for part in ("rank", "nbytes"):
            yield from _plain(f"{field}.{part}", getattr(one[name], part),
                              getattr(other[name], part))
        if a.cipher or b.cipher:
            pieces = zip_longest(a.weight_pieces(name), b.weight_pieces(name))
            same = all(here == there for here, there in pieces)
        else:
            same = list(one[name].chunk_sha256) == list(other[name].chunk_sha256)
        if not same:
            yield f"{field}.bytes", "other bytes", "other bytes"


def _plain(field: str, a: Any, b: Any) -> Iterator[tuple[str, str, str]]:
    if a != b:
        yield field, _show(a), _show(b)


def _show(value: Any) -> str:
    if isinstance(value, Message) and value.ByteSize() > MESSAGE_NBYTES_MAX:
        return f"{value.ByteSize()} bytes"
    if isinstance(value, bytes):
        text = value[:SHOWN].hex()
    else:
        text = str(value).replace("\n", "\\n")
    return (text if len(text) <= SHOWN else text[: SHOWN - 3] + "...") or "(empty)"


def _messages(a: Message, b: Message, path: str) -> Iterator[tuple[str, str, str]]:
    """Fields of two messages that differ; repeated ones by position. Of what they hold, one part
    at a time is looked at on each level."""
    levels = [iter([(a, b, path)])]
    while levels:
        pair = next(levels[-1], None)
        if pair is None:
            levels.pop()
            continue
        one, other, place = pair
        if not isinstance(one, Message) or not isinstance(other, Message):
            yield from _plain(place, "none" if one is None else one,
                              "none" if other is None else other)
        elif one != other:
            levels.append(_fields(one, other, place))


def _fields(one: Message, other: Message, place: str) -> Iterator[tuple[Any, Any, str]]:
    for field in one.DESCRIPTOR.fields:
        left, right = getattr(one, field.name), getattr(other, field.name)
        name = f"{place}.{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield dict(left), dict(right), name
        elif field.is_repeated:
            for i, (here, there) in enumerate(zip_longest(left, right)):
                yield here, there, f"{name}[{i}]"
        else:
            yield left, right, name

"""Acceptance of a publisher: recorded beside the core, for one namespace, key and licence text.

A signature says that nobody changed the core; acceptance says that this user agreed to run it. A
record is signed with the user's own key, so that a core cannot bring its acceptance along. The file
has one of each user who accepted the core; earlier ones had a single record in its place. The
licence text lies beside it in a file of its own, whose digest is in the record; earlier records
held it themselves.
"""

import hashlib
import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.cores.errors import AcceptanceError, CoreError
from helios_dod.cores.files import locked, read_bounded, replace_file
from helios_dod.cores.keys import is_signed, load_key, public_bytes, user_key, user_key_path
from helios_dod.cores.layout import ACCEPTANCE_FILE
from helios_dod.cores.reader import Core

RECORD_NBYTES_MAX = 1 << 20
RECORDS_MAX = 64  # users of one core
LICENSE_FILE = "license-{}.txt"  # the first digits of its SHA-256
LICENSE_DIGITS = 16
LICENSE_SHOWN = 16_384  # characters of a licence text in an error; the usual ones are shorter


def authorize(core: Core, accept: str | None = None) -> None:
    """Returns if this user has accepted the core's publisher, or does so now with `accept`.

    accept: must equal the signed namespace exactly. Raises AcceptanceError otherwise."""
    if accept is not None:
        if accept != core.namespace:
            raise AcceptanceError(
                core.path, f"the core is published by namespace {core.namespace!r}, which "
                           f"{accept!r} does not equal; accept it with {hint(core.namespace)}")
        if refusal(core) is not None:
            record(core, core.path)
        return
    problem = refusal(core)
    if problem is not None:
        terms = core.license_text.strip() or "(none given)"
        shown = terms if len(terms) <= LICENSE_SHOWN else (
            f"{terms[:LICENSE_SHOWN]} ...\n({LICENSE_SHOWN} of {len(terms)} characters; helios "
            "inspect --license shows all of them)")
        raise AcceptanceError(
            core.path, f"{problem}; to accept it under the licence below, give "
                       f"{hint(core.namespace)}\n{shown}")


def hint(namespace: str) -> str:
    """The option that accepts a namespace, as a shell takes it whatever the name is."""
    return f"--accept={shlex.quote(namespace)}"


def refusal(core: Core) -> str | None:
    """Why the record beside the core does not accept it; None when it does."""
    path, key = core.path / ACCEPTANCE_FILE, user_key_path()
    if not os.path.lexists(path):
        return f"namespace {core.namespace!r} has not been accepted"
    try:
        mine = public_bytes(load_key(key))
    except CoreError as error:
        if os.path.lexists(key):
            return f"whether the acceptance in {path.name} is this user's cannot be told: {error}"
        return f"the acceptance in {path.name} is not this user's, who has no key yet"
    try:
        own = [part["accepted"] for part in _records(path) if _is_of(part, mine)]
    except (CoreError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return f"the acceptance in {path.name} cannot be read or is not this user's"
    if not own:
        return f"the acceptance in {path.name} was not given by this user"
    for name, value in _terms(core).items():
        if own[-1].get(name) != value:
            return f"the acceptance in {path.name} was given for another {name.replace('_', ' ')}"
    return None


def _records(path: Path) -> list[dict[str, Any]]:
    """Every user's record in a file; none where there is no file."""
    if not os.path.lexists(path):
        return []
    data = json.loads(read_bounded(path, RECORD_NBYTES_MAX))
    return list(data["users"]) if "users" in data else [data]


def _is_of(record: dict[str, Any], public_key: bytes) -> bool:
    """Whether the user with that key signed a record."""
    signature = bytes.fromhex(record["signature"])
    return is_signed(public_key, signature, _canonical(record["accepted"]))


def record(core: Core, folder: Path) -> None:
    """Writes the acceptance of `core` into `folder`, signed with the user's key, and its licence.

    Records of other users are kept: the latest, as many as a file that is read again may hold. What
    cannot be read there is not kept."""
    with locked(folder / ACCEPTANCE_FILE):  # of two users who accept at once, both are kept
        _record(core, folder, user_key())


def _record(core: Core, folder: Path, key: Ed25519PrivateKey) -> None:
    accepted, path = _terms(core) | {"unix_s": int(time.time())}, folder / ACCEPTANCE_FILE
    try:
        mine = public_bytes(key)
        others = [part for part in _records(path) if not _is_of(part, mine)]
    except (CoreError, OSError, ValueError, TypeError, KeyError, RecursionError):
        others = []
    signature = key.sign(_canonical(accepted)).hex()
    users = [*others[-RECORDS_MAX + 1:], {"accepted": accepted, "signature": signature}]
    while len(data := _encoded(users)) > RECORD_NBYTES_MAX:
        del users[0]
    try:
        if core.license_text:
            name = LICENSE_FILE.format(accepted["license_sha256"][:LICENSE_DIGITS])
            replace_file(folder / name, core.license_text.encode())
        replace_file(path, data)
    except OSError as error:
        raise AcceptanceError(path, f"cannot record the acceptance: {error.strerror}") from error


def _encoded(users: list[dict[str, Any]]) -> bytes:
    return (json.dumps({"users": users}, indent=1) + "\n").encode()


def _terms(core: Core) -> dict[str, Any]:
    """What an acceptance is bound to."""
    return {
        "namespace": core.namespace,
        "public_key": core.public_key.hex(),
        "license_sha256": hashlib.sha256(core.license_text.encode()).hexdigest(),
    }


def _canonical(accepted: dict[str, Any]) -> bytes:
    return json.dumps(accepted, sort_keys=True, separators=(",", ":")).encode()

"""Contracts that were found valid, kept in the user's cache folder beside compiled code: a large
device core has a hundred thousand messages, and validating them takes most of a second.

An entry is named by all that was signed, by the manifest, whose digest a sealed core does not sign,
and by the sources that validate; so another core, or another version, is validated anew.
"""

import contextlib
import hashlib
import os
import pickle
from pathlib import Path

from helios_dod.code_cache import sources_digest
from helios_dod.contract.prepared import PreparedContract
from helios_dod.cores import reader
from helios_dod.cores.reader import Core
from helios_dod.folders import cache_home

DIGEST_NBYTES = hashlib.sha256().digest_size
ENTRIES_MAX = 64  # the ones that were used last


def _entry(core: Core, manifest: bytes) -> Path:
    digest = hashlib.sha256(core.public_key + core.body_bytes)
    digest.update(hashlib.sha256(manifest).digest())
    digest.update(sources_digest(Path(reader.__file__)).encode())
    return cache_home() / "validated" / digest.hexdigest()


def validated(core: Core) -> tuple[object, PreparedContract]:
    """(ExecutionManifest, contract) of an accepted core. Raises CoreError, ContractError."""
    data = core.manifest_bytes()
    entry = _entry(core, data)
    kept = _kept(entry)
    if kept is not None:
        return core.manifest(data, known=True), pickle.loads(kept)
    manifest = core.manifest(data)
    contract = core.prepared(manifest, known=True)
    _keep(entry, pickle.dumps(contract, pickle.HIGHEST_PROTOCOL))
    return manifest, contract


def _kept(entry: Path) -> bytes | None:
    """What is in an entry; None where there is none, or where it is not whole."""
    try:
        data = entry.read_bytes()
        os.utime(entry)
    except OSError:
        return None
    digest, rest = data[:DIGEST_NBYTES], data[DIGEST_NBYTES:]
    return rest if hashlib.sha256(rest).digest() == digest else None


def _keep(entry: Path, data: bytes) -> None:
    """Writes beside, then renames: a reader sees the whole entry or none. Where the folder cannot
    be written the next start validates again, and that is all. Entries beyond ENTRIES_MAX go, and
    what a process left that ended while it wrote."""
    fresh = entry.with_suffix(f".{os.getpid()}.new")
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(hashlib.sha256(data).digest() + data)
        fresh.replace(entry)
        entries = [(found.stat().st_mtime_ns, found.path) for found in os.scandir(entry.parent)]
        for _, path in sorted(entries)[:-ENTRIES_MAX]:
            os.unlink(path)

"""Contracts that were found valid, kept in the user's cache folder beside compiled code: a large
device core has a hundred thousand messages, and validating them takes most of a second.

An entry is named by all that was signed, by the manifest, whose digest a sealed core does not sign,
and by the sources that validate; so another core, or another version, is validated anew.
"""

import hashlib
import pickle
from pathlib import Path

from helios_dod.code_cache import sources_digest
from helios_dod.contract.prepared import PreparedContract
from helios_dod.cores import reader
from helios_dod.cores.reader import Core
from helios_dod.folders import cache_home
from helios_dod.kept import keep, kept

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
    found = kept(entry)
    if found is not None:
        return core.manifest(data, known=True), pickle.loads(found)
    manifest = core.manifest(data)
    contract = core.prepared(manifest, known=True)
    keep(entry, pickle.dumps(contract, pickle.HIGHEST_PROTOCOL), ENTRIES_MAX)
    return manifest, contract

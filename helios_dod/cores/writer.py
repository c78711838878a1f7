"""Writes a core folder from what preparation hands over. A folder appears whole or not at all."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.contract.decode import decode
from helios_dod.contract.wire import core_pb2
from helios_dod.cores.acceptance import record
from helios_dod.cores.errors import CoreError
from helios_dod.cores.keys import public_bytes
from helios_dod.cores.layout import (
    CHUNK_NBYTES,
    CORE_FILE,
    FORMAT_VERSION,
    LOCATIONS_FILE,
    PAGE_NBYTES,
    RESOURCE_FOLDER,
    RESOURCES,
    ZSTD_LEVEL,
    ChunkDigests,
    chunk_digests,
)
from helios_dod.cores.reader import open_core

if TYPE_CHECKING:
    from helios_dod.ignition.prepared import Prepared, Weights

DISK_MARGIN_NBYTES = 64 << 20  # for everything but the weights
ZEROS = bytes(1 << 16)


@dataclass(frozen=True)
class Publisher:
    """Who signs a core, under which namespace."""

    key: Ed25519PrivateKey
    namespace: str


def write_core(
    prepared: "Prepared", target: Path, publisher: Publisher, *, accept: bool = False,
    overwrite: bool = False, progress: Callable[[int], None] | None = None,
) -> None:
    """Writes, signs and moves the core to `target`. Raises CoreError, ContractError.

    accept: record this user's acceptance of the namespace in the same step. progress: called with
    weight bytes written since its last call."""
    decode(prepared.contract, prepared.manifest)
    with locked(target):
        check_target(target, overwrite)
        _check_space(target, prepared.weights.nbytes)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _fill(prepared, partial, publisher, progress)
            core = open_core(partial)
            if accept:
                record(core, partial)
            _replace(partial, target)
        except OSError as error:
            raise CoreError(target, _write_problem(error)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_target(target: Path, overwrite: bool) -> None:
    """CoreError unless a core may be made at `target`. Only a core, or an empty folder, is ever
    replaced: what is there goes away."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise CoreError(target, "exists already; replace it with --overwrite, or choose "
                                "another place")
    core = (target / CORE_FILE).is_file()
    if target.is_symlink() or not target.is_dir() or not (core or not any(target.iterdir())):
        raise CoreError(target, "is not a core, so it is not overwritten; choose another place")


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Locks the folder that holds `target`: one process prepares a core there, others wait."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CoreError(target, f"cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_problem(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "out of disk space while writing the core; nothing was left behind"
    return f"cannot be written: {error.strerror or error}"


def _check_space(target: Path, weight_nbytes: int) -> None:
    need = weight_nbytes + DISK_MARGIN_NBYTES
    free = shutil.disk_usage(target.parent).free
    if free < need:
        raise CoreError(target, f"out of disk space: needs {need} bytes, {free} are free")


def _fill(
    prepared: "Prepared", folder: Path, publisher: Publisher,
    progress: Callable[[int], None] | None,
) -> None:
    """Every file of the core; the signed index comes last."""
    (folder / RESOURCE_FOLDER).mkdir(parents=True)
    contents: dict[core_pb2.ResourceKind, bytes] = {
        core_pb2.EXECUTION_MANIFEST: prepared.manifest.SerializeToString(deterministic=True),
        core_pb2.TOKENIZER: prepared.tokenizer_json,
        core_pb2.CHAT_TEMPLATE: prepared.chat_template.encode(),
        core_pb2.TOKEN_BYTES: prepared.token_bytes.SerializeToString(deterministic=True),
    }
    locations = core_pb2.LocationSet()
    body = core_pb2.CoreBody(
        format_version=FORMAT_VERSION, publisher_namespace=publisher.namespace,
        license_text=prepared.license_text)
    body.deployment.contract.CopyFrom(prepared.contract)
    for kind, (name, _) in RESOURCES.items():
        path = f"{RESOURCE_FOLDER}/{name}.zst"
        body.executables.append(_write_resource(folder / path, name, kind, contents[kind]))
        locations.locations.add(resource_id=name, path=path)
    path = f"{prepared.weights.resource_id}.bin"
    body.weights.append(_write_weights(folder / path, prepared.weights, progress))
    locations.locations.add(resource_id=prepared.weights.resource_id, path=path)
    _write_file(folder / LOCATIONS_FILE, locations.SerializeToString(deterministic=True))
    data = body.SerializeToString(deterministic=True)
    signed = core_pb2.SignedCore(
        body=data, signature=publisher.key.sign(data), public_key=public_bytes(publisher.key))
    _write_file(folder / CORE_FILE, signed.SerializeToString())


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_resource(
    path: Path, name: str, kind: core_pb2.ResourceKind, data: bytes,
) -> core_pb2.ExecutableResource:
    """One frame that declares its content size, so that a reader knows its memory in advance."""
    stored = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(data)
    _write_file(path, stored)
    return core_pb2.ExecutableResource(
        id=name, kind=kind, stored=core_pb2.StoredFrame(nbytes=len(stored)),
        decoded_nbytes=len(data), chunk_nbytes=CHUNK_NBYTES, chunk_sha256=chunk_digests(stored))


def _write_weights(
    path: Path, weights: "Weights", progress: Callable[[int], None] | None,
) -> core_pb2.WeightResource:
    """Streams the parts in offset order, zeros between them and to the end of the last page."""
    digests = ChunkDigests()
    written = 0

    with open(path, "xb") as file:

        def put(data: memoryview) -> None:
            nonlocal written
            file.write(data)
            digests.update(data)
            written += len(data)
            if progress is not None:
                progress(len(data))

        def fill_to(end: int) -> None:
            while written < end:
                put(memoryview(ZEROS)[: end - written])

        for _, offset, data in weights:
            assert offset >= written, "weight parts come in ascending offsets"
            fill_to(offset)
            put(data.data)
        fill_to(-(-max(weights.nbytes, 1) // PAGE_NBYTES) * PAGE_NBYTES)
        file.flush()
        os.fsync(file.fileno())
    return core_pb2.WeightResource(
        id=weights.resource_id, nbytes=written, chunk_nbytes=CHUNK_NBYTES,
        chunk_sha256=digests.finish())


def _replace(partial: Path, target: Path) -> None:
    """Moves a whole folder into place; what was there before goes away afterwards."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(partial, target)
    shutil.rmtree(old, ignore_errors=True)

"""Writes a core folder in any carrier. A folder appears whole or not at all."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.contract.decode import decode
from helios_dod.contract.strict import LICENSE_NBYTES_MAX
from helios_dod.contract.wire import contract_pb2, core_pb2
from helios_dod.cores.acceptance import record
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import locked, replace_file
from helios_dod.cores.index import check_namespace, signed_index
from helios_dod.cores.keys import public_bytes
from helios_dod.cores.layout import (
    CHUNK_NBYTES,
    CORE_FILE,
    FORMAT_VERSION,
    FRAMED_VERSION,
    LOCATIONS_FILE,
    LOGICAL_FILE,
    PAGE_NBYTES,
    RESOURCE_FOLDER,
    RESOURCES,
    SEALED_VERSION,
    ZSTD_LEVEL,
    ChunkDigests,
    chunk_digests,
)
from helios_dod.cores.reader import Core, open_core
from helios_dod.cores.sealed import SALT_NBYTES, Cipher, load_secret, sealed_nbytes

if TYPE_CHECKING:
    from helios_dod.ignition.prepared import Prepared, Weights

DISK_MARGIN_NBYTES = 64 << 20  # for everything but the weights
ZEROS = bytes(1 << 16)
# Carrier -> ProtectedIndex.version; 0: a payload core.
CARRIERS = {"payload": 0, "logical-6": FRAMED_VERSION, "logical-4": SEALED_VERSION}
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Publisher:
    """Who signs a core, under which namespace."""

    key: Ed25519PrivateKey
    namespace: str


@dataclass(frozen=True)
class WeightStream:
    """One weight resource, whole pages, as a stream of its bytes."""

    resource_id: str
    rank: int
    nbytes: int
    pieces: Callable[[], Iterator[memoryview]]


@dataclass(frozen=True)
class Contents:
    """What a core holds, whatever its carrier."""

    contract: contract_pb2.ServingContract
    license_text: str
    executables: dict[core_pb2.ResourceKind, bytes]
    weights: tuple[WeightStream, ...]
    rebuild_manifest: bytes = b""
    weight_catalogs: tuple[bytes, ...] = field(default=())


def write_core(
    prepared: "Prepared", target: Path, publisher: Publisher, *, carrier: str = "payload",
    accept: bool = False, overwrite: bool = False, progress: Progress | None = None,
) -> None:
    """Writes, signs and moves the core to `target`. Raises CoreError, ContractError.

    accept: record this user's acceptance of the namespace in the same step. progress: called with
    weight bytes written since its last call."""
    decode(prepared.contract, prepared.manifest)
    contents = Contents(
        contract=prepared.contract, license_text=prepared.license_text,
        executables={
            core_pb2.EXECUTION_MANIFEST: prepared.manifest.SerializeToString(deterministic=True),
            core_pb2.TOKENIZER: prepared.tokenizer_json,
            core_pb2.CHAT_TEMPLATE: prepared.chat_template.encode(),
            core_pb2.TOKEN_BYTES: prepared.token_bytes.SerializeToString(deterministic=True),
        },
        weights=(prepared_stream(prepared.weights),))
    write_contents(contents, target, publisher, carrier=carrier, accept=accept,
                   overwrite=overwrite, progress=progress)


def write_contents(
    contents: Contents, target: Path, publisher: Publisher, *, carrier: str,
    accept: bool = False, overwrite: bool = False, progress: Progress | None = None,
) -> None:
    """The same for contents that are decoded and checked."""
    check_namespace(publisher.namespace, target)
    license_nbytes = len(contents.license_text.encode())
    if license_nbytes > LICENSE_NBYTES_MAX:
        raise CoreError(target, f"license_text: {license_nbytes} bytes; at most "
                                f"{LICENSE_NBYTES_MAX} are accepted")
    with locked(target):
        check_target(target, overwrite)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()  # where nothing can be written, space is not what is missing
            _check_space(target, sum(weight.nbytes for weight in contents.weights))
            _fill(contents, partial, publisher, CARRIERS[carrier], progress)
            core = open_core(partial)
            if accept:
                record(core, partial)
            _replace(partial, target)
        except OSError as error:
            raise CoreError(target, _write_problem(error)) from error
        except CoreError as error:  # names the core that was asked for, not where it is written
            place = error.place.replace(str(partial), str(target))
            raise CoreError(place, error.problem) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_target(target: Path, overwrite: bool) -> None:
    """CoreError unless a core may be made at `target`. Only a core, or an empty folder, is ever
    replaced: what is there goes away."""
    if not os.path.lexists(target):
        folder = next(path for path in target.absolute().parents if os.path.exists(path))
        if not folder.is_dir():
            raise CoreError(target, f"cannot be written: {folder} is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CoreError(target, f"cannot be written: {folder} may not be written by this user")
        return
    if not overwrite:
        raise CoreError(target, "exists already; replace it with --overwrite, or choose "
                                "another place")
    core = any((target / name).is_file() for name in (CORE_FILE, LOGICAL_FILE))
    if target.is_symlink() or not target.is_dir() or not (core or not any(target.iterdir())):
        raise CoreError(target, "is not a core, so it is not overwritten; choose another place")


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
    contents: Contents, folder: Path, publisher: Publisher, version: int, progress: Progress | None,
) -> None:
    """Every file of the core; the signed index comes last."""
    (folder / RESOURCE_FOLDER).mkdir()
    salt = os.urandom(SALT_NBYTES) if version == SEALED_VERSION else b""
    cipher = Cipher(load_secret(folder), salt) if salt else None
    locations = core_pb2.LocationSet()
    executables, weights = [], []
    for number, (kind, (name, _)) in enumerate(RESOURCES.items()):
        path = f"{RESOURCE_FOLDER}/{name}.{'sealed' if cipher else 'zst'}"
        executables.append(_write_resource(
            folder / path, name, kind, contents.executables[kind], number, cipher))
        locations.locations.add(resource_id=name, path=path)
    for number, weight in enumerate(contents.weights, len(executables)):
        path = f"{weight.resource_id}.{'sealed' if cipher else 'bin'}"
        weights.append(_write_weights(folder / path, weight, number, cipher, progress))
        locations.locations.add(resource_id=weight.resource_id, path=path)
    write_file(folder / LOCATIONS_FILE, locations.SerializeToString(deterministic=True))
    body = core_pb2.CoreBody(
        format_version=FORMAT_VERSION, publisher_namespace=publisher.namespace,
        license_text=contents.license_text, executables=executables, weights=weights,
        rebuild_manifest=contents.rebuild_manifest, weight_catalogs=contents.weight_catalogs)
    body.deployment.contract.CopyFrom(contents.contract)
    if version:
        index = model_index(body)
        write_file(folder / LOGICAL_FILE, sign_index(index, publisher.key, version, salt))
    else:
        write_file(folder / CORE_FILE, sign_body(body, publisher.key))


def sign_body(body: core_pb2.CoreBody, key: Ed25519PrivateKey) -> bytes:
    """The bytes of core.pb."""
    data = body.SerializeToString(deterministic=True)
    return core_pb2.SignedCore(
        body=data, signature=key.sign(data), public_key=public_bytes(key)).SerializeToString()


def model_index(body: core_pb2.CoreBody) -> core_pb2.ModelIndex:
    """The same fields as a logical-resource core holds them."""
    return core_pb2.ModelIndex(
        contract=body.deployment.contract, publisher_namespace=body.publisher_namespace,
        license_text=body.license_text, executables=body.executables, weights=body.weights,
        rebuild_manifest=body.rebuild_manifest, weight_catalogs=body.weight_catalogs)


def sign_index(
    index: core_pb2.ModelIndex, key: Ed25519PrivateKey, version: int, salt: bytes,
) -> bytes:
    """The bytes of index.pb."""
    data = index.SerializeToString(deterministic=True)
    return core_pb2.ProtectedIndex(
        version=version, index=data, signature=key.sign(signed_index(version, salt, data)),
        public_key=public_bytes(key), salt=salt).SerializeToString()


def sign_again(core: Core, key: Ed25519PrivateKey, namespace: str) -> Core:
    """Signs what was read of a core under a key and namespace, in place: the signed core.

    Whoever signs has verified it; its index is not read again, where it could be another by now.
    Raises CoreError, and leaves the core as it was."""
    check_namespace(namespace, core.path)
    body = core_pb2.CoreBody()
    body.CopyFrom(core.body)
    body.publisher_namespace = namespace
    if core.index_version:
        place = core.path / LOGICAL_FILE
        data = sign_index(model_index(body), key, core.index_version, core.salt)
    else:
        place, data = core.path / CORE_FILE, sign_body(body, key)
    with locked(core.path):
        try:
            replace_file(place, data)
        except OSError as error:
            raise CoreError(place, f"cannot be written: {error.strerror}") from error
    return open_core(core.path)


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file, durably."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_resource(
    path: Path, name: str, kind: core_pb2.ResourceKind, data: bytes, number: int,
    cipher: Cipher | None,
) -> core_pb2.ExecutableResource:
    """One frame that declares its content size, so that a reader knows its memory in advance; or
    sealed chunks."""
    resource = core_pb2.ExecutableResource(
        id=name, kind=kind, decoded_nbytes=len(data), chunk_nbytes=CHUNK_NBYTES)
    if cipher is None:
        stored = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(data)
        resource.chunk_sha256.extend(chunk_digests(stored))
    else:
        parts = range(0, max(len(data), 1), CHUNK_NBYTES)
        stored = b"".join(cipher.seal(name, number, len(data), i, data[at : at + CHUNK_NBYTES])
                          for i, at in enumerate(parts))
        assert len(stored) == sealed_nbytes(len(data))
    resource.stored.nbytes = len(stored)
    write_file(path, stored)
    return resource


def prepared_stream(weights: "Weights") -> WeightStream:
    """The parts in offset order, zeros between them and to the end of the last page."""
    nbytes = -(-max(weights.nbytes, 1) // PAGE_NBYTES) * PAGE_NBYTES

    def pieces() -> Iterator[memoryview]:
        written = 0
        for _, offset, data in weights:
            assert offset >= written, "weight parts come in ascending offsets"
            yield from _zeros(offset - written)
            yield data.data
            written = offset + data.size
        yield from _zeros(nbytes - written)

    return WeightStream(weights.resource_id, 0, nbytes, pieces)


def _zeros(count: int) -> Iterator[memoryview]:
    while count > 0:
        yield memoryview(ZEROS)[:count]
        count -= len(ZEROS)


def _write_weights(
    path: Path, weights: WeightStream, number: int, cipher: Cipher | None,
    progress: Progress | None,
) -> core_pb2.WeightResource:
    """Streams a weight resource into its file."""
    digests = ChunkDigests()
    held, chunk, written = bytearray(), 0, 0
    with open(path, "xb") as file:
        for piece in weights.pieces():
            written += len(piece)
            if cipher is None:
                _write_sparse(file, piece)
                digests.update(piece)
            else:
                held += piece
                while len(held) >= CHUNK_NBYTES:
                    file.write(cipher.seal(weights.resource_id, number, weights.nbytes, chunk,
                                           bytes(held[:CHUNK_NBYTES])))
                    del held[:CHUNK_NBYTES]
                    chunk += 1
            if progress is not None:
                progress(len(piece))
        if cipher is not None and held:
            file.write(cipher.seal(weights.resource_id, number, weights.nbytes, chunk, bytes(held)))
        if cipher is None:
            file.truncate(written)
        file.flush()
        os.fsync(file.fileno())
    assert written == weights.nbytes, "a stream is as long as it says"
    return core_pb2.WeightResource(
        id=weights.resource_id, nbytes=written, chunk_nbytes=CHUNK_NBYTES, rank=weights.rank,
        chunk_sha256=[] if cipher else digests.finish())


def _write_sparse(file: BinaryIO, piece: memoryview) -> None:
    """Writes a piece, or leaves a hole where all of it is zero."""
    if np.frombuffer(piece, np.uint8).any():
        file.write(piece)
    else:
        file.seek(len(piece), os.SEEK_CUR)


def _replace(partial: Path, target: Path) -> None:
    """Moves a whole folder into place; what was there before goes away afterwards."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(partial, target)
    shutil.rmtree(old, ignore_errors=True)

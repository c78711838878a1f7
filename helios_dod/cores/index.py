"""The signed index of a core, in either carrier: read, counted, its signature checked, its resource
table checked. Whatever its kind, it is given as a CoreBody."""

from pathlib import Path

from google.protobuf.message import DecodeError, Message

from helios_dod.contract.errors import ContractError
from helios_dod.contract.strict import MessageLimits, check_counts, check_known
from helios_dod.contract.wire import core_pb2
from helios_dod.cores.chunks import Resource
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import read_bounded
from helios_dod.cores.keys import is_signed
from helios_dod.cores.layout import (
    CHUNK_NBYTES,
    FORMAT_VERSION,
    FRAMED_VERSION,
    INDEX_LIMITS,
    INDEX_NBYTES_MAX,
    RESOURCES,
    SEALED_VERSION,
    WEIGHTS_MAX,
    chunk_count,
)
from helios_dod.cores.sealed import SALT_NBYTES, sealed_nbytes

DIGEST_NBYTES = 32
NAMESPACE_MAX = 200
INDEX_DOMAIN = b"helios protected index"  # begins what the signature of a logical index covers


def open_payload(index: Path) -> tuple[core_pb2.CoreBody, bytes]:
    """The signed body of a payload core, and the key that signed it."""
    signed = core_pb2.SignedCore()
    _read_signed(signed, index, "signed core")
    _check_signature(signed, signed.body, index)
    body = core_pb2.CoreBody()
    parse(body, signed.body, index, "core body", strict=False)
    if body.format_version != FORMAT_VERSION:
        raise CoreError(index, f"format_version: expected {FORMAT_VERSION}, "
                               f"got {body.format_version}")
    _known(body, index)
    return body, signed.public_key


def signed_index(version: int, salt: bytes, index: bytes) -> bytes:
    """What the signature of a ProtectedIndex covers."""
    return INDEX_DOMAIN + version.to_bytes(4, "big") + salt + index


def open_logical(place: Path) -> tuple[core_pb2.CoreBody, bytes, int, bytes]:
    """The body of a logical-resource core, the key that signed it, its version, its salt."""
    protected = core_pb2.ProtectedIndex()
    _read_signed(protected, place, "protected index")
    version = protected.version
    if version not in (FRAMED_VERSION, SEALED_VERSION):
        raise CoreError(place, f"version: expected {FRAMED_VERSION} or {SEALED_VERSION}, "
                               f"got {version}")
    salt_nbytes = SALT_NBYTES if version == SEALED_VERSION else 0
    if len(protected.salt) != salt_nbytes:
        raise CoreError(place, f"salt: expected {salt_nbytes} bytes, got {len(protected.salt)}")
    _check_signature(protected, signed_index(version, protected.salt, protected.index), place)
    model = core_pb2.ModelIndex()
    parse(model, protected.index, place, "model index")
    protected.ClearField("index")
    body = core_pb2.CoreBody(
        publisher_namespace=model.publisher_namespace, license_text=model.license_text,
        executables=model.executables, weights=model.weights,
        rebuild_manifest=model.rebuild_manifest, weight_catalogs=model.weight_catalogs)
    body.deployment.contract.CopyFrom(model.contract)
    return body, protected.public_key, version, protected.salt


def _read_signed(message: core_pb2.SignedCore | core_pb2.ProtectedIndex, place: Path,
                 what: str) -> None:
    """Reads what a core begins with; its signature is not looked at."""
    data = read_bounded(place, INDEX_NBYTES_MAX)
    parse(message, data, place, what)
    if message.SerializeToString() != data:
        raise CoreError(place, f"{what}: bytes that belong to no field, or a field given twice")


def _check_signature(signed: core_pb2.SignedCore | core_pb2.ProtectedIndex, covered: bytes,
                     place: Path) -> None:
    if not is_signed(signed.public_key, signed.signature, covered):
        raise CoreError(place, "its signature does not match its contents; the file was changed "
                               "or cut off")


def _known(message: Message, place: Path) -> None:
    try:
        check_known(message, message.DESCRIPTOR.name)
    except ContractError as error:
        raise CoreError(place, str(error)) from error


def parse(message: Message, data: bytes, place: Path, what: str,
           limits: MessageLimits = INDEX_LIMITS, strict: bool = True) -> None:
    """Parses exactly one message. strict: unknown fields and enum numbers are refused here."""
    try:
        check_counts(data, message, limits)
        message.ParseFromString(data)
    except DecodeError as error:
        raise CoreError(place, f"{what}: not a valid message") from error
    except ContractError as error:
        raise CoreError(place, f"{what}: {error}") from error
    if strict:
        _known(message, place)


def check_namespace(namespace: str, place: Path) -> None:
    """Raises CoreError unless a core may be published under it."""
    if not 0 < len(namespace) <= NAMESPACE_MAX or not namespace.isprintable():
        raise CoreError(place, f"publisher_namespace: expected 1 to {NAMESPACE_MAX} printable "
                               f"characters, got {len(namespace)}")
    if namespace != namespace.strip():
        raise CoreError(place, "publisher_namespace: expected no space at its ends, got "
                               f"{namespace!r}")


def check_body(body: core_pb2.CoreBody, index: Path, sealed: bool) -> None:
    """The resource table: ids, kinds, lengths and the number of digests (none where sealed)."""
    check_namespace(body.publisher_namespace, index)
    ids: set[str] = set()
    kinds: set[int] = set()
    resources: list[Resource] = [*body.executables, *body.weights]
    if len(body.weights) > WEIGHTS_MAX:  # each is mapped while it is served
        raise CoreError(index, f"weights: at most {WEIGHTS_MAX} resources, got "
                               f"{len(body.weights)}")
    for resource in resources:
        name = f"resource {resource.id!r}"
        if not resource.id or resource.id in ids:
            raise CoreError(index, f"{name}: expected an id of its own")
        ids.add(resource.id)
        if isinstance(resource, core_pb2.WeightResource):
            nbytes = resource.nbytes
        else:
            nbytes = resource.stored.nbytes
            _check_executable(resource, kinds, index)
            if sealed and nbytes != sealed_nbytes(resource.decoded_nbytes):
                raise CoreError(index, f"{name}: stored.nbytes: expected "
                                       f"{sealed_nbytes(resource.decoded_nbytes)} for "
                                       f"{resource.decoded_nbytes} sealed bytes, got {nbytes}")
        if not 0 < nbytes < 1 << 62:
            raise CoreError(index, f"{name}: expected at least 1 stored byte, got {nbytes}")
        if resource.chunk_nbytes != CHUNK_NBYTES:
            raise CoreError(index, f"{name}: chunk_nbytes: expected {CHUNK_NBYTES}, "
                                   f"got {resource.chunk_nbytes}")
        count = 0 if sealed else chunk_count(nbytes)
        if len(resource.chunk_sha256) != count:
            raise CoreError(index, f"{name}: expected {count} chunk digests, "
                                   f"got {len(resource.chunk_sha256)}")
        if any(len(digest) != DIGEST_NBYTES for digest in resource.chunk_sha256):
            raise CoreError(index, f"{name}: a chunk digest is not {DIGEST_NBYTES} bytes long")
    for kind in RESOURCES:
        if kind not in kinds:
            raise CoreError(index, f"no resource of kind {core_pb2.ResourceKind.Name(kind)}")


def _check_executable(
    resource: core_pb2.ExecutableResource, kinds: set[int], index: Path,
) -> None:
    kind = core_pb2.ResourceKind.Name(resource.kind)
    if resource.kind not in RESOURCES or resource.kind in kinds:
        raise CoreError(index, f"resource {resource.id!r}: a kind that is executable and its own "
                               f"expected, got {kind}")
    kinds.add(resource.kind)
    longest = RESOURCES[resource.kind][1]
    if resource.decoded_nbytes > longest or resource.stored.nbytes > longest + CHUNK_NBYTES:
        raise CoreError(index, f"resource {resource.id!r}: decoded_nbytes: at most {longest} for "
                               f"{kind}, got {resource.decoded_nbytes}, stored in "
                               f"{resource.stored.nbytes}")

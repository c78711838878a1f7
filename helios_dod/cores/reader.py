"""Reads a core folder. Nothing of it is believed before its signature and digests are checked."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError, Message

from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.prepared import PreparedContract
from helios_dod.contract.strict import Limits, check_counts, check_known
from helios_dod.contract.wire import contract_pb2, core_pb2, manifest_pb2
from helios_dod.cores.chunks import Chunks, Resource, chunks_of, fetch, map_weights
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import read_bounded
from helios_dod.cores.frames import read_resource
from helios_dod.cores.keys import is_signed
from helios_dod.cores.layout import (
    CHUNK_NBYTES,
    CORE_FILE,
    FORMAT_VERSION,
    FRAMED_VERSION,
    INDEX_LIMITS,
    INDEX_NBYTES_MAX,
    LOCATIONS_FILE,
    LOCATIONS_NBYTES_MAX,
    LOGICAL_FILE,
    RESOURCES,
    SEALED_VERSION,
    TOKEN_NBYTES_LONGEST,
    TOKEN_NBYTES_MAX,
    TOKENS_LIMITS,
    TOKENS_NBYTES_BASE,
    chunk_count,
    manifest_limits,
)
from helios_dod.cores.places import Place, Remote, locate
from helios_dod.cores.sealed import SALT_NBYTES, Cipher, load_secret, sealed_nbytes
from helios_dod.folders import cache_home

DIGEST_NBYTES = 32
NAMESPACE_MAX = 200
INDEX_DOMAIN = b"helios protected index"  # begins what the signature of a logical index covers


@dataclass(frozen=True)
class TokenBytes:
    """Token id -> bytes: data[offsets[i] : offsets[i + 1]], with what decoding needs to know."""

    data: np.ndarray  # uint8
    offsets: np.ndarray  # uint32 [tokens + 1]
    special: np.ndarray  # uint8 [tokens]: decoding with skip_special_tokens omits it
    fallback: np.ndarray  # uint8 [tokens]: a single raw byte
    strip: bool  # the first byte of a text is dropped if it is a space


@dataclass(frozen=True)
class TokenTexts:
    """All that passes from a core's frontend data to what lies behind the frontend: the texts of
    tokens, which a grammar that a request brings is applied to. No selector is part of it."""

    tokenizer_json: bytes
    vocabulary: int  # sampled ids are below
    eos: tuple[int, ...]
    delimiters: tuple[str, ...]  # tokens of the output syntax that ordinary text never holds


@dataclass(frozen=True)
class Core:
    """An opened core: its signature holds; resources are verified when they are read."""

    path: Path
    body: core_pb2.CoreBody  # of a logical-resource core: the same fields out of its ModelIndex
    public_key: bytes
    files: dict[str, Place]  # resource id -> file or address
    index_version: int = 0  # ProtectedIndex.version; 0: a payload core
    cipher: Cipher | None = None  # index version 4

    @property
    def carrier(self) -> str:
        """`payload`, or `logical-6` and `logical-4` by index version."""
        return f"logical-{self.index_version}" if self.index_version else "payload"

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """Every resource, in the order that numbers them."""
        return (*self.body.executables, *self.body.weights)

    @cached_property
    def _body_bytes(self) -> bytes:
        return self.body.SerializeToString(deterministic=True)

    def chunks(self, number: int) -> Chunks:
        """How resource `number` is stored."""
        return chunks_of(self.resources[number], number, self.cipher)

    @property
    def namespace(self) -> str:
        """The signed publisher namespace."""
        return self.body.publisher_namespace

    @property
    def license_text(self) -> str:
        """The signed licence text, maybe empty."""
        return self.body.license_text

    @property
    def serving(self) -> contract_pb2.ServingContract:
        """The signed serving contract, not yet validated: see `prepared`."""
        return self.body.deployment.contract

    def read(self, kind: int) -> bytes:
        """The decoded bytes of the executable resource of that proto ResourceKind."""
        number = self._number_of(kind)
        resource = self.body.executables[number]
        return read_resource(resource, self.chunks(number), self.files[resource.id])

    def _number_of(self, kind: int) -> int:
        """Where the executable resource of that kind stands."""
        for number, resource in enumerate(self.body.executables):
            if resource.kind == kind:
                return number
        raise CoreError(self.path, f"no resource of kind {core_pb2.ResourceKind.Name(kind)}")

    def manifest(self) -> manifest_pb2.ExecutionManifest:
        """The execution manifest; every weight it names lies inside a weight resource."""
        manifest = manifest_pb2.ExecutionManifest()
        stored = self.chunks(self._number_of(core_pb2.EXECUTION_MANIFEST)).nbytes
        _parse(manifest, self.read(core_pb2.EXECUTION_MANIFEST), self.path, "execution manifest",
               manifest_limits(stored))
        sizes = {weight.id: weight.nbytes for weight in self.body.weights}
        for i, buffer in enumerate(manifest.buffers):
            if buffer.kind != manifest_pb2.WEIGHT:
                continue
            field = f"manifest.buffers[{i}] ({buffer.name})"
            if buffer.resource_id not in sizes:
                raise ContractError(f"{field}.resource_id", "a weight resource of the core",
                                    buffer.resource_id)
            end = buffer.resource_offset + buffer.resource_nbytes
            if end > sizes[buffer.resource_id]:
                raise ContractError(f"{field}.resource_nbytes",
                                    f"an end at most {sizes[buffer.resource_id]}", end)
        return manifest

    def prepared(self, manifest: manifest_pb2.ExecutionManifest) -> PreparedContract:
        """The validated contract; every rank and resource that it or the core names is there.
        Raises ContractError."""
        prepared = decode(self.serving, manifest)
        count = max(len(prepared.ranks), 1)
        weights = {weight.id for weight in self.body.weights}
        for i, weight in enumerate(self.body.weights):
            require(weight.rank < count, f"weights[{i}] ({weight.id}).rank",
                    f"a rank below {count}", weight.rank)
        modules = {part.id for part in self.body.executables}
        for part in prepared.ranks:
            for name, ids, known in (("weights", part.weights, weights),
                                     ("modules", part.modules, modules)):
                for id_ in ids:
                    require(id_ in known, f"manifest.ranks[{part.rank}].{name}",
                            "resources of the core", id_)
        return prepared

    def tokenizer(self) -> bytes:
        """`tokenizers` JSON."""
        self._check_by_vocabulary(core_pb2.TOKENIZER)
        return self.read(core_pb2.TOKENIZER)

    def token_texts(self) -> TokenTexts:
        """What a grammar's mask is computed from."""
        model = self.serving.model
        return TokenTexts(self.tokenizer(), model.vocabulary, tuple(model.frontend.eos_tokens),
                          tuple(model.frontend.output.tokens))

    def _check_by_vocabulary(self, kind: core_pb2.ResourceKind) -> None:
        most = TOKENS_NBYTES_BASE + TOKEN_NBYTES_MAX * self.serving.model.input_vocabulary
        for resource in self.body.executables:
            if resource.kind == kind and resource.decoded_nbytes > most:
                raise CoreError(self.path, f"resource {resource.id}: {resource.decoded_nbytes} "
                                           f"bytes; at most {most} are accepted for an input "
                                           f"vocabulary of {self.serving.model.input_vocabulary}")

    def chat_template(self) -> str:
        """Jinja source, empty where the model has none."""
        try:
            return self.read(core_pb2.CHAT_TEMPLATE).decode()
        except UnicodeDecodeError as error:
            raise CoreError(self.path, f"chat template: not UTF-8 at byte {error.start}") from error

    def token_bytes(self) -> TokenBytes:
        """The byte table: every token that can be sampled, and no other than can be put in."""
        self._check_by_vocabulary(core_pb2.TOKEN_BYTES)
        table = core_pb2.TokenBytes()
        _parse(table, self.read(core_pb2.TOKEN_BYTES), self.path, "token bytes",
               TOKENS_LIMITS)
        offsets = np.array(table.offsets, dtype=np.uint32)
        count, model = len(table.special), self.serving.model
        if not model.vocabulary <= count <= model.input_vocabulary:
            raise CoreError(self.path, f"token bytes: {count} tokens; expected the vocabulary, "
                                       f"{model.vocabulary}, to the input vocabulary, "
                                       f"{model.input_vocabulary}")
        ordered = len(offsets) == count + 1 and offsets[0] == 0 and np.all(
            offsets[1:] >= offsets[:-1]) and offsets[-1] == len(table.data)
        if not ordered or len(table.fallback) != count:
            raise CoreError(self.path, f"token bytes: offsets and flags do not describe {count} "
                                       f"tokens of {len(table.data)} bytes")
        lengths = np.diff(offsets.astype(np.int64))
        longest = int(lengths.max(initial=0))
        if longest > TOKEN_NBYTES_LONGEST:
            raise CoreError(self.path, f"token bytes: a token of {longest} bytes; at most "
                                       f"{TOKEN_NBYTES_LONGEST} are accepted")
        special, fallback = (np.frombuffer(x, np.uint8) for x in (table.special, table.fallback))
        if max(special.max(initial=0), fallback.max(initial=0)) > 1:
            raise CoreError(self.path, "token bytes: flags of 0 or 1 expected")
        if np.any(lengths[fallback == 1] != 1):
            raise CoreError(self.path, "token bytes: a raw byte that is not one byte long")
        return TokenBytes(
            np.frombuffer(table.data, np.uint8), offsets, special, fallback,
            model.frontend.strip_leading_space)

    def weights(
        self, trust: bool = False, progress: Callable[[int], None] | None = None,
    ) -> dict[str, np.ndarray]:
        """Resource id -> read-only uint8 array: over the mapped file, or in memory where sealed.

        What lies at an address is fetched into the user's cache folder first. trust: skip the
        digests, for files that nobody else can write; while they are fetched, and where they are
        sealed, bytes are verified all the same.
        progress: called with bytes checked since its last call."""
        mapped = {}
        for number, weight in enumerate(self.body.weights, len(self.body.executables)):
            chunks, place = self.chunks(number), self.files[weight.id]
            if isinstance(place, Remote):
                place = self._fetched(chunks, place, weight, progress)
            mapped[weight.id] = map_weights(chunks, place, trust, progress)
        return mapped

    def _fetched(self, chunks: Chunks, place: Remote, weight: core_pb2.WeightResource,
                 progress: Callable[[int], None] | None) -> Path:
        """The local copy of a remote weight resource, named by what was signed of it."""
        digest = hashlib.sha256(self.public_key + weight.SerializeToString(deterministic=True))
        digest.update(self._body_bytes if self.cipher else b"")
        target = cache_home() / "fetched" / digest.hexdigest()
        if not target.exists():
            fetch(chunks, place, target, progress)
        return target


def open_core(path: str | Path) -> Core:
    """Opens a core folder: signature, version, resource table and locations are checked.

    Raises CoreError. Whether this user accepts the publisher is `acceptance.authorize`."""
    folder = Path(path)
    payload, logical = folder / CORE_FILE, folder / LOGICAL_FILE
    try:
        if not folder.exists():
            raise CoreError(folder, "no such core")
        is_payload, is_logical = payload.exists(), logical.exists()
    except OSError as error:  # may not be looked into, or no name of a file
        raise CoreError(folder, f"cannot be read: {error.strerror}") from error
    if not (is_payload or is_logical):
        raise CoreError(folder, f"not a core: a core is a folder that holds {CORE_FILE} or "
                                f"{LOGICAL_FILE}")
    if is_payload and is_logical:
        raise CoreError(folder, f"holds both {CORE_FILE} and {LOGICAL_FILE}; a core is one of them")
    if is_payload:
        body, key = _open_payload(payload)
        version, cipher, index = 0, None, payload
    else:
        body, key, version, cipher = _open_logical(logical)
        index = logical
    _check_body(body, index, cipher is not None)
    place = folder / LOCATIONS_FILE
    found = core_pb2.LocationSet()
    _parse(found, read_bounded(place, LOCATIONS_NBYTES_MAX), place, "locations")
    wanted = {part.id for part in body.executables} | {part.id for part in body.weights}
    return Core(folder, body, key, locate(found, wanted, folder, place), version, cipher)


def _open_payload(index: Path) -> tuple[core_pb2.CoreBody, bytes]:
    """The signed body of a payload core, and the key that signed it."""
    signed = core_pb2.SignedCore()
    data = read_bounded(index, INDEX_NBYTES_MAX)
    _parse(signed, data, index, "signed core")
    if signed.SerializeToString() != data:
        raise CoreError(index, "signed core: bytes that belong to no field, or a field given twice")
    if not is_signed(signed.public_key, signed.signature, signed.body):
        raise CoreError(index, "its signature does not match its contents; the file was changed "
                               "or cut off")
    body = core_pb2.CoreBody()
    _parse(body, signed.body, index, "core body", strict=False)
    if body.format_version != FORMAT_VERSION:
        raise CoreError(index, f"format_version: expected {FORMAT_VERSION}, "
                               f"got {body.format_version}")
    _known(body, index)
    return body, signed.public_key


def signed_index(version: int, salt: bytes, index: bytes) -> bytes:
    """What the signature of a ProtectedIndex covers."""
    return INDEX_DOMAIN + version.to_bytes(4, "big") + salt + index


def _open_logical(place: Path) -> tuple[core_pb2.CoreBody, bytes, int, Cipher | None]:
    """The body of a logical-resource core, the key that signed it, its version, its cipher."""
    protected = core_pb2.ProtectedIndex()
    data = read_bounded(place, INDEX_NBYTES_MAX)
    _parse(protected, data, place, "protected index")
    if protected.SerializeToString() != data:
        raise CoreError(place, "protected index: bytes that belong to no field, or a field given "
                               "twice")
    version = protected.version
    if version not in (FRAMED_VERSION, SEALED_VERSION):
        raise CoreError(place, f"version: expected {FRAMED_VERSION} or {SEALED_VERSION}, "
                               f"got {version}")
    salt_nbytes = SALT_NBYTES if version == SEALED_VERSION else 0
    if len(protected.salt) != salt_nbytes:
        raise CoreError(place, f"salt: expected {salt_nbytes} bytes, got {len(protected.salt)}")
    covered = signed_index(version, protected.salt, protected.index)
    if not is_signed(protected.public_key, protected.signature, covered):
        raise CoreError(place, "its signature does not match its contents; the file was changed "
                               "or cut off")
    model = core_pb2.ModelIndex()
    _parse(model, protected.index, place, "model index")
    body = core_pb2.CoreBody(
        publisher_namespace=model.publisher_namespace, license_text=model.license_text,
        executables=model.executables, weights=model.weights,
        rebuild_manifest=model.rebuild_manifest, weight_catalogs=model.weight_catalogs)
    body.deployment.contract.CopyFrom(model.contract)
    cipher = None
    if version == SEALED_VERSION:
        cipher = Cipher(load_secret(place), protected.salt)
    return body, protected.public_key, version, cipher


def _known(message: Message, place: Path) -> None:
    try:
        check_known(message, message.DESCRIPTOR.name)
    except ContractError as error:
        raise CoreError(place, str(error)) from error


def _parse(message: Message, data: bytes, place: Path, what: str,
           limits: Limits = INDEX_LIMITS, strict: bool = True) -> None:
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


def _check_body(body: core_pb2.CoreBody, index: Path, sealed: bool) -> None:
    """The resource table: ids, kinds, lengths and the number of digests (none where sealed)."""
    check_namespace(body.publisher_namespace, index)
    ids: set[str] = set()
    kinds: set[int] = set()
    resources: list[Resource] = [*body.executables, *body.weights]
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

"""Reads a core folder. Nothing of it is believed before its signature and digests are checked."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.prepared import PreparedContract
from helios_dod.contract.wire import contract_pb2, core_pb2, manifest_pb2
from helios_dod.cores.chunks import (
    Chunks,
    Progress,
    Resource,
    chunks_of,
    fetch,
    map_weights,
    mend,
    verified,
)
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import read_bounded
from helios_dod.cores.frames import read_resource
from helios_dod.cores.index import check_body, open_logical, open_payload, parse
from helios_dod.cores.layout import (
    CORE_FILE,
    LOCATIONS_FILE,
    LOCATIONS_NBYTES_MAX,
    LOGICAL_FILE,
    TOKEN_NBYTES_LONGEST,
    TOKEN_NBYTES_MAX,
    TOKENS_LIMITS,
    TOKENS_NBYTES_BASE,
    manifest_limits,
)
from helios_dod.cores.padding import Spans, padding_of
from helios_dod.cores.places import Place, Remote, locate
from helios_dod.cores.remote import deadline
from helios_dod.cores.sealed import Cipher, load_secret
from helios_dod.folders import cache_home


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
    salt: bytes = b""  # of the cipher's key

    @property
    def carrier(self) -> str:
        """`payload`, or `logical-6` and `logical-4` by index version."""
        return f"logical-{self.index_version}" if self.index_version else "payload"

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """Every resource, in the order that numbers them."""
        return (*self.body.executables, *self.body.weights)

    @cached_property
    def body_bytes(self) -> bytes:
        """All that is signed, the digests of every resource among it."""
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

    def manifest_bytes(self) -> bytes:
        """The encoded execution manifest, as it was signed or sealed."""
        return self.read(core_pb2.EXECUTION_MANIFEST)

    def manifest(self, data: bytes | None = None,
                 known: bool = False) -> manifest_pb2.ExecutionManifest:
        """The execution manifest; every weight it names lies inside a weight resource.
        data: its bytes, if they were read. known: the rest was seen of the same bytes."""
        manifest = manifest_pb2.ExecutionManifest()
        if data is None:
            data = self.manifest_bytes()
        if known:
            manifest.ParseFromString(data)
            return manifest
        stored = self.chunks(self._number_of(core_pb2.EXECUTION_MANIFEST)).nbytes
        parse(manifest, data, self.path, "execution manifest", manifest_limits(stored))
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

    def prepared(self, manifest: manifest_pb2.ExecutionManifest, known: bool = False
                 ) -> PreparedContract:
        """The validated contract; every rank and resource that it or the core names is there.
        known: the manifest is as `manifest()` gave it. Raises ContractError."""
        prepared = decode(self.serving, manifest, known)
        count = max(len(prepared.ranks), 1)
        weights = {weight.id for weight in self.body.weights}
        for i, weight in enumerate(self.body.weights):
            require(weight.rank < count, f"weights[{i}] ({weight.id}).rank",
                    f"a rank below {count}", weight.rank)
        modules = {part.id for part in self.body.executables}
        for part in prepared.ranks:
            for name, ids, there in (("weights", part.weights, weights),
                                     ("modules", part.modules, modules)):
                for id_ in ids:
                    require(id_ in there, f"manifest.ranks[{part.rank}].{name}",
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
        parse(table, self.read(core_pb2.TOKEN_BYTES), self.path, "token bytes",
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
        self, trust: bool = False, progress: Progress | None = None,
        manifest: manifest_pb2.ExecutionManifest | None = None,
    ) -> dict[str, np.ndarray]:
        """Resource id -> read-only uint8 array: over the mapped file, or in memory where sealed.

        What lies at an address is fetched into the user's cache folder first; what of that copy is
        not what was signed any more is fetched again. trust: skip the
        digests, for files that nobody else can write; while they are fetched, and where they are
        sealed, bytes are verified all the same. manifest: what belongs to none of its buffers must
        be zero, unless that is trusted. progress: called with bytes checked since its last call;
        of those that are fetched now, half counts when they have come, half when they are read."""
        padding: dict[str, Spans] = {}
        if manifest is not None:
            sizes = {weight.id: weight.nbytes for weight in self.body.weights}
            padding = padding_of(manifest, sizes)
        mapped = {}
        for number, weight, path, fresh in self._weight_files(progress):
            chunks, spans = self.chunks(number), padding.get(weight.id, [])
            read = _half(progress, 1) if fresh else progress
            try:
                mapped[weight.id] = map_weights(chunks, path, trust, spans, read)
            except CoreError:
                place = self.files[weight.id]
                if not isinstance(place, Remote):
                    raise
                mend(chunks, place, path, progress)
                mapped[weight.id] = map_weights(chunks, path, trust, spans, None)
        return mapped

    def weight_pieces(self, name: str) -> Iterator[bytes | memoryview]:
        """The bytes of a weight resource, each piece verified as it is read. Raises CoreError."""
        for number, weight, path, _ in self._weight_files(None):
            if weight.id == name:
                yield from verified(self.chunks(number), path)

    def _weight_files(self, progress: Progress | None
                      ) -> list[tuple[int, core_pb2.WeightResource, Path, bool]]:
        """(number, resource, file, whether it was fetched now); those at addresses are fetched, all
        by one deadline."""
        weights = list(enumerate(self.body.weights, len(self.body.executables)))
        end = deadline(sum(weight.nbytes for _, weight in weights
                           if isinstance(self.files[weight.id], Remote)))
        found = []
        for number, weight in weights:
            place, fresh = self.files[weight.id], False
            if isinstance(place, Remote):
                path = self._copy_of(weight)
                fresh = not path.exists()
                if fresh:
                    fetch(self.chunks(number), place, path, end, _half(progress, 0))
                place = path
            found.append((number, weight, place, fresh))
        return found

    def _copy_of(self, weight: core_pb2.WeightResource) -> Path:
        """Where the local copy of a remote weight resource is, named by what was signed of it."""
        digest = hashlib.sha256(self.public_key + weight.SerializeToString(deterministic=True))
        digest.update(self.body_bytes if self.cipher else b"")
        return cache_home() / "fetched" / digest.hexdigest()


def _half(progress: Progress | None, which: int) -> Progress | None:
    """Reports half of each amount; halves 0 and 1 of an amount are all of it."""
    return None if progress is None else lambda amount: progress((amount + which) // 2)


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
        body, key = open_payload(payload)
        version, salt, index = 0, b"", payload
    else:
        body, key, version, salt = open_logical(logical)
        index = logical
    cipher = Cipher(load_secret(index), salt) if salt else None
    check_body(body, index, cipher is not None)
    place = folder / LOCATIONS_FILE
    found = core_pb2.LocationSet()
    parse(found, read_bounded(place, LOCATIONS_NBYTES_MAX), place, "locations")
    wanted = {part.id for part in body.executables} | {part.id for part in body.weights}
    return Core(folder, body, key, locate(found, wanted, folder, place), version, cipher, salt)

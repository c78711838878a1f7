from helios_dod.contract.wire import contract_pb2 as _contract_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResourceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_KIND_UNSPECIFIED: _ClassVar[ResourceKind]
    EXECUTION_MANIFEST: _ClassVar[ResourceKind]
    TOKENIZER: _ClassVar[ResourceKind]
    CHAT_TEMPLATE: _ClassVar[ResourceKind]
    TOKEN_BYTES: _ClassVar[ResourceKind]
    WEIGHTS: _ClassVar[ResourceKind]
RESOURCE_KIND_UNSPECIFIED: ResourceKind
EXECUTION_MANIFEST: ResourceKind
TOKENIZER: ResourceKind
CHAT_TEMPLATE: ResourceKind
TOKEN_BYTES: ResourceKind
WEIGHTS: ResourceKind

class StoredFrame(_message.Message):
    __slots__ = ("nbytes",)
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    def __init__(self, nbytes: _Optional[int] = ...) -> None: ...

class ExecutableResource(_message.Message):
    __slots__ = ("id", "kind", "stored", "decoded_nbytes", "chunk_nbytes", "chunk_sha256")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    DECODED_NBYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NBYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SHA256_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: ResourceKind
    stored: StoredFrame
    decoded_nbytes: int
    chunk_nbytes: int
    chunk_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[ResourceKind, str]] = ..., stored: _Optional[_Union[StoredFrame, _Mapping]] = ..., decoded_nbytes: _Optional[int] = ..., chunk_nbytes: _Optional[int] = ..., chunk_sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WeightResource(_message.Message):
    __slots__ = ("id", "nbytes", "chunk_nbytes", "chunk_sha256", "rank")
    ID_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NBYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SHA256_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    id: str
    nbytes: int
    chunk_nbytes: int
    chunk_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    rank: int
    def __init__(self, id: _Optional[str] = ..., nbytes: _Optional[int] = ..., chunk_nbytes: _Optional[int] = ..., chunk_sha256: _Optional[_Iterable[bytes]] = ..., rank: _Optional[int] = ...) -> None: ...

class DeploymentBody(_message.Message):
    __slots__ = ("contract",)
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    contract: _contract_pb2.ServingContract
    def __init__(self, contract: _Optional[_Union[_contract_pb2.ServingContract, _Mapping]] = ...) -> None: ...

class CoreBody(_message.Message):
    __slots__ = ("format_version", "publisher_namespace", "license_text", "deployment", "executables", "weights", "rebuild_manifest", "weight_catalogs")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LICENSE_TEXT_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REBUILD_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CATALOGS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    publisher_namespace: str
    license_text: str
    deployment: DeploymentBody
    executables: _containers.RepeatedCompositeFieldContainer[ExecutableResource]
    weights: _containers.RepeatedCompositeFieldContainer[WeightResource]
    rebuild_manifest: bytes
    weight_catalogs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, format_version: _Optional[int] = ..., publisher_namespace: _Optional[str] = ..., license_text: _Optional[str] = ..., deployment: _Optional[_Union[DeploymentBody, _Mapping]] = ..., executables: _Optional[_Iterable[_Union[ExecutableResource, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WeightResource, _Mapping]]] = ..., rebuild_manifest: _Optional[bytes] = ..., weight_catalogs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CatalogBlob(_message.Message):
    __slots__ = ("version", "data", "rank")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    version: int
    data: bytes
    rank: int
    def __init__(self, version: _Optional[int] = ..., data: _Optional[bytes] = ..., rank: _Optional[int] = ...) -> None: ...

class SignedCore(_message.Message):
    __slots__ = ("body", "signature", "public_key")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    public_key: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class ModelIndex(_message.Message):
    __slots__ = ("contract", "publisher_namespace", "license_text", "executables", "weights", "rebuild_manifest", "weight_catalogs")
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LICENSE_TEXT_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REBUILD_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CATALOGS_FIELD_NUMBER: _ClassVar[int]
    contract: _contract_pb2.ServingContract
    publisher_namespace: str
    license_text: str
    executables: _containers.RepeatedCompositeFieldContainer[ExecutableResource]
    weights: _containers.RepeatedCompositeFieldContainer[WeightResource]
    rebuild_manifest: bytes
    weight_catalogs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, contract: _Optional[_Union[_contract_pb2.ServingContract, _Mapping]] = ..., publisher_namespace: _Optional[str] = ..., license_text: _Optional[str] = ..., executables: _Optional[_Iterable[_Union[ExecutableResource, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WeightResource, _Mapping]]] = ..., rebuild_manifest: _Optional[bytes] = ..., weight_catalogs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ProtectedIndex(_message.Message):
    __slots__ = ("version", "index", "signature", "public_key", "salt")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    version: int
    index: bytes
    signature: bytes
    public_key: bytes
    salt: bytes
    def __init__(self, version: _Optional[int] = ..., index: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., salt: _Optional[bytes] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ("resource_id", "path")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    path: str
    def __init__(self, resource_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LocationSet(_message.Message):
    __slots__ = ("locations",)
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    locations: _containers.RepeatedCompositeFieldContainer[Location]
    def __init__(self, locations: _Optional[_Iterable[_Union[Location, _Mapping]]] = ...) -> None: ...

class TokenBytes(_message.Message):
    __slots__ = ("data", "offsets", "special", "fallback")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offsets: _containers.RepeatedScalarFieldContainer[int]
    special: bytes
    fallback: bytes
    def __init__(self, data: _Optional[bytes] = ..., offsets: _Optional[_Iterable[int]] = ..., special: _Optional[bytes] = ..., fallback: _Optional[bytes] = ...) -> None: ...

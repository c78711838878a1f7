from helios_dod.contract.wire import manifest_pb2 as _manifest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ValueSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_SOURCE_UNSPECIFIED: _ClassVar[ValueSource]
    SLOT: _ClassVar[ValueSource]
    GENERATION: _ClassVar[ValueSource]
    LIVE_LANES: _ClassVar[ValueSource]
    LIVE_PACKED: _ClassVar[ValueSource]
    LIVE_SAMPLED: _ClassVar[ValueSource]
    QUERY_LENGTH: _ClassVar[ValueSource]
    QUERY_START: _ClassVar[ValueSource]
    SAMPLE_ROW: _ClassVar[ValueSource]
    LANE: _ClassVar[ValueSource]
    SPECULATIVE_PREFIX_LIMIT: _ClassVar[ValueSource]
    TOKEN: _ClassVar[ValueSource]
    TARGET_TOKEN: _ClassVar[ValueSource]
    PENDING_TOKEN: _ClassVar[ValueSource]
    POSITION: _ClassVar[ValueSource]
    CONSUMED: _ClassVar[ValueSource]
    PAGE_UPDATE_COUNT: _ClassVar[ValueSource]
    PAGE_UPDATES: _ClassVar[ValueSource]
    PAGE_COPY_COUNT: _ClassVar[ValueSource]
    PAGE_COPIES: _ClassVar[ValueSource]
    SEED: _ClassVar[ValueSource]
    TEMPERATURE: _ClassVar[ValueSource]
    TOP_P: _ClassVar[ValueSource]
    MIN_P: _ClassVar[ValueSource]
    TOP_K: _ClassVar[ValueSource]
    REPETITION_PENALTY: _ClassVar[ValueSource]
    PRESENCE_PENALTY: _ClassVar[ValueSource]
    FREQUENCY_PENALTY: _ClassVar[ValueSource]
    OUTPUT_LIMIT: _ClassVar[ValueSource]
    OUTPUT_MINIMUM: _ClassVar[ValueSource]
    STOP_TOKENS: _ClassVar[ValueSource]
    TOP_LOGPROBS: _ClassVar[ValueSource]
    BIAS_COUNT: _ClassVar[ValueSource]
    BIAS_TOKENS: _ClassVar[ValueSource]
    BIAS_VALUES: _ClassVar[ValueSource]
    PROMPT_HISTOGRAM: _ClassVar[ValueSource]
    GENERATED: _ClassVar[ValueSource]
    CONSTANT: _ClassVar[ValueSource]

class Indexing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INDEXING_UNSPECIFIED: _ClassVar[Indexing]
    SCALAR: _ClassVar[Indexing]
    SUBMISSION_ROW: _ClassVar[Indexing]
    ACTIVE_ROW: _ClassVar[Indexing]
    PHYSICAL_ROW: _ClassVar[Indexing]
    PACKED_TOKEN: _ClassVar[Indexing]

class Access(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCESS_UNSPECIFIED: _ClassVar[Access]
    READ: _ClassVar[Access]
    WRITE: _ClassVar[Access]
    READ_WRITE: _ClassVar[Access]

class HistoryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HISTORY_KIND_UNSPECIFIED: _ClassVar[HistoryKind]
    PAGED_KEY_VALUE: _ClassVar[HistoryKind]
    PAGED_LATENT: _ClassVar[HistoryKind]
    SLIDING_WINDOW: _ClassVar[HistoryKind]
    RECURRENT: _ClassVar[HistoryKind]
    CONTINUATION: _ClassVar[HistoryKind]

class ToolSyntax(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_SYNTAX_UNSPECIFIED: _ClassVar[ToolSyntax]
    TOOL_NONE: _ClassVar[ToolSyntax]

class ReasoningSyntax(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASONING_SYNTAX_UNSPECIFIED: _ClassVar[ReasoningSyntax]
    REASONING_NONE: _ClassVar[ReasoningSyntax]

class TextDecoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_DECODING_UNSPECIFIED: _ClassVar[TextDecoding]
    BYTE_LEVEL: _ClassVar[TextDecoding]
    BYTE_FALLBACK: _ClassVar[TextDecoding]
VALUE_SOURCE_UNSPECIFIED: ValueSource
SLOT: ValueSource
GENERATION: ValueSource
LIVE_LANES: ValueSource
LIVE_PACKED: ValueSource
LIVE_SAMPLED: ValueSource
QUERY_LENGTH: ValueSource
QUERY_START: ValueSource
SAMPLE_ROW: ValueSource
LANE: ValueSource
SPECULATIVE_PREFIX_LIMIT: ValueSource
TOKEN: ValueSource
TARGET_TOKEN: ValueSource
PENDING_TOKEN: ValueSource
POSITION: ValueSource
CONSUMED: ValueSource
PAGE_UPDATE_COUNT: ValueSource
PAGE_UPDATES: ValueSource
PAGE_COPY_COUNT: ValueSource
PAGE_COPIES: ValueSource
SEED: ValueSource
TEMPERATURE: ValueSource
TOP_P: ValueSource
MIN_P: ValueSource
TOP_K: ValueSource
REPETITION_PENALTY: ValueSource
PRESENCE_PENALTY: ValueSource
FREQUENCY_PENALTY: ValueSource
OUTPUT_LIMIT: ValueSource
OUTPUT_MINIMUM: ValueSource
STOP_TOKENS: ValueSource
TOP_LOGPROBS: ValueSource
BIAS_COUNT: ValueSource
BIAS_TOKENS: ValueSource
BIAS_VALUES: ValueSource
PROMPT_HISTOGRAM: ValueSource
GENERATED: ValueSource
CONSTANT: ValueSource
INDEXING_UNSPECIFIED: Indexing
SCALAR: Indexing
SUBMISSION_ROW: Indexing
ACTIVE_ROW: Indexing
PHYSICAL_ROW: Indexing
PACKED_TOKEN: Indexing
ACCESS_UNSPECIFIED: Access
READ: Access
WRITE: Access
READ_WRITE: Access
HISTORY_KIND_UNSPECIFIED: HistoryKind
PAGED_KEY_VALUE: HistoryKind
PAGED_LATENT: HistoryKind
SLIDING_WINDOW: HistoryKind
RECURRENT: HistoryKind
CONTINUATION: HistoryKind
TOOL_SYNTAX_UNSPECIFIED: ToolSyntax
TOOL_NONE: ToolSyntax
REASONING_SYNTAX_UNSPECIFIED: ReasoningSyntax
REASONING_NONE: ReasoningSyntax
TEXT_DECODING_UNSPECIFIED: TextDecoding
BYTE_LEVEL: TextDecoding
BYTE_FALLBACK: TextDecoding

class ValueBinding(_message.Message):
    __slots__ = ("buffer", "source", "indexing", "offset", "padding", "constant")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEXING_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    source: ValueSource
    indexing: Indexing
    offset: int
    padding: int
    constant: int
    def __init__(self, buffer: _Optional[int] = ..., source: _Optional[_Union[ValueSource, str]] = ..., indexing: _Optional[_Union[Indexing, str]] = ..., offset: _Optional[int] = ..., padding: _Optional[int] = ..., constant: _Optional[int] = ...) -> None: ...

class StateView(_message.Message):
    __slots__ = ("buffer", "offset", "row_stride", "extent", "access")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_STRIDE_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    row_stride: int
    extent: int
    access: Access
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., row_stride: _Optional[int] = ..., extent: _Optional[int] = ..., access: _Optional[_Union[Access, str]] = ...) -> None: ...

class GraphContract(_message.Message):
    __slots__ = ("program", "operation", "bindings", "states", "device_pending", "host_pending_binding", "state_rows_per_request")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PENDING_FIELD_NUMBER: _ClassVar[int]
    HOST_PENDING_BINDING_FIELD_NUMBER: _ClassVar[int]
    STATE_ROWS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    program: str
    operation: _manifest_pb2.Operation
    bindings: _containers.RepeatedCompositeFieldContainer[ValueBinding]
    states: _containers.RepeatedCompositeFieldContainer[StateView]
    device_pending: StateView
    host_pending_binding: int
    state_rows_per_request: int
    def __init__(self, program: _Optional[str] = ..., operation: _Optional[_Union[_manifest_pb2.Operation, str]] = ..., bindings: _Optional[_Iterable[_Union[ValueBinding, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[StateView, _Mapping]]] = ..., device_pending: _Optional[_Union[StateView, _Mapping]] = ..., host_pending_binding: _Optional[int] = ..., state_rows_per_request: _Optional[int] = ...) -> None: ...

class HistoryRegion(_message.Message):
    __slots__ = ("kind", "planes", "compression_ratio", "window_tokens", "page_group")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_RATIO_FIELD_NUMBER: _ClassVar[int]
    WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    kind: HistoryKind
    planes: _containers.RepeatedScalarFieldContainer[int]
    compression_ratio: int
    window_tokens: int
    page_group: int
    def __init__(self, kind: _Optional[_Union[HistoryKind, str]] = ..., planes: _Optional[_Iterable[int]] = ..., compression_ratio: _Optional[int] = ..., window_tokens: _Optional[int] = ..., page_group: _Optional[int] = ...) -> None: ...

class PageTableView(_message.Message):
    __slots__ = ("buffer", "page_offset", "page_group")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    PAGE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    page_offset: int
    page_group: int
    def __init__(self, buffer: _Optional[int] = ..., page_offset: _Optional[int] = ..., page_group: _Optional[int] = ...) -> None: ...

class CacheContract(_message.Message):
    __slots__ = ("page_tokens", "regions", "tables", "cursor_lag_tokens")
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_LAG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    page_tokens: int
    regions: _containers.RepeatedCompositeFieldContainer[HistoryRegion]
    tables: _containers.RepeatedCompositeFieldContainer[PageTableView]
    cursor_lag_tokens: int
    def __init__(self, page_tokens: _Optional[int] = ..., regions: _Optional[_Iterable[_Union[HistoryRegion, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[PageTableView, _Mapping]]] = ..., cursor_lag_tokens: _Optional[int] = ...) -> None: ...

class FrontendContract(_message.Message):
    __slots__ = ("tool_syntax", "reasoning_syntax", "text_decoding", "strip_leading_space", "eos_tokens", "bos_token", "add_bos", "template_tokens")
    class TemplateTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOOL_SYNTAX_FIELD_NUMBER: _ClassVar[int]
    REASONING_SYNTAX_FIELD_NUMBER: _ClassVar[int]
    TEXT_DECODING_FIELD_NUMBER: _ClassVar[int]
    STRIP_LEADING_SPACE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ADD_BOS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tool_syntax: ToolSyntax
    reasoning_syntax: ReasoningSyntax
    text_decoding: TextDecoding
    strip_leading_space: bool
    eos_tokens: _containers.RepeatedScalarFieldContainer[int]
    bos_token: int
    add_bos: bool
    template_tokens: _containers.ScalarMap[str, str]
    def __init__(self, tool_syntax: _Optional[_Union[ToolSyntax, str]] = ..., reasoning_syntax: _Optional[_Union[ReasoningSyntax, str]] = ..., text_decoding: _Optional[_Union[TextDecoding, str]] = ..., strip_leading_space: _Optional[bool] = ..., eos_tokens: _Optional[_Iterable[int]] = ..., bos_token: _Optional[int] = ..., add_bos: _Optional[bool] = ..., template_tokens: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ModelContract(_message.Message):
    __slots__ = ("version", "vocabulary", "input_vocabulary", "cache", "graphs", "frontend")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    INPUT_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    version: int
    vocabulary: int
    input_vocabulary: int
    cache: CacheContract
    graphs: _containers.RepeatedCompositeFieldContainer[GraphContract]
    frontend: FrontendContract
    def __init__(self, version: _Optional[int] = ..., vocabulary: _Optional[int] = ..., input_vocabulary: _Optional[int] = ..., cache: _Optional[_Union[CacheContract, _Mapping]] = ..., graphs: _Optional[_Iterable[_Union[GraphContract, _Mapping]]] = ..., frontend: _Optional[_Union[FrontendContract, _Mapping]] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_p", "min_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    min_p: float
    top_k: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., top_k: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ...) -> None: ...

class ServingContract(_message.Message):
    __slots__ = ("served_id", "aliases", "cache_identity", "context_tokens", "prefill_tokens", "pages", "snapshots", "concurrency", "sampling", "model")
    SERVED_ID_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CACHE_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    served_id: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    cache_identity: str
    context_tokens: int
    prefill_tokens: int
    pages: int
    snapshots: int
    concurrency: int
    sampling: SamplingDefaults
    model: ModelContract
    def __init__(self, served_id: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., cache_identity: _Optional[str] = ..., context_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., pages: _Optional[int] = ..., snapshots: _Optional[int] = ..., concurrency: _Optional[int] = ..., sampling: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., model: _Optional[_Union[ModelContract, _Mapping]] = ...) -> None: ...

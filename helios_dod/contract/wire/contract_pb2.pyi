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
    MIXED_PREFILL_ROW: _ClassVar[ValueSource]
    SAMPLING_DECISION: _ClassVar[ValueSource]
    TOKEN: _ClassVar[ValueSource]
    TARGET_TOKEN: _ClassVar[ValueSource]
    PENDING_TOKEN: _ClassVar[ValueSource]
    POSITION: _ClassVar[ValueSource]
    CONSUMED: _ClassVar[ValueSource]
    IMAGE_FEATURE_INDEX: _ClassVar[ValueSource]
    IMAGE_CONTEXT_INDEX: _ClassVar[ValueSource]
    IMAGE_FEATURE_SLOT: _ClassVar[ValueSource]
    PAGE_UPDATE_COUNT: _ClassVar[ValueSource]
    PAGE_UPDATES: _ClassVar[ValueSource]
    PAGE_COPY_COUNT: _ClassVar[ValueSource]
    PAGE_COPIES: _ClassVar[ValueSource]
    PAGE_TABLE: _ClassVar[ValueSource]
    STATE_ROW: _ClassVar[ValueSource]
    RESTORE_SOURCE: _ClassVar[ValueSource]
    SNAPSHOT_DESTINATION: _ClassVar[ValueSource]
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
    GRAMMAR_MASK: _ClassVar[ValueSource]
    CONSTANT: _ClassVar[ValueSource]
    CANDIDATE_TOKENS: _ClassVar[ValueSource]
    CANDIDATE_COUNT: _ClassVar[ValueSource]
    CANDIDATE_GENERATION: _ClassVar[ValueSource]
    CANDIDATE_ENDPOINT: _ClassVar[ValueSource]
    CANDIDATE_MASKS: _ClassVar[ValueSource]
    IMAGE_TENSOR: _ClassVar[ValueSource]

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
    PARAMETER_TAGS: _ClassVar[ToolSyntax]
    KEY_VALUE_TAGS: _ClassVar[ToolSyntax]
    TYPED_ELEMENTS: _ClassVar[ToolSyntax]
    MARKED_JSON: _ClassVar[ToolSyntax]
    FRAMED_CALLS: _ClassVar[ToolSyntax]

class ReasoningSyntax(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASONING_SYNTAX_UNSPECIFIED: _ClassVar[ReasoningSyntax]
    REASONING_NONE: _ClassVar[ReasoningSyntax]
    THINK_TAGS: _ClassVar[ReasoningSyntax]
    THINK_ELEMENT: _ClassVar[ReasoningSyntax]
    REASONING_FRAMES: _ClassVar[ReasoningSyntax]

class ArgumentTyping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARGUMENT_TYPING_UNSPECIFIED: _ClassVar[ArgumentTyping]
    TYPED_BY_ATTRIBUTE: _ClassVar[ArgumentTyping]
    TYPED_BY_SCHEMA: _ClassVar[ArgumentTyping]
    TYPED_BY_SCHEMA_THEN_JSON: _ClassVar[ArgumentTyping]
    TYPED_BY_JSON: _ClassVar[ArgumentTyping]

class UnionReading(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNION_READING_UNSPECIFIED: _ClassVar[UnionReading]
    UNION_TEXT: _ClassVar[UnionReading]
    UNION_JSON_FIRST: _ClassVar[UnionReading]

class OrphanCalls(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORPHAN_CALLS_UNSPECIFIED: _ClassVar[OrphanCalls]
    ORPHAN_TEXT: _ClassVar[OrphanCalls]
    ORPHAN_AT_NAME: _ClassVar[OrphanCalls]
    ORPHAN_AT_END: _ClassVar[OrphanCalls]

class NamePlace(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NAME_PLACE_UNSPECIFIED: _ClassVar[NamePlace]
    NAME_IN_OBJECT: _ClassVar[NamePlace]
    NAME_BEFORE_JSON: _ClassVar[NamePlace]
    NAME_IN_IDENTIFIER: _ClassVar[NamePlace]

class CallIds(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_IDS_UNSPECIFIED: _ClassVar[CallIds]
    CALL_ID_PREFIXED: _ClassVar[CallIds]
    CALL_ID_SHORT: _ClassVar[CallIds]
    CALL_ID_GENERATED: _ClassVar[CallIds]

class UnknownNames(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_NAMES_UNSPECIFIED: _ClassVar[UnknownNames]
    UNKNOWN_NAMES_DROP: _ClassVar[UnknownNames]
    UNKNOWN_NAMES_KEEP: _ClassVar[UnknownNames]

class ImagePreparation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_PREPARATION_UNSPECIFIED: _ClassVar[ImagePreparation]
    RESIZE_TO_GRID: _ClassVar[ImagePreparation]
    RESIZE_AND_TILE: _ClassVar[ImagePreparation]
    CAP_AND_PAD: _ClassVar[ImagePreparation]

class ResizeFilter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESIZE_FILTER_UNSPECIFIED: _ClassVar[ResizeFilter]
    BILINEAR: _ClassVar[ResizeFilter]
    BICUBIC: _ClassVar[ResizeFilter]
    LANCZOS: _ClassVar[ResizeFilter]

class PatchOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATCH_ORDER_UNSPECIFIED: _ClassVar[PatchOrder]
    MERGED_BLOCKS: _ClassVar[PatchOrder]
    RASTER: _ClassVar[PatchOrder]

class ImageLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_LAYOUT_UNSPECIFIED: _ClassVar[ImageLayout]
    FEATURE_RUN: _ClassVar[ImageLayout]
    FEATURE_GRID: _ClassVar[ImageLayout]
    FEATURE_ROWS: _ClassVar[ImageLayout]

class RenderConstraint(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RENDER_CONSTRAINT_UNSPECIFIED: _ClassVar[RenderConstraint]
    RENDER_ALWAYS: _ClassVar[RenderConstraint]
    RENDER_WITHOUT_TOOLS: _ClassVar[RenderConstraint]
    RENDER_IF_PREFIX: _ClassVar[RenderConstraint]

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
MIXED_PREFILL_ROW: ValueSource
SAMPLING_DECISION: ValueSource
TOKEN: ValueSource
TARGET_TOKEN: ValueSource
PENDING_TOKEN: ValueSource
POSITION: ValueSource
CONSUMED: ValueSource
IMAGE_FEATURE_INDEX: ValueSource
IMAGE_CONTEXT_INDEX: ValueSource
IMAGE_FEATURE_SLOT: ValueSource
PAGE_UPDATE_COUNT: ValueSource
PAGE_UPDATES: ValueSource
PAGE_COPY_COUNT: ValueSource
PAGE_COPIES: ValueSource
PAGE_TABLE: ValueSource
STATE_ROW: ValueSource
RESTORE_SOURCE: ValueSource
SNAPSHOT_DESTINATION: ValueSource
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
GRAMMAR_MASK: ValueSource
CONSTANT: ValueSource
CANDIDATE_TOKENS: ValueSource
CANDIDATE_COUNT: ValueSource
CANDIDATE_GENERATION: ValueSource
CANDIDATE_ENDPOINT: ValueSource
CANDIDATE_MASKS: ValueSource
IMAGE_TENSOR: ValueSource
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
PARAMETER_TAGS: ToolSyntax
KEY_VALUE_TAGS: ToolSyntax
TYPED_ELEMENTS: ToolSyntax
MARKED_JSON: ToolSyntax
FRAMED_CALLS: ToolSyntax
REASONING_SYNTAX_UNSPECIFIED: ReasoningSyntax
REASONING_NONE: ReasoningSyntax
THINK_TAGS: ReasoningSyntax
THINK_ELEMENT: ReasoningSyntax
REASONING_FRAMES: ReasoningSyntax
ARGUMENT_TYPING_UNSPECIFIED: ArgumentTyping
TYPED_BY_ATTRIBUTE: ArgumentTyping
TYPED_BY_SCHEMA: ArgumentTyping
TYPED_BY_SCHEMA_THEN_JSON: ArgumentTyping
TYPED_BY_JSON: ArgumentTyping
UNION_READING_UNSPECIFIED: UnionReading
UNION_TEXT: UnionReading
UNION_JSON_FIRST: UnionReading
ORPHAN_CALLS_UNSPECIFIED: OrphanCalls
ORPHAN_TEXT: OrphanCalls
ORPHAN_AT_NAME: OrphanCalls
ORPHAN_AT_END: OrphanCalls
NAME_PLACE_UNSPECIFIED: NamePlace
NAME_IN_OBJECT: NamePlace
NAME_BEFORE_JSON: NamePlace
NAME_IN_IDENTIFIER: NamePlace
CALL_IDS_UNSPECIFIED: CallIds
CALL_ID_PREFIXED: CallIds
CALL_ID_SHORT: CallIds
CALL_ID_GENERATED: CallIds
UNKNOWN_NAMES_UNSPECIFIED: UnknownNames
UNKNOWN_NAMES_DROP: UnknownNames
UNKNOWN_NAMES_KEEP: UnknownNames
IMAGE_PREPARATION_UNSPECIFIED: ImagePreparation
RESIZE_TO_GRID: ImagePreparation
RESIZE_AND_TILE: ImagePreparation
CAP_AND_PAD: ImagePreparation
RESIZE_FILTER_UNSPECIFIED: ResizeFilter
BILINEAR: ResizeFilter
BICUBIC: ResizeFilter
LANCZOS: ResizeFilter
PATCH_ORDER_UNSPECIFIED: PatchOrder
MERGED_BLOCKS: PatchOrder
RASTER: PatchOrder
IMAGE_LAYOUT_UNSPECIFIED: ImageLayout
FEATURE_RUN: ImageLayout
FEATURE_GRID: ImageLayout
FEATURE_ROWS: ImageLayout
RENDER_CONSTRAINT_UNSPECIFIED: RenderConstraint
RENDER_ALWAYS: RenderConstraint
RENDER_WITHOUT_TOOLS: RenderConstraint
RENDER_IF_PREFIX: RenderConstraint
TEXT_DECODING_UNSPECIFIED: TextDecoding
BYTE_LEVEL: TextDecoding
BYTE_FALLBACK: TextDecoding

class ValueBinding(_message.Message):
    __slots__ = ("buffer", "source", "indexing", "offset", "padding", "constant", "tensor", "table")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEXING_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    source: ValueSource
    indexing: Indexing
    offset: int
    padding: int
    constant: int
    tensor: str
    table: int
    def __init__(self, buffer: _Optional[int] = ..., source: _Optional[_Union[ValueSource, str]] = ..., indexing: _Optional[_Union[Indexing, str]] = ..., offset: _Optional[int] = ..., padding: _Optional[int] = ..., constant: _Optional[int] = ..., tensor: _Optional[str] = ..., table: _Optional[int] = ...) -> None: ...

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

class TunedBinding(_message.Message):
    __slots__ = ("buffer", "producer")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    producer: str
    def __init__(self, buffer: _Optional[int] = ..., producer: _Optional[str] = ...) -> None: ...

class GraphContract(_message.Message):
    __slots__ = ("program", "operation", "bindings", "states", "device_pending", "host_pending_binding", "state_rows_per_request", "tuned_bindings", "resource_dependencies")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PENDING_FIELD_NUMBER: _ClassVar[int]
    HOST_PENDING_BINDING_FIELD_NUMBER: _ClassVar[int]
    STATE_ROWS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    TUNED_BINDINGS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    program: str
    operation: _manifest_pb2.Operation
    bindings: _containers.RepeatedCompositeFieldContainer[ValueBinding]
    states: _containers.RepeatedCompositeFieldContainer[StateView]
    device_pending: StateView
    host_pending_binding: int
    state_rows_per_request: int
    tuned_bindings: _containers.RepeatedCompositeFieldContainer[TunedBinding]
    resource_dependencies: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, program: _Optional[str] = ..., operation: _Optional[_Union[_manifest_pb2.Operation, str]] = ..., bindings: _Optional[_Iterable[_Union[ValueBinding, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[StateView, _Mapping]]] = ..., device_pending: _Optional[_Union[StateView, _Mapping]] = ..., host_pending_binding: _Optional[int] = ..., state_rows_per_request: _Optional[int] = ..., tuned_bindings: _Optional[_Iterable[_Union[TunedBinding, _Mapping]]] = ..., resource_dependencies: _Optional[_Iterable[str]] = ...) -> None: ...

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
    __slots__ = ("page_tokens", "regions", "tables", "cursor_lag_tokens", "cursor_state")
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_LAG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_STATE_FIELD_NUMBER: _ClassVar[int]
    page_tokens: int
    regions: _containers.RepeatedCompositeFieldContainer[HistoryRegion]
    tables: _containers.RepeatedCompositeFieldContainer[PageTableView]
    cursor_lag_tokens: int
    cursor_state: StateView
    def __init__(self, page_tokens: _Optional[int] = ..., regions: _Optional[_Iterable[_Union[HistoryRegion, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[PageTableView, _Mapping]]] = ..., cursor_lag_tokens: _Optional[int] = ..., cursor_state: _Optional[_Union[StateView, _Mapping]] = ...) -> None: ...

class VisionContract(_message.Message):
    __slots__ = ("feature_slots", "features_per_window", "patches_per_feature", "patch_capacities")
    FEATURE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_PER_WINDOW_FIELD_NUMBER: _ClassVar[int]
    PATCHES_PER_FEATURE_FIELD_NUMBER: _ClassVar[int]
    PATCH_CAPACITIES_FIELD_NUMBER: _ClassVar[int]
    feature_slots: int
    features_per_window: int
    patches_per_feature: int
    patch_capacities: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, feature_slots: _Optional[int] = ..., features_per_window: _Optional[int] = ..., patches_per_feature: _Optional[int] = ..., patch_capacities: _Optional[_Iterable[int]] = ...) -> None: ...

class PrefixBoundary(_message.Message):
    __slots__ = ("roles", "constraint")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedScalarFieldContainer[str]
    constraint: RenderConstraint
    def __init__(self, roles: _Optional[_Iterable[str]] = ..., constraint: _Optional[_Union[RenderConstraint, str]] = ...) -> None: ...

class AtomicSpan(_message.Message):
    __slots__ = ("open_token", "close_token")
    OPEN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    open_token: int
    close_token: int
    def __init__(self, open_token: _Optional[int] = ..., close_token: _Optional[int] = ...) -> None: ...

class ImagePart(_message.Message):
    __slots__ = ("token", "text")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ImageTokens(_message.Message):
    __slots__ = ("feature_tokens", "atomic_spans", "separator_token", "placeholder_token", "before", "after")
    FEATURE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_SPANS_FIELD_NUMBER: _ClassVar[int]
    SEPARATOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PLACEHOLDER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    feature_tokens: _containers.RepeatedScalarFieldContainer[int]
    atomic_spans: _containers.RepeatedCompositeFieldContainer[AtomicSpan]
    separator_token: int
    placeholder_token: int
    before: _containers.RepeatedCompositeFieldContainer[ImagePart]
    after: _containers.RepeatedCompositeFieldContainer[ImagePart]
    def __init__(self, feature_tokens: _Optional[_Iterable[int]] = ..., atomic_spans: _Optional[_Iterable[_Union[AtomicSpan, _Mapping]]] = ..., separator_token: _Optional[int] = ..., placeholder_token: _Optional[int] = ..., before: _Optional[_Iterable[_Union[ImagePart, _Mapping]]] = ..., after: _Optional[_Iterable[_Union[ImagePart, _Mapping]]] = ...) -> None: ...

class ImageSettings(_message.Message):
    __slots__ = ("patch", "pixels_min", "pixels_max", "mean", "deviation", "temporal_patch", "area_frames", "filter", "order", "side_min", "aspect_max", "patches_max", "side_patches_max", "pad_value", "fixed_features")
    PATCH_FIELD_NUMBER: _ClassVar[int]
    PIXELS_MIN_FIELD_NUMBER: _ClassVar[int]
    PIXELS_MAX_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_FIELD_NUMBER: _ClassVar[int]
    TEMPORAL_PATCH_FIELD_NUMBER: _ClassVar[int]
    AREA_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIDE_MIN_FIELD_NUMBER: _ClassVar[int]
    ASPECT_MAX_FIELD_NUMBER: _ClassVar[int]
    PATCHES_MAX_FIELD_NUMBER: _ClassVar[int]
    SIDE_PATCHES_MAX_FIELD_NUMBER: _ClassVar[int]
    PAD_VALUE_FIELD_NUMBER: _ClassVar[int]
    FIXED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    patch: int
    pixels_min: int
    pixels_max: int
    mean: _containers.RepeatedScalarFieldContainer[float]
    deviation: _containers.RepeatedScalarFieldContainer[float]
    temporal_patch: int
    area_frames: int
    filter: ResizeFilter
    order: PatchOrder
    side_min: int
    aspect_max: int
    patches_max: int
    side_patches_max: int
    pad_value: int
    fixed_features: int
    def __init__(self, patch: _Optional[int] = ..., pixels_min: _Optional[int] = ..., pixels_max: _Optional[int] = ..., mean: _Optional[_Iterable[float]] = ..., deviation: _Optional[_Iterable[float]] = ..., temporal_patch: _Optional[int] = ..., area_frames: _Optional[int] = ..., filter: _Optional[_Union[ResizeFilter, str]] = ..., order: _Optional[_Union[PatchOrder, str]] = ..., side_min: _Optional[int] = ..., aspect_max: _Optional[int] = ..., patches_max: _Optional[int] = ..., side_patches_max: _Optional[int] = ..., pad_value: _Optional[int] = ..., fixed_features: _Optional[int] = ...) -> None: ...

class ImageSyntax(_message.Message):
    __slots__ = ("preparation", "layout", "tokens", "settings", "tensors")
    PREPARATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    preparation: ImagePreparation
    layout: ImageLayout
    tokens: ImageTokens
    settings: ImageSettings
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, preparation: _Optional[_Union[ImagePreparation, str]] = ..., layout: _Optional[_Union[ImageLayout, str]] = ..., tokens: _Optional[_Union[ImageTokens, _Mapping]] = ..., settings: _Optional[_Union[ImageSettings, _Mapping]] = ..., tensors: _Optional[_Iterable[str]] = ...) -> None: ...

class AttributeEscape(_message.Message):
    __slots__ = ("escape", "character")
    ESCAPE_FIELD_NUMBER: _ClassVar[int]
    CHARACTER_FIELD_NUMBER: _ClassVar[int]
    escape: str
    character: str
    def __init__(self, escape: _Optional[str] = ..., character: _Optional[str] = ...) -> None: ...

class ThinkSyntax(_message.Message):
    __slots__ = ("open", "close", "open_newlines", "close_newlines", "answer_newlines", "terminals")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    OPEN_NEWLINES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_NEWLINES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_NEWLINES_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    open: str
    close: str
    open_newlines: str
    close_newlines: str
    answer_newlines: str
    terminals: TerminalMarkers
    def __init__(self, open: _Optional[str] = ..., close: _Optional[str] = ..., open_newlines: _Optional[str] = ..., close_newlines: _Optional[str] = ..., answer_newlines: _Optional[str] = ..., terminals: _Optional[_Union[TerminalMarkers, _Mapping]] = ...) -> None: ...

class TerminalMarkers(_message.Message):
    __slots__ = ("markers",)
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, markers: _Optional[_Iterable[str]] = ...) -> None: ...

class EnvelopeSyntax(_message.Message):
    __slots__ = ("opener", "boundaries")
    OPENER_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    opener: str
    boundaries: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, opener: _Optional[str] = ..., boundaries: _Optional[_Iterable[str]] = ...) -> None: ...

class TagSyntax(_message.Message):
    __slots__ = ("wrapper_open", "wrapper_close", "invoke_open", "invoke_close", "parameter_open", "parameter_close", "typing", "quoted", "string_attribute", "edge_newlines", "implicit_ends", "confirm_close", "lead", "wrapper_misspelled", "orphan", "json_body", "malformed_is_text", "fences", "unwrap", "python_literals", "unions")
    WRAPPER_OPEN_FIELD_NUMBER: _ClassVar[int]
    WRAPPER_CLOSE_FIELD_NUMBER: _ClassVar[int]
    INVOKE_OPEN_FIELD_NUMBER: _ClassVar[int]
    INVOKE_CLOSE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_OPEN_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_CLOSE_FIELD_NUMBER: _ClassVar[int]
    TYPING_FIELD_NUMBER: _ClassVar[int]
    QUOTED_FIELD_NUMBER: _ClassVar[int]
    STRING_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    EDGE_NEWLINES_FIELD_NUMBER: _ClassVar[int]
    IMPLICIT_ENDS_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_CLOSE_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    WRAPPER_MISSPELLED_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_FIELD_NUMBER: _ClassVar[int]
    JSON_BODY_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_IS_TEXT_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    UNWRAP_FIELD_NUMBER: _ClassVar[int]
    PYTHON_LITERALS_FIELD_NUMBER: _ClassVar[int]
    UNIONS_FIELD_NUMBER: _ClassVar[int]
    wrapper_open: str
    wrapper_close: str
    invoke_open: str
    invoke_close: str
    parameter_open: str
    parameter_close: str
    typing: ArgumentTyping
    quoted: bool
    string_attribute: str
    edge_newlines: bool
    implicit_ends: bool
    confirm_close: bool
    lead: str
    wrapper_misspelled: _containers.RepeatedScalarFieldContainer[str]
    orphan: OrphanCalls
    json_body: bool
    malformed_is_text: bool
    fences: bool
    unwrap: _containers.RepeatedScalarFieldContainer[str]
    python_literals: bool
    unions: UnionReading
    def __init__(self, wrapper_open: _Optional[str] = ..., wrapper_close: _Optional[str] = ..., invoke_open: _Optional[str] = ..., invoke_close: _Optional[str] = ..., parameter_open: _Optional[str] = ..., parameter_close: _Optional[str] = ..., typing: _Optional[_Union[ArgumentTyping, str]] = ..., quoted: _Optional[bool] = ..., string_attribute: _Optional[str] = ..., edge_newlines: _Optional[bool] = ..., implicit_ends: _Optional[bool] = ..., confirm_close: _Optional[bool] = ..., lead: _Optional[str] = ..., wrapper_misspelled: _Optional[_Iterable[str]] = ..., orphan: _Optional[_Union[OrphanCalls, str]] = ..., json_body: _Optional[bool] = ..., malformed_is_text: _Optional[bool] = ..., fences: _Optional[bool] = ..., unwrap: _Optional[_Iterable[str]] = ..., python_literals: _Optional[bool] = ..., unions: _Optional[_Union[UnionReading, str]] = ...) -> None: ...

class PairSyntax(_message.Message):
    __slots__ = ("call_open", "call_close", "key_open", "key_close", "value_open", "value_close", "typing", "lead", "python_literals", "unions")
    CALL_OPEN_FIELD_NUMBER: _ClassVar[int]
    CALL_CLOSE_FIELD_NUMBER: _ClassVar[int]
    KEY_OPEN_FIELD_NUMBER: _ClassVar[int]
    KEY_CLOSE_FIELD_NUMBER: _ClassVar[int]
    VALUE_OPEN_FIELD_NUMBER: _ClassVar[int]
    VALUE_CLOSE_FIELD_NUMBER: _ClassVar[int]
    TYPING_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    PYTHON_LITERALS_FIELD_NUMBER: _ClassVar[int]
    UNIONS_FIELD_NUMBER: _ClassVar[int]
    call_open: str
    call_close: str
    key_open: str
    key_close: str
    value_open: str
    value_close: str
    typing: ArgumentTyping
    lead: str
    python_literals: bool
    unions: UnionReading
    def __init__(self, call_open: _Optional[str] = ..., call_close: _Optional[str] = ..., key_open: _Optional[str] = ..., key_close: _Optional[str] = ..., value_open: _Optional[str] = ..., value_close: _Optional[str] = ..., typing: _Optional[_Union[ArgumentTyping, str]] = ..., lead: _Optional[str] = ..., python_literals: _Optional[bool] = ..., unions: _Optional[_Union[UnionReading, str]] = ...) -> None: ...

class ElementSyntax(_message.Message):
    __slots__ = ("open", "close", "separator", "message", "think", "response", "tools", "call", "argument", "json", "name_attribute", "key_attribute", "type_attribute", "string_type", "escapes")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SEPARATOR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    THINK_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    NAME_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    KEY_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    TYPE_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    STRING_TYPE_FIELD_NUMBER: _ClassVar[int]
    ESCAPES_FIELD_NUMBER: _ClassVar[int]
    open: str
    close: str
    separator: str
    message: str
    think: str
    response: str
    tools: str
    call: str
    argument: str
    json: str
    name_attribute: str
    key_attribute: str
    type_attribute: str
    string_type: str
    escapes: _containers.RepeatedCompositeFieldContainer[AttributeEscape]
    def __init__(self, open: _Optional[str] = ..., close: _Optional[str] = ..., separator: _Optional[str] = ..., message: _Optional[str] = ..., think: _Optional[str] = ..., response: _Optional[str] = ..., tools: _Optional[str] = ..., call: _Optional[str] = ..., argument: _Optional[str] = ..., json: _Optional[str] = ..., name_attribute: _Optional[str] = ..., key_attribute: _Optional[str] = ..., type_attribute: _Optional[str] = ..., string_type: _Optional[str] = ..., escapes: _Optional[_Iterable[_Union[AttributeEscape, _Mapping]]] = ...) -> None: ...

class JsonSyntax(_message.Message):
    __slots__ = ("place", "open", "close", "item_open", "item_close", "name_end", "id_open", "absorbed", "name_keys", "argument_keys", "arguments_required", "name_prefix", "lead")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    ITEM_OPEN_FIELD_NUMBER: _ClassVar[int]
    ITEM_CLOSE_FIELD_NUMBER: _ClassVar[int]
    NAME_END_FIELD_NUMBER: _ClassVar[int]
    ID_OPEN_FIELD_NUMBER: _ClassVar[int]
    ABSORBED_FIELD_NUMBER: _ClassVar[int]
    NAME_KEYS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    place: NamePlace
    open: str
    close: str
    item_open: str
    item_close: str
    name_end: str
    id_open: str
    absorbed: _containers.RepeatedScalarFieldContainer[str]
    name_keys: _containers.RepeatedScalarFieldContainer[str]
    argument_keys: _containers.RepeatedScalarFieldContainer[str]
    arguments_required: bool
    name_prefix: str
    lead: str
    def __init__(self, place: _Optional[_Union[NamePlace, str]] = ..., open: _Optional[str] = ..., close: _Optional[str] = ..., item_open: _Optional[str] = ..., item_close: _Optional[str] = ..., name_end: _Optional[str] = ..., id_open: _Optional[str] = ..., absorbed: _Optional[_Iterable[str]] = ..., name_keys: _Optional[_Iterable[str]] = ..., argument_keys: _Optional[_Iterable[str]] = ..., arguments_required: _Optional[bool] = ..., name_prefix: _Optional[str] = ..., lead: _Optional[str] = ...) -> None: ...

class FrameSyntax(_message.Message):
    __slots__ = ("start", "message", "ends", "role", "recipient", "channel", "constrain", "reasoning_recipients", "content_recipients", "reasoning_channels", "content_channels", "tool_prefix", "doubled_names", "bare_headers", "body")
    START_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CONSTRAIN_FIELD_NUMBER: _ClassVar[int]
    REASONING_RECIPIENTS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_RECIPIENTS_FIELD_NUMBER: _ClassVar[int]
    REASONING_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    TOOL_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DOUBLED_NAMES_FIELD_NUMBER: _ClassVar[int]
    BARE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    start: str
    message: str
    ends: _containers.RepeatedScalarFieldContainer[str]
    role: str
    recipient: str
    channel: str
    constrain: str
    reasoning_recipients: _containers.RepeatedScalarFieldContainer[str]
    content_recipients: _containers.RepeatedScalarFieldContainer[str]
    reasoning_channels: _containers.RepeatedScalarFieldContainer[str]
    content_channels: _containers.RepeatedScalarFieldContainer[str]
    tool_prefix: str
    doubled_names: bool
    bare_headers: bool
    body: TagSyntax
    def __init__(self, start: _Optional[str] = ..., message: _Optional[str] = ..., ends: _Optional[_Iterable[str]] = ..., role: _Optional[str] = ..., recipient: _Optional[str] = ..., channel: _Optional[str] = ..., constrain: _Optional[str] = ..., reasoning_recipients: _Optional[_Iterable[str]] = ..., content_recipients: _Optional[_Iterable[str]] = ..., reasoning_channels: _Optional[_Iterable[str]] = ..., content_channels: _Optional[_Iterable[str]] = ..., tool_prefix: _Optional[str] = ..., doubled_names: _Optional[bool] = ..., bare_headers: _Optional[bool] = ..., body: _Optional[_Union[TagSyntax, _Mapping]] = ...) -> None: ...

class OutputSyntax(_message.Message):
    __slots__ = ("tags", "pairs", "elements", "json", "frames", "think", "tokens", "dropped", "envelope", "call_ids", "unknown_names")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    THINK_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_NAMES_FIELD_NUMBER: _ClassVar[int]
    tags: TagSyntax
    pairs: PairSyntax
    elements: ElementSyntax
    json: JsonSyntax
    frames: FrameSyntax
    think: ThinkSyntax
    tokens: _containers.RepeatedScalarFieldContainer[str]
    dropped: _containers.RepeatedScalarFieldContainer[str]
    envelope: EnvelopeSyntax
    call_ids: CallIds
    unknown_names: UnknownNames
    def __init__(self, tags: _Optional[_Union[TagSyntax, _Mapping]] = ..., pairs: _Optional[_Union[PairSyntax, _Mapping]] = ..., elements: _Optional[_Union[ElementSyntax, _Mapping]] = ..., json: _Optional[_Union[JsonSyntax, _Mapping]] = ..., frames: _Optional[_Union[FrameSyntax, _Mapping]] = ..., think: _Optional[_Union[ThinkSyntax, _Mapping]] = ..., tokens: _Optional[_Iterable[str]] = ..., dropped: _Optional[_Iterable[str]] = ..., envelope: _Optional[_Union[EnvelopeSyntax, _Mapping]] = ..., call_ids: _Optional[_Union[CallIds, str]] = ..., unknown_names: _Optional[_Union[UnknownNames, str]] = ...) -> None: ...

class FrontendContract(_message.Message):
    __slots__ = ("tool_syntax", "reasoning_syntax", "text_decoding", "strip_leading_space", "eos_tokens", "bos_token", "add_bos", "template_tokens", "prefix_boundaries", "image", "output")
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
    PREFIX_BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    tool_syntax: ToolSyntax
    reasoning_syntax: ReasoningSyntax
    text_decoding: TextDecoding
    strip_leading_space: bool
    eos_tokens: _containers.RepeatedScalarFieldContainer[int]
    bos_token: int
    add_bos: bool
    template_tokens: _containers.ScalarMap[str, str]
    prefix_boundaries: _containers.RepeatedCompositeFieldContainer[PrefixBoundary]
    image: ImageSyntax
    output: OutputSyntax
    def __init__(self, tool_syntax: _Optional[_Union[ToolSyntax, str]] = ..., reasoning_syntax: _Optional[_Union[ReasoningSyntax, str]] = ..., text_decoding: _Optional[_Union[TextDecoding, str]] = ..., strip_leading_space: _Optional[bool] = ..., eos_tokens: _Optional[_Iterable[int]] = ..., bos_token: _Optional[int] = ..., add_bos: _Optional[bool] = ..., template_tokens: _Optional[_Mapping[str, str]] = ..., prefix_boundaries: _Optional[_Iterable[_Union[PrefixBoundary, _Mapping]]] = ..., image: _Optional[_Union[ImageSyntax, _Mapping]] = ..., output: _Optional[_Union[OutputSyntax, _Mapping]] = ...) -> None: ...

class ModelContract(_message.Message):
    __slots__ = ("version", "vocabulary", "input_vocabulary", "vision", "cache", "graphs", "frontend")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    INPUT_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    VISION_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    version: int
    vocabulary: int
    input_vocabulary: int
    vision: VisionContract
    cache: CacheContract
    graphs: _containers.RepeatedCompositeFieldContainer[GraphContract]
    frontend: FrontendContract
    def __init__(self, version: _Optional[int] = ..., vocabulary: _Optional[int] = ..., input_vocabulary: _Optional[int] = ..., vision: _Optional[_Union[VisionContract, _Mapping]] = ..., cache: _Optional[_Union[CacheContract, _Mapping]] = ..., graphs: _Optional[_Iterable[_Union[GraphContract, _Mapping]]] = ..., frontend: _Optional[_Union[FrontendContract, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("served_id", "aliases", "cache_identity", "context_tokens", "prefill_tokens", "pages", "snapshots", "concurrency", "sampling", "model", "speculative_widths")
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
    SPECULATIVE_WIDTHS_FIELD_NUMBER: _ClassVar[int]
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
    speculative_widths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, served_id: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., cache_identity: _Optional[str] = ..., context_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., pages: _Optional[int] = ..., snapshots: _Optional[int] = ..., concurrency: _Optional[int] = ..., sampling: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., model: _Optional[_Union[ModelContract, _Mapping]] = ..., speculative_widths: _Optional[_Iterable[int]] = ...) -> None: ...

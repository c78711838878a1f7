from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    F32: _ClassVar[DataType]
    F16: _ClassVar[DataType]
    BF16: _ClassVar[DataType]
    I32: _ClassVar[DataType]
    U32: _ClassVar[DataType]
    I64: _ClassVar[DataType]
    U64: _ClassVar[DataType]
    U8: _ClassVar[DataType]
    I8: _ClassVar[DataType]
    F8_E4M3: _ClassVar[DataType]

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    INITIALIZE: _ClassVar[Operation]
    RESTORE: _ClassVar[Operation]
    PREFILL: _ClassVar[Operation]
    SCORED_PREFILL: _ClassVar[Operation]
    RESUME: _ClassVar[Operation]
    DECODE: _ClassVar[Operation]
    SPECULATIVE: _ClassVar[Operation]
    MIXED: _ClassVar[Operation]
    IMAGE_ENCODE: _ClassVar[Operation]

class Symbol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYMBOL_UNSPECIFIED: _ClassVar[Symbol]
    LANES: _ClassVar[Symbol]
    PACKED: _ClassVar[Symbol]
    SLOTS: _ClassVar[Symbol]
    PAGES: _ClassVar[Symbol]
    PAGE_TOKENS: _ClassVar[Symbol]
    PAGES_PER_REQUEST: _ClassVar[Symbol]
    UPDATES: _ClassVar[Symbol]
    LOGIT_ROWS: _ClassVar[Symbol]
    STATE_ROWS: _ClassVar[Symbol]
    SNAPSHOT_ROWS: _ClassVar[Symbol]
    WINDOWED_PAGES: _ClassVar[Symbol]

class BufferKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUFFER_KIND_UNSPECIFIED: _ClassVar[BufferKind]
    WEIGHT: _ClassVar[BufferKind]
    STATE: _ClassVar[BufferKind]
    CACHE: _ClassVar[BufferKind]
    SCRATCH: _ClassVar[BufferKind]
    STAGING: _ClassVar[BufferKind]
    COMPLETION: _ClassVar[BufferKind]

class PanelEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PANEL_ENCODING_UNSPECIFIED: _ClassVar[PanelEncoding]
    PANEL_F32: _ClassVar[PanelEncoding]
    PANEL_F16: _ClassVar[PanelEncoding]
    PANEL_BF16: _ClassVar[PanelEncoding]
    PANEL_Q4: _ClassVar[PanelEncoding]
    PANEL_Q8: _ClassVar[PanelEncoding]

class CompletionField(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPLETION_FIELD_UNSPECIFIED: _ClassVar[CompletionField]
    COMPLETION_SLOT: _ClassVar[CompletionField]
    COMPLETION_GENERATION: _ClassVar[CompletionField]
    COMPLETION_STATUS: _ClassVar[CompletionField]
    COMPLETION_OFFERED: _ClassVar[CompletionField]
    COMPLETION_ACCEPTED: _ClassVar[CompletionField]
    COMPLETION_EMITTED: _ClassVar[CompletionField]
    COMPLETION_TOKENS: _ClassVar[CompletionField]
    COMPLETION_ENDPOINT: _ClassVar[CompletionField]
    COMPLETION_CURSOR: _ClassVar[CompletionField]
    COMPLETION_RESERVED: _ClassVar[CompletionField]
    COMPLETION_LOGPROB: _ClassVar[CompletionField]
    COMPLETION_TOP_TOKENS: _ClassVar[CompletionField]
    COMPLETION_TOP_LOGPROBS: _ClassVar[CompletionField]
    COMPLETION_SCORES: _ClassVar[CompletionField]

class RowDomain(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_DOMAIN_UNSPECIFIED: _ClassVar[RowDomain]
    ROWS_PACKED: _ClassVar[RowDomain]
    ROWS_LANES: _ClassVar[RowDomain]
    ROWS_SAMPLED: _ClassVar[RowDomain]
    ROWS_DRAWN: _ClassVar[RowDomain]
    ROWS_TRIAL: _ClassVar[RowDomain]

class ActivationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVATION_KIND_UNSPECIFIED: _ClassVar[ActivationKind]
    SILU: _ClassVar[ActivationKind]
    GELU_TANH: _ClassVar[ActivationKind]
    GELU_ERF: _ClassVar[ActivationKind]
    RELU: _ClassVar[ActivationKind]

class StrengthKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRENGTH_KIND_UNSPECIFIED: _ClassVar[StrengthKind]
    STRENGTH_ONE: _ClassVar[StrengthKind]
    STRENGTH_SIGMOID: _ClassVar[StrengthKind]
    STRENGTH_STEP: _ClassVar[StrengthKind]

class NormKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NORM_KIND_UNSPECIFIED: _ClassVar[NormKind]
    RMS: _ClassVar[NormKind]
    LAYER: _ClassVar[NormKind]

class RotaryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROTARY_KIND_UNSPECIFIED: _ClassVar[RotaryKind]
    HALVES: _ClassVar[RotaryKind]
    INTERLEAVED: _ClassVar[RotaryKind]

class ProductKernel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRODUCT_KERNEL_UNSPECIFIED: _ClassVar[ProductKernel]
    PRODUCT_DIRECT: _ClassVar[ProductKernel]
    PRODUCT_EXPANDED: _ClassVar[ProductKernel]

class CudaParameterKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CUDA_PARAMETER_KIND_UNSPECIFIED: _ClassVar[CudaParameterKind]
    CUDA_POINTER: _ClassVar[CudaParameterKind]
    CUDA_WORDS: _ClassVar[CudaParameterKind]
    CUDA_NUMBER: _ClassVar[CudaParameterKind]

class ExecutorWord(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTOR_WORD_UNSPECIFIED: _ClassVar[ExecutorWord]
    SUBMISSION_COUNT: _ClassVar[ExecutorWord]
    FINISHED_COUNT: _ClassVar[ExecutorWord]

class AddressUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADDRESS_USE_UNSPECIFIED: _ClassVar[AddressUse]
    ADDRESS_READ: _ClassVar[AddressUse]
    ADDRESS_WRITTEN: _ClassVar[AddressUse]
    ADDRESS_UPDATED: _ClassVar[AddressUse]

class LiveCount(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIVE_COUNT_UNSPECIFIED: _ClassVar[LiveCount]
    LIVE_PACKED_ROWS: _ClassVar[LiveCount]
    LIVE_LANE_ROWS: _ClassVar[LiveCount]
    LIVE_SAMPLED_ROWS: _ClassVar[LiveCount]
DATA_TYPE_UNSPECIFIED: DataType
F32: DataType
F16: DataType
BF16: DataType
I32: DataType
U32: DataType
I64: DataType
U64: DataType
U8: DataType
I8: DataType
F8_E4M3: DataType
OPERATION_UNSPECIFIED: Operation
INITIALIZE: Operation
RESTORE: Operation
PREFILL: Operation
SCORED_PREFILL: Operation
RESUME: Operation
DECODE: Operation
SPECULATIVE: Operation
MIXED: Operation
IMAGE_ENCODE: Operation
SYMBOL_UNSPECIFIED: Symbol
LANES: Symbol
PACKED: Symbol
SLOTS: Symbol
PAGES: Symbol
PAGE_TOKENS: Symbol
PAGES_PER_REQUEST: Symbol
UPDATES: Symbol
LOGIT_ROWS: Symbol
STATE_ROWS: Symbol
SNAPSHOT_ROWS: Symbol
WINDOWED_PAGES: Symbol
BUFFER_KIND_UNSPECIFIED: BufferKind
WEIGHT: BufferKind
STATE: BufferKind
CACHE: BufferKind
SCRATCH: BufferKind
STAGING: BufferKind
COMPLETION: BufferKind
PANEL_ENCODING_UNSPECIFIED: PanelEncoding
PANEL_F32: PanelEncoding
PANEL_F16: PanelEncoding
PANEL_BF16: PanelEncoding
PANEL_Q4: PanelEncoding
PANEL_Q8: PanelEncoding
COMPLETION_FIELD_UNSPECIFIED: CompletionField
COMPLETION_SLOT: CompletionField
COMPLETION_GENERATION: CompletionField
COMPLETION_STATUS: CompletionField
COMPLETION_OFFERED: CompletionField
COMPLETION_ACCEPTED: CompletionField
COMPLETION_EMITTED: CompletionField
COMPLETION_TOKENS: CompletionField
COMPLETION_ENDPOINT: CompletionField
COMPLETION_CURSOR: CompletionField
COMPLETION_RESERVED: CompletionField
COMPLETION_LOGPROB: CompletionField
COMPLETION_TOP_TOKENS: CompletionField
COMPLETION_TOP_LOGPROBS: CompletionField
COMPLETION_SCORES: CompletionField
ROW_DOMAIN_UNSPECIFIED: RowDomain
ROWS_PACKED: RowDomain
ROWS_LANES: RowDomain
ROWS_SAMPLED: RowDomain
ROWS_DRAWN: RowDomain
ROWS_TRIAL: RowDomain
ACTIVATION_KIND_UNSPECIFIED: ActivationKind
SILU: ActivationKind
GELU_TANH: ActivationKind
GELU_ERF: ActivationKind
RELU: ActivationKind
STRENGTH_KIND_UNSPECIFIED: StrengthKind
STRENGTH_ONE: StrengthKind
STRENGTH_SIGMOID: StrengthKind
STRENGTH_STEP: StrengthKind
NORM_KIND_UNSPECIFIED: NormKind
RMS: NormKind
LAYER: NormKind
ROTARY_KIND_UNSPECIFIED: RotaryKind
HALVES: RotaryKind
INTERLEAVED: RotaryKind
PRODUCT_KERNEL_UNSPECIFIED: ProductKernel
PRODUCT_DIRECT: ProductKernel
PRODUCT_EXPANDED: ProductKernel
CUDA_PARAMETER_KIND_UNSPECIFIED: CudaParameterKind
CUDA_POINTER: CudaParameterKind
CUDA_WORDS: CudaParameterKind
CUDA_NUMBER: CudaParameterKind
EXECUTOR_WORD_UNSPECIFIED: ExecutorWord
SUBMISSION_COUNT: ExecutorWord
FINISHED_COUNT: ExecutorWord
ADDRESS_USE_UNSPECIFIED: AddressUse
ADDRESS_READ: AddressUse
ADDRESS_WRITTEN: AddressUse
ADDRESS_UPDATED: AddressUse
LIVE_COUNT_UNSPECIFIED: LiveCount
LIVE_PACKED_ROWS: LiveCount
LIVE_LANE_ROWS: LiveCount
LIVE_SAMPLED_ROWS: LiveCount

class Extent(_message.Message):
    __slots__ = ("symbol", "multiplier")
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    symbol: Symbol
    multiplier: int
    def __init__(self, symbol: _Optional[_Union[Symbol, str]] = ..., multiplier: _Optional[int] = ...) -> None: ...

class Panel(_message.Message):
    __slots__ = ("encoding", "rows", "columns", "panel_rows", "block_columns", "scale", "minimum")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PANEL_ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    encoding: PanelEncoding
    rows: int
    columns: int
    panel_rows: int
    block_columns: int
    scale: DataType
    minimum: DataType
    def __init__(self, encoding: _Optional[_Union[PanelEncoding, str]] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., panel_rows: _Optional[int] = ..., block_columns: _Optional[int] = ..., scale: _Optional[_Union[DataType, str]] = ..., minimum: _Optional[_Union[DataType, str]] = ...) -> None: ...

class Buffer(_message.Message):
    __slots__ = ("name", "kind", "dtype", "shape", "panel", "resource_id", "resource_offset", "resource_nbytes", "completion")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PANEL_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NBYTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: BufferKind
    dtype: DataType
    shape: _containers.RepeatedCompositeFieldContainer[Extent]
    panel: Panel
    resource_id: str
    resource_offset: int
    resource_nbytes: int
    completion: CompletionField
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[BufferKind, str]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ..., panel: _Optional[_Union[Panel, _Mapping]] = ..., resource_id: _Optional[str] = ..., resource_offset: _Optional[int] = ..., resource_nbytes: _Optional[int] = ..., completion: _Optional[_Union[CompletionField, str]] = ...) -> None: ...

class Operand(_message.Message):
    __slots__ = ("buffer", "column", "columns")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    column: int
    columns: int
    def __init__(self, buffer: _Optional[int] = ..., column: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class ScatterRows(_message.Message):
    __slots__ = ("source", "slot", "destination")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    source: Operand
    slot: Operand
    destination: Operand
    def __init__(self, source: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., destination: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class FillRows(_message.Message):
    __slots__ = ("value", "slot", "destination")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    value: int
    slot: Operand
    destination: Operand
    def __init__(self, value: _Optional[int] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., destination: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class UpdatePageTable(_message.Message):
    __slots__ = ("count", "updates", "table")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    count: Operand
    updates: Operand
    table: Operand
    def __init__(self, count: _Optional[_Union[Operand, _Mapping]] = ..., updates: _Optional[_Union[Operand, _Mapping]] = ..., table: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class CopyPages(_message.Message):
    __slots__ = ("count", "pairs")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    count: Operand
    pairs: Operand
    def __init__(self, count: _Optional[_Union[Operand, _Mapping]] = ..., pairs: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class SelectTokens(_message.Message):
    __slots__ = ("staged", "has_staged", "pending", "slot", "lane", "output")
    STAGED_FIELD_NUMBER: _ClassVar[int]
    HAS_STAGED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    staged: Operand
    has_staged: bool
    pending: Operand
    slot: Operand
    lane: Operand
    output: Operand
    def __init__(self, staged: _Optional[_Union[Operand, _Mapping]] = ..., has_staged: _Optional[bool] = ..., pending: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., lane: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class Embed(_message.Message):
    __slots__ = ("rows", "index", "table", "output", "accumulate", "scale")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    rows: RowDomain
    index: Operand
    table: int
    output: Operand
    accumulate: bool
    scale: float
    def __init__(self, rows: _Optional[_Union[RowDomain, str]] = ..., index: _Optional[_Union[Operand, _Mapping]] = ..., table: _Optional[int] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., accumulate: _Optional[bool] = ..., scale: _Optional[float] = ...) -> None: ...

class Normalise(_message.Message):
    __slots__ = ("rows", "kind", "input", "output", "weight", "bias", "has_bias", "epsilon", "group")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    HAS_BIAS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    rows: RowDomain
    kind: NormKind
    input: Operand
    output: Operand
    weight: int
    bias: int
    has_bias: bool
    epsilon: float
    group: int
    def __init__(self, rows: _Optional[_Union[RowDomain, str]] = ..., kind: _Optional[_Union[NormKind, str]] = ..., input: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., weight: _Optional[int] = ..., bias: _Optional[int] = ..., has_bias: _Optional[bool] = ..., epsilon: _Optional[float] = ..., group: _Optional[int] = ...) -> None: ...

class Product(_message.Message):
    __slots__ = ("rows", "input", "weight", "output", "bias", "has_bias", "accumulate", "kernel", "selected", "has_selected", "trial_rows")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    HAS_BIAS_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    HAS_SELECTED_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: RowDomain
    input: Operand
    weight: int
    output: Operand
    bias: int
    has_bias: bool
    accumulate: bool
    kernel: ProductKernel
    selected: Operand
    has_selected: bool
    trial_rows: int
    def __init__(self, rows: _Optional[_Union[RowDomain, str]] = ..., input: _Optional[_Union[Operand, _Mapping]] = ..., weight: _Optional[int] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., bias: _Optional[int] = ..., has_bias: _Optional[bool] = ..., accumulate: _Optional[bool] = ..., kernel: _Optional[_Union[ProductKernel, str]] = ..., selected: _Optional[_Union[Operand, _Mapping]] = ..., has_selected: _Optional[bool] = ..., trial_rows: _Optional[int] = ...) -> None: ...

class Rotary(_message.Message):
    __slots__ = ("operand", "position", "frequencies", "kind", "head", "magnitude", "rows")
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FREQUENCIES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    MAGNITUDE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    operand: Operand
    position: Operand
    frequencies: int
    kind: RotaryKind
    head: int
    magnitude: float
    rows: RowDomain
    def __init__(self, operand: _Optional[_Union[Operand, _Mapping]] = ..., position: _Optional[_Union[Operand, _Mapping]] = ..., frequencies: _Optional[int] = ..., kind: _Optional[_Union[RotaryKind, str]] = ..., head: _Optional[int] = ..., magnitude: _Optional[float] = ..., rows: _Optional[_Union[RowDomain, str]] = ...) -> None: ...

class CacheWrite(_message.Message):
    __slots__ = ("key", "value", "position", "lane", "slot", "table", "key_cache", "value_cache", "head", "rows")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_CACHE_FIELD_NUMBER: _ClassVar[int]
    VALUE_CACHE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    key: Operand
    value: Operand
    position: Operand
    lane: Operand
    slot: Operand
    table: Operand
    key_cache: int
    value_cache: int
    head: int
    rows: RowDomain
    def __init__(self, key: _Optional[_Union[Operand, _Mapping]] = ..., value: _Optional[_Union[Operand, _Mapping]] = ..., position: _Optional[_Union[Operand, _Mapping]] = ..., lane: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., table: _Optional[_Union[Operand, _Mapping]] = ..., key_cache: _Optional[int] = ..., value_cache: _Optional[int] = ..., head: _Optional[int] = ..., rows: _Optional[_Union[RowDomain, str]] = ...) -> None: ...

class Attention(_message.Message):
    __slots__ = ("query", "output", "position", "lane", "slot", "table", "key_cache", "value_cache", "heads", "key_heads", "head", "scale", "window", "query_start", "query_length", "rows")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_CACHE_FIELD_NUMBER: _ClassVar[int]
    VALUE_CACHE_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    KEY_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    query: Operand
    output: Operand
    position: Operand
    lane: Operand
    slot: Operand
    table: Operand
    key_cache: int
    value_cache: int
    heads: int
    key_heads: int
    head: int
    scale: float
    window: int
    query_start: Operand
    query_length: Operand
    rows: RowDomain
    def __init__(self, query: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., position: _Optional[_Union[Operand, _Mapping]] = ..., lane: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., table: _Optional[_Union[Operand, _Mapping]] = ..., key_cache: _Optional[int] = ..., value_cache: _Optional[int] = ..., heads: _Optional[int] = ..., key_heads: _Optional[int] = ..., head: _Optional[int] = ..., scale: _Optional[float] = ..., window: _Optional[int] = ..., query_start: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., rows: _Optional[_Union[RowDomain, str]] = ...) -> None: ...

class Activation(_message.Message):
    __slots__ = ("rows", "kind", "gate", "up", "has_up", "output")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    HAS_UP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    rows: RowDomain
    kind: ActivationKind
    gate: Operand
    up: Operand
    has_up: bool
    output: Operand
    def __init__(self, rows: _Optional[_Union[RowDomain, str]] = ..., kind: _Optional[_Union[ActivationKind, str]] = ..., gate: _Optional[_Union[Operand, _Mapping]] = ..., up: _Optional[_Union[Operand, _Mapping]] = ..., has_up: _Optional[bool] = ..., output: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class SelectRows(_message.Message):
    __slots__ = ("rows", "input", "index", "output")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    rows: RowDomain
    input: Operand
    index: Operand
    output: Operand
    def __init__(self, rows: _Optional[_Union[RowDomain, str]] = ..., input: _Optional[_Union[Operand, _Mapping]] = ..., index: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class AdjustLogits(_message.Message):
    __slots__ = ("logits", "slot", "histogram", "repetition", "presence", "frequency", "bias_tokens", "bias_values", "bias_count", "stop_tokens", "minimum", "generated", "status", "mask", "has_mask")
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    BIAS_COUNT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    HAS_MASK_FIELD_NUMBER: _ClassVar[int]
    logits: Operand
    slot: Operand
    histogram: Operand
    repetition: Operand
    presence: Operand
    frequency: Operand
    bias_tokens: Operand
    bias_values: Operand
    bias_count: Operand
    stop_tokens: Operand
    minimum: Operand
    generated: Operand
    status: Operand
    mask: Operand
    has_mask: bool
    def __init__(self, logits: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., histogram: _Optional[_Union[Operand, _Mapping]] = ..., repetition: _Optional[_Union[Operand, _Mapping]] = ..., presence: _Optional[_Union[Operand, _Mapping]] = ..., frequency: _Optional[_Union[Operand, _Mapping]] = ..., bias_tokens: _Optional[_Union[Operand, _Mapping]] = ..., bias_values: _Optional[_Union[Operand, _Mapping]] = ..., bias_count: _Optional[_Union[Operand, _Mapping]] = ..., stop_tokens: _Optional[_Union[Operand, _Mapping]] = ..., minimum: _Optional[_Union[Operand, _Mapping]] = ..., generated: _Optional[_Union[Operand, _Mapping]] = ..., status: _Optional[_Union[Operand, _Mapping]] = ..., mask: _Optional[_Union[Operand, _Mapping]] = ..., has_mask: _Optional[bool] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("logits", "slot", "temperature", "top_p", "min_p", "top_k", "seed", "position", "sample_row", "top_count", "output", "logprob", "top_tokens", "top_logprobs", "status", "rows")
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ROW_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    logits: Operand
    slot: Operand
    temperature: Operand
    top_p: Operand
    min_p: Operand
    top_k: Operand
    seed: Operand
    position: Operand
    sample_row: Operand
    top_count: Operand
    output: Operand
    logprob: Operand
    top_tokens: Operand
    top_logprobs: Operand
    status: Operand
    rows: RowDomain
    def __init__(self, logits: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., temperature: _Optional[_Union[Operand, _Mapping]] = ..., top_p: _Optional[_Union[Operand, _Mapping]] = ..., min_p: _Optional[_Union[Operand, _Mapping]] = ..., top_k: _Optional[_Union[Operand, _Mapping]] = ..., seed: _Optional[_Union[Operand, _Mapping]] = ..., position: _Optional[_Union[Operand, _Mapping]] = ..., sample_row: _Optional[_Union[Operand, _Mapping]] = ..., top_count: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., logprob: _Optional[_Union[Operand, _Mapping]] = ..., top_tokens: _Optional[_Union[Operand, _Mapping]] = ..., top_logprobs: _Optional[_Union[Operand, _Mapping]] = ..., status: _Optional[_Union[Operand, _Mapping]] = ..., rows: _Optional[_Union[RowDomain, str]] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("sampled", "slot", "generation", "consumed", "query_length", "pending", "histogram", "generated", "limit", "minimum", "stop_tokens", "status")
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    sampled: Operand
    slot: Operand
    generation: Operand
    consumed: Operand
    query_length: Operand
    pending: Operand
    histogram: Operand
    generated: Operand
    limit: Operand
    minimum: Operand
    stop_tokens: Operand
    status: Operand
    def __init__(self, sampled: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., generation: _Optional[_Union[Operand, _Mapping]] = ..., consumed: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., pending: _Optional[_Union[Operand, _Mapping]] = ..., histogram: _Optional[_Union[Operand, _Mapping]] = ..., generated: _Optional[_Union[Operand, _Mapping]] = ..., limit: _Optional[_Union[Operand, _Mapping]] = ..., minimum: _Optional[_Union[Operand, _Mapping]] = ..., stop_tokens: _Optional[_Union[Operand, _Mapping]] = ..., status: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("logits", "target", "output")
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    logits: Operand
    target: Operand
    output: Operand
    def __init__(self, logits: _Optional[_Union[Operand, _Mapping]] = ..., target: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class RecurrentScan(_message.Message):
    __slots__ = ("query", "key", "value", "gate", "rate", "bias", "strength_kind", "strength", "has_strength", "delta", "state", "state_row", "query_start", "query_length", "output", "heads", "key_heads", "key_columns", "value_columns", "scale", "ahead", "rows")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_KIND_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    HAS_STRENGTH_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_ROW_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    KEY_HEADS_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    VALUE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    query: Operand
    key: Operand
    value: Operand
    gate: Operand
    rate: int
    bias: int
    strength_kind: StrengthKind
    strength: Operand
    has_strength: bool
    delta: bool
    state: Operand
    state_row: Operand
    query_start: Operand
    query_length: Operand
    output: Operand
    heads: int
    key_heads: int
    key_columns: int
    value_columns: int
    scale: float
    ahead: bool
    rows: RowDomain
    def __init__(self, query: _Optional[_Union[Operand, _Mapping]] = ..., key: _Optional[_Union[Operand, _Mapping]] = ..., value: _Optional[_Union[Operand, _Mapping]] = ..., gate: _Optional[_Union[Operand, _Mapping]] = ..., rate: _Optional[int] = ..., bias: _Optional[int] = ..., strength_kind: _Optional[_Union[StrengthKind, str]] = ..., strength: _Optional[_Union[Operand, _Mapping]] = ..., has_strength: _Optional[bool] = ..., delta: _Optional[bool] = ..., state: _Optional[_Union[Operand, _Mapping]] = ..., state_row: _Optional[_Union[Operand, _Mapping]] = ..., query_start: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., heads: _Optional[int] = ..., key_heads: _Optional[int] = ..., key_columns: _Optional[int] = ..., value_columns: _Optional[int] = ..., scale: _Optional[float] = ..., ahead: _Optional[bool] = ..., rows: _Optional[_Union[RowDomain, str]] = ...) -> None: ...

class CausalConvolution(_message.Message):
    __slots__ = ("input", "output", "taps", "bias", "has_bias", "state", "state_row", "query_start", "query_length", "ahead", "rows")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    HAS_BIAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_ROW_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    input: Operand
    output: Operand
    taps: int
    bias: int
    has_bias: bool
    state: Operand
    state_row: Operand
    query_start: Operand
    query_length: Operand
    ahead: bool
    rows: RowDomain
    def __init__(self, input: _Optional[_Union[Operand, _Mapping]] = ..., output: _Optional[_Union[Operand, _Mapping]] = ..., taps: _Optional[int] = ..., bias: _Optional[int] = ..., has_bias: _Optional[bool] = ..., state: _Optional[_Union[Operand, _Mapping]] = ..., state_row: _Optional[_Union[Operand, _Mapping]] = ..., query_start: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., ahead: _Optional[bool] = ..., rows: _Optional[_Union[RowDomain, str]] = ...) -> None: ...

class CopyStateRows(_message.Message):
    __slots__ = ("source_row", "destination_row", "source", "destination", "rows")
    SOURCE_ROW_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_ROW_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    source_row: Operand
    destination_row: Operand
    source: Operand
    destination: Operand
    rows: int
    def __init__(self, source_row: _Optional[_Union[Operand, _Mapping]] = ..., destination_row: _Optional[_Union[Operand, _Mapping]] = ..., source: _Optional[_Union[Operand, _Mapping]] = ..., destination: _Optional[_Union[Operand, _Mapping]] = ..., rows: _Optional[int] = ...) -> None: ...

class CopyPartialPage(_message.Message):
    __slots__ = ("row", "slot", "consumed", "query_length", "table", "cache", "storage", "restore")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    row: Operand
    slot: Operand
    consumed: Operand
    query_length: Operand
    table: Operand
    cache: int
    storage: Operand
    restore: bool
    def __init__(self, row: _Optional[_Union[Operand, _Mapping]] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., consumed: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., table: _Optional[_Union[Operand, _Mapping]] = ..., cache: _Optional[int] = ..., storage: _Optional[_Union[Operand, _Mapping]] = ..., restore: _Optional[bool] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("step", "slot", "generation", "consumed", "query_start", "query_length", "position", "pending", "has_candidates", "candidate_tokens", "candidate_count", "candidate_generation", "candidate_endpoint", "rows", "drawn", "count", "has_state_row", "state_row", "drawn_state_row")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    HAS_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HAS_STATE_ROW_FIELD_NUMBER: _ClassVar[int]
    STATE_ROW_FIELD_NUMBER: _ClassVar[int]
    DRAWN_STATE_ROW_FIELD_NUMBER: _ClassVar[int]
    step: int
    slot: Operand
    generation: Operand
    consumed: Operand
    query_start: Operand
    query_length: Operand
    position: Operand
    pending: Operand
    has_candidates: bool
    candidate_tokens: Operand
    candidate_count: Operand
    candidate_generation: Operand
    candidate_endpoint: Operand
    rows: Operand
    drawn: Operand
    count: Operand
    has_state_row: bool
    state_row: Operand
    drawn_state_row: Operand
    def __init__(self, step: _Optional[int] = ..., slot: _Optional[_Union[Operand, _Mapping]] = ..., generation: _Optional[_Union[Operand, _Mapping]] = ..., consumed: _Optional[_Union[Operand, _Mapping]] = ..., query_start: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., position: _Optional[_Union[Operand, _Mapping]] = ..., pending: _Optional[_Union[Operand, _Mapping]] = ..., has_candidates: _Optional[bool] = ..., candidate_tokens: _Optional[_Union[Operand, _Mapping]] = ..., candidate_count: _Optional[_Union[Operand, _Mapping]] = ..., candidate_generation: _Optional[_Union[Operand, _Mapping]] = ..., candidate_endpoint: _Optional[_Union[Operand, _Mapping]] = ..., rows: _Optional[_Union[Operand, _Mapping]] = ..., drawn: _Optional[_Union[Operand, _Mapping]] = ..., count: _Optional[_Union[Operand, _Mapping]] = ..., has_state_row: _Optional[bool] = ..., state_row: _Optional[_Union[Operand, _Mapping]] = ..., drawn_state_row: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class Verify(_message.Message):
    __slots__ = ("rows", "query_start", "query_length", "masks", "has_masks")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    HAS_MASKS_FIELD_NUMBER: _ClassVar[int]
    rows: Operand
    query_start: Operand
    query_length: Operand
    masks: Operand
    has_masks: bool
    def __init__(self, rows: _Optional[_Union[Operand, _Mapping]] = ..., query_start: _Optional[_Union[Operand, _Mapping]] = ..., query_length: _Optional[_Union[Operand, _Mapping]] = ..., masks: _Optional[_Union[Operand, _Mapping]] = ..., has_masks: _Optional[bool] = ...) -> None: ...

class CommitStateRows(_message.Message):
    __slots__ = ("state_row", "state")
    STATE_ROW_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    state_row: Operand
    state: Operand
    def __init__(self, state_row: _Optional[_Union[Operand, _Mapping]] = ..., state: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class MarkTime(_message.Message):
    __slots__ = ("output",)
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    output: Operand
    def __init__(self, output: _Optional[_Union[Operand, _Mapping]] = ...) -> None: ...

class ChooseFastest(_message.Message):
    __slots__ = ("marks", "best", "selected", "first")
    MARKS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    marks: Operand
    best: Operand
    selected: Operand
    first: int
    def __init__(self, marks: _Optional[_Union[Operand, _Mapping]] = ..., best: _Optional[_Union[Operand, _Mapping]] = ..., selected: _Optional[_Union[Operand, _Mapping]] = ..., first: _Optional[int] = ...) -> None: ...

class HostOperation(_message.Message):
    __slots__ = ("scatter_rows", "fill_rows", "update_page_table", "copy_pages", "select_tokens", "embed", "normalise", "product", "rotary", "cache_write", "attention", "activation", "select_rows", "adjust_logits", "sample", "advance", "score", "recurrent_scan", "causal_convolution", "copy_state_rows", "copy_partial_page", "draft", "verify", "commit_state_rows", "mark_time", "choose_fastest")
    SCATTER_ROWS_FIELD_NUMBER: _ClassVar[int]
    FILL_ROWS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_PAGE_TABLE_FIELD_NUMBER: _ClassVar[int]
    COPY_PAGES_FIELD_NUMBER: _ClassVar[int]
    SELECT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    ROTARY_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    SELECT_ROWS_FIELD_NUMBER: _ClassVar[int]
    ADJUST_LOGITS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RECURRENT_SCAN_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_CONVOLUTION_FIELD_NUMBER: _ClassVar[int]
    COPY_STATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    COPY_PARTIAL_PAGE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    MARK_TIME_FIELD_NUMBER: _ClassVar[int]
    CHOOSE_FASTEST_FIELD_NUMBER: _ClassVar[int]
    scatter_rows: ScatterRows
    fill_rows: FillRows
    update_page_table: UpdatePageTable
    copy_pages: CopyPages
    select_tokens: SelectTokens
    embed: Embed
    normalise: Normalise
    product: Product
    rotary: Rotary
    cache_write: CacheWrite
    attention: Attention
    activation: Activation
    select_rows: SelectRows
    adjust_logits: AdjustLogits
    sample: Sample
    advance: Advance
    score: Score
    recurrent_scan: RecurrentScan
    causal_convolution: CausalConvolution
    copy_state_rows: CopyStateRows
    copy_partial_page: CopyPartialPage
    draft: Draft
    verify: Verify
    commit_state_rows: CommitStateRows
    mark_time: MarkTime
    choose_fastest: ChooseFastest
    def __init__(self, scatter_rows: _Optional[_Union[ScatterRows, _Mapping]] = ..., fill_rows: _Optional[_Union[FillRows, _Mapping]] = ..., update_page_table: _Optional[_Union[UpdatePageTable, _Mapping]] = ..., copy_pages: _Optional[_Union[CopyPages, _Mapping]] = ..., select_tokens: _Optional[_Union[SelectTokens, _Mapping]] = ..., embed: _Optional[_Union[Embed, _Mapping]] = ..., normalise: _Optional[_Union[Normalise, _Mapping]] = ..., product: _Optional[_Union[Product, _Mapping]] = ..., rotary: _Optional[_Union[Rotary, _Mapping]] = ..., cache_write: _Optional[_Union[CacheWrite, _Mapping]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ..., activation: _Optional[_Union[Activation, _Mapping]] = ..., select_rows: _Optional[_Union[SelectRows, _Mapping]] = ..., adjust_logits: _Optional[_Union[AdjustLogits, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ..., advance: _Optional[_Union[Advance, _Mapping]] = ..., score: _Optional[_Union[Score, _Mapping]] = ..., recurrent_scan: _Optional[_Union[RecurrentScan, _Mapping]] = ..., causal_convolution: _Optional[_Union[CausalConvolution, _Mapping]] = ..., copy_state_rows: _Optional[_Union[CopyStateRows, _Mapping]] = ..., copy_partial_page: _Optional[_Union[CopyPartialPage, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., verify: _Optional[_Union[Verify, _Mapping]] = ..., commit_state_rows: _Optional[_Union[CommitStateRows, _Mapping]] = ..., mark_time: _Optional[_Union[MarkTime, _Mapping]] = ..., choose_fastest: _Optional[_Union[ChooseFastest, _Mapping]] = ...) -> None: ...

class HostBody(_message.Message):
    __slots__ = ("operations",)
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[HostOperation]
    def __init__(self, operations: _Optional[_Iterable[_Union[HostOperation, _Mapping]]] = ...) -> None: ...

class CudaModule(_message.Message):
    __slots__ = ("resource_id", "name", "architecture", "cubin", "functions")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CUBIN_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    name: str
    architecture: int
    cubin: bytes
    functions: _containers.RepeatedCompositeFieldContainer[CudaFunction]
    def __init__(self, resource_id: _Optional[str] = ..., name: _Optional[str] = ..., architecture: _Optional[int] = ..., cubin: _Optional[bytes] = ..., functions: _Optional[_Iterable[_Union[CudaFunction, _Mapping]]] = ...) -> None: ...

class CudaFunction(_message.Message):
    __slots__ = ("entry", "threads", "constants", "parameters")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    entry: str
    threads: int
    constants: _containers.RepeatedCompositeFieldContainer[CudaConstant]
    parameters: _containers.RepeatedCompositeFieldContainer[CudaParameter]
    def __init__(self, entry: _Optional[str] = ..., threads: _Optional[int] = ..., constants: _Optional[_Iterable[_Union[CudaConstant, _Mapping]]] = ..., parameters: _Optional[_Iterable[_Union[CudaParameter, _Mapping]]] = ...) -> None: ...

class CudaConstant(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class CudaParameter(_message.Message):
    __slots__ = ("name", "kind", "dtype", "alignment", "shape", "count_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: CudaParameterKind
    dtype: DataType
    alignment: int
    shape: _containers.RepeatedCompositeFieldContainer[CudaAxis]
    count_max: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[CudaParameterKind, str]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., alignment: _Optional[int] = ..., shape: _Optional[_Iterable[_Union[CudaAxis, _Mapping]]] = ..., count_max: _Optional[str] = ...) -> None: ...

class CudaAxis(_message.Message):
    __slots__ = ("factors", "multiplier")
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    factors: _containers.RepeatedScalarFieldContainer[str]
    multiplier: int
    def __init__(self, factors: _Optional[_Iterable[str]] = ..., multiplier: _Optional[int] = ...) -> None: ...

class CudaArgument(_message.Message):
    __slots__ = ("address", "word", "words", "real", "live", "extent", "executor_word", "row_bytes")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_WORD_FIELD_NUMBER: _ClassVar[int]
    ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    address: CudaAddress
    word: int
    words: int
    real: float
    live: LiveCount
    extent: Extent
    executor_word: ExecutorWord
    row_bytes: int
    def __init__(self, address: _Optional[_Union[CudaAddress, _Mapping]] = ..., word: _Optional[int] = ..., words: _Optional[int] = ..., real: _Optional[float] = ..., live: _Optional[_Union[LiveCount, str]] = ..., extent: _Optional[_Union[Extent, _Mapping]] = ..., executor_word: _Optional[_Union[ExecutorWord, str]] = ..., row_bytes: _Optional[int] = ...) -> None: ...

class CudaAddress(_message.Message):
    __slots__ = ("buffer", "offset", "alignment", "use")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    alignment: int
    use: AddressUse
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., alignment: _Optional[int] = ..., use: _Optional[_Union[AddressUse, str]] = ...) -> None: ...

class CudaKernel(_message.Message):
    __slots__ = ("module", "entry", "grid", "block", "shared_nbytes", "arguments", "function")
    MODULE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHARED_NBYTES_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    module: int
    entry: str
    grid: _containers.RepeatedScalarFieldContainer[int]
    block: _containers.RepeatedScalarFieldContainer[int]
    shared_nbytes: int
    arguments: _containers.RepeatedCompositeFieldContainer[CudaArgument]
    function: int
    def __init__(self, module: _Optional[int] = ..., entry: _Optional[str] = ..., grid: _Optional[_Iterable[int]] = ..., block: _Optional[_Iterable[int]] = ..., shared_nbytes: _Optional[int] = ..., arguments: _Optional[_Iterable[_Union[CudaArgument, _Mapping]]] = ..., function: _Optional[int] = ...) -> None: ...

class CudaCopy(_message.Message):
    __slots__ = ("source", "destination", "nbytes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    source: CudaAddress
    destination: CudaAddress
    nbytes: int
    def __init__(self, source: _Optional[_Union[CudaAddress, _Mapping]] = ..., destination: _Optional[_Union[CudaAddress, _Mapping]] = ..., nbytes: _Optional[int] = ...) -> None: ...

class CudaFill(_message.Message):
    __slots__ = ("destination", "nbytes", "byte")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    BYTE_FIELD_NUMBER: _ClassVar[int]
    destination: CudaAddress
    nbytes: int
    byte: int
    def __init__(self, destination: _Optional[_Union[CudaAddress, _Mapping]] = ..., nbytes: _Optional[int] = ..., byte: _Optional[int] = ...) -> None: ...

class CudaIngest(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buffers: _Optional[_Iterable[int]] = ...) -> None: ...

class CudaChoice(_message.Message):
    __slots__ = ("buffer", "element", "value")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    element: int
    value: int
    def __init__(self, buffer: _Optional[int] = ..., element: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...

class CudaNode(_message.Message):
    __slots__ = ("kernel", "copy", "fill", "ingest", "choice")
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    INGEST_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    kernel: CudaKernel
    copy: CudaCopy
    fill: CudaFill
    ingest: CudaIngest
    choice: CudaChoice
    def __init__(self, kernel: _Optional[_Union[CudaKernel, _Mapping]] = ..., copy: _Optional[_Union[CudaCopy, _Mapping]] = ..., fill: _Optional[_Union[CudaFill, _Mapping]] = ..., ingest: _Optional[_Union[CudaIngest, _Mapping]] = ..., choice: _Optional[_Union[CudaChoice, _Mapping]] = ...) -> None: ...

class CudaEdge(_message.Message):
    __slots__ = ("before", "after", "overlap")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    before: int
    after: int
    overlap: bool
    def __init__(self, before: _Optional[int] = ..., after: _Optional[int] = ..., overlap: _Optional[bool] = ...) -> None: ...

class CudaBody(_message.Message):
    __slots__ = ("nodes", "edges", "shared_percent")
    NODES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    SHARED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[CudaNode]
    edges: _containers.RepeatedCompositeFieldContainer[CudaEdge]
    shared_percent: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[CudaNode, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[CudaEdge, _Mapping]]] = ..., shared_percent: _Optional[int] = ...) -> None: ...

class TunedInput(_message.Message):
    __slots__ = ("buffer", "producer")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    producer: str
    def __init__(self, buffer: _Optional[int] = ..., producer: _Optional[str] = ...) -> None: ...

class TuningGraph(_message.Message):
    __slots__ = ("name", "body", "cuda_body", "outputs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    CUDA_BODY_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    body: int
    cuda_body: int
    outputs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., body: _Optional[int] = ..., cuda_body: _Optional[int] = ..., outputs: _Optional[_Iterable[int]] = ...) -> None: ...

class Transport(_message.Message):
    __slots__ = ("frame_index", "submission_sequence", "frames")
    FRAME_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frame_index: int
    submission_sequence: int
    frames: int
    def __init__(self, frame_index: _Optional[int] = ..., submission_sequence: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class CompletionLayout(_message.Message):
    __slots__ = ("token_width", "top_logprobs")
    TOKEN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_width: int
    top_logprobs: int
    def __init__(self, token_width: _Optional[int] = ..., top_logprobs: _Optional[int] = ...) -> None: ...

class StagingTable(_message.Message):
    __slots__ = ("name", "buffer", "frames", "consumer_ranks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_RANKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    buffer: int
    frames: int
    consumer_ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., buffer: _Optional[int] = ..., frames: _Optional[int] = ..., consumer_ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class RankResources(_message.Message):
    __slots__ = ("rank", "weights", "modules")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    weights: _containers.RepeatedScalarFieldContainer[str]
    modules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[int] = ..., weights: _Optional[_Iterable[str]] = ..., modules: _Optional[_Iterable[str]] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("name", "operation", "batch_capacity", "draft_tokens", "token_capacity", "packed_token_capacity", "body", "cuda_body", "confidence_width", "tuned", "lane_limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BATCH_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    PACKED_TOKEN_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    CUDA_BODY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    TUNED_FIELD_NUMBER: _ClassVar[int]
    LANE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    operation: Operation
    batch_capacity: int
    draft_tokens: int
    token_capacity: int
    packed_token_capacity: int
    body: int
    cuda_body: int
    confidence_width: int
    tuned: _containers.RepeatedCompositeFieldContainer[TunedInput]
    lane_limit: int
    def __init__(self, name: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., batch_capacity: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., token_capacity: _Optional[int] = ..., packed_token_capacity: _Optional[int] = ..., body: _Optional[int] = ..., cuda_body: _Optional[int] = ..., confidence_width: _Optional[int] = ..., tuned: _Optional[_Iterable[_Union[TunedInput, _Mapping]]] = ..., lane_limit: _Optional[int] = ...) -> None: ...

class ExecutionManifest(_message.Message):
    __slots__ = ("abi_version", "buffers", "host_bodies", "programs", "live_packed", "live_lanes", "live_sampled", "modules", "cuda_bodies", "tuning", "transport", "completion", "tables", "ranks", "proposal_confidence", "live_drawn")
    ABI_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    HOST_BODIES_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    LIVE_PACKED_FIELD_NUMBER: _ClassVar[int]
    LIVE_LANES_FIELD_NUMBER: _ClassVar[int]
    LIVE_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    CUDA_BODIES_FIELD_NUMBER: _ClassVar[int]
    TUNING_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    LIVE_DRAWN_FIELD_NUMBER: _ClassVar[int]
    abi_version: int
    buffers: _containers.RepeatedCompositeFieldContainer[Buffer]
    host_bodies: _containers.RepeatedCompositeFieldContainer[HostBody]
    programs: _containers.RepeatedCompositeFieldContainer[Program]
    live_packed: int
    live_lanes: int
    live_sampled: int
    modules: _containers.RepeatedCompositeFieldContainer[CudaModule]
    cuda_bodies: _containers.RepeatedCompositeFieldContainer[CudaBody]
    tuning: _containers.RepeatedCompositeFieldContainer[TuningGraph]
    transport: Transport
    completion: CompletionLayout
    tables: _containers.RepeatedCompositeFieldContainer[StagingTable]
    ranks: _containers.RepeatedCompositeFieldContainer[RankResources]
    proposal_confidence: int
    live_drawn: int
    def __init__(self, abi_version: _Optional[int] = ..., buffers: _Optional[_Iterable[_Union[Buffer, _Mapping]]] = ..., host_bodies: _Optional[_Iterable[_Union[HostBody, _Mapping]]] = ..., programs: _Optional[_Iterable[_Union[Program, _Mapping]]] = ..., live_packed: _Optional[int] = ..., live_lanes: _Optional[int] = ..., live_sampled: _Optional[int] = ..., modules: _Optional[_Iterable[_Union[CudaModule, _Mapping]]] = ..., cuda_bodies: _Optional[_Iterable[_Union[CudaBody, _Mapping]]] = ..., tuning: _Optional[_Iterable[_Union[TuningGraph, _Mapping]]] = ..., transport: _Optional[_Union[Transport, _Mapping]] = ..., completion: _Optional[_Union[CompletionLayout, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[StagingTable, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankResources, _Mapping]]] = ..., proposal_confidence: _Optional[int] = ..., live_drawn: _Optional[int] = ...) -> None: ...

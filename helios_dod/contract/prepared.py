"""What the engine reads of a core's contract: frozen, validated, nothing of protobuf.

Integers that stand for a choice (operation, source, indexing, kind) are those of proto/*.proto.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PreparedExtent:
    """An axis: `multiplier`, times the value of proto Symbol number `symbol` unless that is 0."""

    symbol: int
    multiplier: int


@dataclass(frozen=True)
class PreparedBinding:
    """A value that shared packing writes into a STAGING buffer."""

    buffer: int  # index into ExecutionManifest.buffers
    source: int
    indexing: int
    offset: int
    padding: int
    constant: int
    rows: PreparedExtent  # axis 0 of the buffer
    words: int  # 4-byte words of one row


@dataclass(frozen=True)
class PreparedState:
    """Bytes of each row of a persistent buffer that a program reads (1), writes (2) or both (3)."""

    buffer: int
    offset: int
    row_stride: int
    extent: int
    access: int


@dataclass(frozen=True)
class PreparedProgram:
    """A captured program, at the same index as in ExecutionManifest.programs."""

    name: str
    operation: int
    batch: int  # B
    drafts: int  # D
    width: int  # W
    packed: int  # P
    confidence_width: int
    bindings: tuple[PreparedBinding, ...]
    states: tuple[PreparedState, ...]
    host_pending: bool  # the pending token is bound by the host
    device_pending: PreparedState | None
    histogram: bool  # binds the prompt histogram
    state_rows_per_request: int


@dataclass(frozen=True)
class PreparedRegion:
    """One attention-history region: its cache planes (buffer indices) and how they are paged."""

    kind: int
    planes: tuple[int, ...]
    compression_ratio: int  # tokens of one record
    window_tokens: int  # 0: full history
    page_group: int


@dataclass(frozen=True)
class PreparedTable:
    """A device page table, shape [SLOTS, PAGES_PER_REQUEST]."""

    buffer: int
    page_offset: int
    page_group: int


@dataclass(frozen=True)
class PreparedCache:
    """How attention history is stored."""

    page_tokens: int
    page_bytes: int  # of one logical page, over all planes
    regions: tuple[PreparedRegion, ...]
    tables: tuple[PreparedTable, ...]
    cursor_lag_tokens: int


@dataclass(frozen=True)
class PreparedFrontend:
    """Syntax and token ids that the frontend needs."""

    tool_syntax: int
    reasoning_syntax: int
    text_decoding: int
    strip_leading_space: bool
    eos_tokens: tuple[int, ...]
    bos_token: int
    add_bos: bool
    template_tokens: tuple[tuple[str, str], ...]  # sorted by name


@dataclass(frozen=True)
class PreparedSampling:
    """The core's own defaults; None where it declares nothing."""

    temperature: float | None
    top_p: float | None
    min_p: float | None
    top_k: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None


@dataclass(frozen=True)
class PreparedContract:
    """Everything that a core declares about serving it."""

    version: int
    served_id: str
    aliases: tuple[str, ...]
    cache_identity: str
    context_tokens: int
    prefill_tokens: int
    pages: int
    snapshots: int
    concurrency: int
    vocabulary: int
    input_vocabulary: int
    sampling: PreparedSampling
    cache: PreparedCache
    programs: tuple[PreparedProgram, ...]
    completions: tuple[tuple[int, int], ...]  # (proto CompletionField, buffer), by field
    frontend: PreparedFrontend

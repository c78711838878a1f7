"""What the engine reads of a core's contract: frozen, validated, nothing of protobuf.

Integers that stand for a choice (operation, source, indexing, kind) are those of proto/*.proto.
"""

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

RECURRENT, CONTINUATION = 4, 5  # proto HistoryKind


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
    tensor: str = ""  # source IMAGE_TENSOR: a named output of the image layout
    table: int = 0  # sources PAGE_UPDATES and PAGE_UPDATE_COUNT: which page-table view


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
    masked: bool  # binds grammar masks for every token that a lane may emit
    state_rows_per_request: int
    lane_limit: int = 1  # tokens of one lane at most, at most min(D + 1, W)
    cursor: bool = False  # it reads the committed draft cursor, so its completions report one
    device_body: bool = False  # CUDA nodes instead of host operations
    tuned: tuple[tuple[int, str], ...] = ()  # (buffer, producer in the tuning catalog)
    resources: tuple[str, ...] = ()  # weight resources that it reads
    unbound: tuple[str, ...] = ()  # STAGING that it reads of the transport and of staging tables


@dataclass(frozen=True)
class PreparedTuning:
    """A graph that runs once at start and fills persistent buffers."""

    name: str
    outputs: tuple[int, ...]
    device_body: bool


@dataclass(frozen=True)
class PreparedVision:
    """Capacities of image features."""

    feature_slots: int
    features_per_window: int
    patches_per_feature: int
    patch_capacities: tuple[int, ...]  # ascending


@dataclass(frozen=True)
class PreparedStagingTable:
    """A host table staged in turn into `frames` copies; a rank's consumer retires each."""

    name: str
    buffer: int
    frames: int
    consumer_ranks: tuple[int, ...]


@dataclass(frozen=True)
class PreparedRank:
    """What one rank loads."""

    rank: int
    weights: tuple[str, ...]  # weight resource ids
    modules: tuple[str, ...]  # device-code resource ids


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
    page_bytes: int  # of one logical page of page group 0, over all its planes
    windowed_page_bytes: int  # of one of page group 1
    snapshot_row_bytes: int  # of one snapshot row, over all its buffers
    regions: tuple[PreparedRegion, ...]
    tables: tuple[PreparedTable, ...]
    cursor_lag_tokens: int
    cursor_state: PreparedState | None = None  # committed draft cursor; None: completions say -1

    @property
    def stateful(self) -> bool:
        """Does some history go on from a snapshot only, so that pages alone do not continue a
        text?"""
        return any(region.kind in (RECURRENT, CONTINUATION) or region.page_group > 0
                   for region in self.regions)

    @property
    def view_pages(self) -> int:
        """Pages by which the furthest page-table view of group 0 is shifted."""
        return max((table.page_offset for table in self.tables if table.page_group == 0), default=0)

    @property
    def window_tokens(self) -> int:
        """The widest window of page group 1, 0 without that group."""
        return max((region.window_tokens for region in self.regions if region.page_group == 1),
                   default=0)

    @property
    def partial(self) -> bool:
        """Can state inside a page be kept: in continuation storage, or because nothing is paged?"""
        kinds = {region.kind for region in self.regions}
        return CONTINUATION in kinds or kinds == {RECURRENT}


class PreparedSyntax:
    """A message of syntax data as plain values: fields by attribute, equal and hashed by content.

    `WhichOneof` and `HasField` answer as the message would, for frontend/output/wire.py."""

    __slots__ = ("_choices", "_present", "_values")

    def __init__(self, values: dict[str, Any], present: frozenset[str],
                 choices: dict[str, str | None]) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_present", present)
        object.__setattr__(self, "_choices", choices)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedSyntax, (self._values, self._present, self._choices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PreparedSyntax) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (tuple(self._values.items()), self._present)

    def plain(self) -> dict[str, Any]:
        """What was given, as JSON values: absent sub-messages and unchosen kinds left out."""
        found: dict[str, Any] = {}
        for name, value in self._values.items():
            if isinstance(value, PreparedSyntax):
                if name in self._present:
                    found[name] = value.plain()
            elif isinstance(value, tuple):
                found[name] = [part.plain() if isinstance(part, PreparedSyntax) else part
                               for part in value]
            else:
                found[name] = value
        return found

    def HasField(self, name: str) -> bool:
        """True if a sub-message is there."""
        return name in self._present

    def WhichOneof(self, name: str) -> str | None:
        """The chosen field of a choice."""
        return self._choices[name]


@dataclass(frozen=True)
class PreparedBoundary:
    """Where a rendered prompt may be cut so that its prefix is shared."""

    roles: tuple[str, ...]
    constraint: str  # the name of its RenderConstraint, in small letters


@dataclass(frozen=True)
class PreparedImage:
    """How pixels become patches, and patches tokens and tensors."""

    preparation: str  # these four: names of their enums, in small letters
    layout: str
    resize_filter: str
    patch_order: str
    feature_tokens: tuple[int, ...]
    atomic_spans: tuple[tuple[int, int], ...]  # (opening token, closing token)
    separator_token: int | None
    placeholder_token: int  # what the template writes for an image
    parts_before: tuple[int | str, ...]  # laid around the features: token ids and texts
    parts_after: tuple[int | str, ...]
    patch: int
    merged_side: int  # patches along each side of a feature
    temporal_patch: int
    area_frames: int
    pixels_min: int
    pixels_max: int
    side_min: int
    aspect_max: int
    patches_max: int
    side_patches_max: int
    pad_value: int
    fixed_features: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    tensors: tuple[str, ...]


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
    output: PreparedSyntax | None = None  # OutputSyntax; None: all output is text
    prefix_boundaries: tuple[PreparedBoundary, ...] = ()
    image: PreparedImage | None = None


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
    vision: PreparedVision | None = None
    speculative_widths: tuple[int, ...] = ()
    tuning: tuple[PreparedTuning, ...] = ()
    staging_tables: tuple[PreparedStagingTable, ...] = ()
    ranks: tuple[PreparedRank, ...] = ()  # empty: one rank loads everything
    proposal_confidence: int | None = None  # buffer

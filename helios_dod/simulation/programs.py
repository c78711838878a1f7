"""A manifest and contract for the simulated executor: programs without bodies, as a recipe emits
them."""

from dataclasses import dataclass

from helios_dod.contract.states import derive_views
from helios_dod.contract.uses import BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as manifest
from helios_dod.limits import BIAS_MAX, EOS_MAX, MASK_BITS
from helios_dod.simulation.kinds import PLAIN, Kinds

# (name, source, symbol of the rows, words a row, dtype, indexing)
SCALARS = (
    ("live_lanes", contract.LIVE_LANES), ("live_packed", contract.LIVE_PACKED),
    ("live_sampled", contract.LIVE_SAMPLED), ("page_update_count", contract.PAGE_UPDATE_COUNT),
)
LANES = (
    ("slot", contract.SLOT), ("generation", contract.GENERATION), ("consumed", contract.CONSUMED),
    ("query_start", contract.QUERY_START), ("query_length", contract.QUERY_LENGTH),
    ("sample_row", contract.SAMPLE_ROW),
)
PACKED = (("token", contract.TOKEN), ("position", contract.POSITION), ("lane", contract.LANE))
ADMISSION = (
    ("seed", contract.SEED, 2), ("temperature", contract.TEMPERATURE, 1),
    ("top_p", contract.TOP_P, 1), ("min_p", contract.MIN_P, 1), ("top_k", contract.TOP_K, 1),
    ("repetition", contract.REPETITION_PENALTY, 1), ("presence", contract.PRESENCE_PENALTY, 1),
    ("frequency", contract.FREQUENCY_PENALTY, 1), ("limit", contract.OUTPUT_LIMIT, 1),
    ("generated", contract.GENERATED, 1),
    ("minimum", contract.OUTPUT_MINIMUM, 1), ("stop_tokens", contract.STOP_TOKENS, EOS_MAX),
    ("top_count", contract.TOP_LOGPROBS, 1), ("bias_count", contract.BIAS_COUNT, 1),
    ("bias_tokens", contract.BIAS_TOKENS, BIAS_MAX),
    ("bias_values", contract.BIAS_VALUES, BIAS_MAX),
)
ADMISSION_ROWS = 16
BODIES: dict[int, int] = {manifest.INITIALIZE: 0, manifest.RESTORE: 4}


CANDIDATES = (
    ("candidate_count", contract.CANDIDATE_COUNT),
    ("candidate_generation", contract.CANDIDATE_GENERATION),
    ("candidate_endpoint", contract.CANDIDATE_ENDPOINT),
)


@dataclass(frozen=True)
class Round:
    """A speculative program of the simulated core: its extents, B apart, and what it is given."""

    drafts: int  # D
    width: int  # W
    packed: int  # P for all lanes
    prefix: bool = False  # ceilings, under which it allocates; else exact lengths
    confidence: bool = False
    history: bool = False  # copied tokens
    staged: bool = False  # endpoints from the host; else its own
    masks: int = 0  # words of a grammar mask, one a token, or 0


def rounds_of(lanes: int, width: int, masks: int = 0) -> tuple[Round, ...]:
    """One of each sort: rectangular and short, exact and allocated, with and without copies; what
    takes copies takes masks of so many words, too."""
    short = lanes + max(lanes * (width - 1) // 2, 1)
    return (
        Round(0, 1, lanes), Round(1, 2, 2 * lanes),
        Round(width - 1, width, short, prefix=True, confidence=True),
        Round(width - 1, width, short, history=True, staged=True, masks=masks),
    )


class Builder:
    """Collects staged buffers by name while programs bind them."""

    def __init__(self, admitted: int, kinds: Kinds) -> None:
        self.admitted = admitted  # requests that one initialisation admits at most
        self.kinds = kinds
        self.manifest = manifest.ExecutionManifest(abi_version=6)
        self.model = contract.ModelContract(version=3)
        self.index: dict[str, int] = {}

    def bodies(self) -> None:
        """The least that a body may hold; the simulated device runs its own hashes instead.

        Body 0 (initialize) clears the pending token; the others update the page table and go on
        from the pending token, that of the device (1; 3 in rounds, which place their own rows) or
        the host's (2), or do no more (4). Each graph lists what its body does to state."""
        at = self.index
        tokens = self.buffer("tokens", manifest.SCRATCH, manifest.I32, [(manifest.PACKED, 1)])
        fill = self.manifest.host_bodies.add().operations.add().fill_rows
        fill.slot.buffer, fill.destination.buffer = at["slot"], at["pending"]
        for source in (tokens, at["pending_token"], at["pending"], None):
            body = self.manifest.host_bodies.add()
            update = body.operations.add().update_page_table
            update.count.buffer, update.updates.buffer = at["page_update_count"], at["page_updates"]
            update.table.buffer = at["page_table"]
            if source is None:
                continue
            if source == tokens:
                select = body.operations.add().select_tokens
                select.pending.buffer, select.slot.buffer = at["pending"], at["slot"]
                select.lane.buffer, select.output.buffer = at["lane"], tokens
            kept = [(source, at["pending"])]
            if source == at["pending"] and "cursor" in at:
                kept.append((at["cursor"], at["cursor"]))
            for taken, destination in kept:
                keep = body.operations.add().scatter_rows
                keep.source.buffer, keep.slot.buffer = taken, at["slot"]
                keep.destination.buffer = destination
        uses = BodyUses(self.manifest)
        for program, graph in zip(self.manifest.programs, self.model.graphs, strict=True):
            graph.states.extend(derive_views(self.manifest, uses.of(program)))

    def buffer(self, name: str, kind: int, dtype: int, shape: list[tuple[int, int]],
               completion: int = 0) -> int:
        """Index of a buffer, declared at its first use. shape: (symbol, multiplier) an axis."""
        if name not in self.index:
            self.index[name] = len(self.manifest.buffers)
            added = self.manifest.buffers.add(name=name, kind=kind, dtype=dtype,
                                              completion=completion)
            for symbol, multiplier in shape:
                added.shape.add(symbol=symbol, multiplier=multiplier)
        return self.index[name]

    def bind(self, graph: contract.GraphContract, name: str, source: int, symbol: int, words: int,
             indexing: int, rows: int = 1) -> None:
        """One value binding of a program, and its staging buffer of rows * symbol rows."""
        dtype = manifest.U64 if source == contract.SEED else manifest.I32
        if source in (contract.GRAMMAR_MASK, contract.CANDIDATE_MASKS):
            dtype = manifest.U32
        if source in (contract.TEMPERATURE, contract.TOP_P, contract.MIN_P, contract.BIAS_VALUES,
                      contract.REPETITION_PENALTY, contract.PRESENCE_PENALTY,
                      contract.FREQUENCY_PENALTY):
            dtype = manifest.F32
        columns = words // 2 if dtype == manifest.U64 else words
        shape = [(symbol, rows)] if columns == 1 else [(symbol, rows), (0, columns)]
        graph.bindings.add(
            buffer=self.buffer(name, manifest.STAGING, dtype, shape), source=source,
            indexing=indexing)

    def program(self, name: str, operation: int, batch: int, packed: int,
                host_pending: bool = False, histogram: int = 0, masks: int = 0) -> None:
        """One variant with the bindings that its operation needs. histogram: vocabulary, or 0.
        masks: words of a grammar mask, or 0."""
        graph = self.graph(name, operation, batch, packed, host_pending=host_pending)
        lane_columns = LANES[:2] if operation == manifest.INITIALIZE else LANES
        for title, source in lane_columns:
            self.bind(graph, title, source, manifest.LANES, 1, contract.SUBMISSION_ROW)
        for title, rows in self.state_columns(operation):
            self.bind(graph, title, rows, manifest.LANES, 1, contract.ACTIVE_ROW)
        if operation == manifest.INITIALIZE:
            for title, source, words in ADMISSION:
                self.bind(graph, title, source, 0, words, contract.ACTIVE_ROW, self.admitted)
            if histogram:
                self.bind(graph, "histogram", contract.PROMPT_HISTOGRAM, 0, histogram,
                          contract.ACTIVE_ROW)
            return
        if masks:
            self.bind(graph, "mask", contract.GRAMMAR_MASK, manifest.LANES, masks,
                      contract.SUBMISSION_ROW)
        self.bind(graph, "page_updates", contract.PAGE_UPDATES, manifest.UPDATES, 3,
                  contract.SCALAR)
        self.bind_views(graph)
        if operation == manifest.RESTORE:
            if self.kinds.shift:
                self.bind(graph, "page_copy_count", contract.PAGE_COPY_COUNT, 0, 1, contract.SCALAR)
                self.bind(graph, "page_copies", contract.PAGE_COPIES, manifest.UPDATES, 2,
                          contract.SCALAR)
            return
        for title, source in PACKED[1:] if operation == manifest.DECODE else PACKED:
            self.bind(graph, title, source, manifest.PACKED, 1, contract.PACKED_TOKEN)
        if operation == manifest.SCORED_PREFILL:
            self.bind(graph, "target_token", contract.TARGET_TOKEN, manifest.PACKED, 1,
                      contract.PACKED_TOKEN)
        if host_pending:
            self.bind(graph, "pending_token", contract.PENDING_TOKEN, manifest.LANES, 1,
                      contract.ACTIVE_ROW)
            graph.host_pending_binding = len(graph.bindings) - 1
        else:
            graph.device_pending.CopyFrom(self.row_view("pending"))

    def graph(self, name: str, operation: int, batch: int, packed: int,
              spoken: Round | None = None, host_pending: bool = False) -> contract.GraphContract:
        """A program and its contract, with the scalars that it needs."""
        program = self.manifest.programs.add(
            name=name, operation=operation, batch_capacity=batch, token_capacity=1,
            packed_token_capacity=packed,
            body=BODIES.get(operation, 2 if host_pending else 1))
        if spoken is not None:
            program.body = 3
            program.draft_tokens, program.token_capacity = spoken.drafts, spoken.width
            program.confidence_width = spoken.drafts if spoken.confidence else 0
        rows = self.kinds.state_rows
        if spoken is not None and self.kinds.stateful:
            rows += rows * spoken.width  # the state behind each target row, until one is committed
        graph = self.model.graphs.add(program=name, operation=operation,
                                      state_rows_per_request=rows)
        for title, source in SCALARS[:3] if operation == manifest.INITIALIZE else SCALARS:
            self.bind(graph, title, source, 0, 1, contract.SCALAR)
        return graph

    def round(self, name: str, batch: int, packed: int, spoken: Round) -> None:
        """A speculative variant."""
        graph = self.graph(name, manifest.SPECULATIVE, batch, packed, spoken)
        lanes = [("slot", contract.SLOT), ("generation", contract.GENERATION)]
        if spoken.prefix:
            lanes.append(("prefix_limit", contract.SPECULATIVE_PREFIX_LIMIT))
        else:
            lanes.append(("query_length", contract.QUERY_LENGTH))
        if spoken.staged:
            lanes.append(("consumed", contract.CONSUMED))
        if spoken.history:
            lanes.extend(CANDIDATES)
            self.bind(graph, f"candidate_tokens_{spoken.drafts}", contract.CANDIDATE_TOKENS,
                      manifest.LANES, spoken.drafts, contract.SUBMISSION_ROW)
        for title, source in lanes:
            self.bind(graph, title, source, manifest.LANES, 1, contract.SUBMISSION_ROW)
        for title, rows in self.state_columns(manifest.SPECULATIVE):
            self.bind(graph, title, rows, manifest.LANES, 1, contract.ACTIVE_ROW)
        self.bind_views(graph)
        if spoken.masks:
            self.bind(graph, f"candidate_masks_{spoken.width}", contract.CANDIDATE_MASKS,
                      manifest.LANES, spoken.width * spoken.masks, contract.SUBMISSION_ROW)
        self.bind(graph, "page_updates", contract.PAGE_UPDATES, manifest.UPDATES, 3,
                  contract.SCALAR)
        if spoken.confidence:
            self.manifest.proposal_confidence = self.buffer(
                "confidence", manifest.STATE, manifest.F32,
                [(0, 2), (manifest.SLOTS, 1), (0, spoken.drafts)])
        graph.device_pending.CopyFrom(self.row_view("pending"))

    def bind_views(self, graph: contract.GraphContract) -> None:
        """Page-table entries of the other views."""
        views = [name for name, there in (("shifted", self.kinds.shift),
                                          ("windowed", self.kinds.window)) if there]
        for number, name in enumerate(views, 1):
            self.bind(graph, name + "_count", contract.PAGE_UPDATE_COUNT, 0, 1, contract.SCALAR)
            graph.bindings[-1].table = number
            self.bind(graph, name + "_updates", contract.PAGE_UPDATES, manifest.UPDATES, 3,
                      contract.SCALAR)
            graph.bindings[-1].table = number

    def state_columns(self, operation: int) -> list[tuple[str, int]]:
        """Rows of state and snapshots that a program takes for each lane."""
        if not self.kinds.stateful:
            return []
        columns: list[tuple[str, int]] = [("state_row", contract.STATE_ROW)]
        if operation == manifest.RESTORE:
            columns.append(("restore_source", contract.RESTORE_SOURCE))
        inline = self.kinds.inline and operation in (manifest.PREFILL, manifest.MIXED)
        if inline or (self.kinds.closing and operation == manifest.RESTORE):
            columns.append(("snapshot_destination", contract.SNAPSHOT_DESTINATION))
        return columns

    def histories(self, page_tokens: int) -> None:
        """Buffers and regions of the histories beside the paged one."""
        def region(kind: int, name: str, buffer_kind: int, shape: list[tuple[int, int]],
                   ratio: int = 0) -> None:
            plane = self.buffer(name, buffer_kind, manifest.U64, shape)
            self.model.cache.regions.add(kind=kind, planes=[plane], compression_ratio=ratio)

        def view(name: str, **fields: int) -> None:
            table = self.buffer(name, manifest.STATE, manifest.I32,
                                [(manifest.SLOTS, 1), (manifest.PAGES_PER_REQUEST, 1)])
            self.model.cache.tables.add(buffer=table, **fields)

        kinds = self.kinds
        page = (manifest.PAGE_TOKENS, 1)
        if kinds.shift:
            region(contract.PAGED_KEY_VALUE, "shifted", manifest.CACHE, [(manifest.PAGES, 1), page],
                   1)
            view("shifted_table", page_offset=kinds.shift)
        if kinds.window:
            region(contract.SLIDING_WINDOW, "windowed", manifest.CACHE,
                   [(manifest.WINDOWED_PAGES, 1), page], 1)
            self.model.cache.regions[-1].window_tokens = kinds.window
            self.model.cache.regions[-1].page_group = 1
            view("windowed_table", page_group=1)
        if kinds.recurrent:
            region(contract.RECURRENT, "recurrent", manifest.STATE, [(manifest.STATE_ROWS, 1)])
        if kinds.continued:
            region(contract.CONTINUATION, "continued", manifest.STATE, [(manifest.STATE_ROWS, 1)])
        if kinds.latent:
            region(contract.PAGED_LATENT, "latent", manifest.CACHE,
                   [(manifest.PAGES, 1), (0, page_tokens // kinds.latent)], kinds.latent)

    def row_view(self, name: str) -> contract.StateView:
        """An i32 that the device owns of each slot, read and written."""
        buffer = self.buffer(name, manifest.STATE, manifest.I32, [(manifest.SLOTS, 1)])
        return contract.StateView(buffer=buffer, row_stride=4, extent=4, access=contract.READ_WRITE)


COMPLETION_LANES = (
    ("slot", manifest.COMPLETION_SLOT), ("generation", manifest.COMPLETION_GENERATION),
    ("status", manifest.COMPLETION_STATUS), ("offered", manifest.COMPLETION_OFFERED),
    ("accepted", manifest.COMPLETION_ACCEPTED), ("emitted", manifest.COMPLETION_EMITTED),
    ("endpoint", manifest.COMPLETION_ENDPOINT), ("cursor", manifest.COMPLETION_CURSOR),
    ("reserved", manifest.COMPLETION_RESERVED),
)


def simulated_core(vocabulary: int = 1000, context: int = 512, page_tokens: int = 16,
                   lanes: int = 3, packed: int = 16, rounds: tuple[Round, ...] = (),
                   cursor_lag: int | None = None, kinds: Kinds = PLAIN,
                   ) -> tuple[manifest.ExecutionManifest, contract.ServingContract]:
    """A core without weights: one cache plane of 8-byte shadow records, a decoder's operations, and
    histories of other kinds.

    cursor_lag: of the draft cursor that its speculative programs report; None: they have none."""
    widest = max((spoken.width for spoken in rounds), default=1)
    builder = Builder(min(lanes, ADMISSION_ROWS), kinds)
    plane = builder.buffer("shadow", manifest.CACHE, manifest.U64,
                           [(manifest.PAGES, 1), (manifest.PAGE_TOKENS, 1)])
    table = builder.buffer("page_table", manifest.STATE, manifest.I32,
                           [(manifest.SLOTS, 1), (manifest.PAGES_PER_REQUEST, 1)])
    for name, field in COMPLETION_LANES:
        builder.buffer("completion_" + name, manifest.COMPLETION, manifest.I32,
                       [(manifest.LANES, 1)], field)
    builder.buffer("completion_tokens", manifest.COMPLETION, manifest.I32,
                   [(manifest.LANES, 1), (0, widest)], manifest.COMPLETION_TOKENS)
    builder.buffer("completion_scores", manifest.COMPLETION, manifest.F32,
                   [(manifest.PACKED, 1)], manifest.COMPLETION_SCORES)
    builder.program("initialize", manifest.INITIALIZE, builder.admitted, builder.admitted)
    builder.program("initialize_histogram", manifest.INITIALIZE, 1, 1, histogram=vocabulary)
    for suffix, masks in (("", 0), ("_masked", -(-vocabulary // MASK_BITS))):
        builder.program("prefill" + suffix, manifest.PREFILL, lanes, packed, masks=masks)
        builder.program("mixed" + suffix, manifest.MIXED, lanes, packed, masks=masks)
        builder.program("decode" + suffix, manifest.DECODE, lanes, lanes, masks=masks)
        builder.program("decode_host_pending" + suffix, manifest.DECODE, lanes, lanes,
                        host_pending=True, masks=masks)
    builder.program("scored_prefill", manifest.SCORED_PREFILL, min(lanes, packed), packed)
    for number, spoken in enumerate(rounds):
        for batch in sorted({1, lanes}):
            most = min(spoken.packed, batch * spoken.width)
            builder.round(f"speculative_{number}_{batch}", batch, most, spoken)
    if cursor_lag is not None:
        builder.row_view("cursor")
    if kinds.shift or (kinds.stateful and kinds.snapshots):
        builder.program("restore", manifest.RESTORE, min(lanes, 2), min(lanes, 2))
    builder.bodies()
    builder.manifest.live_lanes = builder.index["live_lanes"]
    builder.manifest.live_packed = builder.index["live_packed"]
    builder.manifest.live_sampled = builder.index["live_sampled"]
    cache = builder.model.cache
    cache.page_tokens = page_tokens
    if cursor_lag is not None:
        cache.cursor_lag_tokens = cursor_lag
        cache.cursor_state.CopyFrom(builder.row_view("cursor"))
    cache.regions.add(kind=contract.PAGED_KEY_VALUE, planes=[plane], compression_ratio=1)
    cache.tables.add(buffer=table)
    builder.histories(page_tokens)
    builder.model.vocabulary = builder.model.input_vocabulary = vocabulary
    frontend = builder.model.frontend
    frontend.tool_syntax, frontend.reasoning_syntax = contract.TOOL_NONE, contract.REASONING_NONE
    frontend.text_decoding = contract.BYTE_LEVEL
    frontend.eos_tokens.append(0)
    serving = contract.ServingContract(
        served_id="simulated", cache_identity="simulated", context_tokens=context,
        prefill_tokens=packed, pages=64, concurrency=lanes, snapshots=kinds.snapshots,
        model=builder.model, speculative_widths=sorted({spoken.width for spoken in rounds}))
    return builder.manifest, serving

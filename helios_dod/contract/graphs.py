"""Validates each GraphContract against its captured program and makes PreparedProgram of it."""

from helios_dod.contract.devices import transport_buffers
from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.manifest import (
    axes,
    buffer_at,
    completion_buffers,
    describe_buffer,
    row_elements,
)
from helios_dod.contract.prepared import (
    PreparedBinding,
    PreparedExtent,
    PreparedProgram,
    PreparedState,
)
from helios_dod.contract.sources import SOURCES, elements_of
from helios_dod.contract.states import (
    LISTED_VERSION,
    check_pending_written,
    covers,
    prepare_states,
    prepare_view,
    span_of,
)
from helios_dod.contract.tuning import tuned_inputs
from helios_dod.contract.uses import BodyUse, BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

GENERATING = (wire.DECODE, wire.SPECULATIVE, wire.MIXED)
# Contract versions 1 and 2 are subsets of 3: what a graph may use from which version on.
DEVICE_PENDING_VERSION = 2
SPECULATIVE_VERSION = 2
TOKEN_BYTES = 4
STATE_ROWS_MAX = 64  # of one request
OFFSET_MAX = 2**30  # of a binding: with any position or token it stays inside i32
STATE_ROW_SYMBOLS = (wire.STATE_ROWS, wire.SNAPSHOT_ROWS)


def prepare_graphs(
    model: contract.ModelContract, manifest: wire.ExecutionManifest, uses: BodyUses,
) -> tuple[PreparedProgram, ...]:
    """One PreparedProgram for each program of the manifest, in its order."""
    graphs: dict[str, tuple[int, contract.GraphContract]] = {}
    for i, graph in enumerate(model.graphs):
        require(graph.program not in graphs, f"contract.model.graphs[{i}].program",
                "one graph a program", graph.program)
        graphs[graph.program] = (i, graph)
    programs = []
    for program in manifest.programs:
        require(program.name in graphs, "contract.model.graphs", "a graph for every program",
                f"none for {program.name}")
        i, graph = graphs.pop(program.name)
        field = f"contract.model.graphs[{i}] ({program.name})"
        programs.append(_prepare_graph(
            model, manifest, program, graph, uses.of(program), field))
    for name, (i, _) in graphs.items():
        raise ContractError(f"contract.model.graphs[{i}].program",
                            "a program of the execution manifest", name)
    if model.version >= LISTED_VERSION:
        check_pending_written(manifest, tuple(programs))
    return tuple(programs)


def _prepare_graph(
    model: contract.ModelContract, manifest: wire.ExecutionManifest, program: wire.Program,
    graph: contract.GraphContract, use: BodyUse, field: str,
) -> PreparedProgram:
    require(graph.operation == program.operation, f"{field}.operation",
            f"{wire.Operation.Name(program.operation)}, as the manifest says",
            wire.Operation.Name(graph.operation))
    bindings = tuple(
        _prepare_binding(model, manifest, program, binding, f"{field}.bindings[{i}]")
        for i, binding in enumerate(graph.bindings))
    bound: set[int] = set()
    for i, made in enumerate(bindings):
        require(made.buffer not in bound, f"{field}.bindings[{i}].buffer",
                "one binding a buffer", manifest.buffers[made.buffer].name)
        bound.add(made.buffer)
    _check_live_counts(manifest, bindings, field)
    unbound = _check_staged(manifest, use, bound, field)
    _check_lengths(program, bindings, field)
    if program.operation == wire.SPECULATIVE:
        require(model.version >= SPECULATIVE_VERSION, f"{field}.operation",
                f"no SPECULATIVE before version {SPECULATIVE_VERSION}", model.version)
    if model.version == 1:
        require(program.token_capacity == 1, f"{field}: token_capacity", "width 1 in version 1",
                program.token_capacity)
    require(program.operation != wire.DECODE or program.token_capacity == 1,
            f"{field}: token_capacity", "1: DECODE generates one token", program.token_capacity)
    if model.version >= LISTED_VERSION:
        _check_tokens(manifest, program)
    states = prepare_states(manifest, model.version, graph, use, field)
    _check_rows(manifest, graph, use, field)
    host, device = _prepare_pending(model, manifest, program, graph, bindings, states, field)
    require(graph.state_rows_per_request <= STATE_ROWS_MAX, f"{field}.state_rows_per_request",
            f"at most {STATE_ROWS_MAX}", graph.state_rows_per_request)
    return PreparedProgram(
        name=program.name, operation=program.operation, batch=program.batch_capacity,
        drafts=program.draft_tokens, width=program.token_capacity,
        packed=program.packed_token_capacity, confidence_width=program.confidence_width,
        bindings=bindings, states=states, host_pending=host, device_pending=device,
        histogram=any(made.source == contract.PROMPT_HISTOGRAM for made in bindings),
        masked=any(made.source == contract.CANDIDATE_MASKS or (
            made.source == contract.GRAMMAR_MASK and program.token_capacity == 1)
            for made in bindings),
        state_rows_per_request=graph.state_rows_per_request,
        cursor=_reads_cursor(model.cache, states),
        lane_limit=program.lane_limit or min(program.draft_tokens + 1, program.token_capacity),
        device_body=program.WhichOneof("code") == "cuda_body",
        tuned=tuned_inputs(manifest, program, graph, field),
        resources=_prepare_resources(graph, use, field), unbound=unbound)


def _check_rows(
    manifest: wire.ExecutionManifest, graph: contract.GraphContract, use: BodyUse, field: str,
) -> None:
    """A graph that touches rows of state declares how many a request has: none are backed else."""
    for number in sorted({number for number, _, _ in use.touched} | use.named):
        buffer = manifest.buffers[number]
        require(graph.state_rows_per_request > 0 or axes(buffer)[0][0] not in STATE_ROW_SYMBOLS,
                f"{field}.state_rows_per_request",
                f"at least 1: the program touches {buffer.name}", graph.state_rows_per_request)


def _reads_cursor(cache: contract.CacheContract, states: tuple[PreparedState, ...]) -> bool:
    """Whether a graph lists that it reads the state that the completion cursor names."""
    view = cache.cursor_state
    return cache.HasField("cursor_state") and covers(
        states, (view.buffer, view.offset, view.offset + view.extent), contract.READ)


def _prepare_resources(
    graph: contract.GraphContract, use: BodyUse, field: str,
) -> tuple[str, ...]:
    """Weight resources that a body reads; a graph that names them must name exactly those."""
    named = tuple(sorted(graph.resource_dependencies))
    require(not named or named == use.resources, f"{field}.resource_dependencies",
            ", ".join(use.resources) or "none", ", ".join(named))
    return use.resources


def _prepare_binding(
    model: contract.ModelContract, manifest: wire.ExecutionManifest, program: wire.Program,
    binding: contract.ValueBinding, field: str,
) -> PreparedBinding:
    buffer = buffer_at(manifest, binding.buffer, f"{field}.buffer")
    source = contract.ValueSource.Name(binding.source)
    field = f"{field} ({source} to {buffer.name})"
    rule = SOURCES[binding.source]
    require(model.version >= rule.version, f"{field}.source",
            f"contract version {rule.version} or later", model.version)
    if buffer.kind != wire.STAGING:
        raise ContractError(f"{field}.buffer", "a STAGING buffer", describe_buffer(buffer))
    if binding.indexing not in rule.indexings:
        raise ContractError(f"{field}.indexing",
                            " or ".join(contract.Indexing.Name(i) for i in rule.indexings),
                            contract.Indexing.Name(binding.indexing))
    if rule.operations and program.operation not in rule.operations:
        raise ContractError(f"{field}.source", "a program of "
                            + " or ".join(map(wire.Operation.Name, rule.operations)),
                            wire.Operation.Name(program.operation))
    require(not rule.vision or model.HasField("vision"), f"{field}.source",
            "ModelContract.vision beside it", "none")
    symbol = rule.indexings[binding.indexing]
    elements = row_elements(buffer)
    assert elements is not None, "STAGING rows are constant: check_manifest"
    wanted = [(dtype, elements_of(width, model.vocabulary, program.draft_tokens,
                                  program.token_capacity)) for dtype, width in rule.layouts]
    rows = axes(buffer)[0]
    own_rows = symbol == wire.LANES and rows[0] == 0 and rows[1] >= program.batch_capacity
    fits = (buffer.dtype, elements) in wanted or (buffer.dtype, None) in wanted
    if not fits or not (rows == (symbol, 1) or own_rows):
        expected = " or ".join(f"{wire.DataType.Name(dtype)} [{_rows(symbol)}{_tail(width)}]"
                               for dtype, width in wanted)
        raise ContractError(f"{field}.buffer", expected, describe_buffer(buffer))
    named = binding.tensor in model.frontend.image.tensors
    require(named if binding.source == contract.IMAGE_TENSOR else not binding.tensor,
            f"{field}.tensor", "a tensor of the image layout exactly for IMAGE_TENSOR",
            binding.tensor)
    require(binding.buffer not in transport_buffers(manifest), f"{field}.buffer",
            "no buffer of the transport", buffer.name)
    require(abs(binding.offset) < OFFSET_MAX if rule.offset else binding.offset == 0,
            f"{field}.offset", f"below {OFFSET_MAX}" if rule.offset else
            f"0: {source} is a number of rows, or of what they hold", binding.offset)
    require(binding.constant == 0 or binding.source == contract.CONSTANT, f"{field}.constant",
            "0 unless the source is CONSTANT", binding.constant)
    updates = binding.source in (contract.PAGE_UPDATES, contract.PAGE_UPDATE_COUNT)
    views = len(model.cache.tables)
    require(binding.table < views if updates and binding.table else binding.table == 0,
            f"{field}.table", f"a page-table view below {views}" if updates else "0",
            binding.table)
    return PreparedBinding(
        buffer=binding.buffer, source=binding.source, indexing=binding.indexing,
        offset=binding.offset, padding=binding.padding, constant=binding.constant,
        rows=PreparedExtent(*rows), words=-(-elements * ELEMENT_BYTES[buffer.dtype] // 4),
        tensor=binding.tensor, table=binding.table)


def _rows(symbol: int) -> str:
    return wire.Symbol.Name(symbol) if symbol else "1"


def _tail(width: int | None) -> str:
    return ", any" if width is None else f", {width}" if width != 1 else ""


def _check_live_counts(
    manifest: wire.ExecutionManifest, bindings: tuple[PreparedBinding, ...], field: str,
) -> None:
    """Every program is told how many rows are live, or 0: its operations loop to these counts."""
    bound = {made.buffer: made for made in bindings}
    wanted = ((manifest.live_lanes, contract.LIVE_LANES),
              (manifest.live_packed, contract.LIVE_PACKED),
              (manifest.live_sampled, contract.LIVE_SAMPLED))
    for buffer, source in wanted:
        made = bound.get(buffer)
        told = made is not None and (made.source == source or (
            made.source == contract.CONSTANT and made.constant == 0))
        got = "none" if made is None else contract.ValueSource.Name(made.source)
        require(told, f"{field}.bindings",
                f"{contract.ValueSource.Name(source)}, or CONSTANT 0, to "
                f"{manifest.buffers[buffer].name}", got)


def _check_staged(
    manifest: wire.ExecutionManifest, use: BodyUse, bound: set[int], field: str,
) -> tuple[str, ...]:
    """What the body reads of host staging is filled: by a binding, the transport or a table. What
    no binding fills."""
    others = transport_buffers(manifest) | {table.buffer for table in manifest.tables}
    for number in sorted(use.staged - bound - others):
        raise ContractError(f"{field}.bindings", "a binding of each STAGING that the program reads",
                            f"none to {manifest.buffers[number].name}")
    return tuple(manifest.buffers[number].name for number in sorted(use.staged - bound))


def _check_lengths(
    program: wire.Program, bindings: tuple[PreparedBinding, ...], field: str,
) -> None:
    """A speculative program has exactly one length source; others never a prefix limit."""
    exact = sum(made.source == contract.QUERY_LENGTH for made in bindings)
    limits = sum(made.source == contract.SPECULATIVE_PREFIX_LIMIT for made in bindings)
    if program.operation == wire.SPECULATIVE:
        require(exact + limits == 1, f"{field}.bindings",
                "one length source: QUERY_LENGTH or SPECULATIVE_PREFIX_LIMIT", exact + limits)
        require(limits == 0 or program.confidence_width == program.draft_tokens,
                f"{field}: confidence_width", f"{program.draft_tokens}: it allocates prefixes "
                "under SPECULATIVE_PREFIX_LIMIT by its confidence", program.confidence_width)
    else:
        require(limits == 0, f"{field}.bindings",
                "SPECULATIVE_PREFIX_LIMIT only on a SPECULATIVE program", limits)


def _check_tokens(manifest: wire.ExecutionManifest, program: wire.Program) -> None:
    """A completion record has a column for every token of a lane."""
    column = dict(completion_buffers(manifest))[wire.COMPLETION_TOKENS]
    width = axes(manifest.buffers[column])[1][1]
    require(width >= program.token_capacity,
            f"manifest.buffers[{column}] ({manifest.buffers[column].name}).shape",
            f"at least {program.token_capacity} columns, the tokens of a lane of {program.name}",
            width)


def _prepare_pending(
    model: contract.ModelContract, manifest: wire.ExecutionManifest, program: wire.Program,
    graph: contract.GraphContract, bindings: tuple[PreparedBinding, ...],
    states: tuple[PreparedState, ...], field: str,
) -> tuple[bool, PreparedState | None]:
    """(host owns the pending token, the device's view of it otherwise)."""
    choice = graph.WhichOneof("pending")
    if choice == "device_pending":
        require(model.version >= DEVICE_PENDING_VERSION, f"{field}.device_pending",
                "a host-owned pending token in version 1", "a device-owned one")
        state = prepare_view(manifest, graph.device_pending, f"{field}.device_pending")
        require(state.access != contract.WRITE, f"{field}.device_pending.access",
                "READ or READ_WRITE", contract.Access.Name(state.access))
        buffer = manifest.buffers[state.buffer]
        require(buffer.kind == wire.STATE and buffer.dtype == wire.I32
                and axes(buffer)[0] == (wire.SLOTS, 1) and state.extent == TOKEN_BYTES,
                f"{field}.device_pending.buffer", "one i32 of each row of a STATE I32 [SLOTS ...]",
                describe_buffer(buffer))
        for access in (contract.READ, contract.WRITE):
            listed = covers(states, span_of(state), access)
            require(listed or not state.access & access or model.version < LISTED_VERSION,
                    f"{field}.device_pending", "a state that the graph lists with "
                    f"{contract.Access.Name(access)}", buffer.name)
        return False, state
    if choice == "host_pending_binding":
        index = graph.host_pending_binding
        require(index < len(bindings), f"{field}.host_pending_binding",
                f"a binding below {len(bindings)}", index)
        require(bindings[index].source in (contract.PENDING_TOKEN, contract.TOKEN),
                f"{field}.host_pending_binding", "a binding of PENDING_TOKEN or TOKEN",
                contract.ValueSource.Name(bindings[index].source))
        return True, None
    require(program.operation not in GENERATING, f"{field}.pending",
            "device_pending or host_pending_binding", "none")
    return False, None

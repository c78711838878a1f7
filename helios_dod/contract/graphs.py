"""Validates each GraphContract against its captured program and makes PreparedProgram of it."""

from helios_dod.contract.devices import transport_buffers
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.manifest import (
    ELEMENT_BYTES,
    BodyUse,
    axes,
    body_uses,
    buffer_at,
    describe_buffer,
    row_elements,
    use_of,
)
from helios_dod.contract.prepared import (
    PreparedBinding,
    PreparedExtent,
    PreparedProgram,
    PreparedState,
)
from helios_dod.contract.sources import SOURCES, elements_of
from helios_dod.contract.tuning import tuned_inputs
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

GENERATING = (wire.DECODE, wire.SPECULATIVE, wire.MIXED)
# Contract versions 1 and 2 are subsets of 3: what a graph may use from which version on.
DEVICE_PENDING_VERSION = 2
SPECULATIVE_VERSION = 2
STATE_ROWS_MAX = 64  # of one request


def prepare_graphs(
    model: contract.ModelContract, manifest: wire.ExecutionManifest,
) -> tuple[PreparedProgram, ...]:
    """One PreparedProgram for each program of the manifest, in its order."""
    graphs: dict[str, tuple[int, contract.GraphContract]] = {}
    for i, graph in enumerate(model.graphs):
        require(graph.program not in graphs, f"contract.model.graphs[{i}].program",
                "one graph a program", graph.program)
        graphs[graph.program] = (i, graph)
    programs = []
    uses = body_uses(manifest)
    for program in manifest.programs:
        require(program.name in graphs, "contract.model.graphs", "a graph for every program",
                f"none for {program.name}")
        i, graph = graphs.pop(program.name)
        field = f"contract.model.graphs[{i}] ({program.name})"
        programs.append(_prepare_graph(
            model, manifest, program, graph, use_of(uses, program), field))
    for name, (i, _) in graphs.items():
        raise ContractError(f"contract.model.graphs[{i}].program",
                            "a program of the execution manifest", name)
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
    _check_lengths(program, bindings, field)
    if program.operation == wire.SPECULATIVE:
        require(model.version >= SPECULATIVE_VERSION, f"{field}.operation",
                f"no SPECULATIVE before version {SPECULATIVE_VERSION}", model.version)
    if model.version == 1:
        require(program.token_capacity == 1, f"{field}: token_capacity", "width 1 in version 1",
                program.token_capacity)
    states = tuple(
        _prepare_state(manifest, state, f"{field}.states[{i}]")
        for i, state in enumerate(graph.states))
    _check_written(manifest, use, states, graph, field)
    host, device = _prepare_pending(model, manifest, program, graph, bindings, field)
    require(graph.state_rows_per_request <= STATE_ROWS_MAX, f"{field}.state_rows_per_request",
            f"at most {STATE_ROWS_MAX}", graph.state_rows_per_request)
    return PreparedProgram(
        name=program.name, operation=program.operation, batch=program.batch_capacity,
        drafts=program.draft_tokens, width=program.token_capacity,
        packed=program.packed_token_capacity, confidence_width=program.confidence_width,
        bindings=bindings, states=states, host_pending=host, device_pending=device,
        histogram=any(made.source == contract.PROMPT_HISTOGRAM for made in bindings),
        state_rows_per_request=graph.state_rows_per_request,
        lane_limit=program.lane_limit or min(program.draft_tokens + 1, program.token_capacity),
        device_body=program.WhichOneof("code") == "cuda_body",
        tuned=tuned_inputs(manifest, program, graph, field),
        resources=_prepare_resources(program, graph, use, field))


def _check_written(
    manifest: wire.ExecutionManifest, use: BodyUse, states: tuple[PreparedState, ...],
    graph: contract.GraphContract, field: str,
) -> None:
    """Where a graph lists its state, every state buffer that its body writes is listed as such."""
    if not states:
        return
    listed = {state.buffer for state in states if state.access != contract.READ}
    if graph.HasField("device_pending"):
        listed.add(graph.device_pending.buffer)
    missing = sorted(use.written - listed)
    require(not missing, f"{field}.states", "a WRITE view of every STATE that the program writes",
            f"none of {manifest.buffers[missing[0]].name}" if missing else "")


def _prepare_resources(
    program: wire.Program, graph: contract.GraphContract, use: BodyUse, field: str,
) -> tuple[str, ...]:
    """Weight resources that a host body reads; a graph that names them must name exactly those."""
    named = tuple(sorted(graph.resource_dependencies))
    if program.WhichOneof("code") == "cuda_body":
        return named
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


def _check_lengths(
    program: wire.Program, bindings: tuple[PreparedBinding, ...], field: str,
) -> None:
    """A speculative program has exactly one length source; others never a prefix limit."""
    exact = sum(made.source == contract.QUERY_LENGTH for made in bindings)
    limits = sum(made.source == contract.SPECULATIVE_PREFIX_LIMIT for made in bindings)
    if program.operation == wire.SPECULATIVE:
        require(exact + limits == 1, f"{field}.bindings",
                "one length source: QUERY_LENGTH or SPECULATIVE_PREFIX_LIMIT", exact + limits)
    else:
        require(limits == 0, f"{field}.bindings",
                "SPECULATIVE_PREFIX_LIMIT only on a SPECULATIVE program", limits)


def _prepare_state(
    manifest: wire.ExecutionManifest, state: contract.StateView, field: str,
) -> PreparedState:
    buffer = buffer_at(manifest, state.buffer, f"{field}.buffer")
    if buffer.kind not in (wire.STATE, wire.CACHE):
        raise ContractError(f"{field}.buffer", "a STATE or CACHE buffer", describe_buffer(buffer))
    elements = row_elements(buffer)
    if elements is not None:
        row = elements * ELEMENT_BYTES[buffer.dtype]
        if state.row_stride != row:
            raise ContractError(f"{field}.row_stride",
                                f"{row} bytes, a row of {describe_buffer(buffer)}",
                                state.row_stride)
        require(0 < state.extent <= row - min(state.offset, row), f"{field}.extent",
                f"1 to {row} bytes, offset included", state.offset + state.extent)
    else:
        whole = (state.offset, state.row_stride, state.extent) == (0, 0, 0)
        require(whole, field, "zeros: whole rows of a buffer whose width is chosen at load",
                state.row_stride)
    return PreparedState(state.buffer, state.offset, state.row_stride, state.extent, state.access)


def _prepare_pending(
    model: contract.ModelContract, manifest: wire.ExecutionManifest, program: wire.Program,
    graph: contract.GraphContract, bindings: tuple[PreparedBinding, ...], field: str,
) -> tuple[bool, PreparedState | None]:
    """(host owns the pending token, the device's view of it otherwise)."""
    choice = graph.WhichOneof("pending")
    if choice == "device_pending":
        require(model.version >= DEVICE_PENDING_VERSION, f"{field}.device_pending",
                "a host-owned pending token in version 1", "a device-owned one")
        state = _prepare_state(manifest, graph.device_pending, f"{field}.device_pending")
        require(state.access != contract.WRITE, f"{field}.device_pending.access",
                "READ or READ_WRITE", contract.Access.Name(state.access))
        buffer = manifest.buffers[state.buffer]
        require(buffer.kind == wire.STATE and buffer.dtype == wire.I32,
                f"{field}.device_pending.buffer", "a STATE of I32", describe_buffer(buffer))
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

"""Validates what a manifest declares beside buffers and host programs: device bodies, the tuning
catalog, transport, completion layout, confidence, staging tables and ranks."""

from collections.abc import Iterable

from helios_dod.contract.cuda import check_cuda
from helios_dod.contract.errors import require
from helios_dod.contract.wire import manifest_pb2 as wire

STAGING_FRAMES = 2  # host frames of a staging table
RANKS_MAX = 1024


def check_devices(manifest: wire.ExecutionManifest) -> None:
    """Raises ContractError, naming the field. Buffers are checked already."""
    check_cuda(manifest)
    _check_transport(manifest)
    _check_completion_layout(manifest)
    _check_confidence(manifest)
    _check_tables(manifest)
    _check_ranks(manifest)
    _check_tuning(manifest)


def check_code(manifest: wire.ExecutionManifest, program: wire.Program | wire.TuningGraph,
               field: str) -> None:
    """The body of a program or tuning graph: one of host operations or device nodes."""
    if program.WhichOneof("code") == "cuda_body":
        require(program.cuda_body < len(manifest.cuda_bodies), f"{field}.cuda_body",
                f"a device body below {len(manifest.cuda_bodies)}", program.cuda_body)
    else:
        require(program.body < len(manifest.host_bodies), f"{field}.body",
                f"a body below {len(manifest.host_bodies)}", program.body)


def _check_transport(manifest: wire.ExecutionManifest) -> None:
    if not manifest.HasField("transport"):
        return
    transport = manifest.transport
    for name, dtypes in (("frame_index", (wire.I32, wire.U32)),
                         ("submission_sequence", (wire.I64, wire.U64))):
        if not transport.HasField(name):
            continue
        index, field = getattr(transport, name), f"manifest.transport.{name}"
        require(index < len(manifest.buffers), field,
                f"a buffer number below {len(manifest.buffers)}", index)
        buffer = manifest.buffers[index]
        scalar = [(extent.symbol, extent.multiplier) for extent in buffer.shape] == [(0, 1)]
        require(buffer.kind == wire.STAGING and buffer.dtype in dtypes and scalar, field,
                "a STAGING scalar of " + " or ".join(map(wire.DataType.Name, dtypes)), buffer.name)
    require(transport.frames in (1, 2), "manifest.transport.frames", "1 or 2", transport.frames)


def transport_buffers(manifest: wire.ExecutionManifest) -> frozenset[int]:
    """Buffers that the transport writes."""
    transport = manifest.transport
    return frozenset(getattr(transport, name) for name in ("frame_index", "submission_sequence")
                     if transport.HasField(name))


def _check_completion_layout(manifest: wire.ExecutionManifest) -> None:
    """A declared layout says what the COMPLETION buffers have."""
    if not manifest.HasField("completion"):
        return
    widths = {wire.COMPLETION_TOKENS: 0, wire.COMPLETION_TOP_TOKENS: 0}
    for buffer in manifest.buffers:
        if buffer.completion in widths:
            widths[buffer.completion] = buffer.shape[1].multiplier
    for name, column in (("token_width", wire.COMPLETION_TOKENS),
                         ("top_logprobs", wire.COMPLETION_TOP_TOKENS)):
        require(getattr(manifest.completion, name) == widths[column],
                f"manifest.completion.{name}",
                f"{widths[column]}, the width of {wire.CompletionField.Name(column)}",
                getattr(manifest.completion, name))


def _check_confidence(manifest: wire.ExecutionManifest) -> None:
    """proposal_confidence is f32 [2, SLOTS, capacity]; it covers every declared output width."""
    widest = max((program.confidence_width for program in manifest.programs), default=0)
    field = "manifest.proposal_confidence"
    if not manifest.HasField("proposal_confidence"):
        require(widest == 0, field, f"a buffer for the declared confidence width {widest}", "none")
        return
    index = manifest.proposal_confidence
    require(index < len(manifest.buffers), field,
            f"a buffer number below {len(manifest.buffers)}", index)
    buffer = manifest.buffers[index]
    shape = [(extent.symbol, extent.multiplier) for extent in buffer.shape]
    framed = shape[:2] == [(0, 2), (wire.SLOTS, 1)] and len(shape) == 3 and shape[2][0] == 0
    require(framed and buffer.dtype == wire.F32 and buffer.kind == wire.STATE, field,
            "STATE F32 [2, SLOTS, draft capacity]", buffer.name)
    require(shape[2][1] >= widest, field, f"a draft capacity of at least {widest}", shape[2][1])


def _check_tables(manifest: wire.ExecutionManifest) -> None:
    names: set[str] = set()
    for i, table in enumerate(manifest.tables):
        field = f"manifest.tables[{i}]"
        require(bool(table.name) and table.name not in names, f"{field}.name",
                "a name of its own", table.name)
        names.add(table.name)
        require(table.buffer < len(manifest.buffers)
                and manifest.buffers[table.buffer].kind == wire.STAGING,
                f"{field}.buffer", "a STAGING buffer", table.buffer)
        require(table.frames == STAGING_FRAMES, f"{field}.frames",
                f"{STAGING_FRAMES} host staging frames", table.frames)
        _ascending(table.consumer_ranks, f"{field}.consumer_ranks", max(len(manifest.ranks), 1))


def _ascending(ranks: Iterable[int], field: str, count: int) -> None:
    """At least one of `count` ranks, each once, in order."""
    given = list(ranks)
    right = bool(given) and given == sorted(set(given)) and given[-1] < count
    require(right, field, f"ascending ranks below {count}", given or "none")


def _check_ranks(manifest: wire.ExecutionManifest) -> None:
    """Ranks count from 0; together they load every weight that a buffer names."""
    if not manifest.ranks:
        return
    require(len(manifest.ranks) <= RANKS_MAX, "manifest.ranks", f"at most {RANKS_MAX}",
            len(manifest.ranks))
    loaded: set[str] = set()
    for i, part in enumerate(manifest.ranks):
        require(part.rank == i, f"manifest.ranks[{i}].rank", f"{i}: ranks count from 0", part.rank)
        for name in ("weights", "modules"):
            ids = list(getattr(part, name))
            require(len(set(ids)) == len(ids) and all(ids), f"manifest.ranks[{i}].{name}",
                    "resource ids, each once", ", ".join(ids))
        loaded |= set(part.weights)
    for i, buffer in enumerate(manifest.buffers):
        require(buffer.kind != wire.WEIGHT or buffer.resource_id in loaded,
                "manifest.ranks", f"a rank that loads what manifest.buffers[{i}] names",
                buffer.resource_id)


def _check_tuning(manifest: wire.ExecutionManifest) -> None:
    """Producers have names of their own, a body, and outputs in persistent buffers."""
    names = {program.name for program in manifest.programs}
    for i, graph in enumerate(manifest.tuning):
        field = f"manifest.tuning[{i}]"
        require(bool(graph.name) and graph.name not in names, f"{field}.name",
                "a name that no program or producer has", graph.name)
        names.add(graph.name)
        check_code(manifest, graph, field)
        outputs = list(graph.outputs)
        require(bool(outputs) and len(set(outputs)) == len(outputs), f"{field}.outputs",
                "buffers, each once", outputs or "none")
        for buffer in outputs:
            require(buffer < len(manifest.buffers)
                    and manifest.buffers[buffer].kind == wire.STATE, f"{field}.outputs",
                    "STATE buffers, neither inputs nor cache", buffer)

"""Validates an execution manifest by itself: buffers, bodies, programs.

`execution ABI` labels do not gate loading; the declared layouts and operations do.
"""

from math import prod
from typing import Any

from helios_dod.contract.devices import check_code, check_devices
from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.operations import BY_NUMBER, OPERATIONS, VERIFIED, Touch
from helios_dod.contract.wire import manifest_pb2 as wire

BufferFacts = tuple[int, int, int | None]  # kind, dtype, elements of a row
AXES_MAX = 4
AXIS_MAX = 2**40  # a constant axis; past it products of axes could leave 64 bits
BUFFERS_MAX = 65_536
OPERATIONS_MAX = 65_536  # of one body
BODIES_MAX = 4096
ALL_OPERATIONS_MAX = 262_144  # of all bodies
PROGRAMS_MAX = 1024
LANES_I32 = (wire.I32, ((wire.LANES, 1),))
TOP = ((wire.LANES, 1), (0, 20))
# Type and shape of each completion column; None: any constant width.
COMPLETION_SHAPES: dict[int, tuple[int, tuple[tuple[int, int | None], ...]]] = {
    wire.COMPLETION_SLOT: LANES_I32,
    wire.COMPLETION_GENERATION: LANES_I32,
    wire.COMPLETION_STATUS: LANES_I32,
    wire.COMPLETION_OFFERED: LANES_I32,
    wire.COMPLETION_ACCEPTED: LANES_I32,
    wire.COMPLETION_EMITTED: LANES_I32,
    wire.COMPLETION_TOKENS: (wire.I32, ((wire.LANES, 1), (0, None))),
    wire.COMPLETION_ENDPOINT: LANES_I32,
    wire.COMPLETION_CURSOR: LANES_I32,
    wire.COMPLETION_RESERVED: LANES_I32,
    wire.COMPLETION_LOGPROB: (wire.F32, ((wire.LANES, 1),)),
    wire.COMPLETION_TOP_TOKENS: (wire.I32, TOP),
    wire.COMPLETION_TOP_LOGPROBS: (wire.F32, TOP),
    wire.COMPLETION_SCORES: (wire.F32, ((wire.PACKED, 1),)),
}
COMPLETION_REQUIRED = range(wire.COMPLETION_SLOT, wire.COMPLETION_RESERVED + 1)
GROUP_PAGES = (wire.PAGES, wire.WINDOWED_PAGES)  # axis 0 of the cache planes of each page group
WORD_COLUMNS = {wire.PANEL_Q4: 8, wire.PANEL_Q8: 4}  # columns of a stored 32-bit word
ROLE_KINDS = {
    "read": (wire.STATE, wire.SCRATCH, wire.STAGING),
    "index": (wire.STATE, wire.SCRATCH, wire.STAGING),
    "write": (wire.STATE, wire.SCRATCH),
    "update": (wire.STATE, wire.SCRATCH),
    "report": (wire.STATE, wire.SCRATCH, wire.COMPLETION),
    "weight": (wire.WEIGHT,),
    "matrix": (wire.WEIGHT,),
    "table": (wire.WEIGHT,),
    "cache": (wire.CACHE,),
    "store": (wire.CACHE,),
}


def check_manifest(manifest: wire.ExecutionManifest) -> None:
    """Raises ContractError, naming the field, unless the manifest can be bound and run.
    strict.check_known holds for it."""
    require(0 < len(manifest.buffers) <= BUFFERS_MAX, "manifest.buffers",
            f"1 to {BUFFERS_MAX}", len(manifest.buffers))
    names: set[str] = set()
    for i, buffer in enumerate(manifest.buffers):
        field = f"manifest.buffers[{i}]"
        require(bool(buffer.name) and buffer.name not in names, f"{field}.name",
                "a name of its own", buffer.name)
        names.add(buffer.name)
        _check_buffer(buffer, f"{field} ({buffer.name})")
    completion_buffers(manifest)
    for name in ("live_packed", "live_lanes", "live_sampled"):
        index = getattr(manifest, name)
        found = buffer_at(manifest, index, f"manifest.{name}")
        require(found.kind == wire.STAGING and found.dtype == wire.I32 and axes(found) == ((0, 1),),
                f"manifest.{name}", "a STAGING buffer of one i32", describe_buffer(found))
    if manifest.HasField("live_drawn"):
        found = buffer_at(manifest, manifest.live_drawn, "manifest.live_drawn")
        require(found.kind == wire.SCRATCH and found.dtype == wire.I32 and axes(found) == ((0, 1),),
                "manifest.live_drawn", "a SCRATCH buffer of one i32", describe_buffer(found))
    facts: list[BufferFacts] = [
        (buffer.kind, buffer.dtype, row_elements(buffer)) for buffer in manifest.buffers]
    require(len(manifest.host_bodies) <= BODIES_MAX, "manifest.host_bodies",
            f"at most {BODIES_MAX}", len(manifest.host_bodies))
    count = sum(len(body.operations) for body in manifest.host_bodies)
    require(count <= ALL_OPERATIONS_MAX, "manifest.host_bodies",
            f"at most {ALL_OPERATIONS_MAX} operations in all", count)
    for i, body in enumerate(manifest.host_bodies):
        _check_body(manifest, body, facts, f"manifest.host_bodies[{i}]")
    _check_programs(manifest)
    check_devices(manifest)


def axes(buffer: wire.Buffer) -> tuple[tuple[int, int], ...]:
    """Shape as (symbol, multiplier) pairs."""
    return tuple((extent.symbol, extent.multiplier) for extent in buffer.shape)


def row_elements(buffer: wire.Buffer) -> int | None:
    """Elements of one row (all axes but the first); None where an axis is chosen at load."""
    tail = axes(buffer)[1:]
    if any(symbol for symbol, _ in tail):
        return None
    return prod(multiplier for _, multiplier in tail)


def page_bytes(manifest: wire.ExecutionManifest, page_tokens: int, group: int = 0) -> int:
    """Bytes of one logical page over all CACHE buffers of a page group."""
    return sum(
        ELEMENT_BYTES[buffer.dtype] * prod(
            multiplier * (page_tokens if symbol else 1) for symbol, multiplier in axes(buffer)[1:])
        for buffer in manifest.buffers
        if buffer.kind == wire.CACHE and axes(buffer)[0] == (GROUP_PAGES[group], 1))


def snapshot_row_bytes(manifest: wire.ExecutionManifest) -> int:
    """Bytes of one snapshot row over all STATE buffers."""
    return sum(
        ELEMENT_BYTES[buffer.dtype] * prod(multiplier for _, multiplier in axes(buffer))
        for buffer in manifest.buffers
        if buffer.kind == wire.STATE and axes(buffer)[0][0] == wire.SNAPSHOT_ROWS)


def buffer_at(manifest: wire.ExecutionManifest, index: int, field: str) -> wire.Buffer:
    """The buffer of that number; ContractError where there is none."""
    require(index < len(manifest.buffers), field,
            f"a buffer number below {len(manifest.buffers)}", index)
    return manifest.buffers[index]


def describe_buffer(buffer: wire.Buffer) -> str:
    """One line: name, kind, type, shape."""
    shape = ", ".join(
        str(e.multiplier) if not e.symbol
        else wire.Symbol.Name(e.symbol) + (f" * {e.multiplier}" if e.multiplier != 1 else "")
        for e in buffer.shape)
    kind, dtype = wire.BufferKind.Name(buffer.kind), wire.DataType.Name(buffer.dtype)
    return f"{buffer.name}: {kind} {dtype} [{shape}]"


def completion_buffers(manifest: wire.ExecutionManifest) -> tuple[tuple[int, int], ...]:
    """(CompletionField, buffer number) of every completion column, by field."""
    found: dict[int, int] = {}
    for i, buffer in enumerate(manifest.buffers):
        if buffer.kind == wire.COMPLETION:
            name = wire.CompletionField.Name(buffer.completion)
            require(buffer.completion not in found, f"manifest.buffers[{i}].completion",
                    "one buffer a completion field", name)
            found[buffer.completion] = i
    for field in COMPLETION_REQUIRED:
        name = wire.CompletionField.Name(field)
        require(field in found, "manifest.buffers", f"a COMPLETION buffer for {name}", "none")
    return tuple(sorted(found.items()))


def _check_buffer(buffer: wire.Buffer, field: str) -> None:
    require(0 < len(buffer.shape) <= AXES_MAX, f"{field}.shape", f"1 to {AXES_MAX} axes",
            len(buffer.shape))
    for symbol, multiplier in axes(buffer):
        require(multiplier >= 1, f"{field}.shape", "axes of at least 1", multiplier)
        require(symbol == 0 or buffer.kind != wire.WEIGHT, f"{field}.shape",
                "constant axes for a WEIGHT", wire.Symbol.Name(symbol))
    constant = prod(multiplier for _, multiplier in axes(buffer))
    require(constant < AXIS_MAX, f"{field}.shape", f"fewer than {AXIS_MAX} elements", constant)
    require((buffer.completion != 0) == (buffer.kind == wire.COMPLETION), f"{field}.completion",
            "a completion field exactly for COMPLETION buffers", buffer.completion)
    if buffer.kind == wire.WEIGHT:
        _check_weight(buffer, field)
    else:
        placed = buffer.resource_id or buffer.resource_offset or buffer.resource_nbytes
        require(not placed and not buffer.HasField("panel"), field,
                "weight fields only on a WEIGHT", describe_buffer(buffer))
    if buffer.kind == wire.CACHE:
        tail = all(symbol in (0, wire.PAGE_TOKENS) for symbol, _ in axes(buffer)[1:])
        paged = axes(buffer)[0] in [(symbol, 1) for symbol in GROUP_PAGES]
        require(paged and tail, f"{field}.shape",
                "PAGES or WINDOWED_PAGES as axis 0 of a CACHE, then constants or PAGE_TOKENS",
                describe_buffer(buffer))
    if buffer.kind == wire.STAGING:
        require(row_elements(buffer) is not None, f"{field}.shape",
                "constant axes after the first of a STAGING", describe_buffer(buffer))
    if buffer.kind == wire.COMPLETION:
        _check_completion(buffer, field)


def _check_completion(buffer: wire.Buffer, field: str) -> None:
    dtype, shape = COMPLETION_SHAPES[buffer.completion]
    actual = axes(buffer)
    fits = buffer.dtype == dtype and len(actual) == len(shape) and all(
        symbol == wanted and width in (None, multiplier)
        for (symbol, multiplier), (wanted, width) in zip(actual, shape, strict=True))
    require(fits, field, f"the layout of {wire.CompletionField.Name(buffer.completion)}",
            describe_buffer(buffer))


def _check_weight(buffer: wire.Buffer, field: str) -> None:
    require(bool(buffer.resource_id), f"{field}.resource_id", "a weight resource", "")
    require(buffer.resource_offset % 64 == 0, f"{field}.resource_offset", "a multiple of 64",
            buffer.resource_offset)
    nbytes = prod(m for _, m in axes(buffer)) * ELEMENT_BYTES[buffer.dtype]
    require(buffer.resource_nbytes == nbytes, f"{field}.resource_nbytes",
            f"{nbytes}, the bytes of its shape", buffer.resource_nbytes)
    if not buffer.HasField("panel"):
        return
    panel = buffer.panel
    require(buffer.dtype == wire.U8, f"{field}.dtype", "U8 for panels",
            wire.DataType.Name(buffer.dtype))
    for name in ("rows", "columns", "panel_rows"):
        require(getattr(panel, name) >= 1, f"{field}.panel.{name}", "at least 1",
                getattr(panel, name))
    plain = panel.encoding in (wire.PANEL_F32, wire.PANEL_F16, wire.PANEL_BF16)
    block = panel.block_columns
    if plain:
        require(block == 0, f"{field}.panel.block_columns", "0 for a plain encoding", block)
    else:
        require(block > 0 and panel.columns % block == 0, f"{field}.panel.block_columns",
                f"a divisor of {panel.columns} columns", block)
    scales = (0,) if plain else (wire.F16, wire.F32)
    require(panel.scale in scales, f"{field}.panel.scale",
            "none for a plain encoding, else F16 or F32", panel.scale)
    require(panel.minimum in (0, *scales), f"{field}.panel.minimum",
            "none, or F16 or F32 beside a scale", panel.minimum)
    if not plain:
        words = WORD_COLUMNS[panel.encoding]
        require(block % words == 0, f"{field}.panel.block_columns", f"a multiple of {words}", block)
    require(buffer.resource_nbytes == panel_nbytes(panel), f"{field}.panel",
            f"a shape of {buffer.resource_nbytes} bytes, as the buffer", panel_nbytes(panel))


def panel_nbytes(panel: wire.Panel) -> int:
    """Stored bytes of a panel matrix; the layout is that of executors/host/panels.py."""
    panels = -(-panel.rows // panel.panel_rows)
    if panel.block_columns == 0:
        width = 4 if panel.encoding == wire.PANEL_F32 else 2
        return panels * panel.panel_rows * panel.columns * width
    scales = sum({0: 0, wire.F16: 2, wire.F32: 4}[kind] for kind in (panel.scale, panel.minimum))
    block = scales + 4 * (panel.block_columns // WORD_COLUMNS[panel.encoding])
    return panels * panel.panel_rows * block * (panel.columns // panel.block_columns)


def _check_body(
    manifest: wire.ExecutionManifest, body: wire.HostBody, facts: list[BufferFacts], field: str,
) -> None:
    require(0 < len(body.operations) <= OPERATIONS_MAX, f"{field}.operations",
            f"1 to {OPERATIONS_MAX}", len(body.operations))
    for i, operation in enumerate(body.operations):
        name = operation.WhichOneof("operation")
        if name is None:
            raise ContractError(f"{field}.operations[{i}]", "an operation", "none")
        part = getattr(operation, name)
        if name == "verify":
            _check_verified(body, i, f"{field}.operations[{i}].verify")
        drawn = name == "draft" or (
            name != "copy_state_rows" and getattr(part, "rows", 0) == wire.ROWS_DRAWN)
        require(not drawn or manifest.HasField("live_drawn"), f"{field}.operations[{i}].{name}",
                "manifest.live_drawn, which counts the rows", "none")
        for touch in OPERATIONS[name]:
            if touch.flag and not getattr(part, touch.flag):
                continue
            expected, number = _touch_problem(facts, part, touch)
            if expected:
                got = describe_buffer(manifest.buffers[number]) if number >= 0 else "none"
                raise ContractError(f"{field}.operations[{i}].{name}.{touch.field}", expected, got)


def _check_verified(body: wire.HostBody, at: int, field: str) -> None:
    """A Verify runs the three operations behind it."""
    behind = [operation.WhichOneof("operation")
              for operation in body.operations[at + 1 : at + 1 + len(VERIFIED)]]
    require(behind == list(VERIFIED), field, f"{', '.join(VERIFIED)} behind it",
            ", ".join(str(name) for name in behind) or "none")
    if body.operations[at].verify.has_masks:
        require(not body.operations[at + 1].adjust_logits.has_mask, f"{field}.masks",
                "no other mask in the adjust_logits behind it", "one")


def _touch_problem(facts: list[BufferFacts], part: Any, touch: Touch) -> tuple[str, int]:
    """What a field of an operation should name, empty if it does, and the buffer that it names.

    Thousands of calls a manifest: texts are made only for an error."""
    value = getattr(part, touch.field)
    by_number = touch.role in BY_NUMBER
    if not by_number and not part.HasField(touch.field):
        return "an operand", -1
    number = value if by_number else value.buffer
    if number >= len(facts):
        return f"a buffer number below {len(facts)}, not {number}", -1
    kind, dtype, width = facts[number]
    if kind not in ROLE_KINDS[touch.role]:
        return " or ".join(map(wire.BufferKind.Name, ROLE_KINDS[touch.role])), number
    if by_number:
        return "", number
    if touch.role == "index" and dtype != wire.I32:
        return "i32 elements", number
    first, columns = value.column, value.columns
    if width is None:
        if first or columns:
            return "whole rows of a buffer whose width is chosen at load", number
    elif first + max(columns, 1) > width:
        return f"columns {first} to {first + max(columns, 1)} inside the row", number
    return "", number


def _check_programs(manifest: wire.ExecutionManifest) -> None:
    count = len(manifest.programs)
    require(0 < count <= PROGRAMS_MAX, "manifest.programs", f"1 to {PROGRAMS_MAX}", count)
    names: set[str] = set()
    for i, program in enumerate(manifest.programs):
        field = f"manifest.programs[{i}]"
        require(bool(program.name) and program.name not in names, f"{field}.name",
                "a name of its own", program.name)
        names.add(program.name)
        field = f"{field} ({program.name})"
        check_code(manifest, program, field)
        batch, packed = program.batch_capacity, program.packed_token_capacity
        require(1 <= batch < 2**20, f"{field}.batch_capacity", "1 to 2**20", batch)
        require(1 <= program.token_capacity < 2**20, f"{field}.token_capacity", "1 to 2**20",
                program.token_capacity)
        require(1 <= packed < 2**24, f"{field}.packed_token_capacity", "1 to 2**24", packed)
        if program.operation in (wire.DECODE, wire.SPECULATIVE):
            require(batch <= packed <= batch * program.token_capacity,
                    f"{field}.packed_token_capacity", "B to B * W", packed)
        if program.operation != wire.SPECULATIVE:
            require(program.draft_tokens == 0, f"{field}.draft_tokens",
                    "0 outside SPECULATIVE", program.draft_tokens)
        limit = min(program.draft_tokens + 1, program.token_capacity)
        require(program.lane_limit <= limit, f"{field}.lane_limit",
                f"at most {limit}, min(D + 1, W)", program.lane_limit)
        require(program.confidence_width in (0, program.draft_tokens), f"{field}.confidence_width",
                "0 or draft_tokens", program.confidence_width)

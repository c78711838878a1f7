"""State accesses of a graph: each view lies in its buffer, views lie apart, and together they say
what the program's body does."""

from collections.abc import Iterable
from itertools import pairwise

from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.manifest import (
    buffer_at,
    describe_buffer,
    row_elements,
)
from helios_dod.contract.prepared import PreparedProgram, PreparedState
from helios_dod.contract.uses import ROW_END, BodyUse, Span
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

# Graphs of earlier versions may list nothing; then the accesses are those of a host body.
LISTED_VERSION = 3
VIEWS_MAX = 1024  # of a graph
ACCESSES = (contract.READ, contract.WRITE)
BY_BITS = (contract.ACCESS_UNSPECIFIED, *ACCESSES, contract.READ_WRITE)  # Access by its bits


def prepare_view(
    manifest: wire.ExecutionManifest, view: contract.StateView, field: str,
) -> PreparedState:
    """A view by itself. Raises ContractError."""
    buffer = buffer_at(manifest, view.buffer, f"{field}.buffer")
    if buffer.kind not in (wire.STATE, wire.CACHE):
        raise ContractError(f"{field}.buffer", "a STATE or CACHE buffer", describe_buffer(buffer))
    elements = row_elements(buffer)
    if elements is not None:
        row = elements * ELEMENT_BYTES[buffer.dtype]
        if view.row_stride != row:
            raise ContractError(f"{field}.row_stride",
                                f"{row} bytes, a row of {describe_buffer(buffer)}",
                                view.row_stride)
        require(0 < view.extent <= row - min(view.offset, row), f"{field}.extent",
                f"1 to {row} bytes, offset included", view.offset + view.extent)
    else:
        whole = (view.offset, view.row_stride, view.extent) == (0, 0, 0)
        require(whole, field, "zeros: whole rows of a buffer whose width is chosen at load",
                view.row_stride)
    return PreparedState(view.buffer, view.offset, view.row_stride, view.extent, view.access)


def derive_views(manifest: wire.ExecutionManifest, use: BodyUse) -> list[contract.StateView]:
    """The views that a graph of a host body lists: a whole row of each STATE that it touches."""
    found: dict[int, int] = {}
    for (number, _, _), access in use.touched.items():
        if manifest.buffers[number].kind == wire.STATE:
            found[number] = found.get(number, 0) | access
    views = []
    for number, access in found.items():
        elements = row_elements(manifest.buffers[number])
        row = 0 if elements is None else elements * ELEMENT_BYTES[manifest.buffers[number].dtype]
        views.append(contract.StateView(
            buffer=number, row_stride=row, extent=row, access=BY_BITS[access]))
    return views


def prepare_states(
    manifest: wire.ExecutionManifest, version: int, graph: contract.GraphContract, use: BodyUse,
    field: str,
) -> tuple[PreparedState, ...]:
    """A graph's views, compared with what its body does. Raises ContractError."""
    require(len(graph.states) <= VIEWS_MAX, f"{field}.states", f"at most {VIEWS_MAX}",
            len(graph.states))
    views = tuple(prepare_view(manifest, view, f"{field}.states[{i}]")
                  for i, view in enumerate(graph.states))
    if not views and version < LISTED_VERSION and not use.named:
        return tuple(prepare_view(manifest, view, field) for view in derive_views(manifest, use))
    by_buffer: dict[int, list[PreparedState]] = {}
    for view in views:
        by_buffer.setdefault(view.buffer, []).append(view)
    places = sorted((span_of(view), i) for i, view in enumerate(views))
    for (one, i), (other, j) in pairwise(places):
        require(one[0] != other[0] or one[2] <= other[1], f"{field}.states[{max(i, j)}]",
                "bytes that no other view of the graph has", manifest.buffers[one[0]].name)
    _require_listed(manifest, use, by_buffer, field)
    for i, view in enumerate(views):
        _require_done(manifest, use, view, f"{field}.states[{i}].access")
    return views


def span_of(view: PreparedState) -> Span:
    """The bytes of a view."""
    return (view.buffer, view.offset, view.offset + view.extent if view.row_stride else ROW_END)


def covers(views: Iterable[PreparedState], span: Span, access: int) -> bool:
    """Whether views with this access hold every byte of a span."""
    buffer, first, end = span
    for own, low, high in sorted(span_of(view) for view in views if view.access & access):
        if own == buffer and low <= first < high:
            first = high
    return first >= end


def _require_listed(
    manifest: wire.ExecutionManifest, use: BodyUse, by_buffer: dict[int, list[PreparedState]],
    field: str,
) -> None:
    """Every access that the body has of STATE is listed, and everything that its kernels name."""
    for span, access in use.touched.items():
        buffer = manifest.buffers[span[0]]
        if buffer.kind != wire.STATE:
            continue
        views = by_buffer.get(span[0], [])
        for wanted in ACCESSES:
            if access & wanted and not covers(views, span, wanted):
                raise ContractError(
                    f"{field}.states",
                    f"a {contract.Access.Name(wanted)} view of {_describe(buffer, span)}, which "
                    f"the program {'reads' if wanted == contract.READ else 'writes'}",
                    _listed(buffer, views))
    for number in sorted(use.named):
        buffer = manifest.buffers[number]
        if buffer.kind == wire.STATE and number not in by_buffer:
            raise ContractError(f"{field}.states", f"a view of {buffer.name}, which a kernel of "
                                "the program names", _listed(buffer, []))


def _require_done(
    manifest: wire.ExecutionManifest, use: BodyUse, view: PreparedState, field: str,
) -> None:
    """A view says no access that the body does not have of its bytes."""
    if view.buffer in use.named:
        return
    number, first, end = span_of(view)
    has = 0
    for low, high, access in use.by_buffer.get(number, ()):
        if low < end and first < high:
            has |= access
    if view.access & ~has:
        allowed = contract.Access.Name(has) if has else "no access"
        raise ContractError(field,
                            f"{allowed} of {manifest.buffers[number].name}, as the program has",
                            contract.Access.Name(view.access))


def _describe(buffer: wire.Buffer, span: Span) -> str:
    _, first, end = span
    elements = row_elements(buffer)
    whole = elements is None or (first, end) == (0, elements * ELEMENT_BYTES[buffer.dtype])
    return buffer.name if whole else f"bytes {first} to {end} of {buffer.name}"


def _listed(buffer: wire.Buffer, views: list[PreparedState]) -> str:
    texts = [f"{contract.Access.Name(view.access)} of {_describe(buffer, span_of(view))}"
             for view in views]
    return ", ".join(texts) or f"none of {buffer.name}"


def check_pending_written(
    manifest: wire.ExecutionManifest, programs: tuple[PreparedProgram, ...],
) -> None:
    """A pending token that the device owns is written by some program. Raises ContractError."""
    for program in programs:
        pending = program.device_pending
        if pending is not None:
            span = span_of(pending)
            require(any(covers(other.states, span, contract.WRITE) for other in programs),
                    "contract.model.graphs", f"a graph with a WRITE view of "
                    f"{manifest.buffers[pending.buffer].name}, the pending token of {program.name}",
                    "none")

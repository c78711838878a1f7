"""State rows of recurrent and continuation histories, and the transfer of their snapshots."""

from dataclasses import dataclass
from math import prod

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.preparation.builder import (
    ELEMENT_BYTES,
    Body,
    Builder,
    Handle,
    Source,
    symbol,
)
from helios_dod.ignition.preparation.contract import Shared
from helios_dod.ignition.preparation.options import PAGE_TOKENS


@dataclass(frozen=True)
class StateTransfer:
    """A model's state rows, each with the rows of its snapshots, and its paged planes, whose pages
    that are not complete go to continuation storage."""

    shared: Shared
    rows: tuple[tuple[Handle, Handle], ...]  # F32 [STATE_ROWS, n], [SNAPSHOT_ROWS, n]
    planes: tuple[tuple[Handle, int], ...]  # cache plane, bytes of one of its pages
    storage: Handle | None  # U8 [SNAPSHOT_ROWS, bytes of a page over all planes]; None: no planes

    def _staged(self, name: str) -> wire.Operand:
        return self.shared.staged[name].whole

    def clear(self, body: Body) -> None:
        """The state of a request that begins."""
        for live, _ in self.rows:
            body.add(wire.FillRows(
                value=0, slot=self._staged("state_row"), destination=live.whole))

    def save(self, body: Body) -> None:
        """The end of a program, into the snapshots that lanes name."""
        for live, kept in self.rows:
            body.add(wire.CopyStateRows(
                source_row=self._staged("state_row"),
                destination_row=self._staged("snapshot_destination"),
                source=live.whole, destination=kept.whole, rows=1))
        self._copy_pages(body, "snapshot_destination", restore=False)

    def restore(self, body: Body) -> None:
        """The snapshots that lanes name, into their state rows and pages."""
        for live, kept in self.rows:
            body.add(wire.CopyStateRows(
                source_row=self._staged("restore_source"),
                destination_row=self._staged("state_row"),
                source=kept.whole, destination=live.whole, rows=1))
        self._copy_pages(body, "restore_source", restore=True)

    def go_ahead(self, body: Body) -> None:
        """Operations so far leave committed state as it is: they are those of a round."""
        for operation in body.operations:
            if isinstance(operation, wire.RecurrentScan | wire.CausalConvolution):
                operation.ahead = True

    def commit(self, body: Body) -> None:
        """The state behind the last token that each lane emitted."""
        for live, _ in self.rows:
            body.add(wire.CommitStateRows(
                state_row=self._staged("state_row"), state=live.whole))

    def _copy_pages(self, body: Body, row: str, restore: bool) -> None:
        at = 0
        for plane, nbytes in self.planes:
            assert self.storage is not None
            body.add(wire.CopyPartialPage(
                row=self._staged(row), slot=self._staged("slot"),
                consumed=self._staged("consumed"), query_length=self._staged("query_length"),
                table=self.shared.state["page_table"].whole, cache=plane.index,
                storage=self.storage.part(at, nbytes), restore=restore))
            at += nbytes

    def regions(self) -> list[contract.HistoryRegion]:
        """The regions of the state rows and of the continuation storage."""
        planes = [handle.index for pair in self.rows for handle in pair]
        found = [contract.HistoryRegion(kind=contract.RECURRENT, planes=planes)]
        if self.storage is not None:
            found.append(contract.HistoryRegion(
                kind=contract.CONTINUATION, planes=[self.storage.index]))
        return found


def declare_state(builder: Builder, shared: Shared, columns: dict[str, int],
                  planes: list[Handle]) -> StateTransfer:
    """Declares one row of f32 columns a name, and storage for one page of every plane."""
    lanes = symbol(wire.LANES)
    for name, value in (("state_row", contract.STATE_ROW),
                        ("restore_source", contract.RESTORE_SOURCE),
                        ("snapshot_destination", contract.SNAPSHOT_DESTINATION)):
        shared.staged[name] = builder.staging(
            name, wire.I32, (lanes,), Source(value, contract.ACTIVE_ROW))
    rows = tuple(
        (builder.buffer(name, wire.STATE, wire.F32, (symbol(wire.STATE_ROWS), width)),
         builder.buffer(f"snapshot_{name}", wire.STATE, wire.F32,
                        (symbol(wire.SNAPSHOT_ROWS), width)))
        for name, width in columns.items())
    sizes = [page_nbytes(builder.manifest.buffers[plane.index]) for plane in planes]
    storage = None
    if planes:
        storage = builder.buffer("snapshot_pages", wire.STATE, wire.U8,
                                 (symbol(wire.SNAPSHOT_ROWS), sum(sizes)))
    return StateTransfer(shared, rows, tuple(zip(planes, sizes, strict=True)), storage)


def page_nbytes(plane: wire.Buffer) -> int:
    """Bytes of one page of a cache plane."""
    return ELEMENT_BYTES[plane.dtype] * prod(
        axis.multiplier * (PAGE_TOKENS if axis.symbol else 1) for axis in list(plane.shape)[1:])

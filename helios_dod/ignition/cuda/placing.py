"""From staged values to state rows, page tables, pages and token ids."""

from typing import Any

from helios_dod.contract.operations import READ, READ_WRITE, WRITE
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.drawing import Drawing
from helios_dod.ignition.cuda.library import Pointer
from helios_dod.ignition.cuda.nodes import power
from helios_dod.ignition.preparation.builder import ELEMENT_BYTES

COPY_GRID = 16  # page copies that run beside each other
WORD_BLOCK = 1024


class Placing(Drawing):
    """The operations on what the host staged."""

    def _scatter_rows(self, op: Any) -> None:
        words = self.words(op.source.buffer)
        self.launch(
            self.rows.scatter_rows, (self.batch, -(-words // WORD_BLOCK)),
            dict(source=self.used(op.source.buffer, READ, "*i32"), slot=Pointer(op.slot.buffer),
                 destination=self.used(op.destination.buffer, WRITE, "*i32"),
                 live=self.live(wire.ROWS_LANES)),
            dict(WORDS=words, BLOCK=min(WORD_BLOCK, power(words))))

    def _fill_rows(self, op: Any) -> None:
        words = self.words(op.destination.buffer)
        self.launch(
            self.rows.fill_rows, (self.batch, -(-words // WORD_BLOCK)),
            dict(slot=Pointer(op.slot.buffer), live=self.live(wire.ROWS_LANES), value=op.value,
                 destination=self.used(op.destination.buffer, WRITE, "*i32")),
            dict(WORDS=words, BLOCK=min(WORD_BLOCK, power(words))))

    def _update_page_table(self, op: Any) -> None:
        self.launch(
            self.rows.update_page_table, (1,),
            dict(**self.operands(op, "count updates table"), stride=self.stride()),
            dict(BLOCK=256))

    def stride(self) -> wire.Extent:
        """Entries of a slot's page table."""
        return wire.Extent(symbol=wire.PAGES_PER_REQUEST, multiplier=1)

    def _copy_pages(self, op: Any) -> None:
        before, copies = self.last, []
        for index, buffer in enumerate(self.manifest.buffers):
            if buffer.kind != wire.CACHE:
                continue
            words = ELEMENT_BYTES[buffer.dtype] // 2
            for axis in buffer.shape[1:]:
                words *= axis.multiplier * (self.page_tokens if axis.symbol else 1)
            words //= 2
            self.last = before
            self.launch(
                self.rows.copy_pages, (COPY_GRID, -(-words // WORD_BLOCK)),
                dict(**self.operands(op, "count pairs"),
                     plane=self.used(index, READ_WRITE, "*i32")),
                dict(WORDS=words, BLOCK=WORD_BLOCK, GRID=COPY_GRID))
            copies += self.last
        self.last = copies

    def _select_tokens(self, op: Any) -> None:
        found = self.operands(op, "pending slot lane output")
        found["staged"] = Pointer(op.staged.buffer) if op.has_staged else found["output"]
        self.launch(
            self.rows.select_tokens, (-(-self.packed // 128),),
            dict(**found, live=self.live(wire.ROWS_PACKED)),
            dict(STAGED=op.has_staged, BLOCK=128))

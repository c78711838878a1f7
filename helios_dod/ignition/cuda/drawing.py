"""From logits to tokens and completion records."""

from typing import Any

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.library import Pointer, RowBytes
from helios_dod.ignition.cuda.nodes import Nodes, power

CHUNK = 4096  # logits of one block
SAMPLE_WARPS = 16


class Drawing(Nodes):
    """The operations of sampling and of a program's end."""

    def chunks(self, vocabulary: int) -> tuple[dict[str, Pointer], dict[str, int]]:
        """Scratch and constants of the largest logit of each chunk."""
        count = -(-vocabulary // CHUNK)
        shape = [wire.Extent(symbol=wire.LANES, multiplier=1), count]
        return (dict(chunk_top=Pointer(self.scratch("chunk_top", wire.F32, shape)),
                     chunk_index=Pointer(self.scratch("chunk_index", wire.I32, shape))),
                dict(VOCABULARY=vocabulary, CHUNKS=count, BLOCK=CHUNK))

    def _adjust_logits(self, op: Any) -> None:
        pointers, constants = self.chunks(self.columns(op.logits.buffer))
        names = ("logits slot status histogram repetition presence frequency bias_tokens "
                 "bias_values bias_count stop_tokens minimum generated")
        mask = op.mask.buffer if op.has_mask else op.slot.buffer
        self.launch(
            self.draws.adjust_logits, (self.batch, constants["CHUNKS"]),
            dict(**self.operands(op, names), **pointers, mask_words=Pointer(mask),
                 live=self.live(wire.ROWS_SAMPLED)),
            dict(**constants, BIAS=self.columns(op.bias_tokens.buffer),
                 MASK=self.columns(mask) if op.has_mask else 0,
                 STOPS=self.columns(op.stop_tokens.buffer)), warps=8)

    def _sample(self, op: Any) -> None:
        pointers, constants = self.chunks(self.columns(op.logits.buffer))
        names = ("logits slot status temperature top_p min_p top_k seed position sample_row "
                 "top_count output logprob top_tokens top_logprobs")
        self.launch(
            self.draws.sample, (self.batch,),
            dict(**self.operands(op, names), **pointers, live=self.live(wire.ROWS_SAMPLED)),
            dict(**constants, CHUNKS_UP=power(constants["CHUNKS"]),
                 TOP=self.columns(op.top_tokens.buffer)), warps=SAMPLE_WARPS)

    def _score(self, op: Any) -> None:
        self.launch(
            self.draws.score, (self.packed,),
            dict(**self.operands(op, "logits target output"), live=self.live(wire.ROWS_PACKED)),
            dict(VOCABULARY=self.columns(op.logits.buffer), BLOCK=CHUNK), warps=8)

    def _advance(self, op: Any) -> None:
        columns = {int(buffer.completion): index
                   for index, buffer in enumerate(self.manifest.buffers)
                   if buffer.kind == wire.COMPLETION}
        fields = ("SLOT", "GENERATION", "STATUS", "OFFERED", "ACCEPTED", "EMITTED", "TOKENS",
                  "ENDPOINT", "CURSOR", "RESERVED")
        out = {f"out_{name.lower()}": Pointer(
            columns[wire.CompletionField.Value(f"COMPLETION_{name}")], 4) for name in fields}
        names = ("sampled slot generation consumed query_length pending histogram generated "
                 "limit minimum stop_tokens status")
        self.launch(
            self.draws.advance, (1,),
            dict(**self.operands(op, names), **out, live_lanes=self.live(wire.ROWS_LANES),
                 live_sampled=self.live(wire.ROWS_SAMPLED),
                 tokens_stride=RowBytes(columns[wire.COMPLETION_TOKENS])),
            dict(VOCABULARY=self.columns(op.histogram.buffer),
                 STOPS=self.columns(op.stop_tokens.buffer), BLOCK=power(max(self.batch, 32))))

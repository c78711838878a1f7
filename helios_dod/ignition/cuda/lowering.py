"""A recipe's operations -> nodes of CUDA kernels, with neighbours fused.

    normalise            takes over the partial products that were to be added to its input
    product, rotary,     one product, then one kernel that rotates, stores pages and queries
      cache_write
    product, activation  one gated product; or a product, then its activation
    attention            tiles of queries; a decoding lane's in one kernel with its rotary and
                         cache write: over pages in shared memory where the shape fits that, else
                         in splits of the history that a second kernel adds

What a product reads is bf16: each buffer that feeds one has a bf16 twin, which alone is written.
Where weights are e4m3 and there may be several rows it is e4m3 too: norms write such a twin at
once, other rows are quantised in a kernel of their own.
"""

from typing import Any

from helios_dod.contract.operations import READ, READ_WRITE, WRITE
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.library import Pointer, Word
from helios_dod.ignition.cuda.native import decode_shared, few_shared
from helios_dod.ignition.cuda.nodes import power
from helios_dod.ignition.cuda.tiles import (
    FEW_ROWS,
    FEWER_TOKENS,
    GROUP,
    FewTile,
    RingTile,
    attention_tile,
    decode_tile,
    few_tile,
    gated_tile,
    product_tile,
    quantise_warps,
    ring_tile,
    tuned_few_tile,
    vector_tile,
    wide_tile,
)
from helios_dod.ignition.cuda.tuning import Choosing

ROW_BLOCK = 1024
ROTATED_ROWS = 16  # packed rows that are rotated and stored together
DECODE_ROWS = 16  # rows of an attention tile where a lane has one query, at least


class Lowering(Choosing):
    """Adds the nodes of one program after the other to a manifest."""

    def program(self, program: wire.Program, operations: list[Any], staged: list[int]) -> None:
        """The body of a program. staged: its STAGING buffers."""
        self.batch, self.packed = program.batch_capacity, program.packed_token_capacity
        self.single = program.operation == wire.DECODE
        self.body = wire.CudaBody()
        self.last: list[int] = []
        self.alternatives, self.depends = False, {}
        self.halves: set[int] = set()  # buffers whose bf16 twin this program wrote
        self.quantised: set[int] = set()  # or whose e4m3 twin
        # Buffer -> splits of the products to be added to it, and their bias.
        self.pending: dict[int, tuple[int, int | None]] = {}
        self.add(wire.CudaNode(ingest=wire.CudaIngest(buffers=sorted(staged))))
        self.waiting = [(op.WhichOneof("operation"), getattr(op, op.WhichOneof("operation")))
                        for op in operations]
        while self.waiting:
            name, operation = self.waiting.pop(0)
            handler = getattr(self, f"_{name}", None)
            if handler is None:
                raise self.refusal(program.name, name)
            handler(operation)
        self.launch(self.rows.signal, (1, 1, 1), dict(
            count=Word(wire.SUBMISSION_COUNT), finished=Word(wire.FINISHED_COUNT)), {}, warps=1)
        self.manifest.cuda_bodies.append(self.body)
        program.cuda_body = len(self.manifest.cuda_bodies) - 1

    def _embed(self, op: Any) -> None:
        columns = self.columns(op.output.buffer)
        self.launch(
            self.rows.embed, (self.capacity(op.rows), -(-columns // ROW_BLOCK)),
            dict(**self.operands(op, "index output"), table=Pointer(op.table),
                 live=self.live(op.rows), scale=float(op.scale or 1.0)),
            dict(ADD=op.accumulate, COLUMNS=columns, BLOCK=min(ROW_BLOCK, power(columns))))

    def _select_rows(self, op: Any) -> None:
        source, output = Pointer(op.input.buffer), Pointer(op.output.buffer)
        if op.input.buffer in self.halves:
            source, output = self.half(op.input.buffer, write=False), self.half(op.output.buffer)
        assert op.input.buffer not in self.pending
        columns = self.columns(op.output.buffer)
        self.launch(
            self.rows.select_rows, (self.capacity(op.rows), -(-columns // ROW_BLOCK)),
            dict(source=source, output=output, index=Pointer(op.index.buffer),
                 live=self.live(op.rows)),
            dict(COLUMNS=columns, BLOCK=min(ROW_BLOCK, power(columns))))

    def _normalise(self, op: Any) -> None:
        if op.kind not in (wire.RMS, wire.LAYER) or op.group:
            raise self.refusal("normalise", "this kind or group")
        columns, index = self.columns(op.input.buffer), op.input.buffer
        splits, bias = self.pending.pop(index, (0, None))
        weight, tokens = Pointer(op.weight), self.capacity(op.rows)
        if self.wants_eighth(op.output.buffer, tokens):
            self.halves.discard(op.output.buffer)
            output, scale = self.eighth(op.output.buffer)
        else:
            output, scale = self.half(op.output.buffer), weight
        self.launch(
            self.rows.normalise, (tokens,),
            dict(hidden=Pointer(index), partials=Pointer(self.partials),
                 added_bias=weight if bias is None else Pointer(bias), weight=weight,
                 bias=Pointer(op.bias) if op.has_bias else weight,
                 output=output, scale=scale, live=self.live(op.rows), tokens=tokens,
                 epsilon=float(op.epsilon)),
            dict(SPLITS=splits, ADDED=bias is not None, LAYER=op.kind == wire.LAYER,
                 BIAS=op.has_bias, QUANTISED=op.output.buffer in self.quantised,
                 COLUMNS=columns, BLOCK=power(columns)),
            warps=8 if columns >= 2048 else 4)

    def wants_eighth(self, index: int, tokens: int) -> bool:
        """Whether what comes to read a buffer next is a product in e4m3."""
        for name, op in self.waiting:
            if name in ("product", "select_rows") and op.input.buffer == index:
                return name == "product" and tokens > 1 and op.weight in self.factors
        return False

    def sources(self, op: Any) -> tuple[dict[str, Pointer], dict[str, bool], int]:
        """Weight and rows of a product as arguments and constants; bytes of a weight."""
        weight, index, tokens = Pointer(op.weight), op.input.buffer, self.capacity(op.rows)
        if op.weight not in self.factors:
            half = self.half(index, write=False)
            return (dict(weight=weight, x=half, weight_scale=weight, x_scale=weight),
                    dict(SCALED=False), 2)
        if index not in self.quantised:
            half, columns = self.half(index, write=False), self.columns(index)
            x, scale = self.eighth(index)
            self.launch(self.rows.quantise, (tokens,), dict(
                rows=half, output=x, scale=scale, live=self.live(op.rows)),
                dict(COLUMNS=columns, BLOCK=power(columns)), warps=quantise_warps(columns))
        x, scale = self.eighth(index)
        return (dict(weight=weight, x=x, weight_scale=Pointer(self.factors[op.weight]),
                     x_scale=scale), dict(SCALED=True), 1)

    def row_source(self, op: Any) -> tuple[dict[str, Pointer], dict[str, bool], int]:
        """The same of a product of one token, whose row is bf16 whatever its weight is."""
        scaled, weight = op.weight in self.factors, Pointer(op.weight)
        scale = Pointer(self.factors[op.weight]) if scaled else weight
        return (dict(weight=weight, x=self.half(op.input.buffer, write=False), weight_scale=scale),
                dict(SCALED=scaled), 1 if scaled else 2)

    def _product(self, op: Any) -> None:
        name, follower = self.waiting[0] if self.waiting else ("", op)
        if op.accumulate:
            splits = self.multiply(op, Pointer(self.partials), True)
            self.pending[op.output.buffer] = splits, op.bias if op.has_bias else None
        elif name == "activation" and follower.gate.buffer == op.output.buffer:
            self.waiting.pop(0)
            (self.gate if follower.has_up else self.activate)(op, follower)
        elif name in ("normalise", "rotary", "cache_write"):
            self.rotate(op, self.multiply(op, Pointer(self.partials), True))
        elif name in ("adjust_logits", "score"):
            self.multiply(op, Pointer(op.output.buffer), False)
        else:
            raise self.refusal("product", f"one followed by {name}")

    def multiply(self, op: Any, out: Pointer, split: bool) -> int:
        """A product into `out`; its number of splits."""
        rows, columns = (axis.multiplier for axis in self.manifest.buffers[op.weight].shape)
        tokens = self.capacity(op.rows)
        tuned = None if split or op.weight in self.factors else tuned_few_tile(columns, tokens)
        if tuned is not None:
            self.either(
                ("product", rows, columns, tokens), tokens, op.weight,
                lambda: self.multiply_tiles(op, out, rows, columns, split),
                lambda: self.multiply_few(op, out, tuned, rows, gated=False))
            return 1
        few = few_tile(rows, columns, tokens, split)
        if few is not None and op.weight not in self.factors:
            self.multiply_few(op, out, few, rows, gated=False)
            return few.splits
        if tokens == 1:
            return self.multiply_one(op, out, rows, columns)
        if tokens > FEWER_TOKENS:
            return self.multiply_wide(op, out, split)
        return self.multiply_tiles(op, out, rows, columns, split)

    def multiply_tiles(self, op: Any, out: Pointer, rows: int, columns: int, split: bool) -> int:
        """A product of at most FEWER_TOKENS tokens in tiles; its number of splits."""
        tokens = self.capacity(op.rows)
        sources, scaled, item = self.sources(op)
        tile = product_tile(rows, columns, tokens, split, item)
        if split:
            self.scratch("partials", wire.F32, [tile.splits * tokens * rows])
        self.launch(
            self.products.product, (-(-rows // tile.rows), -(-tokens // tile.tokens), tile.splits),
            dict(**sources, out=out, live=self.live(op.rows), tokens=tokens),
            dict(**scaled, ROWS=rows, COLUMNS=columns, SPLITS=tile.splits, BLOCK_R=tile.rows,
                 BLOCK_N=tile.tokens, BLOCK_K=tile.columns),
            warps=tile.warps, stages=tile.stages)
        return tile.splits

    def multiply_one(self, op: Any, out: Pointer, rows: int, columns: int) -> int:
        """A product of one token into `out`, not split."""
        sources, scaled, item = self.row_source(op)
        tile = vector_tile(columns, gated=False, item=item)
        self.scratch("partials", wire.F32, [rows])
        self.launch(
            self.products.vector_product, (-(-rows // tile.rows),), dict(**sources, out=out),
            dict(**scaled, ROWS=rows, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_K=tile.columns),
            warps=tile.warps)
        return 1

    def multiply_wide(self, op: Any, out: Pointer, split: bool = False, gated: bool = False) -> int:
        """A product of many tokens into `out`; its number of splits."""
        rows, columns = (axis.multiplier for axis in self.manifest.buffers[op.weight].shape)
        rows, tokens = rows // (1 + gated), self.capacity(op.rows)
        sources, scaled, item = self.sources(op)
        tile = wide_tile(rows, columns, tokens, gated, split, item)
        if split:
            self.scratch("partials", wire.F32, [tile.splits * tokens * rows])
        function = self.products.wide_gated_product if gated else self.products.wide_product
        self.launch(
            function, (-(-rows // tile.rows) * -(-tokens // tile.tokens), tile.splits),
            dict(**sources, out=out, live=self.live(op.rows), tokens=tokens),
            dict(**scaled, ROWS=rows, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_N=tile.tokens,
                 BLOCK_K=tile.columns, GROUP=GROUP) | (
                     {} if gated else dict(SPLITS=tile.splits)),
            warps=tile.warps, stages=tile.stages)
        return tile.splits

    def multiply_few(self, op: Any, out: Pointer, tile: FewTile, rows: int, gated: bool) -> None:
        """A product of few tokens, or a gated one with that many rows in each half."""
        columns = self.manifest.buffers[op.weight].shape[1].multiplier
        tokens = self.capacity(op.rows)
        self.scratch("partials", wire.F32, [tile.splits * tokens * rows])
        kept = FEW_ROWS // 2 if gated else FEW_ROWS
        self.add(wire.CudaNode(kernel=self.library.native(
            "few_product", "few.cu", (-(-rows // kept), tile.splits, 1),
            dict(weight=Pointer(op.weight), x=self.half(op.input.buffer, write=False), out=out,
                 live=self.live(op.rows)),
            dict(ROWS=rows, COLUMNS=columns, TOKENS=tokens, GATED=gated, SPLITS=tile.splits,
                 WARPS=tile.warps, DEPTH=tile.depth, BLOCKS=tile.blocks),
            tile.warps, few_shared(tokens, tile.warps))))

    def activate(self, op: Any, activation: Any) -> None:
        """A product, then its activation."""
        splits, columns = self.multiply(op, Pointer(self.partials), True), self.columns(
            activation.output.buffer)
        partials, tokens = Pointer(self.partials), self.capacity(op.rows)
        self.launch(
            self.rows.activate, (tokens, -(-columns // ROW_BLOCK)),
            dict(partials=partials, bias=Pointer(op.bias) if op.has_bias else partials,
                 output=self.half(activation.output.buffer), live=self.live(op.rows),
                 tokens=tokens),
            dict(SPLITS=splits, KIND=activation.kind, BIAS=op.has_bias, COLUMNS=columns,
                 BLOCK=min(ROW_BLOCK, power(columns))))

    def gate(self, op: Any, activation: Any) -> None:
        """A gated product: the activation takes the halves of the product's rows."""
        rows, columns = (axis.multiplier for axis in self.manifest.buffers[op.weight].shape)
        half = rows // 2
        whole = (activation.gate.column, activation.up.column) == (0, half)
        if op.has_bias or not whole or activation.kind != wire.SILU:
            raise self.refusal("activation", "this kind, bias or order")
        tokens = self.capacity(op.rows)
        out = self.half(activation.output.buffer)
        tuned = None if op.weight in self.factors else tuned_few_tile(columns, tokens)
        if tuned is not None:
            self.either(
                ("gated_product", half, columns, tokens), tokens, op.weight,
                lambda: self.gate_tiles(op, out, half, columns),
                lambda: self.multiply_few(op, out, tuned, half, gated=True))
            return
        few = few_tile(half, columns, tokens, split=False)
        if few is not None and op.weight not in self.factors:
            self.multiply_few(op, out, few, half, gated=True)
            return
        if tokens == 1:
            sources, scaled, item = self.row_source(op)
            tile = vector_tile(columns, gated=True, item=item)
            self.launch(
                self.products.gated_vector_product, (-(-half // tile.rows),),
                dict(**sources, out=out),
                dict(**scaled, ROWS=half, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_K=tile.columns),
                warps=tile.warps)
            return
        if tokens > FEWER_TOKENS:
            self.multiply_wide(op, out, gated=True)
            return
        self.gate_tiles(op, out, half, columns)

    def gate_tiles(self, op: Any, out: Pointer, half: int, columns: int) -> None:
        """A gated product of at most FEWER_TOKENS tokens in tiles."""
        tokens = self.capacity(op.rows)
        sources, scaled, item = self.sources(op)
        tile = gated_tile(columns, tokens, item)
        self.launch(
            self.products.gated_product, (-(-half // tile.rows), -(-tokens // tile.tokens)),
            dict(**sources, out=out, live=self.live(op.rows), tokens=tokens),
            dict(**scaled, ROWS=half, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_N=tile.tokens,
                 BLOCK_K=tile.columns),
            warps=tile.warps, stages=tile.stages)

    def rotate(self, op: Any, splits: int) -> None:
        """Head norms, rotary, cache write and attention behind a product of all heads."""
        norms: list[Any] = []
        while self.waiting[0][0] == "normalise":
            norms.append(self.waiting.pop(0)[1])
        rotary = self.waiting.pop(0)[1] if self.waiting[0][0] == "rotary" else None
        names = [name for name, _ in self.waiting[:2]]
        if names != ["cache_write", "attention"] or len(norms) not in (0, 2):
            raise self.refusal("product", f"one followed by {', '.join(names)}")
        write, attention = (self.waiting.pop(0)[1] for _ in range(2))
        key_heads, head = attention.key_heads, attention.head
        cache = self.manifest.buffers[write.key_cache].dtype
        if head != power(head) or head < 16 or cache != wire.BF16:
            raise self.refusal("attention", f"heads of {head}, or a cache that is not bf16")
        frequencies = Pointer(rotary.frequencies if rotary else self.partials)
        first, second = (Pointer(norm.weight) for norm in norms) if norms else [frequencies] * 2
        arguments = dict(
            partials=Pointer(self.partials), query_norm=first, key_norm=second,
            bias=Pointer(op.bias) if op.has_bias else frequencies, frequencies=frequencies,
            stride=self.stride(), tokens=self.packed,
            epsilon=float(norms[0].epsilon) if norms else 0.0,
            magnitude=float(rotary.magnitude or 1.0) if rotary else 1.0)
        constants = dict(
            HEADS=attention.heads, KEY_HEADS=key_heads, HEAD=head,
            HALF=self.manifest.buffers[rotary.frequencies].shape[0].multiplier if rotary else 0,
            PAGE=self.page_tokens,
            INTERLEAVED=rotary is not None and rotary.kind == wire.INTERLEAVED,
            BIAS=op.has_bias, NORM=bool(norms))
        if self.single:
            self.decode_attention(write, attention, arguments, constants | dict(PARTIALS=splits))
            return
        query = Pointer(self.scratch("query.bf16", wire.BF16, [
            wire.Extent(symbol=wire.PACKED, multiplier=1), attention.heads * head]))
        self.launch(
            self.rows.rotate_and_store, (-(-self.packed // ROTATED_ROWS), key_heads),
            dict(**arguments, **self.operands(write, "position lane slot table"), query=query,
                 keys=self.used(write.key_cache, WRITE),
                 values=self.used(write.value_cache, WRITE), live=self.live(wire.ROWS_PACKED)),
            dict(**constants, SPLITS=splits, BLOCK=ROTATED_ROWS))
        self.attention(attention, query)

    def attention(self, op: Any, query: Pointer) -> None:
        """Attention of every packed row, into the bf16 twin of its output."""
        group = power(op.heads // op.key_heads)
        tile = attention_tile(self.packed, op.head)
        queries = max(1, tile.rows // group)
        self.launch(
            self.attend.attention, (-(-self.packed // queries) + self.batch - 1, op.key_heads),
            dict(query=query, output=self.half(op.output.buffer),
                 **self.operands(op, "position slot table query_start query_length"),
                 keys=self.used(op.key_cache, READ), values=self.used(op.value_cache, READ),
                 live=self.live(wire.ROWS_LANES), stride=self.stride(), scale=float(op.scale)),
            dict(HEADS=op.heads, KEY_HEADS=op.key_heads, HEAD=op.head, PAGE=self.page_tokens,
                 WINDOW=op.window, LANES=power(self.batch), BLOCK_Q=queries, GROUP=group,
                 BLOCK_T=tile.tokens),
            warps=tile.warps, stages=tile.stages)

    def decode_attention(self, write: Any, op: Any, arguments: dict[str, Any],
                         constants: dict[str, Any]) -> None:
        """Rotary, cache write and attention of one query a lane."""
        ring = ring_tile(self.batch, op.heads, op.key_heads, op.head, self.page_tokens)
        if ring is not None:
            self.ring_attention(write, op, arguments, constants, ring)
            return
        tile = decode_tile(self.batch, op.key_heads, op.head)
        parts = self.batch * op.heads * tile.splits if tile.splits > 1 else 1
        sums = dict(part_values=Pointer(self.scratch("part_values", wire.F32, [parts, op.head])),
                    part_sums=Pointer(self.scratch("part_sums", wire.F32, [parts, 2])),
                    output=self.half(op.output.buffer), live=self.live(wire.ROWS_LANES))
        group = power(op.heads // op.key_heads)
        self.launch(
            self.decoding.decode_attention, (self.batch, op.key_heads, tile.splits),
            dict(**arguments, **self.operands(write, "position slot table"), **sums,
                 keys=self.used(write.key_cache, READ_WRITE),
                 values=self.used(write.value_cache, READ_WRITE), scale=float(op.scale)),
            dict(**constants, WINDOW=op.window, SPLITS=tile.splits, AHEAD=tile.ahead,
                 ROWS=max(DECODE_ROWS, group), GROUP_UP=group,
                 PAGES=tile.tokens // self.page_tokens),
            warps=tile.warps, stages=tile.stages)
        if tile.splits > 1:
            self.launch(self.attend.combine, (self.batch, op.heads), sums,
                        dict(HEADS=op.heads, HEAD=op.head, SPLITS=tile.splits))

    def ring_attention(self, write: Any, op: Any, arguments: dict[str, Any],
                       constants: dict[str, Any], tile: RingTile) -> None:
        """The same in one kernel, over pages that are copied into shared memory."""
        if tile.shared is not None:
            self.body.shared_percent = tile.shared
        given = arguments | dict(
            **self.operands(write, "position slot table"),
            keys=self.used(write.key_cache, READ_WRITE),
            values=self.used(write.value_cache, READ_WRITE),
            output=self.half(op.output.buffer), live=self.live(wire.ROWS_LANES),
            scale=float(op.scale))
        self.add(wire.CudaNode(kernel=self.library.native(
            "decode_attention", "decode.cu", (self.batch, op.key_heads, tile.splits),
            given,
            dict(**constants, WINDOW=op.window, TOKENS=self.packed, SPLITS=tile.splits,
                 WARPS=tile.warps, DEPTH=tile.depth),
            tile.warps, decode_shared(op.head, op.heads // op.key_heads, tile.warps, tile.depth))))


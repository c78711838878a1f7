"""A recipe's operations -> nodes of CUDA kernels, with neighbours fused.

    normalise            takes over the partial products that were to be added to its input
    product, rotary,     one product, then one kernel that rotates, stores pages and queries
      cache_write
    product, activation  one gated product
    attention            tiles of queries; a decoding lane's in one kernel with its rotary and
                         cache write, in splits of the history that a second kernel adds

What a product reads is bf16: each buffer that feeds one has a bf16 twin, which alone is written.
"""

from typing import Any

from helios_dod.contract.operations import OPERATIONS, READ, READ_WRITE, ROLE_ACCESS, WRITE
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.library import Library, Pointer, RowBytes, Word
from helios_dod.ignition.cuda.tiles import (
    EARLY_TOKENS,
    OVERLAP_TOKENS,
    decode_tile,
    gated_tile,
    product_tile,
    vector_tile,
)
from helios_dod.ignition.preparation.builder import ELEMENT_BYTES, OPERATION_FIELDS
from helios_dod.ignition.prepared import PreparationError

COPY_GRID = 16  # page copies that run beside each other
WORD_BLOCK = 1024
ROW_BLOCK = 1024
TILE_QUERIES = 64  # rows of an attention tile where a lane has many queries
DECODE_ROWS = 16  # and where it has one, at least
HISTORY_TOKENS = 64  # positions of one step of attention
CHUNK = 4096  # logits of one block
SAMPLE_WARPS = 16


def power(value: int) -> int:
    """The next power of two."""
    return 1 << (value - 1).bit_length()


class Lowering:
    """Adds the nodes of one program after the other to a manifest."""

    def __init__(self, manifest: wire.ExecutionManifest, page_tokens: int) -> None:
        from helios_dod.ignition.kernels import attention, decoding, products, rows, sampling

        self.rows, self.products, self.attend, self.draws = rows, products, attention, sampling
        self.decoding = decoding
        self.manifest, self.page_tokens = manifest, page_tokens
        self.library = Library(manifest)
        self.made: dict[str, int] = {}  # own scratch by name
        self.partials = self.scratch("partials", wire.F32, [1])

    def scratch(self, name: str, dtype: wire.DataType, shape: list[Any]) -> int:
        """A scratch buffer of this name; a constant one grows to the largest shape asked for."""
        axes = [axis if isinstance(axis, wire.Extent) else wire.Extent(multiplier=axis)
                for axis in shape]
        if name not in self.made:
            self.made[name] = len(self.manifest.buffers)
            self.manifest.buffers.append(
                wire.Buffer(name=name, kind=wire.SCRATCH, dtype=dtype, shape=axes))
        buffer = self.manifest.buffers[self.made[name]]
        if axes[0].symbol == 0:
            buffer.shape[0].multiplier = max(buffer.shape[0].multiplier, axes[0].multiplier)
        return self.made[name]

    def half(self, index: int, write: bool = True) -> Pointer:
        """The bf16 twin of a buffer; it is read only behind a write of the same program."""
        buffer = self.manifest.buffers[index]
        if write:
            self.halves.add(index)
        elif index not in self.halves:
            raise self.refusal("product", f"rows of {buffer.name} in float32")
        return Pointer(self.scratch(f"{buffer.name}.bf16", wire.BF16, list(buffer.shape)))

    def columns(self, index: int) -> int:
        """Elements of one row of a buffer of constant width."""
        count = 1
        for axis in self.manifest.buffers[index].shape[1:]:
            assert axis.symbol == 0
            count *= axis.multiplier
        return count

    def program(self, program: wire.Program, operations: list[Any], staged: list[int]) -> None:
        """The body of a program. staged: its STAGING buffers."""
        self.batch, self.packed = program.batch_capacity, program.packed_token_capacity
        self.single = program.operation == wire.DECODE
        self.body = wire.CudaBody()
        self.last: list[int] = []
        self.halves: set[int] = set()  # buffers whose bf16 twin this program wrote
        self.pending: dict[int, int] = {}  # buffer -> splits of the products to be added to it
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

    def refusal(self, place: str, what: str) -> PreparationError:
        """The error for what has no kernel."""
        return PreparationError(f"target cuda-sm90, {place}: no kernel for {what}")

    def add(self, node: wire.CudaNode) -> None:
        """Appends a node behind the last; a kernel behind one kernel may overlap it."""
        kernels = [self.body.nodes[i].HasField("kernel") for i in self.last]
        alone = node.HasField("kernel") and kernels == [True]
        self.body.nodes.append(node)
        number = len(self.body.nodes) - 1
        for before in self.last:
            self.body.edges.add(before=before, after=number,
                                overlap=alone and self.packed <= OVERLAP_TOKENS)
        self.last = [number]

    def launch(self, function: Any, grid: tuple[int, ...], arguments: dict[str, Any],
               constants: dict[str, Any], warps: int = 4, stages: int = 2) -> None:
        """Appends a kernel node."""
        x, y, z = (*grid, 1, 1)[:3]
        if "EARLY" in function.arg_names:
            constants = constants | dict(EARLY=self.packed <= EARLY_TOKENS)
        self.add(wire.CudaNode(kernel=self.library.kernel(
            function, (x, y, z), arguments, constants, warps, stages)))

    def live(self, rows: wire.RowDomain) -> Pointer:
        """The live count of a row domain."""
        return Pointer({wire.ROWS_PACKED: self.manifest.live_packed,
                        wire.ROWS_LANES: self.manifest.live_lanes,
                        wire.ROWS_SAMPLED: self.manifest.live_sampled}[rows])

    def capacity(self, rows: int) -> int:
        """The most rows of a domain."""
        return self.packed if rows == wire.ROWS_PACKED else self.batch

    def operands(self, op: Any, names: str) -> dict[str, Pointer]:
        """Operands by field name; completion columns are only aligned to their elements."""
        touches = {touch.field: touch for touch in OPERATIONS[OPERATION_FIELDS[
            op.DESCRIPTOR.name]]}
        found = {}
        for name in names.split():
            index = getattr(op, name).buffer
            kind = self.manifest.buffers[index].kind
            found[name] = Pointer(index, 4) if kind == wire.COMPLETION else self.used(
                index, ROLE_ACCESS[touches[name].role])
        return found

    def used(self, index: int, use: int, kind: str = "") -> Pointer:
        """A buffer and, where it outlives the program, what the kernel does with it."""
        lasts = self.manifest.buffers[index].kind in (wire.STATE, wire.CACHE)
        return Pointer(index, kind=kind, use=use if lasts else 0)

    def words(self, index: int) -> int:
        """4-byte words of one row."""
        return self.columns(index) * ELEMENT_BYTES[self.manifest.buffers[index].dtype] // 4

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

    def _embed(self, op: Any) -> None:
        if op.accumulate:
            raise self.refusal("embed", "accumulation")
        columns = self.columns(op.output.buffer)
        self.launch(
            self.rows.embed, (self.capacity(op.rows), -(-columns // ROW_BLOCK)),
            dict(**self.operands(op, "index output"), table=Pointer(op.table),
                 live=self.live(op.rows), scale=float(op.scale or 1.0)),
            dict(COLUMNS=columns, BLOCK=min(ROW_BLOCK, power(columns))))

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
        if op.kind != wire.RMS or op.has_bias or op.group:
            raise self.refusal("normalise", "this kind, bias or group")
        columns, index = self.columns(op.input.buffer), op.input.buffer
        self.launch(
            self.rows.normalise, (self.capacity(op.rows),),
            dict(hidden=Pointer(index), partials=Pointer(self.partials),
                 weight=Pointer(op.weight), output=self.half(op.output.buffer),
                 live=self.live(op.rows), tokens=self.capacity(op.rows),
                 epsilon=float(op.epsilon)),
            dict(SPLITS=self.pending.pop(index, 0), COLUMNS=columns, BLOCK=power(columns)),
            warps=8 if columns >= 2048 else 4)

    def _product(self, op: Any) -> None:
        name, follower = self.waiting[0] if self.waiting else ("", op)
        if op.accumulate:
            if op.has_bias:
                raise self.refusal("product", "a bias that is accumulated")
            self.pending[op.output.buffer] = self.multiply(op, Pointer(self.partials), True)
        elif name == "activation" and follower.gate.buffer == op.output.buffer:
            self.gate(op, self.waiting.pop(0)[1])
        elif name in ("normalise", "rotary"):
            self.rotate(op, self.multiply(op, Pointer(self.partials), True))
        elif name in ("adjust_logits", "score"):
            self.multiply(op, Pointer(op.output.buffer), False)
        else:
            raise self.refusal("product", f"one followed by {name}")

    def multiply(self, op: Any, out: Pointer, split: bool) -> int:
        """A product into `out`; its number of splits."""
        rows, columns = (axis.multiplier for axis in self.manifest.buffers[op.weight].shape)
        tokens = self.capacity(op.rows)
        if tokens == 1:
            return self.multiply_one(op, out, rows, columns)
        tile = product_tile(rows, columns, tokens, split)
        if split:
            self.scratch("partials", wire.F32, [tile.splits * tokens * rows])
        self.launch(
            self.products.product, (-(-rows // tile.rows), -(-tokens // tile.tokens), tile.splits),
            dict(weight=Pointer(op.weight), x=self.half(op.input.buffer, write=False), out=out,
                 live=self.live(op.rows), tokens=tokens),
            dict(ROWS=rows, COLUMNS=columns, SPLITS=tile.splits, BLOCK_R=tile.rows,
                 BLOCK_N=tile.tokens, BLOCK_K=tile.columns),
            warps=tile.warps, stages=tile.stages)
        return tile.splits

    def multiply_one(self, op: Any, out: Pointer, rows: int, columns: int) -> int:
        """A product of one token into `out`, not split."""
        tile = vector_tile(columns, gated=False)
        self.scratch("partials", wire.F32, [rows])
        self.launch(
            self.products.vector_product, (-(-rows // tile.rows),),
            dict(weight=Pointer(op.weight), x=self.half(op.input.buffer, write=False), out=out),
            dict(ROWS=rows, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_K=tile.columns),
            warps=tile.warps)
        return 1

    def gate(self, op: Any, activation: Any) -> None:
        """A gated product: the activation takes the halves of the product's rows."""
        rows, columns = (axis.multiplier for axis in self.manifest.buffers[op.weight].shape)
        half = rows // 2
        whole = (activation.gate.column, activation.up.column) == (0, half) and activation.has_up
        if op.has_bias or not whole or activation.kind != wire.SILU:
            raise self.refusal("activation", "this kind, bias or order")
        tokens = self.capacity(op.rows)
        x, out = self.half(op.input.buffer, write=False), self.half(activation.output.buffer)
        if tokens == 1:
            tile = vector_tile(columns, gated=True)
            self.launch(
                self.products.gated_vector_product, (-(-half // tile.rows),),
                dict(weight=Pointer(op.weight), x=x, out=out),
                dict(ROWS=half, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_K=tile.columns),
                warps=tile.warps)
            return
        tile = gated_tile(columns, tokens)
        self.launch(
            self.products.gated_product, (-(-half // tile.rows), -(-tokens // tile.tokens)),
            dict(weight=Pointer(op.weight), x=x, out=out, live=self.live(op.rows),
                 tokens=tokens),
            dict(ROWS=half, COLUMNS=columns, BLOCK_R=tile.rows, BLOCK_N=tile.tokens,
                 BLOCK_K=tile.columns),
            warps=tile.warps, stages=tile.stages)

    def rotate(self, op: Any, splits: int) -> None:
        """Head norms, rotary, cache write and attention behind a product of all heads."""
        norms: list[Any] = []
        while self.waiting[0][0] == "normalise":
            norms.append(self.waiting.pop(0)[1])
        names = [name for name, _ in self.waiting[:3]]
        if names != ["rotary", "cache_write", "attention"] or len(norms) not in (0, 2):
            raise self.refusal("product", f"one followed by {', '.join(names)}")
        rotary, write, attention = (self.waiting.pop(0)[1] for _ in range(3))
        key_heads, head = attention.key_heads, attention.head
        cache = self.manifest.buffers[write.key_cache].dtype
        if head != power(head) or head < 16 or cache != wire.BF16:
            raise self.refusal("attention", f"heads of {head}, or a cache that is not bf16")
        frequencies = Pointer(rotary.frequencies)
        first, second = (Pointer(norm.weight) for norm in norms) if norms else [frequencies] * 2
        arguments = dict(
            partials=Pointer(self.partials), query_norm=first, key_norm=second,
            bias=Pointer(op.bias) if op.has_bias else frequencies, frequencies=frequencies,
            stride=self.stride(), tokens=self.packed,
            epsilon=float(norms[0].epsilon) if norms else 0.0,
            magnitude=float(rotary.magnitude or 1.0))
        constants = dict(
            HEADS=attention.heads, KEY_HEADS=key_heads, HEAD=head,
            HALF=self.manifest.buffers[rotary.frequencies].shape[0].multiplier,
            PAGE=self.page_tokens, INTERLEAVED=rotary.kind == wire.INTERLEAVED,
            BIAS=op.has_bias, NORM=bool(norms))
        if self.single:
            self.decode_attention(write, attention, arguments, constants | dict(PARTIALS=splits))
            return
        query = Pointer(self.scratch("query.bf16", wire.BF16, [
            wire.Extent(symbol=wire.PACKED, multiplier=1), attention.heads * head]))
        self.launch(
            self.rows.rotate_and_store, (self.packed, attention.heads + 2 * key_heads),
            dict(**arguments, **self.operands(write, "position lane slot table"), query=query,
                 keys=self.used(write.key_cache, WRITE),
                 values=self.used(write.value_cache, WRITE), live=self.live(wire.ROWS_PACKED)),
            dict(**constants, SPLITS=splits), warps=1)
        self.attention(attention, query)

    def attention(self, op: Any, query: Pointer) -> None:
        """Attention of every packed row, into the bf16 twin of its output."""
        group = power(op.heads // op.key_heads)
        queries = max(1, TILE_QUERIES // group)
        tiles = -(-self.packed // queries)
        self.launch(
            self.attend.attention, (self.batch * tiles, op.key_heads),
            dict(query=query, output=self.half(op.output.buffer),
                 **self.operands(op, "position slot table query_start query_length"),
                 keys=self.used(op.key_cache, READ), values=self.used(op.value_cache, READ),
                 live=self.live(wire.ROWS_LANES), stride=self.stride(), scale=float(op.scale)),
            dict(HEADS=op.heads, KEY_HEADS=op.key_heads, HEAD=op.head, PAGE=self.page_tokens,
                 WINDOW=op.window, TILES=tiles, BLOCK_Q=queries, GROUP=group,
                 PAGES=HISTORY_TOKENS // self.page_tokens),
            warps=4, stages=3)

    def decode_attention(self, write: Any, op: Any, arguments: dict[str, Any],
                         constants: dict[str, Any]) -> None:
        """Rotary, cache write and attention of one query a lane."""
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
        self.launch(
            self.draws.adjust_logits, (self.batch, constants["CHUNKS"]),
            dict(**self.operands(op, names), **pointers, live=self.live(wire.ROWS_SAMPLED)),
            dict(**constants, BIAS=self.columns(op.bias_tokens.buffer),
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

"""The inner loops of matrix products, as LLVM vector IR over panels (layout: panels.py).

Rows lie in vector lanes and columns are walked one by one, so every output element is the chain

    acc = 0; for k in columns: acc = fma(value(row, k), x[k], acc)

whatever the number of activation rows, the kernel or the chunk: that is what makes a row's result
bitwise independent of its batch. `direct` expands weights in registers and uses each at once, for
few activation rows; `expand` writes them to a buffer in the first-level cache that `tile` then
reuses.

Arguments are int64 addresses and counts; `variant`, `vectors` and `rows` are literals. Tiles of
sums are f32 [activation rows][PANEL_ROWS].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from helios_dod.executors.host import panels
from helios_dod.executors.host.panels import PANEL_ROWS
from helios_dod.executors.host.vectors import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    full,
    fused,
    spread,
    vec,
    widen_bf16,
)


class Variant(NamedTuple):
    """What tells two kernels apart: the enums of PanelShape."""

    encoding: int
    scale: int
    minimum: int
    block: int


VARIANTS = (
    Variant(panels.PANEL_Q4, panels.F16, panels.F16, 32),
    Variant(panels.PANEL_Q4, panels.F32, panels.F32, 32),
    Variant(panels.PANEL_Q8, panels.F16, panels.NONE, 32),
    Variant(panels.PANEL_Q8, panels.F16, panels.F16, 32),
    Variant(panels.PANEL_Q8, panels.F32, panels.NONE, 16),
    Variant(panels.PANEL_Q8, panels.F32, panels.F32, 32),
    Variant(panels.PANEL_F32, panels.NONE, panels.NONE, 0),
    Variant(panels.PANEL_F16, panels.NONE, panels.NONE, 0),
    Variant(panels.PANEL_BF16, panels.NONE, panels.NONE, 0),
)
LOAD_ALIGN = 4
CACHE_LINE = 64
PREFETCH_BYTES = 8192  # measured best of 0, 1, 2, 4 and 8 KiB (perf/host.md)
PREFETCH_LEVEL = 3  # into the first-level cache
TILE_LEVEL = 2  # into the second: the first one holds the expanded buffer
EXPAND_COLUMNS = 128  # columns expanded at a time: 32 KiB, most of a first-level cache
TILE_UNROLL = 4


def variant_of(shape: panels.PanelShape) -> int:
    """Index of a matrix's kernels. ValueError for storage that no kernel reads."""
    wanted = Variant(shape.encoding, shape.scale, shape.minimum, shape.block_columns)
    if wanted not in VARIANTS or shape.panel_rows != PANEL_ROWS:
        raise ValueError(f"no kernel for panels of {shape}")
    return VARIANTS.index(wanted)


class Rows(NamedTuple):
    """The rows of a panel that one call covers: `vectors` vectors of `lanes` from `first`."""

    lanes: int
    vectors: int
    first: Any  # i64 value


def _at(builder: Any, base: Any, offset: Any, kind: ir.Type, align: int = LOAD_ALIGN) -> Any:
    """Load from an i8 pointer and an i64 byte offset."""
    return builder.load(
        builder.bitcast(builder.gep(base, [offset]), kind.as_pointer()), align=align
    )


def _prefetch(builder: Any, block: Any, nbytes: int, ahead: int, level: int) -> None:
    """Asks for the `nbytes` that lie `ahead` bytes behind a block."""
    kind = I8.as_pointer()
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [kind, I32, I32, I32]), "llvm.prefetch.p0"
    )
    for at in range(0, nbytes, CACHE_LINE):
        line = builder.gep(block, [ir.Constant(I64, ahead + at)])
        builder.call(
            function,
            [line, ir.Constant(I32, 0), ir.Constant(I32, level), ir.Constant(I32, 1)],
        )


def _plus(builder: Any, value: Any, constant: int) -> Any:
    return builder.add(value, ir.Constant(I64, constant)) if constant else value


def _scales(builder: Any, block: Any, rows: Rows, kind: int, at: int) -> list[Any]:
    """One row of scales of a block, f32."""
    element, size = (F16, 2) if kind == panels.F16 else (F32, 4)
    offset = builder.mul(rows.first, ir.Constant(I64, size))
    values = []
    for v in range(rows.vectors):
        value = _at(
            builder,
            block,
            _plus(builder, offset, at + v * rows.lanes * size),
            vec(element, rows.lanes),
            size,
        )
        values.append(builder.fpext(value, vec(F32, rows.lanes)) if size == 2 else value)
    return values


def _quant(builder: Any, word: Any, encoding: int, j: int) -> Any:
    """Quant j of a vector of words, as f32: a nibble, or a signed byte times 2**24."""
    lanes = word.type.count
    if encoding == panels.PANEL_Q4:
        if j:
            word = builder.lshr(word, full(I32, 4 * j, lanes))
        if j < 7:
            word = builder.and_(word, full(I32, 15, lanes))
    else:
        if j < 3:
            word = builder.shl(word, full(I32, 24 - 8 * j, lanes))
        if j:
            word = builder.and_(word, full(I32, -(1 << 24), lanes))
    return builder.sitofp(word, vec(F32, lanes))


def _plain_column(builder: Any, variant: Variant, column: Any, rows: Rows) -> list[Any]:
    """The weights of one column of a plain panel."""
    size = panels.VALUE_BYTES[variant.encoding]
    element = {panels.PANEL_F32: F32, panels.PANEL_F16: F16, panels.PANEL_BF16: I16}[
        variant.encoding
    ]
    offset = builder.mul(rows.first, ir.Constant(I64, size))
    values = []
    for v in range(rows.vectors):
        value = _at(
            builder,
            column,
            _plus(builder, offset, v * rows.lanes * size),
            vec(element, rows.lanes),
            size,
        )
        if variant.encoding == panels.PANEL_F16:
            value = builder.fpext(value, vec(F32, rows.lanes))
        elif variant.encoding == panels.PANEL_BF16:
            value = widen_bf16(builder, value)
        values.append(value)
    return values


def _quant_block(
    builder: Any, variant: Variant, block: Any, rows: Rows, use: Callable[[int, list[Any]], None]
) -> None:
    """Calls use(column, weights of the rows) for every column of a quantised block, in order."""
    scale = _scales(builder, block, rows, variant.scale, 0)
    header = PANEL_ROWS * panels.SCALE_BYTES[variant.scale]
    minimum = None
    if variant.minimum != panels.NONE:
        minimum = _scales(builder, block, rows, variant.minimum, header)
        header += PANEL_ROWS * panels.SCALE_BYTES[variant.minimum]
    if variant.encoding == panels.PANEL_Q8:  # quants come times 2**24; powers of two are exact
        scale = [builder.fmul(value, full(F32, 2.0**-24, rows.lanes)) for value in scale]
    each = panels.WORD_COLUMNS[variant.encoding]
    offset = builder.mul(rows.first, ir.Constant(I64, 4))
    for group in range(variant.block // each):
        at = header + group * PANEL_ROWS * 4
        words = [
            _at(
                builder,
                block,
                _plus(builder, offset, at + v * rows.lanes * 4),
                vec(I32, rows.lanes),
            )
            for v in range(rows.vectors)
        ]
        for j in range(each):
            weights = []
            for v, word in enumerate(words):
                quant = _quant(builder, word, variant.encoding, j)
                weights.append(
                    builder.fmul(quant, scale[v])
                    if minimum is None
                    else fused(builder, quant, scale[v], minimum[v])
                )
            use(group * each + j, weights)


def _loop(
    builder: Any, count: Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """for index in range(count), with values carried in registers; their last values."""
    before = builder.block
    head = builder.append_basic_block("head")
    inside = builder.append_basic_block("inside")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), before)
    values = []
    for value in carried:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        values.append(phi)
    builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
    builder.position_at_end(inside)
    results = body(index, list(values))
    index.add_incoming(builder.add(index, ir.Constant(I64, 1)), builder.block)
    for phi, value in zip(values, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return values


def _columns_and_bytes(variant: Variant) -> tuple[int, int]:
    """Columns and bytes of one loop step of a panel."""
    shape = panels.PanelShape(
        variant.encoding,
        PANEL_ROWS,
        max(variant.block, 1),
        PANEL_ROWS,
        variant.block,
        variant.scale,
        variant.minimum,
    )
    return max(variant.block, 1), shape.block_bytes


def _each_column(
    builder: Any, variant: Variant, block: Any, rows: Rows, use: Callable[[int, list[Any]], None]
) -> None:
    if variant.block:
        _quant_block(builder, variant, block, rows, use)
    else:
        use(0, _plain_column(builder, variant, block, rows))


def _inputs(builder: Any, x: Any, stride: Any, count: int) -> list[Any]:
    """Pointers to `count` activation rows."""
    starts = [builder.add(x, builder.mul(stride, ir.Constant(I64, c))) for c in range(count)]
    return [builder.inttoptr(start, I8.as_pointer()) for start in starts]


def _sum_pointer(builder: Any, out: Any, rows: Rows, c: int, v: int) -> Any:
    offset = _plus(
        builder, builder.mul(rows.first, ir.Constant(I64, 4)), (c * PANEL_ROWS + v * rows.lanes) * 4
    )
    address = builder.inttoptr(builder.add(out, offset), I8.as_pointer())
    return builder.bitcast(address, vec(F32, rows.lanes).as_pointer())


@intrinsic(prefer_literal=True)
def direct(typing_context, variant, lanes, vectors, count, weights, first, steps, x, stride, out):
    """Sums of `lanes * vectors` rows from `first` of a panel with `count` activation rows -> out.

    steps: blocks of a quantised panel, columns of a plain one. stride: bytes between
    activation rows."""
    v_count, c_count = vectors.literal_value, count.literal_value
    kind, width = VARIANTS[variant.literal_value], lanes.literal_value

    def generate(context, builder, signature, args):
        _, _, _, _, base, start, length, inputs, pitch, sums = args
        rows = Rows(width, v_count, start)
        columns, nbytes = _columns_and_bytes(kind)
        panel = builder.inttoptr(base, I8.as_pointer())
        xs = _inputs(builder, inputs, pitch, c_count)

        def body(index, acc):
            block = builder.gep(panel, [builder.mul(index, ir.Constant(I64, nbytes))])
            at = builder.mul(index, ir.Constant(I64, columns * 4))
            _prefetch(builder, block, nbytes, PREFETCH_BYTES, PREFETCH_LEVEL)

            def use(j, values):
                for c in range(c_count):
                    value = _at(builder, xs[c], _plus(builder, at, j * 4), F32)
                    wide = spread(builder, value, width)
                    for v in range(v_count):
                        slot = c * v_count + v
                        acc[slot] = fused(builder, values[v], wide, acc[slot])

            _each_column(builder, kind, block, rows, use)
            return acc

        zero = full(F32, 0.0, width)
        acc = _loop(builder, length, [zero] * (v_count * c_count), body)
        for c in range(c_count):
            for v in range(v_count):
                builder.store(
                    acc[c * v_count + v], _sum_pointer(builder, sums, rows, c, v), align=4
                )
        return context.get_dummy_value()

    return types.void(variant, lanes, vectors, count, *[types.int64] * 6), generate


@intrinsic(prefer_literal=True)
def expand(typing_context, variant, lanes, vectors, weights, first, steps, out):
    """Weights of `lanes * vectors` rows from `first` as f32 [column][PANEL_ROWS] -> out."""
    kind, width, v_count = (
        VARIANTS[variant.literal_value],
        lanes.literal_value,
        vectors.literal_value,
    )

    def generate(context, builder, signature, args):
        _, _, _, base, start, length, buffer = args
        rows = Rows(width, v_count, start)
        columns, nbytes = _columns_and_bytes(kind)
        panel = builder.inttoptr(base, I8.as_pointer())
        target = builder.inttoptr(buffer, I8.as_pointer())
        skip = builder.mul(start, ir.Constant(I64, 4))

        def body(index, acc):
            block = builder.gep(panel, [builder.mul(index, ir.Constant(I64, nbytes))])
            at = builder.add(skip, builder.mul(index, ir.Constant(I64, columns * PANEL_ROWS * 4)))

            def use(j, values):
                for v, value in enumerate(values):
                    offset = _plus(builder, at, (j * PANEL_ROWS + v * width) * 4)
                    to = builder.bitcast(builder.gep(target, [offset]), value.type.as_pointer())
                    builder.store(value, to, align=4)

            _each_column(builder, kind, block, rows, use)
            return acc

        _loop(builder, length, [], body)
        return context.get_dummy_value()

    return types.void(variant, lanes, vectors, *[types.int64] * 4), generate


@intrinsic(prefer_literal=True)
def tile(
    typing_context, lanes, vectors, count, buffer, first, columns, x, stride, out, ahead, pace
):
    """Continues the sums in `out` over `columns` columns of an expanded buffer.

    Asks meanwhile for the weights at `ahead`, `pace` bytes a column."""
    width, v_count, c_count = lanes.literal_value, vectors.literal_value, count.literal_value

    def generate(context, builder, signature, args):
        _, _, _, base, start, length, inputs, pitch, sums, coming, speed = args
        rows = Rows(width, v_count, start)
        skip = builder.mul(start, ir.Constant(I64, 4))
        weights = builder.inttoptr(builder.add(base, skip), I8.as_pointer())
        xs = _inputs(builder, inputs, pitch, c_count)
        wanted = builder.inttoptr(coming, I8.as_pointer())

        def column(at_w, at_x, acc, j):
            values = [
                _at(
                    builder,
                    weights,
                    _plus(builder, at_w, (j * PANEL_ROWS + v * width) * 4),
                    vec(F32, width),
                )
                for v in range(v_count)
            ]
            for c in range(c_count):
                wide = spread(builder, _at(builder, xs[c], _plus(builder, at_x, j * 4), F32), width)
                for v in range(v_count):
                    slot = c * v_count + v
                    acc[slot] = fused(builder, values[v], wide, acc[slot])

        def steps(unroll, base_column):
            def body(index, acc):
                first_column = builder.add(
                    base_column, builder.mul(index, ir.Constant(I64, unroll))
                )
                at_w = builder.mul(first_column, ir.Constant(I64, PANEL_ROWS * 4))
                at_x = builder.mul(first_column, ir.Constant(I64, 4))
                for j in range(unroll):
                    behind = builder.mul(_plus(builder, first_column, j), speed)
                    _prefetch(builder, builder.gep(wanted, [behind]), 2 * CACHE_LINE, 0, TILE_LEVEL)
                    column(at_w, at_x, acc, j)
                return acc

            return body

        slots = [
            _sum_pointer(builder, sums, rows, c, v) for c in range(c_count) for v in range(v_count)
        ]
        acc = [builder.load(slot, align=4) for slot in slots]
        whole = builder.sdiv(length, ir.Constant(I64, TILE_UNROLL))
        done = builder.mul(whole, ir.Constant(I64, TILE_UNROLL))
        acc = _loop(builder, whole, acc, steps(TILE_UNROLL, ir.Constant(I64, 0)))
        acc = _loop(builder, builder.sub(length, done), acc, steps(1, done))
        for slot, value in zip(slots, acc, strict=True):
            builder.store(value, slot, align=4)
        return context.get_dummy_value()

    return types.void(lanes, vectors, count, *[types.int64] * 8), generate

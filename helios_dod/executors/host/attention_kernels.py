"""The inner loops of attention, as LLVM vector IR over cache pages.

A block is BLOCK_TOKENS tokens at an absolute multiple of that; its tokens come in groups of
GROUP_TOKENS, each with an address, because pages lie anywhere. Keys of a page are stored
[head][page tokens], so a vector holds one dimension of neighbouring tokens; values [page
tokens][head], so a vector holds neighbouring dimensions of one token. Every sum is a chain in the
order of dimensions (scores) or tokens (outputs), whatever else is computed beside it.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from helios_dod.executors.host.microkernels import CACHE_LINE, _at, _loop, _plus
from helios_dod.executors.host.vectors import (
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

GROUP_TOKENS = 16
BLOCK_TOKENS = 64
GROUPS = BLOCK_TOKENS // GROUP_TOKENS
BF16 = 3  # proto DataType


def _element(kind: int) -> tuple[ir.Type, int]:
    return (I16, 2) if kind == BF16 else (F32, 4)


def _cached(builder: Any, base: Any, offset: Any, kind: int, lanes: int) -> Any:
    """A vector of cache elements as f32."""
    element, size = _element(kind)
    value = _at(builder, base, offset, vec(element, lanes), size)
    return widen_bf16(builder, value) if kind == BF16 else value


def _pointers(builder: Any, address: Any, stride: Any, count: int) -> list[Any]:
    return [
        builder.inttoptr(
            builder.add(address, builder.mul(stride, ir.Constant(I64, c))), I8.as_pointer()
        )
        for c in range(count)
    ]


def _group_base(builder: Any, groups: Any, index: Any) -> Any:
    """Pointer to group `index` of a block, from the array of addresses."""
    table = builder.inttoptr(groups, I64.as_pointer())
    return builder.inttoptr(builder.load(builder.gep(table, [index])), I8.as_pointer())


def _fetch(builder: Any, base: Any, offset: Any, nbytes: int) -> None:
    """Asks for the cache lines of `nbytes` at a pointer and offset: the next block's data."""
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32]),
        "llvm.prefetch.p0",
    )
    for at in range(0, nbytes, CACHE_LINE):
        line = builder.gep(base, [_plus(builder, offset, at)])
        read, near, data = ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)
        builder.call(function, [line, read, near, data])


def _place(builder: Any, base: Any, offset: int, lanes: int) -> Any:
    """Pointer to a vector of f32."""
    at = builder.gep(base, [ir.Constant(I64, offset)])
    return builder.bitcast(at, vec(F32, lanes).as_pointer())


@intrinsic(prefer_literal=True)
def scores(typing_context, kind, lanes, groups, count, keys, head, step, queries, stride, out):
    """out[c][token] = sum over dimensions of query[c] * key[token], for `groups` groups of tokens.

    keys: address of the groups' addresses, the next block's GROUPS places behind. step: bytes
    between dimensions. queries: f32 rows `stride` bytes apart; out: f32 [count][BLOCK_TOKENS]."""
    width, n, c_count = lanes.literal_value, groups.literal_value, count.literal_value
    dtype = kind.literal_value
    _, size = _element(dtype)
    per = GROUP_TOKENS // width

    def generate(context, builder, signature, args):
        _, _, _, _, table, length, pitch, inputs, q_stride, sums = args
        bases = [_group_base(builder, table, ir.Constant(I64, g)) for g in range(n)]
        nexts = [_group_base(builder, table, ir.Constant(I64, GROUPS + g)) for g in range(n)]
        qs = _pointers(builder, inputs, q_stride, c_count)

        def body(d, acc):
            at = builder.mul(d, pitch)
            for base in nexts:
                _fetch(builder, base, at, GROUP_TOKENS * size)
            found = [
                _cached(builder, bases[g], _plus(builder, at, i * width * size), dtype, width)
                for g in range(n)
                for i in range(per)
            ]
            for c in range(c_count):
                query = _at(builder, qs[c], builder.mul(d, ir.Constant(I64, 4)), F32)
                wide = spread(builder, query, width)
                for t, key in enumerate(found):
                    acc[c * n * per + t] = fused(builder, key, wide, acc[c * n * per + t])
            return acc

        zero = full(F32, 0.0, width)
        acc = _loop(builder, length, [zero] * (c_count * n * per), body)
        target = builder.inttoptr(sums, I8.as_pointer())
        for c in range(c_count):
            for t in range(n * per):
                place = _place(builder, target, (c * BLOCK_TOKENS + t * width) * 4, width)
                builder.store(acc[c * n * per + t], place, align=4)
        return context.get_dummy_value()

    return types.void(kind, lanes, groups, count, *[types.int64] * 6), generate


def _least(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _most(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), b, a)


def _each_token(builder: Any, table: Any, span: tuple[Any, Any], acc: list[Any], use: Any) -> Any:
    """Calls use(place, offset in its group, base, next base, sums) for each token of a span."""
    start, end = span
    per = ir.Constant(I64, GROUP_TOKENS)
    first = builder.sdiv(start, per)
    count = builder.sub(builder.sdiv(_plus(builder, end, GROUP_TOKENS - 1), per), first)

    def group(index, sums):
        number = builder.add(first, index)
        base = _group_base(builder, table, number)
        following = _group_base(builder, table, _plus(builder, number, GROUPS))
        begin = builder.mul(number, per)
        low = _most(builder, begin, start)
        high = _least(builder, builder.add(begin, per), end)

        def token(t, inner):
            place = builder.add(low, t)
            return use(place, builder.sub(place, begin), base, following, inner)

        return _loop(builder, builder.sub(high, low), sums, token)

    return _loop(builder, count, acc, group)


@intrinsic(prefer_literal=True)
def weigh(
    typing_context,
    kind,
    lanes,
    vectors,
    count,
    values,
    first,
    last,
    step,
    weights,
    scales,
    out,
    stride,
):
    """out[c] = out[c] * scales[c] + sum of weights[c][t] * value[t], tokens t in first..last-1.

    values: address of the groups' addresses, already moved to the dimensions wanted, the next
    block's GROUPS places behind. step: bytes between tokens. weights: f32 [count][BLOCK_TOKENS];
    out: f32 rows `stride` bytes apart."""
    width, v_count, c_count = lanes.literal_value, vectors.literal_value, count.literal_value
    dtype = kind.literal_value
    _, size = _element(dtype)

    def generate(context, builder, signature, args):
        _, _, _, _, table, start, end, pitch, probabilities, factors, sums, o_stride = args
        ps = _pointers(builder, probabilities, ir.Constant(I64, BLOCK_TOKENS * 4), c_count)
        outs = _pointers(builder, sums, o_stride, c_count)
        factor = builder.inttoptr(factors, I8.as_pointer())
        slots = [(c, i) for c in range(c_count) for i in range(v_count)]
        acc = []
        for c, i in slots:
            wide = spread(builder, _at(builder, factor, ir.Constant(I64, 4 * c), F32), width)
            old = builder.load(_place(builder, outs[c], i * width * 4, width), align=4)
            acc.append(builder.fmul(old, wide))

        def use(place, inside, base, following, inner):
            at = builder.mul(inside, pitch)
            _fetch(builder, following, at, v_count * width * size)
            found = [
                _cached(builder, base, _plus(builder, at, i * width * size), dtype, width)
                for i in range(v_count)
            ]
            where = builder.mul(place, ir.Constant(I64, 4))
            wide = [spread(builder, _at(builder, p, where, F32), width) for p in ps]
            return [
                fused(builder, found[i], wide[c], value)
                for (c, i), value in zip(slots, inner, strict=True)
            ]

        acc = _each_token(builder, table, (start, end), acc, use)
        for (c, i), value in zip(slots, acc, strict=True):
            builder.store(value, _place(builder, outs[c], i * width * 4, width), align=4)
        return context.get_dummy_value()

    return types.void(kind, lanes, vectors, count, *[types.int64] * 8), generate

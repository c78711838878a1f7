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
from numba.extending import intrinsic

from helios_dod.executors.host.microkernels import _at, _loop, _plus
from helios_dod.executors.host.vectors import F32, I8, I16, I64, fused, spread, vec, widen_bf16

GROUP_TOKENS = 16
BLOCK_TOKENS = 64
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


@intrinsic(prefer_literal=True)
def scores(typing_context, kind, lanes, groups, count, keys, head, step, queries, stride, out):
    """out[c][token] = sum over dimensions of query[c] * key[token], for `groups` groups of tokens.

    keys: address of the groups' addresses. step: bytes between dimensions. queries: f32 rows
    `stride` bytes apart; out: f32 [count][BLOCK_TOKENS]."""
    width, n, c_count = lanes.literal_value, groups.literal_value, count.literal_value
    dtype = kind.literal_value
    _, size = _element(dtype)
    per = GROUP_TOKENS // width

    def generate(context, builder, signature, args):
        _, _, _, _, table, length, pitch, inputs, q_stride, sums = args
        bases = [_group_base(builder, table, ir.Constant(I64, g)) for g in range(n)]
        qs = _pointers(builder, inputs, q_stride, c_count)

        def body(d, acc):
            at = builder.mul(d, pitch)
            keys_ = [
                _cached(builder, bases[g], _plus(builder, at, i * width * size), dtype, width)
                for g in range(n)
                for i in range(per)
            ]
            for c in range(c_count):
                query = _at(builder, qs[c], builder.mul(d, ir.Constant(I64, 4)), F32)
                wide = spread(builder, query, width)
                for t, key in enumerate(keys_):
                    acc[c * n * per + t] = fused(builder, key, wide, acc[c * n * per + t])
            return acc

        zero = ir.Constant(vec(F32, width), [0.0] * width)
        acc = _loop(builder, length, [zero] * (c_count * n * per), body)
        target = builder.inttoptr(sums, I8.as_pointer())
        for c in range(c_count):
            for t in range(n * per):
                at = ir.Constant(I64, (c * BLOCK_TOKENS + t * width) * 4)
                place = builder.gep(target, [at])
                builder.store(
                    acc[c * n * per + t],
                    builder.bitcast(place, vec(F32, width).as_pointer()),
                    align=4,
                )
        return context.get_dummy_value()

    return types.void(kind, lanes, groups, count, *[types.int64] * 6), generate


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

    values: address of the groups' addresses, already moved to the dimensions wanted. step: bytes
    between tokens. weights: f32 [count][BLOCK_TOKENS]; out: f32 rows `stride` bytes apart."""
    width, v_count, c_count = lanes.literal_value, vectors.literal_value, count.literal_value
    dtype = kind.literal_value
    _, size = _element(dtype)

    def generate(context, builder, signature, args):
        _, _, _, _, table, start, end, pitch, probabilities, factors, sums, o_stride = args
        ps = _pointers(builder, probabilities, ir.Constant(I64, BLOCK_TOKENS * 4), c_count)
        outs = _pointers(builder, sums, o_stride, c_count)
        factor = builder.inttoptr(factors, I8.as_pointer())
        acc = []
        for c in range(c_count):
            wide = spread(builder, _at(builder, factor, ir.Constant(I64, 4 * c), F32), width)
            for i in range(v_count):
                old = _at(builder, outs[c], ir.Constant(I64, i * width * 4), vec(F32, width))
                acc.append(builder.fmul(old, wide))
        per = ir.Constant(I64, GROUP_TOKENS)
        first_group = builder.sdiv(start, per)
        group_count = builder.sub(
            builder.sdiv(_plus(builder, end, GROUP_TOKENS - 1), per), first_group
        )

        def group(index, sums_):
            number = builder.add(first_group, index)
            base = _group_base(builder, table, number)
            begin = builder.mul(number, per)
            low = builder.select(builder.icmp_signed("<", begin, start), start, begin)
            stop = builder.add(begin, per)
            stop = builder.select(builder.icmp_signed("<", end, stop), end, stop)

            def token(t, acc_):
                place = builder.add(low, t)
                at = builder.mul(builder.sub(place, begin), pitch)
                value = [
                    _cached(builder, base, _plus(builder, at, i * width * size), dtype, width)
                    for i in range(v_count)
                ]
                where = builder.mul(place, ir.Constant(I64, 4))
                for c in range(c_count):
                    wide = spread(builder, _at(builder, ps[c], where, F32), width)
                    for i in range(v_count):
                        slot = c * v_count + i
                        acc_[slot] = fused(builder, value[i], wide, acc_[slot])
                return acc_

            return _loop(builder, builder.sub(stop, low), sums_, token)

        acc = _loop(builder, group_count, acc, group)
        for c in range(c_count):
            for i in range(v_count):
                place = builder.gep(outs[c], [ir.Constant(I64, i * width * 4)])
                builder.store(
                    acc[c * v_count + i],
                    builder.bitcast(place, vec(F32, width).as_pointer()),
                    align=4,
                )
        return context.get_dummy_value()

    return types.void(kind, lanes, vectors, count, *[types.int64] * 8), generate

"""One tile of attention: queries of neighbouring rows of a lane with one key head's query heads.

A tile walks the history in blocks of BLOCK_TOKENS at absolute positions with an online softmax, and
every SEGMENT_TOKENS begins a state anew that is merged into the tile's; so a query's arithmetic
depends on its own position and history alone, and segments may be computed apart. Blocks that a
tile reads for its other queries leave a state bitwise unchanged (weights of 0, a rescale by 1).

A state is, for `total` queries: maxima f32 [total], sums f32 [total][LANES], outputs f32
[total][padded head].
"""

from collections.abc import Callable

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host import vectors as v
from helios_dod.executors.host.attention_kernels import (
    BF16,
    BLOCK_TOKENS,
    GROUP_TOKENS,
    GROUPS,
    scores,
    weigh,
)
from helios_dod.executors.host.rows import word_float
from helios_dod.system import kernel

LANES = v.LANES
F32 = 1  # proto DataType
QUERIES = 24  # of a tile, at least one row of a whole group
SEGMENT_TOKENS = 1024
SCORE_GROUPS = 4 if LANES == 16 else 2  # groups whose sums fit the registers with six queries
VECTORS = 4 if LANES == 16 else 2  # of a head that one call of `weigh` covers
FLOOR = np.float32(-1e30)  # a maximum before any token: finite, so differences stay numbers
LINE = 64

# words after kind and domain
Q_QUERY, Q_OUTPUT, Q_POSITION, Q_LANE, Q_SLOT, Q_TABLE = 2, 4, 6, 8, 10, 12
Q_KEYS, Q_VALUES, Q_HEADS, Q_KEY_HEADS, Q_HEAD, Q_SCALE, Q_WINDOW = 14, 15, 16, 17, 18, 19, 20
Q_START, Q_LENGTH, Q_PAGE_TOKENS, Q_DTYPE = 21, 23, 25, 26


def _make_scores(kind: int) -> Callable:
    """Scores of some of `count` queries with SCORE_GROUPS groups; how many queries were done."""

    @kernel(boundscheck=False)
    def run(keys, head, step, queries, stride, count, out):
        if count >= 6:
            scores(kind, LANES, SCORE_GROUPS, 6, keys, head, step, queries, stride, out)
            return 6
        if count >= 4:
            scores(kind, LANES, SCORE_GROUPS, 4, keys, head, step, queries, stride, out)
            return 4
        if count == 3:
            scores(kind, LANES, SCORE_GROUPS, 3, keys, head, step, queries, stride, out)
            return 3
        if count == 2:
            scores(kind, LANES, SCORE_GROUPS, 2, keys, head, step, queries, stride, out)
            return 2
        scores(kind, LANES, SCORE_GROUPS, 1, keys, head, step, queries, stride, out)
        return 1

    return run


def _make_weigh(kind: int) -> Callable:
    """Weighted values of some of `count` queries, VECTORS vectors; queries done."""

    @kernel(boundscheck=False)
    def few(at, low, high, step, weights, scales, out, stride, count):
        if count == 3:
            weigh(kind, LANES, VECTORS, 3, at, low, high, step, weights, scales, out, stride)
            return 3
        if count == 2:
            weigh(kind, LANES, VECTORS, 2, at, low, high, step, weights, scales, out, stride)
            return 2
        weigh(kind, LANES, VECTORS, 1, at, low, high, step, weights, scales, out, stride)
        return 1

    @kernel(boundscheck=False)
    def run(at, low, high, step, weights, scales, out, stride, count):
        if count >= 6:
            weigh(kind, LANES, VECTORS, 6, at, low, high, step, weights, scales, out, stride)
            return 6
        if count >= 4:
            weigh(kind, LANES, VECTORS, 4, at, low, high, step, weights, scales, out, stride)
            return 4
        return few(at, low, high, step, weights, scales, out, stride, count)

    return run


scores_f32, scores_bf16 = _make_scores(F32), _make_scores(BF16)
weigh_f32, weigh_bf16 = _make_weigh(F32), _make_weigh(BF16)


@kernel(boundscheck=False)
def softmax_block(block, begin, position, first, scale, state, sums):
    """One query's scores of a block -> weights in place; the factor for its former output.

    begin: position of the block's first token; first: the first position the query sees. state: its
    running maximum; sums: LANES running sums."""
    wide_scale = v.splat(scale)
    partial = begin + BLOCK_TOKENS - 1 > position or begin < first
    least = v.splat(np.float32(-np.inf))
    top = least
    ramp = v.ramp()
    for i in range(0, BLOCK_TOKENS, LANES):
        value = v.mul(v.load(block + 4 * i), wide_scale)
        if partial:
            place = v.add(ramp, v.splat(np.float32(begin + i)))
            value = v.where_greater(place, v.splat(np.float32(position)), least, value)
            value = v.where_greater(v.splat(np.float32(first)), place, least, value)
        top = v.larger(value, top)
        v.store(block + 4 * i, value)
    old = m.get_f32(state)
    new = max(old, v.largest(top))
    m.put_f32(state, new)
    shift = v.splat(new)
    factor = v.exp_below(v.sub(v.splat(old), shift))
    sum_ = v.mul(v.load(sums), factor)
    for i in range(0, BLOCK_TOKENS, LANES):
        weight = v.exp_below(v.sub(v.load(block + 4 * i), shift))
        v.store(block + 4 * i, weight)
        sum_ = v.add(sum_, weight)
    v.store(sums, sum_)
    return v.largest(factor)


@kernel(boundscheck=False)
def group_addresses(w, row, begin, low, high, key_head, keys, values):
    """Writes the addresses of a block's groups; those outside low..high-1 repeat a readable one."""
    page_tokens, head = w[Q_PAGE_TOKENS], w[Q_HEAD]
    size = 4 if w[Q_DTYPE] == F32 else 2
    lowest = low // GROUP_TOKENS * GROUP_TOKENS
    highest = (high - 1) // GROUP_TOKENS * GROUP_TOKENS
    for g in range(GROUPS):
        token = min(max(begin + g * GROUP_TOKENS, lowest), highest)
        page = m.get_i32(row + 4 * (token // page_tokens))
        inside = token % page_tokens
        base = (page * w[Q_KEY_HEADS] + key_head) * head * page_tokens * size
        m.put_i64(keys + 8 * g, w[Q_KEYS] + base + inside * size)
        m.put_i64(values + 8 * g, w[Q_VALUES] + base + inside * head * size)


@kernel(boundscheck=False)
def head_pad(head):
    """Columns of a padded head: whole calls of `weigh`."""
    each = VECTORS * LANES
    return (head + each - 1) // each * each


@kernel(boundscheck=False)
def block_outputs(w, values, low, high, weights, factors, out, count):
    """out = out * factor + weights @ values of one block, for every query and all of the head."""
    head, pad = w[Q_HEAD], head_pad(w[Q_HEAD])
    wide = w[Q_DTYPE] == F32
    size = 4 if wide else 2
    each = VECTORS * LANES
    for d in range(0, pad, each):
        c = np.int64(0)
        while c < count:
            p, f, o = weights + c * BLOCK_TOKENS * 4, factors + 4 * c, out + (c * pad + d) * 4
            if wide:
                c += weigh_f32(values, low, high, head * size, p, f, o, pad * 4, count - c)
            else:
                c += weigh_bf16(values, low, high, head * size, p, f, o, pad * 4, count - c)
        for g in range(2 * GROUPS):
            m.put_i64(values + 8 * g, m.get_i64(values + 8 * g) + each * size)


@kernel(boundscheck=False)
def block_scores(w, keys, queries, out, count):
    """Unscaled scores of one block for every query."""
    head, pad = w[Q_HEAD], head_pad(w[Q_HEAD])
    wide = w[Q_DTYPE] == F32
    step = w[Q_PAGE_TOKENS] * (4 if wide else 2)
    for g in range(0, GROUPS, SCORE_GROUPS):
        c = np.int64(0)
        while c < count:
            q, s = queries + c * pad * 4, out + (c * BLOCK_TOKENS + g * GROUP_TOKENS) * 4
            if wide:
                c += scores_f32(keys + 8 * g, head, step, q, pad * 4, count - c, s)
            else:
                c += scores_bf16(keys + 8 * g, head, step, q, pad * 4, count - c, s)


@kernel(boundscheck=False)
def sums_at(state, total):
    """Address of a state's sums."""
    return (state + 4 * total + LINE - 1) // LINE * LINE


@kernel(boundscheck=False)
def outputs_at(state, total):
    """Address of a state's outputs."""
    return sums_at(state, total) + total * LANES * 4


def state_bytes(total: int, head: int) -> int:
    """Bytes of a state, up to the next cache line."""
    each = VECTORS * LANES
    pad = -(-head // each) * each
    return -(-(4 * total) // LINE) * LINE + total * 4 * (LANES + pad)


@kernel(boundscheck=False)
def clear_state(state, total, pad):
    """A state before any token."""
    zero = v.splat(np.float32(0))
    for c in range(total):
        m.put_f32(state + 4 * c, FLOOR)
    for i in range(0, total * (LANES + pad), LANES):
        v.store(sums_at(state, total) + 4 * i, zero)


@kernel(boundscheck=False)
def merge_state(state, part, total, pad):
    """Adds a later segment's state."""
    sums, part_sums = sums_at(state, total), sums_at(part, total)
    out, part_out = outputs_at(state, total), outputs_at(part, total)
    for c in range(total):
        old, new = m.get_f32(state + 4 * c), m.get_f32(part + 4 * c)
        top = max(old, new)
        m.put_f32(state + 4 * c, top)
        f, g = v.exp_below(v.splat(old - top)), v.exp_below(v.splat(new - top))
        at = c * LANES * 4
        v.store(sums + at, v.add(v.mul(v.load(sums + at), f), v.mul(v.load(part_sums + at), g)))
        for d in range(c * pad * 4, (c + 1) * pad * 4, LANES * 4):
            v.store(out + d, v.add(v.mul(v.load(out + d), f), v.mul(v.load(part_out + d), g)))


@kernel(boundscheck=False)
def gather_queries(w, start, count, key_head, queries):
    """Query heads of one key head's group, row by row: f32 [count * group][padded head]."""
    head, pad = w[Q_HEAD], head_pad(w[Q_HEAD])
    group = w[Q_HEADS] // w[Q_KEY_HEADS]
    for i in range(count):
        source = w[Q_QUERY] + (start + i) * w[Q_QUERY + 1] + key_head * group * head * 4
        for h in range(group):
            m.copy_bytes(queries + (i * group + h) * pad * 4, source + h * head * 4, head * 4)


@kernel(boundscheck=False)
def write_outputs(w, start, count, key_head, state):
    """Divides a state's outputs by its sums into the output rows."""
    head, pad = w[Q_HEAD], head_pad(w[Q_HEAD])
    group = w[Q_HEADS] // w[Q_KEY_HEADS]
    total = count * group
    sums, out = sums_at(state, total), outputs_at(state, total)
    for c in range(total):
        column = (key_head * group + c % group) * head * 4
        target = w[Q_OUTPUT] + (start + c // group) * w[Q_OUTPUT + 1] + column
        share = v.splat(np.float32(1) / v.total(v.load(sums + c * LANES * 4)))
        for d in range(0, head, LANES):
            value = v.mul(v.load(out + (c * pad + d) * 4), share)
            v.store_head(target + 4 * d, value, min(LANES, head - d))


@kernel(boundscheck=False)
def block_weights(w, begin, start, total, blocks, factors, state):
    """One block's scores -> weights, and each query's factor for what it has."""
    group = w[Q_HEADS] // w[Q_KEY_HEADS]
    scale, window = word_float(w[Q_SCALE]), w[Q_WINDOW]
    sums = sums_at(state, total)
    for c in range(total):
        position = m.get_i32(w[Q_POSITION] + (start + c // group) * w[Q_POSITION + 1])
        first = position - window + 1 if window > 0 else np.int64(0)
        block, sum_ = blocks + c * BLOCK_TOKENS * 4, sums + c * LANES * 4
        factor = softmax_block(block, begin, position, first, scale, state + 4 * c, sum_)
        m.put_f32(factors + 4 * c, factor)


@kernel(boundscheck=False)
def attend_span(w, lane, start, total, key_head, low, high, queries, scratch, state):
    """Adds tokens low..high-1 to the states of a tile's queries."""
    slot = m.get_i32(w[Q_SLOT] + lane * w[Q_SLOT + 1])
    row = w[Q_TABLE] + slot * w[Q_TABLE + 1]
    keys, values = scratch, scratch + 16 * GROUPS  # of a block and of the next one
    next_keys, next_values = keys + 8 * GROUPS, values + 8 * GROUPS
    blocks = scratch + 32 * GROUPS
    factors = blocks + total * BLOCK_TOKENS * 4
    out = outputs_at(state, total)
    for begin in range(low // BLOCK_TOKENS * BLOCK_TOKENS, high, BLOCK_TOKENS):
        group_addresses(w, row, begin, low, high, key_head, keys, values)
        following = begin + BLOCK_TOKENS
        group_addresses(w, row, following, low, high, key_head, next_keys, next_values)
        block_scores(w, keys, queries, blocks, total)
        block_weights(w, begin, start, total, blocks, factors, state)
        first, last = max(low - begin, 0), min(high - begin, BLOCK_TOKENS)
        block_outputs(w, values, first, last, blocks, factors, out, total)


def scratch_bytes(group: int, head: int) -> int:
    """Scratch of one thread for one tile: addresses, blocks, factors, queries and two states."""
    each = VECTORS * LANES
    pad = -(-head // each) * each
    total = max(QUERIES, group)
    span = 32 * GROUPS + total * (4 * BLOCK_TOKENS + 4)
    return span + total * pad * 4 + 2 * state_bytes(total, head) + 4 * LINE

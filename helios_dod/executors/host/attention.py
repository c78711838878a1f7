"""Paged attention and the writes that feed it.

A work item is (lane, key head, tile of queries): neighbouring rows of one lane with all query
heads of the key head's group. It walks the history in blocks of BLOCK_TOKENS at absolute positions
with an online softmax, so a query's arithmetic depends on its own position and history alone:
blocks that a tile reads for its other queries leave it bitwise unchanged (weights of 0, a rescale
by 1).
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
from helios_dod.executors.host.chunks import next_chunk
from helios_dod.executors.host.rows import word_float
from helios_dod.system import kernel

LANES = v.LANES
F32 = 1  # proto DataType
QUERIES = 24  # of a tile, at least one row of a whole group
SCORE_GROUPS = 4 if LANES == 16 else 2  # groups whose sums fit the registers with six queries
OUTPUT_VECTORS = 4 if LANES == 16 else 2
FLOOR = np.float32(
    -1e30
)  # the running maximum before any token: finite, so differences stay numbers

# words after kind and domain
Q_QUERY, Q_OUTPUT, Q_POSITION, Q_LANE, Q_SLOT, Q_TABLE = 2, 4, 6, 8, 10, 12
Q_KEYS, Q_VALUES, Q_HEADS, Q_KEY_HEADS, Q_HEAD, Q_SCALE, Q_WINDOW = 14, 15, 16, 17, 18, 19, 20
Q_START, Q_LENGTH, Q_PAGE_TOKENS, Q_DTYPE = 21, 23, 25, 26
W_KEY, W_VALUE, W_POSITION, W_LANE, W_SLOT, W_TABLE = 2, 4, 6, 8, 10, 12
W_KEYS, W_VALUES, W_KEY_HEADS, W_HEAD, W_PAGE_TOKENS, W_DTYPE = 14, 15, 16, 17, 18, 19


@kernel(boundscheck=False)
def cache_write(w, first, last):
    """Stores the key and value rows of packed tokens at their positions' pages."""
    heads, head, page_tokens = w[W_KEY_HEADS], w[W_HEAD], w[W_PAGE_TOKENS]
    wide = w[W_DTYPE] == F32
    size = 4 if wide else 2
    plane = head * page_tokens * size
    for r in range(first, last):
        position = m.get_i32(w[W_POSITION] + r * w[W_POSITION + 1])
        slot = m.get_i32(w[W_SLOT] + m.get_i32(w[W_LANE] + r * w[W_LANE + 1]) * w[W_SLOT + 1])
        row = w[W_TABLE] + slot * w[W_TABLE + 1]
        page = m.get_i32(row + 4 * (position // page_tokens))
        inside = position % page_tokens
        for h in range(heads):
            key = w[W_KEY] + r * w[W_KEY + 1] + h * head * 4
            value = w[W_VALUE] + r * w[W_VALUE + 1] + h * head * 4
            keys = w[W_KEYS] + (page * heads + h) * plane + inside * size
            values = w[W_VALUES] + (page * heads + h) * plane + inside * head * size
            for d in range(head):
                if wide:
                    m.put_f32(keys + d * page_tokens * 4, m.get_f32(key + 4 * d))
                    m.put_f32(values + d * 4, m.get_f32(value + 4 * d))
                else:
                    m.put_bf16(keys + d * page_tokens * 2, m.get_f32(key + 4 * d))
                    m.put_bf16(values + d * 2, m.get_f32(value + 4 * d))


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
    """Weighted values of some of `count` queries, OUTPUT_VECTORS vectors; queries done."""

    @kernel(boundscheck=False)
    def run(values, low, high, step, weights, scales, out, stride, count):
        if count >= 6:
            weigh(
                kind,
                LANES,
                OUTPUT_VECTORS,
                6,
                values,
                low,
                high,
                step,
                weights,
                scales,
                out,
                stride,
            )
            return 6
        if count >= 4:
            weigh(
                kind,
                LANES,
                OUTPUT_VECTORS,
                4,
                values,
                low,
                high,
                step,
                weights,
                scales,
                out,
                stride,
            )
            return 4
        if count == 3:
            weigh(
                kind,
                LANES,
                OUTPUT_VECTORS,
                3,
                values,
                low,
                high,
                step,
                weights,
                scales,
                out,
                stride,
            )
            return 3
        if count == 2:
            weigh(
                kind,
                LANES,
                OUTPUT_VECTORS,
                2,
                values,
                low,
                high,
                step,
                weights,
                scales,
                out,
                stride,
            )
            return 2
        weigh(kind, LANES, OUTPUT_VECTORS, 1, values, low, high, step, weights, scales, out, stride)
        return 1

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
    factor = v.exp(v.sub(v.splat(old), shift))
    sum_ = v.mul(v.load(sums), factor)
    for i in range(0, BLOCK_TOKENS, LANES):
        weight = v.exp(v.sub(v.load(block + 4 * i), shift))
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
    each = OUTPUT_VECTORS * LANES
    return (head + each - 1) // each * each


@kernel(boundscheck=False)
def block_outputs(w, values, low, high, weights, factors, out, count):
    """out = out * factor + weights @ values of one block, for every query and all of the head."""
    head, pad = w[Q_HEAD], head_pad(w[Q_HEAD])
    wide = w[Q_DTYPE] == F32
    size = 4 if wide else 2
    each = OUTPUT_VECTORS * LANES
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
def attend(w, lane, start, count, key_head, scratch):
    """Outputs of `count` packed rows from `start` of a lane, for one key head's query heads."""
    head, pad = w[Q_HEAD], head_pad(w[Q_HEAD])
    group = w[Q_HEADS] // w[Q_KEY_HEADS]
    scale, window = word_float(w[Q_SCALE]), w[Q_WINDOW]
    slot = m.get_i32(w[Q_SLOT] + lane * w[Q_SLOT + 1])
    row = w[Q_TABLE] + slot * w[Q_TABLE + 1]
    total = count * group
    keys, values = scratch, scratch + 16 * GROUPS  # of a block and of the next one
    factors = scratch + 32 * GROUPS
    peaks = factors + 4 * total
    sums = (peaks + 4 * total + 63) // 64 * 64
    blocks = sums + total * LANES * 4
    queries = blocks + total * BLOCK_TOKENS * 4
    out = queries + total * pad * 4
    first_column = key_head * group * head * 4
    for i in range(count):
        source = w[Q_QUERY] + (start + i) * w[Q_QUERY + 1] + first_column
        for h in range(group):
            m.copy_bytes(queries + (i * group + h) * pad * 4, source + h * head * 4, head * 4)
    zero = v.splat(np.float32(0))
    for c in range(total):
        m.put_f32(peaks + 4 * c, FLOOR)
        v.store(sums + c * LANES * 4, zero)
        for d in range(0, pad, LANES):
            v.store(out + (c * pad + d) * 4, zero)
    positions = w[Q_POSITION] + start * w[Q_POSITION + 1]
    step = w[Q_POSITION + 1]
    high = m.get_i32(positions + (count - 1) * step) + 1
    low = max(0, m.get_i32(positions) - window + 1) if window > 0 else np.int64(0)
    for begin in range(low // BLOCK_TOKENS * BLOCK_TOKENS, high, BLOCK_TOKENS):
        group_addresses(w, row, begin, low, high, key_head, keys, values)
        group_addresses(
            w,
            row,
            begin + BLOCK_TOKENS,
            low,
            high,
            key_head,
            keys + 8 * GROUPS,
            values + 8 * GROUPS,
        )
        block_scores(w, keys, queries, blocks, total)
        for c in range(total):
            position = m.get_i32(positions + c // group * step)
            first = position - window + 1 if window > 0 else np.int64(0)
            factor = softmax_block(
                blocks + c * BLOCK_TOKENS * 4,
                begin,
                position,
                first,
                scale,
                peaks + 4 * c,
                sums + c * LANES * 4,
            )
            m.put_f32(factors + 4 * c, factor)
        block_outputs(
            w,
            values,
            max(low - begin, 0),
            min(high - begin, BLOCK_TOKENS),
            blocks,
            factors,
            out,
            total,
        )
    for c in range(total):
        target = (
            w[Q_OUTPUT]
            + (start + c // group) * w[Q_OUTPUT + 1]
            + first_column
            + c % group * head * 4
        )
        share = v.splat(np.float32(1) / v.total(v.load(sums + c * LANES * 4)))
        for d in range(0, head, LANES):
            value = v.mul(v.load(out + (c * pad + d) * 4), share)
            v.store_head(target + 4 * d, value, min(LANES, head - d))


@kernel(boundscheck=False)
def tile_rows(w):
    """Rows of a tile."""
    return max(1, QUERIES // (w[Q_HEADS] // w[Q_KEY_HEADS]))


@kernel(boundscheck=False)
def attention_items(w, lanes):
    """Work items of all live lanes."""
    rows = tile_rows(w)
    tiles = np.int64(0)
    for lane in range(lanes):
        tiles += (m.get_i32(w[Q_LENGTH] + lane * w[Q_LENGTH + 1]) + rows - 1) // rows
    return tiles * w[Q_KEY_HEADS]


@kernel(boundscheck=False)
def attention(w, lanes, control, step, total, scratch):
    """Claims and runs work items; how many it ran."""
    key_heads = w[Q_KEY_HEADS]
    rows = tile_rows(w)
    ran = 0
    chunk = next_chunk(control, step, total)
    before = np.int64(0)
    for lane in range(lanes):
        length = m.get_i32(w[Q_LENGTH] + lane * w[Q_LENGTH + 1])
        items = (length + rows - 1) // rows * key_heads
        while 0 <= chunk < before + items:
            item = chunk - before
            first = item // key_heads * rows
            start = m.get_i32(w[Q_START] + lane * w[Q_START + 1]) + first
            attend(w, lane, start, min(rows, length - first), item % key_heads, scratch)
            ran += 1
            chunk = next_chunk(control, step, total)
        before += items
    return ran + 1 if chunk >= 0 else ran  # without items, a chunk stands for the empty step


def scratch_bytes(group: int, head: int) -> int:
    """Scratch of one thread for one tile."""
    each = OUTPUT_VECTORS * LANES
    pad = -(-head // each) * each
    total = max(QUERIES, group)
    return 256 + total * (8 + 4 * LANES + 4 * BLOCK_TOKENS + 8 * pad)

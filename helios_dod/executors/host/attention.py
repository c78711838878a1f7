"""Paged attention and the writes that feed it.

A work item is (lane, key head, tile of rows), or, where there are too few of those for the threads,
one segment of it; whoever finishes an item's last segment merges them in order, so the result is
the same. Where segments are computed apart their states lie in the operation's parts, and words of
the control array count the segments done.
"""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host.attention_kernels import BLOCK_TOKENS, GROUPS
from helios_dod.executors.host.attention_tile import (
    F32,
    LINE,
    Q_HEAD,
    Q_HEADS,
    Q_KEY_HEADS,
    Q_LENGTH,
    Q_POSITION,
    Q_START,
    Q_WINDOW,
    QUERIES,
    SEGMENT_TOKENS,
    attend_span,
    clear_state,
    gather_queries,
    head_pad,
    merge_state,
    outputs_at,
    write_outputs,
)
from helios_dod.executors.host.chunks import next_chunk
from helios_dod.system import fetch_add, kernel

# words after attention's own, and those of a cache write
Q_PARTS, Q_PART_BYTES, Q_SEGMENTS, Q_COUNTERS = 27, 28, 29, 30
W_KEY, W_VALUE, W_POSITION, W_LANE, W_SLOT, W_TABLE = 2, 4, 6, 8, 10, 12
W_KEYS, W_VALUES, W_KEY_HEADS, W_HEAD, W_PAGE_TOKENS, W_DTYPE = 14, 15, 16, 17, 18, 19
SPLIT_ITEMS = 2  # items a thread below which segments are computed apart


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


@kernel(boundscheck=False)
def tile_rows(w):
    """Rows of a tile."""
    return max(1, QUERIES // (w[Q_HEADS] // w[Q_KEY_HEADS]))


@kernel(boundscheck=False)
def span_of(w, start, count):
    """First token and end of the history that packed rows start..start+count-1 see."""
    step, window = w[Q_POSITION + 1], w[Q_WINDOW]
    high = m.get_i32(w[Q_POSITION] + (start + count - 1) * step) + 1
    first = m.get_i32(w[Q_POSITION] + start * step)
    return max(0, first - window + 1) if window > 0 else np.int64(0), high


@kernel(boundscheck=False)
def lane_cut(w, lane, split):
    """Tiles of a lane, and segments of each that are computed apart (1: they are not)."""
    length = m.get_i32(w[Q_LENGTH] + lane * w[Q_LENGTH + 1])
    rows = tile_rows(w)
    tiles = (length + rows - 1) // rows
    if not split or tiles == 0:
        return tiles, np.int64(1)
    _, high = span_of(w, m.get_i32(w[Q_START] + lane * w[Q_START + 1]), length)
    return tiles, (high - 1) // SEGMENT_TOKENS + 1


@kernel(boundscheck=False)
def splits(w, lanes, threads):
    """Whether segments are computed apart: too few items, and room for their states."""
    items = np.int64(0)
    for lane in range(lanes):
        tiles, _ = lane_cut(w, lane, False)
        items += tiles * w[Q_KEY_HEADS]
    return items < min(threads * SPLIT_ITEMS + 1, w[Q_COUNTERS] + 1)


@kernel(boundscheck=False)
def attention_chunks(w, lanes, threads):
    """Chunks of the operation."""
    split = splits(w, lanes, threads)
    chunks = np.int64(0)
    for lane in range(lanes):
        tiles, segments = lane_cut(w, lane, split)
        chunks += tiles * segments
    return chunks * w[Q_KEY_HEADS]


@kernel(boundscheck=False)
def attend(w, lane, start, count, key_head, scratch):
    """Outputs of `count` packed rows from `start`, segment after segment."""
    pad = head_pad(w[Q_HEAD])
    total = count * (w[Q_HEADS] // w[Q_KEY_HEADS])
    queries = scratch + 32 * GROUPS + total * (4 * BLOCK_TOKENS + 4)
    state = (queries + total * pad * 4 + LINE - 1) // LINE * LINE
    part = (outputs_at(state, total) + total * pad * 4 + LINE - 1) // LINE * LINE
    gather_queries(w, start, count, key_head, queries)
    clear_state(state, total, pad)
    low, high = span_of(w, start, count)
    for segment in range(low // SEGMENT_TOKENS, (high - 1) // SEGMENT_TOKENS + 1):
        begin = max(low, segment * SEGMENT_TOKENS)
        end = min(high, (segment + 1) * SEGMENT_TOKENS)
        if begin == low:
            attend_span(w, lane, start, total, key_head, begin, end, queries, scratch, state)
        else:
            clear_state(part, total, pad)
            attend_span(w, lane, start, total, key_head, begin, end, queries, scratch, part)
            merge_state(state, part, total, pad)
    write_outputs(w, start, count, key_head, state)


@kernel(boundscheck=False)
def attend_part(
    w, lane, start, count, key_head, segment, segments, parts, scratch, control, counter
):
    """One segment of an item into its part; the last one to finish merges them all."""
    pad = head_pad(w[Q_HEAD])
    total = count * (w[Q_HEADS] // w[Q_KEY_HEADS])
    queries = scratch + 32 * GROUPS + total * (4 * BLOCK_TOKENS + 4)
    part = parts + segment * w[Q_PART_BYTES]
    low, high = span_of(w, start, count)
    begin = max(low, segment * SEGMENT_TOKENS)
    end = min(high, (segment + 1) * SEGMENT_TOKENS)
    clear_state(part, total, pad)
    if begin < end:
        gather_queries(w, start, count, key_head, queries)
        attend_span(w, lane, start, total, key_head, begin, end, queries, scratch, part)
    if fetch_add(control, counter, 1) == segments - 1:
        control[counter] = 0
        for i in range(1, segments):
            merge_state(parts, parts + i * w[Q_PART_BYTES], total, pad)
        write_outputs(w, start, count, key_head, parts)


@kernel(boundscheck=False)
def attention(w, lanes, threads, control, counters, step, total, scratch):
    """Claims and runs chunks; how many it ran. counters: the first of the control's counters."""
    key_heads = w[Q_KEY_HEADS]
    rows = tile_rows(w)
    split = splits(w, lanes, threads)
    ran = 0
    chunk = next_chunk(control, step, total)
    before, items = np.int64(0), np.int64(0)
    for lane in range(lanes):
        length = m.get_i32(w[Q_LENGTH] + lane * w[Q_LENGTH + 1])
        start = m.get_i32(w[Q_START] + lane * w[Q_START + 1])
        tiles, segments = lane_cut(w, lane, split)
        chunks = tiles * segments * key_heads
        while 0 <= chunk < before + chunks:
            item, segment = (chunk - before) // segments, (chunk - before) % segments
            first, key_head = item // key_heads * rows, item % key_heads
            count = min(rows, length - first)
            if segments == 1:
                attend(w, lane, start + first, count, key_head, scratch)
            else:
                number = items + item
                parts = w[Q_PARTS] + number * w[Q_SEGMENTS] * w[Q_PART_BYTES]
                counter = counters + number
                attend_part(
                    w,
                    lane,
                    start + first,
                    count,
                    key_head,
                    segment,
                    segments,
                    parts,
                    scratch,
                    control,
                    counter,
                )
            ran += 1
            chunk = next_chunk(control, step, total)
        before += chunks
        items += tiles * key_heads
    return ran + 1 if chunk >= 0 else ran  # without items, a chunk stands for the empty step

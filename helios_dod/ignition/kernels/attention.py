"""Paged attention: tiles of a lane's queries over its own pages, and sums of a split history."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-1.0e30)  # below every score, and finite, so that differences are


@triton.jit
def page_tile(table, keys, values, t0, end, key_head, KEY_HEADS: tl.constexpr, HEAD: tl.constexpr,
              PAGE: tl.constexpr, PAGES: tl.constexpr):
    """Keys [HEAD, PAGES * PAGE] and values [PAGES * PAGE, HEAD] of positions t0 .. end - 1."""
    p = tl.arange(0, PAGES)
    t = tl.arange(0, PAGE)
    d = tl.arange(0, HEAD)
    page = tl.load(table + t0 // PAGE + p, mask=t0 + p * PAGE < end, other=0).to(tl.int64)
    plane = (page * KEY_HEADS + key_head) * (HEAD * PAGE)
    offset = plane[None, :, None] + d[:, None, None] * PAGE + t[None, None, :]
    held = t0 + p[None, :, None] * PAGE < end
    key = tl.reshape(tl.load(keys + offset, mask=held, other=0.0), [HEAD, PAGES * PAGE])
    offset = plane[:, None, None] + t[None, :, None] * HEAD + d[None, None, :]
    inside = t0 + p[:, None, None] * PAGE + t[None, :, None] < end
    value = tl.reshape(tl.load(values + offset, mask=inside, other=0.0), [PAGES * PAGE, HEAD])
    return key, value


@triton.jit
def tile_of(query_length, live, BLOCK_Q: tl.constexpr, LANES: tl.constexpr):
    """Lane and first query of a program's tile, the last tile of all first; lane LANES: none is
    left. Tiles of a lane do not reach into the next one."""
    lane = tl.arange(0, LANES)
    length = tl.load(query_length + lane, mask=lane < tl.load(live), other=0)
    tiles = tl.cdiv(length, BLOCK_Q)
    ends = tl.cumsum(tiles, axis=0)
    tile = tl.max(ends, axis=0) - 1 - tl.program_id(0)
    before = ends <= tile
    first = (tile - tl.sum(tl.where(before, tiles, 0), axis=0)) * BLOCK_Q
    return tl.where(tile < 0, LANES, tl.sum(before.to(tl.int32), axis=0)), first


@triton.jit
def attend(q, pages, keys, values, where, begin, end, last, key_head, top, total, acc, factor,
           KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
           BLOCK_T: tl.constexpr, MASKED: tl.constexpr):
    """Adds positions begin .. end - 1 to the running sums; not MASKED: every query sees them."""
    d = tl.arange(0, HEAD)
    for t0 in range(begin, end, BLOCK_T):
        t = t0 + tl.arange(0, BLOCK_T)
        page = tl.load(pages + t // PAGE, mask=t < last, other=0).to(tl.int64)
        plane = (page * KEY_HEADS + key_head) * (HEAD * PAGE)
        place = tl.max_contiguous(tl.multiple_of(plane + t % PAGE, PAGE), PAGE)
        key = tl.load(keys + place[None, :] + d[:, None] * PAGE)
        place = tl.multiple_of(plane + t % PAGE * HEAD, PAGE)
        if MASKED:
            value = tl.load(values + place[:, None] + d[None, :], mask=(t < last)[:, None],
                            other=0.0)
            seen = t[None, :] <= where[:, None]
            if WINDOW > 0:
                seen &= t[None, :] > where[:, None] - WINDOW
            score = tl.where(seen, tl.dot(q, key) * factor, LEAST)
            higher = tl.maximum(top, tl.max(score, axis=1))
            weight = tl.where(seen, tl.exp2(score - higher[:, None]), 0.0)
        else:
            value = tl.load(values + place[:, None] + d[None, :])
            score = tl.dot(q, key)
            higher = tl.maximum(top, tl.max(score, axis=1) * factor)
            weight = tl.exp2(score * factor - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(tl.bfloat16), value, acc * shrink[:, None])
        top = higher
    return top, total, acc


@triton.jit
def attention(query, output, position, slot, table, keys, values, query_start, query_length,
              live, stride, scale, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
              HEAD: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, LANES: tl.constexpr,
              BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, BLOCK_T: tl.constexpr):
    """Causal attention of BLOCK_Q queries of one lane and the heads that share a key head.

    Grid: tiles of all lanes, key heads. query, output: bf16 [rows, HEADS * HEAD]. GROUP: heads a
    key head, up to a power of two. Positions that all queries of a tile see come first."""
    gdc_wait()
    gdc_launch_dependents()
    lane, first = tile_of(query_length, live, BLOCK_Q, LANES)
    if lane == LANES:
        return
    length = tl.load(query_length + lane)
    start = tl.load(query_start + lane)
    slot_row = tl.load(slot + lane).to(tl.int64)
    key_head = tl.program_id(1)
    m = tl.arange(0, BLOCK_Q * GROUP)
    d = tl.arange(0, HEAD)
    own = (first + m // GROUP < length) & (m % GROUP < HEADS // KEY_HEADS)
    row = start + first + m // GROUP
    head = row * HEADS + key_head * (HEADS // KEY_HEADS) + m % GROUP
    q = tl.load(query + head[:, None].to(tl.int64) * HEAD + d[None, :], mask=own[:, None],
                other=0.0)
    where = tl.load(position + row, mask=own, other=-1)
    last = tl.max(where, axis=0) + 1
    least = tl.min(tl.where(own, where, last), axis=0)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(least - WINDOW + 1, 0) // BLOCK_T * BLOCK_T
    pages = table + slot_row * stride
    top = tl.full([BLOCK_Q * GROUP], LEAST, tl.float32)
    total = tl.zeros([BLOCK_Q * GROUP], tl.float32)
    acc = tl.zeros([BLOCK_Q * GROUP, HEAD], tl.float32)
    if WINDOW == 0:
        middle = (least + 1) // BLOCK_T * BLOCK_T
        top, total, acc = attend(q, pages, keys, values, where, begin, middle, last, key_head, top,
                                 total, acc, scale * LOG2_E, KEY_HEADS, HEAD, PAGE, WINDOW,
                                 BLOCK_T, False)
        begin = middle
    top, total, acc = attend(q, pages, keys, values, where, begin, last, last, key_head, top,
                             total, acc, scale * LOG2_E, KEY_HEADS, HEAD, PAGE, WINDOW, BLOCK_T,
                             True)
    result = (acc / total[:, None]).to(tl.bfloat16)
    tl.store(output + head[:, None].to(tl.int64) * HEAD + d[None, :], result, mask=own[:, None])


@triton.jit
def combine(part_values, part_sums, output, live, HEADS: tl.constexpr, HEAD: tl.constexpr,
            SPLITS: tl.constexpr, EARLY: tl.constexpr):
    """Adds the splits of each row and head, in order. Grid: rows, HEADS. EARLY: as in normalise.

    part_values: f32 [rows, HEADS, SPLITS, HEAD] and part_sums: f32 [rows, HEADS, SPLITS, 2] hold
    weighted sums, the largest score (base 2) and the sum of weights."""
    if EARLY:
        gdc_launch_dependents()
    gdc_wait()
    if not EARLY:
        gdc_launch_dependents()
    r = tl.program_id(0)
    alive = r < tl.load(live)
    head = (r * HEADS + tl.program_id(1)).to(tl.int64)
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, HEAD)
    part = head * SPLITS + s
    top = tl.load(part_sums + part * 2)
    total = tl.load(part_sums + part * 2 + 1)
    value = tl.load(part_values + part[:, None] * HEAD + d[None, :], mask=(total != 0)[:, None],
                    other=0.0)
    weight = tl.exp2(top - tl.max(top, axis=0))
    result = tl.sum(value * weight[:, None], axis=0) / tl.sum(weight * total, axis=0)
    tl.store(output + head * HEAD + d, result.to(tl.bfloat16), mask=(d < HEAD) & alive)

"""Decode attention: one query a lane, from the product of all heads to the attention's result.

A block rotates the queries of its key head, and where its part of the history holds the new
position also the new key, which it stores with the value; the new position is counted from
registers, so that no block waits for another. Pages before it are from earlier programs, and what
names them is from before the first norm, so the first of them are read before the product ends.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from helios_dod.ignition.kernels.attention import LEAST, LOG2_E, page_tile
from helios_dod.ignition.kernels.rows import added, rotated, turn


@triton.jit
def attend(query, key, value, top, total, acc, t0, begin, end, factor, BLOCK_T: tl.constexpr):
    """Adds positions t0 .. t0 + BLOCK_T - 1, those of begin .. end - 1, to the running sums."""
    t = t0 + tl.arange(0, BLOCK_T)
    seen = ((t >= begin) & (t < end))[None, :]
    score = tl.where(seen, tl.dot(query, key) * factor, LEAST)
    higher = tl.maximum(top, tl.max(score, axis=1))
    weight = tl.where(seen, tl.exp2(score - higher[:, None]), 0.0)
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weight, axis=1)
    acc = tl.dot(weight.to(tl.bfloat16), value, acc * shrink[:, None])
    return higher, total, acc


@triton.jit
def share(where, split, PAGE: tl.constexpr, WINDOW: tl.constexpr, SPLITS: tl.constexpr):
    """First position that is seen; first one of a split, and their number, in whole pages."""
    first = where * 0
    if WINDOW > 0:
        first = tl.maximum(where - WINDOW + 1, 0)
    start = first // PAGE * PAGE
    chunk = tl.cdiv(tl.cdiv(where + 1 - start, SPLITS), PAGE) * PAGE
    return first, start + split * chunk, chunk


@triton.jit
def new_position(query, partials, bias, key_norm, keys, values, lane, key_head, page, token,
                 partner, cosine, sine, tokens, epsilon, factor, top, total, acc,
                 PARTIALS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
                 HEAD: tl.constexpr, PAGE: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr):
    """Stores the key and value of the new position, a token of a page, and counts it first."""
    d = tl.arange(0, HEAD)
    COLUMNS: tl.constexpr = (HEADS + 2 * KEY_HEADS) * HEAD
    at = tl.zeros([1, 1], tl.int32) + (HEADS + key_head) * HEAD
    new_key = rotated(partials, bias, key_norm, lane, at, at >= 0, partner, cosine, sine,
                      tokens, epsilon, PARTIALS, COLUMNS, HEAD, BIAS, NORM)
    new_value = added(partials, bias, lane, at + (KEY_HEADS * HEAD + d)[None, :], at >= 0,
                      tokens, PARTIALS, COLUMNS, BIAS).to(tl.bfloat16)
    plane = (page * KEY_HEADS + key_head) * (HEAD * PAGE)
    tl.store(keys + plane + (d * PAGE + token)[None, :], new_key)
    tl.store(values + plane + (token * HEAD + d)[None, :], new_value)
    top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), axis=1) * factor
    return top, total + 1.0, acc + new_value.to(tl.float32)


@triton.jit
def decode_attention(partials, bias, query_norm, key_norm, frequencies, position, slot, table,
                     keys, values, output, part_values, part_sums, live, stride, tokens,
                     epsilon, magnitude, scale, PARTIALS: tl.constexpr, HEADS: tl.constexpr,
                     KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr,
                     PAGE: tl.constexpr, WINDOW: tl.constexpr, INTERLEAVED: tl.constexpr,
                     BIAS: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr,
                     GROUP_UP: tl.constexpr,
                     PAGES: tl.constexpr, SPLITS: tl.constexpr, AHEAD: tl.constexpr):
    """Lane i is row i. Grid: lanes, KEY_HEADS, SPLITS; ROWS: queries of a key head, padded.

    partials: f32 [PARTIALS, tokens, all heads * HEAD]; output, part_values, part_sums: as
    attention's. AHEAD: the first PAGES are read before the wait."""
    gdc_launch_dependents()
    lane = tl.program_id(0)
    key_head = tl.program_id(1)
    split = tl.program_id(2)
    lanes = tl.load(live)
    where = tl.load(position + lane)
    row = tl.load(slot + lane)
    if lane >= lanes:
        gdc_wait()
        return
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    COLUMNS: tl.constexpr = (HEADS + 2 * KEY_HEADS) * HEAD
    BLOCK_T: tl.constexpr = PAGES * PAGE
    pages = table + row.to(tl.int64) * stride
    page = tl.load(pages + where // PAGE).to(tl.int64)
    first, start, chunk = share(where, split, PAGE, WINDOW, SPLITS)
    end = tl.minimum(start + chunk, where)
    if AHEAD:
        key, value = page_tile(pages, keys, values, start, end, key_head, KEY_HEADS, HEAD, PAGE,
                               PAGES)
    g, d = tl.arange(0, GROUP_UP), tl.arange(0, HEAD)
    own = g < GROUP
    partner, cosine, sine = turn(where, frequencies, magnitude, HEAD, HALF, INTERLEAVED)
    gdc_wait()
    column = (key_head * GROUP + tl.where(own, g, 0)) * HEAD
    heads = rotated(partials, bias, query_norm, lane, column[:, None], own[:, None], partner,
                    cosine, sine, tokens, epsilon, PARTIALS, COLUMNS, HEAD, BIAS, NORM)
    query = tl.reshape(tl.broadcast_to(heads[None, :, :], [ROWS // GROUP_UP, GROUP_UP, HEAD]),
                       [ROWS, HEAD])
    top = tl.full([ROWS], LEAST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    factor = scale * LOG2_E
    if (where >= start) & (where < start + chunk):
        top, total, acc = new_position(
            query, partials, bias, key_norm, keys, values, lane, key_head, page, where % PAGE,
            partner, cosine, sine, tokens, epsilon, factor, top, total, acc, PARTIALS, HEADS,
            KEY_HEADS, HEAD, PAGE, BIAS, NORM)
    if AHEAD:
        top, total, acc = attend(query, key, value, top, total, acc, start, first, end, factor,
                                 BLOCK_T)
        start += BLOCK_T
    for t0 in range(start, end, BLOCK_T):
        key, value = page_tile(pages, keys, values, t0, end, key_head, KEY_HEADS, HEAD, PAGE,
                               PAGES)
        top, total, acc = attend(query, key, value, top, total, acc, t0, first, end, factor,
                                 BLOCK_T)
    m = tl.arange(0, ROWS)
    own = m < GROUP
    head = (lane * HEADS + key_head * GROUP + m).to(tl.int64)
    if SPLITS == 1:
        tl.store(output + head[:, None] * HEAD + d[None, :],
                 (acc / total[:, None]).to(tl.bfloat16), mask=own[:, None])
        return
    part = head * SPLITS + split
    tl.store(part_values + part[:, None] * HEAD + d[None, :], acc, mask=own[:, None])
    tl.store(part_sums + part * 2, top, mask=own)
    tl.store(part_sums + part * 2 + 1, total, mask=own)

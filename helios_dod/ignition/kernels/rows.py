"""Operations on rows: admission, page tables, embedding, norms, rotary positions and cache writes.

Semantics: proto/manifest.proto. Every kernel takes live counts from the device, so that one graph
serves any number of live rows up to its capacity. Where latency counts, rows beyond the live ones
are computed and not stored, so that no load waits for the count.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

SILU, GELU_TANH, GELU_ERF, RELU = (tl.constexpr(kind) for kind in (1, 2, 3, 4))  # ActivationKind
E4M3_MAX = tl.constexpr(448.0)
TINY = tl.constexpr(1.0e-30)  # so that a row of zeros has a factor


@triton.jit
def scatter_rows(source, slot, destination, live, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """destination[slot[i]] = source[i], rows of WORDS 4-byte words. Grid: lanes, blocks."""
    gdc_wait()
    gdc_launch_dependents()
    i = tl.program_id(0)
    if i >= tl.load(live):
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(slot + i).to(tl.int64)
    value = tl.load(source + i.to(tl.int64) * WORDS + c, mask=c < WORDS)
    tl.store(destination + row * WORDS + c, value, mask=c < WORDS)


@triton.jit
def fill_rows(slot, destination, live, value, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """destination[slot[i]] = value in every word. Grid: lanes, blocks."""
    gdc_wait()
    gdc_launch_dependents()
    i = tl.program_id(0)
    if i >= tl.load(live):
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(slot + i).to(tl.int64)
    tl.store(destination + row * WORDS + c, tl.zeros([BLOCK], tl.int32) + value, mask=c < WORDS)


@triton.jit
def update_page_table(count, updates, table, stride, BLOCK: tl.constexpr):
    """table[update[i, 0], update[i, 1]] = update[i, 2]. Grid: 1."""
    gdc_launch_dependents()
    gdc_wait()
    total = tl.load(count)
    for start in range(0, total, BLOCK):
        i = start + tl.arange(0, BLOCK)
        live = i < total
        row = tl.load(updates + 3 * i, mask=live, other=0).to(tl.int64)
        column = tl.load(updates + 3 * i + 1, mask=live, other=0)
        page = tl.load(updates + 3 * i + 2, mask=live, other=0)
        tl.store(table + row * stride + column, page, mask=live)


@triton.jit
def copy_pages(count, pairs, plane, WORDS: tl.constexpr, BLOCK: tl.constexpr, GRID: tl.constexpr):
    """plane[pairs[i, 1]] = plane[pairs[i, 0]], pages of WORDS 4-byte words. Grid: GRID, blocks."""
    gdc_wait()
    gdc_launch_dependents()
    total = tl.load(count)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for i in range(tl.program_id(0), total, GRID):
        source = tl.load(pairs + 2 * i).to(tl.int64)
        target = tl.load(pairs + 2 * i + 1).to(tl.int64)
        value = tl.load(plane + source * WORDS + c, mask=c < WORDS)
        tl.store(plane + target * WORDS + c, value, mask=c < WORDS)


@triton.jit
def select_tokens(staged, pending, slot, lane, output, live, STAGED: tl.constexpr,
                  BLOCK: tl.constexpr):
    """output[r] = staged[r] if it is there and not negative, else pending[slot[lane[r]]]."""
    gdc_launch_dependents()
    gdc_wait()
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = r < tl.load(live)
    row = tl.load(slot + tl.load(lane + r, mask=mask, other=0), mask=mask, other=0)
    token = tl.load(pending + row, mask=mask, other=0)
    if STAGED:
        given = tl.load(staged + r, mask=mask, other=-1)
        token = tl.where(given >= 0, given, token)
    tl.store(output + r, token, mask=mask)


@triton.jit
def embed(index, table, output, live, scale, ADD: tl.constexpr, COLUMNS: tl.constexpr,
          BLOCK: tl.constexpr):
    """output[r] = table[index[r]] * scale, or where ADD is set += it. table: bf16, output: f32.
    Grid: rows, blocks."""
    gdc_wait()
    gdc_launch_dependents()
    r = tl.program_id(0)
    if r >= tl.load(live):
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + r).to(tl.int64)
    value = tl.load(table + row * COLUMNS + c, mask=c < COLUMNS).to(tl.float32) * scale
    place = output + r.to(tl.int64) * COLUMNS + c
    if ADD:
        value += tl.load(place, mask=c < COLUMNS)
    tl.store(place, value, mask=c < COLUMNS)


@triton.jit
def select_rows(source, index, output, live, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """output[i] = source[index[i]]. Grid: rows, blocks."""
    gdc_launch_dependents()
    gdc_wait()
    i = tl.program_id(0)
    if i >= tl.load(live):
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + i).to(tl.int64)
    value = tl.load(source + row * COLUMNS + c, mask=c < COLUMNS)
    tl.store(output + i.to(tl.int64) * COLUMNS + c, value, mask=c < COLUMNS)


@triton.jit
def store_eighths(value, peak, output, scale, r, c, mask, alive, COLUMNS: tl.constexpr):
    """output[r] = value in e4m3, divided by scale[r]: the largest magnitude, peak, becomes the
    largest of e4m3."""
    factor = tl.maximum(peak, TINY) / E4M3_MAX
    tl.store(output + r.to(tl.int64) * COLUMNS + c, (value / factor).to(tl.float8e4nv),
             mask=mask & alive)
    tl.store(scale + r, factor, mask=alive)


@triton.jit
def sum_and_peak(sum_a, peak_a, sum_b, peak_b):
    """Combines sums, and maxima."""
    return sum_a + sum_b, tl.maximum(peak_a, peak_b)


@triton.jit
def quantise(rows, output, scale, live, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """output[r] * scale[r] = rows[r], in e4m3 of bf16. Grid: rows."""
    gdc_wait()
    gdc_launch_dependents()
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    alive = r < tl.load(live)
    mask = c < COLUMNS
    value = tl.load(rows + r.to(tl.int64) * COLUMNS + c, mask=mask, other=0.0).to(tl.float32)
    peak = tl.max(tl.abs(value), axis=0)
    store_eighths(value, peak, output, scale, r, c, mask, alive, COLUMNS)


@triton.jit
def normalise(hidden, partials, added_bias, weight, bias, output, scale, live, tokens, epsilon,
              SPLITS: tl.constexpr, ADDED: tl.constexpr, LAYER: tl.constexpr, BIAS: tl.constexpr,
              QUANTISED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
              EARLY: tl.constexpr):
    """hidden[r] += partial products, and their bias where ADDED is set; output[r] = hidden[r] / rms
    * weight, or where LAYER is set the same of what is left without its mean; + bias. Grid: rows.

    hidden: f32 [., COLUMNS], partials: f32 [SPLITS, tokens, COLUMNS], output: bf16, or as
    store_eighths'. EARLY: the next kernel may begin before this one's wait is over."""
    if EARLY:
        gdc_launch_dependents()
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < COLUMNS
    gain = tl.load(weight + c, mask=mask, other=0.0)
    gdc_wait()
    if not EARLY:
        gdc_launch_dependents()
    alive = r < tl.load(live)
    place = hidden + r.to(tl.int64) * COLUMNS + c
    value = tl.load(place, mask=mask, other=0.0)
    for split in tl.static_range(SPLITS):
        value += tl.load(partials + (split * tokens + r).to(tl.int64) * COLUMNS + c, mask=mask,
                         other=0.0)
    if ADDED:
        value += tl.load(added_bias + c, mask=mask, other=0.0)
    if SPLITS > 0:
        tl.store(place, value, mask=mask & alive)
    if LAYER:
        value = tl.where(mask, value - tl.sum(value, axis=0) / COLUMNS, 0.0)
    if QUANTISED:
        total, peak = tl.reduce((value * value, tl.abs(value * gain)), 0, sum_and_peak)
    else:
        total = tl.sum(value * value, axis=0)
    factor = tl.rsqrt(total / COLUMNS + epsilon)
    value = value * factor * gain
    if BIAS:
        value += tl.load(bias + c, mask=mask, other=0.0)
    if QUANTISED:
        peak = tl.max(tl.abs(value), axis=0) if BIAS else peak * factor
        store_eighths(value, peak, output, scale, r, c, mask, alive, COLUMNS)
    else:
        tl.store(output + r.to(tl.int64) * COLUMNS + c, value.to(tl.bfloat16), mask=mask & alive)


@triton.jit
def activate(partials, bias, output, live, tokens, SPLITS: tl.constexpr, KIND: tl.constexpr,
             BIAS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """output[r] = f(partial products + bias): bf16. KIND: proto ActivationKind. Grid: rows, blocks.

    GELU by its definition with the error function, and by its tanh form (Hendrycks and Gimpel,
    2016)."""
    gdc_wait()
    gdc_launch_dependents()
    r = tl.program_id(0)
    if r >= tl.load(live):
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = added(partials, bias, r, c, c < COLUMNS, tokens, SPLITS, COLUMNS, BIAS)
    if KIND == SILU:
        x = x / (1.0 + tl.exp(-x))
    elif KIND == GELU_ERF:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == GELU_TANH:
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        tl.static_assert(KIND == RELU)
        x = tl.maximum(x, 0.0)
    tl.store(output + r.to(tl.int64) * COLUMNS + c, x.to(tl.bfloat16), mask=c < COLUMNS)


@triton.jit
def turn(where, frequencies, magnitude, HEAD: tl.constexpr, HALF: tl.constexpr,
         INTERLEAVED: tl.constexpr):
    """Of each element of a head: its partner, and cosine and signed sine at a position, or at each
    of several [M, 1]."""
    d = tl.arange(0, HEAD)
    turned = d < 2 * HALF
    if HALF == 0:
        partner = d
        first = turned
        frequency = tl.zeros([HEAD], tl.float32)
    elif INTERLEAVED:
        partner = tl.where(turned, d ^ 1, d)
        first = (d & 1) == 0
        frequency = tl.load(frequencies + d // 2, mask=turned, other=0.0)
    else:
        partner = tl.where(d < HALF, d + HALF, tl.where(turned, d - HALF, d))
        first = d < HALF
        frequency = tl.load(frequencies + d % HALF, mask=turned, other=0.0)
    angle = where.to(tl.float32) * frequency
    sine = tl.sin(angle) * magnitude
    cosine = tl.where(turned, tl.cos(angle) * magnitude, 1.0)
    return partner, cosine, tl.where(turned, tl.where(first, -sine, sine), 0.0)


@triton.jit
def added(partials, bias, row, column, mask, tokens, SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
          BIAS: tl.constexpr):
    """Columns of a product's row: its partial products in order, and the bias."""
    value = tl.zeros(column.shape, tl.float32)
    for split in tl.static_range(SPLITS):
        base = partials + (split * tokens + row).to(tl.int64) * COLUMNS
        value += tl.load(base + column, mask=mask, other=0.0)
    if BIAS:
        value += tl.load(bias + column, mask=mask, other=0.0)
    return value


@triton.jit
def rotated(partials, bias, weight, row, column, mask, partner, cosine, sine, tokens, epsilon,
            SPLITS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr, BIAS: tl.constexpr,
            NORM: tl.constexpr):
    """Heads that begin at columns [M, 1] of a product's row, normed and rotated: bf16 [M, HEAD].
    row, partner, cosine and sine: of all M, or [M, 1] rows with their own angles."""
    d = tl.arange(0, HEAD)
    own = added(partials, bias, row, column + d[None, :], mask, tokens, SPLITS, COLUMNS, BIAS)
    other = added(partials, bias, row, column + partner[None, :], mask, tokens, SPLITS, COLUMNS,
                  BIAS)
    if NORM:
        factor = tl.rsqrt(tl.sum(own * own, axis=1) / HEAD + epsilon)[:, None]
        own = own * factor * tl.load(weight + d)[None, :]
        other = other * factor * tl.load(weight + partner)[None, :]
    return (own * cosine + sine * other).to(tl.bfloat16)


@triton.jit
def rotate_and_store(partials, bias, query_norm, key_norm, position, lane, slot, table,
                     frequencies, query, keys, values, live, stride, tokens, epsilon, magnitude,
                     SPLITS: tl.constexpr, HEADS: tl.constexpr,
                     KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr,
                     PAGE: tl.constexpr, INTERLEAVED: tl.constexpr, BIAS: tl.constexpr,
                     NORM: tl.constexpr, BLOCK: tl.constexpr):
    """Queries rotated into bf16 rows; keys rotated, and values, into their cache pages.

    Grid: blocks of packed rows, KEY_HEADS. partials: f32 [SPLITS, tokens, all heads * HEAD];
    keys: [pages, KEY_HEADS, HEAD, PAGE], values: [pages, KEY_HEADS, PAGE, HEAD]."""
    gdc_wait()
    gdc_launch_dependents()
    count = tl.load(live)
    if tl.program_id(0) * BLOCK >= count:
        return
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alive = r < count
    r = tl.minimum(r, count - 1)[:, None]
    key_head = tl.program_id(1)
    d = tl.arange(0, HEAD)[None, :]
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    COLUMNS: tl.constexpr = (HEADS + 2 * KEY_HEADS) * HEAD
    where = tl.load(position + r)
    row = tl.load(slot + tl.load(lane + r)).to(tl.int64)
    page = tl.load(table + row * stride + where // PAGE).to(tl.int64)
    plane = (page * KEY_HEADS + key_head) * (HEAD * PAGE)
    partner, cosine, sine = turn(where, frequencies, magnitude, HEAD, HALF, INTERLEAVED)
    kept = alive[:, None]
    for g in range(GROUP):
        h = key_head * GROUP + g
        result = rotated(partials, bias, query_norm, r, r * 0 + h * HEAD, kept, partner, cosine,
                         sine, tokens, epsilon, SPLITS, COLUMNS, HEAD, BIAS, NORM)
        tl.store(query + (r * HEADS + h).to(tl.int64) * HEAD + d, result, mask=kept)
    column = r * 0 + (HEADS + key_head) * HEAD
    result = rotated(partials, bias, key_norm, r, column, kept, partner, cosine, sine, tokens,
                     epsilon, SPLITS, COLUMNS, HEAD, BIAS, NORM)
    tl.store(keys + plane + d * PAGE + where % PAGE, result, mask=kept)
    value = added(partials, bias, r, column + KEY_HEADS * HEAD + d, kept, tokens, SPLITS, COLUMNS,
                  BIAS)
    tl.store(values + plane + where % PAGE * HEAD + d, value.to(tl.bfloat16), mask=kept)


@triton.jit
def signal(count, finished):
    """Counts a finished submission and tells the host, after everything written before. Grid: 1."""
    gdc_launch_dependents()
    gdc_wait()
    done = tl.load(count) + 1
    tl.store(count, done)
    tl.inline_asm_elementwise(
        "{ fence.acq_rel.sys; st.release.sys.global.u64 [$1], $2; mov.u32 $0, 0; }", "=r,l,l",
        [finished.to(tl.int64), done], dtype=tl.int32, is_pure=False, pack=1)

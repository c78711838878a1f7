"""Matrix products of bf16 weights with bf16 rows, or of e4m3 with e4m3, float32 sums, on the matrix
units. In e4m3 (SCALED) every row of a weight and every token has a factor, which results are
multiplied with; one token stays bf16.

The weight tile is the first operand and the few rows are the second, so that a batch of one streams
its weights through the same pipeline as a batch of 256. A long inner dimension may be split over
blocks; each writes its own partial result, and whoever reads the result adds them in a fixed order.
With many tokens it is the other way round: tokens are the first operand, and blocks that run at the
same time share weights and tokens in L2.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def product(weight, x, out, live, tokens, weight_scale, x_scale, SCALED: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_R: tl.constexpr,
            BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[split, n, r] = sum of weight[r, k] * x[n, k] over the split's share of k.

    Grid: blocks of rows, blocks of tokens, splits. weight: bf16 [ROWS, COLUMNS], x: bf16
    [tokens, COLUMNS], out: f32 [SPLITS, tokens, ROWS]; SCALED: both e4m3, with weight_scale:
    f32 [ROWS] and x_scale: f32 [tokens]."""
    gdc_launch_dependents()
    n0 = tl.program_id(1) * BLOCK_N
    split = tl.program_id(2)
    span: tl.constexpr = COLUMNS // SPLITS
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    n = n0 + tl.arange(0, BLOCK_N)
    k = split * span + tl.arange(0, BLOCK_K)
    row = tl.minimum(r, ROWS - 1).to(tl.int64)
    gdc_wait()
    if n0 >= tl.load(live):
        return
    weights = weight + row[:, None] * COLUMNS + k[None, :]
    values = x + n[None, :] * COLUMNS + k[:, None]
    acc = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    for _ in range(0, span, BLOCK_K):
        a = tl.load(weights, eviction_policy="evict_first")
        b = tl.load(values, mask=n[None, :] < tokens, other=0.0)
        acc = tl.dot(a, b, acc)
        weights += BLOCK_K
        values += BLOCK_K
    if SCALED:
        acc *= tl.load(x_scale + n, mask=n < tokens, other=0.0)[None, :]
        acc *= tl.load(weight_scale + row)[:, None]
    place = out + (split * tokens + n[None, :]).to(tl.int64) * ROWS + r[:, None]
    tl.store(place, acc, mask=(n[None, :] < tokens) & (r[:, None] < ROWS))


@triton.jit
def gated_product(weight, x, out, live, tokens, weight_scale, x_scale, SCALED: tl.constexpr,
                  ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr,
                  BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[n, r] = silu(gate) * up, with gate and up the products of weight rows r and ROWS + r.

    Grid: blocks of rows, blocks of tokens. weight: bf16 [2 * ROWS, COLUMNS], x: bf16
    [tokens, COLUMNS], out: bf16 [tokens, ROWS]."""
    gdc_launch_dependents()
    n0 = tl.program_id(1) * BLOCK_N
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    n = n0 + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(r, ROWS - 1).to(tl.int64)
    gdc_wait()
    if n0 >= tl.load(live):
        return
    gates = weight + row[:, None] * COLUMNS + k[None, :]
    ups = weight + (row[:, None] + ROWS) * COLUMNS + k[None, :]
    values = x + n[None, :] * COLUMNS + k[:, None]
    gate = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    for _ in range(0, COLUMNS, BLOCK_K):
        a = tl.load(gates, eviction_policy="evict_first")
        c = tl.load(ups, eviction_policy="evict_first")
        b = tl.load(values, mask=n[None, :] < tokens, other=0.0)
        gate = tl.dot(a, b, gate)
        up = tl.dot(c, b, up)
        gates += BLOCK_K
        ups += BLOCK_K
        values += BLOCK_K
    if SCALED:
        factor = tl.load(x_scale + n, mask=n < tokens, other=0.0)[None, :]
        gate *= factor * tl.load(weight_scale + row)[:, None]
        up *= factor * tl.load(weight_scale + row + ROWS)[:, None]
    value = gate / (1.0 + tl.exp(-gate)) * up
    place = out + n[None, :].to(tl.int64) * ROWS + r[:, None]
    tl.store(place, value.to(tl.bfloat16), mask=(n[None, :] < tokens) & (r[:, None] < ROWS))


@triton.jit
def block_of(tokens, ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
             GROUP: tl.constexpr):
    """First token and first row of a block: GROUP blocks of tokens take turns over all rows."""
    blocks_n, blocks_r = tl.cdiv(tokens, BLOCK_N), tl.cdiv(ROWS, BLOCK_R)
    block = tl.program_id(0)
    first = block // (GROUP * blocks_r) * GROUP
    size = tl.minimum(blocks_n - first, GROUP)
    inside = block % (GROUP * blocks_r)
    return (first + inside % size) * BLOCK_N, inside // size * BLOCK_R


@triton.jit
def wide_product(weight, x, out, live, tokens, weight_scale, x_scale, SCALED: tl.constexpr,
                 ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
                 BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 GROUP: tl.constexpr):
    """As product, for many tokens. Grid: blocks of rows times blocks of tokens, splits."""
    gdc_launch_dependents()
    n0, r0 = block_of(tokens, ROWS, BLOCK_R, BLOCK_N, GROUP)
    split = tl.program_id(1)
    span: tl.constexpr = COLUMNS // SPLITS
    r = r0 + tl.arange(0, BLOCK_R)
    n = n0 + tl.arange(0, BLOCK_N)
    k = split * span + tl.arange(0, BLOCK_K)
    gdc_wait()
    if n0 >= tl.load(live):
        return
    row = tl.minimum(r, ROWS - 1).to(tl.int64)
    weights = weight + row[None, :] * COLUMNS + k[:, None]
    values = x + tl.minimum(n, tokens - 1).to(tl.int64)[:, None] * COLUMNS + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    for _ in range(0, span, BLOCK_K):
        acc = tl.dot(tl.load(values), tl.load(weights), acc)
        weights += BLOCK_K
        values += BLOCK_K
    if SCALED:
        acc *= tl.load(x_scale + n, mask=n < tokens, other=0.0)[:, None]
        acc *= tl.load(weight_scale + row)[None, :]
    place = out + (split * tokens + n[:, None]).to(tl.int64) * ROWS + r[None, :]
    tl.store(place, acc, mask=(n[:, None] < tokens) & (r[None, :] < ROWS))


@triton.jit
def wide_gated_product(weight, x, out, live, tokens, weight_scale, x_scale, SCALED: tl.constexpr,
                       ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr,
                       BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):
    """As gated_product, for many tokens. Grid: blocks of rows times blocks of tokens."""
    gdc_launch_dependents()
    n0, r0 = block_of(tokens, ROWS, BLOCK_R, BLOCK_N, GROUP)
    r = r0 + tl.arange(0, BLOCK_R)
    n = n0 + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    gdc_wait()
    if n0 >= tl.load(live):
        return
    row = tl.minimum(r, ROWS - 1).to(tl.int64)
    gates = weight + row[None, :] * COLUMNS + k[:, None]
    ups = weight + (row[None, :] + ROWS) * COLUMNS + k[:, None]
    values = x + tl.minimum(n, tokens - 1).to(tl.int64)[:, None] * COLUMNS + k[None, :]
    gate = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    for _ in range(0, COLUMNS, BLOCK_K):
        a = tl.load(values)
        gate = tl.dot(a, tl.load(gates), gate)
        up = tl.dot(a, tl.load(ups), up)
        gates += BLOCK_K
        ups += BLOCK_K
        values += BLOCK_K
    if SCALED:
        factor = tl.load(x_scale + n, mask=n < tokens, other=0.0)[:, None]
        gate *= factor * tl.load(weight_scale + row)[None, :]
        up *= factor * tl.load(weight_scale + row + ROWS)[None, :]
    value = gate / (1.0 + tl.exp(-gate)) * up
    place = out + n[:, None].to(tl.int64) * ROWS + r[None, :]
    tl.store(place, value.to(tl.bfloat16), mask=(n[:, None] < tokens) & (r[None, :] < ROWS))


@triton.jit
def vector_product(weight, x, out, weight_scale, SCALED: tl.constexpr, ROWS: tl.constexpr,
                   COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[r] = sum of weight[r, k] * x[k], for one token: whole rows in registers, no split.

    Grid: blocks of rows. The first weights are read before the kernels before have ended. x: bf16;
    SCALED: weights in e4m3, with factors f32 [ROWS]."""
    gdc_launch_dependents()
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(r, ROWS - 1).to(tl.int64)
    weights = weight + row[:, None] * COLUMNS + k[None, :]
    w = tl.load(weights, eviction_policy="evict_first")
    gdc_wait()
    acc = w.to(tl.float32) * tl.load(x + k).to(tl.float32)[None, :]
    for k0 in range(BLOCK_K, COLUMNS, BLOCK_K):
        w = tl.load(weights + k0, eviction_policy="evict_first")
        acc += w.to(tl.float32) * tl.load(x + k0 + k).to(tl.float32)[None, :]
    value = tl.sum(acc, axis=1)
    if SCALED:
        value *= tl.load(weight_scale + row)
    tl.store(out + r, value, mask=r < ROWS)


@triton.jit
def gated_vector_product(weight, x, out, weight_scale, SCALED: tl.constexpr, ROWS: tl.constexpr,
                         COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[r] = silu(gate) * up for one token, as gated_product. Grid: blocks of rows."""
    gdc_launch_dependents()
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(r, ROWS - 1).to(tl.int64)
    gates = weight + row[:, None] * COLUMNS + k[None, :]
    ups = weight + (row[:, None] + ROWS) * COLUMNS + k[None, :]
    w = tl.load(gates, eviction_policy="evict_first")
    u = tl.load(ups, eviction_policy="evict_first")
    gdc_wait()
    v = tl.load(x + k).to(tl.float32)[None, :]
    gate = w.to(tl.float32) * v
    up = u.to(tl.float32) * v
    for k0 in range(BLOCK_K, COLUMNS, BLOCK_K):
        w = tl.load(gates + k0, eviction_policy="evict_first")
        u = tl.load(ups + k0, eviction_policy="evict_first")
        v = tl.load(x + k0 + k).to(tl.float32)[None, :]
        gate += w.to(tl.float32) * v
        up += u.to(tl.float32) * v
    g, h = tl.sum(gate, axis=1), tl.sum(up, axis=1)
    if SCALED:
        g *= tl.load(weight_scale + row)
        h *= tl.load(weight_scale + row + ROWS)
    value = g / (1.0 + tl.exp(-g)) * h
    tl.store(out + r, value.to(tl.bfloat16), mask=r < ROWS)

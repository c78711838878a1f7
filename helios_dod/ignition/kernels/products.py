"""Matrix products of bf16 weights with bf16 rows, float32 sums, on the matrix units.

The weight tile is the first operand and the few rows are the second, so that a batch of one streams
its weights through the same pipeline as a batch of 256. A long inner dimension may be split over
blocks; each writes its own partial result, and whoever reads the result adds them in a fixed order.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def product(weight, x, out, live, tokens, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
            SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
            BLOCK_K: tl.constexpr):
    """out[split, n, r] = sum of weight[r, k] * x[n, k] over the split's share of k.

    Grid: blocks of rows, blocks of tokens, splits. weight: bf16 [ROWS, COLUMNS], x: bf16
    [tokens, COLUMNS], out: f32 [SPLITS, tokens, ROWS]."""
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
    place = out + (split * tokens + n[None, :]).to(tl.int64) * ROWS + r[:, None]
    tl.store(place, acc, mask=(n[None, :] < tokens) & (r[:, None] < ROWS))


@triton.jit
def gated_product(weight, x, out, live, tokens, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                  BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
                  BLOCK_K: tl.constexpr):
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
    value = gate / (1.0 + tl.exp(-gate)) * up
    place = out + n[None, :].to(tl.int64) * ROWS + r[:, None]
    tl.store(place, value.to(tl.bfloat16), mask=(n[None, :] < tokens) & (r[:, None] < ROWS))


@triton.jit
def vector_product(weight, x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                   BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[r] = sum of weight[r, k] * x[k], for one token: whole rows in registers, no split.

    Grid: blocks of rows. The first weights are read before the kernels before have ended."""
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
    tl.store(out + r, tl.sum(acc, axis=1), mask=r < ROWS)


@triton.jit
def gated_vector_product(weight, x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                         BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr):
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
    g = tl.sum(gate, axis=1)
    value = g / (1.0 + tl.exp(-g)) * tl.sum(up, axis=1)
    tl.store(out + r, value.to(tl.bfloat16), mask=r < ROWS)

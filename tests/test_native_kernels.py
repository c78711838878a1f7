"""CUDA C++ kernels against float64, every thread of them run on the processor."""

import numpy as np
import pytest
from kernel_references import PAGE, attention, head_rows, noise, of_bf16, paged, silu, turned
from native_kernels import CPLUSPLUS, Emulated

from helios_dod.ignition.cuda.native import decode_shared, few_shared
from helios_dod.ignition.floats import to_bf16

pytestmark = pytest.mark.skipif(CPLUSPLUS is None, reason="no C++ compiler here")
NEAR = 2.0**-8  # of a result rounded to bf16


@pytest.mark.parametrize("rows, columns, tokens, gated, warps, depth, splits", [
    (40, 512, 1, False, 4, 6, 1), (48, 576, 3, False, 4, 4, 2), (16, 96, 8, False, 8, 4, 1),
    (64, 1024, 16, False, 4, 8, 4), (40, 512, 2, True, 4, 4, 1), (28, 288, 16, True, 8, 4, 1),
])
def test_few_product(tmp_path, rows, columns, tokens, gated, warps, depth, splits):
    kernel = Emulated(tmp_path, "few.cu", "few_product", ROWS=rows, COLUMNS=columns, TOKENS=tokens,
                      GATED=gated, SPLITS=splits, WARPS=warps, DEPTH=depth, BLOCKS=1)
    generator = np.random.default_rng(rows + tokens)
    parts = 2 if gated else 1
    weight, x = noise(generator, parts * rows, columns), noise(generator, tokens, columns)
    out = np.full((splits, tokens, rows), 0x7FC0 if gated else np.nan,
                  np.uint16 if gated else np.float32)
    kernel((-(-rows // (8 if gated else 16)), splits, 1), 32 * warps, 1, few_shared(tokens, warps),
           weight, x, out, np.array([tokens], np.int32))
    wanted = of_bf16(x) @ of_bf16(weight).T
    if gated:
        gate, up = wanted[:, :rows], wanted[:, rows:]
        wanted = silu(gate) * up
        assert np.allclose(of_bf16(out[0]), wanted, rtol=NEAR, atol=1e-3)
    else:
        assert np.allclose(out.sum(axis=0), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "heads, key_heads, head, splits, warps, depth, window, partials, flags", [
        (8, 2, 64, 1, 4, 3, 0, 2, ""), (8, 2, 64, 4, 4, 2, 0, 1, ""),
        (8, 1, 128, 2, 4, 3, 0, 1, "BIAS"), (6, 2, 64, 8, 2, 2, 40, 1, "NORM INTERLEAVED"),
        (2, 2, 32, 2, 4, 2, 24, 3, "NORM BIAS"), (3, 1, 16, 1, 2, 2, 0, 1, ""),
    ])
def test_native_decode_attention(tmp_path, heads, key_heads, head, splits, warps, depth, window,
                                 partials, flags):
    positions = [0, 1, 15, 16, 17, 130, 257, 40]
    tokens, group, half = len(positions), heads // key_heads, head // 2 - 4
    constants = dict(
        HEADS=heads, KEY_HEADS=key_heads, HEAD=head, HALF=half, PAGE=PAGE, WINDOW=window,
        INTERLEAVED="INTERLEAVED" in flags, BIAS="BIAS" in flags, NORM="NORM" in flags,
        PARTIALS=partials, TOKENS=tokens, SPLITS=splits, WARPS=warps, DEPTH=depth)
    kernel = Emulated(tmp_path, "decode.cu", "decode_attention", **constants)
    generator = np.random.default_rng(heads)
    live, stride, epsilon, magnitude, scale = tokens - 1, 20, 1e-5, 1.1, head**-0.5
    slot = generator.permutation(tokens).astype(np.int32)
    table, keys, values = paged(generator, positions, slot, stride, key_heads, head)
    before = keys.copy(), values.copy()
    columns = (heads + 2 * key_heads) * head
    product = generator.standard_normal((partials, tokens, columns)).astype(np.float32)
    bias = generator.standard_normal(columns).astype(np.float32)
    norms = [generator.uniform(0.5, 2, head).astype(np.float32) for _ in range(2)]
    frequencies = generator.uniform(0.001, 1, half).astype(np.float32)
    output = np.full((tokens, heads * head), 0x7FC0, np.uint16)
    kernel((tokens, key_heads, splits), 32 * warps, splits,
           decode_shared(head, group, warps, depth), product, bias, *norms, frequencies,
           np.array(positions, np.int32), slot, table, keys, values, output,
           np.array([live], np.int32), stride, epsilon, magnitude, scale)
    summed = product.astype(np.float64).sum(axis=0) + (bias if "BIAS" in flags else 0)
    for lane in range(live):
        where, pages = positions[lane], table[slot[lane]]
        rows = head_rows(summed[lane], heads, key_heads, head,
                         norms if "NORM" in flags else None, epsilon)
        spun = turned(rows, where, frequencies, "INTERLEAVED" in flags, magnitude)
        for j in range(key_heads):
            page = pages[where // PAGE]
            key = of_bf16(keys[page, j, :, where % PAGE])
            value = of_bf16(values[page, j, where % PAGE])
            assert np.allclose(key, spun[heads + j], rtol=NEAR, atol=1e-3)
            assert np.allclose(value, rows[heads + key_heads + j], rtol=NEAR, atol=1e-6)
            before[0][page, j, :, where % PAGE] = keys[page, j, :, where % PAGE]
            before[1][page, j, where % PAGE] = values[page, j, where % PAGE]
            query = of_bf16(to_bf16(spun[j * group : (j + 1) * group].astype(np.float32)))
            wanted = attention(where, pages, keys[:, j], values[:, j], query, key, value, window,
                               scale)
            found = of_bf16(output[lane].reshape(heads, head)[j * group : (j + 1) * group])
            assert np.allclose(found, wanted, rtol=0.02, atol=0.02), (lane, j)
    assert np.array_equal(keys, before[0]) and np.array_equal(values, before[1])
    assert (output[live:] == 0x7FC0).all(), "rows beyond the live ones are not written"


def test_the_device_chooses_as_the_host_does(tmp_path):
    """Shortest spans over runs; the lowest but for what is shorter by more than a 32nd."""
    mark = Emulated(tmp_path, "trial.cu", "mark_time")
    choose = Emulated(tmp_path, "trial.cu", "choose_fastest")
    for spans, chosen in (([3200, 3100, 9999], 0), ([3200, 3099, 9999], 1), ([9, 5, 5], 1),
                          ([7, 7, 7], 0)):
        best, selected = np.zeros(3, np.int64), np.full(1, -1, np.int32)
        for times in (1, 3, 2):
            marks, live = np.zeros(4, np.int64), np.zeros(1, np.int32)
            for place in range(4):
                mark((1, 1, 1), 32, 1, 0, marks, place, live, 16)
            assert live[0] == 16
            marks[:] = np.concatenate([[50], 50 + np.cumsum(np.array(spans) * times)])
            choose((1, 1, 1), 32, 1, 0, marks, best, selected, 3)
        assert best.tolist() == spans and selected[0] == chosen

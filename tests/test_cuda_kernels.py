"""Kernels of rows and products on a GPU, each by itself, against float64."""

import numpy as np
import pytest
from kernel_references import (
    NEAR_BF16,
    NEAR_F32,
    lone_bench,
    noise,
    normed,
    of_bf16,
    relative,
    silu,
)
from plain_device import E4M3, activate

pytest.importorskip("triton", reason="kernels are compiled by Triton")
from cuda_bench import bf16, e4m3

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.native import few_shared
from helios_dod.ignition.floats import to_e4m3
from helios_dod.ignition.kernels import products, rows

pytestmark = pytest.mark.cuda
POISON = 0x7FC0  # NaN as bf16 bits


@pytest.fixture(scope="module")
def bench():
    return lone_bench()


def floats(generator, *shape):
    return generator.standard_normal(shape).astype(np.float32)


def live(count):
    return np.array([count], np.int32)


def test_rows_go_where_slots_say(bench):
    """Scattered and filled rows, a page table's entries, copied pages; the rest stays."""
    generator = np.random.default_rng(1)
    source, kept = floats(generator, 4, 1030), floats(generator, 6, 1030)
    slot = np.array([5, 0, 3, 2], np.int32)
    found = bench(rows.scatter_rows, (4, 2), dict(
        source=source, slot=slot, destination=kept, live=live(3)), dict(WORDS=1030, BLOCK=1024),
        words=("source", "destination"))["destination"]
    wanted = kept.copy()
    wanted[slot[:3]] = source[:3]
    assert np.array_equal(found, wanted)
    found = bench(rows.fill_rows, (4, 2), dict(
        slot=slot, destination=kept, live=live(2), value=7), dict(WORDS=1030, BLOCK=1024),
        words=("destination",))["destination"].view(np.int32)
    wanted = kept.copy().view(np.int32)
    wanted[slot[:2]] = 7
    assert np.array_equal(found, wanted)
    table = np.arange(60, dtype=np.int32).reshape(6, 10)
    updates = np.array([[1, 2, 99], [5, 9, 98], [0, 0, 97], [3, 3, 96]], np.int32)
    found = bench(rows.update_page_table, (1,), dict(
        count=live(3), updates=updates, table=table, stride=10), dict(BLOCK=256))["table"]
    for row, column, page in updates[:3]:
        table[row, column] = page
    assert np.array_equal(found, table)
    plane, pairs = floats(generator, 9, 1500), np.array([[1, 5], [2, 0], [4, 7]], np.int32)
    found = bench(rows.copy_pages, (2, 2), dict(count=live(2), pairs=pairs, plane=plane),
                  dict(WORDS=1500, BLOCK=1024, GRID=2), words=("plane",))["plane"]
    wanted = plane.copy()
    wanted[5], wanted[0] = plane[1], plane[2]
    assert np.array_equal(found, wanted)


def test_tokens_are_selected_embedded_and_picked(bench):
    generator = np.random.default_rng(2)
    staged = np.array([7, -1, 3, -1, 9], np.int32)
    slot, lane = np.array([4, 1], np.int32), np.array([0, 0, 0, 1, 1], np.int32)
    pending = np.arange(100, 106, dtype=np.int32)
    blank = np.full(5, -5, np.int32)
    for given, wanted in ((True, [7, 104, 3, 101, -5]), (False, [104, 104, 104, 101, -5])):
        found = bench(rows.select_tokens, (1,), dict(
            staged=staged, pending=pending, slot=slot, lane=lane, output=blank, live=live(4)),
            dict(STAGED=given, BLOCK=128))["output"]
        assert found.tolist() == wanted
    table, index = noise(generator, 20, 1500), np.array([3, 19, 0, 5], np.int32)
    before = floats(generator, 4, 1500)
    for add in (False, True):
        found = bench(rows.embed, (4, 2), dict(
            index=index, table=bf16(table), output=before, live=live(3), scale=1.5),
            dict(ADD=add, COLUMNS=1500, BLOCK=1024))["output"]
        wanted = before.astype(np.float64)
        wanted[:3] = of_bf16(table)[index[:3]] * 1.5 + (wanted[:3] if add else 0)
        assert relative(wanted, found) < NEAR_F32 and np.array_equal(found[3], before[3])
    found = bench(rows.select_rows, (4, 2), dict(
        source=bf16(table), index=index, output=bf16(np.full((4, 1500), POISON, np.uint16)),
        live=live(2)), dict(COLUMNS=1500, BLOCK=1024))["output"]
    assert np.array_equal(found[:2], table[index[:2]]) and (found[2:] == POISON).all()


@pytest.mark.parametrize("splits, added, layer, bias, columns", [
    (0, False, False, False, 576), (2, False, False, False, 4096), (3, True, True, True, 1000),
    (1, True, False, True, 2048)])
@pytest.mark.parametrize("quantised", [False, True])
def test_norms(bench, splits, added, layer, bias, columns, quantised):
    generator = np.random.default_rng(columns + splits)
    tokens, count, block = 5, 4, 1 << (columns - 1).bit_length()
    hidden, partials = floats(generator, tokens, columns), floats(generator, 3 * tokens, columns)
    vectors = {name: floats(generator, columns) for name in ("added_bias", "weight", "bias")}
    output = e4m3(np.full((tokens, columns), 0x7F, np.uint8)) if quantised else bf16(
        np.full((tokens, columns), POISON, np.uint16))
    found = bench(rows.normalise, (tokens,), dict(
        hidden=hidden, partials=partials, **vectors, output=output,
        scale=np.full(tokens, np.nan, np.float32), live=live(count), tokens=tokens, epsilon=1e-5),
        dict(SPLITS=splits, ADDED=added, LAYER=layer, BIAS=bias, QUANTISED=quantised,
             COLUMNS=columns, BLOCK=block, EARLY=bias), warps=8)
    wanted = hidden + partials.astype(np.float64).reshape(3, tokens, columns)[:splits].sum(axis=0)
    wanted = wanted + (vectors["added_bias"] if added else 0)
    if splits:
        assert relative(wanted[:count], found["hidden"][:count]) < NEAR_F32
    assert np.array_equal(found["hidden"][count:], hidden[count:])
    if layer:
        wanted = wanted - wanted.mean(axis=1, keepdims=True)
    wanted = (normed(wanted, vectors["weight"], 1e-5) + (vectors["bias"] if bias else 0))[:count]
    if quantised:
        check_eighths(wanted, found["output"][:count], found["scale"][:count])
        assert (found["output"][count:] == 0x7F).all()
    else:
        assert relative(wanted, of_bf16(found["output"][:count])) < NEAR_BF16
        assert (found["output"][count:] == POISON).all()


def check_eighths(wanted, bits, scale):
    """Rows in e4m3 with a factor each: the largest value is 448 of them, others the nearest."""
    assert np.allclose(scale, np.abs(wanted).max(axis=1) / 448, rtol=1e-5)
    found = E4M3[bits].astype(np.float64) * scale[:, None]
    assert (np.abs(found - wanted) <= np.maximum(np.abs(wanted) / 15.9, scale[:, None] / 500)).all()


def test_rows_are_quantised(bench):
    given = noise(np.random.default_rng(3), 4, 1000)
    found = bench(rows.quantise, (4,), dict(
        rows=bf16(given), output=e4m3(np.full((4, 1000), 0x7F, np.uint8)),
        scale=np.full(4, np.nan, np.float32), live=live(3)), dict(COLUMNS=1000, BLOCK=1024))
    check_eighths(of_bf16(given)[:3], found["output"][:3], found["scale"][:3])
    assert (found["output"][3] == 0x7F).all() and np.isnan(found["scale"][3])


@pytest.mark.parametrize("kind", [wire.SILU, wire.GELU_TANH, wire.GELU_ERF, wire.RELU])
def test_activations(bench, kind):
    generator = np.random.default_rng(4)
    partials, bias = floats(generator, 2 * 3, 1500), floats(generator, 1500)
    found = bench(rows.activate, (3, 2), dict(
        partials=partials, bias=bias, output=bf16(np.full((3, 1500), POISON, np.uint16)),
        live=live(2), tokens=3), dict(SPLITS=2, KIND=kind, BIAS=True, COLUMNS=1500, BLOCK=1024))
    wanted = activate(kind, partials.astype(np.float64).reshape(2, 3, 1500).sum(axis=0) + bias)
    assert relative(wanted[:2], of_bf16(found["output"][:2])) < NEAR_BF16
    assert (found["output"][2] == POISON).all()


def operands(generator, rows_, columns, tokens, scaled):
    """Weight and rows as arguments, and what they stand for."""
    weight, x = floats(generator, rows_, columns), floats(generator, tokens, columns)
    scales = [generator.uniform(0.5, 2, count).astype(np.float32) for count in (rows_, tokens)]
    if scaled:
        bits = to_e4m3(weight), to_e4m3(x)
        values = [E4M3[one].astype(np.float64) * scale[:, None]
                  for one, scale in zip(bits, scales, strict=True)]
        return (dict(weight=e4m3(bits[0]), x=e4m3(bits[1]), weight_scale=scales[0],
                     x_scale=scales[1]), *values)
    bits = noise(generator, rows_, columns), noise(generator, tokens, columns)
    return (dict(weight=bf16(bits[0]), x=bf16(bits[1]), weight_scale=scales[0],
                 x_scale=scales[1]), of_bf16(bits[0]), of_bf16(bits[1]))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tokens, splits, wide", [(1, 1, False), (19, 2, False), (70, 4, True),
                                                  (300, 1, True)])
def test_products(bench, tokens, splits, wide, scaled):
    generator = np.random.default_rng(tokens)
    row_count, columns = 200, 512
    arguments, weight, x = operands(generator, row_count, columns, tokens, scaled)
    constants = dict(SCALED=scaled, ROWS=row_count, COLUMNS=columns, SPLITS=splits, BLOCK_K=64)
    if wide:
        function, grid = products.wide_product, (2 * -(-tokens // 128), splits)
        constants |= dict(BLOCK_R=128, BLOCK_N=128, GROUP=8)
    else:
        width = max(16, 1 << (tokens - 1).bit_length())
        function, grid = products.product, (4, 1, splits)
        constants |= dict(BLOCK_R=64, BLOCK_N=width)
    out = np.full((splits * tokens, row_count), np.nan, np.float32)
    found = bench(function, grid, dict(**arguments, out=out, live=live(tokens), tokens=tokens),
                  constants, stages=3)["out"]
    found = found.astype(np.float64).reshape(splits, tokens, row_count).sum(axis=0)
    near = NEAR_BF16 if scaled else NEAR_F32  # matrix units add products of e4m3 in fewer bits
    assert relative(x @ weight.T, found) < near


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tokens", [1, 19, 150])
def test_gated_products(bench, tokens, scaled):
    generator = np.random.default_rng(tokens)
    row_count, columns = 200, 512
    arguments, weight, x = operands(generator, 2 * row_count, columns, tokens, scaled)
    x *= 0.1
    arguments["x_scale"] = arguments["x_scale"] * np.float32(0.1)
    if not scaled:  # sums of moderate size
        x *= 10
        weight *= 0.125
        arguments["weight"] = bf16(scaled_bits(arguments["weight"].data))
    constants = dict(SCALED=scaled, ROWS=row_count, COLUMNS=columns, BLOCK_K=64)
    if tokens > 64:
        function, grid = products.wide_gated_product, (4 * -(-tokens // 128),)
        constants |= dict(BLOCK_R=64, BLOCK_N=128, GROUP=8)
    else:
        function, grid = products.gated_product, (4, 1)
        constants |= dict(BLOCK_R=64, BLOCK_N=max(16, 1 << (tokens - 1).bit_length()))
    out = bf16(np.full((tokens, row_count), POISON, np.uint16))
    found = bench(function, grid, dict(**arguments, out=out, live=live(tokens), tokens=tokens),
                  constants, stages=3)["out"]
    gate, up = np.split(x @ weight.T, 2, axis=1)
    assert relative(silu(gate) * up, of_bf16(found)) < NEAR_BF16


def scaled_bits(bits):
    """bf16 bits of an eighth of the values, which is exact."""
    return bits - np.uint16(3 << 7)


@pytest.mark.parametrize("scaled", [False, True])
def test_products_of_one_token(bench, scaled):
    generator = np.random.default_rng(5)
    arguments, weight, _ = operands(generator, 402, 512, 1, scaled)
    weight *= 0.125
    if scaled:
        arguments["weight_scale"] = arguments["weight_scale"] * np.float32(0.125)
    else:
        arguments["weight"] = bf16(scaled_bits(arguments["weight"].data))
    row = noise(generator, 1, 512)
    del arguments["x_scale"]
    arguments["x"] = bf16(row)
    wanted = (of_bf16(row) @ weight.T)[0]
    found = bench(products.vector_product, (101,), dict(
        **arguments, out=np.full((1, 402), np.nan, np.float32)),
        dict(SCALED=scaled, ROWS=402, COLUMNS=512, BLOCK_R=4, BLOCK_K=256))["out"]
    assert relative(wanted, found[0]) < NEAR_F32
    found = bench(products.gated_vector_product, (51,), dict(
        **arguments, out=bf16(np.full((1, 201), POISON, np.uint16))),
        dict(SCALED=scaled, ROWS=201, COLUMNS=512, BLOCK_R=4, BLOCK_K=256))["out"]
    assert relative(silu(wanted[:201]) * wanted[201:], of_bf16(found[0])) < NEAR_BF16


@pytest.mark.parametrize("row_count, columns, tokens, gated, warps, splits", [
    (200, 512, 1, False, 4, 2), (200, 576, 7, False, 4, 1), (300, 1024, 16, False, 8, 2),
    (200, 512, 8, True, 4, 1)])
def test_native_products(bench, row_count, columns, tokens, gated, warps, splits):
    generator = np.random.default_rng(tokens)
    weight, x = noise(generator, (1 + gated) * row_count, columns), noise(
        generator, tokens, columns)
    weight = scaled_bits(weight)
    out = bf16(np.full((tokens, row_count), POISON, np.uint16)) if gated else np.full(
        (splits * tokens, row_count), np.nan, np.float32)
    found = bench(("few_product", "few.cu"), (-(-row_count // (8 if gated else 16)), splits), dict(
        weight=bf16(weight), x=bf16(x), out=out, live=live(tokens)),
        dict(ROWS=row_count, COLUMNS=columns, TOKENS=tokens, GATED=gated, SPLITS=splits,
             WARPS=warps, DEPTH=4, BLOCKS=1), warps=warps, shared=few_shared(tokens, warps))["out"]
    wanted = of_bf16(x) @ of_bf16(weight).T
    if gated:
        gate, up = np.split(wanted, 2, axis=1)
        assert relative(silu(gate) * up, of_bf16(found)) < NEAR_BF16
    else:
        assert relative(wanted, found.astype(np.float64).reshape(
            splits, tokens, row_count).sum(axis=0)) < NEAR_F32

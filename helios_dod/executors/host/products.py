"""Matrix products over panels: which microkernel runs on which rows, and what is added to its sums.

A chunk is a run of panels times a block of activation rows. Threads claim chunks; a chunk's sums
are made in the thread's scratch and then written with bias and former output. Few activation rows
use the `direct` kernels, more of them reuse expanded weights; every element is the same chain of
fused multiply-adds (microkernels.py).
"""

from collections.abc import Callable

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host import vectors as v
from helios_dod.executors.host.chunks import next_chunk
from helios_dod.executors.host.microkernels import (
    EXPAND_COLUMNS,
    VARIANTS,
    direct,
    expand,
    tile,
)
from helios_dod.executors.host.panels import PANEL_ROWS
from helios_dod.system import kernel

LANES = v.LANES
# Vectors a kernel call covers: registers hold `vectors * activation rows` sums.
VECTORS = 4 if LANES == 16 else 2
KERNEL_ROWS = VECTORS * LANES
BLOCK_ROWS = 128  # activation rows of a chunk
EXPAND_FROM = 9  # activation rows from which expanded weights pay, where nothing else is said
DIRECT, EXPANDED = 1, 2  # proto ProductKernel
TUNED_ROWS = (4, 8, 16)  # the most activation rows of each place of a tuned row of kernels,
TUNED_FROM = 3  # and the fewest that it says anything of
CLAIMS = 8  # chunks a thread claims at least, where there are enough panels

EXPANDED_BYTES = EXPAND_COLUMNS * PANEL_ROWS * 4
SUMS_BYTES = BLOCK_ROWS * PANEL_ROWS * 4
SCRATCH_BYTES = EXPANDED_BYTES + SUMS_BYTES

# Words of a product operation after its kind and row domain.
P_INPUT, P_INPUT_STRIDE, P_OUTPUT, P_OUTPUT_STRIDE = 2, 3, 4, 5
P_WEIGHT, P_VARIANT, P_ROWS, P_COLUMNS, P_PANEL_BYTES = 6, 7, 8, 9, 10
P_BLOCK_COLUMNS, P_BLOCK_BYTES, P_BIAS, P_ACCUMULATE = 11, 12, 13, 14
P_KERNEL, P_SELECTED, P_TRIAL_ROWS = 15, 16, 17


def _make_direct(variant: int) -> Callable:
    """Sums of one panel with `count` activation rows, weights expanded in registers."""

    @kernel(boundscheck=False)
    def run(weights, steps, x, stride, count, sums):
        first = 0
        while first < PANEL_ROWS:
            c = 0
            while c + 4 <= count:
                direct(
                    variant,
                    LANES,
                    VECTORS,
                    4,
                    weights,
                    first,
                    steps,
                    x + c * stride,
                    stride,
                    sums + c * PANEL_ROWS * 4,
                )
                c += 4
            if c + 2 <= count:
                direct(
                    variant,
                    LANES,
                    VECTORS,
                    2,
                    weights,
                    first,
                    steps,
                    x + c * stride,
                    stride,
                    sums + c * PANEL_ROWS * 4,
                )
                c += 2
            if c < count:
                direct(
                    variant,
                    LANES,
                    VECTORS,
                    1,
                    weights,
                    first,
                    steps,
                    x + c * stride,
                    stride,
                    sums + c * PANEL_ROWS * 4,
                )
            first += KERNEL_ROWS

    return run


def _make_expand(variant: int) -> Callable:
    """`steps` blocks of one panel as f32 [column][PANEL_ROWS]."""

    @kernel(boundscheck=False)
    def run(weights, steps, out):
        first = 0
        while first < PANEL_ROWS:
            expand(variant, LANES, VECTORS, weights, first, steps, out)
            first += KERNEL_ROWS

    return run


_D = [_make_direct(i) for i in range(len(VARIANTS))]
_E = [_make_expand(i) for i in range(len(VARIANTS))]
D0, D1, D2, D3, D4, D5, D6, D7, D8 = _D
E0, E1, E2, E3, E4, E5, E6, E7, E8 = _E


@kernel(inline="always", boundscheck=False)
def direct_panel(variant, weights, steps, x, stride, count, sums):
    """Sums of one panel, by its variant."""
    if variant == 0:
        D0(weights, steps, x, stride, count, sums)
    elif variant == 1:
        D1(weights, steps, x, stride, count, sums)
    elif variant == 2:
        D2(weights, steps, x, stride, count, sums)
    elif variant == 3:
        D3(weights, steps, x, stride, count, sums)
    elif variant == 4:
        D4(weights, steps, x, stride, count, sums)
    elif variant == 5:
        D5(weights, steps, x, stride, count, sums)
    elif variant == 6:
        D6(weights, steps, x, stride, count, sums)
    elif variant == 7:
        D7(weights, steps, x, stride, count, sums)
    else:
        D8(weights, steps, x, stride, count, sums)


@kernel(inline="always", boundscheck=False)
def expand_panel(variant, weights, steps, out):
    """Expanded columns of one panel, by its variant."""
    if variant == 0:
        E0(weights, steps, out)
    elif variant == 1:
        E1(weights, steps, out)
    elif variant == 2:
        E2(weights, steps, out)
    elif variant == 3:
        E3(weights, steps, out)
    elif variant == 4:
        E4(weights, steps, out)
    elif variant == 5:
        E5(weights, steps, out)
    elif variant == 6:
        E6(weights, steps, out)
    elif variant == 7:
        E7(weights, steps, out)
    else:
        E8(weights, steps, out)


@kernel(boundscheck=False)
def tiles(buffer, columns, x, stride, count, sums, ahead, pace):
    """Continues the sums of one panel over an expanded buffer, some activation rows at once.

    The first tile asks for the weights at `ahead`, `pace` bytes a column."""
    first = 0
    while first < PANEL_ROWS:
        c = 0
        while c < count:
            xc, out, rest = x + c * stride, sums + c * PANEL_ROWS * 4, count - c
            if rest >= 9 or rest == 6:
                tile(LANES, VECTORS, 6, buffer, first, columns, xc, stride, out, ahead, pace)
                c += 6
            elif rest >= 4:
                tile(LANES, VECTORS, 4, buffer, first, columns, xc, stride, out, ahead, pace)
                c += 4
            elif rest == 3:
                tile(LANES, VECTORS, 3, buffer, first, columns, xc, stride, out, ahead, pace)
                c += 3
            elif rest == 2:
                tile(LANES, VECTORS, 2, buffer, first, columns, xc, stride, out, ahead, pace)
                c += 2
            else:
                tile(LANES, VECTORS, 1, buffer, first, columns, xc, stride, out, ahead, pace)
                c += 1
            ahead, pace = buffer, 0
        first += KERNEL_ROWS


@kernel(boundscheck=False)
def expanded_panel(w, weights, x, count, scratch, sums):
    """Sums of one panel with many activation rows."""
    zero = v.splat(np.float32(0))
    for i in range(0, count * PANEL_ROWS, LANES):
        v.store(sums + 4 * i, zero)
    columns, step = w[P_COLUMNS], w[P_BLOCK_COLUMNS]
    done = 0
    while done < columns:
        some = min(EXPAND_COLUMNS, columns - done)
        expand_panel(w[P_VARIANT], weights + done // step * w[P_BLOCK_BYTES], some // step, scratch)
        ahead = weights + (done + some) // step * w[P_BLOCK_BYTES]
        pace = w[P_BLOCK_BYTES] // step
        tiles(scratch, some, x + 4 * done, w[P_INPUT_STRIDE], count, sums, ahead, pace)
        done += some


@kernel(boundscheck=False)
def write_sums(w, sums, row, first, count):
    """output[row + i, first + j] = sums[i][j] (+ bias) (+ output), for the rows of one panel."""
    width = min(w[P_ROWS] - first, PANEL_ROWS)
    for i in range(count):
        source = sums + i * PANEL_ROWS * 4
        target = w[P_OUTPUT] + (row + i) * w[P_OUTPUT_STRIDE] + first * 4
        for j in range(0, width, LANES):
            some = min(LANES, width - j)
            value = v.load(source + 4 * j)
            if w[P_BIAS] != 0:
                value = v.add(value, v.load_head(w[P_BIAS] + 4 * (first + j), some))
            if w[P_ACCUMULATE] != 0:
                value = v.add(value, v.load_head(target + 4 * j, some))
            if some == LANES:
                v.store(target + 4 * j, value)
            else:
                v.store_head(target + 4 * j, value, some)


@kernel(boundscheck=False)
def product_cut(w, rows, threads):
    """Panels of a chunk, chunks of a block, activation rows of a block, blocks."""
    panels = (w[P_ROWS] + PANEL_ROWS - 1) // PANEL_ROWS
    run = max(1, panels // (threads * CLAIMS))
    runs = (panels + run - 1) // run
    blocks = (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    return run, runs, (rows + blocks - 1) // max(blocks, 1), blocks


@kernel(boundscheck=False)
def product_chunks(w, rows, threads):
    """Chunks of a product."""
    _, runs, _, blocks = product_cut(w, rows, threads)
    return runs * blocks


@kernel(inline="always", boundscheck=False)
def expands(w, count):
    """Whether weights are expanded for so many activation rows."""
    chosen = w[P_KERNEL]
    if w[P_SELECTED] != 0 and TUNED_FROM <= count <= TUNED_ROWS[2]:
        place = np.int64(count > TUNED_ROWS[0]) + np.int64(count > TUNED_ROWS[1])
        chosen = m.get_i32(w[P_SELECTED] + 4 * place)
    if chosen in (DIRECT, EXPANDED):
        return chosen == EXPANDED
    return count >= EXPAND_FROM


@kernel(boundscheck=False)
def product(w, rows, threads, control, step, total, scratch):
    """Claims and runs chunks of a product over `rows` activation rows; how many it ran."""
    run, runs, block, _ = product_cut(w, rows, threads)
    panels = (w[P_ROWS] + PANEL_ROWS - 1) // PANEL_ROWS
    sums = scratch + EXPANDED_BYTES
    blocks_of_panel = w[P_COLUMNS] // w[P_BLOCK_COLUMNS]
    ran = 0
    chunk = next_chunk(control, step, total)
    while chunk >= 0:
        row = chunk // runs * block
        count = min(block, rows - row)
        expanded = expands(w, count)
        x = w[P_INPUT] + row * w[P_INPUT_STRIDE]
        first = chunk % runs * run
        last = min(first + run, panels) if count > 0 else first
        for panel in range(first, last):
            weights = w[P_WEIGHT] + panel * w[P_PANEL_BYTES]
            if not expanded:
                direct_panel(
                    w[P_VARIANT], weights, blocks_of_panel, x, w[P_INPUT_STRIDE], count, sums
                )
            else:
                expanded_panel(w, weights, x, count, scratch, sums)
            write_sums(w, sums, row, panel * PANEL_ROWS, count)
        ran += 1
        chunk = next_chunk(control, step, total)
    return ran


@kernel(boundscheck=False)
def panel_element(w, base, row, column):
    """One dequantised weight. w: the storage words, `base` places before P_VARIANT's."""
    variant, panel_bytes = w[base], w[base + 3]
    block_columns, block_bytes = w[base + 4], w[base + 5]
    inside = row % PANEL_ROWS
    block = w[base - 1] + row // PANEL_ROWS * panel_bytes + column // block_columns * block_bytes
    if variant == 6:
        return m.get_f32(block + 4 * inside)
    if variant == 7:
        return m.get_f16(block + 2 * inside)
    if variant == 8:
        return m.get_bf16(block + 2 * inside)
    half = variant == 0 or variant == 2 or variant == 3
    size = 2 if half else 4
    scale = m.get_f16(block + 2 * inside) if half else m.get_f32(block + 4 * inside)
    words = block + size * PANEL_ROWS
    minimum = np.float32(0)
    if variant != 2 and variant != 4:
        minimum = m.get_f16(words + 2 * inside) if half else m.get_f32(words + 4 * inside)
        words += size * PANEL_ROWS
    j = column % block_columns
    if variant < 2:
        word = m.get_u32(words + (j // 8 * PANEL_ROWS + inside) * 4)
        quant = np.float64(word >> (4 * (j % 8)) & 15)
    else:
        word = m.get_u32(words + (j // 4 * PANEL_ROWS + inside) * 4) >> (8 * (j % 4)) & 255
        quant = np.float64(word - 256 if word > 127 else word)
    return np.float32(quant * np.float64(scale) + np.float64(minimum))

"""What single kernels compute, in float64, for arrays as kernels are given them."""

import numpy as np

from helios_dod.ignition.floats import to_bf16

PAGE = 16


def of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def noise(generator, *shape):
    """Normal values as bf16 bits."""
    return to_bf16(generator.standard_normal(shape).astype(np.float32))


def silu(x):
    return x / (1 + np.exp(-x))


def normed(x, weight, epsilon):
    """Rows over their root mean square."""
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * weight


def head_rows(summed, heads, key_heads, head, norms, epsilon):
    """A product's row as heads [heads + 2 * key_heads, head]; norms of queries and of keys."""
    rows = summed.reshape(-1, head).copy()
    if norms is not None:
        rows[:heads] = normed(rows[:heads], norms[0], epsilon)
        rows[heads : heads + key_heads] = normed(
            rows[heads : heads + key_heads], norms[1], epsilon)
    return rows


def turned(rows, where, frequencies, interleaved, magnitude):
    """Heads rotated to a position."""
    half, out = len(frequencies), rows.copy()
    angle = where * frequencies.astype(np.float64)
    pairs = (np.arange(half) * 2, np.arange(half) * 2 + 1) if interleaved else (
        np.arange(half), np.arange(half) + half)
    a, b = rows[:, pairs[0]], rows[:, pairs[1]]
    out[:, pairs[0]] = (a * np.cos(angle) - b * np.sin(angle)) * magnitude
    out[:, pairs[1]] = (b * np.cos(angle) + a * np.sin(angle)) * magnitude
    return out


def attention(position, pages, keys, values, query, new_key, new_value, window, scale):
    """Of one lane and key head: query [group, head]. keys [pages, head, PAGE] and values [pages,
    PAGE, head] hold the positions before, which `pages` names in order."""
    places = [(pages[i // PAGE], i % PAGE) for i in range(position)]
    k = np.array([*(of_bf16(keys[page, :, at]) for page, at in places), new_key])
    v = np.array([*(of_bf16(values[page, at]) for page, at in places), new_value])
    first = max(0, position - window + 1) if window else 0
    scores = query @ k[first:].T * scale
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v[first:] / weights.sum(axis=1, keepdims=True)


def paged(generator, positions, slots, stride, key_heads, head):
    """(table, keys, values) of histories whose pages lie anywhere; NaN behind each history."""
    count = slots.size * stride
    table = generator.permutation(count).reshape(slots.size, stride).astype(np.int32)
    keys = noise(generator, count, key_heads, head, PAGE)
    values = noise(generator, count, key_heads, PAGE, head)
    for lane, where in enumerate(positions):
        for column in range(stride):
            page, seen = table[slots[lane], column], np.clip(where - column * PAGE, 0, PAGE)
            keys[page, :, :, seen:], values[page, :, seen:] = 0x7FC0, 0x7FC0
    return table, keys, values


NEAR_F32 = 1e-5  # relative rms of float32 sums of exact products
NEAR_BF16 = 4e-3  # and of results that are rounded to bf16


def relative(wanted, found):
    """Root mean square of the difference over that of what is wanted; NaN where any is."""
    return float(np.sqrt(((wanted - found) ** 2).mean() / (wanted**2).mean()))


def lone_bench():
    """A bench of a GPU. Skips where there is none; with HELIOS_DRY kernels are only compiled."""
    import os

    import pytest
    from cuda_bench import Bench
    from test_cuda_device import gpu_count

    if "HELIOS_DRY" in os.environ:
        return Bench(dry=True)
    if gpu_count() == 0:
        pytest.skip("no NVIDIA GPU here")
    return Bench()

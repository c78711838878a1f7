"""Rotary frequencies. Sources: RoPE (arXiv 2104.09864), position interpolation (2306.15595), YaRN
(2309.00071); the rounding steps follow Hugging Face's modeling_rope_utils, which checkpoints are
published for."""

import math

import numpy as np

from helios_dod.ignition.checkpoints.checkpoint import Rotary, RotaryScaling


def frequencies(rotary: Rotary, factors: np.ndarray | None = None) -> np.ndarray:
    """Radians a position of each rotated pair: float32 [dimension / 2].

    `factors` are the divisors of RotaryScaling.FACTORS, float32 [dimension / 2]."""
    exponents = (np.arange(0, rotary.dimension, 2) / rotary.dimension).astype(np.float32)
    periods = np.power(rotary.base, exponents.astype(np.float64)).astype(np.float32)
    plain = np.float32(1) / periods
    if rotary.scaling is RotaryScaling.LINEAR:
        return plain / np.float32(rotary.factor)
    if rotary.scaling is RotaryScaling.FACTORS:
        assert factors is not None and factors.shape == plain.shape
        return plain / factors
    if rotary.scaling is RotaryScaling.BANDED:
        return banded(rotary, plain)
    if rotary.scaling is RotaryScaling.YARN:
        keep = 1 - ramp(rotary)
        return plain * keep + np.float32(1) / (np.float32(rotary.factor) * periods) * (1 - keep)
    return plain


def banded(rotary: Rotary, plain: np.ndarray) -> np.ndarray:
    """Wavelengths beyond original_context / low_factor are stretched by `factor`, those below
    original_context / high_factor are kept, and the band between is blended by wavelength."""
    wavelengths = np.float32(2 * math.pi) / plain
    low, high = np.float32(rotary.low_factor), np.float32(rotary.high_factor)
    context = np.float32(rotary.original_context)
    blend = np.clip((context / wavelengths - low) / (high - low), 0, 1).astype(np.float32)
    stretched = plain / np.float32(rotary.factor)
    mixed = (1 - blend) * stretched + blend * plain
    return np.where(blend == 0, stretched, np.where(blend == 1, plain, mixed)).astype(np.float32)


def ramp(rotary: Rotary) -> np.ndarray:
    """YaRN's share of interpolation: 0 where a pair turns beta_fast times or more within the
    original context, 1 where beta_slow times or fewer, linear in the pair's index between."""

    def pair_of(turns: float) -> float:
        return (
            rotary.dimension
            * math.log(rotary.original_context / (turns * 2 * math.pi))
            / (2 * math.log(rotary.base))
        )

    low, high = pair_of(rotary.beta_fast), pair_of(rotary.beta_slow)
    if rotary.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.dimension - 1)
    width = high - low if high != low else 0.001
    pairs = np.arange(rotary.dimension // 2, dtype=np.float32)
    return np.clip((pairs - np.float32(low)) / np.float32(width), 0, 1).astype(np.float32)

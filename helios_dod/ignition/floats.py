"""Narrow floating-point numbers, as bits: bf16, and e4m3 without infinities.

Micikevicius et al., FP8 Formats for Deep Learning, 2022.
"""

import numpy as np

E4M3_MAX = 448.0
E4M3_NORMAL = 2.0**-6  # its least normal number
E4M3_STEPS = 512.0  # of those below it in one


def _magnitude(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    if code == 0x7F:
        return float("nan")
    return (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa / E4M3_STEPS


# float32 [256]: the value of each code.
E4M3_VALUES = np.array([(-1) ** (code >> 7) * _magnitude(code & 0x7F) for code in range(256)],
                       np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> bf16 bits (uint16), rounded to nearest even; values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """float32 -> e4m3 bits (uint8), rounded to nearest even, what is larger to the largest.
    Values are finite."""
    size = np.minimum(np.abs(np.ascontiguousarray(values, np.float32)), np.float32(E4M3_MAX))
    bits = size.view(np.uint32)
    normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3)
    code = np.where(size < E4M3_NORMAL, np.rint(size * np.float32(E4M3_STEPS)), normal)
    return (code.astype(np.uint8) | (np.signbit(values).astype(np.uint8) << 7)).astype(np.uint8)

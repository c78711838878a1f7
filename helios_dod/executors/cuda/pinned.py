"""Views of host memory that the driver allocated."""

import ctypes

import numpy as np


def host_bytes(address: int, count: int) -> np.ndarray:
    """uint8 view of memory at a host address."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


def host_words(address: int, count: int) -> np.ndarray:
    """int64 view of memory at a host address."""
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))

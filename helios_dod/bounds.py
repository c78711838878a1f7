"""Numbers that a caller gives: what does not fit is refused by field, limit and value."""

import operator
from typing import Any

import numpy as np

from helios_dod.errors import UserError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1
SHOWN_BITS = 256  # of a number that an error writes out


def shown(value: Any) -> str:
    """A value for an error; Python itself refuses to write very large numbers."""
    if isinstance(value, int) and value.bit_length() > SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:SHOWN_BITS]


def whole(field: str, value: Any, low: int, high: int) -> int:
    """An integer of low..high. Raises UserError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{field}: expected a whole number, got {shown(value)}") from None
    if not low <= number <= high:
        raise UserError(f"{field}: {low} to {high} possible, got {shown(number)}")
    return number


def real(field: str, value: Any, low: float, high: float) -> float:
    """A number of low..high. Raises UserError."""
    if not isinstance(value, (float, int, np.floating)):
        raise UserError(f"{field}: expected a number, got {shown(value)}")
    if not low <= value <= high:  # NaN is not
        raise UserError(f"{field}: {low:g} to {high:g} possible, got {shown(value)}")
    return float(value)

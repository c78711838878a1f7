"""Numbers on a command line: types of argparse that refuse what is no number or does not fit."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from helios_dod.bounds import INT32_MAX, INT64_MAX, real, whole
from helios_dod.errors import UserError

T = TypeVar("T")
AMOUNT_MAX = 1e12  # beyond any time, rate or size in the units of options


def _number(text: str, read: Callable[[str], T], check: Callable[[T], T], what: str) -> T:
    try:
        return check(read(text))
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None
    except ValueError:
        raise ArgumentTypeError(f"expected {what}, got {text[:80]!r}") from None


def whole_number(text: str, low: int = 0, high: int = INT32_MAX) -> int:
    """An integer of low..high."""
    return _number(text, int, lambda value: whole("the number", value, low, high),
                   "a whole number")


def positive(text: str) -> int:
    """A number of at least 1."""
    return whole_number(text, 1)


def seed(text: str) -> int:
    """Of a generator of numbers."""
    return whole_number(text, 0, INT64_MAX)


def amount(text: str, high: float = AMOUNT_MAX) -> float:
    """A number of 0..high, neither infinite nor NaN."""
    return _number(text, float, lambda value: real("the number", value, 0, high), "a number")


def share(text: str) -> float:
    """A number of 0..1."""
    return amount(text, 1)

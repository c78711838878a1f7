"""The one error of this package."""

from typing import Any

from helios_dod.errors import UserError


class ContractError(UserError):
    """A contract or manifest that cannot be served: the field, what it must be, what it is."""

    def __init__(self, field: str, expected: str, got: Any) -> None:
        self.field, self.expected, self.got = field, expected, got
        super().__init__(f"{field}: expected {expected}, got {describe(got)}")


def describe(value: Any) -> str:
    """A value for a message: quoted where it would not show, nothing longer than a line."""
    shows = not isinstance(value, str | bytes) or (isinstance(value, str) and value.isprintable())
    text = str(value) if shows and value != "" else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def require(held: bool, field: str, expected: str, got: Any) -> None:
    """Raises ContractError unless `held`."""
    if not held:
        raise ContractError(field, expected, got)

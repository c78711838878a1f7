"""The errors of this package."""

from pathlib import Path

from helios_dod.errors import UserError


class CoreError(UserError):
    """A core that cannot be read or written: where, and what is wrong with it."""

    def __init__(self, place: str | Path, problem: str) -> None:
        self.place, self.problem = str(place), problem
        super().__init__(f"{place}: {problem}")


class AcceptanceError(CoreError):
    """The publisher's namespace has not been accepted by this user, or not for this core."""

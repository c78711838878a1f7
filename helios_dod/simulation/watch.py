"""What each step of a walked tick changed: write-sets, and which invariants can no longer be taken
for granted."""

import numpy as np

from helios_dod.schedule import TICK
from helios_dod.simulation.invariants import INVARIANTS, require
from helios_dod.system import System, kernel


def columns_of(dtype: np.dtype) -> list[tuple[str, int, int]]:
    """(table.column, first byte, bytes) of every column of a world."""
    found = []
    for table, (inner, start, *_) in (dtype.fields or {}).items():
        for column, (kind, offset, *_) in (inner.fields or {}).items():
            found.append((f"{table}.{column}", start + offset, kind.itemsize))
    return found


def covers(declared: frozenset[str], column: str) -> bool:
    """Is a column among `table.column` and `table.*` names?"""
    return column in declared or f"{column.split('.')[0]}.*" in declared


@kernel
def take_changes(now, before, column_of, changed):
    """Marks the columns (bool changed) whose bytes differ between two worlds (uint64 now, before)
    and makes `before` equal; True if there are any. column_of: each byte's column, int32."""
    found = False
    changed[:] = False
    for word in range(len(now)):
        differ = now[word] ^ before[word]
        if differ == 0:
            continue
        found = True
        before[word] = now[word]
        for byte in range(8):
            if (differ >> np.uint64(8 * byte)) & np.uint64(255) != 0:
                column = column_of[8 * word + byte]
                assert column >= 0, "a byte between columns was written"
                changed[column] = True
    return found


class Watch:
    """A copy of a world, brought up to date after every step.

    An invariant is a function of the columns that it reads: while none of them changes, it holds as
    it did before."""

    def __init__(self, world: np.ndarray) -> None:
        self.world, self.now = world, world.view(np.uint64)
        self.before = self.now.copy()
        columns = columns_of(world.dtype)
        self.names = [name for name, _, _ in columns]
        self.column_of = np.full(world.nbytes, -1, np.int32)
        for column, (_, first, size) in enumerate(columns):
            self.column_of[first : first + size] = column
        self.changed = np.zeros(len(columns), np.bool_)
        self.forbidden = {system.name: np.array(
            [not covers(system.writes, name) for name in self.names]) for system in TICK}
        self.reads = np.array([[covers(invariant.reads, name) for name in self.names]
                               for invariant in INVARIANTS])

    def after(self, system: System | None) -> None:
        """Judges what a system has changed; None: the edges around the systems, which may change
        what they like. Raises Violation."""
        if not take_changes(self.now, self.before, self.column_of, self.changed):
            return
        if system is not None:
            wrong = np.nonzero(self.changed & self.forbidden[system.name])[0]
            require(not len(wrong), f"{system.name} wrote {[self.names[i] for i in wrong]}")
        for index in np.nonzero((self.reads & self.changed).any(axis=1))[0].tolist():
            INVARIANTS[index].check(self.world[0])

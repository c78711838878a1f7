"""The memory that a recording lies in while an engine runs: its entries, and the tail, a world.

Who starts an engine may make it beforehand and share it by fork: then the recording of an engine
that is killed is still there. An entry is written whole before the header says so, and the tail is
marked while it changes, so at whatever moment the engine ends, it is known what can be read.
"""

import mmap
from collections.abc import Iterator

import numpy as np

PAGE = 4096
MEMORY_BYTES = 256 << 20  # of entries
WORD = 8
# Words of the header.
STATE, FIRST, END, COUNT = range(4)
# Of STATE: nothing to write; a recording; a recording whose tail is half a tick further.
EMPTY, KEPT, ADVANCING = range(3)
# Words before an entry's bytes: how many there are, and what its tick added when it ended.
LENGTH, COMPLETED, DECISIONS, HEAD = range(4)
SKIPPED = -1  # LENGTH: the next entry is at the ring's start
UNFINISHED = -1  # DECISIONS: the tick has not ended


class Ledger:
    """A ring of entries behind a header and a world of tail_bytes; zeroed, and not resident until
    it is written. Positions count words since the ring was empty."""

    def __init__(self, tail_bytes: int, memory_bytes: int = MEMORY_BYTES) -> None:
        start = PAGE + -(-tail_bytes // PAGE) * PAGE
        whole = memoryview(mmap.mmap(-1, start + memory_bytes // WORD * WORD))  # shared by fork
        self.header = np.frombuffer(whole[:PAGE], np.int64)
        self.tail = whole[PAGE : PAGE + tail_bytes]
        self.words = np.frombuffer(whole[start:], np.int64)
        self.newest = 0  # where the newest entry's head is

    def begin(self) -> None:
        """Forgets what was kept; the tail is in order again."""
        self.header[:] = 0
        self.header[STATE] = KEPT

    @property
    def state(self) -> int:
        """One of EMPTY, KEPT, ADVANCING."""
        return int(self.header[STATE])

    @state.setter
    def state(self, state: int) -> None:
        self.header[STATE] = state

    @property
    def count(self) -> int:
        """Entries that are kept."""
        return int(self.header[COUNT])

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return int(self.header[END] - self.header[FIRST]) * WORD

    def _place(self, need: int) -> tuple[int, int]:
        """(where an entry of `need` words would begin, words from the ring's end on that it takes
        until then)."""
        end = int(self.header[END])
        left = len(self.words) - end % len(self.words)
        return (end, 0) if need <= left else (end + left, left)

    def fits(self, data: bytes) -> bool:
        """Is there room for an entry?"""
        need = HEAD + -(-len(data) // WORD)
        return self.nbytes // WORD + need + self._place(need)[1] <= len(self.words)

    def append(self, data: bytes) -> None:
        """An entry of a tick that begins; the caller has made room."""
        assert self.fits(data)
        need = HEAD + -(-len(data) // WORD)
        at, skipped = self._place(need)
        if skipped:
            self.words[(at - skipped) % len(self.words)] = SKIPPED
        self.newest = at % len(self.words)
        self.words[self.newest : self.newest + HEAD] = len(data), 0, UNFINISHED
        start = (self.newest + HEAD) * WORD
        self.words.view(np.uint8)[start : start + len(data)] = np.frombuffer(data, np.uint8)
        self.header[END] = at + need
        self.header[COUNT] += 1

    def finish(self, completed_ns: int, decisions: int) -> None:
        """The newest entry's tick has ended."""
        self.words[self.newest + COMPLETED] = completed_ns
        self.words[self.newest + DECISIONS] = decisions

    def _read(self, position: int) -> tuple[bytes, int, int, int]:
        """The entry at a position or behind what is skipped there: bytes, completed_ns, decisions;
        and the position behind it."""
        at = position % len(self.words)
        if self.words[at] == SKIPPED:
            position, at = position + len(self.words) - at, 0
        length, completed_ns, decisions = self.words[at : at + HEAD].tolist()
        start = (at + HEAD) * WORD
        data = self.words.view(np.uint8)[start : start + length].tobytes()
        return data, completed_ns, decisions, position + HEAD + -(-length // WORD)

    def oldest(self) -> tuple[bytes, int, int]:
        """The oldest entry."""
        return self._read(int(self.header[FIRST]))[:3]

    def drop(self) -> None:
        """Forgets the oldest entry."""
        self.header[FIRST] = self._read(int(self.header[FIRST]))[3]
        self.header[COUNT] -= 1
        if self.count == 0:
            self.header[FIRST] = self.header[END] = 0  # the whole ring is room for the next

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """All of them, oldest first."""
        position = int(self.header[FIRST])
        for _ in range(self.count):
            data, completed_ns, decisions, position = self._read(position)
            yield data, completed_ns, decisions

"""What an executor asks of the mapped file behind host memory.

The file may fail under it: a medium that is not readable, a file system that is full after all, a
file that somebody cuts off or writes into. Touching such a page is a signal that ends the engine,
so pages are populated first, where it is an error; and what comes back is compared with what went
there, so that other bytes never pass for a page.
"""

import errno
import mmap
import sys
import zlib

import numpy as np
from numba import types

from helios_dod.system import kernel

POPULATE_READ, POPULATE_WRITE = 22, 23  # linux/mman.h, since Linux 5.14
PRIME = np.uint64(0x9E3779B97F4A7C15)  # odd: a word that differs always shows
HALF = np.uint64(32)


@kernel
def joined(value, word):
    """A sum of words with one more. The word's upper half goes into its lower one first: products
    carry upwards alone, and changes of the highest bits of two words would meet each other."""
    word *= PRIME
    return (value ^ word ^ (word >> HALF)) * PRIME


@kernel
def word_sum(words):
    """A check of uint64 words: four sums side by side, as each waits for its own product."""
    a, b, c, d = PRIME, PRIME, PRIME, PRIME
    whole = len(words) // 4 * 4
    for i in range(0, whole, 4):
        a, b = joined(a, words[i]), joined(b, words[i + 1])
        c, d = joined(c, words[i + 2]), joined(d, words[i + 3])
    for i in range(whole, len(words)):
        a = joined(a, words[i])
    return joined(joined(joined(a, b), c), d)


def check_of(page: np.ndarray) -> int:
    """A check of a page, uint8 [n]."""
    if len(page) % 8 or page.ctypes.data % 8:
        return zlib.crc32(page.data)
    return int(word_sum(page.view(np.uint64)))


class Disk:
    """A mapped file: places for pages, and at its end `windows` places for those of page group 1.
    page_bytes: of each group."""

    def __init__(self, mapped: mmap.mmap, page_bytes: tuple[int, int], windows: int) -> None:
        self.mapped = mapped
        self.bytes = np.frombuffer(mapped, np.uint8)
        paged = len(mapped) - windows * page_bytes[1]
        self.starts, self.page_bytes = (0, paged), page_bytes
        # Of what was written to a place of each group; 0 is of nothing.
        self.checks = (np.zeros(paged // page_bytes[0], np.uint64), np.zeros(windows, np.uint64))
        self.told = False
        self.populates = True  # until the kernel says that it cannot
        word_sum.compile((types.Array(types.uint64, 1, "C"),))

    def _span(self, group: int, place: int) -> tuple[int, int]:
        start = self.starts[group] + place * self.page_bytes[group]
        return start, start + self.page_bytes[group]

    def _populate(self, how: int, first: int, end: int) -> bool:
        """False where touching those bytes would be a signal."""
        if not self.populates:
            return True
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self.mapped.madvise(how, start, end - start)
        except OSError as error:
            if error.errno == errno.EINVAL:  # an older kernel, which cannot tell
                self.populates = False
                return True
            return False
        return True

    def write(self, group: int, place: int, page: np.ndarray) -> bool:
        """Writes a page of a group to a place; False if the file fails."""
        first, end = self._span(group, place)
        self.checks[group][place] = 0
        if not self._populate(POPULATE_WRITE, first, end):
            return self._fails("not writable")
        np.copyto(self.bytes[first:end], page)
        self.checks[group][place] = check_of(page)
        return True

    def read(self, group: int, place: int, page: np.ndarray) -> bool:
        """Fills a page of a group from a place; False if the file fails: then it holds anything."""
        first, end = self._span(group, place)
        if not self._populate(POPULATE_READ, first, end):
            return self._fails("not readable")
        np.copyto(page, self.bytes[first:end])
        known = self.checks[group][place]
        if known == 0 or check_of(page) != known:  # of the copy: the file may change behind it
            return self._fails("not what was written there")
        return True

    def _fails(self, what: str) -> bool:
        if not self.told:
            self.told = True
            print(f"helios: --offload-disk: a page is {what}; pages that fail are computed again, "
                  "see copies_failed in /metrics", file=sys.stderr)
        return False

    def close(self) -> None:
        """Unmaps the file; nothing else may hold its bytes."""
        del self.bytes
        self.mapped.close()

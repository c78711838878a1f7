"""The loop that feeds weights to a device, against functions of the test's own."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helios_dod.executors.cuda.feeding import LINE, NOT_READY, addresses, fill, send

CHUNK = 1 << 12
COPY = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
SLOTS = 3


class Machine:
    """A device whose memory is an array: copies happen when their event is asked for a second time,
    and one fails where it is told to."""

    def __init__(self, nbytes: int, failing: int = -1) -> None:
        self.memory, self.failing = np.zeros(nbytes, np.uint8), failing
        self.copies, self.waiting, self.asked = [], {}, {}
        self.kept = [COPY(self.copy), COPY(self.record), COPY(self.query)]

    def copy(self, to: int, source: int, count: int, stream: int) -> int:
        if self.failing == len(self.copies):
            return 719
        self.copies.append((to - self.memory.ctypes.data, count, stream))
        self.newest = to, source, count
        return 0

    def record(self, event: int, *_: int) -> int:
        assert event not in self.waiting, "a buffer was filled again before its event"
        self.waiting[event], self.asked[event] = self.newest, 0
        return 0

    def query(self, event: int, *_: int) -> int:
        self.asked[event] += 1
        if self.asked[event] < 2:
            return NOT_READY
        ctypes.memmove(*self.waiting.pop(event))
        return 0

    def fed(self, file: int, offset: int, threads: int = 2) -> tuple[int, tuple[int, int]]:
        read = addresses(ctypes.CDLL(None), "pread64" if file >= 0 else "memcpy")[0]
        memory = np.zeros((SLOTS, CHUNK), np.uint8)
        buffers = np.array([row.ctypes.data for row in memory], np.int64)
        turns, stop = np.zeros(SLOTS * LINE, np.int64), np.zeros(1, np.int64)
        with ThreadPoolExecutor(threads) as pool:
            ends = [pool.submit(fill, read, file, offset, self.memory.nbytes, CHUNK, first,
                                threads, buffers, turns, stop) for first in range(threads)]
            sent = send(np.array([ctypes.cast(one, ctypes.c_void_p).value for one in self.kept],
                                 np.int64), self.memory.ctypes.data, self.memory.nbytes, CHUNK,
                        buffers, np.arange(71, 71 + SLOTS), 9, turns, stop)
            return max(end.result() for end in ends), sent


@pytest.fixture
def written(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 11 * CHUNK + 100, dtype=np.uint8)
    (tmp_path / "weights").write_bytes(b"head" + data.tobytes())
    file = os.open(tmp_path / "weights", os.O_RDONLY)
    yield data, file
    os.close(file)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_chunk_arrives_once_and_in_order(written, threads):
    data, file = written
    machine = Machine(data.nbytes)
    assert machine.fed(file, 4, threads) == (-1, (-1, 0))
    assert np.array_equal(machine.memory, data)
    assert machine.copies == [(i * CHUNK, min(CHUNK, data.nbytes - i * CHUNK), 9)
                              for i in range(12)]


def test_memory_is_copied_like_a_file(written):
    data, _ = written
    machine = Machine(data.nbytes)
    assert machine.fed(-1, data.ctypes.data) == (-1, (-1, 0))
    assert np.array_equal(machine.memory, data)


def test_what_fails_ends_every_thread_and_is_told(written):
    data, file = written
    assert Machine(data.nbytes + 50).fed(file, 4)[0] == data.nbytes
    assert Machine(data.nbytes, failing=2).fed(file, 4) == (-1, (0, 719))

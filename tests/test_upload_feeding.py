"""The loop that feeds weights to a device, against functions of the test's own."""

import ctypes
import os

import numpy as np
import pytest

from helios_dod.executors.cuda.feeding import addresses, feed

CHUNK = 1 << 12
COPY = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)


class Machine:
    """A device whose memory is an array, and that fails a copy where it is told to."""

    def __init__(self, nbytes: int, failing: int = -1) -> None:
        self.memory, self.calls, self.failing = np.zeros(nbytes, np.uint8), [], failing
        self.kept = [COPY(self.copy), COPY(self.note), COPY(self.note)]

    def copy(self, to: int, source: int, count: int, stream: int) -> int:
        if self.failing == len(self.calls):
            return 719
        ctypes.memmove(to, source, count)
        self.calls.append((to - self.memory.ctypes.data, count, stream))
        return 0

    def note(self, event: int, *_: int) -> int:
        self.calls.append(event)
        return 0

    def fed(self, file: int, offset: int, first: int = 0, step: int = 1) -> tuple[int, int]:
        read = addresses(ctypes.CDLL(None), "pread64" if file >= 0 else "memcpy")
        own = [ctypes.cast(one, ctypes.c_void_p).value for one in self.kept]
        buffers = np.zeros((2, CHUNK), np.uint8)
        return feed(np.array(read + own, np.int64), file, offset, self.memory.ctypes.data,
                    self.memory.nbytes, CHUNK, first, step,
                    np.array([row.ctypes.data for row in buffers], np.int64),
                    np.array([71, 72], np.int64), 9)


@pytest.fixture
def written(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 5 * CHUNK + 100, dtype=np.uint8)
    (tmp_path / "weights").write_bytes(b"head" + data.tobytes())
    file = os.open(tmp_path / "weights", os.O_RDONLY)
    yield data, file
    os.close(file)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_chunk_arrives_once(written, threads):
    data, file = written
    machine = Machine(data.nbytes)
    for first in range(threads):
        assert machine.fed(file, 4, first, threads) == (-1, 0)
    assert np.array_equal(machine.memory, data)
    copies = [call for call in machine.calls if isinstance(call, tuple)]
    assert len(copies) == 6 and all(stream == 9 for _, _, stream in copies)


def test_a_buffer_is_filled_again_only_behind_its_event(written):
    data, file = written
    machine = Machine(data.nbytes)
    machine.fed(file, 4)
    events = [call for call in machine.calls if not isinstance(call, tuple)]
    assert events == [71, 72] + [71, 71, 72, 72] * 2


def test_memory_is_copied_like_a_file(written):
    data, _ = written
    machine = Machine(data.nbytes)
    assert machine.fed(-1, data.ctypes.data) == (-1, 0)
    assert np.array_equal(machine.memory, data)


def test_what_fails_is_told(written):
    data, file = written
    assert Machine(data.nbytes + 50).fed(file, 4) == (0, data.nbytes)
    assert Machine(data.nbytes, failing=2).fed(file, 4) == (1, 719)

"""The loop that feeds weights to a device, against functions of the test's own."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helios_dod.cores.mapped import MappedFile
from helios_dod.executors.cuda.feeding import LINE, addresses, fill, send

CHUNK = 1 << 12
COPY = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
SLOTS = 3
STREAM = 9


class Machine:
    """A device whose memory is an array: a copy happens and is told of when the next is asked for,
    or when the driver is. One fails where it is told to, or none ever ends."""

    def __init__(self, nbytes: int, failing: int = -1, stuck: bool = False) -> None:
        self.memory, self.failing, self.stuck = np.zeros(nbytes, np.uint8), failing, stuck
        self.ring, self.arrived = np.zeros(SLOTS * CHUNK, np.uint8), np.zeros(1, np.int64)
        self.copies, self.waiting = [], []
        self.kept = [COPY(self.copy), COPY(self.write), COPY(self.query)]

    def copy(self, to: int, source: int, count: int, stream: int) -> int:
        if self.failing == len(self.copies):
            return 719
        self.query()
        self.copies.append((to - self.memory.ctypes.data, count, stream))
        self.newest = to, source, count
        return 0

    def write(self, stream: int, address: int, value: int, flags: int) -> int:
        assert (stream, flags) == (STREAM, 0)
        self.waiting.append((self.newest, address, value))
        return 0

    def query(self, *_: int) -> int:
        for moved, address, value in self.waiting:
            ctypes.memmove(*moved)
            ctypes.c_int64.from_address(address).value = value
        self.waiting.clear()
        return 719 if self.stuck else 600

    def send(self, turns: np.ndarray, stop: np.ndarray, least: int) -> tuple[int, int]:
        functions = np.array([ctypes.cast(one, ctypes.c_void_p).value for one in self.kept],
                             np.int64)
        return send(functions, self.memory.ctypes.data, self.memory.nbytes, CHUNK,
                    self.ring.ctypes.data, self.arrived, self.arrived.ctypes.data, least, STREAM,
                    turns, stop)

    def fed(self, file: int, offset: int, threads: int = 2, least: int = 1
            ) -> tuple[int, tuple[int, int]]:
        read = addresses(ctypes.CDLL(None), "pread64" if file >= 0 else "memcpy")[0]
        turns, stop, next_chunk = (np.zeros(n, np.int64) for n in (SLOTS * LINE, 1, 1))
        with ThreadPoolExecutor(threads) as pool:
            ends = [pool.submit(fill, read, file, offset, self.memory.nbytes, CHUNK,
                                self.ring.ctypes.data, turns, next_chunk, stop)
                    for _ in range(threads)]
            sent = self.send(turns, stop, least)
            stop[0] = 1
            return max(end.result() for end in ends), sent


@pytest.fixture
def written(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 11 * CHUNK + 100, dtype=np.uint8)
    (tmp_path / "weights").write_bytes(b"head" + data.tobytes())
    file = os.open(tmp_path / "weights", os.O_RDONLY)
    yield data, file
    os.close(file)


@pytest.mark.parametrize("least", [1, 2, 9])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_chunk_arrives_once_and_in_order(written, threads, least):
    data, file = written
    machine = Machine(data.nbytes)
    assert machine.fed(file, 4, threads, least) == (-1, (-1, 0))
    assert np.array_equal(machine.memory, data)
    end = 0
    for at, count, stream in machine.copies:
        assert at == end and stream == STREAM, "a copy does not go on where the one before it ended"
        assert at // CHUNK // SLOTS == (at + count - 1) // CHUNK // SLOTS, "beyond the ring's end"
        end = at + count
    assert end == data.nbytes


def test_what_is_full_goes_in_one_copy():
    turns, machine = np.zeros(SLOTS * LINE, np.int64), Machine(SLOTS * CHUNK)
    turns[::LINE] = 1
    machine.ring[:] = np.arange(SLOTS).repeat(CHUNK)
    assert machine.send(turns, np.zeros(1, np.int64), 1) == (-1, 0)
    assert machine.copies == [(0, SLOTS * CHUNK, STREAM)]
    assert np.array_equal(machine.memory, machine.ring) and (turns[::LINE] == 2).all()


def test_a_mapped_file_is_read_by_its_descriptor_whatever_its_name_is_now(written, tmp_path):
    upload = pytest.importorskip("helios_dod.executors.cuda.upload")
    data, file = written
    mapped = np.frombuffer(MappedFile(file, data.nbytes + 4), np.uint8)
    (tmp_path / "weights").unlink()
    descriptor, offset = upload._file_of(mapped[4:][:100])
    assert offset == 4 and np.array_equal(
        np.frombuffer(os.pread(descriptor, 100, offset), np.uint8), data[:100])
    os.close(descriptor)
    own = data[7:]
    assert upload._file_of(own) == (-1, own.ctypes.data)


def test_memory_is_copied_like_a_file(written):
    data, _ = written
    machine = Machine(data.nbytes)
    assert machine.fed(-1, data.ctypes.data) == (-1, (-1, 0))
    assert np.array_equal(machine.memory, data)


def test_what_fails_ends_every_thread_and_is_told(written):
    data, file = written
    assert Machine(data.nbytes + 50).fed(file, 4)[0] == data.nbytes
    assert Machine(data.nbytes, failing=2).fed(file, 4) == (-1, (0, 719))
    assert Machine(data.nbytes, stuck=True).fed(file, 4) == (-1, (1, 719))

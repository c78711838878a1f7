"""Copies of pages on CUDA's streams, over a driver of the test's own."""

import ctypes
import mmap
import os
import threading
import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from helios_dod.limits import SMALL
from helios_dod.terms import (
    COPY_FETCH,
    COPY_OFFLOAD,
    COPY_RESTORE,
    COPY_SINK,
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
    QUEUE_DISK,
    QUEUE_MEMORY,
)
from helios_dod.world import boot

copies = pytest.importorskip("helios_dod.executors.cuda.copies", reason="needs cuda-python")
PLANES, PAGES, ROW, PLACES = 3, 40, 2 << 20, 40  # pages of 6 MiB: two copies at once
WINDOWED = 30  # the first page that is of page group 1


class Driver:
    """Streams whose work is done when an event behind it is waited for."""

    def __init__(self) -> None:
        self.memory, self.queued, self.handles = {}, {}, 0
        self.lock, self.most, self.failing = threading.Lock(), 0, False

    def __call__(self, name: str, *arguments):
        with self.lock:
            return getattr(self, name)(*arguments)

    def make(self, *_) -> int:
        self.handles += 1
        return self.handles

    cuStreamCreate = cuEventCreate = make

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> int:
        held = np.zeros(nbytes, np.uint8)
        self.memory[held.ctypes.data] = held
        return held.ctypes.data

    def cuMemcpy2DAsync(self, shape, stream: int) -> None:
        out = shape.srcMemoryType.name.endswith("DEVICE")
        ends = (shape.srcDevice, shape.dstHost) if out else (shape.dstDevice, shape.srcHost)
        device, host = (int(end) for end in ends)
        rows = [(device + i * PAGES * ROW, host + i * ROW) for i in range(shape.Height)]
        moves = [((b, a) if out else (a, b)) for a, b in rows]
        assert shape.WidthInBytes == ROW and shape.Height == PLANES
        self.queued.setdefault(stream, deque()).append(moves)
        self.most = max(self.most, sum(isinstance(one, list) for queue in self.queued.values()
                                       for one in queue))

    def cuEventRecord(self, event: int, stream: int) -> None:
        self.queued[stream].append(event)

    def cuEventSynchronize(self, event: int) -> None:
        if self.failing:
            raise RuntimeError("the device is lost")
        for queue in self.queued.values():
            while event in queue:
                self.end(queue.popleft())

    def cuStreamSynchronize(self, stream: int) -> None:
        while self.queued[stream]:
            self.end(self.queued[stream].popleft())

    @staticmethod
    def end(done) -> None:
        for target, source in done if isinstance(done, list) else ():
            ctypes.memmove(target, source, ROW)

    def free(self, *_) -> None:
        pass

    cuEventDestroy = cuStreamDestroy = cuMemFreeHost = free


class Device:
    def enter(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch):
    driver, world = Driver(), boot(SMALL)
    monkeypatch.setattr(copies, "call", driver)
    device = np.zeros((PLANES, PAGES, ROW), np.uint8)
    device[:] = (np.arange(PLANES)[:, None] * PAGES + np.arange(PAGES))[:, :, None]
    planes = copies.Planes([(device.ctypes.data + i * PAGES * ROW, ROW) for i in range(PLANES)],
                           1 << 31)
    done = os.eventfd(0, os.EFD_NONBLOCK)
    windowed = copies.Planes([(address + WINDOWED * ROW, ROW) for address, _ in planes.planes],
                             1 << 31)
    disk = mmap.mmap(-1, 3 * PLANES * ROW)
    tiers = copies.Copies(Device(), planes, world, done, PLACES, disk, windowed, 2, 1)
    yield driver, world[0]["copies"], device, tiers, done
    os.close(done)


def command(table, number: int, kind: int, source: int, target: int,
            queue: int = QUEUE_MEMORY) -> None:
    row = number % table["kind"].shape[1]
    for name, value in (("kind", kind), ("source", source), ("target", target)):
        table[name][queue, row] = value


def test_windowed_pages_leave_and_come_back(made):
    """To memory of their own: a page of the other group in the same place stays as it is."""
    _, table, device, tiers, _ = made
    known = device.copy()
    for number, (kind, source, target) in enumerate((
            (COPY_OFFLOAD, 4, 1), (COPY_WINDOW_OFFLOAD, 3, 1), (COPY_RESTORE, 1, 6),
            (COPY_WINDOW_RESTORE, 1, 5))):
        command(table, number, kind, source, target)
    tiers.start(QUEUE_MEMORY, 0, 2)
    tiers.drain()
    tiers.start(QUEUE_MEMORY, 2, 4)
    tiers.drain()
    known[:, 6], known[:, WINDOWED + 5] = known[:, 4], known[:, WINDOWED + 3]
    assert np.array_equal(device, known)
    tiers.close()


def test_pages_of_both_groups_go_to_the_file_and_come_back(made):
    """Windowed pages lie behind the others in the file."""
    _, table, device, tiers, _ = made
    known = device.copy()
    for number, listed in enumerate(((COPY_OFFLOAD, 4, 1), (COPY_WINDOW_OFFLOAD, 3, 0))):
        command(table, number, *listed)
    tiers.start(QUEUE_MEMORY, 0, 2)
    tiers.drain()
    for number, listed in enumerate((
            (COPY_SINK, 1, 0), (COPY_WINDOW_SINK, 0, 0), (COPY_SINK, 1, 1), (COPY_FETCH, 0, 6),
            (COPY_WINDOW_FETCH, 0, 5))):
        command(table, number, *listed, queue=QUEUE_DISK)
    tiers.start(QUEUE_DISK, 0, 5)
    tiers.drain()
    known[:, 6], known[:, WINDOWED + 5] = known[:, 4], known[:, WINDOWED + 3]
    assert np.array_equal(device, known)
    tiers.close()


def test_pages_leave_and_come_back_few_at_once(made):
    driver, table, device, tiers, done = made
    known, number = device.copy(), 7  # a world may go on from another state
    for page in range(30):
        command(table, number + page, COPY_OFFLOAD, page, PLACES - 1 - page)
    for first in range(0, 30, 10):  # handed over while others are under way
        tiers.start(QUEUE_MEMORY, number + first, number + first + 10)
    tiers.drain()
    assert tiers.ended(QUEUE_MEMORY) == number + 30 and os.eventfd_read(done) >= 1
    device[:] = 255
    for page in range(30):  # to other pages than they came from
        command(table, number + 30 + page, COPY_RESTORE, PLACES - 1 - page, (page + 5) % 30)
    tiers.start(QUEUE_MEMORY, number + 30, number + 60)
    tiers.drain()
    for page in range(30):
        assert np.array_equal(device[:, (page + 5) % 30], known[:, page]), page
    assert (device[:, 30:] == 255).all()
    assert driver.most == 2, "copies that were queued at once"
    tiers.close()


def test_a_failure_is_told_to_whoever_asks(made):
    driver, table, _, tiers, done = made
    driver.failing = True
    command(table, 0, COPY_OFFLOAD, 1, 2)
    tiers.start(QUEUE_MEMORY, 0, 1)
    with pytest.raises(copies.DeviceError, match="the device is lost"):
        while True:
            tiers.ended(QUEUE_MEMORY)
            time.sleep(0.001)
    assert os.eventfd_read(done) == 1
    tiers.close()


def test_an_executor_whose_copies_failed_ends_its_threads_and_says_why(monkeypatch):
    executors = pytest.importorskip("helios_dod.executors.cuda.executor")
    monkeypatch.setattr(executors, "Device", lambda ordinal: Device())
    made = executors.CudaExecutor()
    made.memory = SimpleNamespace(finished=np.zeros(1, np.int64))

    def lost() -> None:
        raise copies.DeviceError("the device is lost")

    made._copies = SimpleNamespace(drain=lost)
    made._thread = threading.Thread(target=made._watch, daemon=True)
    made._thread.start()
    with pytest.raises(copies.DeviceError, match="the device is lost"):
        made.close()
    assert not made._thread.is_alive()
    os.eventfd_write(made.descriptor(), 1)  # as a thread that copies may do yet
    made.close()
    os.close(made.descriptor())


@pytest.mark.parametrize("answer, problem", [
    ("CUDA_ERROR_NOT_READY", r"no program has ended for 0 s, of at most 0: 3 of 5 submissions"),
    ("CUDA_ERROR_ILLEGAL_ADDRESS", r"a submitted program failed: .*ILLEGAL_ADDRESS")])
def test_a_device_that_fails_or_never_ends_is_told_once_and_not_watched(
        monkeypatch, answer, problem):
    executors = pytest.importorskip("helios_dod.executors.cuda.executor")
    results = executors.driver.CUresult
    asked = []

    def query(stream):
        asked.append(stream)
        return (getattr(results, answer),)

    monkeypatch.setattr(executors, "Device", lambda ordinal: Device())
    monkeypatch.setattr(executors, "HANG_S", 0.0)
    monkeypatch.setattr(executors, "driver", SimpleNamespace(
        CUresult=results, cuStreamQuery=query))
    made = executors.CudaExecutor()
    made.memory = SimpleNamespace(finished=np.array([3], np.int64))
    made._stream = "stream"
    made._control[executors.watch.SUBMITTED] = 5
    made._queued.extend(range(1, 6))
    made._watch()  # it returns: nothing is left to watch
    assert 1 <= len(asked) <= 2
    assert os.eventfd_read(made.descriptor()) >= 2, "three ends and the error"
    for call in (made.poll, lambda: made.submit(0, 0, 6)):
        with pytest.raises(copies.DeviceError, match=problem):
            call()
    made.close()
    os.close(made.descriptor())


def test_pages_that_the_file_has_lost_are_not_copied(made):
    _, table, device, tiers, _ = made
    command(table, 0, COPY_OFFLOAD, 4, 1)
    tiers.start(QUEUE_MEMORY, 0, 1)
    tiers.drain()
    command(table, 0, COPY_SINK, 1, 1, QUEUE_DISK)
    tiers.start(QUEUE_DISK, 0, 1)
    tiers.drain()
    tiers._disk.bytes[PLANES * ROW + 5] ^= 1
    known = device.copy()
    command(table, 1, COPY_FETCH, 1, 6, QUEUE_DISK)
    tiers.start(QUEUE_DISK, 1, 2)
    tiers.drain()
    assert table["failed"][QUEUE_DISK, :2].tolist() == [0, 1]
    assert np.array_equal(device, known)
    tiers.close()

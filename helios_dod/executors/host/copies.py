"""Copies of pages between the cache, host memory and a mapped file, on threads of their own.

Each queue has a thread that runs its commands in order without the GIL, so neither a program nor
the scheduler waits for a copy, and no copy between cache and memory for the disk.
"""

import mmap
import os
import threading
import time
from queue import SimpleQueue

import numpy as np
from numba import typeof, types

from helios_dod.executors.base import DeviceError
from helios_dod.executors.disk import Disk
from helios_dod.executors.host import buffers
from helios_dod.executors.host import memory as m
from helios_dod.limits import COPY_QUEUES
from helios_dod.system import kernel, store_release
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
)

LINE = 8  # words of a cache line
DRAIN_POLL_S = 0.0002


@kernel(boundscheck=False)
def move(planes, page, packed, out):
    """Copies one page of every plane to (out) or from its packed bytes. planes: int64 [n, 2] of
    address and bytes of a page."""
    for plane in range(planes.shape[0]):
        nbytes = planes[plane, 1]
        at = planes[plane, 0] + page * nbytes
        if out:
            m.copy_bytes(packed, at, nbytes)
        else:
            m.copy_bytes(at, packed, nbytes)
        packed += nbytes


@kernel(boundscheck=False)
def run_copies(world, queue, first, end, planes, windowed, tiers, done, finished):
    """Commands first to end - 1 of a queue. planes, windowed: of page groups 0 and 1. tiers: int64
    [3], addresses of memory, of that of page group 1, and of the page that came from the file."""
    copies = world[0].copies
    page_bytes, window_bytes = planes[:, 1].sum(), windowed[:, 1].sum()
    for number in range(first, end):
        k = number % copies.kind.shape[1]
        kind = copies.kind[queue, k]
        source, target = np.int64(copies.source[queue, k]), np.int64(copies.target[queue, k])
        if copies.failed[queue, k]:
            pass  # the file has failed under it
        elif kind == COPY_OFFLOAD:
            move(planes, source, tiers[0] + target * page_bytes, True)
        elif kind == COPY_RESTORE:
            move(planes, target, tiers[0] + source * page_bytes, False)
        elif kind == COPY_WINDOW_OFFLOAD:
            move(windowed, source, tiers[1] + target * window_bytes, True)
        elif kind == COPY_WINDOW_RESTORE:
            move(windowed, target, tiers[1] + source * window_bytes, False)
        elif kind == COPY_FETCH:
            move(planes, target, tiers[2], False)
        elif kind == COPY_WINDOW_FETCH:
            move(windowed, target, tiers[2], False)
        else:
            assert kind == COPY_SINK or kind == COPY_WINDOW_SINK  # in the file by now
        store_release(finished, queue * LINE, number + 1)
        m.signal(np.int64(done), np.int64(1))


class Copies:
    """The tiers of one host executor. done: the eventfd that tells of every end. windowed: the
    planes of page group 1, with window_places in memory and window_stored at the end of the
    file."""

    def __init__(self, planes: np.ndarray, world: np.ndarray, done: int, memory_pages: int,
                 disk: mmap.mmap | None, windowed: np.ndarray, window_places: int,
                 window_stored: int = 0) -> None:
        self.world, self._done = world, done
        self._planes, self._windowed = planes, windowed
        self.page_bytes = int(planes[:, 1].sum())
        self.memory = buffers.aligned_zeros(memory_pages * self.page_bytes)
        window_bytes = int(windowed[:, 1].sum())
        self.windows = buffers.aligned_zeros(window_places * window_bytes)
        self._page = buffers.aligned_zeros(max(self.page_bytes, window_bytes))
        self._tiers = np.array([held.ctypes.data for held in (
            self.memory, self.windows, self._page)], np.int64)
        self._disk = None if disk is None else Disk(
            disk, (self.page_bytes, window_bytes), window_stored)
        self._groups = (  # of each page group: its pages in memory, and a page's bytes
            (self.memory, self.page_bytes), (self.windows, window_bytes))
        self.finished = buffers.aligned_zeros(8 * LINE * COPY_QUEUES).view(np.int64)
        self._handed = [0] * COPY_QUEUES
        self._failure: BaseException | None = None
        run_copies.compile((
            typeof(world), types.int64, types.int64, types.int64, typeof(self._planes),
            typeof(self._windowed), typeof(self._tiers), types.int64, typeof(self.finished)))
        self._work = [SimpleQueue[tuple[int, int] | None]() for _ in range(COPY_QUEUES)]
        self._threads = [
            threading.Thread(target=self._serve, args=(queue,), name=f"copies-{queue}", daemon=True)
            for queue in range(COPY_QUEUES)]
        for thread in self._threads:
            thread.start()

    def _serve(self, queue: int) -> None:
        try:
            while (work := self._work[queue].get()) is not None:
                if queue != QUEUE_DISK:
                    self._run(queue, *work)
                    continue
                for number in range(*work):
                    self._through_file(number)
                    self._run(queue, number, number + 1)
        except BaseException as error:
            self._failure = error
            os.eventfd_write(self._done, 1)

    def _run(self, queue: int, first: int, end: int) -> None:
        run_copies(self.world, queue, first, end, self._planes, self._windowed, self._tiers,
                   self._done, self.finished)

    def _through_file(self, number: int) -> None:
        """The file's part of a command; one that it fails has failed."""
        assert self._disk is not None
        copies = self.world[0]["copies"]
        k = number % copies["kind"].shape[1]
        kind, source, target = (int(copies[name][QUEUE_DISK, k])
                                for name in ("kind", "source", "target"))
        group = int(kind in (COPY_WINDOW_SINK, COPY_WINDOW_FETCH))
        memory, nbytes = self._groups[group]
        if kind in (COPY_SINK, COPY_WINDOW_SINK):
            page = memory[source * nbytes : (source + 1) * nbytes]
            good = self._disk.write(group, target, page)
        else:
            good = self._disk.read(group, source, self._page[:nbytes])
        if not good:
            copies["failed"][QUEUE_DISK, k] = 1

    def start(self, queue: int, first: int, end: int) -> None:
        """Hands commands to the queue's thread."""
        self._handed[queue] = end
        self._work[queue].put((first, end))

    def ended(self, queue: int) -> int:
        """Commands of the queue that have ended."""
        if self._failure is not None:
            raise DeviceError(f"a thread that copies pages failed: {self._failure}")
        return int(self.finished[queue * LINE])

    def drain(self) -> None:
        """Waits for every command."""
        for queue in range(COPY_QUEUES):
            while self.ended(queue) < self._handed[queue]:
                time.sleep(DRAIN_POLL_S)

    def close(self) -> None:
        """Ends the threads behind their last command, and unmaps the file."""
        for work in self._work:
            work.put(None)
        for thread in self._threads:
            thread.join()
        if self._disk is not None:
            self._disk.close()

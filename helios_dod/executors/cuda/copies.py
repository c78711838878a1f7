"""Copies of pages between the device, pinned host memory and a mapped file, on own streams.

One call copies a page of all planes where planes lie at equal distances. A thread a queue starts
copies and waits for their ends, so that nothing is asked of the driver while ticks run; the disk's
thread also moves bytes between the file and pinned memory.

Few copies are under way at once: each step of a program begins with a copy of its staged words,
which shares an engine with pages that come back and waits for all that is queued there.
"""

import mmap
import os
import threading
import time
from queue import SimpleQueue
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda.driver import Device, call, driver
from helios_dod.executors.cuda.pinned import host_bytes
from helios_dod.executors.disk import Disk
from helios_dod.limits import COPY_QUEUES
from helios_dod.terms import (
    COPY_FETCH,
    COPY_OFFLOAD,
    COPY_SINK,
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
    QUEUE_DISK,
)

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
WAITING_EVENT = 0x1 | 0x2  # CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING
PORTABLE = 0x01  # CU_MEMHOSTALLOC_PORTABLE
DRAIN_POLL_S = 0.0002
UNDER_WAY_BYTES = 6 << 20  # of copies at once: what comes behind them waits some 0.1 ms
UNDER_WAY_MAX = 16  # such copies, where pages are small
TOLD = 16  # ends of copies that are told of at once while more are on their way


class Planes:
    """The cache planes whose pages move together: (device address, bytes of a page) of each, all in
    one allocation."""

    def __init__(self, planes: list[tuple[int, int]], pitch_max: int) -> None:
        self.planes = sorted(planes)
        self.page_bytes = sum(nbytes for _, nbytes in planes)
        steps = {after[0] - before[0] for before, after in
                 zip(self.planes, self.planes[1:], strict=False)}
        sizes = {nbytes for _, nbytes in self.planes}
        self.pitch = 0  # bytes between planes where one call copies a page of all
        if len(steps) == 1 and len(sizes) == 1 and max(steps) <= pitch_max:
            self.pitch = steps.pop()

    def copy(self, page: int, host: int, out: bool, stream: Any, shape: Any) -> None:
        """Starts the copy of a page to (out) or from page_bytes at a host address. shape: of that
        direction, filled in here; the driver keeps none of it."""
        if self.pitch:
            address, nbytes = self.planes[0]
            if out:
                shape.srcDevice, shape.dstHost = address + page * nbytes, host
            else:
                shape.srcHost, shape.dstDevice = host, address + page * nbytes
            call("cuMemcpy2DAsync", shape, stream)
            return
        for address, nbytes in self.planes:
            device = address + page * nbytes
            if out:
                call("cuMemcpyDtoHAsync", host, device, nbytes, stream)
            else:
                call("cuMemcpyHtoDAsync", device, host, nbytes, stream)
            host += nbytes

    def shape(self, out: bool) -> Any:
        """What copies of one direction have in common."""
        kinds = driver.CUmemorytype
        shape = driver.CUDA_MEMCPY2D()
        shape.WidthInBytes, shape.Height = self.planes[0][1] if self.planes else 0, len(self.planes)
        if out:
            shape.srcMemoryType, shape.srcPitch = kinds.CU_MEMORYTYPE_DEVICE, self.pitch
            shape.dstMemoryType, shape.dstPitch = kinds.CU_MEMORYTYPE_HOST, shape.WidthInBytes
        else:
            shape.srcMemoryType, shape.srcPitch = kinds.CU_MEMORYTYPE_HOST, shape.WidthInBytes
            shape.dstMemoryType, shape.dstPitch = kinds.CU_MEMORYTYPE_DEVICE, self.pitch
        return shape


class Copies:
    """The tiers of one device. done: the eventfd that tells of every end. windowed: the planes of
    page group 1, with window_places in pinned memory and window_stored at the end of the file."""

    def __init__(self, device: Device, planes: Planes, world: np.ndarray, done: int,
                 memory_pages: int, disk: mmap.mmap | None, windowed: Planes,
                 window_places: int, window_stored: int = 0) -> None:
        self.device, self.planes, self._done = device, planes, done
        self._table = world[0]["copies"]
        size, window_size = planes.page_bytes, windowed.page_bytes
        places = window_places * window_size
        self._memory = int(call("cuMemHostAlloc", memory_pages * size, PORTABLE))
        self._windows = int(call("cuMemHostAlloc", places, PORTABLE)) if places else 0
        largest = max(size, window_size, 1)
        self._bounce = int(call("cuMemHostAlloc", largest, PORTABLE))
        self._page = host_bytes(self._bounce, largest)
        self._disk = None if disk is None else Disk(disk, (size, window_size), window_stored)
        self._held = (  # the pages of each group in memory
            host_bytes(self._memory, memory_pages * size).reshape(-1, size),
            (host_bytes(self._windows, places) if places else self._page[:0]).reshape(
                window_places, window_size))
        self._out, self._in, self._fetch = (call("cuStreamCreate", NON_BLOCKING) for _ in range(3))
        count = min(max(UNDER_WAY_BYTES // largest, 2), UNDER_WAY_MAX)
        self._events = [call("cuEventCreate", WAITING_EVENT) for _ in range(count)]
        # Of each page group: its planes, where its pages lie in memory, shapes back and out.
        self._groups = [(group, memory, [group.shape(out) for out in (False, True)])
                        for group, memory in ((planes, self._memory), (windowed, self._windows))]
        self._ended, self._handed = [0] * COPY_QUEUES, [0] * COPY_QUEUES
        self._failure: BaseException | None = None
        self._work = [SimpleQueue[tuple[int, int] | None]() for _ in range(COPY_QUEUES)]
        self._threads = [
            threading.Thread(target=self._serve, args=(queue,), name=f"copies-{queue}", daemon=True)
            for queue in range(COPY_QUEUES)]
        for thread in self._threads:
            thread.start()

    def _command(self, queue: int, number: int) -> tuple[int, int, int]:
        """(kind, source, target)."""
        k = number % self._table["kind"].shape[1]
        table = self._table
        return int(table["kind"][queue, k]), int(table["source"][queue, k]), int(
            table["target"][queue, k])

    def start(self, queue: int, first: int, end: int) -> None:
        """Hands commands to the queue's thread."""
        self._handed[queue] = end
        self._work[queue].put((first, end))

    def _serve(self, queue: int) -> None:
        """A queue's thread: commands end in order, whatever stream they are on."""
        try:
            self.device.enter()
            (self._through_disk if queue == QUEUE_DISK else self._between)(queue)
        except BaseException as error:
            self._failure = error
            os.eventfd_write(self._done, 1)

    def _between(self, queue: int) -> None:
        """Copies between device and pinned memory, a few under way, as long as there are any."""
        work = self._work[queue]
        begun = ended = end = 0
        while True:
            if begun == end and (ended == begun or not work.empty()):
                span = work.get()
                if span is None:
                    break
                assert ended == begun or span[0] == end, "commands follow one another"
                if ended == begun:
                    begun = ended = span[0]
                end = span[1]
            elif begun < end and begun - ended < len(self._events):
                self._start(queue, begun)
                begun += 1
            else:
                call("cuEventSynchronize", self._events[ended % len(self._events)])
                ended += 1
                self._ended[queue] = ended
                if ended == end or ended % TOLD == 0:
                    os.eventfd_write(self._done, 1)
        for number in range(ended, begun):
            call("cuEventSynchronize", self._events[number % len(self._events)])

    def _start(self, queue: int, number: int) -> None:
        kind, source, target = self._command(queue, number)
        out = kind in (COPY_OFFLOAD, COPY_WINDOW_OFFLOAD)
        page, place = (source, target) if out else (target, source)
        stream = self._out if out else self._in
        planes, memory, shapes = self._groups[kind in (COPY_WINDOW_OFFLOAD, COPY_WINDOW_RESTORE)]
        planes.copy(page, memory + place * planes.page_bytes, out, stream, shapes[out])
        call("cuEventRecord", self._events[number % len(self._events)], stream)

    def _through_disk(self, queue: int) -> None:
        """Copies that the disk takes part in, one after another."""
        while (span := self._work[queue].get()) is not None:
            for number in range(*span):
                if not self._move(*self._command(queue, number)):
                    self._table["failed"][queue, number % self._table["kind"].shape[1]] = 1
                self._ended[queue] = number + 1
                os.eventfd_write(self._done, 1)

    def _move(self, kind: int, source: int, target: int) -> bool:
        """A copy that the disk takes part in, from its start to its end. False: the file fails."""
        assert self._disk is not None
        group = int(kind in (COPY_WINDOW_SINK, COPY_WINDOW_FETCH))
        planes, memory = self._groups[group][0], self._held[group]
        if kind in (COPY_SINK, COPY_WINDOW_SINK):
            return self._disk.write(group, target, memory[source])
        assert kind in (COPY_FETCH, COPY_WINDOW_FETCH)
        if not self._disk.read(group, source, self._page[: planes.page_bytes]):
            return False
        planes.copy(target, self._bounce, False, self._fetch, planes.shape(False))
        call("cuStreamSynchronize", self._fetch)
        return True

    def ended(self, queue: int) -> int:
        """Commands of the queue that have ended."""
        if self._failure is not None:
            raise DeviceError(f"copying pages failed: {self._failure}")
        return self._ended[queue]

    def drain(self) -> None:
        """Waits for every command."""
        for queue in range(COPY_QUEUES):
            while self.ended(queue) < self._handed[queue]:
                time.sleep(DRAIN_POLL_S)

    def close(self) -> None:
        """Ends the threads behind their last command and frees everything; the context lives."""
        for work in self._work:
            work.put(None)
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            return  # the context is beyond use
        for event in self._events:
            call("cuEventDestroy", event)
        for stream in (self._out, self._in, self._fetch):
            call("cuStreamDestroy", stream)
        del self._held, self._page  # views of what is freed now
        for address in (self._memory, self._bounce, *filter(None, [self._windows])):
            call("cuMemFreeHost", address)
        if self._disk is not None:
            self._disk.close()

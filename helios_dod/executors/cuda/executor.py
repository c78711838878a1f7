"""The CUDA executor: prepared graphs, a launch a step, completion polled without driver calls."""

import mmap
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import typeof

from helios_dod.executors.base import DeviceError, Geometry
from helios_dod.executors.cuda import watch
from helios_dod.executors.cuda.copies import Copies, Planes
from helios_dod.executors.cuda.driver import Device, call, driver, naming
from helios_dod.executors.cuda.graphs import Code, Graph, Resolved
from helios_dod.executors.cuda.memory import Memory
from helios_dod.executors.cuda.upload import random_like
from helios_dod.executors.host.buffers import aligned_zeros
from helios_dod.executors.tuning import Bench, Tuned, tune
from helios_dod.limits import FRAMES_MAX

DRAIN_POLL_S = 0.00002
CACHE_SHARE = 0.88  # of the device memory that weights leave
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
TURN_S = 1e-4  # that a thread which waits for the interpreter leaves it to another while loading
HANG_S = 30.0  # without a finished program before the device is given up; programs take far less


@contextmanager
def short_turns() -> Iterator[None]:
    """Threads of this process hand the interpreter over every TURN_S: those that upload weights
    need it some dozens of times before they do without, and whoever builds graphs seldom rests."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class CudaExecutor:
    """Runs CudaBody programs of one device. One owner thread calls it.

    programs: manifest indices to load; None for all. random_weights: matrices are made on the
    device, whatever the core holds."""

    name = "cuda"
    reads_weights = True

    def __init__(self, ordinal: int = 0, programs: tuple[int, ...] | None = None,
                 random_weights: bool = False) -> None:
        self.device = Device(ordinal)
        self._programs, self._random = programs, random_weights
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._control = aligned_zeros(8 * watch.CONTROL_WORDS).view(np.int64)
        self._control[watch.DONE] = self._done
        self._queued: deque[int] = deque()
        self._counted = 0  # submissions known to be finished
        self._finished = 0  # sequence of the newest of them
        self._failure: DeviceError | None = None
        self._thread: threading.Thread | None = None
        self._copies: Copies | None = None
        self._closed = False
        self.load_ns: dict[str, int] = {}
        self.tuned: Tuned | None = None  # what tuning took, where there was any

    def cache_budget(self, weight_bytes: int) -> int:
        """Bytes that the cache may take of what is free now, once weights of that size are there;
        the rest is for scratch."""
        return max(0, int((self.device.free_bytes() - weight_bytes) * CACHE_SHARE))

    def load(self, manifest: Any, geometry: Geometry, weights: Mapping[str, Any],
             staging_first: Mapping[int, int], world: np.ndarray) -> None:
        """Allocates everything, loads code and instantiates every graph while weights upload."""
        assert self._thread is None, "load is called once"
        chosen = list(range(len(manifest.programs)) if self._programs is None else self._programs)
        for index in chosen:
            if manifest.programs[index].WhichOneof("code") != "cuda_body":
                raise DeviceError(f"program {manifest.programs[index].name!r} has no CUDA body; "
                                  f"prepare the core with --target cuda-sm90")
        if self._random:
            weights = {name: random_like(manifest, name, data) for name, data in weights.items()}
        with short_turns():
            self._load(manifest, geometry, weights, staging_first, world, chosen)
        watch.follow.compile((typeof(self._control), typeof(self.memory.finished)))
        self._thread = threading.Thread(target=self._watch, name="cuda-watch", daemon=True)
        self._thread.start()

    def _load(self, manifest: Any, geometry: Geometry, weights: Mapping[str, Any],
              staging_first: Mapping[int, int], world: np.ndarray, chosen: list[int]) -> None:
        started = time.monotonic_ns()
        self.memory = Memory(self.device, manifest, geometry, weights, staging_first, world,
                             chosen)
        bound = time.monotonic_ns()
        self._code = Code(self.device, manifest)
        self._stream = call("cuStreamCreate", NON_BLOCKING)
        self.graphs: dict[tuple[int, int], Graph] = {}
        self._tune(manifest, chosen)
        tuned = time.monotonic_ns()
        self._build(manifest, chosen)
        for graph in self.graphs.values():
            call("cuGraphUpload", graph.handle, self._stream)
        call("cuStreamSynchronize", self._stream)
        ready = time.monotonic_ns()
        self.memory.wait_for_weights()
        call("cuCtxSynchronize")
        self.load_ns = {"memory": bound - started, "tuning": tuned - bound, "graphs": ready - tuned,
                        "weights": self.memory.weights_ns, "all": time.monotonic_ns() - started}

    def _build(self, manifest: Any, chosen: list[int]) -> None:
        """Every graph of these programs. All bodies are walked first: that asks the driver for
        little, whose lock the upload needs meanwhile."""
        known: dict[bytes, tuple[str, tuple[int, ...]]] = {}
        resolved = {}
        for index in chosen:
            body = manifest.cuda_bodies[manifest.programs[index].cuda_body]
            with naming(f"program {manifest.programs[index].name!r}"):
                resolved[index] = Resolved(self._code, self.memory, body, known)
        for index in chosen:
            with naming(f"program {manifest.programs[index].name!r}"):
                for frame in range(FRAMES_MAX):
                    self.graphs[frame, index] = Graph(self.device, resolved[index], frame)

    def _tune(self, manifest: Any, programs: list[int]) -> None:
        """Runs the tuning graphs, on weights that are there; programs' graphs depend on them."""
        graphs: dict[int, Graph] = {}

        def run(number: int) -> None:
            if number not in graphs:
                self.memory.wait_for_weights()
                body = manifest.cuda_bodies[manifest.tuning[number].cuda_body]
                graphs[number] = Graph(self.device, Resolved(self._code, self.memory, body), 0)
            call("cuGraphLaunch", graphs[number].handle, self._stream)
            call("cuStreamSynchronize", self._stream)

        self.tuned = tune(manifest, programs, Bench(
            self.device.name(), run, lambda index: self.memory.read(index).tobytes(),
            self.memory.write))
        for graph in graphs.values():
            graph.close()

    def _watch(self) -> None:
        """Follows submissions; asks the driver only where nothing finishes for long. Ends with the
        first error, behind which nothing finishes any more."""
        try:
            self.device.enter()
            control = self._control
            while not control[watch.STOP] and self._failure is None:
                control[watch.ASLEEP] = 1
                if control[watch.SUBMITTED] <= control[watch.SEEN]:
                    os.eventfd_read(self._wake)
                control[watch.ASLEEP] = 0
                seen, since = -1, 0.0
                while watch.follow(control, self.memory.finished) and self._failure is None:
                    if control[watch.SEEN] != seen:
                        seen, since = int(control[watch.SEEN]), time.monotonic()
                    self._ask(time.monotonic() - since)
        except BaseException as error:
            self._failure = DeviceError(f"the thread that watches the device failed: {error}")
            os.eventfd_write(self._done, 1)

    def _ask(self, waited: float) -> None:
        """Looks for an error of the device, or a program that never ends; it stays for good and is
        told to whoever polls. waited: seconds without a finished program."""
        answer = driver.cuStreamQuery(self._stream)[0]
        results = driver.CUresult
        if answer not in (results.CUDA_SUCCESS, results.CUDA_ERROR_NOT_READY):
            problem = f"a submitted program failed: cuStreamQuery(stream): {answer.name}"
        elif waited > HANG_S:
            submitted, finished = (int(self._control[at]) for at in (watch.SUBMITTED, watch.SEEN))
            problem = (f"no program has ended for {waited:.0f} s, of at most {HANG_S:.0f}: "
                       f"{finished} of {submitted} submissions have; cuStreamQuery(stream): "
                       f"{answer.name}")
        else:
            return
        self._failure = DeviceError(problem)
        os.eventfd_write(self._done, 1)

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Launches a program's graph; asynchronous."""
        if self._failure is not None:
            raise self._failure
        graph = self.graphs.get((frame, program))
        if graph is None:
            raise DeviceError(f"submit(frame {frame}, program {program}): not loaded")
        answer = driver.cuGraphLaunch(graph.handle, self._stream)[0]
        if answer != driver.CUresult.CUDA_SUCCESS:
            self._failure = DeviceError(
                f"cuGraphLaunch(frame {frame}, program {program}, sequence {sequence}): "
                f"{answer.name}")
            raise self._failure
        self._queued.append(sequence)
        control = self._control
        control[watch.SUBMITTED] += 1
        if control[watch.ASLEEP]:
            os.eventfd_write(self._wake, 1)

    def poll(self) -> int:
        """Newest finished sequence."""
        count = int(self.memory.finished[0])
        while self._counted < count:
            self._finished = self._queued.popleft()
            self._counted += 1
        if self._failure is not None and self._queued:
            raise self._failure
        return self._finished

    def descriptor(self) -> int:
        """An eventfd, readable when a program or a copy finished since it was last read."""
        return self._done

    def drain(self) -> None:
        """Waits for every submitted program and copy."""
        while self.poll() >= 0 and self._queued:
            time.sleep(DRAIN_POLL_S)
        if self._copies is not None:
            self._copies.drain()

    def copy_pages(self, pairs: np.ndarray) -> None:
        """Copies pages of every cache plane behind all earlier programs. pairs: int [n, 2]."""
        for source, target in np.asarray(pairs, np.int64).reshape(-1, 2).tolist():
            for plane in self.memory.caches():
                base, size = plane.address[0], plane.row_bytes
                call("cuMemcpyDtoDAsync", base + target * size, base + source * size, size,
                     self._stream)

    def page_bytes(self) -> int:
        """Bytes of one page over all cache planes."""
        return sum(plane.row_bytes for plane in self.memory.caches())

    def back(self, memory_pages: int, disk: mmap.mmap | None, window_places: int = 0,
             window_stored: int = 0) -> None:
        """Pinned memory and a mapped file behind the device, and the streams that copy."""
        pitch = int(call(
            "cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH,
            self.device.handle))
        planes, windowed = (
            Planes([(plane.address[0], plane.row_bytes) for plane in self.memory.paged(group)],
                   pitch) for group in (0, 1))
        self._copies = Copies(self.device, planes, self.memory.world, self._done, memory_pages,
                              disk, windowed, window_places, window_stored)

    def copy(self, queue: int, first: int, end: int) -> None:
        """Starts commands of world[0].copies."""
        assert self._copies is not None, "copy before back"
        self._copies.start(queue, first, end)

    def copied(self, queue: int) -> int:
        """Commands of a queue that have ended."""
        assert self._copies is not None, "copied before back"
        return self._copies.ended(queue)

    def close(self) -> None:
        """Drains, ends the watcher and frees everything; after an error only what is safe. Raises
        DeviceError if draining finds one."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._thread is not None and self._failure is None:
                self.drain()
        except DeviceError as error:
            self._failure = error
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self._control[watch.STOP] = 1
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)
        if self._failure is not None:
            return  # threads that copy may still write to the other descriptor
        if self._copies is not None:
            self._copies.close()
        if self._thread is not None:
            for graph in self.graphs.values():
                graph.close()
            self._code.close()
            self.memory.close()
            call("cuStreamDestroy", self._stream)
            self.device.close()
        os.close(self._done)

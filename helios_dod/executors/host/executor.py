"""The host executor: binds a manifest to memory and runs its programs on own threads."""

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import typeof, types

from helios_dod.executors.base import DeviceError, Geometry, processor_name
from helios_dod.executors.host import attention, attention_tile, buffers, plan, products, run
from helios_dod.executors.host.copies import Copies
from helios_dod.executors.tuning import Bench, Tuned, tune
from helios_dod.limits import FRAMES_MAX

HOST_COPIES = 256  # page pairs of one copy_pages submission
DRAIN_POLL_S = 0.0002
TRIAL_POLL_S = 0.00002  # while a tuning graph runs


class HostExecutor:
    """Runs HostBody programs on `threads` own threads (default: one a processor).

    One owner thread calls it."""

    name = "host"
    reads_weights = True

    def __init__(self, threads: int | None = None) -> None:
        self.thread_count = threads or len(os.sched_getaffinity(0))
        self._items = attention.SPLIT_ITEMS * self.thread_count
        words = run.CONTROL_WORDS + self._items
        self._control = buffers.aligned_zeros(words * 8).view(np.int64)
        self._queue = (
            buffers.aligned_zeros(run.QUEUE * run.QUEUE_WORDS * 8)
            .view(np.int64)
            .reshape(run.QUEUE, run.QUEUE_WORDS)
        )
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._control[run.WAKE], self._control[run.DONE] = self._wake, self._done
        self._control[run.THREADS] = self.thread_count
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._sequence = 0
        self._copies: Copies | None = None
        self._closed = False
        self.tuned: Tuned | None = None  # what tuning took, where there was any

    def load(
        self,
        manifest: Any,
        geometry: Geometry,
        weights: Mapping[str, np.ndarray],
        staging_first: Mapping[int, int],
        world: np.ndarray,
    ) -> None:
        """Binds every buffer and program, compiles or loads all code, and starts the threads."""
        assert not self._threads, "load is called once"
        self.memory = buffers.Memory(manifest, geometry, weights, staging_first, world)
        self._planes = self.memory.caches
        self._host_count = np.zeros(1, np.int32)
        self._host_pairs = np.zeros((HOST_COPIES, 2), np.int32)
        self._entries = np.zeros(
            (FRAMES_MAX, len(manifest.programs) + len(manifest.tuning) + 1, run.QUEUE_WORDS),
            np.int64,
        )
        tables: list[np.ndarray] = []
        steps: list[np.ndarray] = []
        planners = [plan.Planner(self.memory, geometry, frame) for frame in range(FRAMES_MAX)]
        for frame, planner in enumerate(planners):
            bodies = [
                [planner.words(op) for op in manifest.host_bodies[program.body].operations]
                for program in [*manifest.programs, *manifest.tuning]
            ]
            for number, rows in enumerate([*bodies, [self._copy_words()]]):
                table = np.array(rows or [np.zeros(plan.WORDS, np.int64)])
                own = plan.steps_of(table)
                entry = self._entries[frame, number]
                entry[run.FIRST], entry[run.COUNT] = sum(map(len, steps)), len(own)
                for word, index in (
                    (run.LIVE_PACKED, manifest.live_packed),
                    (run.LIVE_LANES, manifest.live_lanes),
                    (run.LIVE_SAMPLED, manifest.live_sampled),
                    (run.LIVE_DRAWN, manifest.live_drawn),
                ):
                    if word != run.LIVE_DRAWN or manifest.HasField("live_drawn"):
                        entry[word] = planner.buffer(index).address[frame]
                steps.append(own + [sum(map(len, tables)), 0])
                tables.append(table)
        self._operations, self._steps = np.concatenate(tables), np.concatenate(steps)
        self._give_parts()
        self._scratch = [
            buffers.aligned_zeros(self._scratch_bytes(planners[0]))
            for _ in range(self.thread_count)
        ]
        self._compile()
        self._start()
        self._tune(manifest)

    def _tune(self, manifest: Any) -> None:
        """Runs the tuning graphs. They stand behind the programs; nothing is in flight."""
        first = len(manifest.programs)

        def write(index: int, data: bytes) -> None:
            self.memory.owned[index][:] = np.frombuffer(data, np.uint8)

        self.tuned = tune(manifest, range(first), Bench(
            f"{processor_name()}, {self.thread_count} threads",
            lambda number: self._run_now(first + number),
            lambda index: self.memory.owned[index].tobytes(), write))
        if self.tuned is not None:  # their ends were polled for
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._done)

    def _run_now(self, number: int) -> None:
        """Runs an entry on frame 0 to its end; its sequence is that before the first program's."""
        self.submit(0, number, 0)
        control = self._control
        while control[run.COMPLETED] < control[run.SUBMITTED]:
            self._check()
            time.sleep(TRIAL_POLL_S)

    def _give_parts(self) -> None:
        """Memory for the states of attention segments that are computed apart."""
        rows = self._operations[:, 0] == plan.ATTENTION
        segments = (
            self._operations[rows, attention.Q_PART_BYTES]
            * self._operations[rows, attention.Q_SEGMENTS]
        )
        self._parts = buffers.aligned_zeros(int(segments.max(initial=0)) * self._items)
        self._operations[rows, attention.Q_PARTS] = self._parts.ctypes.data
        self._operations[rows, attention.Q_COUNTERS] = self._items

    def _copy_words(self) -> np.ndarray:
        """The page copy that copy_pages submits: its pairs lie in the executor's own arrays."""
        row = np.zeros(plan.WORDS, np.int64)
        caches = self.memory.caches
        row[:8] = (
            plan.COPY_PAGES,
            0,
            self._host_count.ctypes.data,
            4,
            self._host_pairs.ctypes.data,
            8,
            caches.ctypes.data,
            len(caches),
        )
        return row

    def _scratch_bytes(self, planner: plan.Planner) -> int:
        sampling = 4 * (planner.vocabulary + planner.vocabulary // 16 + 64)
        heads = max(attention_tile.scratch_bytes(*pair) for pair in planner.scratch_heads)
        return max(products.SCRATCH_BYTES, heads, sampling, 8 * planner.rotary_count,
                   4 * planner.key_columns)

    def _compile(self) -> None:
        control, queue = typeof(self._control), typeof(self._queue)
        tables = typeof(self._steps), typeof(self._operations)
        run.work.compile((control, queue, *tables, types.int64))
        run.enqueue.compile((control, queue, typeof(self._entries), *[types.int64] * 3))

    def _start(self) -> None:
        for i in range(self.thread_count):
            thread = threading.Thread(target=self._work, args=(i,), name=f"host-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, index: int) -> None:
        try:
            run.work(
                self._control,
                self._queue,
                self._steps,
                self._operations,
                int(self._scratch[index].ctypes.data),
            )
        except BaseException as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise DeviceError(f"a thread of the host executor failed: {self._failure}")

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Queues a program; asynchronous. Sequences grow."""
        self._check()
        if not run.enqueue(self._control, self._queue, self._entries, frame, program, sequence):
            raise DeviceError(
                f"submit(frame {frame}, program {program}, sequence {sequence}): "
                f"{run.QUEUE} programs are queued already"
            )
        self._sequence = sequence

    def poll(self) -> int:
        """Newest finished sequence."""
        if self._failure is not None:
            self._check()
        return int(self._control[run.FINISHED])

    def descriptor(self) -> int:
        """An eventfd, readable when a program or a copy finished since it was last read."""
        return self._done

    def drain(self) -> None:
        """Waits for every submitted program and copy."""
        control = self._control
        while control[run.COMPLETED] < control[run.SUBMITTED]:
            self._check()
            time.sleep(DRAIN_POLL_S)
        if self._copies is not None:
            self._copies.drain()

    def copy_pages(self, pairs: np.ndarray) -> None:
        """Copies pages of every cache plane after all earlier programs. pairs: int [n, 2]."""
        pairs = np.asarray(pairs, np.int32).reshape(-1, 2)
        for start in range(0, len(pairs), HOST_COPIES):
            self.drain()
            some = pairs[start : start + HOST_COPIES]
            self._host_pairs[: len(some)] = some
            self._host_count[0] = len(some)
            self.submit(0, self._entries.shape[1] - 1, self._sequence)
        self.drain()

    def back(self, memory_pages: int, disk: mmap.mmap | None, window_places: int = 0,
             window_stored: int = 0) -> None:
        """Memory and a mapped file behind the cache, and the threads that copy."""
        self._copies = Copies(
            self._planes, self.memory.world, self._done, memory_pages, disk, self.memory.windowed,
            window_places, window_stored)

    def copy(self, queue: int, first: int, end: int) -> None:
        """Starts commands of world[0].copies."""
        assert self._copies is not None, "copy before back"
        self._copies.start(queue, first, end)

    def copied(self, queue: int) -> int:
        """Commands of a queue that have ended."""
        assert self._copies is not None, "copied before back"
        return self._copies.ended(queue)

    def close(self) -> None:
        """Drains, ends the threads and frees everything."""
        if self._closed:
            return
        if self._threads and self._failure is None:
            self.drain()
        self._closed = True
        if self._copies is not None:
            self._copies.close()
        self._control[run.STOP] = 1
        os.eventfd_write(self._wake, self.thread_count)
        for thread in self._threads:
            thread.join()
        os.close(self._wake)
        os.close(self._done)

"""Weights from mapped files to the device.

Threads read the file into pinned buffers, so small that they stay in the processor's cache until
the device has fetched them, and so large that Python costs little: 34 GB/s with 4 MiB and twelve
threads on the machine of perf/h200, 15 with 16 MiB, 17 with 1 MiB; 25 by registering parts of the
mapping with the driver. Memory that is no file is copied the same way. Each thread has its stream.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda.driver import Device, call
from helios_dod.executors.cuda.pinned import host_bytes

CHUNK_BYTES = 4 << 20
NOISE_BYTES = 16 << 20  # of random weights that repeat
THREADS_MAX = 12
PORTABLE = 0x01  # CU_MEMHOSTALLOC_PORTABLE
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class RandomWeights:
    """A weight resource without bytes: noise made once and repeated on the device.

    vectors: byte offset -> bytes that are not noise (norms, frequencies)."""

    def __init__(self, nbytes: int, vectors: dict[int, np.ndarray], seed: int = 0) -> None:
        self.nbytes, self.vectors, self.seed = nbytes, vectors, seed

    def noise(self) -> np.ndarray:
        """NOISE_BYTES of bf16 normal values of standard deviation 0.02, as uint8."""
        values = np.random.default_rng(self.seed).standard_normal(
            NOISE_BYTES // 2, np.float32) * np.float32(0.02)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def upload(device: Device, data: Any, address: int) -> None:
    """Copies a uint8 array, or makes RandomWeights, at a device address; it waits for the end."""
    if isinstance(data, RandomWeights):
        _spread(data, address)
        return
    threads = max(1, min(THREADS_MAX, len(os.sched_getaffinity(0))))
    starts = range(0, data.nbytes, CHUNK_BYTES)
    file, first = _file_of(data)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(_copy, device, data, address, starts[i::threads], file, first)
                         for i in range(threads)]:
                done.result()
    finally:
        if file >= 0:
            os.close(file)


def _file_of(data: np.ndarray) -> tuple[int, int]:
    """(descriptor, offset) of the file that an array maps, or (-1, 0)."""
    mapped = data if isinstance(data, np.memmap) else data.base
    if not isinstance(mapped, np.memmap) or mapped.filename is None:
        return -1, 0
    ahead = data.ctypes.data - mapped.ctypes.data
    return os.open(mapped.filename, os.O_RDONLY | os.O_CLOEXEC), mapped.offset + ahead


def _fill(view: np.ndarray, data: np.ndarray, start: int, file: int, first: int) -> None:
    """Fills a pinned buffer with bytes from `start` on."""
    if file < 0:
        np.copyto(view, data[start : start + view.nbytes])
        return
    filled = 0
    while filled < view.nbytes:
        count = os.preadv(file, [view.data[filled:]], first + start + filled)
        if count == 0:
            raise DeviceError(f"weights end after {start + filled} bytes; {data.nbytes} expected")
        filled += count


def _copy(device: Device, data: np.ndarray, address: int, starts: range, file: int,
          first: int) -> None:
    """One thread's chunks, over two pinned buffers."""
    if not len(starts):
        return
    device.enter()
    stream = call("cuStreamCreate", NON_BLOCKING)
    size = min(CHUNK_BYTES, data.nbytes)
    pinned = [int(call("cuMemHostAlloc", size, PORTABLE)) for _ in range(2)]
    views = [host_bytes(one, size) for one in pinned]
    events = [call("cuEventCreate", 0x2) for _ in range(2)]
    for i, start in enumerate(starts):
        count = min(CHUNK_BYTES, data.nbytes - start)
        if i >= 2:
            call("cuEventSynchronize", events[i % 2])
        _fill(views[i % 2][:count], data, start, file, first)
        call("cuMemcpyHtoDAsync", address + start, pinned[i % 2], count, stream)
        call("cuEventRecord", events[i % 2], stream)
    call("cuStreamSynchronize", stream)
    for one, event in zip(pinned, events, strict=True):
        call("cuMemFreeHost", one)
        call("cuEventDestroy", event)
    call("cuStreamDestroy", stream)


def _spread(data: RandomWeights, address: int) -> None:
    noise = data.noise()
    call("cuMemcpyHtoD", address, noise.ctypes.data, min(noise.nbytes, data.nbytes))
    for start in range(NOISE_BYTES, data.nbytes, NOISE_BYTES):
        call("cuMemcpyDtoD", address + start, address, min(NOISE_BYTES, data.nbytes - start))
    for offset, values in data.vectors.items():
        call("cuMemcpyHtoD", address + offset, values.ctypes.data, values.nbytes)
    call("cuCtxSynchronize")

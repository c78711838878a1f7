"""Weights from mapped files to the device.

Threads read the file into pinned buffers, so small that they stay in the processor's cache until
the device has fetched them, and so large that Python costs little: 34 GB/s with 4 MiB and twelve
threads on the machine of perf/h200, 15 with 16 MiB, 17 with 1 MiB; 25 by registering parts of the
mapping with the driver. Memory that is no file is copied the same way. Each thread has its stream.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda import feeding
from helios_dod.executors.cuda.driver import Device, call, driver
from helios_dod.executors.host.buffers import WEIGHT

CHUNK_BYTES = 4 << 20
NOISE_BYTES = 16 << 20  # of random weights that repeat
THREADS_MAX = 12
PORTABLE = 0x01  # CU_MEMHOSTALLOC_PORTABLE
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
UNTIMED_EVENT = 0x2  # CU_EVENT_DISABLE_TIMING
DRIVER_CALLS = ("cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventSynchronize")


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


def random_like(manifest: Any, name: str, data: np.ndarray) -> RandomWeights:
    """A weight resource whose matrices are random and whose vectors are those of `data`."""
    exact = [buffer for buffer in manifest.buffers
             if buffer.kind == WEIGHT and buffer.resource_id == name and len(buffer.shape) != 2]
    return RandomWeights(data.nbytes, {
        buffer.resource_offset: np.array(data[buffer.resource_offset :][: buffer.resource_nbytes])
        for buffer in exact})


def upload(device: Device, data: Any, address: int) -> None:
    """Copies a uint8 array, or makes RandomWeights, at a device address; it waits for the end."""
    if isinstance(data, RandomWeights):
        _spread(data, address)
        return
    threads = max(1, min(THREADS_MAX, len(os.sched_getaffinity(0)), -(-data.nbytes // CHUNK_BYTES)))
    file, offset = _file_of(data)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(_copy, device, data, address, i, threads, file, offset)
                         for i in range(threads)]:
                done.result()
    finally:
        if file >= 0:
            os.close(file)


def _file_of(data: np.ndarray) -> tuple[int, int]:
    """(descriptor, offset) of the file that an array maps, or (-1, its address)."""
    mapped = data if isinstance(data, np.memmap) else data.base
    if not isinstance(mapped, np.memmap) or mapped.filename is None:
        return -1, data.ctypes.data
    ahead = data.ctypes.data - mapped.ctypes.data
    return os.open(mapped.filename, os.O_RDONLY | os.O_CLOEXEC), mapped.offset + ahead


def _functions(file: int) -> np.ndarray:
    """Addresses of what feed calls."""
    made = feeding.addresses(ctypes.CDLL(None), "pread64" if file >= 0 else "memcpy")
    return np.array(made + feeding.addresses(ctypes.CDLL("libcuda.so.1"), *DRIVER_CALLS), np.int64)


def _copy(device: Device, data: np.ndarray, address: int, first: int, threads: int, file: int,
          offset: int) -> None:
    """Every threads-th chunk from the first on, over two pinned buffers."""
    device.enter()
    stream = call("cuStreamCreate", NON_BLOCKING)
    pinned = [int(call("cuMemHostAlloc", CHUNK_BYTES, PORTABLE)) for _ in range(2)]
    events = [call("cuEventCreate", UNTIMED_EVENT) for _ in range(2)]
    failed, answer = feeding.feed(
        _functions(file), file, offset, address, data.nbytes, CHUNK_BYTES, first, threads,
        np.array(pinned, np.int64), np.array([int(event) for event in events], np.int64),
        int(stream))
    if failed == 0:
        raise DeviceError(f"weights end after {answer} bytes; {data.nbytes} expected")
    if failed > 0:
        raise DeviceError(f"{DRIVER_CALLS[failed - 1]}: {driver.CUresult(answer).name}")
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

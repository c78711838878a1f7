"""Weights from mapped files to the device.

Threads register parts of the mapping with the driver and copy from them; memory that the driver
cannot register goes through pinned buffers instead. Each thread has its own stream.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda.driver import Device, call
from helios_dod.executors.cuda.pinned import host_bytes

CHUNK_BYTES = 16 << 20
REGISTERED_BYTES = 256 << 20  # of a mapping that one thread registers at a time
THREADS_MAX = 4
HOST_PAGE = 4096
READ_ONLY = 0x08  # CU_MEMHOSTREGISTER_READ_ONLY
PORTABLE = 0x01  # CU_MEMHOSTALLOC_PORTABLE
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class RandomWeights:
    """A weight resource without bytes: noise made once and repeated on the device.

    vectors: byte offset -> bytes that are not noise (norms, frequencies)."""

    def __init__(self, nbytes: int, vectors: dict[int, np.ndarray], seed: int = 0) -> None:
        self.nbytes, self.vectors, self.seed = nbytes, vectors, seed

    def noise(self) -> np.ndarray:
        """CHUNK_BYTES of bf16 normal values of standard deviation 0.02, as uint8."""
        values = np.random.default_rng(self.seed).standard_normal(
            CHUNK_BYTES // 2, np.float32) * np.float32(0.02)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def upload(device: Device, data: Any, address: int) -> None:
    """Copies a uint8 array, or makes RandomWeights, at a device address; it waits for the end."""
    if isinstance(data, RandomWeights):
        _spread(data, address)
        return
    threads = max(1, min(THREADS_MAX, len(os.sched_getaffinity(0))))
    copy, step = _copy, CHUNK_BYTES
    if _registers(data):
        copy, step = _copy_registered, REGISTERED_BYTES
    starts = range(0, data.nbytes, step)
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(copy, device, data, address, starts[i::threads])
                     for i in range(threads)]:
            done.result()


def _registers(data: np.ndarray) -> bool:
    """Whether the driver takes this memory as it lies; one page is tried."""
    if data.ctypes.data % HOST_PAGE or data.nbytes % HOST_PAGE:
        return False
    try:
        call("cuMemHostRegister", data.ctypes.data, HOST_PAGE, PORTABLE | READ_ONLY)
    except DeviceError:
        return False
    call("cuMemHostUnregister", data.ctypes.data)
    return True


def _copy_registered(device: Device, data: np.ndarray, address: int, starts: range) -> None:
    """One thread's parts, straight from the mapping."""
    device.enter()
    stream = call("cuStreamCreate", NON_BLOCKING)
    for start in starts:
        source, count = data.ctypes.data + start, min(REGISTERED_BYTES, data.nbytes - start)
        call("cuMemHostRegister", source, count, PORTABLE | READ_ONLY)
        call("cuMemcpyHtoDAsync", address + start, source, count, stream)
        call("cuStreamSynchronize", stream)
        call("cuMemHostUnregister", source)
    call("cuStreamDestroy", stream)


def _copy(device: Device, data: np.ndarray, address: int, starts: range) -> None:
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
        part = data[start : start + CHUNK_BYTES]
        if i >= 2:
            call("cuEventSynchronize", events[i % 2])
        np.copyto(views[i % 2][: part.nbytes], part)
        call("cuMemcpyHtoDAsync", address + start, pinned[i % 2], part.nbytes, stream)
        call("cuEventRecord", events[i % 2], stream)
    call("cuStreamSynchronize", stream)
    for one, event in zip(pinned, events, strict=True):
        call("cuMemFreeHost", one)
        call("cuEventDestroy", event)
    call("cuStreamDestroy", stream)


def _spread(data: RandomWeights, address: int) -> None:
    noise = data.noise()
    call("cuMemcpyHtoD", address, noise.ctypes.data, min(noise.nbytes, data.nbytes))
    for start in range(CHUNK_BYTES, data.nbytes, CHUNK_BYTES):
        call("cuMemcpyDtoD", address + start, address, min(CHUNK_BYTES, data.nbytes - start))
    for offset, values in data.vectors.items():
        call("cuMemcpyHtoD", address + offset, values.ctypes.data, values.nbytes)
    call("cuCtxSynchronize")

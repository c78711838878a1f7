"""Weights from mapped files to the device.

Threads read the file into pinned buffers, so few that they stay in the processor's cache until the
device has fetched them; another thread hands them to the driver, several in one copy. Memory that
is no file is copied the same way.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda import feeding
from helios_dod.executors.cuda.driver import call, driver
from helios_dod.executors.cuda.pinned import host_words
from helios_dod.executors.host.buffers import WEIGHT

CHUNK_BYTES = 2 << 20
SLOTS = 2  # buffers of a thread that fills them
LEAST = 2  # chunks that a copy waits for while another is under way
NOISE_BYTES = 16 << 20  # of random weights that repeat
THREADS_MAX = 8
HOST_PAGE = 4096
MAPPED = 0x02  # CU_MEMHOSTALLOC_DEVICEMAP
F8_E4M3 = 10  # proto DataType
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class RandomWeights:
    """A weight resource without bytes: noise made once and repeated on the device.

    vectors: byte offset -> bytes that are not noise (norms, frequencies, factors); eighths:
    (offset, bytes) of matrices in e4m3, where other noise has to be."""

    def __init__(self, nbytes: int, vectors: dict[int, np.ndarray],
                 eighths: Sequence[tuple[int, int]] = (), seed: int = 0) -> None:
        self.nbytes, self.vectors, self.eighths, self.seed = nbytes, vectors, eighths, seed

    def noise(self) -> np.ndarray:
        """NOISE_BYTES of bf16 normal values of standard deviation 0.02, as uint8."""
        values = np.random.default_rng(self.seed).standard_normal(
            NOISE_BYTES // 2, np.float32) * np.float32(0.02)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)

    def eighth_noise(self) -> np.ndarray:
        """NOISE_BYTES of e4m3: normal values of standard deviation 82, towards zero."""
        generator = np.random.default_rng(self.seed)
        values = np.clip(generator.standard_normal(NOISE_BYTES, np.float32) * 82, -448, 448)
        bits = np.maximum(np.abs(values), np.float32(2**-6)).view(np.uint32) >> 20
        return ((bits - ((127 - 7) << 3)) | (np.signbit(values) << 7)).astype(np.uint8)


def random_like(manifest: Any, name: str, data: np.ndarray) -> RandomWeights:
    """A weight resource whose matrices are random and whose vectors are those of `data`."""
    own = [buffer for buffer in manifest.buffers
           if buffer.kind == WEIGHT and buffer.resource_id == name]
    return RandomWeights(data.nbytes, {
        buffer.resource_offset: np.array(data[buffer.resource_offset :][: buffer.resource_nbytes])
        for buffer in own if len(buffer.shape) != 2}, eighths_of(own))


def eighths_of(buffers: Iterable[Any]) -> list[tuple[int, int]]:
    """Where weights in e4m3 lie: offset, bytes."""
    return [(buffer.resource_offset, buffer.resource_nbytes) for buffer in buffers
            if buffer.kind == WEIGHT and buffer.dtype == F8_E4M3]


def upload(data: Any, address: int) -> None:
    """Copies a uint8 array, or makes RandomWeights, at a device address of this thread's context;
    it waits for the end."""
    if isinstance(data, RandomWeights):
        _spread(data, address)
        return
    chunks = -(-data.nbytes // CHUNK_BYTES)
    threads = max(1, min(THREADS_MAX, len(os.sched_getaffinity(0)) - 1, chunks))
    slots = min(SLOTS * threads, chunks)
    memory = int(call("cuMemHostAlloc", slots * CHUNK_BYTES + HOST_PAGE, MAPPED))
    turns, stop, next_chunk = (np.zeros(n, np.int64) for n in (slots * feeding.LINE, 1, 1))
    file, offset = _file_of(data)
    read = feeding.addresses(ctypes.CDLL(None), "pread64" if file >= 0 else "memcpy")[0]
    try:
        with ThreadPoolExecutor(threads) as pool:
            filled = [pool.submit(feeding.fill, read, file, offset, data.nbytes, CHUNK_BYTES,
                                  memory, turns, next_chunk, stop) for _ in range(threads)]
            try:
                _send(data.nbytes, address, memory, turns, stop)
            finally:
                stop[0] = 1
            ends = [one.result() for one in filled]
    finally:
        if file >= 0:
            os.close(file)
    call("cuMemFreeHost", memory)
    if max(ends) >= 0:
        raise DeviceError(f"weights end after {max(ends)} bytes; {data.nbytes} expected")


def _file_of(data: np.ndarray) -> tuple[int, int]:
    """(new descriptor, offset) of the file that an array maps, where the mapping can open it as
    cores.mapped.MappedFile does, or (-1, its address)."""
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    mapped: Any = base.obj if isinstance(base, memoryview) else base
    reopened = getattr(mapped, "reopened", None)
    if reopened is None:
        return -1, data.ctypes.data
    return reopened(), data.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data


def _send(nbytes: int, address: int, memory: int, turns: np.ndarray, stop: np.ndarray) -> None:
    """Hands buffers to the device as they fill. The word behind them says what has arrived."""
    stream = call("cuStreamCreate", NON_BLOCKING)
    word = memory + len(turns) // feeding.LINE * CHUNK_BYTES
    arrived = host_words(word, 1)
    arrived[0] = 0
    functions = feeding.addresses(ctypes.CDLL("libcuda.so.1"), *feeding.DRIVER_CALLS)
    failed, answer = feeding.send(
        np.array(functions, np.int64), address, nbytes, CHUNK_BYTES, memory, arrived,
        int(call("cuMemHostGetDevicePointer", word, 0)), LEAST, int(stream), turns, stop)
    if failed >= 0:
        name = ("cuMemcpyHtoDAsync or cuStreamWriteValue32", "cuStreamQuery")[failed]
        raise DeviceError(f"{name}: {driver.CUresult(answer).name}")
    call("cuStreamSynchronize", stream)
    call("cuStreamDestroy", stream)


def _spread(data: RandomWeights, address: int) -> None:
    _repeat(data.noise(), address, data.nbytes)
    if data.eighths:
        noise = data.eighth_noise()
        for offset, nbytes in data.eighths:
            _repeat(noise, address + offset, nbytes)
    for offset, values in data.vectors.items():
        call("cuMemcpyHtoD", address + offset, values.ctypes.data, values.nbytes)
    call("cuCtxSynchronize")


def _repeat(noise: np.ndarray, address: int, nbytes: int) -> None:
    """Fills device memory with NOISE_BYTES again and again."""
    call("cuMemcpyHtoD", address, noise.ctypes.data, min(NOISE_BYTES, nbytes))
    for start in range(NOISE_BYTES, nbytes, NOISE_BYTES):
        call("cuMemcpyDtoD", address + start, address, min(NOISE_BYTES, nbytes - start))

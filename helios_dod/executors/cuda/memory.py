"""Device memory behind a manifest's buffers, and the host words that kernels write.

Everything is allocated once, at load. The world's staging and completion tables are registered with
the driver where they lie: a program copies its staged values itself, and writes completions there.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError, Geometry
from helios_dod.executors.cuda.driver import Device, call
from helios_dod.executors.cuda.pinned import host_words
from helios_dod.executors.cuda.upload import upload
from helios_dod.executors.host.buffers import (
    CACHE,
    COLUMNS,
    COMPLETION,
    ITEM_BYTES,
    STAGING,
    WEIGHT,
)
from helios_dod.executors.tuning import required
from helios_dod.limits import FRAMES_MAX

ALIGN = 256
PAGES = 4  # proto Symbol: planes with an axis of these pages move with them
WINDOWED_PAGES = 11  # proto Symbol: the same of page group 1
HOST_PAGE = 4096
SUBMISSION_COUNT, FINISHED_COUNT = 1, 2  # proto ExecutorWord
MAPPED = 0x02  # CU_MEMHOSTREGISTER_DEVICEMAP and CU_MEMHOSTALLOC_DEVICEMAP


@dataclass(frozen=True)
class Bound:
    """A buffer: its device address in each frame, bytes, and bytes between rows of axis 0.

    `source` is the host address of a STAGING buffer's words in each frame."""

    name: str
    kind: int
    address: tuple[int, ...]
    nbytes: int
    row_bytes: int
    source: tuple[int, ...] = ()


class Memory:
    """Binds the buffers that any CUDA body names."""

    def __init__(self, device: Device, manifest: Any, geometry: Geometry,
                 weights: Mapping[str, Any], staging_first: Mapping[int, int],
                 world: np.ndarray, programs: list[int]) -> None:
        self.device, self.world, self.geometry = device, world, geometry
        self.allocations: list[int] = []
        self._first = staging_first
        self._register()
        self.device_word = self.allocate(ALIGN)
        self._host_word = int(call("cuMemHostAlloc", HOST_PAGE, MAPPED))
        self.finished = host_words(self._host_word, 1)
        self.finished[0] = 0
        self.words = {SUBMISSION_COUNT: self.device_word, FINISHED_COUNT: int(
            call("cuMemHostGetDevicePointer", self._host_word, 0))}
        self._staging = self.allocate(4 * int(world[0]["staging"]["words"].shape[1]))
        self.weights_ns = 0  # that uploading took
        self.resources = self._place_weights(weights)
        used = _used(manifest, programs)
        self._planes = self._place_caches(manifest, used)
        self.buffers = [self._bind(i, b) if i in used else None
                        for i, b in enumerate(manifest.buffers)]
        self._paged = [[i for i in sorted(used) if manifest.buffers[i].kind == CACHE
                        and manifest.buffers[i].shape[0].symbol == pages]
                       for pages in (PAGES, WINDOWED_PAGES)]

    def allocate(self, nbytes: int, zeros: bool = True) -> int:
        """Device memory, of zeros unless all of it is written at once."""
        size = -(-max(nbytes, 1) // ALIGN) * ALIGN
        address = int(call("cuMemAlloc", size))
        self.allocations.append(address)
        if zeros:
            call("cuMemsetD8", address, 0, size)
        return address

    def _register(self) -> None:
        """Registers the staging and completion tables with the driver."""
        tables = [self.world[0][name] for name in ("staging", "completions")]
        columns = [table[name] for table in tables for name in table.dtype.names]
        first = min(column.ctypes.data for column in columns)
        last = max(column.ctypes.data + column.nbytes for column in columns)
        first = first // HOST_PAGE * HOST_PAGE
        last = -(-last // HOST_PAGE) * HOST_PAGE
        call("cuMemHostRegister", first, last - first, MAPPED)
        self._registered = first
        self._device_offset = int(call("cuMemHostGetDevicePointer", first, 0)) - first

    def _place_weights(self, weights: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
        """(device address, bytes) of each resource, which a thread of its own fills from now on."""
        found = {name: (self.allocate(data.nbytes, zeros=False), int(data.nbytes))
                 for name, data in weights.items()}

        def fill() -> None:
            begun = time.monotonic_ns()
            self.device.enter()
            for name, data in weights.items():
                upload(data, found[name][0])
            self.weights_ns = time.monotonic_ns() - begun

        pool = ThreadPoolExecutor(1)
        self._filled = pool.submit(fill)
        pool.shutdown(wait=False)
        return found

    def wait_for_weights(self) -> None:
        """Returns once every weight is on the device. Raises what uploading them raised."""
        self._filled.result()

    def _sizes(self, buffer: Any) -> tuple[int, int]:
        """(bytes, bytes between rows of axis 0) of a buffer."""
        shape = [self.geometry.extent(e.symbol, e.multiplier) for e in buffer.shape]
        item = ITEM_BYTES[buffer.dtype]
        return (item * int(np.prod(shape, dtype=np.int64)),
                item * int(np.prod(shape[1:], dtype=np.int64)))

    def _place_caches(self, manifest: Any, used: set[int]) -> dict[int, int]:
        """Device addresses of the cache planes, in one allocation: the driver refuses a copy of
        one page of all planes that goes over several."""
        placed, end = {}, 0
        for index in sorted(used):
            if manifest.buffers[index].kind == CACHE:
                placed[index] = end
                end += -(-self._sizes(manifest.buffers[index])[0] // ALIGN) * ALIGN
        base = self.allocate(end) if placed else 0
        return {index: base + offset for index, offset in placed.items()}

    def _bind(self, index: int, buffer: Any) -> Bound:
        nbytes, row = self._sizes(buffer)
        source: tuple[int, ...] = ()
        if buffer.kind == WEIGHT:
            address = (self._weight(buffer, nbytes),) * FRAMES_MAX
        elif buffer.kind == STAGING:
            words = self.world[0]["staging"]["words"]
            first = 4 * self._first[index]
            if first + nbytes > 4 * words.shape[1]:
                raise DeviceError(f"buffer {buffer.name!r}: staging ends at {first + nbytes} of "
                                  f"{4 * words.shape[1]} bytes")
            address = (self._staging + first,) * FRAMES_MAX
            source = tuple(words[frame].ctypes.data + first for frame in range(FRAMES_MAX))
        elif buffer.kind == COMPLETION:
            column = self.world[0]["completions"][COLUMNS[buffer.completion]]
            address = tuple(column[frame].ctypes.data + self._device_offset
                            for frame in range(FRAMES_MAX))
            row = column.strides[1]
        elif buffer.kind == CACHE:
            address = (self._planes[index],) * FRAMES_MAX
        else:
            address = (self.allocate(nbytes),) * FRAMES_MAX
        return Bound(buffer.name, buffer.kind, address, nbytes, row, source)

    def _weight(self, buffer: Any, nbytes: int) -> int:
        if buffer.resource_id not in self.resources:
            raise DeviceError(f"buffer {buffer.name!r}: no weight resource {buffer.resource_id!r}")
        base, size = self.resources[buffer.resource_id]
        if buffer.resource_nbytes != nbytes or buffer.resource_offset + nbytes > size:
            raise DeviceError(
                f"buffer {buffer.name!r}: {nbytes} bytes at {buffer.resource_offset}, resource "
                f"{buffer.resource_id!r} holds {size}")
        return base + int(buffer.resource_offset)

    def bound(self, index: int) -> Bound:
        """The binding of a buffer that some body names."""
        found = self.buffers[index]
        assert found is not None
        return found

    def caches(self) -> list[Bound]:
        """Every cache plane."""
        return [bound for bound in self.buffers if bound is not None and bound.kind == CACHE]

    def paged(self, group: int = 0) -> list[Bound]:
        """The cache planes of a page group."""
        return [self.bound(index) for index in self._paged[group]]

    def read(self, index: int) -> np.ndarray:
        """The bytes of a buffer, uint8. For tests and tools: it waits for the device."""
        bound = self.bound(index)
        out = np.empty(bound.nbytes, np.uint8)
        call("cuMemcpyDtoH", out.ctypes.data, bound.address[0], bound.nbytes)
        return out

    def write(self, index: int, data: bytes) -> None:
        """The bytes of a buffer that no program in flight names."""
        bound = self.bound(index)
        assert len(data) == bound.nbytes
        call("cuMemcpyHtoD", bound.address[0], data, bound.nbytes)

    def close(self) -> None:
        """Frees everything; the device is idle and weights are there."""
        for address in self.allocations:
            call("cuMemFree", address)
        self.allocations.clear()
        call("cuMemFreeHost", self._host_word)
        call("cuMemHostUnregister", self._registered)


def _used(manifest: Any, programs: list[int]) -> set[int]:
    """Buffers that the bodies of some programs name, and of the tuning graphs that they need."""
    used: set[int] = set()
    graphs = [manifest.programs[index] for index in programs] + [
        manifest.tuning[number] for number in required(manifest, programs)]
    for body in {graph.cuda_body for graph in graphs}:
        for node in manifest.cuda_bodies[body].nodes:
            if node.HasField("choice"):
                used.add(node.choice.buffer)
            used.update(node.ingest.buffers)
            if node.HasField("copy"):
                used.update((node.copy.source.buffer, node.copy.destination.buffer))
            if node.HasField("fill"):
                used.add(node.fill.destination.buffer)
            for argument in node.kernel.arguments:
                kind = argument.WhichOneof("argument")
                if kind == "address":
                    used.add(argument.address.buffer)
                elif kind == "row_bytes":
                    used.add(argument.row_bytes)
    return used

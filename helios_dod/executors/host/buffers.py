"""Memory behind a manifest's buffers: weights where they lie, the executor's own state, cache and
scratch, and the world's staging and completion columns of each frame.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError, Geometry, available_bytes
from helios_dod.executors.host.panels import PanelShape

ALIGN = 64
SLACK = 1024  # bytes behind an allocation that vectors may read past its end
ITEM_BYTES = {1: 4, 2: 2, 3: 2, 4: 4, 5: 4, 6: 8, 7: 8, 8: 1, 9: 1, 10: 1}  # proto DataType
PAGES = 4  # proto Symbol: the pages that page copies name
WINDOWED_PAGES = 11  # proto Symbol: those of page group 1
WEIGHT, STATE, CACHE, SCRATCH, STAGING, COMPLETION = 1, 2, 3, 4, 5, 6  # proto BufferKind
COLUMNS = {
    1: "slot",
    2: "generation",
    3: "status",
    4: "offered",
    5: "accepted",
    6: "emitted",
    7: "tokens",
    8: "endpoint",
    9: "cursor",
    10: "reserved",
    11: "logprob",
    12: "top_tokens",
    13: "top_logprobs",
    14: "scores",
}  # proto CompletionField


@dataclass(frozen=True)
class Bound:
    """A buffer with its address in each frame and the bytes between rows of axis 0."""

    name: str
    kind: int
    dtype: int
    address: tuple[int, int]
    shape: tuple[int, ...]
    row_bytes: int
    panel: PanelShape | None

    @property
    def columns(self) -> int:
        """Elements of one row of axis 0."""
        return prod(self.shape[1:])


def aligned_zeros(nbytes: int) -> np.ndarray:
    """uint8 zeros on a cache line, with slack behind them."""
    try:
        raw = np.zeros(nbytes + ALIGN + SLACK, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: more than there are addresses
        raise DeviceError(f"{nbytes} bytes of memory asked, but cannot be had") from error
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def _panel_of(buffer: Any) -> PanelShape | None:
    if not buffer.HasField("panel"):
        return None
    panel = buffer.panel
    return PanelShape(
        panel.encoding,
        panel.rows,
        panel.columns,
        panel.panel_rows,
        panel.block_columns,
        panel.scale,
        panel.minimum,
    )


class Memory:
    """Binds every buffer of a manifest; owns state, cache and scratch.

    caches: (address, bytes of a page) of every plane of page group 0; windowed: of page group 1."""

    def __init__(
        self,
        manifest: Any,
        geometry: Geometry,
        weights: Mapping[str, np.ndarray],
        staging_first: Mapping[int, int],
        world: np.ndarray,
    ) -> None:
        self.world = world
        self._weights, self._first = weights, staging_first
        self.owned: dict[int, np.ndarray] = {}  # buffer index -> its bytes
        self._require_room(manifest, geometry)
        self.buffers = [self._bind(i, b, geometry) for i, b in enumerate(manifest.buffers)]
        self.caches = self._planes(manifest, PAGES)
        self.windowed = self._planes(manifest, WINDOWED_PAGES)

    def _planes(self, manifest: Any, pages: int) -> np.ndarray:
        """(address, bytes of a page) of the cache planes of a page group."""
        planes = [[bound.address[0], bound.row_bytes]
                  for bound, declared in zip(self.buffers, manifest.buffers, strict=True)
                  if bound.kind == CACHE and declared.shape[0].symbol == pages]
        return np.array(planes, np.int64).reshape(-1, 2)

    def owned_caches(self) -> list[tuple[Bound, np.ndarray]]:
        """Every cache plane with its bytes."""
        return [
            (self.buffers[i], bytes_)
            for i, bytes_ in self.owned.items()
            if self.buffers[i].kind == CACHE
        ]

    @staticmethod
    def _require_room(manifest: Any, geometry: Geometry) -> None:
        """Refuses what the machine cannot hold before any of it is touched."""
        sizes = {buffer.name: ITEM_BYTES.get(buffer.dtype, 0) * prod(
            geometry.extent(e.symbol, e.multiplier) for e in buffer.shape)
            for buffer in manifest.buffers if buffer.kind in (STATE, CACHE, SCRATCH)}
        free, asked = available_bytes(), sum(sizes.values())
        if free is not None and asked > free:
            largest = max(sizes, key=lambda name: sizes[name])
            raise DeviceError(f"buffers: {asked} bytes of memory asked, {free} are free; the "
                              f"largest is {largest!r} with {sizes[largest]}")

    def _bind(self, index: int, buffer: Any, geometry: Geometry) -> Bound:
        shape = tuple(geometry.extent(e.symbol, e.multiplier) for e in buffer.shape)
        if buffer.dtype not in ITEM_BYTES:
            raise DeviceError(f"buffer {buffer.name!r}: data type {buffer.dtype} is unknown")
        item = ITEM_BYTES[buffer.dtype]
        row = item * prod(shape[1:])  # of Python's integers, which no core's axes overflow
        nbytes = row * shape[0]
        panel = _panel_of(buffer)
        if buffer.kind == WEIGHT:
            address = (self._weight(buffer, panel.matrix_bytes if panel else nbytes),) * 2
        elif buffer.kind in (STATE, CACHE, SCRATCH):
            memory = aligned_zeros(nbytes)
            if buffer.kind != CACHE:  # a cache is backed by the kernel as it fills
                memory[:] = 0
            self.owned[index] = memory
            address = (memory.ctypes.data,) * 2
        elif buffer.kind == STAGING:
            if index not in self._first:
                raise DeviceError(f"buffer {buffer.name!r}: STAGING that no binding fills")
            words = self.world[0]["staging"]["words"]
            end = self._first[index] + -(-nbytes // 4)
            if end > words.shape[1]:
                raise DeviceError(f"buffer {buffer.name!r}: staging word {end} of {words.shape[1]}")
            address = (
                words[0].ctypes.data + 4 * self._first[index],
                words[1].ctypes.data + 4 * self._first[index],
            )
        elif buffer.kind == COMPLETION:
            column = self.world[0]["completions"][COLUMNS[buffer.completion]]
            address = (column[0].ctypes.data, column[1].ctypes.data)
            row = column.strides[1]
        else:
            raise DeviceError(f"buffer {buffer.name!r}: kind {buffer.kind} is unknown")
        return Bound(buffer.name, buffer.kind, buffer.dtype, address, shape, row, panel)

    def _weight(self, buffer: Any, nbytes: int) -> int:
        if buffer.resource_id not in self._weights:
            raise DeviceError(f"buffer {buffer.name!r}: no weight resource {buffer.resource_id!r}")
        resource = self._weights[buffer.resource_id]
        end = buffer.resource_offset + nbytes
        if buffer.resource_nbytes != nbytes or end > resource.nbytes:
            raise DeviceError(
                f"buffer {buffer.name!r}: {nbytes} bytes wanted, {buffer.resource_nbytes} "
                f"declared, "
                f"resource {buffer.resource_id!r} holds {resource.nbytes} up to {end}"
            )
        return int(resource.ctypes.data) + int(buffer.resource_offset)

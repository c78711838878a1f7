"""What the processes of one server share: the world, and behind it the control block."""

import mmap
import os
from functools import cache
from typing import Any

import numpy as np

from helios_dod.limits import Limits
from helios_dod.schema import world_dtype
from helios_dod.tables.durations import Durations
from helios_dod.tables.service import CAUSE_BYTES, Permits, Service, Workers
from helios_dod.world import dtype_of

ENGINE_STARTING, ENGINE_READY, ENGINE_FAILED = 0, 1, 2
PAGE = 4096


@cache
def control_dtype(limits: Limits) -> np.dtype:
    """The control block's dtype for one size."""
    return world_dtype((Service, Permits, Workers, Durations), limits)


class SharedMemory:
    """One anonymous block, inherited by fork: the world, then the control block. Zeroed."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        world_bytes = -(-dtype_of(limits).itemsize // PAGE) * PAGE
        control_bytes = control_dtype(limits).itemsize
        descriptor = os.memfd_create("helios", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, world_bytes + control_bytes)
            self._map = mmap.mmap(descriptor, world_bytes + control_bytes)
        finally:
            os.close(descriptor)  # the mapping keeps the memory
        whole = memoryview(self._map)
        self.world: memoryview = whole[: dtype_of(limits).itemsize]
        raw = np.frombuffer(whole[world_bytes:], np.uint8, control_bytes)
        self.control: np.ndarray = raw.view(control_dtype(limits))

    @property
    def service(self) -> Any:
        """The Service row; assign its fields in place."""
        return self.control[0]["service"]


def set_cause(service: Any, text: str) -> None:
    """Records why the engine failed, cut to what fits."""
    data = text.encode("utf-8", "replace")[:CAUSE_BYTES]
    service["cause"][: len(data)] = np.frombuffer(data, np.uint8)
    service["cause_count"] = len(data)


def get_cause(service: Any) -> str:
    """Why the engine failed; empty if nothing is recorded."""
    return bytes(service["cause"][: int(service["cause_count"])]).decode("utf-8", "replace")

"""The one interface between the scheduler and a device."""

import mmap
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Geometry:
    """Extents chosen at load: the values of proto Symbol, by lower-case name.

    Request slot s owns state rows s * state_rows_per_request and those that follow, snapshot n the
    snapshot rows from n * state_rows_per_request on."""

    lanes: int
    packed: int
    slots: int
    pages: int
    page_tokens: int
    pages_per_request: int
    updates: int
    logit_rows: int
    state_rows_per_request: int = 0  # the most that a loaded program needs
    state_rows: int = 0  # execution: of all slots
    snapshot_rows: int = 0  # of all snapshots
    windowed_pages: int = 0
    window_pages: int = 0  # of page group 1 that one request holds at most
    snapshots: int = 0

    def extent(self, symbol: int, multiplier: int) -> int:
        """Value of a proto Extent; symbol 0 is a constant axis."""
        values = (1, self.lanes, self.packed, self.slots, self.pages, self.page_tokens,
                  self.pages_per_request, self.updates, self.logit_rows, self.state_rows,
                  self.snapshot_rows, self.windowed_pages)
        return values[symbol] * multiplier


def available_bytes() -> int | None:
    """Memory that can be had without swapping, by /proc/meminfo; None where that does not say."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def processor_name() -> str:
    """The processor's model by /proc/cpuinfo, or the machine's architecture."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file
                        if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


class DeviceError(RuntimeError):
    """A device call failed: its name, its arguments and what it answered."""


class Executor(Protocol):
    """Runs the programs of one rank. Staging and completion are tables of the world."""

    name: str
    reads_weights: bool  # False: it computes nothing

    def load(self, manifest: object, geometry: Geometry, weights: Mapping[str, np.ndarray],
             staging_first: Mapping[int, int], world: np.ndarray) -> None:
        """Binds every buffer and program.

        manifest: ExecutionManifest. weights: resource id -> uint8 array (memory-mapped).
        staging_first: STAGING buffer index -> first word in `world[0].staging.words[frame]`.
        COMPLETION buffers are columns of `world[0].completions`."""

    def back(self, memory_pages: int, disk: mmap.mmap | None, window_places: int = 0,
             window_stored: int = 0) -> None:
        """Makes room for pages behind the device: in host memory, and in a mapped file, which is
        the executor's from then on. window_places: of page group 1, in host memory;
        window_stored: of those in the file, behind the pages of group 0. Called once, after `load`,
        if there is to be any."""

    def copy(self, queue: int, first: int, end: int) -> None:
        """Starts the commands `first` to `end` - 1 of row `queue` of `world[0].copies`;
        asynchronous. Nothing in flight reads or writes the places that they name: a page is
        offloaded after the fence of the program that wrote it, and a program that reads a restored
        page is submitted after its copy has ended. So copies need no order with submissions, only
        among themselves."""

    def copied(self, queue: int) -> int:
        """Commands of a queue that have ended, counted from its first; those that failed are marked
        in `world[0].copies.failed`. They end in order."""

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Launches `program` (index into manifest.programs) on a frame; asynchronous."""

    def poll(self) -> int:
        """Newest finished sequence, 0 before any. Programs finish in submission order."""

    def descriptor(self) -> int:
        """An eventfd that becomes readable when a program or a copy finishes."""

    def drain(self) -> None:
        """Waits for every submitted program and copy."""

    def close(self) -> None:
        """Drains, then frees everything."""

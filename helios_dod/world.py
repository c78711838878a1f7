"""The world: every table in one block of memory. Boot, digest, diff, snapshot."""

import hashlib
from functools import cache

import numpy as np

from helios_dod.limits import NO_ROW, Limits
from helios_dod.schema import Table, world_dtype
from helios_dod.tables.candidates import Candidates
from helios_dod.tables.copies import Copies
from helios_dod.tables.drafts import Drafts
from helios_dod.tables.frames import Frames, Lanes
from helios_dod.tables.grammars import Grammars
from helios_dod.tables.pages import Pages
from helios_dod.tables.pieces import Pieces
from helios_dod.tables.prefixes import Prefixes
from helios_dod.tables.programs import Bindings, Completions, Programs, Staging
from helios_dod.tables.requests import Requests
from helios_dod.tables.rings import Egress, Ingress
from helios_dod.tables.settings import Clock, Counters, Settings
from helios_dod.tables.slots import Slots
from helios_dod.tables.snapshots import Snapshots
from helios_dod.tables.stops import Stops
from helios_dod.tables.tiers import Tiers
from helios_dod.tables.tokens import Tokens
from helios_dod.tables.windows import Windows

TABLES: tuple[Table, ...] = (
    Settings, Clock, Counters, Requests, Tokens, Slots, Pages, Prefixes, Tiers, Copies, Snapshots,
    Windows, Candidates, Drafts, Frames, Lanes, Programs, Bindings, Staging, Completions, Ingress,
    Egress, Stops, Pieces, Grammars,
)

LINKS = {  # columns that name no row when unused
    "requests": ("slot", "match_page", "match_snapshot", "waiting_next", "waiting_previous",
                 "blocks", "waiting_first", "waiting_last"),
    "tokens": ("owner",),
    "slots": ("request", "pages", "published_page", "grammar", "restore", "window_pages"),
    "grammars": ("slot",),
    "pages": ("owner", "place", "parent", "older", "newer", "oldest", "newest"),
    "tiers": ("oldest", "newest"),
    "prefixes": ("entry",),
    "snapshots": ("owner", "page", "bucket_next", "older", "newer", "buckets", "oldest",
                  "newest", "window_pages", "window_places"),
    "frames": ("program",),
    "programs": ("smaller", "smaller_masked"),
    "lanes": ("restore", "snapshot"),
}


@cache
def dtype_of(limits: Limits) -> np.dtype:
    """The world's dtype of one size. Built once: an equal but distinct dtype costs 13 us a call."""
    return world_dtype(TABLES, limits)


def boot(limits: Limits, memory: memoryview | None = None) -> np.ndarray:
    """A fresh world, shape [1], in `memory` (dtype_of(limits).itemsize bytes, zeroed) or its own.

    Every byte is written, so that no page faults in later."""
    dtype = dtype_of(limits)
    if memory is None:
        memory = memoryview(bytearray(dtype.itemsize))
    raw = np.frombuffer(memory, dtype=np.uint8, count=dtype.itemsize)
    raw[:] = 0
    world = raw.view(dtype)
    w = world[0]
    for name, columns in LINKS.items():
        for column in columns:
            w[name][column] = NO_ROW
    w["requests"]["eos"] = -1
    for name in ("requests", "slots", "grammars"):
        fill_free(w[name], len(w[name]["state"]))
    fill_free(w["tokens"], len(w["tokens"]["owner"]))
    w["frames"]["frame_count"] = len(w["frames"]["state"])
    w["frames"]["next_sequence"] = 1
    return world


def fill_free(table: np.void, count: int) -> None:
    """Puts rows 0..count-1 on the table's free stack; row 0 is taken first."""
    table["free"][:count] = np.arange(count - 1, -1, -1, dtype=np.int32)
    table["free_count"] = count


def fill_pages(world: np.ndarray, device: int, tiers: tuple[int, ...] = ()) -> None:
    """Frees the rows and places of pages: `device` of the backed cache and those of each tier."""
    pages, behind = world[0]["pages"], world[0]["tiers"]
    fill_free(pages, device)
    pages["page_count"] = device
    first = device
    for tier, count in enumerate(tiers):
        behind["first"][tier] = first
        behind["place_count"][tier] = behind["free_count"][tier] = count
        pages["free"][first : first + count] = np.arange(count - 1, -1, -1, dtype=np.int32)
        first += count
    pages["rows"][:first] = np.arange(first - 1, -1, -1, dtype=np.int32)
    pages["row_count"] = first


def fill_windows(table: np.void, device: int, memory: int, disk: int) -> None:
    """Frees the pages of group 1: `device` of the backed cache, and the places behind it."""
    fill_free(table, device)
    table["page_count"] = device
    places = np.arange(memory + disk, dtype=np.int32)
    table["free"][device : device + memory] = places[:memory][::-1]
    table["free"][device + memory : device + memory + disk] = places[memory:][::-1]
    table["place_count"] = table["place_free_count"] = memory
    table["stored_count"] = table["stored_free_count"] = disk


def attach(limits: Limits, memory: memoryview) -> np.ndarray:
    """The world that another process booted in shared `memory`, shape [1]."""
    dtype = dtype_of(limits)
    return np.frombuffer(memory, dtype=np.uint8, count=dtype.itemsize).view(dtype)


def snapshot(world: np.ndarray) -> bytes:
    """All bytes; `world.copy()` would skip padding."""
    return world.view(np.uint8).tobytes()


def restore(world: np.ndarray, saved: bytes) -> None:
    """Overwrites the world with a snapshot of the same size."""
    world.view(np.uint8)[:] = np.frombuffer(saved, dtype=np.uint8)


def digest(world: np.ndarray) -> str:
    """Hex SHA-256 of all bytes."""
    return hashlib.sha256(world.view(np.uint8).data).hexdigest()


def diff(before: bytes, world: np.ndarray) -> list[str]:
    """`table.column` names whose bytes differ from a snapshot."""
    old = np.frombuffer(before, dtype=np.uint8).view(world.dtype)
    changed = []
    for name in world.dtype.names:
        for column in world.dtype[name].names:
            if not np.array_equal(old[0][name][column], world[0][name][column]):
                changed.append(f"{name}.{column}")
    return changed

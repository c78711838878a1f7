"""Who holds the pages of page group 1 and their places in tiers, counted from the holders."""

from dataclasses import dataclass

import numpy as np

from helios_dod.limits import NO_ROW
from helios_dod.terms import (
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
)

KINDS = (COPY_WINDOW_OFFLOAD, COPY_WINDOW_RESTORE, COPY_WINDOW_SINK, COPY_WINDOW_FETCH)
Move = tuple[int, int, int, int]  # (kind, entry, source, target), places as windows.py numbers them


def window_copies(w: np.void) -> list[Move]:
    """Each copy of group 1 in flight."""
    copies, stored, found = w["copies"], int(w["windows"]["place_count"]), []
    for queue in range(len(copies["first"])):
        for number in range(int(copies["first"][queue]), int(copies["end"][queue])):
            kind, entry, source, target = (
                int(copies[name][queue, number % copies["kind"].shape[1]])
                for name in ("kind", "page", "source", "target"))
            if kind in KINDS:
                found.append((kind, entry, source + stored * (kind == COPY_WINDOW_FETCH),
                              target + stored * (kind == COPY_WINDOW_SINK)))
    return found


@dataclass
class Counted:
    """What holders add up to."""

    held: np.ndarray  # holders of each page
    places: list[int]  # that are free or held
    away: np.ndarray  # pages that each snapshot lacks
    stored: np.ndarray  # and of them those that have their place on disk
    sinking: np.ndarray  # 1: an entry that is copied to disk
    moving: tuple[int, int, int]  # copies in flight from or to the device, to memory, to disk


def count_windows(w: np.void) -> Counted:
    """Counts holders of pages and places of group 1."""
    table, s, shots = w["windows"], w["slots"], w["snapshots"]
    moves = window_copies(w)
    rows, ring = int(table["page_count"]), shots["window_pages"].shape[1]
    held, memory = np.zeros(rows, int), int(table["place_count"])
    away, lies_on_disk = np.zeros((2, len(shots["window_away"])), int)
    places = table["free"][rows : rows + int(table["place_free_count"])].tolist()
    places += table["free"][
        rows + memory : rows + memory + int(table["stored_free_count"])].tolist()
    for slot in s["live"][: int(s["live_count"])]:
        for index in range(int(s["window_first"][slot]), int(s["window_end"][slot])):
            held[s["window_pages"][slot, index % ring]] += 1
    coming, sinking = set(), np.zeros_like(shots["window_sinking"])
    for kind, entry, source, target in moves:
        leaves = kind == COPY_WINDOW_OFFLOAD
        place = target if leaves else source
        ours = int(shots["window_places"].flat[entry]) == place  # else its snapshot has gone
        if not ours:
            places.append(place)
        if kind == COPY_WINDOW_SINK:
            places.append(target)
            sinking.flat[entry] |= ours
            continue
        held[source if leaves else target] += 1
        if ours and not leaves:
            coming.add(entry)
    for row in range(len(away)):
        for index in range(int(shots["window_first"][row]), int(shots["window_end"][row])):
            k = index % ring
            page, place = int(shots["window_pages"][row, k]), int(shots["window_places"][row, k])
            lacks = page == NO_ROW or row * ring + k in coming
            away[row] += lacks
            lies_on_disk[row] += lacks and place >= memory
            if page != NO_ROW:
                held[page] += 1
            if page == NO_ROW or place != NO_ROW:
                places.append(place)
    kinds = [kind for kind, *_ in moves]
    leaving, sunk = kinds.count(COPY_WINDOW_OFFLOAD), kinds.count(COPY_WINDOW_SINK)
    return Counted(held, places, away, lies_on_disk, sinking, (len(kinds) - sunk, leaving, sunk))


def compare_windows(w: np.void) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(what, as counted from holders, as the tables have it)."""
    table, snapshots, counted = w["windows"], w["snapshots"], count_windows(w)
    in_flight = [table[name] for name in ("moving_count", "leaving_count", "sinking_count")]
    return [
        ("snapshots.window_away", counted.away, snapshots["window_away"]),
        ("snapshots.window_stored", counted.stored, snapshots["window_stored"]),
        ("snapshots.window_sinking", counted.sinking, snapshots["window_sinking"]),
        ("windows.references", counted.held, table["references"][: len(counted.held)]),
        ("windows: free stack", np.nonzero(counted.held == 0)[0],
         np.sort(table["free"][: int(table["free_count"])])),
        ("places of windows", np.sort(counted.places),
         np.arange(table["place_count"] + table["stored_count"])),
        ("windows: copies in flight, to memory, to disk", np.array(counted.moving),
         np.array(in_flight)),
    ]

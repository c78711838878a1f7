"""Who holds the pages of page group 1 and their places in memory, counted from the holders."""

import numpy as np

from helios_dod.limits import NO_ROW
from helios_dod.terms import COPY_WINDOW_OFFLOAD, COPY_WINDOW_RESTORE, QUEUE_MEMORY

Move = tuple[bool, int, int, int]  # (leaves, entry, page, place)


def window_copies(copies: np.void) -> list[Move]:
    """Each copy of group 1 in flight."""
    found = []
    for number in range(int(copies["first"][QUEUE_MEMORY]), int(copies["end"][QUEUE_MEMORY])):
        kind, entry, source, target = (
            int(copies[name][QUEUE_MEMORY, number % copies["kind"].shape[1]])
            for name in ("kind", "page", "source", "target"))
        if kind in (COPY_WINDOW_OFFLOAD, COPY_WINDOW_RESTORE):
            leaves = kind == COPY_WINDOW_OFFLOAD
            page, place = (source, target) if leaves else (target, source)
            found.append((leaves, entry, page, place))
    return found


def count_windows(
    w: np.void,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """(holders of each page; places that are free or held; pages that each snapshot lacks; copies
    in flight, and of them those that leave)."""
    table, s, shots = w["windows"], w["slots"], w["snapshots"]
    moves = window_copies(w["copies"])
    rows, ring = int(table["page_count"]), shots["window_pages"].shape[1]
    held, away = np.zeros(rows, int), np.zeros(len(shots["window_away"]), int)
    places = table["free"][rows : rows + int(table["place_free_count"])].tolist()
    for slot in s["live"][: int(s["live_count"])]:
        for index in range(int(s["window_first"][slot]), int(s["window_end"][slot])):
            held[s["window_pages"][slot, index % ring]] += 1
    coming = set()
    for leaves, entry, page, place in moves:
        held[page] += 1
        if int(shots["window_places"].flat[entry]) != place:
            places.append(place)  # its snapshot has gone
        elif not leaves:
            coming.add(entry)
    for row in range(len(away)):
        for index in range(int(shots["window_first"][row]), int(shots["window_end"][row])):
            k = index % ring
            page, place = int(shots["window_pages"][row, k]), int(shots["window_places"][row, k])
            away[row] += page == NO_ROW or row * ring + k in coming
            if page != NO_ROW:
                held[page] += 1
            if page == NO_ROW or place != NO_ROW:
                places.append(place)
    leaving = sum(leaves for leaves, *_ in moves)
    return held, np.array(places, int), away, (len(moves), leaving)

"""Pages of page group 1: histories that only a window of tokens sees."""

import numpy as np

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, scalar, table
from helios_dod.system import kernel
from helios_dod.tables.copies import begin_copy
from helios_dod.terms import (
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
    QUEUE_DISK,
    QUEUE_MEMORY,
)


@table(rows="pages_max")
class Windows:
    """One row per page of the group. `references` counts the slots, snapshots and copies in flight
    that hold it; a page of two holders is complete, so that nothing writes it. They are found by
    snapshots only.

    A slot holds the pages window_first .. window_end - 1 of its text, in a ring, and lets go of
    those that no later token sees. Invariant: free_count + referenced pages = page_count. There
    are enough for every slot beside what snapshots hold (see runtime/selection.py), so a slot never
    waits for one once snapshots are evicted.

    Pages that only snapshots hold leave for host memory, and from there for disk, those of each
    snapshot for themselves: entry k of its ring has a page of the device, or a place in a tier, or
    both while a copy from one to the other is in flight. The copy holds the page too; the place is
    the entry's, or the copy's once the snapshot has gone. On its way from memory to disk an entry
    is SINKING: it has its place in memory, and both places are the copy's. A slot takes the pages
    of a snapshot when all of them are on the device. Copies in flight from or to the device are at
    most as many as the pages beside those of slots, which do not wait for those either.

    Places of memory are 0 .. place_count - 1, those of disk stand behind them; copies count those
    of each tier from 0.
    """

    references: i32
    free: scalar(i32["pages_max"])  # stacks of free pages, behind page_count of free places in
    # memory, and behind place_count more of those on disk
    free_count: scalar(i32)
    page_count: scalar(i32)
    place_count: scalar(i32)  # pages that host memory can hold; 0: none leaves
    place_free_count: scalar(i32)
    stored_count: scalar(i32)  # pages that the disk can hold
    stored_free_count: scalar(i32)
    moving_count: scalar(i32)  # copies in flight from or to the device
    leaving_count: scalar(i32)  # of them, those to memory
    sinking_count: scalar(i32)  # copies in flight from memory to disk
    moving_max: scalar(i32)  # pages beside those of slots
    needed_count: scalar(i32)  # pages that running slots may take in this tick


@kernel
def hold_window_page(world, page):
    """One more holder."""
    assert world[0].windows.references[page] > 0
    world[0].windows.references[page] += 1


@kernel
def release_window_page(world, page):
    """One holder less; without any the page is free."""
    windows = world[0].windows
    windows.references[page] -= 1
    assert windows.references[page] >= 0
    if windows.references[page] == 0:
        windows.free[windows.free_count] = page
        windows.free_count += 1


@kernel
def take_window_page(world):
    """A free page with one holder; the caller knows that there is one."""
    windows = world[0].windows
    assert windows.free_count > 0
    windows.free_count -= 1
    page = windows.free[windows.free_count]
    assert windows.references[page] == 0
    windows.references[page] = 1
    return page


@kernel
def take_window_place(world):
    """A free place in memory, or NO_ROW."""
    windows = world[0].windows
    if windows.place_free_count == 0:
        return NO_ROW
    windows.place_free_count -= 1
    return windows.free[windows.page_count + windows.place_free_count]


@kernel
def take_stored_place(world):
    """A free place on disk, or NO_ROW."""
    windows = world[0].windows
    if windows.stored_free_count == 0:
        return NO_ROW
    windows.stored_free_count -= 1
    return windows.free[windows.page_count + windows.place_count + windows.stored_free_count]


@kernel
def give_window_place(world, place):
    """Gives a place back to its tier."""
    windows = world[0].windows
    assert 0 <= place < windows.place_count + windows.stored_count
    if place < windows.place_count:
        assert windows.place_free_count < windows.place_count
        windows.free[windows.page_count + windows.place_free_count] = place
        windows.place_free_count += 1
        return
    assert windows.stored_free_count < windows.stored_count
    windows.free[windows.page_count + windows.place_count + windows.stored_free_count] = place
    windows.stored_free_count += 1


@kernel
def first_seen(world, endpoint):
    """The first page that a token at `endpoint` or behind it sees."""
    settings = world[0].settings
    return max(endpoint - settings.window_tokens + 1, 0) // settings.page_tokens


@kernel
def grow_window(world, slot, endpoint):
    """Gives the slot pages up to an endpoint."""
    slots = world[0].slots
    ring = slots.window_pages.shape[1]
    for index in range(slots.window_end[slot], -(-endpoint // world[0].settings.page_tokens)):
        assert index - slots.window_first[slot] < ring
        slots.window_pages[slot, index % ring] = take_window_page(world)
        slots.window_end[slot] = index + 1


@kernel
def cut_window(world, slot, first):
    """Lets go of the slot's pages before page `first` of its text."""
    slots = world[0].slots
    ring = slots.window_pages.shape[1]
    for index in range(slots.window_first[slot], min(first, slots.window_end[slot])):
        release_window_page(world, slots.window_pages[slot, index % ring])
        slots.window_pages[slot, index % ring] = NO_ROW
        slots.window_first[slot] = index + 1


@kernel
def clear_window(world, slot):
    """Lets go of all that a slot holds."""
    slots = world[0].slots
    cut_window(world, slot, slots.window_end[slot])
    slots.window_first[slot] = 0
    slots.window_end[slot] = 0
    slots.window_uploaded[slot] = 0


@kernel
def keep_window(world, slot, snapshot, endpoint):
    """A snapshot of the slot holds the complete pages that tokens behind its endpoint see."""
    slots, snapshots = world[0].slots, world[0].snapshots
    ring = slots.window_pages.shape[1]
    first, end = first_seen(world, endpoint), endpoint // world[0].settings.page_tokens
    assert slots.window_first[slot] <= first and end <= slots.window_end[slot]
    for index in range(first, end):
        page = slots.window_pages[slot, index % ring]
        hold_window_page(world, page)
        snapshots.window_pages[snapshot, index % ring] = page
    snapshots.window_first[snapshot] = first
    snapshots.window_end[snapshot] = max(end, first)


@kernel
def restore_window(world, slot, snapshot):
    """The slot holds what a snapshot holds, which is all on the device."""
    slots, snapshots = world[0].slots, world[0].snapshots
    assert snapshots.window_away[snapshot] == 0
    ring = slots.window_pages.shape[1]
    for index in range(snapshots.window_first[snapshot], snapshots.window_end[snapshot]):
        page = snapshots.window_pages[snapshot, index % ring]
        hold_window_page(world, page)
        slots.window_pages[slot, index % ring] = page
    slots.window_first[slot] = snapshots.window_first[snapshot]
    slots.window_end[slot] = snapshots.window_end[snapshot]
    slots.window_uploaded[slot] = snapshots.window_first[snapshot]


@kernel
def drop_window(world, snapshot):
    """A snapshot that is evicted holds nothing any more. `settle` gives back the places of copies
    in flight."""
    snapshots = world[0].snapshots
    ring = snapshots.window_pages.shape[1]
    for index in range(snapshots.window_first[snapshot], snapshots.window_end[snapshot]):
        k = index % ring
        page, place = snapshots.window_pages[snapshot, k], snapshots.window_places[snapshot, k]
        if page != NO_ROW:
            release_window_page(world, page)
        elif snapshots.window_sinking[snapshot, k] == 0:
            give_window_place(world, place)
        snapshots.window_pages[snapshot, k] = NO_ROW
        snapshots.window_places[snapshot, k] = NO_ROW
        snapshots.window_sinking[snapshot, k] = 0
    snapshots.window_first[snapshot] = 0
    snapshots.window_end[snapshot] = 0
    snapshots.window_away[snapshot] = 0
    snapshots.window_stored[snapshot] = 0
    snapshots.window_lost[snapshot] = 0


@kernel
def window_ns(world, snapshot):
    """What it takes to bring back what a snapshot's window lacks, of each tier as was measured; 0
    while that is unknown."""
    tiers, snapshots = world[0].tiers, world[0].snapshots
    stored = np.int64(snapshots.window_stored[snapshot])
    total, counts = 0, (snapshots.window_away[snapshot] - stored, stored)
    for tier in range(len(counts)):
        total += counts[tier] * (
            tiers.window_restored_ns[tier] // max(tiers.window_restored_count[tier], 1))
    return total


@kernel
def is_kept(world, snapshot, k):
    """Does entry k of a snapshot's ring have a page on the device that is not leaving?"""
    snapshots = world[0].snapshots
    return (snapshots.window_pages[snapshot, k] != NO_ROW
            and snapshots.window_places[snapshot, k] == NO_ROW)


@kernel
def begin_leaving(world, snapshot, k, place):
    """Starts the copy of a kept entry to a place; the caller has checked that there is room."""
    windows, snapshots = world[0].windows, world[0].snapshots
    page = snapshots.window_pages[snapshot, k]
    hold_window_page(world, page)  # by the copy
    snapshots.window_places[snapshot, k] = place
    windows.moving_count += 1
    windows.leaving_count += 1
    begin_copy(world, QUEUE_MEMORY, COPY_WINDOW_OFFLOAD,
               snapshot * snapshots.window_pages.shape[1] + k, page, place)


@kernel
def lies_in_memory(world, snapshot, k):
    """Does entry k of a snapshot's ring have a place in memory alone, and no copy in flight?"""
    snapshots = world[0].snapshots
    return (snapshots.window_pages[snapshot, k] == NO_ROW
            and snapshots.window_places[snapshot, k] < world[0].windows.place_count
            and snapshots.window_sinking[snapshot, k] == 0)


@kernel
def begin_sinking(world, snapshot, k, place):
    """Starts the copy of an entry that lies in memory to a place on disk; the caller has checked
    that there is room."""
    windows, snapshots = world[0].windows, world[0].snapshots
    assert place >= windows.place_count
    snapshots.window_sinking[snapshot, k] = 1
    windows.sinking_count += 1
    begin_copy(world, QUEUE_DISK, COPY_WINDOW_SINK,
               snapshot * snapshots.window_pages.shape[1] + k,
               snapshots.window_places[snapshot, k], place - windows.place_count)


@kernel
def begin_return(world, snapshot, k, queue):
    """Starts the copy of an entry that lies in a tier; the caller has checked that there is room in
    the tier's queue."""
    windows, snapshots = world[0].windows, world[0].snapshots
    page, place = take_window_page(world), snapshots.window_places[snapshot, k]  # by the copy
    hold_window_page(world, page)
    snapshots.window_pages[snapshot, k] = page
    windows.moving_count += 1
    stored = queue == QUEUE_DISK
    begin_copy(world, queue, COPY_WINDOW_FETCH if stored else COPY_WINDOW_RESTORE,
               snapshot * snapshots.window_pages.shape[1] + k,
               place - windows.place_count if stored else place, page)

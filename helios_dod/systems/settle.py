"""settle: copies of pages that ended -> pages in their new places, or back where they were.

A failed copy loses what it copied: the content is never found again. A page that was taken up
again, or computed again, while its copy was in flight stays where it is. So does a page of a
window whose snapshot is read; a snapshot without readers goes with a page that failed."""

import numpy as np

from helios_dod.limits import COPY_QUEUES, NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.pages import (
    child_comes,
    child_goes,
    give_device_place,
    resident,
    rest_page,
)
from helios_dod.tables.snapshots import evict_snapshot
from helios_dod.tables.tiers import give_place, observe_copy
from helios_dod.tables.windows import give_window_place, release_window_page
from helios_dod.terms import (
    COPY_FETCH,
    COPY_OFFLOAD,
    COPY_RESTORE,
    COPY_SINK,
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
    PAGE_FETCHING,
    PAGE_IMMUTABLE,
    PAGE_LEAVING,
    PAGE_OFFLOADED,
    PAGE_RESTORING,
    PAGE_SINKING,
    PAGE_STORED,
    QUEUE_DISK,
    TIER_DISK,
    TIER_MEMORY,
)


@kernel
def lose(world, page):
    """What a page held is not to be used."""
    world[0].pages.lost[page] = 1
    world[0].pages.epoch += 1


@kernel
def settle_offload(world, page, source, target, failed):
    """Device -> memory: unless someone needs the page again, its place on the device is free."""
    pages = world[0].pages
    assert pages.state[page] == PAGE_LEAVING and pages.place[page] == source
    world[0].copies.leaving_count -= 1
    if pages.references[page] > 0 or pages.children[page] > 0:
        give_place(world, TIER_MEMORY, target)
        child_comes(world, page)
        pages.state[page] = PAGE_IMMUTABLE
        if pages.references[page] == 0:
            pages.idle_count -= 1
            rest_page(world, page)
        return
    give_device_place(world, source)
    pages.idle_count -= 1
    pages.place[page] = target
    pages.state[page] = PAGE_OFFLOADED
    if failed:
        lose(world, page)
    else:
        world[0].counters.pages_offloaded += 1
    rest_page(world, page)


@kernel
def settle_restore(world, page, tier, source, target, failed):
    """A tier -> device: readable, if its parent is; else back in its tier."""
    pages = world[0].pages
    moving = PAGE_RESTORING if tier == TIER_MEMORY else PAGE_FETCHING
    if pages.state[page] != moving or pages.place[page] != target:
        give_device_place(world, target)  # it was computed meanwhile
        give_place(world, tier, source)
        return
    parent = pages.parent[page]
    if failed or (parent != NO_ROW and not resident(pages.state[parent])):
        give_device_place(world, target)
        pages.state[page] = PAGE_OFFLOADED if tier == TIER_MEMORY else PAGE_STORED
        pages.place[page] = source
        child_goes(world, page)
        if failed:
            lose(world, page)
    else:
        give_place(world, tier, source)
        pages.state[page] = PAGE_IMMUTABLE
        if tier == TIER_MEMORY:
            world[0].counters.pages_restored_memory += 1
        else:
            world[0].counters.pages_restored_disk += 1
    if pages.references[page] == 0:
        rest_page(world, page)


@kernel
def settle_sink(world, page, source, target, failed):
    """Memory -> disk, unless someone needs the page again."""
    pages = world[0].pages
    world[0].copies.sinking_count -= 1
    if pages.state[page] != PAGE_SINKING or pages.place[page] != source:
        give_place(world, TIER_MEMORY, source)  # it was computed meanwhile
        give_place(world, TIER_DISK, target)
        return
    if pages.references[page] > 0:
        give_place(world, TIER_DISK, target)
        pages.state[page] = PAGE_OFFLOADED
        return
    give_place(world, TIER_MEMORY, source)
    pages.place[page] = target
    pages.state[page] = PAGE_STORED
    if failed:
        lose(world, page)
    else:
        world[0].counters.pages_stored += 1
    rest_page(world, page)


@kernel
def settle_window_offload(world, entry, source, target, failed):
    """Device -> memory: unless its snapshot is read or has gone, the page is free."""
    windows, snapshots = world[0].windows, world[0].snapshots
    row, k = divmod(entry, snapshots.window_pages.shape[1])
    windows.moving_count -= 1
    windows.leaving_count -= 1
    release_window_page(world, source)
    if snapshots.window_places[row, k] != target:
        give_window_place(world, target)
    elif failed or snapshots.readers[row] > 0:
        snapshots.window_places[row, k] = NO_ROW
        give_window_place(world, target)
        if snapshots.readers[row] == 0:
            evict_snapshot(world, row)
    else:
        snapshots.window_pages[row, k] = NO_ROW
        snapshots.window_away[row] += 1
        release_window_page(world, source)
        world[0].counters.window_pages_offloaded += 1


@kernel
def settle_window_restore(world, entry, source, target, failed):
    """A tier -> device: readable, unless its snapshot has gone. source: a place as windows.py
    numbers them."""
    windows, snapshots = world[0].windows, world[0].snapshots
    row, k = divmod(entry, snapshots.window_pages.shape[1])
    windows.moving_count -= 1
    release_window_page(world, target)
    if snapshots.window_places[row, k] != source:
        give_window_place(world, source)
    elif failed:
        snapshots.window_pages[row, k] = NO_ROW
        release_window_page(world, target)
        snapshots.window_lost[row] = 1
        if snapshots.readers[row] == 0:
            evict_snapshot(world, row)
    else:
        snapshots.window_places[row, k] = NO_ROW
        snapshots.window_away[row] -= 1
        give_window_place(world, source)
        if source >= windows.place_count:
            snapshots.window_stored[row] -= 1
            world[0].counters.window_pages_fetched += 1
        else:
            world[0].counters.window_pages_restored += 1


@kernel
def settle_window_sink(world, entry, source, target, failed):
    """Memory -> disk, unless its snapshot is read or has gone. target: a place as windows.py
    numbers them."""
    windows, snapshots = world[0].windows, world[0].snapshots
    row, k = divmod(entry, snapshots.window_pages.shape[1])
    windows.sinking_count -= 1
    if snapshots.window_places[row, k] != source:
        give_window_place(world, source)
        give_window_place(world, target)
        return
    snapshots.window_sinking[row, k] = 0
    if failed or snapshots.readers[row] > 0:
        give_window_place(world, target)
        if snapshots.readers[row] == 0:
            evict_snapshot(world, row)
        return
    give_window_place(world, source)
    snapshots.window_places[row, k] = target
    snapshots.window_stored[row] += 1
    world[0].counters.window_pages_stored += 1


@kernel
def settle_copy(world, queue, k):
    """One command."""
    copies = world[0].copies
    kind, page, failed = copies.kind[queue, k], copies.page[queue, k], copies.failed[queue, k] != 0
    source, target = copies.source[queue, k], copies.target[queue, k]
    world[0].counters.copies_failed += failed
    if kind == COPY_OFFLOAD:
        settle_offload(world, page, source, target, failed)
    elif kind == COPY_SINK:
        settle_sink(world, page, source, target, failed)
    elif kind == COPY_WINDOW_OFFLOAD:
        settle_window_offload(world, page, source, target, failed)
    elif kind == COPY_WINDOW_RESTORE:
        settle_window_restore(world, page, source, target, failed)
    elif kind == COPY_WINDOW_SINK:
        settle_window_sink(
            world, page, source, target + world[0].windows.place_count, failed)
    elif kind == COPY_WINDOW_FETCH:
        settle_window_restore(
            world, page, source + world[0].windows.place_count, target, failed)
    else:
        assert kind in (COPY_RESTORE, COPY_FETCH)
        tier = TIER_MEMORY if kind == COPY_RESTORE else TIER_DISK
        settle_restore(world, page, tier, source, target, failed)


@kernel
def moved_bytes(world, kind):
    """Bytes that a copy moves, at least 1."""
    settings = world[0].settings
    size = settings.window_page_bytes if kind >= COPY_WINDOW_OFFLOAD else settings.page_bytes
    return max(size, 1)


@kernel
def observe(world, queue, first, end):
    """What some commands took: of their time each has a part like that of the bytes it moved."""
    copies, tiers, now = world[0].copies, world[0].tiers, world[0].clock.now_ns
    began = max(copies.issued_ns[queue, first % copies.kind.shape[1]], copies.settled_ns[queue])
    total, tier = np.int64(0), TIER_DISK if queue == QUEUE_DISK else TIER_MEMORY
    for number in range(first, end):
        total += moved_bytes(world, copies.kind[queue, number % copies.kind.shape[1]])
    for number in range(first, end):
        kind = copies.kind[queue, number % copies.kind.shape[1]]
        share = (now - began) * moved_bytes(world, kind) // total
        if kind in (COPY_RESTORE, COPY_FETCH):
            observe_copy(tiers.restored_ns, tiers.restored_count, tier, share)
        elif kind in (COPY_OFFLOAD, COPY_SINK):
            observe_copy(tiers.stored_ns, tiers.stored_count, tier, share)
        elif kind in (COPY_WINDOW_RESTORE, COPY_WINDOW_FETCH):
            observe_copy(tiers.window_restored_ns, tiers.window_restored_count, tier, share)
        else:
            observe_copy(tiers.window_stored_ns, tiers.window_stored_count, tier, share)
    copies.settled_ns[queue] = now


@system(
    reads="clock.now_ns copies.* settings.*",
    writes="copies.first copies.settled_ns copies.leaving_count copies.sinking_count "
           "tiers.free_count tiers.oldest tiers.newest tiers.restored_ns tiers.restored_count "
           "tiers.stored_ns tiers.stored_count tiers.window_restored_ns "
           "tiers.window_restored_count tiers.window_stored_ns tiers.window_stored_count "
           "pages.* prefixes.entry snapshots.* windows.* counters.snapshots_evicted "
           "counters.window_pages_offloaded counters.window_pages_restored "
           "counters.window_pages_stored counters.window_pages_fetched "
           "counters.pages_offloaded counters.pages_stored counters.pages_restored_memory "
           "counters.pages_restored_disk counters.copies_failed",
)
def settle(world):
    """Every command that the executor reports as ended, in order."""
    copies = world[0].copies
    for queue in range(COPY_QUEUES):
        first, end = copies.first[queue], copies.finished[queue]
        if first == end:
            continue
        assert first < end and end <= copies.end[queue], "copies: more ended than began"
        observe(world, queue, first, end)
        for number in range(first, end):
            settle_copy(world, queue, number % copies.kind.shape[1])
        copies.first[queue] = end

"""evict: free pages for the next frame, least recently released content first.

Behind a device without tiers content is dropped. Pages and snapshots stand in one order of last use
there: a snapshot keeps the pages of its text on the device and goes when it is the oldest of both;
then its pages are the next.

With host memory pages are copied there, and from there to disk; a place is free when its copy has
ended, so some are kept free ahead. Snapshots stay while their pages go and come, until those are
dropped, and so do their windows: pages of group 1 that only snapshots hold go to host memory and
from there to disk, from where they come back. A slot never waits for such a page: where copies are
too slow the least recently used snapshot goes."""

from helios_dod.limits import NO_ROW, SCORES_MAX
from helios_dod.system import kernel, system
from helios_dod.systems.lanes import remaining, scores_due
from helios_dod.tables.copies import begin_copy, copy_room
from helios_dod.tables.pages import (
    child_goes,
    drop_page,
    evict_oldest,
    give_device_place,
    pages_of,
    rest_page,
    unlist_evictable,
)
from helios_dod.tables.requests import scores_left
from helios_dod.tables.snapshots import (
    evict_behind,
    evict_snapshot,
    oldest_behind_page,
    snapshots_behind,
)
from helios_dod.tables.tiers import cheaper, list_page, take_place, tiered, unlist_page
from helios_dod.tables.windows import (
    begin_leaving,
    begin_sinking,
    is_kept,
    lies_in_memory,
    take_stored_place,
    take_window_place,
)
from helios_dod.terms import (
    COPY_OFFLOAD,
    COPY_SINK,
    PAGE_LEAVING,
    PAGE_SINKING,
    PAGE_STORED,
    QUEUE_DISK,
    QUEUE_MEMORY,
    SLOT_DECODE,
    SLOT_PREFILL,
    SLOT_RESTORING,
    TIER_DISK,
    TIER_MEMORY,
)

AHEAD_SHARE = 16  # at most this part of the places of the device or of memory is kept free ahead
TRIES = 4  # pages that are looked at for one to drop


@kernel
def next_endpoint(world, slot, tokens, budget):
    """(endpoint of a slot's text behind the next frame, prompt tokens that others may still take in
    it): by `tokens` further where it decodes, a chunk where it has a prompt."""
    slots = world[0].slots
    endpoint, chunk = slots.scheduled[slot], 0
    if slots.state[slot] == SLOT_DECODE:
        endpoint += max(min(tokens, remaining(world, slot)), 0)
    elif slots.state[slot] == SLOT_PREFILL:
        chunk = min(slots.prefill_end[slot] - endpoint, budget)
    return endpoint + chunk, budget - chunk


@kernel
def demand(world, tokens):
    """Pages that the next frame takes if every live slot goes on, by `tokens` where it decodes, and
    restores."""
    slots, total, budget = world[0].slots, 0, world[0].settings.prefill_tokens
    for i in range(slots.live_count):
        slot = slots.live[i]
        endpoint, budget = next_endpoint(world, slot, tokens, budget)
        if slots.state[slot] == SLOT_RESTORING:
            total += slots.restoring[slot]
        total += max(pages_of(world, endpoint) - slots.page_count[slot], 0)
    return total


@kernel
def drop_first(world, tier):
    """Drops the least recently released page of a tier that no page is behind, of the first TRIES,
    and the snapshots that are; False without one.

    One that pages are behind goes to the end of the list: perhaps behind its own parent, which then
    goes there when its turn comes."""
    tiers, pages = world[0].tiers, world[0].pages
    for _ in range(TRIES):
        page = tiers.oldest[tier]
        if page == NO_ROW:
            return False
        unlist_page(world, tier, page)
        if pages.behind[page] + pages.children[page] == snapshots_behind(world, page):
            evict_behind(world, page)
            drop_page(world, page)
            if tier == TIER_MEMORY:
                world[0].counters.pages_dropped_memory += 1
            else:
                world[0].counters.pages_dropped_disk += 1
            return True
        list_page(world, tier, page)
    return False


@kernel
def disk_place(world):
    """A place on disk, or NO_ROW."""
    place = take_place(world, TIER_DISK)
    if place == NO_ROW and drop_first(world, TIER_DISK):
        place = take_place(world, TIER_DISK)
    return place


@kernel
def hollow(world, page, place):
    """Puts the row of a page, and nothing that it held, on disk: it has pages behind it there.
    Snapshots behind it are worth nothing."""
    pages = world[0].pages
    evict_behind(world, page)
    pages.place[page] = place
    pages.state[page] = PAGE_STORED
    pages.lost[page] = 1
    pages.epoch += 1
    rest_page(world, page)


@kernel
def disk_is_near(world, free_count, sinking_count, stored_ns, stored_count):
    """Shall a full memory wait for copies to disk, by what those to each tier took? Not for a disk
    that is slower than computing."""
    return (free_count == 0 and sinking_count > 0
            and cheaper(world, stored_ns[TIER_DISK], stored_count[TIER_DISK]))


@kernel
def memory_place(world):
    """A place in memory, or NO_ROW. A full memory drops its least recently released page."""
    tiers, pages = world[0].tiers, world[0].pages
    place = take_place(world, TIER_MEMORY)
    page = tiers.oldest[TIER_MEMORY]
    if place != NO_ROW or page == NO_ROW:
        return place
    below = NO_ROW
    if pages.behind[page] > snapshots_behind(world, page):
        below = disk_place(world)
    if below == NO_ROW:
        return take_place(world, TIER_MEMORY) if drop_first(world, TIER_MEMORY) else NO_ROW
    unlist_page(world, TIER_MEMORY, page)
    place = pages.place[page]
    hollow(world, page, below)
    world[0].counters.pages_dropped_memory += 1
    return place


@kernel
def drop_oldest(world):
    """Drops what the least recently released page of the device holds, though memory has no room.
    Where pages on disk are behind it, its row stays there before them. False if it has to wait."""
    pages, page = world[0].pages, world[0].pages.oldest
    if world[0].copies.leaving_count > 0:
        return False  # what is behind it may be in that copy
    if pages.behind[page] == snapshots_behind(world, page):
        evict_behind(world, page)
        evict_oldest(world)
        return True
    place = disk_place(world)
    if place == NO_ROW:
        return False
    unlist_evictable(world, page)
    child_goes(world, page)
    give_device_place(world, pages.place[page])
    pages.idle_count -= 1
    hollow(world, page, place)
    world[0].counters.pages_evicted += 1
    return True


@kernel
def offload_oldest(world):
    """Starts the copy of the least recently released page of the device to memory, or drops it
    where memory is full of what is in use. False if it has to wait for a copy to end."""
    pages, page = world[0].pages, world[0].pages.oldest
    tiers = world[0].tiers
    if copy_room(world, QUEUE_MEMORY) == 0 or disk_is_near(
            world, tiers.free_count[TIER_MEMORY], world[0].copies.sinking_count,
            tiers.stored_ns, tiers.stored_count):
        return False
    place = memory_place(world)
    if place == NO_ROW:
        return drop_oldest(world)
    unlist_evictable(world, page)
    pages.state[page] = PAGE_LEAVING
    child_goes(world, page)
    begin_copy(world, QUEUE_MEMORY, COPY_OFFLOAD, page, pages.place[page], place)
    return True


@kernel
def sink_oldest(world):
    """Starts the copy of the least recently released page of memory to disk; False if none can."""
    tiers, pages = world[0].tiers, world[0].pages
    page = tiers.oldest[TIER_MEMORY]
    if page == NO_ROW or copy_room(world, QUEUE_DISK) == 0:
        return False
    place = disk_place(world)
    if place == NO_ROW:
        return False
    unlist_page(world, TIER_MEMORY, page)
    pages.state[page] = PAGE_SINKING
    begin_copy(world, QUEUE_DISK, COPY_SINK, page, pages.place[page], place)
    return True


@kernel
def ahead(places, wanted):
    """Places to keep free ahead, of so many."""
    return min(wanted, max(places // AHEAD_SHARE, 1))


@kernel
def evict_older_snapshots(world):
    """Frees the snapshots that are older than every page that could go, which lets pages go."""
    pages, snapshots = world[0].pages, world[0].snapshots
    for _ in range(snapshots.snapshot_count):
        row = oldest_behind_page(world)
        if row == NO_ROW or (
                pages.oldest != NO_ROW and pages.age[pages.oldest] < snapshots.age[row]):
            return
        evict_snapshot(world, row)


@kernel
def may_stand_back(world, slot):
    """May prompts behind the slot's go first, while it waits for a mask or for its scores?"""
    slots = world[0].slots
    return slots.state[slot] == SLOT_PREFILL and (
        slots.grammar[slot] != NO_ROW or scores_left(world, slots.request[slot]) > 0)


@kernel
def window_demand(world, tokens):
    """(pages of group 1 that the next frame takes at most, since lanes are not composed by room for
    them as by that of others; pages that snapshots lack which slots wait for).

    That frame is one of prompts whose scores are due, any of them, or one of all others."""
    slots, snapshots, settings = world[0].slots, world[0].snapshots, world[0].settings
    total, scored, away, budget = 0, 0, 0, settings.prefill_tokens
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] == SLOT_PREFILL and scores_due(world, slot) > 0:
            endpoint = slots.scheduled[slot] + min(scores_due(world, slot), SCORES_MAX)
            scored += max(-(-endpoint // settings.page_tokens) - slots.window_end[slot], 0)
            continue
        endpoint, left = next_endpoint(world, slot, tokens, budget)
        if not may_stand_back(world, slot):
            budget = left
        end = slots.window_end[slot]
        if slots.state[slot] == SLOT_RESTORING:
            end = snapshots.window_end[slots.restore[slot]]
            away += snapshots.window_away[slots.restore[slot]]
        total += max(-(-endpoint // settings.page_tokens) - end, 0)
    return max(total, scored), away


@kernel
def keeps_pages(world, snapshot):
    """Does a snapshot have pages on the device that are not leaving?"""
    snapshots = world[0].snapshots
    first, end = snapshots.window_first[snapshot], snapshots.window_end[snapshot]
    if snapshots.window_away[snapshot] == end - first:
        return False
    for index in range(first, end):
        if is_kept(world, snapshot, index % snapshots.window_pages.shape[1]):
            return True
    return False


@kernel
def window_place(world, snapshot):
    """A place in memory for a page of a snapshot, or NO_ROW. A full memory drops the least recently
    used snapshot that has pages there, if that is an older one."""
    snapshots = world[0].snapshots
    row = snapshots.oldest
    while world[0].windows.place_free_count == 0 and row != snapshot:
        newer = snapshots.newer[row]
        if snapshots.window_away[row] > snapshots.window_stored[row]:
            evict_snapshot(world, row)
        row = newer
    return take_window_place(world)


@kernel
def stored_place(world, snapshot):
    """A place on disk for a page of a snapshot, or NO_ROW. A full disk drops the least recently
    used snapshot that has pages there, if that is an older one."""
    snapshots = world[0].snapshots
    row = snapshots.oldest
    while world[0].windows.stored_free_count == 0 and row != snapshot:
        newer = snapshots.newer[row]
        if snapshots.window_stored[row] > 0:
            evict_snapshot(world, row)
        row = newer
    return take_stored_place(world)


@kernel
def sink_window(world, snapshot, kept):
    """Starts copies of what a snapshot has in memory to disk, until `kept` places of memory are
    free or about to be; False if no more are to start, or none can."""
    snapshots, windows = world[0].snapshots, world[0].windows
    for index in range(snapshots.window_first[snapshot], snapshots.window_end[snapshot]):
        k = index % snapshots.window_pages.shape[1]
        if not lies_in_memory(world, snapshot, k):
            continue
        if (windows.place_free_count + windows.sinking_count >= kept
                or windows.sinking_count >= world[0].copies.kind.shape[1] // 2
                or copy_room(world, QUEUE_DISK) == 0):
            return False
        place = stored_place(world, snapshot)
        if place == NO_ROW:
            return False
        begin_sinking(world, snapshot, k, place)
    return True


@kernel
def sink_windows(world, kept):
    """Starts the copies to disk that `sink_window` says, of the least recently used snapshots
    first."""
    snapshots, windows = world[0].snapshots, world[0].windows
    row = snapshots.oldest
    while windows.place_free_count + windows.sinking_count < kept and row != NO_ROW:
        newer = snapshots.newer[row]
        if (snapshots.window_away[row] > snapshots.window_stored[row]
                and not sink_window(world, row, kept)):
            return
        row = newer


@kernel
def offload_window(world, snapshot, most):
    """Starts the copies of a snapshot's pages to memory, `most` of all that leave at once, or frees
    it where memory is full of what is newer. False if it has to wait for a copy to end."""
    snapshots, windows, tiers = world[0].snapshots, world[0].windows, world[0].tiers
    for index in range(snapshots.window_first[snapshot], snapshots.window_end[snapshot]):
        k = index % snapshots.window_pages.shape[1]
        if not is_kept(world, snapshot, k):
            continue
        if (copy_room(world, QUEUE_MEMORY) == 0 or windows.leaving_count >= most
                or windows.moving_count >= windows.moving_max):
            return False
        if disk_is_near(world, windows.place_free_count, windows.sinking_count,
                        tiers.window_stored_ns, tiers.window_stored_count):
            return False
        place = window_place(world, snapshot)
        if place == NO_ROW:
            evict_snapshot(world, snapshot)
            return True
        begin_leaving(world, snapshot, k, place)
    return True


@kernel
def evict_windows(world):
    """Frees the least recently used snapshots until the next frame has its pages of group 1. Of
    those behind them pages leave, for what slots wait for and some ahead; so they do from memory
    to disk."""
    snapshots, windows, settings = world[0].snapshots, world[0].windows, world[0].settings
    needed, away = window_demand(world, world[0].programs.round_width)
    windows.needed_count = needed
    row = snapshots.oldest
    while windows.free_count < needed and row != NO_ROW:
        newer = snapshots.newer[row]
        if keeps_pages(world, row):
            evict_snapshot(world, row)
        row = newer
    if windows.place_count == 0:
        return
    most = max(windows.moving_max // 2, 1)
    growing = world[0].slots.live_count - (-settings.prefill_tokens // settings.page_tokens)
    needed += away + min(growing, most)
    if windows.stored_count > 0:
        kept = min(max(needed - windows.free_count - windows.leaving_count, 0), most)
        kept += ahead(windows.place_count, world[0].copies.kind.shape[1] // 2)
        sink_windows(world, kept)
        row = snapshots.oldest
    while windows.free_count + windows.leaving_count < needed and row != NO_ROW:
        newer = snapshots.newer[row]
        if keeps_pages(world, row) and not offload_window(world, row, most):
            return
        row = newer


@system(
    reads="settings.* slots.* requests.* programs.round_width clock.now_ns",
    writes="pages.* prefixes.* snapshots.* windows.* tiers.free_count tiers.oldest tiers.newest "
           "copies.* counters.pages_evicted counters.pages_dropped_memory "
           "counters.pages_dropped_disk counters.snapshots_evicted",
)
def evict(world):
    """Stops when nothing is idle; `preempt` takes over then."""
    pages, tiers, copies = world[0].pages, world[0].tiers, world[0].copies
    if world[0].settings.window_tokens > 0:
        evict_windows(world)
    needed = demand(world, world[0].programs.round_width)
    if not tiered(world):
        for _ in range(needed - pages.free_count):
            if world[0].settings.stateful == 1:
                evict_older_snapshots(world)
            if pages.oldest == NO_ROW:
                return
            evict_oldest(world)
        return
    needed += ahead(pages.page_count, world[0].slots.live_count)
    leaving = max(needed - pages.free_count - copies.leaving_count, 0)
    if tiers.place_count[TIER_DISK] > 0:
        kept = leaving + ahead(tiers.place_count[TIER_MEMORY], copies.kind.shape[1] // 2)
        for _ in range(kept - tiers.free_count[TIER_MEMORY] - copies.sinking_count):
            if not sink_oldest(world):
                break
    for _ in range(leaving):
        if pages.oldest == NO_ROW or not offload_oldest(world):
            return

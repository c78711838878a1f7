"""restore: pages of admitted requests that lie in a tier -> device, in the order of their text;
then those of their windows."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.systems.preempt import send_back
from helios_dod.tables.copies import begin_copy, copy_room
from helios_dod.tables.pages import (
    child_comes,
    dereference_page,
    on_device,
    resident,
    take_device_place,
)
from helios_dod.tables.windows import begin_return, restore_window
from helios_dod.terms import (
    COPY_FETCH,
    COPY_RESTORE,
    PAGE_FETCHING,
    PAGE_OFFLOADED,
    PAGE_RESTORING,
    PAGE_SINKING,
    QUEUE_DISK,
    QUEUE_MEMORY,
    SLOT_ADMITTED,
    SLOT_RESTORING,
    TIER_MEMORY,
)


@kernel
def ordered(world, page, moving):
    """Will a page's parent be readable no later than the page, if it is copied now?"""
    pages = world[0].pages
    parent = pages.parent[page]
    return (parent == NO_ROW or resident(pages.state[parent])
            or pages.state[parent] == moving)


@kernel
def begin_restore(world, page):
    """Starts a page's copy to the device; False if it has to wait."""
    pages = world[0].pages
    state = pages.state[page]
    if state == PAGE_SINKING:
        return False
    memory = state == PAGE_OFFLOADED
    queue = QUEUE_MEMORY if memory else QUEUE_DISK
    moving = PAGE_RESTORING if memory else PAGE_FETCHING
    if pages.free_count == 0 or copy_room(world, queue) == 0 or not ordered(world, page, moving):
        return False
    place = take_device_place(world)
    begin_copy(world, queue, COPY_RESTORE if memory else COPY_FETCH, page, pages.place[page], place)
    pages.state[page] = moving
    pages.place[page] = place
    child_comes(world, page)
    return True


@kernel
def restore_slot(world, slot):
    """Starts what can be started for a slot. False if a page of its text was lost."""
    slots, pages = world[0].slots, world[0].pages
    while slots.restoring[slot] > 0:
        page = slots.pages[slot, slots.page_count[slot] - slots.restoring[slot]]
        if pages.lost[page] == 1:
            return False
        if not on_device(pages.state[page]) and not begin_restore(world, page):
            break
        slots.restoring[slot] -= 1
        pages.promised_count -= 1
    while slots.arrived[slot] < slots.page_count[slot] - slots.restoring[slot]:
        page = slots.pages[slot, slots.arrived[slot]]
        if not on_device(pages.state[page]):
            return False  # its copy failed, or that of a page before it
        if not resident(pages.state[page]):
            break
        slots.arrived[slot] += 1
    if world[0].settings.window_tokens > 0:
        snapshot = slots.restore[slot]
        if world[0].snapshots.window_lost[snapshot] == 1:
            return False
        if slots.restoring[slot] > 0 or not bring_window(world, snapshot):
            return True
    if slots.arrived[slot] == slots.page_count[slot]:
        drop_copied(world, slot)
        if world[0].settings.window_tokens > 0:
            restore_window(world, slot, slots.restore[slot])
        slots.state[slot] = SLOT_ADMITTED
    return True


@kernel
def bring_window(world, snapshot):
    """Starts what can be started of the copies of a snapshot's pages, beside the pages that running
    slots need; True if all are on the device."""
    snapshots, windows = world[0].snapshots, world[0].windows
    if snapshots.window_away[snapshot] == 0:
        return True
    for index in range(snapshots.window_first[snapshot], snapshots.window_end[snapshot]):
        k = index % snapshots.window_pages.shape[1]
        if (snapshots.window_pages[snapshot, k] != NO_ROW
                or snapshots.window_sinking[snapshot, k] == 1):
            continue
        stored = snapshots.window_places[snapshot, k] >= windows.place_count
        queue = QUEUE_DISK if stored else QUEUE_MEMORY
        if (windows.free_count <= windows.needed_count or windows.moving_count >= windows.moving_max
                or copy_room(world, queue) == 0):
            break
        begin_return(world, snapshot, k, queue)
    return False


@kernel
def drop_copied(world, slot):
    """The table lets go of the pages that were held until they came back, to be copied."""
    slots = world[0].slots
    for _ in range(slots.copying[slot]):
        index = slots.page_count[slot] - 1
        dereference_page(world, slots.pages[slot, index])  # the text still names it
        slots.pages[slot, index] = NO_ROW
        slots.page_count[slot] = index
        slots.promise[slot] -= 1
    slots.arrived[slot] = slots.page_count[slot]


@system(
    reads="settings.* tokens.* pieces.* clock.now_ns",
    writes="slots.* requests.* stops.* grammars.* pages.* snapshots.window_pages windows.* "
           "copies.* counters.preempted",
)
def restore(world):
    """In admission order. A request whose text was lost in part waits again, to be matched
    anew."""
    slots = world[0].slots
    if world[0].tiers.place_count[TIER_MEMORY] == 0:
        return
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] == SLOT_RESTORING and not restore_slot(world, slot):
            send_back(world, slot)

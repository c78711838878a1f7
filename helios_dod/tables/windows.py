"""Pages of page group 1: histories that only a window of tokens sees."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, scalar, table
from helios_dod.system import kernel


@table(rows="pages_max")
class Windows:
    """One row per page of the group. `references` counts the slots and snapshots that hold it; a
    page of two holders is complete, so that nothing writes it. They are found by snapshots only.

    A slot holds the pages window_first .. window_end - 1 of its text, in a ring, and lets go of
    those that no later token sees. Invariant: free_count + referenced pages = page_count. There
    are enough for every slot beside what snapshots hold (see runtime/selection.py), so a slot never
    waits for one once snapshots are evicted.
    """

    references: i32
    free: scalar(i32["pages_max"])
    free_count: scalar(i32)
    page_count: scalar(i32)


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
def first_seen(world, endpoint):
    """The first page that a token at `endpoint` or behind it sees."""
    settings = world[0].settings
    return max(endpoint - settings.window_tokens + 1, 0) // settings.page_tokens


@kernel
def grow_window(world, slot, endpoint):
    """Gives the slot pages up to an endpoint."""
    slots, windows = world[0].slots, world[0].windows
    ring = slots.window_pages.shape[1]
    for index in range(slots.window_end[slot], -(-endpoint // world[0].settings.page_tokens)):
        assert windows.free_count > 0 and index - slots.window_first[slot] < ring
        windows.free_count -= 1
        page = windows.free[windows.free_count]
        assert windows.references[page] == 0
        windows.references[page] = 1
        slots.window_pages[slot, index % ring] = page
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
    """The slot holds what a snapshot holds."""
    slots, snapshots = world[0].slots, world[0].snapshots
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
    """A snapshot that is evicted holds nothing any more."""
    snapshots = world[0].snapshots
    ring = snapshots.window_pages.shape[1]
    for index in range(snapshots.window_first[snapshot], snapshots.window_end[snapshot]):
        release_window_page(world, snapshots.window_pages[snapshot, index % ring])
        snapshots.window_pages[snapshot, index % ring] = NO_ROW
    snapshots.window_first[snapshot] = 0
    snapshots.window_end[snapshot] = 0

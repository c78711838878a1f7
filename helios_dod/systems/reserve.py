"""reserve: pages for every lane's full ceiling."""

from helios_dod.system import kernel, system
from helios_dod.tables.pages import take_page
from helios_dod.tables.windows import grow_window
from helios_dod.terms import FRAME_COMPOSED, OP_INITIALIZE


@kernel
def reserve_pages(world, frame, slot, needed):
    """Grows the slot's page table and lists the entries that the device lacks."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    pages, updates = world[0].pages, frames.page_update_count[frame]
    assert needed <= world[0].requests.page_need[slots.request[slot]]
    for index in range(slots.page_count[slot], needed):
        slots.pages[slot, index] = take_page(world, slot)
        if index < slots.promise[slot]:
            pages.promised_count -= 1
    slots.page_count[slot] = max(slots.page_count[slot], needed)
    for index in range(slots.uploaded_count[slot], slots.page_count[slot]):
        lanes.page_update_slot[frame, updates] = slot
        lanes.page_update_index[frame, updates] = index
        lanes.page_update_page[frame, updates] = pages.place[slots.pages[slot, index]]
        updates += 1
    slots.uploaded_count[slot] = slots.page_count[slot]
    frames.page_update_count[frame] = updates


@kernel
def reserve_window(world, frame, slot, endpoint):
    """The same for page group 1."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    updates, ring = frames.window_update_count[frame], slots.window_pages.shape[1]
    grow_window(world, slot, endpoint)
    first = max(slots.window_uploaded[slot], slots.window_first[slot])
    for index in range(first, slots.window_end[slot]):
        lanes.window_update_slot[frame, updates] = slot
        lanes.window_update_index[frame, updates] = index
        lanes.window_update_page[frame, updates] = slots.window_pages[slot, index % ring]
        updates += 1
    slots.window_uploaded[slot] = slots.window_end[slot]
    frames.window_update_count[frame] = updates


@kernel
def list_copies(world, frame, slot):
    """The last pages of the slot's published text, which it has pages of its own for."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    pages = world[0].pages
    page, copies = slots.published_page[slot], frames.page_copy_count[frame]
    for i in range(slots.copying[slot]):
        index = slots.published_count[slot] - 1 - i
        assert slots.pages[slot, index] != page
        lanes.page_copy_source[frame, copies] = pages.place[page]
        lanes.page_copy_target[frame, copies] = pages.place[slots.pages[slot, index]]
        page = pages.parent[page]
        copies += 1
    slots.copying[slot] = 0
    frames.page_copy_count[frame] = copies


@system(
    reads="settings.* programs.operation requests.page_need",
    writes="pages.* windows.* slots.pages slots.page_count slots.uploaded_count slots.window_pages "
           "slots.window_end slots.window_uploaded slots.copying frames.page_update_count "
           "frames.window_update_count frames.page_copy_count lanes.page_update_slot "
           "lanes.page_update_index lanes.page_update_page lanes.window_update_slot "
           "lanes.window_update_index lanes.window_update_page lanes.page_copy_source "
           "lanes.page_copy_target",
)
def reserve(world):
    """Every composed lane gets what its program writes up to the lane's ceiling."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    page_tokens, shifted = world[0].settings.page_tokens, world[0].settings.view_pages
    windowed = world[0].settings.window_tokens > 0
    for frame in range(frames.state.shape[0]):
        if (frames.state[frame] != FRAME_COMPOSED
                or world[0].programs.operation[frames.program[frame]] == OP_INITIALIZE):
            continue
        for lane in range(frames.lane_count[frame]):
            slot = lanes.slot[frame, lane]
            endpoint = lanes.consumed[frame, lane] + lanes.query_length[frame, lane]
            needed = -(-endpoint // page_tokens) + shifted  # as pages_of
            if max(needed, slots.page_count[slot]) > slots.uploaded_count[slot]:
                reserve_pages(world, frame, slot, needed)
            if windowed:
                reserve_window(world, frame, slot, endpoint)
            if slots.copying[slot] > 0:
                list_copies(world, frame, slot)

"""reserve: pages for every lane's full ceiling."""

from helios_dod.system import system
from helios_dod.tables.pages import take_page
from helios_dod.terms import FRAME_COMPOSED, OP_INITIALIZE


@system(
    reads="settings.page_tokens programs.operation requests.page_need",
    writes="pages.* slots.pages slots.page_count slots.uploaded_count frames.page_update_count "
           "lanes.page_update_slot lanes.page_update_index lanes.page_update_page",
)
def reserve(world):
    """Grows the page table of each composed lane and lists the entries that the device lacks."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    pages = world[0].pages
    page_tokens = world[0].settings.page_tokens
    for frame in range(frames.state.shape[0]):
        if (frames.state[frame] != FRAME_COMPOSED
                or world[0].programs.operation[frames.program[frame]] == OP_INITIALIZE):
            continue
        updates = frames.page_update_count[frame]
        for lane in range(frames.lane_count[frame]):
            slot = lanes.slot[frame, lane]
            endpoint = lanes.consumed[frame, lane] + lanes.query_length[frame, lane]
            needed = -(-endpoint // page_tokens)
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

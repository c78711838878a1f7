"""publish: complete pages of committed tokens become immutable and can be found by content."""

from helios_dod.limits import NO_ROW, TOKEN_BLOCK
from helios_dod.system import kernel, system
from helios_dod.tables.pages import adopt_page, publish_page, reference_page, resident
from helios_dod.tables.prefixes import chain, find_page
from helios_dod.terms import FINISH_EOS, FINISH_LIMIT, FLAG_SCORED, FRAME_ACCEPTED


@kernel
def publish_next(world, slot, row):
    """Publishes the slot's next complete page, or follows the one that already has its content.

    False for a scored prompt that is cached already: it computes all of it again, and would hold
    every page twice."""
    slots, requests, pages = world[0].slots, world[0].requests, world[0].pages
    count = world[0].settings.page_tokens
    index = slots.published_count[slot]
    first = index * count
    block = requests.blocks[row, first // TOKEN_BLOCK]
    ids, at = world[0].tokens.ids, first % TOKEN_BLOCK
    parent = slots.published_page[slot]
    hashed = chain(slots.published_hash[slot], ids, block, at, count)
    page = find_page(world, hashed, parent, requests.salt[row], ids, block, at, count)
    if page == NO_ROW:
        page = slots.pages[slot, index]
        for i in range(count):
            pages.ids[page, i] = ids[block, at + i]
        publish_page(world, page, hashed, parent, requests.salt[row])
        world[0].counters.pages_published += 1
    elif requests.flags[row] & FLAG_SCORED != 0:
        return False
    elif not resident(pages.state[page]):
        adopt_page(world, page, slots.pages[slot, index])
        slots.pages[slot, index] = page
    reference_page(world, page)  # else a duplicate's original could be evicted from under us
    slots.published_page[slot] = page
    slots.published_hash[slot] = hashed
    slots.published_count[slot] = index + 1
    return True


@kernel
def publishable(world, row):
    """A running request, or one that ended by itself: an ended or failed one keeps its candidate
    private."""
    if row == NO_ROW:
        return False
    reason = world[0].requests.finish[row]
    return reason in (0, FINISH_EOS, FINISH_LIMIT)


@system(
    reads="settings.* frames.* lanes.slot requests.* tokens.ids",
    writes="slots.published_count slots.published_page slots.published_hash slots.pages "
           "pages.* prefixes.* tiers.free_count tiers.oldest tiers.newest "
           "counters.pages_published",
)
def publish(world):
    """Looks at every lane of this tick's accepted frames."""
    frames, slots = world[0].frames, world[0].slots
    if world[0].settings.caching == 0:
        return
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_ACCEPTED or frames.error[frame] != 0:
            continue
        for lane in range(frames.lane_count[frame]):
            slot = world[0].lanes.slot[frame, lane]
            complete = slots.consumed[slot] // world[0].settings.page_tokens
            if slots.published_count[slot] >= complete or slots.unpublished[slot] == 1:
                continue
            row = slots.request[slot]
            if publishable(world, row):
                for _ in range(complete - slots.published_count[slot]):
                    if not publish_next(world, slot, row):
                        break

"""publish: complete pages of committed tokens become immutable and can be found by content; so do
snapshots at the exact endpoints of programs that succeeded."""

from helios_dod.limits import NO_ROW, TOKEN_BLOCK
from helios_dod.system import kernel, system
from helios_dod.tables.drafts import is_round
from helios_dod.tables.pages import adopt_page, publish_page, reference_page, resident
from helios_dod.tables.prefixes import chain, find_page
from helios_dod.tables.snapshots import (
    drop_snapshot,
    evict_snapshot,
    find_snapshot,
    publish_snapshot,
    release_snapshot,
    touch_snapshot,
)
from helios_dod.tables.spans import features_of
from helios_dod.tables.values import ANSWER_PAGES, note_taken
from helios_dod.tables.windows import keep_window
from helios_dod.terms import CAUSE_ANSWER, FINISH_EOS, FINISH_LIMIT, FLAG_SCORED, FRAME_ACCEPTED


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
    hashed ^= features_of(world, row, first, first + count)
    page = find_page(world, hashed, parent, requests.salt[row], ids, block, at, count)
    own = slots.pages[slot, index]
    if page == NO_ROW:
        page = own
        for i in range(count):
            pages.ids[page, i] = ids[block, at + i]
        publish_page(world, page, hashed, parent, requests.salt[row])
        world[0].counters.pages_published += 1
    elif requests.flags[row] & FLAG_SCORED != 0:
        return False
    elif not resident(pages.state[page]):
        adopt_page(world, page, own)
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


@kernel
def publish_pages(world, slot, complete):
    """Publishes every page that the slot's committed tokens complete."""
    slots = world[0].slots
    row = slots.request[slot]
    if publishable(world, row):
        for _ in range(complete - slots.published_count[slot]):
            if not publish_next(world, slot, row):
                break


@kernel
def drop_earlier(world, page, request, endpoint):
    """Frees the snapshot that an answer had before the one behind a page: the newest is enough."""
    snapshots, tokens = world[0].snapshots, world[0].settings.page_tokens
    for _ in range(ANSWER_PAGES):
        page = world[0].pages.parent[page]
        if page == NO_ROW:
            return
    earlier = endpoint - ANSWER_PAGES * tokens
    row = find_snapshot(world, page, earlier, request, earlier)
    if (row != NO_ROW and snapshots.cause[row] == CAUSE_ANSWER and snapshots.readers[row] == 0):
        evict_snapshot(world, row)


@kernel
def keep_snapshot(world, slot, row, endpoint):
    """Publishes a written snapshot, unless its text has one already."""
    slots, snapshots, request = world[0].slots, world[0].snapshots, world[0].slots.request[slot]
    page_tokens = world[0].settings.page_tokens
    page, depth = slots.published_page[slot], slots.published_count[slot]
    assert depth >= endpoint // page_tokens
    for _ in range(depth - endpoint // page_tokens):
        page = world[0].pages.parent[page]
    first = endpoint // page_tokens * page_tokens
    known = find_snapshot(world, page, first, request, endpoint)
    if known == NO_ROW or snapshots.endpoint[known] < endpoint:
        if snapshots.cause[row] != CAUSE_ANSWER:  # for which its answer has paused
            note_taken(world, snapshots.cause[row])
        publish_snapshot(world, row, page, endpoint, request)
        if world[0].settings.window_tokens > 0:
            keep_window(world, slot, row, endpoint)
        if snapshots.cause[row] == CAUSE_ANSWER:
            drop_earlier(world, page, request, endpoint)
        return
    touch_snapshot(world, known)
    drop_snapshot(world, row)


@kernel
def settle_snapshots(world, frame, lane):
    """Ends what a lane of a finished frame had to do with snapshots. Only programs that consume
    exactly what they are given write any."""
    lanes = world[0].lanes
    slot, restored = lanes.slot[frame, lane], lanes.restore[frame, lane]
    written = lanes.snapshot[frame, lane]
    lanes.restore[frame, lane] = NO_ROW
    lanes.snapshot[frame, lane] = NO_ROW
    if restored != NO_ROW:
        release_snapshot(world, restored)
    if written == NO_ROW:
        return
    assert not is_round(world, world[0].frames.program[frame])
    endpoint = lanes.consumed[frame, lane] + lanes.query_length[frame, lane]
    published = world[0].slots.published_count[slot] >= endpoint // world[0].settings.page_tokens
    if (world[0].frames.error[frame] == 0 and published
            and publishable(world, world[0].slots.request[slot])):
        keep_snapshot(world, slot, written, endpoint)
    else:
        drop_snapshot(world, written)


@system(
    reads="settings.* frames.* lanes.* programs.operation requests.* tokens.ids clock.tick",
    writes="slots.published_count slots.published_page slots.published_hash slots.pages "
           "pages.* prefixes.* tiers.free_count tiers.oldest tiers.newest "
           "snapshots.* windows.* lanes.restore "
           "lanes.snapshot counters.pages_published counters.snapshots_published "
           "counters.snapshots_dropped counters.snapshots_evicted",
)
def publish(world):
    """Looks at every lane of this tick's accepted frames."""
    frames, slots, settings = world[0].frames, world[0].slots, world[0].settings
    page_tokens, stateful = settings.page_tokens, settings.stateful == 1
    if settings.caching == 0:
        return
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_ACCEPTED:
            continue
        for lane in range(frames.lane_count[frame]):
            slot = world[0].lanes.slot[frame, lane]
            complete = slots.consumed[slot] // page_tokens
            if (frames.error[frame] == 0 and slots.published_count[slot] < complete
                    and slots.unpublished[slot] == 0):
                publish_pages(world, slot, complete)
            if stateful:
                settle_snapshots(world, frame, lane)

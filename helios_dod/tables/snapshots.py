"""Snapshots: committed recurrent, continuation and windowed state at exact token endpoints."""

from helios_dod.limits import NO_ROW, TOKEN_BLOCK
from helios_dod.schema import i32, i64, scalar, table, u8, u64
from helios_dod.system import kernel
from helios_dod.tables.pages import pin_page, unpin_page
from helios_dod.tables.prefixes import same_tokens
from helios_dod.tables.spans import features_of, span_at
from helios_dod.tables.windows import drop_window
from helios_dod.terms import FREE, SNAPSHOT_READY, SNAPSHOT_WRITING


@table(rows="snapshots_max")
class Snapshots:
    """One row per snapshot. A WRITING one is filled by a program of its owner; a READY one can be
    found behind `page`, the last complete page of its text, by the tokens past that page.

    The page stands for the text up to it, which was compared token by token when it was published;
    so a hit is confirmed by the page, the tokens past it and, where there is no page, the salt.
    Invariants: FREE + WRITING + READY rows = snapshot_count. A READY one keeps the row of its page,
    like a page behind it, and without tiers the page on the device. The page of one that is read is
    referenced. `readers` counts slots that restore from it, up to the fence. The eviction list
    holds the READY ones without readers, least recently used first.
    """

    state: u8
    cause: u8  # why it was taken
    owner: i32  # slot that fills it, or NO_ROW
    readers: i32
    page: i32  # NO_ROW: the text has no complete page
    endpoint: i32  # tokens that the state has consumed
    salt: u64
    features: u64  # what spans among the tokens past the page stand for
    ids: i32["PAGE_TOKENS_MAX"]  # tokens past the page
    age: i64  # tick of its last use
    window_pages: i32["window_pages_max"]  # ring, as a slot's: pages of group 1 that it holds
    window_places: i32["window_pages_max"]  # places in a tier of those that are away or on the way
    window_sinking: u8["window_pages_max"]  # 1: that place is in memory, a copy to disk in flight
    window_first: i32
    window_end: i32
    window_away: i32  # of its pages, those that cannot be read on the device,
    window_stored: i32  # and of those, what lies on disk
    window_lost: u8  # a copy of one failed: who reads it is sent back
    bucket_next: i32
    older: i32  # eviction list
    newer: i32
    buckets: scalar(i32["snapshots_max"])  # first READY row of each bucket: page modulo capacity
    free: scalar(i32["snapshots_max"])
    free_count: scalar(i32)
    snapshot_count: scalar(i32)  # snapshots that the device has rows for
    oldest: scalar(i32)
    newest: scalar(i32)
    # measured value by cause: snapshots published, tokens that hits saved, refusals in a row
    taken: scalar(i64["CAUSES_MAX"])
    saved: scalar(i64["CAUSES_MAX"])
    refused: scalar(i64["CAUSES_MAX"])
    copied_ns: scalar(i64)  # what the newest programs took that do nothing but copy snapshots,
    copied_count: scalar(i64)  # and how many they copied


@kernel
def list_snapshot(world, row):
    """Appends a snapshot to the eviction list, as the most recently used."""
    snapshots = world[0].snapshots
    snapshots.age[row] = world[0].clock.tick
    snapshots.older[row] = snapshots.newest
    snapshots.newer[row] = NO_ROW
    if snapshots.newest == NO_ROW:
        snapshots.oldest = row
    else:
        snapshots.newer[snapshots.newest] = row
    snapshots.newest = row


@kernel
def unlist_snapshot(world, row):
    """Takes a snapshot out of the eviction list."""
    snapshots = world[0].snapshots
    older, newer = snapshots.older[row], snapshots.newer[row]
    if older == NO_ROW:
        snapshots.oldest = newer
    else:
        snapshots.newer[older] = newer
    if newer == NO_ROW:
        snapshots.newest = older
    else:
        snapshots.older[newer] = older
    snapshots.older[row] = NO_ROW
    snapshots.newer[row] = NO_ROW


@kernel
def touch_snapshot(world, row):
    """Makes one the most recently used."""
    if world[0].snapshots.readers[row] == 0:
        unlist_snapshot(world, row)
        list_snapshot(world, row)


@kernel
def take_snapshot(world, slot, cause):
    """A free row, now written for the slot; the caller knows that there is one."""
    snapshots = world[0].snapshots
    assert snapshots.free_count > 0
    snapshots.free_count -= 1
    row = snapshots.free[snapshots.free_count]
    assert snapshots.state[row] == FREE
    snapshots.state[row] = SNAPSHOT_WRITING
    snapshots.owner[row] = slot
    snapshots.cause[row] = cause
    return row


@kernel
def free_snapshot(world, row):
    """Puts a row that nothing holds on the free stack."""
    snapshots = world[0].snapshots
    snapshots.state[row] = FREE
    snapshots.owner[row] = NO_ROW
    snapshots.page[row] = NO_ROW
    snapshots.endpoint[row] = 0
    snapshots.salt[row] = 0
    snapshots.features[row] = 0
    snapshots.cause[row] = 0
    snapshots.free[snapshots.free_count] = row
    snapshots.free_count += 1


@kernel
def drop_snapshot(world, row):
    """Gives up a snapshot that was written but shall not be found."""
    assert world[0].snapshots.state[row] == SNAPSHOT_WRITING
    free_snapshot(world, row)
    world[0].counters.snapshots_dropped += 1


@kernel
def holds_text(world, row, page, first, request):
    """Is the snapshot's text, whose complete pages end with `page` at token `first`, a prefix of
    the request's tokens?"""
    snapshots, requests = world[0].snapshots, world[0].requests
    if snapshots.page[row] != page or (
            page == NO_ROW and snapshots.salt[row] != requests.salt[request]):
        return False
    block = requests.blocks[request, first // TOKEN_BLOCK]
    end = snapshots.endpoint[row]
    return same_tokens(snapshots.ids, row, world[0].tokens.ids, block, first % TOKEN_BLOCK,
                       end - first) and (
        snapshots.features[row] == features_of(world, request, first, end))


@kernel
def bucket_of(world, page):
    """Bucket of the snapshots behind a page, or behind none."""
    return page % world[0].snapshots.buckets.shape[0]


@kernel
def find_snapshot(world, page, first, request, endpoint_max):
    """The longest snapshot of the request's text right behind a page that ends at token `first`,
    with an endpoint up to endpoint_max and inside none of its spans; or NO_ROW."""
    snapshots, best = world[0].snapshots, NO_ROW
    row = snapshots.buckets[bucket_of(world, page)]
    for _ in range(snapshots.snapshot_count):
        if row == NO_ROW:
            break
        longer = best == NO_ROW or snapshots.endpoint[row] > snapshots.endpoint[best]
        if (longer and snapshots.endpoint[row] <= endpoint_max
                and span_at(world, request, snapshots.endpoint[row]) < 0
                and holds_text(world, row, page, first, request)):
            best = row
        row = snapshots.bucket_next[row]
    return best


@kernel
def publish_snapshot(world, row, page, endpoint, request):
    """A written snapshot can be found from now on."""
    snapshots, requests = world[0].snapshots, world[0].requests
    assert snapshots.state[row] == SNAPSHOT_WRITING
    page_tokens = world[0].settings.page_tokens
    first = endpoint // page_tokens * page_tokens
    snapshots.state[row] = SNAPSHOT_READY
    snapshots.owner[row] = NO_ROW
    snapshots.page[row] = page
    snapshots.endpoint[row] = endpoint
    snapshots.salt[row] = requests.salt[request]
    snapshots.features[row] = features_of(world, request, first, endpoint)
    if endpoint > first:
        block = requests.blocks[request, first // TOKEN_BLOCK]
        for i in range(endpoint - first):
            snapshots.ids[row, i] = world[0].tokens.ids[block, first % TOKEN_BLOCK + i]
    bucket = bucket_of(world, page)
    snapshots.bucket_next[row] = snapshots.buckets[bucket]
    snapshots.buckets[bucket] = row
    if page != NO_ROW:
        pin_page(world, page)
    list_snapshot(world, row)
    world[0].pages.epoch += 1
    world[0].counters.snapshots_published += 1


@kernel
def evict_snapshot(world, row):
    """Frees a snapshot without readers; its page may be the next to go."""
    snapshots = world[0].snapshots
    assert snapshots.state[row] == SNAPSHOT_READY and snapshots.readers[row] == 0
    unlist_snapshot(world, row)
    page = snapshots.page[row]
    bucket = bucket_of(world, page)
    before, at = NO_ROW, snapshots.buckets[bucket]
    while at != row:
        assert at != NO_ROW, "snapshots: a READY one is in no bucket"
        before, at = at, snapshots.bucket_next[at]
    if before == NO_ROW:
        snapshots.buckets[bucket] = snapshots.bucket_next[row]
    else:
        snapshots.bucket_next[before] = snapshots.bucket_next[row]
    snapshots.bucket_next[row] = NO_ROW
    if page != NO_ROW:
        unpin_page(world, page, snapshots.age[row])
    drop_window(world, row)
    world[0].pages.epoch += 1
    free_snapshot(world, row)
    world[0].counters.snapshots_evicted += 1


@kernel
def snapshots_behind(world, page):
    """Snapshots right behind a page."""
    snapshots, count = world[0].snapshots, 0
    row = snapshots.buckets[bucket_of(world, page)]
    while row != NO_ROW:
        count += snapshots.page[row] == page
        row = snapshots.bucket_next[row]
    return count


@kernel
def evict_behind(world, page):
    """Frees the snapshots right behind a page that no text has, so that none is read."""
    snapshots = world[0].snapshots
    row = snapshots.buckets[bucket_of(world, page)]
    while row != NO_ROW:
        following = snapshots.bucket_next[row]
        if snapshots.page[row] == page:
            evict_snapshot(world, row)
        row = following


@kernel
def hold_snapshot(world, row):
    """One more slot restores from a snapshot."""
    snapshots = world[0].snapshots
    assert snapshots.state[row] == SNAPSHOT_READY
    if snapshots.readers[row] == 0:
        unlist_snapshot(world, row)
    snapshots.readers[row] += 1


@kernel
def release_snapshot(world, row):
    """One slot less; without any, the snapshot is the most recently used of those to evict, or goes
    if what it holds was lost."""
    snapshots = world[0].snapshots
    snapshots.readers[row] -= 1
    assert snapshots.state[row] == SNAPSHOT_READY and snapshots.readers[row] >= 0
    if snapshots.readers[row] == 0:
        list_snapshot(world, row)
        if snapshots.window_lost[row] == 1:
            evict_snapshot(world, row)


@kernel
def oldest_behind_page(world):
    """The least recently used snapshot without readers that pins a page, or NO_ROW."""
    snapshots = world[0].snapshots
    row = snapshots.oldest
    for _ in range(snapshots.snapshot_count):
        if row == NO_ROW or snapshots.page[row] != NO_ROW:
            return row
        row = snapshots.newer[row]
    return NO_ROW

"""Which snapshots are worth a row: policy by what snapshots of each cause have saved so far, and by
what taking one takes."""

import numpy as np

from helios_dod.limits import CAUSES_MAX, NO_ROW
from helios_dod.system import kernel
from helios_dod.tables.snapshots import (
    evict_snapshot,
    find_snapshot,
    take_snapshot,
    touch_snapshot,
)
from helios_dod.tables.tiers import restoring_ns, token_ns

TRIAL = 32  # snapshots of a cause before it is judged
OBSERVED_COPIES = 1024  # snapshots whose copying a mean looks back on
RETRY = 16  # refusals of a cause before it is tried again, since what requests do changes
ANSWER_PAGES = 4  # an answer's own page boundaries that one snapshot may be taken at
MEMORY = 1024  # snapshots of a cause after which old measurements weigh half


@kernel
def better(world, cause, other):
    """Does a snapshot of one cause save at least as many tokens as one of the other?"""
    snapshots = world[0].snapshots
    return (snapshots.saved[cause] * max(snapshots.taken[other], 1)
            >= snapshots.saved[other] * max(snapshots.taken[cause], 1))


@kernel
def observe_copying(world, elapsed, count):
    """Adds what copying `count` snapshots took; old observations fade."""
    snapshots = world[0].snapshots
    if snapshots.copied_count >= OBSERVED_COPIES:
        snapshots.copied_ns //= 2
        snapshots.copied_count //= 2
    snapshots.copied_ns += elapsed
    snapshots.copied_count += count


@kernel
def pays(world, cause):
    """Have snapshots of a cause saved as much time as taking them took?

    What a hit saves is the prefilling of its tokens. What a snapshot takes is its share of a
    program that copies snapshots alone, as was observed: for that an answer pauses or its slot
    stays, while the device does nothing else. Those that a prompt's own program writes, which is
    cut for them, are counted alike: nothing tells their part of its time. While one of both is
    unknown, a token that each has saved is enough."""
    snapshots = world[0].snapshots
    if snapshots.copied_count == 0 or world[0].tiers.prefill_tokens == 0:
        return snapshots.saved[cause] >= snapshots.taken[cause]
    taking = snapshots.taken[cause] * (snapshots.copied_ns // snapshots.copied_count)
    return snapshots.saved[cause] * token_ns(world) >= taking


@kernel
def wanted(world, cause):
    """Shall a snapshot of this cause be taken now? In a full table it takes the place of the least
    recently used one, if its kind saves no less, or has been refused long enough."""
    snapshots = world[0].snapshots
    if snapshots.free_count == 0 and snapshots.oldest == NO_ROW:
        return False
    if snapshots.refused[cause] >= RETRY or snapshots.taken[cause] < TRIAL:
        return True
    if pays(world, cause) and (
            snapshots.free_count > 0
            or better(world, cause, snapshots.cause[snapshots.oldest])):
        return True
    snapshots.refused[cause] += 1
    return False


@kernel
def is_kept(world, slot, endpoint):
    """Has a slot's text a snapshot at that endpoint already, as far as its pages are published? It
    is the most recently used then."""
    slots, snapshots = world[0].slots, world[0].snapshots
    depth, tokens = slots.published_count[slot], world[0].settings.page_tokens
    if depth != endpoint // tokens:
        return False
    known = find_snapshot(
        world, slots.published_page[slot], depth * tokens, slots.request[slot], endpoint)
    if known == NO_ROW or snapshots.endpoint[known] < endpoint:
        return False
    touch_snapshot(world, known)
    return True


@kernel
def choose_snapshot(world, slot, cause, endpoint):
    """A row for a wanted snapshot of a slot; NO_ROW where all are being written or read, or where
    its text has that snapshot: nothing else is to go for a second one."""
    snapshots = world[0].snapshots
    if is_kept(world, slot, endpoint):
        return NO_ROW
    if snapshots.free_count == 0:
        if snapshots.oldest == NO_ROW:
            return NO_ROW
        evict_snapshot(world, snapshots.oldest)
    snapshots.refused[cause] = 0
    return take_snapshot(world, slot, cause)


@kernel
def note_taken(world, cause):
    """One more published snapshot of a cause."""
    snapshots = world[0].snapshots
    assert 0 <= cause < CAUSES_MAX
    snapshots.taken[cause] += 1
    if snapshots.taken[cause] >= MEMORY:
        snapshots.taken[cause] >>= 1
        snapshots.saved[cause] >>= 1


@kernel
def longest_snapshot(world, row, page, depth, endpoint_max):
    """(the longest snapshot of a request's text, up to endpoint_max tokens, on the chain of `depth`
    pages that ends with `page`, or NO_ROW; its page; pages up to it; what it takes to bring back
    those behind it)."""
    tokens, spared = world[0].settings.page_tokens, np.int64(0)
    found = find_snapshot(world, page, depth * tokens, row, endpoint_max)
    while found == NO_ROW and page != NO_ROW:
        spared += restoring_ns(world, page)
        page, depth = np.int64(world[0].pages.parent[page]), depth - 1
        found = find_snapshot(world, page, depth * tokens, row, endpoint_max)
    return found, page, depth, spared


@kernel
def note_saved(world, row):
    """A request goes on from the snapshot of its match, which saves the tokens that the next
    shorter one of its text would not have restored."""
    snapshots, requests = world[0].snapshots, world[0].requests
    snapshot = requests.match_snapshot[row]
    endpoint = np.int64(snapshots.endpoint[snapshot])
    shorter, _, _, _ = longest_snapshot(
        world, row, np.int64(requests.match_page[row]), np.int64(requests.match_count[row]),
        endpoint - 1)
    spared = np.int64(0) if shorter == NO_ROW else np.int64(snapshots.endpoint[shorter])
    snapshots.saved[snapshots.cause[snapshot]] += endpoint - spared
    world[0].counters.snapshot_hits += 1

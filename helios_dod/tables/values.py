"""Which snapshots are worth a row: policy by what snapshots of each cause have saved so far."""

from helios_dod.limits import CAUSES_MAX, NO_ROW
from helios_dod.system import kernel
from helios_dod.tables.snapshots import evict_snapshot, take_snapshot

TRIAL = 32  # snapshots of a cause before it is judged
COST_TOKENS = 4  # tokens that a snapshot must save on average: what taking one costs
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
def wanted(world, cause):
    """Shall a snapshot of this cause be taken now? In a full table it takes the place of the least
    recently used one, if its kind saves no less, or has been refused long enough."""
    snapshots = world[0].snapshots
    if snapshots.free_count == 0 and snapshots.oldest == NO_ROW:
        return False
    if snapshots.refused[cause] >= RETRY or snapshots.taken[cause] < TRIAL:
        return True
    if snapshots.saved[cause] >= snapshots.taken[cause] * COST_TOKENS and (
            snapshots.free_count > 0
            or better(world, cause, snapshots.cause[snapshots.oldest])):
        return True
    snapshots.refused[cause] += 1
    return False


@kernel
def choose_snapshot(world, slot, cause):
    """A row for a wanted snapshot of a slot; NO_ROW where all are being written or read."""
    snapshots = world[0].snapshots
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
def note_saved(world, row):
    """A hit restored a snapshot's tokens."""
    snapshots = world[0].snapshots
    snapshots.saved[snapshots.cause[row]] += snapshots.endpoint[row]
    world[0].counters.snapshot_hits += 1

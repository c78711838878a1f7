"""Copies of pages between the device and the tiers behind it: commands for the executor."""

from helios_dod.schema import i32, i64, scalar, table, u8
from helios_dod.system import kernel
from helios_dod.terms import COPY_OFFLOAD, COPY_SINK


@table(rows="COPY_QUEUES")
class Copies:
    """Row (queue, k) is a command; number n of a queue stands at k = n % copies_max.

    Systems write commands, the engine hands them to the executor after the tick, and the executor
    ends those of a queue in order. Neither place of a command is used otherwise until `settle` has
    seen its end. Invariant: first <= finished <= end <= first + copies_max."""

    kind: u8["copies_max"]
    failed: u8["copies_max"]  # written by the executor before it reports the end
    page: i32["copies_max"]  # of group 0; of group 1 the entry of a snapshot, see windows.py
    source: i32["copies_max"]  # places: of the device, or of a tier, for pages of the kind's group
    target: i32["copies_max"]
    issued_ns: i64["copies_max"]
    first: i64  # the oldest command that is not settled
    end: i64  # one past the newest
    finished: i64  # commands that the executor reports as ended
    settled_ns: i64  # when some were last settled
    leaving_count: scalar(i32)  # device places of group 0 that come free when their copies end
    sinking_count: scalar(i32)  # memory places that do


@kernel
def copy_room(world, queue):
    """Commands that a queue can still take."""
    copies = world[0].copies
    return copies.kind.shape[1] - (copies.end[queue] - copies.first[queue])


@kernel
def begin_copy(world, queue, kind, page, source, target):
    """Writes a command; the caller has checked that there is room."""
    copies = world[0].copies
    assert copies.end[queue] - copies.first[queue] < copies.kind.shape[1]
    k = copies.end[queue] % copies.kind.shape[1]
    copies.kind[queue, k] = kind
    copies.failed[queue, k] = 0
    copies.page[queue, k] = page
    copies.source[queue, k] = source
    copies.target[queue, k] = target
    copies.issued_ns[queue, k] = world[0].clock.now_ns
    copies.end[queue] += 1
    copies.leaving_count += kind == COPY_OFFLOAD
    copies.sinking_count += kind == COPY_SINK

"""Histograms of what a frontend worker sees of answers: waits, first tokens, gaps, whole
durations."""

import numpy as np

from helios_dod.schema import i64, table
from helios_dod.system import kernel
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN

# Upper bounds of buckets, milliseconds; one more bucket holds what is above all.
BOUNDS_MS = (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2500, 5000,
             10_000, 30_000, 60_000)
BUCKETS = len(BOUNDS_MS) + 1
BOUNDS_NS = np.array([round(bound * 1e6) for bound in BOUNDS_MS], np.int64)
REASONS = 16  # finish reasons, by their terms


@table(rows="frontends_max")
class Durations:
    """One row a frontend worker, written by that worker only; sums in nanoseconds."""

    first_token: i64[BUCKETS]
    first_token_ns: i64
    gap: i64[BUCKETS]  # between two tokens of one choice
    gap_ns: i64
    queue: i64[BUCKETS]  # from submission to a slot
    queue_ns: i64
    whole: i64[BUCKETS]  # from submission to the last event
    whole_ns: i64
    finishes: i64[REASONS]  # choices by how they ended


@kernel
def bucket(duration):
    """The histogram's bucket of a duration."""
    for i in range(BOUNDS_NS.shape[0]):
        if duration <= BOUNDS_NS[i]:
            return i
    return BOUNDS_NS.shape[0]


@kernel
def note_events(control, worker, tags, began, first, last, rows_mask, kind, reason, tag,
                completed_ns, now_ns):
    """Counts a batch of events. tags, began, first, last: by permit row, the choice that has it,
    when it was submitted, when its first and its newest token came (0: none). rows_mask: the row's
    bits of a tag."""
    table = control[0].durations
    for i in range(kind.shape[0]):
        row = tag[i] & rows_mask
        if tags[row] != tag[i]:
            continue
        if kind[i] == EGRESS_TOKEN:
            if last[row] == 0:
                first[row] = now_ns
                spent = now_ns - began[row]
                table.first_token[worker, bucket(spent)] += 1
                table.first_token_ns[worker] += spent
            else:
                spent = now_ns - last[row]
                table.gap[worker, bucket(spent)] += 1
                table.gap_ns[worker] += spent
            last[row] = now_ns
        elif kind[i] == EGRESS_FINISHED:
            if completed_ns[i] > 0:
                spent = max(completed_ns[i] - began[row], 0)
                table.queue[worker, bucket(spent)] += 1
                table.queue_ns[worker] += spent
            spent = now_ns - began[row]
            table.whole[worker, bucket(spent)] += 1
            table.whole_ns[worker] += spent
            table.finishes[worker, reason[i]] += 1

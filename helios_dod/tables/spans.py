"""Atomic spans of prompts: chunks, prefix hits and snapshots never end inside one, and what its
tokens stand for is part of the text that a page or snapshot holds."""

import numpy as np

from helios_dod.system import kernel


@kernel
def span_at(world, row, endpoint):
    """The span of a request that an endpoint lies inside, or -1."""
    requests = world[0].requests
    for i in range(requests.span_count[row]):
        if requests.span_first[row, i] < endpoint < requests.span_end[row, i]:
            return i
    return -1


@kernel
def whole_spans(world, row, start, length):
    """The part of `length` tokens from `start` on that cuts no span; 0 if a span at `start` is
    longer."""
    span = span_at(world, row, start + length)
    if span < 0:
        return length
    return max(world[0].requests.span_first[row, span] - start, 0)


@kernel
def features_of(world, row, first, end):
    """What the spans among tokens first .. end - 1 stand for, as 64 bits; 0 without any."""
    requests, found = world[0].requests, np.uint64(0)
    for i in range(requests.span_count[row]):
        begin = max(requests.span_first[row, i], first)
        if begin >= min(requests.span_end[row, i], end):
            continue
        place = np.uint64(begin - requests.span_first[row, i] + 1)
        mixed = (requests.span_digest[row, i] ^ found) + place * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    return found

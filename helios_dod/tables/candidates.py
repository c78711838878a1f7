"""Drafts copied from a request's own text: what followed when its last tokens stood there before.

An index of n-grams for each slot, grown as tokens are accepted: a token costs one write, a look-up
one read, whatever the length of the text. Rows are overwritten, so that the newest place wins; a
hit is confirmed by comparing tokens."""

import numpy as np

from helios_dod.limits import COPY_ROWS
from helios_dod.schema import i32, table
from helios_dod.system import kernel
from helios_dod.tables.tokens import token_at

GRAM = 3  # tokens that have to agree
INDEX_TOKENS = 512  # tokens that one slot indexes a tick; a longer text has no copies until then


@table(rows="slots_max")
class Candidates:
    """One row per slot. `place[hash]` is the position behind an n-gram of the slot's text, 0: none.

    Invariant: tokens[:count] continue the first `found_count` tokens of the text.
    """

    indexed: i32  # tokens whose n-grams are in the index: those that end below it
    found_count: i32  # token count that the candidates belong to; 0: none looked for
    count: i32
    tokens: i32["width_max"]
    place: i32["COPY_ROWS"]


@kernel
def forget_candidates(world, slot):
    """Empties a slot's index for its next request."""
    candidates = world[0].candidates
    candidates.indexed[slot] = 0
    candidates.found_count[slot] = 0
    candidates.count[slot] = 0
    candidates.place[slot, :] = 0


@kernel
def gram_row(world, row, end):
    """Index row of the n-gram of a request that ends before position `end`."""
    hashed = np.uint64(0)
    for i in range(end - GRAM, end):
        token = np.uint64(np.uint32(token_at(world, row, i)))
        hashed = (hashed ^ token) * np.uint64(0xD6E8FEB86659FD93)
        hashed ^= hashed >> np.uint64(32)
    return np.int64(hashed & np.uint64(COPY_ROWS - 1))


@kernel
def same_gram(world, row, first, second):
    """Do equal n-grams end before both positions?"""
    for i in range(1, GRAM + 1):
        if token_at(world, row, first - i) != token_at(world, row, second - i):
            return False
    return True


@kernel
def find_candidates(world, slot, most):
    """Brings the index up to the slot's accepted tokens and looks for at most `most` candidates.

    A copy that reaches the end of the text goes on with itself, as a repetition does."""
    candidates, row = world[0].candidates, world[0].slots.request[slot]
    count = world[0].requests.token_count[row]
    if candidates.found_count[slot] == count:
        return
    candidates.found_count[slot] = count
    candidates.count[slot] = 0
    first = max(candidates.indexed[slot], GRAM)
    end = min(count, first + INDEX_TOKENS)
    for position in range(first, end):
        candidates.place[slot, gram_row(world, row, position)] = position
    candidates.indexed[slot] = max(end, candidates.indexed[slot])
    if end < count:
        candidates.found_count[slot] = 0  # the rest in the next tick
        return
    if count < GRAM + 1:
        return
    place = candidates.place[slot, gram_row(world, row, count)]
    if place == 0 or not same_gram(world, row, place, count):
        return
    for i in range(most):
        at = place + i
        candidates.tokens[slot, i] = (
            token_at(world, row, at) if at < count else candidates.tokens[slot, at - count])
    candidates.count[slot] = most

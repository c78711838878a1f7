"""Speculative rounds: drafts placed between the draws of a program's first layers, and verified.

A draft is accepted where it equals the token that the target draws at its position, by the same
generator and after the same tokens, so what is emitted is what plain decode would emit.
"""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host.commit import (
    A_CONSUMED,
    A_SLOT,
    A_STATUS,
    commit_token,
    put_tokens,
    write_record,
)
from helios_dod.executors.host.sampling import (
    J_VOCABULARY,
    RUNNING,
    S_OUTPUT,
    S_STATUS,
    adjust_logits,
    adjust_row,
    at,
    sample_row,
)
from helios_dod.limits import MASK_BITS
from helios_dod.system import kernel

# words of Draft, of Verify
D_STEP, D_HAS, D_SLOT, D_GENERATION, D_CONSUMED, D_START, D_LENGTH = 2, 3, 4, 6, 8, 10, 12
D_POSITION, D_PENDING, D_TOKENS, D_COUNT, D_MADE_FOR, D_ENDPOINT = 14, 16, 18, 20, 22, 24
D_ROWS, D_DRAWN, D_DRAWN_COUNT, D_AGGREGATE, D_AGREEMENT = 26, 28, 30, 32, 33
D_STATE_ROW, D_DRAWN_STATE_ROW = 34, 36
V_ROWS, V_START, V_LENGTH, V_MASKS = 2, 4, 6, 8
# columns of `rows` and of `drawn`, in bytes
TOKEN, ROW_SLOT, ROW_INDEX = 0, 4, 8
PLACE, SLOT, FIRST, LENGTH, INDEX, ONE, DRAFT = 4, 8, 12, 16, 20, 24, 28


@kernel(boundscheck=False)
def copies_of(w, lane, length):
    """Copied candidates of a lane that were made for its state, as many as its rows take."""
    if (w[D_HAS] == 0
            or m.get_i32(at(w, D_MADE_FOR, lane)) != m.get_i32(at(w, D_GENERATION, lane))
            or m.get_i32(at(w, D_ENDPOINT, lane)) != m.get_i32(at(w, D_CONSUMED, lane))):
        return 0
    return min(m.get_i32(at(w, D_COUNT, lane)), length - 1)


@kernel(boundscheck=False)
def begin_lane(w, lane):
    """Target rows of a lane: its pending token, then its copies. True if it draws instead."""
    slot, start = m.get_i32(at(w, D_SLOT, lane)), m.get_i32(at(w, D_START, lane))
    length = m.get_i32(at(w, D_LENGTH, lane))
    pending = m.get_i32(at(w, D_PENDING, slot))
    copied = copies_of(w, lane, length)
    for i in range(length):
        row = at(w, D_ROWS, start + i)
        token = pending
        if 0 < i <= copied:
            token = m.get_i32(at(w, D_TOKENS, lane) + 4 * (i - 1))
        m.put_i32(row + TOKEN, token)
        m.put_i32(row + ROW_SLOT, slot)
        m.put_i32(row + ROW_INDEX, start + i)
    return length > 1 and copied == 0


@kernel(boundscheck=False)
def begin_drafts(w, lanes):
    """Step 0: target rows of all lanes, and the lanes that draw."""
    drawn, rows = np.int64(0), np.int64(0)
    for lane in range(lanes):
        rows += m.get_i32(at(w, D_LENGTH, lane))
        if begin_lane(w, lane):
            entry = at(w, D_DRAWN, drawn)
            m.put_i32(entry + SLOT, m.get_i32(at(w, D_SLOT, lane)))
            m.put_i32(entry + FIRST, m.get_i32(at(w, D_START, lane)))
            m.put_i32(entry + LENGTH, m.get_i32(at(w, D_LENGTH, lane)))
            m.put_i32(entry + INDEX, drawn)
            m.put_i32(entry + ONE, 1)
            drawn += 1
    m.put_i32(w[D_DRAWN_COUNT], drawn)
    m.put_i32(w[D_AGGREGATE], rows)
    m.put_i32(w[D_AGREEMENT], 1)


@kernel(boundscheck=False)
def draft(w, lanes):
    """One step: takes the drafts of the step before, and says what the next ones follow.

    A lane with fewer rows repeats its last draft: the same values go to the same places."""
    step, lane = w[D_STEP], np.int64(0)
    if step == 0:
        begin_drafts(w, lanes)
    for i in range(m.get_i32(w[D_DRAWN_COUNT])):
        entry = at(w, D_DRAWN, i)
        first, last = m.get_i32(entry + FIRST), m.get_i32(entry + LENGTH) - 2
        if step > 0:
            token = max(m.get_i32(entry + DRAFT), np.int64(0))  # -1: the slot has ended
            m.put_i32(at(w, D_ROWS, first + min(step - 1, last) + 1) + TOKEN, token)
        row = first + min(step, last)
        m.put_i32(entry + TOKEN, m.get_i32(at(w, D_ROWS, row) + TOKEN))
        m.put_i32(entry + PLACE, m.get_i32(at(w, D_POSITION, row)))
        if w[D_STATE_ROW] != 0:
            while lane < lanes - 1 and m.get_i32(at(w, D_START, lane)) != first:
                lane += 1
            m.put_i32(at(w, D_DRAWN_STATE_ROW, i),
                      m.get_i32(at(w, D_STATE_ROW, lane)) + min(step, last))


@kernel(boundscheck=False)
def verify_lane(w, adjust, draw, advance, lane, scratch):
    """Draws the lane's tokens while each is the draft of the next row, each under the mask of its
    place, if there are masks; the lane's completion record."""
    start, length = m.get_i32(at(w, V_START, lane)), m.get_i32(at(w, V_LENGTH, lane))
    slot = m.get_i32(at(advance, A_SLOT, lane))
    status = at(advance, A_STATUS, slot)
    mask_bytes = -(-adjust[J_VOCABULARY] // MASK_BITS) * 4
    emitted = np.int64(0)
    going = m.get_i32(status) == RUNNING
    while going and emitted < length:
        row = start + emitted
        if w[V_MASKS] != 0:
            adjust_row(adjust, row, at(w, V_MASKS, lane) + emitted * mask_bytes)
        else:
            adjust_logits(adjust, row, row + 1)
        sample_row(draw, row, lane, scratch)
        if m.get_i32(at(draw, S_STATUS, slot)) != RUNNING:
            break
        token = m.get_i32(at(draw, S_OUTPUT, row))
        commit_token(advance, slot, token)
        put_tokens(advance, lane, emitted, token)
        emitted += 1
        going = m.get_i32(status) == RUNNING
        if going and emitted < length:
            going = m.get_i32(at(w, V_ROWS, row + 1) + TOKEN) == token
    endpoint = m.get_i32(at(advance, A_CONSUMED, lane)) + emitted
    write_record(advance, lane, slot, length - 1, max(emitted - 1, np.int64(0)), emitted, endpoint)


@kernel(boundscheck=False)
def verify(operations, number, first, last, scratch):
    """Verify and the three operations behind it, over a range of lanes."""
    for lane in range(first, last):
        verify_lane(operations[number], operations[number + 1], operations[number + 2],
                    operations[number + 3], lane, scratch)

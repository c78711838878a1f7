"""Speculative programs of the simulated device: drafts, confidence, allocation, verification.

A draft is the token that the target would draw, or another one, as a hash decides: so acceptance is
what a test or a model (acceptance.py) asks for, and the target's tokens are those of plain decode
whatever is drafted. Without a model a draft's confidence knows in part whether it is right.
`allocate_prefixes` is the reference that device code is compared with.
"""

import numpy as np

from helios_dod.executors.acceptance import foretell
from helios_dod.executors.simulated_device import (
    NONE,
    advance,
    allowed_from,
    draw,
    mix,
    record,
    update_table,
)
from helios_dod.limits import MASK_BITS
from helios_dod.system import kernel
from helios_dod.terms import (
    SOURCE_CANDIDATE_COUNT,
    SOURCE_CANDIDATE_ENDPOINT,
    SOURCE_CANDIDATE_GENERATION,
    SOURCE_CANDIDATE_MASKS,
    SOURCE_CANDIDATE_TOKENS,
    SOURCE_CONSUMED,
    SOURCE_GENERATION,
    SOURCE_LIVE_LANES,
    SOURCE_QUERY_LENGTH,
    SOURCE_SLOT,
    SOURCE_SPECULATIVE_PREFIX_LIMIT,
    STATUS_RUNNING,
)


@kernel
def sooner(a, b, survivals, slots, lengths):
    """Is lane a's next position more likely to be reached than lane b's? Ties prefer the shorter
    prefix, then the smaller slot."""
    if survivals[a] != survivals[b]:
        return survivals[a] > survivals[b]
    return (lengths[a], slots[a]) < (lengths[b], slots[b])


@kernel
def sink(heap, place, count, survivals, slots, lengths):
    """Lets the lane at a place of a binary heap of `count` go below those that come sooner."""
    lane, below = heap[place], 2 * place + 1
    while below < count:
        if below + 1 < count and sooner(heap[below + 1], heap[below], survivals, slots, lengths):
            below += 1
        if not sooner(heap[below], lane, survivals, slots, lengths):
            break
        heap[place] = heap[below]
        place, below = below, 2 * below + 1
    heap[place] = lane


@kernel
def allocate_prefixes(confidence, slots, ceilings, packed, survivals, heap, lengths):
    """Target rows of each lane, at most its ceiling, `packed` together, into `lengths`.

    confidence: f32 [lanes, drafts], each draft's own given that its predecessors are accepted.
    slots, ceilings, lengths: i32 [lanes]. Every lane starts with its pending position; then the
    lane with the highest survival at its immediate frontier gets one more, so that a later
    confidence never admits a predecessor. fp32 values are multiplied in fp64.

    survivals: f64 [lanes], heap: i32 [lanes], both to work in: of the lanes that are not full."""
    lanes, open_count = lengths.shape[0], 0
    lengths[:] = 1
    for lane in range(lanes):
        if ceilings[lane] > 1:
            survivals[lane] = np.float64(confidence[lane, 0])
            heap[open_count] = lane
            open_count += 1
    for place in range(open_count // 2 - 1, -1, -1):
        sink(heap, place, open_count, survivals, slots, lengths)
    for _ in range(packed - lanes):
        if open_count == 0:
            return
        lane = heap[0]
        lengths[lane] += 1
        if lengths[lane] < ceilings[lane]:
            survivals[lane] *= np.float64(confidence[lane, lengths[lane] - 1])
        else:
            open_count -= 1
            heap[0] = heap[open_count]
        sink(heap, 0, open_count, survivals, slots, lengths)


@kernel
def candidates_of(words, at, lane, start):
    """Copied drafts that were made for this state of the lane: others are not taken."""
    if at[SOURCE_CANDIDATE_COUNT] < 0:
        return 0
    if (words[at[SOURCE_CANDIDATE_ENDPOINT] + lane] != start
            or words[at[SOURCE_CANDIDATE_GENERATION] + lane]
            != words[at[SOURCE_GENERATION] + lane]):
        return 0
    return words[at[SOURCE_CANDIDATE_COUNT] + lane]


@kernel
def history_at(position, slot, page_tokens, table, cache, empty):
    """The record before a position."""
    if position == 0:
        return np.uint64(empty)
    before = position - 1
    return cache[table[slot, before // page_tokens], before % page_tokens]


@kernel
def propose(words, at, lane, count, start, history, seed, vocabulary, accept, model, drafts,
            confidence):
    """Fills drafts[lane, :count] behind the pending token's record, and their confidence. accept:
    per cent that are right, unless there is a model."""
    copied = candidates_of(words, at, lane, start)
    for i in range(count):
        truth = draw(history, seed, vocabulary)
        chance = mix(history ^ np.uint64(0xA5A5A5A5))
        hit = np.int64(chance % np.uint64(100)) < accept
        sure = np.float32(chance >> np.uint64(40)) / np.float32(1 << 24)  # in [0, 1)
        confidence[lane, i] = (sure + np.float32(hit)) / np.float32(2)
        if model.shape[0] > 0:
            hit, confidence[lane, i] = foretell(model, seed, start + i, i)
        token = truth if hit else np.int32((truth + 1) % vocabulary)
        if i < copied:
            token = words[at[SOURCE_CANDIDATE_TOKENS] + lane * count + i]
        drafts[lane, i] = token
        history = record(history, token)


@kernel
def verify(words, masks, lane, start, length, slot, page_tokens, vocabulary, table, cache, pending,
           drafts, seeds, limits, minimums, stops, generated, status, history, differ, tokens):
    """Writes the records of all target rows; commits drafts while each equals what the target
    draws, under the mask of its place. masks: first word of the lane's, -1 without. The tokens that
    were emitted: their number."""
    token, emitted, going = pending[slot], 0, status[slot] == STATUS_RUNNING
    for i in range(length):
        history = record(history, token)
        place = start + i
        cache[table[slot, place // page_tokens], place % page_tokens] = history
        drawn = draw(history ^ differ[i], seeds[slot], vocabulary)
        if masks >= 0:
            mask = masks + i * -(-vocabulary // MASK_BITS)
            drawn = allowed_from(words, mask, drawn, vocabulary)
        if going:
            tokens[emitted] = drawn
            emitted += 1
            pending[slot] = drawn
            advance(slot, drawn, limits, minimums, stops, generated, status)
            going = status[slot] == STATUS_RUNNING
        if i + 1 < length:
            token = drafts[lane, i]
            going = going and token == drawn
    return emitted


@kernel
def lengths_of(words, at, lanes, packed, confidence, survivals, heap, lengths):
    """Target rows of each lane: what the host says, or an allocation under its ceilings, which
    works in `survivals` and `heap`."""
    if at[SOURCE_QUERY_LENGTH] >= 0:
        for lane in range(lanes):
            lengths[lane] = words[at[SOURCE_QUERY_LENGTH] + lane]
        return
    first, slot = at[SOURCE_SPECULATIVE_PREFIX_LIMIT], at[SOURCE_SLOT]
    allocate_prefixes(
        confidence, words[slot:slot + lanes], words[first:first + lanes], packed, survivals, heap,
        lengths[:lanes])


@kernel
def propose_round(world, frame, at, draft_count, packed, page_tokens, vocabulary, accept, model,
                  empty, table, cache, pending, endpoint, seeds, drafts, confidence, survivals,
                  heap, lengths):
    """The first half of a complete speculative program: drafts and target rows of each lane.

    drafts, confidence: [lanes, drafts] of this frame; lengths: [lanes]; survivals, heap: see
    allocate_prefixes."""
    words = world[0].staging.words[frame]
    lanes = words[at[SOURCE_LIVE_LANES]]
    update_table(words, at, table)
    for lane in range(lanes):
        slot = words[at[SOURCE_SLOT] + lane]
        if at[SOURCE_CONSUMED] >= 0:
            endpoint[slot] = words[at[SOURCE_CONSUMED] + lane]
        start = endpoint[slot]
        history = history_at(start, slot, page_tokens, table, cache, empty)
        propose(words, at, lane, draft_count, start, record(history, pending[slot]), seeds[slot],
                vocabulary, accept, model, drafts, confidence)
    lengths_of(words, at, lanes, packed, confidence, survivals, heap, lengths)


@kernel
def report(world, frame, at, lane, offered, emitted, endpoint, status):
    """What a round says of one lane; it has no draft cursor."""
    words, done = world[0].staging.words[frame], world[0].completions
    done.slot[frame, lane] = words[at[SOURCE_SLOT] + lane]
    done.generation[frame, lane] = words[at[SOURCE_GENERATION] + lane]
    done.status[frame, lane] = status
    done.offered[frame, lane] = offered
    done.accepted[frame, lane] = max(emitted - 1, 0)
    done.emitted[frame, lane] = emitted
    done.endpoint[frame, lane] = endpoint
    done.cursor[frame, lane] = NONE
    done.reserved[frame, lane] = NONE


@kernel
def verify_round(world, frame, at, width, page_tokens, vocabulary, lag, refused, empty, table,
                 cache, pending, endpoint, seeds, limits, minimums, stops, generated, status,
                 drafts, lengths, differs):
    """The second half: target rows, accepted tokens, completion. width: masks of a lane. refused: a
    rank rejects the cohort, nothing is committed. lag: of the draft cursor, -1 without one.
    differs: [lanes, rows], what other histories disagree in behind each target row, 0: nothing."""
    words, done = world[0].staging.words[frame], world[0].completions
    lanes, rows = words[at[SOURCE_LIVE_LANES]], 0
    for lane in range(lanes):
        slot, emitted = words[at[SOURCE_SLOT] + lane], 0
        start = endpoint[slot]
        if not refused:
            masks = at[SOURCE_CANDIDATE_MASKS]
            if masks >= 0:
                masks += lane * width * -(-vocabulary // MASK_BITS)
            emitted = verify(
                words, masks, lane, start, lengths[lane], slot, page_tokens, vocabulary, table,
                cache, pending, drafts, seeds, limits, minimums, stops, generated, status,
                history_at(start, slot, page_tokens, table, cache, empty), differs[lane],
                done.tokens[frame, lane])
        endpoint[slot] = start + emitted
        rows += lengths[lane]
        report(world, frame, at, lane, lengths[lane] - 1, emitted, endpoint[slot], status[slot])
        done.cursor[frame, lane] = max(endpoint[slot] - lag, 0) if lag >= 0 else NONE
    done.aggregate[frame] = rows
    done.agreement[frame] = not refused

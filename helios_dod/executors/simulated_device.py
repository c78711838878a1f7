"""Plain programs of the simulated device, over shadow contents (see simulated.py)."""

import numpy as np

from helios_dod.limits import EOS_MAX, MASK_BITS
from helios_dod.system import float_bits, kernel, prefetch
from helios_dod.terms import (
    SOURCE_CONSUMED,
    SOURCE_GENERATED,
    SOURCE_GENERATION,
    SOURCE_GRAMMAR_MASK,
    SOURCE_LIVE_LANES,
    SOURCE_LIVE_SAMPLED,
    SOURCE_OUTPUT_LIMIT,
    SOURCE_OUTPUT_MINIMUM,
    SOURCE_PAGE_UPDATE_COUNT,
    SOURCE_PAGE_UPDATES,
    SOURCE_PENDING_TOKEN,
    SOURCE_QUERY_LENGTH,
    SOURCE_QUERY_START,
    SOURCE_SEED,
    SOURCE_SLOT,
    SOURCE_STOP_TOKENS,
    SOURCE_TARGET_TOKEN,
    SOURCE_TOKEN,
    STATUS_EOS,
    STATUS_LIMIT,
    STATUS_RUNNING,
)

SOURCES = 96
EMPTY_HISTORY = 0x243F6A8885A308D3  # the record before the first token
NONE = -1
AHEAD = 8  # lanes whose records are asked for before they are read


@kernel
def mix(value):
    """SplitMix64's finaliser, over uint64 (Steele, Lea and Flood 2014)."""
    value = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def record(previous, token):
    """The shadow record of a position: its token chained to the record before it."""
    return mix(np.uint64(previous) ^ (np.uint64(token) * np.uint64(0xD6E8FEB86659FD93)))


@kernel
def draw(history, seed, vocabulary):
    """The token that follows a history."""
    return np.int32(mix(history ^ np.uint64(seed)) % np.uint64(vocabulary))


@kernel
def score_of(history, token):
    """The made-up log-probability of a token behind a history: float32, from -16 to 0."""
    high = mix(history ^ (np.uint64(token) + np.uint64(1))) >> np.uint64(40)
    return np.float32(-np.float64(high) / 1048576.0)


@kernel
def allowed_from(words, first, token, vocabulary):
    """The first token from `token` on, around the vocabulary, whose bit is set in a mask; -1 if
    none is."""
    for i in range(vocabulary):
        at = (token + i) % vocabulary
        if (words[first + at // MASK_BITS] >> (at % MASK_BITS)) & 1:
            return np.int32(at)
    return np.int32(NONE)


@kernel
def initialize(words, at, seeds, limits, minimums, stops, generated, status):
    """Copies the admission values of the frame's lanes to their slots."""
    for lane in range(words[at[SOURCE_LIVE_LANES]]):
        slot = words[at[SOURCE_SLOT] + lane]
        low = np.uint64(np.uint32(words[at[SOURCE_SEED] + 2 * lane]))
        high = np.uint64(np.uint32(words[at[SOURCE_SEED] + 2 * lane + 1]))
        seeds[slot] = low | (high << np.uint64(32))
        limits[slot] = words[at[SOURCE_OUTPUT_LIMIT] + lane]
        minimums[slot] = words[at[SOURCE_OUTPUT_MINIMUM] + lane]
        for i in range(EOS_MAX):
            stops[slot, i] = words[at[SOURCE_STOP_TOKENS] + lane * EOS_MAX + i]
        generated[slot] = words[at[SOURCE_GENERATED] + lane]
        status[slot] = STATUS_RUNNING


@kernel
def update_table(words, at, table):
    """Page-table entries newly assigned."""
    for i in range(words[at[SOURCE_PAGE_UPDATE_COUNT]]):
        base = at[SOURCE_PAGE_UPDATES] + 3 * i
        table[words[base], words[base + 1]] = words[base + 2]


@kernel
def ask_for_record(words, at, lane, page_tokens, table, cache):
    """Asks for the cache line of the record before a lane's first."""
    slot, position = words[at[SOURCE_SLOT] + lane], words[at[SOURCE_CONSUMED] + lane]
    if position > 0:
        before = position - 1
        prefetch(cache[table[slot, before // page_tokens]], before % page_tokens)


@kernel
def consume(words, at, lane, slot, page_tokens, table, cache, pending):
    """Writes the lane's records through the page table; the last one."""
    start, position = words[at[SOURCE_QUERY_START] + lane], words[at[SOURCE_CONSUMED] + lane]
    history = np.uint64(EMPTY_HISTORY)
    if position > 0:
        before = position - 1
        history = cache[table[slot, before // page_tokens], before % page_tokens]
    for i in range(words[at[SOURCE_QUERY_LENGTH] + lane]):
        token = np.int32(NONE)
        if at[SOURCE_PENDING_TOKEN] >= 0:
            token = words[at[SOURCE_PENDING_TOKEN] + lane]
        elif at[SOURCE_TOKEN] >= 0:
            token = words[at[SOURCE_TOKEN] + start + i]
        if token < 0:
            token = pending[slot]
        history = record(history, token)
        cache[table[slot, (position + i) // page_tokens], (position + i) % page_tokens] = history
    return history


@kernel
def score_lane(words, at, frame, lane, slot, page_tokens, table, cache, done):
    """Scores of the tokens behind those that the lane has consumed, from their records."""
    start, position = words[at[SOURCE_QUERY_START] + lane], words[at[SOURCE_CONSUMED] + lane]
    for i in range(words[at[SOURCE_QUERY_LENGTH] + lane]):
        page = table[slot, (position + i) // page_tokens]
        history = cache[page, (position + i) % page_tokens]
        target = words[at[SOURCE_TARGET_TOKEN] + start + i]
        done.scores[frame, start + i] = float_bits(score_of(history, target))


@kernel
def advance(slot, token, limits, minimums, stops, generated, status):
    """EOS and limit on the device, as every executor applies them."""
    generated[slot] += 1
    if generated[slot] > minimums[slot]:
        for i in range(EOS_MAX):
            if stops[slot, i] < 0:  # as padded
                break
            if stops[slot, i] == token:
                status[slot] = STATUS_EOS
                return
    if generated[slot] >= limits[slot]:
        status[slot] = STATUS_LIMIT


@kernel
def run_program(world, frame, at, page_tokens, vocabulary, table, cache, pending, endpoint, seeds,
                limits, minimums, stops, generated, status, differ):
    """Page-table updates, then every lane: records, draw, completion. differ: what other histories
    of each lane disagree in, 0: nothing."""
    words, done = world[0].staging.words[frame], world[0].completions
    update_table(words, at, table)
    lanes = words[at[SOURCE_LIVE_LANES]]
    for lane in range(min(lanes, AHEAD)):
        ask_for_record(words, at, lane, page_tokens, table, cache)
    for lane in range(lanes):
        if lane + AHEAD < lanes:
            ask_for_record(words, at, lane + AHEAD, page_tokens, table, cache)
        slot = words[at[SOURCE_SLOT] + lane]
        history = consume(words, at, lane, slot, page_tokens, table, cache, pending)
        emitted = 0
        if at[SOURCE_TARGET_TOKEN] >= 0:
            score_lane(words, at, frame, lane, slot, page_tokens, table, cache, done)
        if lane < words[at[SOURCE_LIVE_SAMPLED]] and status[slot] == STATUS_RUNNING:
            token = draw(history ^ differ[lane], seeds[slot], vocabulary)
            if at[SOURCE_GRAMMAR_MASK] >= 0:
                mask = at[SOURCE_GRAMMAR_MASK] + lane * -(-vocabulary // MASK_BITS)
                token = allowed_from(words, mask, token, vocabulary)
            pending[slot] = token
            done.tokens[frame, lane, 0] = token
            emitted = 1
            advance(slot, token, limits, minimums, stops, generated, status)
        done.slot[frame, lane] = slot
        done.generation[frame, lane] = words[at[SOURCE_GENERATION] + lane]
        done.status[frame, lane] = status[slot]
        done.offered[frame, lane] = 0
        done.accepted[frame, lane] = 0
        done.emitted[frame, lane] = emitted
        endpoint[slot] = words[at[SOURCE_CONSUMED] + lane] + words[at[SOURCE_QUERY_LENGTH] + lane]
        done.endpoint[frame, lane] = endpoint[slot]
        done.cursor[frame, lane] = -1
        done.reserved[frame, lane] = -1

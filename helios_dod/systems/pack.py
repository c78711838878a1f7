"""pack: resolved bindings -> the frame's staging words. Omitted values keep what the device has."""

import numpy as np

from helios_dod.limits import BIAS_MAX, EOS_MAX, NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.grammars import mask_row
from helios_dod.tables.tokens import token_at
from helios_dod.terms import (
    FRAME_COMPOSED,
    FRAME_PACKED,
    GRAMMAR_READY,
    HISTOGRAM_PROMPT,
    INDEX_PACKED_TOKEN,
    INDEX_PHYSICAL_ROW,
    INDEX_SCALAR,
    INDEX_SUBMISSION_ROW,
    SOURCE_BIAS_COUNT,
    SOURCE_BIAS_TOKENS,
    SOURCE_BIAS_VALUES,
    SOURCE_CANDIDATE_COUNT,
    SOURCE_CANDIDATE_ENDPOINT,
    SOURCE_CANDIDATE_GENERATION,
    SOURCE_CANDIDATE_MASKS,
    SOURCE_CANDIDATE_TOKENS,
    SOURCE_CONSTANT,
    SOURCE_CONSUMED,
    SOURCE_FREQUENCY_PENALTY,
    SOURCE_GENERATED,
    SOURCE_GENERATION,
    SOURCE_GRAMMAR_MASK,
    SOURCE_LANE,
    SOURCE_LIVE_LANES,
    SOURCE_LIVE_PACKED,
    SOURCE_LIVE_SAMPLED,
    SOURCE_MIN_P,
    SOURCE_OUTPUT_LIMIT,
    SOURCE_OUTPUT_MINIMUM,
    SOURCE_PAGE_COPIES,
    SOURCE_PAGE_COPY_COUNT,
    SOURCE_PAGE_UPDATE_COUNT,
    SOURCE_PAGE_UPDATES,
    SOURCE_PENDING_TOKEN,
    SOURCE_POSITION,
    SOURCE_PRESENCE_PENALTY,
    SOURCE_PROMPT_HISTOGRAM,
    SOURCE_QUERY_LENGTH,
    SOURCE_QUERY_START,
    SOURCE_REPETITION_PENALTY,
    SOURCE_RESTORE_SOURCE,
    SOURCE_SAMPLE_ROW,
    SOURCE_SEED,
    SOURCE_SLOT,
    SOURCE_SNAPSHOT_DESTINATION,
    SOURCE_SPECULATIVE_PREFIX_LIMIT,
    SOURCE_STATE_ROW,
    SOURCE_STOP_TOKENS,
    SOURCE_TARGET_TOKEN,
    SOURCE_TEMPERATURE,
    SOURCE_TOKEN,
    SOURCE_TOP_K,
    SOURCE_TOP_LOGPROBS,
    SOURCE_TOP_P,
)


@kernel
def scalar_value(world, frame, source, constant):
    """Value of a scalar source."""
    frames = world[0].frames
    if source == SOURCE_LIVE_LANES:
        return frames.lane_count[frame]
    if source == SOURCE_LIVE_PACKED:
        return frames.packed_count[frame]
    if source == SOURCE_LIVE_SAMPLED:
        return frames.sampled_count[frame]
    if source == SOURCE_PAGE_COPY_COUNT:
        return frames.page_copy_count[frame]
    assert source == SOURCE_CONSTANT
    return constant


@kernel
def put(words, first, column, count, offset):
    """words[first + i] = column[i] + offset."""
    for i in range(count):
        words[first + i] = column[i] + offset


@kernel
def pack_geometry(world, frame, binding, words):
    """Lane columns that are copied as they are; False if the source is another one."""
    lanes, bindings = world[0].lanes, world[0].bindings
    source, first = bindings.source[binding], bindings.first[binding]
    offset, count = bindings.offset[binding], world[0].frames.lane_count[frame]
    if source == SOURCE_SLOT:
        put(words, first, lanes.slot[frame], count, offset)
    elif source in (SOURCE_GENERATION, SOURCE_CANDIDATE_GENERATION):
        for lane in range(count):
            words[first + lane] = lanes.generation[frame, lane]
    elif source == SOURCE_QUERY_LENGTH:
        put(words, first, lanes.query_length[frame], count, offset)
    elif source == SOURCE_QUERY_START:
        put(words, first, lanes.query_start[frame], count, offset)
    elif source == SOURCE_SPECULATIVE_PREFIX_LIMIT:
        put(words, first, lanes.ceiling[frame], count, offset)
    elif source in (SOURCE_CONSUMED, SOURCE_CANDIDATE_ENDPOINT):
        put(words, first, lanes.consumed[frame], count, offset)
    elif source == SOURCE_SAMPLE_ROW:
        for lane in range(count):
            last = lanes.query_start[frame, lane] + lanes.query_length[frame, lane] - 1
            words[first + lane] = last + offset
    elif source == SOURCE_CANDIDATE_COUNT:
        put(words, first, lanes.candidate_count[frame], count, offset)
    elif source == SOURCE_CANDIDATE_TOKENS:
        width = bindings.words[binding]
        for lane in range(count):
            put(words, first + lane * width, lanes.candidates[frame, lane],
                lanes.candidate_count[frame, lane], offset)
    else:
        return False
    return True


@kernel
def put_rows(words, first, column, count, width):
    """words[first + i] = first row of column[i], -1 where it names none."""
    for i in range(count):
        words[first + i] = column[i] * width if column[i] != NO_ROW else -1


@kernel
def pack_rows(world, frame, binding, words):
    """State and snapshot rows of each lane; False if the source is another one."""
    lanes, bindings, width = world[0].lanes, world[0].bindings, world[0].settings.state_rows
    source, first = bindings.source[binding], bindings.first[binding]
    count = world[0].frames.lane_count[frame]
    if source == SOURCE_STATE_ROW:
        put_rows(words, first, lanes.slot[frame], count, width)
    elif source == SOURCE_RESTORE_SOURCE:
        put_rows(words, first, lanes.restore[frame], count, width)
    elif source == SOURCE_SNAPSHOT_DESTINATION:
        put_rows(words, first, lanes.snapshot[frame], count, width)
    else:
        return False
    return True


@kernel
def packed_value(world, source, lane, slot, position):
    """Value of a packed token at a position of its slot's request."""
    row = world[0].slots.request[slot]
    prompt_count = world[0].requests.prompt_count[row]
    if source == SOURCE_LANE:
        return lane
    if source == SOURCE_POSITION:
        return position
    if source == SOURCE_TARGET_TOKEN:
        return token_at(world, row, position + 1) if position + 1 < prompt_count else 0
    assert source == SOURCE_TOKEN
    known = world[0].slots.prefill_end[slot]
    if world[0].settings.host_pending == 1:
        known = world[0].requests.token_count[row]
    if position < known:
        return token_at(world, row, position)
    return -1  # the device owns it


@kernel
def pack_tokens(world, frame, binding, words):
    """Sources with one value a packed token; what the device owns stays -1 at any offset."""
    lanes, bindings = world[0].lanes, world[0].bindings
    source, offset = bindings.source[binding], bindings.offset[binding]
    for lane in range(world[0].frames.lane_count[frame]):
        slot = lanes.slot[frame, lane]
        at = bindings.first[binding] + lanes.query_start[frame, lane]
        position = lanes.consumed[frame, lane]
        for i in range(lanes.query_length[frame, lane]):
            value = packed_value(world, source, lane, slot, position + i)
            words[at + i] = value + offset if value >= 0 else value


@kernel
def admission_word(world, row, source):
    """One-word admission value of a request."""
    requests = world[0].requests
    if source == SOURCE_TEMPERATURE:
        return requests.temperature[row]
    if source == SOURCE_TOP_P:
        return requests.top_p[row]
    if source == SOURCE_MIN_P:
        return requests.min_p[row]
    if source == SOURCE_TOP_K:
        return requests.top_k[row]
    if source == SOURCE_REPETITION_PENALTY:
        return requests.repetition_penalty[row]
    if source == SOURCE_PRESENCE_PENALTY:
        return requests.presence_penalty[row]
    if source == SOURCE_FREQUENCY_PENALTY:
        return requests.frequency_penalty[row]
    if source == SOURCE_OUTPUT_LIMIT:
        return requests.output_limit[row]
    if source == SOURCE_OUTPUT_MINIMUM:
        return requests.output_minimum[row]
    if source == SOURCE_TOP_LOGPROBS:
        return requests.top_logprobs[row]
    if source == SOURCE_BIAS_COUNT:
        return requests.bias_count[row]
    if source == SOURCE_GENERATED:
        return requests.token_count[row] - requests.prompt_count[row]
    assert source == SOURCE_PENDING_TOKEN
    return token_at(world, row, requests.token_count[row] - 1)


@kernel
def pack_array(world, row, source, words, at, count):
    """Admission values of several words; False if the source is another one."""
    requests = world[0].requests
    if source == SOURCE_SEED:
        words[at] = requests.seed[row] & 0xFFFFFFFF
        words[at + 1] = requests.seed[row] >> 32
    elif source == SOURCE_STOP_TOKENS:
        put(words, at, requests.eos[row], EOS_MAX, 0)
    elif source == SOURCE_BIAS_TOKENS:
        assert requests.bias_count[row] <= BIAS_MAX
        put(words, at, requests.bias_tokens[row], requests.bias_count[row], 0)
    elif source == SOURCE_BIAS_VALUES:
        put(words, at, requests.bias_values[row], requests.bias_count[row], 0)
    elif source == SOURCE_PROMPT_HISTOGRAM:
        words[at:at + count] = 0
        for i in range(requests.prompt_count[row]):
            words[at + token_at(world, row, i)] |= HISTOGRAM_PROMPT
        for i in range(requests.prompt_count[row], requests.token_count[row]):
            words[at + token_at(world, row, i)] += 1
    else:
        return False
    return True


@kernel
def pack_admission(world, frame, binding, words):
    """Sources that a request carries, one row a lane."""
    bindings, lanes = world[0].bindings, world[0].lanes
    source, width = bindings.source[binding], bindings.words[binding]
    for lane in range(world[0].frames.lane_count[frame]):
        row = world[0].slots.request[lanes.slot[frame, lane]]
        at = bindings.first[binding] + lane * width
        if not pack_array(world, row, source, words, at, width):
            words[at] = admission_word(world, row, source)


@kernel(boundscheck=False)
def copy_mask(words, at, masks, first, count):
    """words[at : at + count] = masks[first : first + count], the same bits."""
    for i in range(count):
        words[at + i] = np.int32(masks[first + i])


@kernel(boundscheck=False)
def fill_words(words, at, count, value):
    """words[at : at + count] = value."""
    for i in range(count):
        words[at + i] = value


@kernel
def free_mask_row(world, frame, row, at, count):
    """Makes a mask row allow every token, unless it still does."""
    staging = world[0].staging
    if staging.mask_free[frame, row] != at + 1:
        fill_words(staging.words[frame], at, count, -1)
        staging.mask_free[frame, row] = at + 1


@kernel
def pack_masks(world, frame, binding, batch):
    """The masks of each lane that samples under some: of its next token, or of every token that it
    may emit, one behind another; every other row allows every token.

    A row that allows every token is remembered, so that lanes without a grammar cost nothing."""
    bindings, lanes, slots = world[0].bindings, world[0].lanes, world[0].slots
    grammars, staging = world[0].grammars, world[0].staging
    first, width = bindings.first[binding], bindings.words[binding]
    physical = bindings.indexing[binding] == INDEX_PHYSICAL_ROW
    live = world[0].frames.lane_count[frame]
    drafts = bindings.source[binding] == SOURCE_CANDIDATE_MASKS
    assert width == grammars.mask_words or drafts
    for lane in range(live):
        slot = lanes.slot[frame, lane]
        row = slot if physical else lane
        at, grammar = first + row * width, slots.grammar[slot]
        if lanes.sampled[frame, lane] == 1 and grammar != NO_ROW:
            count = lanes.query_length[frame, lane] if drafts else 1
            assert grammars.state[grammar] == GRAMMAR_READY
            assert count <= grammars.drafts[grammar] + 1
            copy_mask(staging.words[frame], at, grammars.masks,
                      mask_row(world, grammar) * grammars.mask_words, count * grammars.mask_words)
            staging.mask_free[frame, row] = 0
        else:
            free_mask_row(world, frame, row, at, width)
    if bindings.indexing[binding] == INDEX_SUBMISSION_ROW:
        for row in range(live, batch):
            if bindings.padding[binding] == -1:
                free_mask_row(world, frame, row, first + row * width, width)
            else:
                at, staging.mask_free[frame, row] = first + row * width, 0
                fill_words(staging.words[frame], at, width, bindings.padding[binding])


@kernel
def pack_updates(world, frame, binding, words, counted):
    """Page-table entries newly assigned: slot, index, page; or, counted, only their number. A
    shifted view has no entries for the first pages of a text."""
    lanes, bindings, frames = world[0].lanes, world[0].bindings, world[0].frames
    at, shift, listed = bindings.first[binding], bindings.shift[binding], 0
    windowed = bindings.group[binding] == 1
    total = frames.page_update_count[frame]
    slots, indices = lanes.page_update_slot[frame], lanes.page_update_index[frame]
    pages = lanes.page_update_page[frame]
    if windowed:
        total = frames.window_update_count[frame]
        slots, indices = lanes.window_update_slot[frame], lanes.window_update_index[frame]
        pages = lanes.window_update_page[frame]
    for i in range(total):
        if indices[i] < shift:
            continue
        if not counted:
            words[at + 3 * listed] = slots[i]
            words[at + 3 * listed + 1] = indices[i] - shift
            words[at + 3 * listed + 2] = pages[i]
        listed += 1
    if counted:
        words[at] = listed


@kernel
def pack_copies(world, frame, first, words):
    """Pages to be copied: source, destination."""
    lanes = world[0].lanes
    for i in range(world[0].frames.page_copy_count[frame]):
        words[first + 2 * i] = lanes.page_copy_source[frame, i]
        words[first + 2 * i + 1] = lanes.page_copy_target[frame, i]


@kernel
def pack_binding(world, frame, binding, batch):
    """Writes one binding of the frame's program; inactive submission rows get its padding."""
    bindings, words = world[0].bindings, world[0].staging.words[frame]
    source, first = bindings.source[binding], bindings.first[binding]
    width = bindings.words[binding]
    if source in (SOURCE_PAGE_UPDATES, SOURCE_PAGE_UPDATE_COUNT):
        pack_updates(world, frame, binding, words, source == SOURCE_PAGE_UPDATE_COUNT)
        return
    if source == SOURCE_PAGE_COPIES:
        pack_copies(world, frame, first, words)
        return
    if source in (SOURCE_GRAMMAR_MASK, SOURCE_CANDIDATE_MASKS):
        pack_masks(world, frame, binding, batch)
        return
    if bindings.indexing[binding] == INDEX_SCALAR:
        words[first] = scalar_value(world, frame, source, bindings.constant[binding])
        return
    if bindings.indexing[binding] == INDEX_PACKED_TOKEN:
        pack_tokens(world, frame, binding, words)
        return
    if not pack_geometry(world, frame, binding, words) and not pack_rows(
            world, frame, binding, words):
        pack_admission(world, frame, binding, words)
    if bindings.indexing[binding] == INDEX_SUBMISSION_ROW:
        live = world[0].frames.lane_count[frame]
        words[first + live * width:first + batch * width] = bindings.padding[binding]


@system(
    reads="bindings.* programs.* frames.* lanes.* slots.* requests.* tokens.ids settings.* "
          "grammars.*",
    writes="staging.words staging.mask_free frames.state",
)
def pack(world):
    """Packs every composed frame."""
    frames, programs = world[0].frames, world[0].programs
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_COMPOSED:
            continue
        program = frames.program[frame]
        for i in range(programs.binding_count[program]):
            pack_binding(world, frame, programs.binding_first[program] + i, programs.batch[program])
        frames.state[frame] = FRAME_PACKED

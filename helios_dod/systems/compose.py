"""compose: choose a free frame's cohort, operation and program."""

from helios_dod.limits import NO_ROW, SCORES_MAX
from helios_dod.system import kernel, system
from helios_dod.tables.grammars import may_sample, outstanding
from helios_dod.tables.requests import scores_left
from helios_dod.terms import (
    FLAG_PENALTIES,
    FRAME_COMPOSED,
    FREE,
    GRAMMAR_READY,
    OP_DECODE,
    OP_INITIALIZE,
    OP_MIXED,
    OP_PREFILL,
    OP_SCORED_PREFILL,
    SLOT_ADMITTED,
    SLOT_DECODE,
    SLOT_PREFILL,
)


@kernel
def find_program(world, operation, lanes, packed, host_pending, histogram, masked):
    """The smallest loaded variant that holds so many lanes and packed tokens.

    masked: 1 if a lane is constrained; without one, a variant that takes no masks is better."""
    programs = world[0].programs
    best = NO_ROW
    for row in range(programs.program_count):
        if (programs.operation[row] != operation or programs.batch[row] < lanes
                or programs.packed[row] < packed or programs.host_pending[row] != host_pending
                or programs.histogram[row] != histogram or programs.masked[row] < masked):
            continue
        if best == NO_ROW or (
                programs.packed[row], programs.batch[row], programs.masked[row]) < (
                programs.packed[best], programs.batch[best], programs.masked[best]):
            best = row
    return best


@kernel
def add_lane(world, frame, slot, length, sampled):
    """Appends a lane that consumes `length` tokens from the slot's scheduled endpoint on."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    lane = frames.lane_count[frame]
    lanes.slot[frame, lane] = slot
    lanes.generation[frame, lane] = slots.generation[slot]
    lanes.query_start[frame, lane] = frames.packed_count[frame]
    lanes.query_length[frame, lane] = length
    lanes.consumed[frame, lane] = slots.scheduled[slot]
    lanes.ceiling[frame, lane] = sampled
    lanes.sampled[frame, lane] = sampled
    frames.lane_count[frame] = lane + 1
    frames.sampled_count[frame] += sampled
    if sampled == 1 and slots.grammar[slot] != NO_ROW:
        frames.constrained_count[frame] += 1
    frames.packed_count[frame] += length


@kernel
def decodable(world, frame, slot):
    """May the slot's next token be computed in this frame?"""
    slots, requests = world[0].slots, world[0].requests
    if slots.state[slot] != SLOT_DECODE:
        return False
    row = slots.request[slot]
    if slots.scheduled[slot] + 1 - requests.prompt_count[row] >= requests.output_limit[row]:
        return False  # the token that reaches the limit is already in flight
    if slots.feedback[slot] == 1 and slots.in_flight[slot] > 0:
        return False
    return (slots.scores_held[slot, frame] == 0 and requests.stamp_end[row, frame] == 0
            and may_sample(world, slot))


@kernel
def compose_initialize(world, frame):
    """A cohort of newly admitted slots that all need, or all do not need, a prompt histogram."""
    frames, slots, requests = world[0].frames, world[0].slots, world[0].requests
    program, histogram = NO_ROW, 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] != SLOT_ADMITTED:
            continue
        needs = requests.flags[slots.request[slot]] & FLAG_PENALTIES
        if program == NO_ROW:
            histogram = needs
            program = find_program(world, OP_INITIALIZE, 1, 0, 0, histogram, 0)
            assert program != NO_ROW, "programs: no initialize variant"
        elif needs != histogram:
            continue
        add_lane(world, frame, slot, 0, 0)
        slots.state[slot] = SLOT_PREFILL
        if frames.lane_count[frame] == world[0].programs.batch[program]:
            break
    return program


@kernel
def scores_due(world, slot):
    """Prompt tokens that the slot consumes by scored prefill before it goes on as others do."""
    row = world[0].slots.request[slot]
    if scores_left(world, row) <= 0:
        return 0
    return max(world[0].requests.prompt_count[row] - 1 - world[0].slots.scheduled[slot], 0)


@kernel
def room_tokens(world, frame, slot):
    """Tokens that the slot can consume with the pages and page-table updates left in this frame."""
    frames, slots = world[0].frames, world[0].slots
    pending = slots.page_count[slot] - slots.uploaded_count[slot]
    if pending > frames.update_room[frame]:
        return 0
    pages = min(frames.page_room[frame], frames.update_room[frame] - pending)
    held = (slots.page_count[slot] + pages) * world[0].settings.page_tokens
    return held - slots.scheduled[slot]


@kernel
def add_work(world, frame, slot, length, sampled):
    """A lane, and the room that it takes."""
    frames, slots = world[0].frames, world[0].slots
    pages = -(-(slots.scheduled[slot] + length) // world[0].settings.page_tokens)
    fresh = max(pages - slots.page_count[slot], 0)
    frames.page_room[frame] -= fresh
    frames.update_room[frame] -= slots.page_count[slot] - slots.uploaded_count[slot] + fresh
    add_lane(world, frame, slot, length, sampled)


@kernel
def compose_decodes(world, frame):
    """Every slot whose next token can be computed; their number."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if decodable(world, frame, slot) and room_tokens(world, frame, slot) >= 1:
            add_work(world, frame, slot, 1, 1)
    return world[0].frames.lane_count[frame]


@kernel
def compose_prompts(world, frame, budget):
    """Prompts that end in this frame, then one chunk of the next, since lanes that sample come
    first. In admission order: a prompt that finds no room lets none pass."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] != SLOT_PREFILL or scores_due(world, slot) > 0:
            continue
        rest = slots.prefill_end[slot] - slots.scheduled[slot]
        chunk = min(min(rest, budget), room_tokens(world, frame, slot))
        if chunk == rest and not may_sample(world, slot):
            continue
        if chunk <= 0:
            return
        add_work(world, frame, slot, chunk, 1 if chunk == rest else 0)
        if chunk < rest:
            return
        slots.state[slot] = SLOT_DECODE
        budget -= chunk


@kernel
def compose_scored(world, frame):
    """A chunk of every prompt whose scores are due and that holds none undelivered; the program, or
    NO_ROW."""
    frames, slots, programs = world[0].frames, world[0].slots, world[0].programs
    program = NO_ROW
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (slots.state[slot] != SLOT_PREFILL or slots.in_flight[slot] > 0
                or slots.prompt_score_count[slot] > 0 or scores_due(world, slot) == 0):
            continue
        if program == NO_ROW:
            program = find_program(world, OP_SCORED_PREFILL, 1, 1, 0, 0, 0)
            assert program != NO_ROW, "programs: no scored prefill variant"
        room = min(programs.packed[program] - frames.packed_count[frame],
                   room_tokens(world, frame, slot))
        chunk = min(min(scores_due(world, slot), SCORES_MAX), room)
        if chunk <= 0:
            break
        add_work(world, frame, slot, chunk, 0)
        if frames.lane_count[frame] == programs.batch[program]:
            break
    return program if frames.lane_count[frame] > 0 else NO_ROW


@kernel
def compose_lanes(world, frame):
    """Decode lanes, then prompts; the number of the former."""
    decodes = compose_decodes(world, frame)
    compose_prompts(world, frame, world[0].settings.prefill_tokens - decodes)
    return decodes


@kernel
def lane_program(world, frame, decodes):
    """The variant for the composed lanes."""
    frames, host = world[0].frames, world[0].settings.host_pending
    masked = 1 if frames.constrained_count[frame] > 0 else 0
    lanes, packed = frames.lane_count[frame], frames.packed_count[frame]
    if decodes == lanes:
        return find_program(world, OP_DECODE, lanes, packed, host, 0, masked)
    if decodes == 0:
        return find_program(world, OP_PREFILL, lanes, packed, 0, 0, masked)
    return find_program(world, OP_MIXED, lanes, packed, 0, 0, masked)


@kernel
def held_by_grammar(world):
    """A constrained token is computed while nothing else is in flight: with a mask READY, nothing
    is composed until the frames in flight have finished."""
    slots, grammars = world[0].slots, world[0].grammars
    if grammars.free_count == grammars.free.shape[0]:
        return False
    if outstanding(world) == 0:
        return False
    for i in range(slots.live_count):
        slot = slots.live[i]
        row = slots.grammar[slot]
        if row == NO_ROW or slots.in_flight[slot] > 0 or grammars.state[row] != GRAMMAR_READY:
            continue
        rest = slots.prefill_end[slot] - slots.scheduled[slot]
        if slots.state[slot] == SLOT_DECODE or (
                slots.state[slot] == SLOT_PREFILL and rest <= world[0].settings.prefill_tokens):
            return True
    return False


@system(
    reads="settings.* programs.* requests.* grammars.* pages.free_count",
    writes="frames.* lanes.* slots.state counters.ticks_idle counters.barrier_grammar",
)
def compose(world):
    """Fills one free frame a tick; `scheduled` moves in `submit`."""
    frames = world[0].frames
    if held_by_grammar(world):
        world[0].counters.barrier_grammar += 1
        return
    for frame in range(frames.frame_count):
        if frames.state[frame] != FREE:
            continue
        frames.constrained_count[frame] = 0
        frames.lane_count[frame] = 0
        frames.sampled_count[frame] = 0
        frames.packed_count[frame] = 0
        frames.page_update_count[frame] = 0
        frames.page_room[frame] = world[0].pages.free_count
        frames.update_room[frame] = world[0].settings.page_updates
        program = compose_initialize(world, frame)
        if program == NO_ROW:
            program = compose_scored(world, frame)
        if program == NO_ROW:
            decodes = compose_lanes(world, frame)
            if frames.lane_count[frame] == 0:
                break
            program = lane_program(world, frame, decodes)
            assert program != NO_ROW, "programs: no variant holds the composed lanes"
        frames.program[frame] = program
        frames.error[frame] = 0
        frames.state[frame] = FRAME_COMPOSED
        return
    world[0].counters.ticks_idle += 1

"""The speculative part of `compose`: surveys the cohort, has a program chosen, and fills lanes."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel
from helios_dod.systems.lanes import (
    add_work,
    generating,
    pauses,
    ready,
    remaining,
    room_tokens,
    wait_for,
)
from helios_dod.tables.candidates import find_candidates
from helios_dod.tables.drafts import add_to_cohort, choose_round, clear_cohort, is_round
from helios_dod.tables.grammars import may_sample
from helios_dod.terms import FRAME_FINISHED, FRAME_SUBMITTED, WAIT_COST, WAIT_ENDPOINT, WAIT_HISTORY


@kernel
def drafting(world, slot):
    """Can the slot be in a round? A constrained one with its masks READY and nothing in flight."""
    return generating(world, slot) and may_sample(world, slot) and not pauses(world, slot)


@kernel
def emission_limit(world, slot):
    """Tokens that the slot may emit in a round, whatever the program."""
    if world[0].slots.narrow[slot] == 1:
        return 1
    return min(remaining(world, slot), world[0].programs.round_width)


@kernel
def copies_of(world, slot):
    """Copied drafts that the slot can offer: of a constrained one, those with masks."""
    if world[0].settings.history == 0:
        return 0
    row = world[0].slots.grammar[slot]
    if row != NO_ROW:
        return world[0].grammars.drafts[row]
    return world[0].candidates.count[slot]


@kernel
def survey(world):
    """(slots that generate, 1 if one is constrained); what they may emit is added up for the
    choice."""
    slots, lanes, masked = world[0].slots, 0, 0
    clear_cohort(world)
    for i in range(slots.live_count):
        slot = slots.live[i]
        if not drafting(world, slot):
            continue
        if world[0].settings.history == 1:
            find_candidates(world, slot, world[0].programs.round_width - 1)
        constrained = slots.grammar[slot] != NO_ROW
        add_to_cohort(world, slot, emission_limit(world, slot), copies_of(world, slot),
                      not constrained)
        masked |= constrained
        lanes += 1
    return lanes, masked


@kernel
def in_flight(world, only_probes):
    """Is some frame, or some frame that was chosen for its cost, not accepted yet?"""
    frames = world[0].frames
    for frame in range(frames.state.shape[0]):
        state = frames.state[frame]
        flying = state in (FRAME_SUBMITTED, FRAME_FINISHED)
        if flying and (not only_probes or frames.probe[frame] == 1):
            return True
    return False


@kernel
def cohort_waits(world, program):
    """Does an input of the program depend on a frame in flight? All lanes wait then, so that the
    cohort stays together. The slots that are waited for note why."""
    programs, slots, waits = world[0].programs, world[0].slots, False
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.in_flight[slot] == 0 or not drafting(world, slot):
            continue
        if programs.history_input[program] == 1 and copies_of(world, slot) > 0:
            wait_for(world, slot, WAIT_HISTORY)
            waits = True
        elif programs.endpoint_input[program] == 1 and slots.open[slot] > 0:
            wait_for(world, slot, WAIT_ENDPOINT)
            waits = True
    return waits


@kernel
def cohort_waits_for(world, cause):
    """Every slot in flight that generates notes what it waits for."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.in_flight[slot] > 0 and drafting(world, slot):
            wait_for(world, slot, cause)


@kernel
def wanted(world, frame, lane, program, drawn):
    """Tokens that a lane should be able to emit; its copies are taken over. What a program draws
    itself has no masks, so a constrained lane has its copies alone."""
    slot = world[0].lanes.slot[frame, lane]
    most = min(emission_limit(world, slot), world[0].programs.lane_limit[program])
    copies = copies_of(world, slot) if world[0].programs.history_input[program] == 1 else 0
    if copies == 0:
        return most if drawn == 1 and world[0].slots.grammar[slot] == NO_ROW else 1
    most = min(most, copies + 1)
    for i in range(most - 1):
        world[0].lanes.candidates[frame, lane, i] = world[0].candidates.tokens[slot, i]
    world[0].lanes.candidate_count[frame, lane] = most - 1
    return most


@kernel
def extend_lane(world, frame, lane):
    """One more token for a lane, if pages for it are left; True if they were."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    slot, settings = lanes.slot[frame, lane], world[0].settings
    end = slots.scheduled[slot] + lanes.query_length[frame, lane]
    index, begins = end // settings.page_tokens, end % settings.page_tokens == 0
    fresh = begins and index + settings.view_pages >= slots.page_count[slot]
    windowed = begins and settings.window_tokens > 0 and index >= slots.window_end[slot]
    if fresh and (frames.page_room[frame] < 1 or frames.update_room[frame] < 1):
        return False
    if windowed and frames.window_room[frame] < 1:
        return False
    frames.page_room[frame] -= fresh
    frames.update_room[frame] -= fresh
    frames.window_room[frame] -= windowed
    lanes.query_length[frame, lane] += 1
    lanes.ceiling[frame, lane] += 1
    return True


@kernel
def widen(world, frame, program, drawn):
    """Gives lanes their drafts, shorter prefixes first. Exact lengths fit P together; ceilings,
    under which the program allocates, need not."""
    frames, lanes, programs = world[0].frames, world[0].lanes, world[0].programs
    count = frames.lane_count[frame]
    rows, most = count, programs.packed[program]
    if programs.prefix_limit[program] == 1:
        most = count * programs.lane_limit[program]
    frames.window_room[frame] -= count  # their first tokens may begin a page each
    for lane in range(count):
        lanes.wanted[frame, lane] = wanted(world, frame, lane, program, drawn)
    for depth in range(1, programs.lane_limit[program]):
        for lane in range(count):
            if (rows < most and lanes.wanted[frame, lane] > depth
                    and lanes.query_length[frame, lane] == depth):
                if extend_lane(world, frame, lane):
                    rows += 1
    place_lanes(world, frame, program)


@kernel
def place_lanes(world, frame, program):
    """First packed rows of the lanes, and the rows that are used."""
    frames, lanes = world[0].frames, world[0].lanes
    rows = 0
    for lane in range(frames.lane_count[frame]):
        lanes.query_start[frame, lane] = rows
        rows += lanes.query_length[frame, lane]
        lanes.candidate_count[frame, lane] = min(
            lanes.candidate_count[frame, lane], lanes.query_length[frame, lane] - 1)
    frames.packed_count[frame] = min(rows, world[0].programs.packed[program])


@kernel
def compose_round(world, frame):
    """A generation round without prompts: the program, or NO_ROW if nothing can be composed now."""
    frames, slots, programs = world[0].frames, world[0].slots, world[0].programs
    if in_flight(world, True):
        cohort_waits_for(world, WAIT_COST)
        return NO_ROW
    lanes, masked = survey(world)
    if lanes == 0:
        return NO_ROW
    program, drawn, probe = choose_round(world, lanes, masked)
    if probe == 1 and in_flight(world, False):
        cohort_waits_for(world, WAIT_COST)
        return NO_ROW
    if cohort_waits(world, program):
        return NO_ROW
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (drafting(world, slot) and ready(world, frame, slot)
                and room_tokens(world, frame, slot) >= 1):
            add_work(world, frame, slot, 1, 1)
    if frames.lane_count[frame] == 0:
        return NO_ROW
    frames.drawn[frame] = drawn
    frames.probe[frame] = probe
    if probe == 1:
        programs.probed_ns = world[0].clock.now_ns
    if is_round(world, program):
        widen(world, frame, program, drawn)
    return program

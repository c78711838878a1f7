"""Lanes of the frame that `compose` fills: who may join, how much room is left, who waits for
what."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel
from helios_dod.tables.grammars import may_sample
from helios_dod.tables.pages import pages_of
from helios_dod.tables.requests import scores_left
from helios_dod.tables.values import ANSWER_PAGES, note_taken, wanted
from helios_dod.terms import (
    CAUSE_ANSWER,
    CLOSING_KEPT,
    CLOSING_NONE,
    CLOSING_PAUSED,
    SLOT_DECODE,
    WAIT_COST,
    WAIT_ENDPOINT,
    WAIT_HISTORY,
    WAIT_HOST_PENDING,
    WAIT_HOST_STOP,
    WAIT_PHASE,
)


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
    lanes.candidate_count[frame, lane] = 0
    lanes.sampled[frame, lane] = sampled
    frames.lane_count[frame] = lane + 1
    frames.sampled_count[frame] += sampled
    if sampled == 1 and slots.grammar[slot] != NO_ROW:
        frames.constrained_count[frame] += 1
    frames.packed_count[frame] += length
    slots.waits[slot] = 0
    if length > 0 and slots.closing[slot] == CLOSING_KEPT:
        slots.closing[slot] = CLOSING_NONE


@kernel
def room_tokens(world, frame, slot):
    """Tokens that the slot can consume with the pages and page-table updates left in this frame."""
    frames, slots = world[0].frames, world[0].slots
    pending = slots.page_count[slot] - slots.uploaded_count[slot]
    if pending > frames.update_room[frame]:
        return 0
    pages = min(frames.page_room[frame], frames.update_room[frame] - pending)
    held = slots.page_count[slot] + pages - world[0].settings.view_pages
    return held * world[0].settings.page_tokens - slots.scheduled[slot]


@kernel
def has_room(world, frame, slot):
    """Can the frame take the pages and page-table updates that the slot lacks for what it has?"""
    frames, slots = world[0].frames, world[0].slots
    fresh = max(pages_of(world, slots.scheduled[slot]) - slots.page_count[slot], 0)
    updates = slots.page_count[slot] - slots.uploaded_count[slot] + fresh
    return fresh <= frames.page_room[frame] and updates <= frames.update_room[frame]


@kernel
def take_room(world, frame, slot, length):
    """Sets pages and updates aside for so many tokens of a slot."""
    frames, slots = world[0].frames, world[0].slots
    pages = pages_of(world, slots.scheduled[slot] + length)
    fresh = max(pages - slots.page_count[slot], 0)
    frames.page_room[frame] -= fresh
    frames.update_room[frame] -= slots.page_count[slot] - slots.uploaded_count[slot] + fresh


@kernel
def add_work(world, frame, slot, length, sampled):
    """A lane, and the room that it takes."""
    take_room(world, frame, slot, length)
    add_lane(world, frame, slot, length, sampled)


@kernel
def scores_due(world, slot):
    """Prompt tokens that the slot consumes by scored prefill before it goes on as others do."""
    row = world[0].slots.request[slot]
    if scores_left(world, row) <= 0:
        return 0
    return max(world[0].requests.prompt_count[row] - 1 - world[0].slots.scheduled[slot], 0)


@kernel
def remaining(world, slot):
    """Tokens that the slot may still emit if all in flight emit as much as they can."""
    slots, requests = world[0].slots, world[0].requests
    row = slots.request[slot]
    return requests.prompt_count[row] + requests.output_limit[row] - slots.scheduled[slot] - 1


@kernel
def generating(world, slot):
    """Has the slot another token to compute? Not if the one that reaches its limit may be in
    flight."""
    return world[0].slots.state[slot] == SLOT_DECODE and remaining(world, slot) > 0


@kernel
def pauses(world, slot):
    """Does a slot that generates wait for a snapshot of its text so far? What is generated is found
    again without one only as far as the prompt, should the answer be sent back, or end otherwise
    than by itself. Rounds pass by a page boundary; where one ends there, nothing of it is open."""
    slots, settings = world[0].slots, world[0].settings
    if slots.closing[slot] == CLOSING_PAUSED:
        return True
    endpoint = slots.scheduled[slot]
    if (settings.snapshot_closing == 0 or endpoint % (ANSWER_PAGES * settings.page_tokens) != 0
            or endpoint <= slots.prefill_end[slot] or slots.closing[slot] != CLOSING_NONE
            or slots.open[slot] > 0 or slots.unpublished[slot] == 1):
        return False
    if not wanted(world, CAUSE_ANSWER):
        return False
    note_taken(world, CAUSE_ANSWER)  # now: lanes side by side shall not all be the one to try
    world[0].snapshots.refused[CAUSE_ANSWER] = 0
    slots.closing[slot] = CLOSING_PAUSED
    return True


@kernel
def wait_for(world, slot, cause):
    """The slot could go on but for a completion; a wait is counted once."""
    slots, counters = world[0].slots, world[0].counters
    if slots.waits[slot] == cause:
        return
    slots.waits[slot] = cause
    if cause == WAIT_HOST_PENDING:
        counters.barrier_host_pending += 1
    elif cause == WAIT_HOST_STOP:
        counters.barrier_stops += 1
    elif cause == WAIT_HISTORY:
        counters.barrier_history += 1
    elif cause == WAIT_COST:
        counters.barrier_cost += 1
    elif cause == WAIT_PHASE:
        counters.barrier_phase += 1
    else:
        assert cause == WAIT_ENDPOINT
        counters.barrier_endpoint += 1


@kernel
def ready(world, frame, slot):
    """May a slot that generates join this frame, whatever the program?"""
    slots, settings = world[0].slots, world[0].settings
    if slots.feedback[slot] == 1 and slots.in_flight[slot] > 0:
        wait_for(world, slot, WAIT_HOST_PENDING if settings.host_pending == 1 else WAIT_HOST_STOP)
        return False
    row = slots.request[slot]
    return (slots.scores_held[slot, frame] == 0 and world[0].requests.stamp_end[row, frame] == 0
            and may_sample(world, slot))

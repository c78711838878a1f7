"""retire: accepted frames and drained slots -> free, after their last fence."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.grammars import free_grammar
from helios_dod.tables.pages import release_page, release_text
from helios_dod.tables.requests import free_request
from helios_dod.tables.snapshots import release_snapshot
from helios_dod.tables.values import wanted
from helios_dod.tables.windows import clear_window, cut_window, first_seen
from helios_dod.terms import (
    CAUSE_TURN,
    CLOSING_DONE,
    CLOSING_NONE,
    CLOSING_WAITS,
    FINISH_EOS,
    FINISH_LIMIT,
    FINISHED,
    FRAME_ACCEPTED,
    FREE,
    SLOT_DRAINING,
)


@kernel
def scores_pending(world, slot):
    """True while log-probabilities of the slot wait for the egress ring."""
    if world[0].slots.prompt_score_count[slot] != 0:
        return True
    for frame in range(world[0].slots.scores_held.shape[1]):
        if world[0].slots.scores_held[slot, frame] != 0:
            return True
    return False


@kernel
def free_slot(world, slot):
    """Returns a slot, its pages and what was promised beyond; frees a delivered request."""
    slots, requests = world[0].slots, world[0].requests
    row = slots.request[slot]
    assert row == NO_ROW or (requests.slot[row] == slot and requests.state[row] == FINISHED)
    free_grammar(world, slot)
    release_text(world, slot)
    if slots.restore[slot] != NO_ROW:
        release_snapshot(world, slots.restore[slot])
        slots.restore[slot] = NO_ROW
    slots.closing[slot] = CLOSING_NONE
    slots.copying[slot] = 0
    clear_window(world, slot)
    for index in range(slots.page_count[slot] - 1, -1, -1):
        release_page(world, slot, slots.pages[slot, index])
        slots.pages[slot, index] = NO_ROW
    world[0].pages.promised_count -= (
        max(slots.promise[slot] - slots.page_count[slot], 0) + slots.restoring[slot])
    assert world[0].pages.promised_count >= 0
    slots.state[slot] = FREE
    slots.request[slot] = NO_ROW
    slots.page_count[slot] = 0
    slots.uploaded_count[slot] = 0
    slots.consumed[slot] = 0
    slots.scheduled[slot] = 0
    slots.sampled[slot] = 0
    slots.feedback[slot] = 0
    slots.narrow[slot] = 0
    slots.unpublished[slot] = 0
    slots.waits[slot] = 0
    slots.promise[slot] = 0
    slots.restoring[slot] = 0
    slots.arrived[slot] = 0
    slots.prefill_end[slot] = 0
    slots.free[slots.free_count] = slot
    slots.free_count += 1
    if row == NO_ROW:
        return  # preempted: the request waits
    requests.slot[row] = NO_ROW
    if requests.delivered[row] == 1:
        free_request(world, row)


@kernel
def cut_windows(world, frame):
    """Frees what no later token of the frame's lanes sees. Programs in flight begin no earlier than
    what is committed."""
    slots = world[0].slots
    for lane in range(world[0].frames.lane_count[frame]):
        slot = world[0].lanes.slot[frame, lane]
        cut_window(world, slot, first_seen(world, slots.consumed[slot]))


@kernel
def closes(world, slot):
    """Shall the end of a slot's answer be kept as a snapshot before the slot is freed? True while
    the program that does it waits to be composed."""
    slots, settings, row = world[0].slots, world[0].settings, world[0].slots.request[slot]
    if slots.closing[slot] in (CLOSING_WAITS, CLOSING_DONE):
        return slots.closing[slot] == CLOSING_WAITS
    if settings.snapshot_closing == 0 or row == NO_ROW or slots.restore[slot] != NO_ROW:
        return False
    if settings.partial == 0 and slots.consumed[slot] % settings.page_tokens != 0:
        return False
    if world[0].requests.finish[row] not in (FINISH_EOS, FINISH_LIMIT) or not wanted(
            world, CAUSE_TURN):
        return False
    slots.closing[slot] = CLOSING_WAITS
    return True


@system(
    reads="settings.* clock.tick frames.* lanes.slot slots.in_flight slots.scores_held "
          "slots.prompt_score_count",
    writes="frames.state frames.program slots.* pages.* prefixes.* snapshots.* windows.* tiers.* "
           "requests.* grammars.* tokens.owner tokens.free tokens.free_count "
           "counters.snapshots_evicted",
)
def retire(world):
    """Keeps the live list in admission order."""
    frames, slots = world[0].frames, world[0].slots
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] == FRAME_ACCEPTED:
            if world[0].settings.window_tokens > 0:
                cut_windows(world, frame)
            frames.state[frame] = FREE
            frames.program[frame] = NO_ROW
    kept = 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (slots.state[slot] == SLOT_DRAINING and slots.in_flight[slot] == 0
                and not scores_pending(world, slot) and not closes(world, slot)):
            free_slot(world, slot)
        else:
            slots.live[kept] = slot
            kept += 1
    slots.live_count = kept

"""retire: accepted frames and drained slots -> free, after their last fence."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.grammars import free_grammar
from helios_dod.tables.pages import release_page, release_text
from helios_dod.tables.requests import free_request
from helios_dod.terms import FINISHED, FRAME_ACCEPTED, FREE, SLOT_DRAINING


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


@system(
    reads="frames.* slots.in_flight slots.scores_held slots.prompt_score_count",
    writes="frames.state frames.program slots.* pages.* prefixes.* tiers.* requests.* grammars.* "
           "tokens.owner tokens.free tokens.free_count",
)
def retire(world):
    """Keeps the live list in admission order."""
    frames, slots = world[0].frames, world[0].slots
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] == FRAME_ACCEPTED:
            frames.state[frame] = FREE
            frames.program[frame] = NO_ROW
    kept = 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (slots.state[slot] == SLOT_DRAINING and slots.in_flight[slot] == 0
                and not scores_pending(world, slot)):
            free_slot(world, slot)
        else:
            slots.live[kept] = slot
            kept += 1
    slots.live_count = kept

"""constrain: accepted tokens -> grammar workers; finished masks -> READY."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.systems.rounds import emission_limit
from helios_dod.tables.candidates import find_candidates
from helios_dod.tables.grammars import ANSWER_STATUSES, drafts_allowed, queue_job
from helios_dod.tables.requests import finish_request
from helios_dod.terms import (
    ANSWER_READY,
    FINISH_GRAMMAR,
    GRAMMAR_FAILED,
    GRAMMAR_PENDING,
    GRAMMAR_READY,
    JOB_ADVANCE,
    SLOT_DRAINING,
)


@kernel
def offer_drafts(world, slot, row):
    """Has masks made behind the copies that a round may verify next, where the row has room."""
    grammars, counters = world[0].grammars, world[0].counters
    grammars.offered[row] = 0
    most = min(emission_limit(world, slot), grammars.positions) - 1
    if most < 1:
        return
    find_candidates(world, slot, world[0].programs.round_width - 1)
    copies = min(world[0].candidates.count[slot], most)
    if row < grammars.drafted_rows:
        grammars.offered[row] = copies
    else:
        counters.draft_masks_full += copies > 0


@kernel
def collect_mask(world, slot, row):
    """A PENDING row's answer, if it is there: READY, or the request fails with the reason."""
    grammars, requests = world[0].grammars, world[0].requests
    if grammars.seen[row] == 0:
        return
    status = grammars.seen[row] % ANSWER_STATUSES
    if status == ANSWER_READY:
        grammars.state[row] = GRAMMAR_READY
        grammars.drafts[row] = drafts_allowed(grammars.seen[row])
        assert grammars.drafts[row] <= grammars.offered[row]
        world[0].counters.drafts_grammar_refused += grammars.offered[row] - grammars.drafts[row]
        return
    grammars.state[row] = GRAMMAR_FAILED
    request = world[0].slots.request[slot]
    requests.failure[request] = status
    finish_request(world, request, FINISH_GRAMMAR)
    world[0].counters.failed += 1


@system(
    reads="slots.* settings.* programs.round_width tokens.ids",
    writes="grammars.* slots.state requests.* candidates.* counters.failed "
           "counters.draft_masks_full counters.drafts_grammar_refused",
)
def constrain(world):
    """Looks at every constrained slot whose request goes on."""
    grammars, slots, requests = world[0].grammars, world[0].slots, world[0].requests
    if grammars.free_count == grammars.free.shape[0]:
        return
    for i in range(slots.live_count):
        slot = slots.live[i]
        row = slots.grammar[slot]
        if row == NO_ROW or slots.state[slot] == SLOT_DRAINING:
            continue
        request = slots.request[slot]
        generated = requests.token_count[request] - requests.prompt_count[request]
        if grammars.state[row] == GRAMMAR_READY and grammars.given[row] < generated:
            grammars.state[row] = GRAMMAR_PENDING
            grammars.answer[row] = 0
            grammars.drafts[row] = 0
            offer_drafts(world, slot, row)
            queue_job(world, row, JOB_ADVANCE)
        elif grammars.state[row] == GRAMMAR_PENDING:
            collect_mask(world, slot, row)

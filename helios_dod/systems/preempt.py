"""preempt: when pages run out, the last in order goes back to the waiting list, with its tokens.

It resumes to the identical output: its tokens so far are prefilled like a prompt, and a draw
depends on the seed and the position alone."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.systems.evict import demand
from helios_dod.tables.grammars import free_grammar
from helios_dod.tables.pages import free_page, reference_page, release_text, resident
from helios_dod.tables.requests import waiting_insert
from helios_dod.tables.stops import rewind_stops
from helios_dod.terms import (
    FLAG_TIMED,
    PAGE_PRIVATE,
    SLOT_DECODE,
    SLOT_DRAINING,
    SLOT_PREFILL,
    WAITING,
)


@kernel
def holds_duplicates(world, slot):
    """Does its table have private pages whose text is published too? Then it holds both."""
    slots, pages = world[0].slots, world[0].pages
    for index in range(slots.published_count[slot]):
        if pages.state[slots.pages[slot, index]] == PAGE_PRIVATE:
            return True
    return False


@kernel
def recomputes(world):
    """Would a request that is sent back hold pages twice again, as pages alone are not all that it
    goes on from?"""
    return world[0].settings.stateful == 1 or world[0].settings.view_pages > 0


@kernel
def last_in_order(world):
    """The live slot whose request comes last. The only one that still runs is none, unless it holds
    pages twice, which it does not when it comes back, if its pages are all that it goes on from."""
    slots, order = world[0].slots, world[0].requests.order_ns
    last, running = NO_ROW, 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] == SLOT_DRAINING:
            continue
        running += 1
        if last == NO_ROW or order[slots.request[slot]] >= order[slots.request[last]]:
            last = slot
    if running == 1 and (recomputes(world) or not holds_duplicates(world, last)):
        return NO_ROW
    return last


@kernel
def send_back(world, slot):
    """Detaches the request; the slot drains. Tokens whose log-probabilities or times are not yet
    delivered are dropped, to be drawn again; so are prompt scores."""
    slots, requests, pages = world[0].slots, world[0].requests, world[0].pages
    row = slots.request[slot]
    if requests.top_logprobs[row] >= 0 or requests.flags[row] & FLAG_TIMED != 0:
        requests.token_count[row] = requests.prompt_count[row] + requests.emitted_count[row]
        slots.scores_held[slot, :] = 0
        requests.stamp_end[row, :] = 0
        if world[0].stops.active[row] == 1:
            rewind_stops(world, row)
    slots.prompt_score_count[slot] = 0
    free_grammar(world, slot)
    pages.promised_count -= max(slots.promise[slot] - slots.page_count[slot], 0)
    pages.promised_count -= slots.restoring[slot]
    slots.promise[slot] = 0
    slots.restoring[slot] = 0
    slots.state[slot] = SLOT_DRAINING
    slots.request[slot] = NO_ROW
    requests.slot[row] = NO_ROW
    requests.state[row] = WAITING
    requests.match_epoch[row] = world[0].pages.epoch - 1
    waiting_insert(world, row)
    world[0].counters.preempted += 1


@kernel
def coming(world):
    """Pages that drain with their slots."""
    slots, count = world[0].slots, 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] == SLOT_DRAINING:
            count += slots.page_count[slot] - slots.restoring[slot]
    return count


@kernel
def merge_duplicates(world, slot):
    """The slot's table names the pages that hold its text already, and its own ones are free. No
    program in flight reads them, and none to come writes them."""
    slots, pages = world[0].slots, world[0].pages
    page, complete = slots.published_page[slot], slots.consumed[slot]
    complete //= world[0].settings.page_tokens
    for index in range(slots.published_count[slot] - 1, -1, -1):
        own = slots.pages[slot, index]
        if (index < complete and own != page and pages.state[own] == PAGE_PRIVATE
                and resident(pages.state[page])):
            slots.pages[slot, index] = page
            reference_page(world, page)
            free_page(world, own)
            slots.uploaded_count[slot] = min(slots.uploaded_count[slot], index)
        page = pages.parent[page]


@kernel
def merge_text(world):
    """The last request that runs holds none of its text twice, once nothing of it is in flight."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (slots.state[slot] in (SLOT_PREFILL, SLOT_DECODE) and slots.in_flight[slot] == 0
                and slots.copying[slot] == 0):
            merge_duplicates(world, slot)


@kernel
def give_up_text(world):
    """The last request that runs lets go of its published text: pages of which it has duplicates
    of its own, as one that computes a cached prompt again, are idle then."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] in (SLOT_PREFILL, SLOT_DECODE) and slots.published_count[slot] > 0:
            release_text(world, slot)
            slots.unpublished[slot] = 1


@system(
    reads="settings.* requests.* tokens.* pieces.*",
    writes="slots.* requests.* stops.* grammars.* pages.* "
           "tiers.oldest tiers.newest counters.preempted",
)
def preempt(world):
    """Until what is free and what is coming covers the next frame, or one request is left."""
    pages = world[0].pages
    if pages.free_count >= demand(world, 1):
        return
    for _ in range(world[0].slots.live_count):
        if pages.free_count + pages.idle_count + coming(world) >= demand(world, 1):
            return
        slot = last_in_order(world)
        if slot == NO_ROW:
            if recomputes(world):
                merge_text(world)
            else:
                give_up_text(world)
            return
        send_back(world, slot)

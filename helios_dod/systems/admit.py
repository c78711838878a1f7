"""admit: waiting -> slot, under slot and page budgets; priority, then arrival."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.candidates import forget_candidates
from helios_dod.tables.grammars import take_grammar
from helios_dod.tables.pages import on_device, pages_of, reference_page, resident
from helios_dod.tables.requests import waiting_remove
from helios_dod.tables.snapshots import hold_snapshot
from helios_dod.tables.values import note_saved
from helios_dod.tables.windows import restore_window
from helios_dod.terms import FREE, RUNNING, SLOT_ADMITTED, SLOT_RESTORING


@kernel
def matched(world, row):
    """(idle, away): matched pages that no table names, so that taking them leaves fewer to evict;
    and the last ones, which have no place on the device."""
    pages, page = world[0].pages, world[0].requests.match_page[row]
    idle, away = 0, 0
    while page != NO_ROW and not on_device(pages.state[page]):
        away += 1
        page = pages.parent[page]
    while page != NO_ROW and pages.references[page] == 0:
        idle += resident(pages.state[page])
        page = pages.parent[page]
    return idle, away


@kernel
def promise_of(world, row):
    """Pages that a request is promised: its tokens so far and the next one. The rest is
    overcommitted: `preempt` decides when it runs out."""
    requests = world[0].requests
    return min(requests.page_need[row], pages_of(world, requests.token_count[row] + 1))


@kernel
def shared_of(world, row):
    """Matched pages that the request's own table can name. Behind them a shifted view still writes
    pages of the text: those are copied. A snapshot keeps what they hold by itself."""
    requests, count = world[0].requests, world[0].requests.match_count[row]
    if requests.match_snapshot[row] != NO_ROW:
        return count
    return max(count - world[0].settings.view_pages, 0)


@kernel
def fits(world, row):
    """Can the promise be kept, with one page to grow for every running request?"""
    pages = world[0].pages
    idle, away = matched(world, row)
    fresh = promise_of(world, row) - shared_of(world, row) + away
    reachable = pages.free_count + pages.idle_count - idle
    return fresh <= reachable - pages.promised_count - world[0].slots.live_count


@kernel
def take_matched(world, row, slot):
    """Fills the slot's page table with the matched pages, from the deepest up; True if all of them
    can be read as they are, and those of a matched snapshot's window. While some come back, it
    holds those that are only copied as well."""
    slots, requests, settings = world[0].slots, world[0].requests, world[0].settings
    count, page = requests.match_count[row], requests.match_page[row]
    slots.published_count[slot] = count
    slots.published_page[slot] = page
    slots.published_hash[slot] = settings.cache_seed if count == 0 else world[0].pages.hash[page]
    shared = shared_of(world, row)
    held = shared
    if page != NO_ROW and not resident(world[0].pages.state[page]):
        held = count  # what is copied has to come back, too
    readable = held
    for index in range(count - 1, -1, -1):
        reference_page(world, page)  # by the text
        if index < held:
            slots.pages[slot, index] = page
            slots.restoring[slot] += not on_device(world[0].pages.state[page])
            readable = readable if resident(world[0].pages.state[page]) else index
            reference_page(world, page)  # by the table
        page = world[0].pages.parent[page]
    assert page == NO_ROW
    slots.page_count[slot] = held
    slots.promise[slot] += held - shared
    slots.copying[slot] = count - shared if shared > 0 else 0
    slots.arrived[slot] = readable
    there = readable == held
    endpoint = shared * settings.page_tokens
    snapshot = requests.match_snapshot[row]
    if snapshot != NO_ROW:
        endpoint = world[0].snapshots.endpoint[snapshot]
        hold_snapshot(world, snapshot)
        note_saved(world, row)
        away = world[0].snapshots.window_away[snapshot] > 0
        world[0].counters.snapshot_hits_away += slots.restoring[slot] > 0 or away
        slots.restore[slot] = snapshot
        there = there and not away
        if there:
            restore_window(world, slot, snapshot)
    slots.consumed[slot] = endpoint
    slots.scheduled[slot] = endpoint
    if requests.token_count[row] == requests.prompt_count[row]:
        requests.cached_count[row] = endpoint
        world[0].counters.prompt_tokens_cached += endpoint
    return there


@kernel
def take_slot(world, row):
    """Gives a request a slot, its cached pages, and a promise of the pages it needs at once."""
    slots, requests = world[0].slots, world[0].requests
    slots.free_count -= 1
    slot = slots.free[slots.free_count]
    assert slots.state[slot] == FREE and slots.in_flight[slot] == 0
    slots.generation[slot] += 1
    slots.request[slot] = row
    single = world[0].stops.active[row] == 1 or world[0].settings.host_pending == 1
    slots.feedback[slot] = single or requests.grammar_bytes[row] > 0
    slots.narrow[slot] = single or requests.top_logprobs[row] >= 0
    for i in range(slots.acceptance.shape[1]):
        slots.acceptance[slot, i] = world[0].drafts.prior[i]
    forget_candidates(world, slot)
    slots.live[slots.live_count] = slot
    slots.live_count += 1
    slots.prefill_end[slot] = requests.token_count[row]
    slots.promise[slot] = promise_of(world, row)
    readable = take_matched(world, row, slot)
    slots.state[slot] = SLOT_ADMITTED if readable else SLOT_RESTORING
    world[0].pages.promised_count += slots.promise[slot] - slots.page_count[slot]
    world[0].pages.promised_count += slots.restoring[slot]
    requests.slot[row] = slot
    requests.state[row] = RUNNING
    if requests.admitted_ns[row] == 0:
        requests.admitted_ns[row] = world[0].clock.now_ns
    if requests.grammar_bytes[row] > 0:
        take_grammar(world, slot)


@system(
    reads="settings.* clock.tick clock.now_ns drafts.prior stops.active",
    writes="requests.* slots.* pages.* snapshots.* windows.* tiers.oldest tiers.newest "
           "candidates.* grammars.* "
           "counters.*",
)
def admit(world):
    """Takes requests in list order until one does not fit; nothing overtakes it, so none
    starves."""
    requests, slots = world[0].requests, world[0].slots
    for _ in range(requests.waiting_count):
        row = requests.waiting_first
        assert row != NO_ROW
        if slots.live_count >= world[0].settings.slot_count or slots.free_count == 0:
            world[0].counters.slots_full += 1
            return
        if not fits(world, row):
            world[0].counters.pages_full += 1
            return
        waiting_remove(world, row)
        take_slot(world, row)
        world[0].counters.admitted += 1

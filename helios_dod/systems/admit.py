"""admit: waiting -> slot, under slot and page budgets; priority, then arrival."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.requests import waiting_remove
from helios_dod.terms import FREE, RUNNING, SLOT_ADMITTED


@kernel
def take_slot(world, row):
    """Gives a request a slot and promises it every page that it can come to hold."""
    slots, requests = world[0].slots, world[0].requests
    slots.free_count -= 1
    slot = slots.free[slots.free_count]
    assert slots.state[slot] == FREE and slots.in_flight[slot] == 0
    slots.state[slot] = SLOT_ADMITTED
    slots.generation[slot] += 1
    slots.request[slot] = row
    slots.feedback[slot] = (
        requests.stop_id_count[row] > 0 or world[0].settings.host_pending == 1)
    slots.live[slots.live_count] = slot
    slots.live_count += 1
    requests.slot[row] = slot
    requests.state[row] = RUNNING
    world[0].pages.promised_count += requests.page_need[row]


@system(
    reads="settings.* pages.free_count",
    writes="requests.* slots.* pages.promised_count counters.*",
)
def admit(world):
    """Takes requests in list order until one does not fit; nothing overtakes it, so none
    starves."""
    requests, slots, pages = world[0].requests, world[0].slots, world[0].pages
    for _ in range(requests.waiting_count):
        row = requests.waiting_first
        assert row != NO_ROW
        if slots.live_count >= world[0].settings.slot_count or slots.free_count == 0:
            world[0].counters.slots_full += 1
            return
        if requests.page_need[row] > pages.free_count - pages.promised_count:
            world[0].counters.pages_full += 1
            return
        waiting_remove(world, row)
        take_slot(world, row)
        world[0].counters.admitted += 1

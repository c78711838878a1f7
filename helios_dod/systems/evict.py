"""evict: free pages for the next frame, least recently released content first."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.pages import evict_oldest
from helios_dod.terms import SLOT_DECODE, SLOT_PREFILL


@kernel
def demand(world):
    """Pages that the next frame takes if every live slot goes on."""
    slots, settings = world[0].slots, world[0].settings
    budget, total = settings.prefill_tokens, 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        endpoint = slots.scheduled[slot]
        if slots.state[slot] == SLOT_DECODE:
            endpoint += 1
        elif slots.state[slot] == SLOT_PREFILL:
            chunk = min(slots.prefill_end[slot] - endpoint, budget)
            budget -= chunk
            endpoint += chunk
        total += max(-(-endpoint // settings.page_tokens) - slots.page_count[slot], 0)
    return total


@system(
    reads="settings.* slots.*",
    writes="pages.* prefixes.* counters.pages_evicted",
)
def evict(world):
    """Stops when nothing is idle; `preempt` takes over then."""
    pages = world[0].pages
    needed = demand(world)
    for _ in range(needed - pages.free_count):
        if pages.oldest == NO_ROW:
            return
        evict_oldest(world)

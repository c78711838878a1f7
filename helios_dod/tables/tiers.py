"""Tiers behind the device: where immutable pages go when it needs their room."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, i64, scalar, table
from helios_dod.system import kernel
from helios_dod.terms import PAGE_FETCHING, PAGE_STORED, TIER_DISK, TIER_MEMORY

OBSERVED_PAGES = 4096  # copies that a tier's means look back on
OBSERVED_TOKENS = 65_536  # prefilled tokens that their mean looks back on
PROBES = 64  # one of so many hits that computing seemed cheaper for is restored, to measure again


@table(rows="TIERS_MAX")
class Tiers:
    """Row 0 is host memory, row 1 disk. The list of a tier holds its pages without references and
    without a copy in flight, least recently released first.

    A page comes to rest behind the pages that follow it in their text, so the first of a list
    mostly has none behind it. It has some where these are in the tier below or on their way there,
    where it is a row without content (`pages.lost`), which may be listed before their copies end,
    and where `drop_first` put one of them to the end."""

    place_count: i32  # pages that the tier can hold; 0: it is not there
    first: i32  # its part of the stack pages.free
    free_count: i32
    oldest: i32
    newest: i32
    restored_ns: i64  # what the newest restores took,
    restored_count: i64  # and how many pages they were
    stored_ns: i64  # the same of copies to here
    stored_count: i64
    window_restored_ns: i64  # all four of pages of windowed histories
    window_restored_count: i64
    window_stored_ns: i64
    window_stored_count: i64
    refused_count: i64  # hits that computing was cheaper for
    prefill_ns: scalar(i64)  # what the newest prefills took,
    prefill_tokens: scalar(i64)  # and how many tokens they were


@kernel
def tiered(world):
    """Is there any tier behind the device?"""
    return world[0].tiers.place_count[TIER_MEMORY] > 0


@kernel
def take_place(world, tier):
    """A free place of a tier, or NO_ROW."""
    tiers, pages = world[0].tiers, world[0].pages
    if tiers.free_count[tier] == 0:
        return NO_ROW
    tiers.free_count[tier] -= 1
    return pages.free[tiers.first[tier] + tiers.free_count[tier]]


@kernel
def give_place(world, tier, place):
    """Gives a place back."""
    tiers, pages = world[0].tiers, world[0].pages
    assert 0 <= place < tiers.place_count[tier]
    assert tiers.free_count[tier] < tiers.place_count[tier]
    pages.free[tiers.first[tier] + tiers.free_count[tier]] = place
    tiers.free_count[tier] += 1


@kernel
def list_page(world, tier, page):
    """Appends a page to its tier's list, as the most recently released."""
    tiers, pages = world[0].tiers, world[0].pages
    newest = tiers.newest[tier]
    pages.older[page] = newest
    pages.newer[page] = NO_ROW
    if newest == NO_ROW:
        tiers.oldest[tier] = page
    else:
        pages.newer[newest] = page
    tiers.newest[tier] = page


@kernel
def unlist_page(world, tier, page):
    """Takes a page out of its tier's list."""
    tiers, pages = world[0].tiers, world[0].pages
    older, newer = pages.older[page], pages.newer[page]
    if older == NO_ROW:
        tiers.oldest[tier] = newer
    else:
        pages.newer[older] = newer
    if newer == NO_ROW:
        tiers.newest[tier] = older
    else:
        pages.older[newer] = older
    pages.older[page] = NO_ROW
    pages.newer[page] = NO_ROW


@kernel
def observe_copy(spent_ns, counts, tier, elapsed):
    """Adds what a page's copy took to the sums of a tier; old observations fade."""
    if counts[tier] >= OBSERVED_PAGES:
        spent_ns[tier] //= 2
        counts[tier] //= 2
    spent_ns[tier] += elapsed
    counts[tier] += 1


@kernel
def observe_prefill(world, elapsed, count):
    """Adds what prefilling `count` tokens took; old observations fade."""
    tiers = world[0].tiers
    if tiers.prefill_tokens >= OBSERVED_TOKENS:
        tiers.prefill_ns //= 2
        tiers.prefill_tokens //= 2
    tiers.prefill_ns += elapsed
    tiers.prefill_tokens += count


@kernel
def token_ns(world):
    """What prefilling a token takes, at least 1; 0 while that is unknown."""
    tiers = world[0].tiers
    return 0 if tiers.prefill_tokens == 0 else max(tiers.prefill_ns // tiers.prefill_tokens, 1)


@kernel
def cheaper(world, elapsed, count):
    """Is a copy of a page, by such observations, cheaper than computing it? Yes while a cost is
    unknown."""
    if count == 0 or world[0].tiers.prefill_tokens == 0:
        return True
    return elapsed // count <= token_ns(world) * world[0].settings.page_tokens


@kernel
def restoring_ns(world, page):
    """What it takes to bring a page back; 0 while that is unknown, or if it is on the device."""
    tiers, state = world[0].tiers, world[0].pages.state[page]
    if state <= PAGE_FETCHING:
        return 0
    tier = TIER_DISK if state == PAGE_STORED else TIER_MEMORY
    return tiers.restored_ns[tier] // max(tiers.restored_count[tier], 1)


@kernel
def probes(world, tier):
    """Is it time to restore once more from a tier what computing seems cheaper for?"""
    tiers = world[0].tiers
    tiers.refused_count[tier] += 1
    return tiers.refused_count[tier] % PROBES == 0


@kernel
def worthwhile(world, tier):
    """Shall a page be restored from a tier?"""
    tiers = world[0].tiers
    if cheaper(world, tiers.restored_ns[tier], tiers.restored_count[tier]):
        return True
    return probes(world, tier)

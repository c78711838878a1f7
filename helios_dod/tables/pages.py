"""Logical pages of the attention history."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, i64, scalar, table, u8
from helios_dod.system import kernel
from helios_dod.terms import FREE, PAGE_PRIVATE


@table(rows="pages_max")
class Pages:
    """One row per logical page. A PRIVATE page has one owner slot; an IMMUTABLE one is counted.

    Invariant: FREE + PRIVATE + IMMUTABLE rows = page_count; `promised_count` pages of running
    requests' needs are not yet taken, and never exceed `free_count`.
    """

    state: u8
    group: u8  # page group of the histories it holds
    references: i32
    owner: i32  # slot or NO_ROW
    parent: i32
    token_count: i32
    used_tick: i64
    free: scalar(i32["pages_max"])
    free_count: scalar(i32)
    page_count: scalar(i32)  # pages that the backed cache has
    promised_count: scalar(i32)


@kernel
def take_page(world, slot):
    """A free page, now private to the slot; admission promised it, so there is one."""
    pages = world[0].pages
    assert pages.free_count > 0 and pages.promised_count > 0
    pages.free_count -= 1
    pages.promised_count -= 1
    page = pages.free[pages.free_count]
    assert pages.state[page] == FREE
    pages.state[page] = PAGE_PRIVATE
    pages.owner[page] = slot
    pages.references[page] = 1
    pages.used_tick[page] = world[0].clock.tick
    return page


@kernel
def free_page(world, slot, page):
    """Returns a private page of the slot to the free stack."""
    pages = world[0].pages
    assert pages.state[page] == PAGE_PRIVATE and pages.owner[page] == slot
    pages.state[page] = FREE
    pages.owner[page] = NO_ROW
    pages.references[page] = 0
    pages.free[pages.free_count] = page
    pages.free_count += 1

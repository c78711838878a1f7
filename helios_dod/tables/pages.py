"""Logical pages of the attention history: free, private to a slot, or immutable and shared; an
immutable one lies on the device or in a tier behind it."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, i64, scalar, table, u8, u64
from helios_dod.system import kernel
from helios_dod.tables.prefixes import index_page, unindex_page
from helios_dod.tables.tiers import give_place, list_page, tiered, unlist_page
from helios_dod.terms import (
    FREE,
    PAGE_FETCHING,
    PAGE_IMMUTABLE,
    PAGE_LEAVING,
    PAGE_OFFLOADED,
    PAGE_PRIVATE,
    PAGE_STORED,
    TIER_DISK,
    TIER_MEMORY,
)


@table(rows="pages_max")
class Pages:
    """One row per logical page; `place` is where its content lies: a page of the device's cache, or
    of the tier that `state` says. A PRIVATE page has one owner slot; all later states are immutable
    and counted. Programs name places, everything else names rows.

    Invariants: places of the device are free or belong to one row whose state is PRIVATE to
    FETCHING, and so for each tier; a copy in flight holds a second place. A row in use has a place,
    so a free place means a free row. `references` is the number of page tables that name an
    immutable page and of slots whose published text it is part of. A page that is referenced has
    referenced ancestors; one on the device (IMMUTABLE to FETCHING) has its parent there. `children`
    is the number of pages behind it that are on the device and not LEAVING, `behind` that of all
    other pages. A snapshot counts among the latter where there are tiers, which its page may go to,
    and else among the former. The eviction list holds the IMMUTABLE pages without references
    and children, least recently released first; `idle_count` is the number of IMMUTABLE and LEAVING
    ones without references. `promised_count` <= free_count + idle_count: pages that admitted
    requests may still take.
    """

    state: u8
    group: u8  # page group of the histories it holds
    lost: u8  # its copy failed: the row only keeps what is behind it in its place
    owner: i32  # slot or NO_ROW
    place: i32
    references: i32
    children: i32
    behind: i32
    parent: i32  # the page before it in its text, or NO_ROW
    hash: u64
    salt: u64
    ids: i32["PAGE_TOKENS_MAX"]  # tokens of an immutable page
    age: i64  # tick of its release on the device
    older: i32  # eviction list, or the list of its tier
    newer: i32
    rows: scalar(i32["pages_max"])  # stack of free rows
    row_count: scalar(i32)
    free: scalar(i32["pages_max"])  # stacks of free places: the device's, then each tier's
    free_count: scalar(i32)  # the device's
    page_count: scalar(i32)  # pages that the backed cache of the device has
    promised_count: scalar(i32)
    idle_count: scalar(i32)
    oldest: scalar(i32)
    newest: scalar(i32)
    epoch: scalar(i32)  # changes when a page is published or what it holds is dropped


@kernel
def on_device(state):
    """Has an immutable page a place on the device, if only the one that it is copied to?"""
    return state <= PAGE_FETCHING


@kernel
def resident(state):
    """Can programs read an immutable page?"""
    return state <= PAGE_LEAVING


@kernel
def tier_of(state):
    """The tier where an immutable page that is not on the device lies."""
    return TIER_DISK if state == PAGE_STORED else TIER_MEMORY


@kernel
def pages_of(world, tokens):
    """Pages that a text of so many tokens takes, what shifted page-table views reach included."""
    settings = world[0].settings
    return -(-tokens // settings.page_tokens) + settings.view_pages


@kernel
def list_evictable(world, page):
    """Appends a page to the eviction list, as the most recently released."""
    pages = world[0].pages
    pages.age[page] = world[0].clock.tick
    pages.older[page] = pages.newest
    pages.newer[page] = NO_ROW
    if pages.newest == NO_ROW:
        pages.oldest = page
    else:
        pages.newer[pages.newest] = page
    pages.newest = page


@kernel
def list_oldest(world, page, age):
    """Puts a page in front of the eviction list: it is as old as what has gone from behind it."""
    pages = world[0].pages
    pages.age[page] = age
    pages.newer[page] = pages.oldest
    pages.older[page] = NO_ROW
    if pages.oldest == NO_ROW:
        pages.newest = page
    else:
        pages.older[pages.oldest] = page
    pages.oldest = page


@kernel
def unlist_evictable(world, page):
    """Takes a page out of the eviction list."""
    pages = world[0].pages
    older, newer = pages.older[page], pages.newer[page]
    if older == NO_ROW:
        pages.oldest = newer
    else:
        pages.newer[older] = newer
    if newer == NO_ROW:
        pages.newest = older
    else:
        pages.older[newer] = older
    pages.older[page] = NO_ROW
    pages.newer[page] = NO_ROW


@kernel
def take_device_place(world):
    """A free place of the device; `evict` and `preempt` have made sure of one."""
    pages = world[0].pages
    assert pages.free_count > 0
    pages.free_count -= 1
    return pages.free[pages.free_count]


@kernel
def give_device_place(world, place):
    """Gives a place of the device back."""
    pages = world[0].pages
    assert 0 <= place < pages.page_count and pages.free_count < pages.page_count
    pages.free[pages.free_count] = place
    pages.free_count += 1


@kernel
def take_page(world, slot):
    """A row with a free place of the device, now private to the slot."""
    pages = world[0].pages
    place = take_device_place(world)
    assert pages.row_count > 0
    pages.row_count -= 1
    page = pages.rows[pages.row_count]
    assert pages.state[page] == FREE
    pages.state[page] = PAGE_PRIVATE
    pages.owner[page] = slot
    pages.place[page] = place
    return page


@kernel
def free_row(world, page):
    """Frees the row of a page that nothing holds; its place is given back or handed on."""
    pages = world[0].pages
    pages.state[page] = FREE
    pages.owner[page] = NO_ROW
    pages.place[page] = NO_ROW
    pages.parent[page] = NO_ROW
    pages.hash[page] = 0
    pages.salt[page] = 0
    pages.lost[page] = 0
    pages.rows[pages.row_count] = page
    pages.row_count += 1


@kernel
def free_page(world, page):
    """Frees a page that nothing holds, and its place on the device."""
    give_device_place(world, world[0].pages.place[page])
    free_row(world, page)


@kernel
def child_comes(world, page):
    """A page now stays on the device: its parent is not to be evicted before it."""
    pages = world[0].pages
    parent = pages.parent[page]
    if parent == NO_ROW:
        return
    if (pages.children[parent] == 0 and pages.references[parent] == 0
            and pages.state[parent] == PAGE_IMMUTABLE):
        unlist_evictable(world, parent)
    pages.children[parent] += 1
    pages.behind[parent] -= 1


@kernel
def child_goes(world, page):
    """A page leaves the device, or will when its copy ends: its parent may be the next."""
    pages = world[0].pages
    parent = pages.parent[page]
    if parent == NO_ROW:
        return
    pages.children[parent] -= 1
    pages.behind[parent] += 1
    if (pages.children[parent] == 0 and pages.references[parent] == 0
            and pages.state[parent] == PAGE_IMMUTABLE):
        list_oldest(world, parent, pages.age[page])


@kernel
def pin_page(world, page):
    """A snapshot stands behind a page: without tiers the page stays on the device before it."""
    pages = world[0].pages
    assert resident(pages.state[page]) and pages.state[page] >= PAGE_IMMUTABLE
    if tiered(world):
        pages.behind[page] += 1
        return
    if (pages.children[page] == 0 and pages.references[page] == 0
            and pages.state[page] == PAGE_IMMUTABLE):
        unlist_evictable(world, page)
    pages.children[page] += 1


@kernel
def unpin_page(world, page, age):
    """A snapshot behind a page has gone, at that age; the page may be the next."""
    pages = world[0].pages
    if tiered(world):
        pages.behind[page] -= 1
        assert pages.behind[page] >= 0
        return
    pages.children[page] -= 1
    assert pages.children[page] >= 0
    if (pages.children[page] == 0 and pages.references[page] == 0
            and pages.state[page] == PAGE_IMMUTABLE):
        list_oldest(world, page, age)


@kernel
def drop_page(world, page):
    """Drops a page that lies in a tier, that no list has, and that nothing is behind."""
    pages = world[0].pages
    assert pages.references[page] == 0 and pages.children[page] == 0 and pages.behind[page] == 0
    unindex_page(world, page)
    if pages.parent[page] != NO_ROW:
        pages.behind[pages.parent[page]] -= 1
    pages.epoch += 1
    give_place(world, tier_of(pages.state[page]), pages.place[page])
    free_row(world, page)


@kernel
def rest_page(world, page):
    """An immutable page without references comes to rest where it is."""
    pages = world[0].pages
    state = pages.state[page]
    if state == PAGE_IMMUTABLE:
        pages.idle_count += 1
        if pages.children[page] == 0:
            list_evictable(world, page)
    elif state == PAGE_LEAVING:
        pages.idle_count += 1
    elif state in (PAGE_OFFLOADED, PAGE_STORED):
        if pages.lost[page] == 1 and pages.children[page] + pages.behind[page] == 0:
            drop_page(world, page)
        else:
            list_page(world, tier_of(state), page)


@kernel
def reference_page(world, page):
    """One more page table, or text, names an immutable page."""
    pages = world[0].pages
    state = pages.state[page]
    assert state >= PAGE_IMMUTABLE
    if pages.references[page] == 0:
        if state == PAGE_IMMUTABLE:
            pages.idle_count -= 1
            if pages.children[page] == 0:
                unlist_evictable(world, page)
        elif state == PAGE_LEAVING:
            pages.idle_count -= 1
        elif state in (PAGE_OFFLOADED, PAGE_STORED):
            unlist_page(world, tier_of(state), page)
    pages.references[page] += 1


@kernel
def dereference_page(world, page):
    """One reference less; without any, an immutable page is idle but stays cached."""
    pages = world[0].pages
    pages.references[page] -= 1
    assert pages.state[page] >= PAGE_IMMUTABLE and pages.references[page] >= 0
    if pages.references[page] == 0:
        rest_page(world, page)


@kernel
def release_page(world, slot, page):
    """A slot's table no longer names a page: a private one is free, an immutable one stays cached.

    Tables are released from their end, so that a page is listed before the one it stands behind."""
    pages = world[0].pages
    if pages.state[page] == PAGE_PRIVATE:
        assert pages.owner[page] == slot
        free_page(world, page)
    else:
        dereference_page(world, page)


@kernel
def release_text(world, slot):
    """A slot's published text is no longer its own: the references of `publish` and `admit`."""
    slots, pages = world[0].slots, world[0].pages
    page = slots.published_page[slot]
    for _ in range(slots.published_count[slot]):
        parent = pages.parent[page]
        dereference_page(world, page)
        page = parent
    assert page == NO_ROW
    slots.published_count[slot] = 0
    slots.published_page[slot] = NO_ROW
    slots.published_hash[slot] = 0


@kernel
def publish_page(world, page, hashed, parent, salt):
    """A slot's private page becomes immutable and can be found; its tokens are already in `ids`."""
    pages = world[0].pages
    assert pages.state[page] == PAGE_PRIVATE
    pages.state[page] = PAGE_IMMUTABLE
    pages.owner[page] = NO_ROW
    pages.references[page] = 1
    pages.children[page] = 0
    pages.behind[page] = 0
    pages.hash[page] = hashed
    pages.salt[page] = salt
    pages.parent[page] = parent
    if parent != NO_ROW:
        pages.behind[parent] += 1
        child_comes(world, page)
    pages.epoch += 1
    index_page(world, page)


@kernel
def adopt_page(world, page, private):
    """A page that is not on the device gets the content that a slot computed again: the place of
    its private page. That row is free; `page` has one reference more, by the slot's table.

    A copy of it in flight goes on; `settle` gives its places back."""
    pages = world[0].pages
    state = pages.state[page]
    assert pages.state[private] == PAGE_PRIVATE and state > PAGE_LEAVING
    if state in (PAGE_OFFLOADED, PAGE_STORED):
        if pages.references[page] == 0:
            unlist_page(world, tier_of(state), page)
        give_place(world, tier_of(state), pages.place[page])
    if not on_device(state):
        child_comes(world, page)
    pages.state[page] = PAGE_IMMUTABLE
    pages.lost[page] = 0
    pages.place[page] = pages.place[private]
    pages.references[page] += 1
    free_row(world, private)


@kernel
def evict_oldest(world):
    """Drops the least recently released page of the device; nothing is behind it, and its parent
    may be the next."""
    pages = world[0].pages
    page = pages.oldest
    assert page != NO_ROW and pages.references[page] == 0
    assert pages.children[page] == 0 and pages.behind[page] == 0
    unlist_evictable(world, page)
    unindex_page(world, page)
    child_goes(world, page)
    if pages.parent[page] != NO_ROW:
        pages.behind[pages.parent[page]] -= 1
    pages.idle_count -= 1
    pages.epoch += 1
    free_page(world, page)
    world[0].counters.pages_evicted += 1

"""Logical pages of the attention history: free, private to a slot, or immutable and shared."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, scalar, table, u8, u64
from helios_dod.system import kernel
from helios_dod.tables.prefixes import index_page, unindex_page
from helios_dod.terms import FREE, PAGE_IMMUTABLE, PAGE_PRIVATE


@table(rows="pages_max")
class Pages:
    """One row per logical page. A PRIVATE page has one owner slot; an IMMUTABLE one is counted.

    Invariants: FREE + PRIVATE + IMMUTABLE rows = page_count. `references` is the number of page
    tables that name an immutable page and of slots whose published text it is part of (a slot may
    hold a private duplicate of it); `children` is the number of immutable pages behind it. A page
    that is referenced has referenced ancestors. The eviction list holds the immutable pages with
    neither, least recently released first; `idle_count` is the number of those without references.
    `promised_count` <= free_count + idle_count: pages that admitted requests may still take.
    """

    state: u8
    group: u8  # page group of the histories it holds
    owner: i32  # slot or NO_ROW
    references: i32
    children: i32
    parent: i32  # the page before it in its text, or NO_ROW
    hash: u64
    salt: u64
    ids: i32["PAGE_TOKENS_MAX"]  # tokens of an immutable page
    older: i32  # eviction list
    newer: i32
    free: scalar(i32["pages_max"])
    free_count: scalar(i32)
    page_count: scalar(i32)  # pages that the backed cache has
    promised_count: scalar(i32)
    idle_count: scalar(i32)
    oldest: scalar(i32)
    newest: scalar(i32)
    epoch: scalar(i32)  # changes when a page is published or evicted


@kernel
def list_evictable(world, page):
    """Appends a page to the eviction list, as the most recently released."""
    pages = world[0].pages
    pages.older[page] = pages.newest
    pages.newer[page] = NO_ROW
    if pages.newest == NO_ROW:
        pages.oldest = page
    else:
        pages.newer[pages.newest] = page
    pages.newest = page


@kernel
def list_oldest(world, page):
    """Puts a page in front of the eviction list: it is at least as old as what was just evicted."""
    pages = world[0].pages
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
def take_page(world, slot):
    """A free page, now private to the slot; `evict` and `preempt` have made sure of one."""
    pages = world[0].pages
    assert pages.free_count > 0
    pages.free_count -= 1
    page = pages.free[pages.free_count]
    assert pages.state[page] == FREE
    pages.state[page] = PAGE_PRIVATE
    pages.owner[page] = slot
    return page


@kernel
def free_page(world, page):
    """Puts a page that nothing holds on the free stack."""
    pages = world[0].pages
    pages.state[page] = FREE
    pages.owner[page] = NO_ROW
    pages.parent[page] = NO_ROW
    pages.hash[page] = 0
    pages.salt[page] = 0
    pages.free[pages.free_count] = page
    pages.free_count += 1


@kernel
def reference_page(world, page):
    """One more page table names an immutable page."""
    pages = world[0].pages
    assert pages.state[page] == PAGE_IMMUTABLE
    if pages.references[page] == 0:
        pages.idle_count -= 1
        if pages.children[page] == 0:
            unlist_evictable(world, page)
    pages.references[page] += 1


@kernel
def dereference_page(world, page):
    """One reference less; without any, an immutable page is idle but stays cached."""
    pages = world[0].pages
    pages.references[page] -= 1
    assert pages.state[page] == PAGE_IMMUTABLE and pages.references[page] >= 0
    if pages.references[page] == 0:
        pages.idle_count += 1
        if pages.children[page] == 0:
            list_evictable(world, page)


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
    pages.hash[page] = hashed
    pages.salt[page] = salt
    pages.parent[page] = parent
    if parent != NO_ROW:
        if pages.children[parent] == 0 and pages.references[parent] == 0:
            unlist_evictable(world, parent)
        pages.children[parent] += 1
    pages.epoch += 1
    index_page(world, page)


@kernel
def evict_oldest(world):
    """Frees the least recently released page; its parent may be the next."""
    pages = world[0].pages
    page = pages.oldest
    assert page != NO_ROW and pages.references[page] == 0 and pages.children[page] == 0
    unlist_evictable(world, page)
    unindex_page(world, page)
    parent = pages.parent[page]
    if parent != NO_ROW:
        pages.children[parent] -= 1
        if pages.children[parent] == 0 and pages.references[parent] == 0:
            list_oldest(world, parent)
    pages.idle_count -= 1
    pages.epoch += 1
    free_page(world, page)
    world[0].counters.pages_evicted += 1

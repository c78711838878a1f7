"""The content index of immutable pages: open addressing with linear probing."""

import numpy as np

from helios_dod.limits import ENTRY_PAGE, ENTRY_PARENT, NO_ROW, PAGE_TOKENS_MAX
from helios_dod.schema import i32, scalar, table, u64
from helios_dod.system import kernel
from helios_dod.words import equal_sixteen, load_pair


@table(rows="prefix_rows_max")
class Prefixes:
    """One row per index entry: a page and its parent; the page is NO_ROW in a free one.

    Invariant: every IMMUTABLE page stands in exactly one row, reachable from its home row without a
    free row between. A hit is confirmed by the page's tokens, its parent and its salt, so that
    equal hashes never join different texts."""

    entry: i32["ENTRY_WORDS"]  # side by side: a lookup touches one line of the index, one of tokens
    ahead_hash: scalar(u64["MATCH_RING"])  # of the pages that `match` looks up ahead
    ahead_row: scalar(i32["MATCH_RING"])


@kernel(boundscheck=False, inline="always")
def chain(previous, ids, block, first, count):
    """Hash of a page: tokens ids[block, first : first + count] chained to the page before.

    The tokens are hashed by themselves, in two multiply-xor lanes over pairs, so that a processor
    works on several pages at once; one round of SplitMix64's finaliser (Steele, Lea and Flood
    2014) chains them."""
    a, b = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
    end = first + count
    for i in range(first, end - 3, 4):
        a = (a ^ load_pair(ids, block, i)) * np.uint64(0xD6E8FEB86659FD93)
        b = (b ^ load_pair(ids, block, i + 2)) * np.uint64(0xA0761D6478BD642F)
    for i in range(end - count % 4, end):
        a = (a ^ np.uint64(np.uint32(ids[block, i]))) * np.uint64(0xD6E8FEB86659FD93)
    mixed = np.uint64(previous) ^ a ^ (b >> np.uint64(29)) ^ (b << np.uint64(17))
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))


@kernel(boundscheck=False, inline="always")
def same_tokens(held, page, ids, block, first, count):
    """Is held[page, :count] equal to ids[block, first : first + count]?"""
    if count == PAGE_TOKENS_MAX:
        return equal_sixteen(held, page, ids, block, first)
    different = 0
    for i in range(count):
        different += held[page, i] != ids[block, first + i]
    return different == 0


@kernel(inline="always")
def home_row(world, hashed):
    """Where the probe for a hash begins."""
    return np.int64(hashed & np.uint64(world[0].prefixes.entry.shape[0] - 1))


@kernel(boundscheck=False, inline="always")
def next_behind(world, parent, row):
    """The first row from `row` on that is free, or whose page stands behind `parent`."""
    entry = world[0].prefixes.entry
    mask = entry.shape[0] - 1
    while entry[row, ENTRY_PAGE] != NO_ROW and entry[row, ENTRY_PARENT] != parent:
        row = (row + 1) & mask
    return row


@kernel(boundscheck=False)
def find_from(world, row, hashed, parent, salt, ids, block, first, count):
    """The immutable page with these tokens behind `parent`, probing from `row`; or NO_ROW.

    What spans stand for, the page's or the text's, is in the hash alone. A page has its salt from
    its parents, so the salt is compared at the first page only."""
    entry, pages = world[0].prefixes.entry, world[0].pages
    mask = entry.shape[0] - 1
    for _ in range(entry.shape[0]):
        row = next_behind(world, parent, row)
        page = entry[row, ENTRY_PAGE]
        if page == NO_ROW:
            return NO_ROW
        if (pages.hash[page] == hashed
                and same_tokens(pages.ids, page, ids, block, first, count)
                and (parent != NO_ROW or pages.salt[page] == salt)):
            return page
        row = (row + 1) & mask
    return NO_ROW


@kernel
def find_page(world, hashed, parent, salt, ids, block, first, count):
    """The immutable page with these tokens behind `parent`, or NO_ROW."""
    return find_from(
        world, home_row(world, hashed), hashed, parent, salt, ids, block, first, count)


@kernel
def index_page(world, page):
    """Adds a page by its hash; the index has twice as many rows as there are pages."""
    entry, pages = world[0].prefixes.entry, world[0].pages
    mask = entry.shape[0] - 1
    row = home_row(world, pages.hash[page])
    while entry[row, ENTRY_PAGE] != NO_ROW:
        row = (row + 1) & mask
    entry[row, ENTRY_PAGE] = page
    entry[row, ENTRY_PARENT] = pages.parent[page]


@kernel
def unindex_page(world, page):
    """Removes a page and moves later entries of its run back, so that no probe stops early."""
    entry, pages = world[0].prefixes.entry, world[0].pages
    mask = entry.shape[0] - 1
    row = home_row(world, pages.hash[page])
    for _ in range(entry.shape[0]):
        if entry[row, ENTRY_PAGE] == page:
            break
        assert entry[row, ENTRY_PAGE] != NO_ROW, "prefixes: an immutable page is not indexed"
        row = (row + 1) & mask
    hole, row = row, (row + 1) & mask
    while entry[row, ENTRY_PAGE] != NO_ROW:
        home = home_row(world, pages.hash[entry[row, ENTRY_PAGE]])
        if ((row - home) & mask) >= ((row - hole) & mask):
            entry[hole, ENTRY_PAGE] = entry[row, ENTRY_PAGE]
            entry[hole, ENTRY_PARENT] = entry[row, ENTRY_PARENT]
            hole = row
        row = (row + 1) & mask
    entry[hole, ENTRY_PAGE] = NO_ROW
    entry[hole, ENTRY_PARENT] = NO_ROW

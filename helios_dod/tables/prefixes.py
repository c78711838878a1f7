"""The content index of immutable pages: open addressing with linear probing."""

import numpy as np

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, scalar, table, u32, u64
from helios_dod.system import kernel


@table(rows="prefix_rows_max")
class Prefixes:
    """One row per index entry; `page` is NO_ROW in a free one.

    Invariant: every IMMUTABLE page stands in exactly one row, reachable from its home row without a
    free row between. A hit is confirmed by the page's tokens, its parent and its salt, so that
    equal hashes never join different texts."""

    page: i32
    tag: u32  # upper half of the page's hash
    window_hash: scalar(u64["MATCH_WINDOW"])  # `match` looks up so many pages at a time
    window_row: scalar(i32["MATCH_WINDOW"])


@kernel(boundscheck=False)
def chain(previous, ids, block, first, count):
    """Hash of a page: tokens ids[block, first : first + count] chained to the page before.

    The tokens are hashed by themselves, in two multiply-xor lanes over pairs, so that a processor
    works on several pages at once; one round of SplitMix64's finaliser (Steele, Lea and Flood
    2014) chains them."""
    a, b = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
    for i in range(0, count - 1, 2):
        a = (a ^ np.uint64(np.uint32(ids[block, first + i]))) * np.uint64(0xD6E8FEB86659FD93)
        b = (b ^ np.uint64(np.uint32(ids[block, first + i + 1]))) * np.uint64(0xA0761D6478BD642F)
    if count % 2 == 1:
        a = (a ^ np.uint64(np.uint32(ids[block, first + count - 1]))) * np.uint64(
            0xD6E8FEB86659FD93)
    mixed = np.uint64(previous) ^ a ^ (b >> np.uint64(29)) ^ (b << np.uint64(17))
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))


@kernel(boundscheck=False)
def same_tokens(held, page, ids, block, first, count):
    """Is held[page, :count] equal to ids[block, first : first + count]?"""
    different = 0
    for i in range(count):
        different += held[page, i] != ids[block, first + i]
    return different == 0


@kernel
def home_row(world, hashed):
    """Where the probe for a hash begins."""
    return np.int64(hashed & np.uint64(world[0].prefixes.page.shape[0] - 1))


@kernel(boundscheck=False)
def next_tagged(world, hashed, row):
    """The first row from `row` on whose tag fits, or that is free: the row."""
    prefixes = world[0].prefixes
    mask = prefixes.page.shape[0] - 1
    tag = np.uint32(hashed >> np.uint64(32))
    while prefixes.page[row] != NO_ROW and prefixes.tag[row] != tag:
        row = (row + 1) & mask
    return row


@kernel(boundscheck=False)
def find_from(world, hashed, row, parent, salt, ids, block, first, count):
    """The immutable page with these tokens behind `parent`, probing from `row`; or NO_ROW.

    A page has its salt from its parents, so the salt is compared at the first page only."""
    prefixes, pages = world[0].prefixes, world[0].pages
    mask = prefixes.page.shape[0] - 1
    for _ in range(prefixes.page.shape[0]):
        row = next_tagged(world, hashed, row)
        page = prefixes.page[row]
        if page == NO_ROW:
            return NO_ROW
        if (pages.parent[page] == parent and (parent != NO_ROW or pages.salt[page] == salt)
                and same_tokens(pages.ids, page, ids, block, first, count)):
            return page
        row = (row + 1) & mask
    return NO_ROW


@kernel
def find_page(world, hashed, parent, salt, ids, block, first, count):
    """The immutable page with these tokens behind `parent`, or NO_ROW."""
    return find_from(
        world, hashed, home_row(world, hashed), parent, salt, ids, block, first, count)


@kernel
def index_page(world, page):
    """Adds a page by its hash; the index has twice as many rows as there are pages."""
    prefixes = world[0].prefixes
    hashed = world[0].pages.hash[page]
    mask = prefixes.page.shape[0] - 1
    row = np.int64(hashed & np.uint64(mask))
    while prefixes.page[row] != NO_ROW:
        row = (row + 1) & mask
    prefixes.page[row] = page
    prefixes.tag[row] = np.uint32(hashed >> np.uint64(32))


@kernel
def unindex_page(world, page):
    """Removes a page and moves later entries of its run back, so that no probe stops early."""
    prefixes, pages = world[0].prefixes, world[0].pages
    mask = prefixes.page.shape[0] - 1
    row = np.int64(pages.hash[page] & np.uint64(mask))
    for _ in range(prefixes.page.shape[0]):
        if prefixes.page[row] == page:
            break
        assert prefixes.page[row] != NO_ROW, "prefixes: an immutable page is not indexed"
        row = (row + 1) & mask
    hole, row = row, (row + 1) & mask
    while prefixes.page[row] != NO_ROW:
        home = np.int64(pages.hash[prefixes.page[row]] & np.uint64(mask))
        if ((row - home) & mask) >= ((row - hole) & mask):
            prefixes.page[hole] = prefixes.page[row]
            prefixes.tag[hole] = prefixes.tag[row]
            hole = row
        row = (row + 1) & mask
    prefixes.page[hole] = NO_ROW
    prefixes.tag[hole] = 0

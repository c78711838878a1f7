"""match: the longest cached prefix of each request that could be admitted now."""

from helios_dod.limits import MATCH_WINDOW, NO_ROW, TOKEN_BLOCK
from helios_dod.system import kernel, prefetch, system
from helios_dod.tables.pages import on_device, resident, tier_of
from helios_dod.tables.prefixes import chain, find_from, home_row, next_tagged
from helios_dod.tables.requests import scores_left
from helios_dod.tables.snapshots import find_snapshot
from helios_dod.tables.spans import features_of, span_at
from helios_dod.tables.tiers import worthwhile


@kernel(boundscheck=False)
def look_ahead(world, row, first, size, hashed):
    """Hashes a window of pages and asks for the memory that its lookups will touch; the last hash.

    The lookups of a chain do not depend on each other, only their confirmation does."""
    prefixes, pages, count = world[0].prefixes, world[0].pages, world[0].settings.page_tokens
    blocks, ids = world[0].requests.blocks, world[0].tokens.ids
    spans = world[0].requests.span_count[row]
    for k in range(size):
        at = (first + k) * count
        block = blocks[row, at // TOKEN_BLOCK]
        hashed = chain(hashed, ids, block, at % TOKEN_BLOCK, count)
        if spans > 0:
            hashed ^= features_of(world, row, at, at + count)
        prefixes.window_hash[k] = hashed
        home = home_row(world, hashed)
        prefetch(prefixes.page, home)
        prefetch(prefixes.tag, home)
    for k in range(size):
        home = home_row(world, prefixes.window_hash[k])
        at = next_tagged(world, prefixes.window_hash[k], home)
        prefixes.window_row[k] = at
        if prefixes.page[at] != NO_ROW:
            prefetch(pages.parent, prefixes.page[at])
            prefetch(pages.ids[prefixes.page[at]], 0)
    return hashed


@kernel
def usable(world, page, count):
    """(page, count) of a found chain without what was lost, or is cheaper to compute than to
    restore. Pages that are not on the device stand at its end."""
    pages = world[0].pages
    if world[0].settings.view_pages > 0:  # what shifted views need is copied on the device
        while page != NO_ROW and not resident(pages.state[page]):
            page = pages.parent[page]
            count -= 1
    last, kept, at = page, count, count
    judged, cheaper = -1, False
    while page != NO_ROW and not on_device(pages.state[page]):
        tier = tier_of(pages.state[page])
        if tier != judged:
            judged, cheaper = tier, worthwhile(world, tier)
        parent = pages.parent[page]
        at -= 1
        if pages.lost[page] == 1 or not cheaper:
            last, kept = parent, at
        page = parent
    return last, kept


@kernel
def match_prefix(world, row):
    """Follows the request's pages through the index; at least one token is left to compute."""
    requests, prefixes = world[0].requests, world[0].prefixes
    count, salt = world[0].settings.page_tokens, requests.salt[row]
    total, spans = (requests.token_count[row] - 1) // count, requests.span_count[row]
    hashed, parent, found = world[0].settings.cache_seed, NO_ROW, 0
    while found < total:
        first = found
        size = min(MATCH_WINDOW, total - first)
        hashed = look_ahead(world, row, first, size, hashed)
        for k in range(size):
            at = (first + k) * count
            page = find_from(
                world, prefixes.window_hash[k], prefixes.window_row[k], parent, salt,
                world[0].tokens.ids, requests.blocks[row, at // TOKEN_BLOCK], at % TOKEN_BLOCK,
                count)
            if page != NO_ROW and spans > 0 and (
                    world[0].pages.hash[page] != prefixes.window_hash[k]):
                page = NO_ROW  # what its spans stand for is in the hash alone
            if page == NO_ROW:
                break
            parent = page
            found += 1
        if found < first + size:
            break
    parent, found = usable(world, parent, found)
    while spans > 0 and found > 0 and span_at(
            world, row, (found - world[0].settings.view_pages) * count) >= 0:
        parent = world[0].pages.parent[parent]
        found -= 1
    requests.match_page[row] = parent
    requests.match_count[row] = found
    requests.match_epoch[row] = world[0].pages.epoch


@kernel
def match_snapshot(world, row):
    """Cuts the match to the longest snapshot on it: histories go on from there only."""
    requests, pages = world[0].requests, world[0].pages
    page, count = requests.match_page[row], requests.match_count[row]
    last = requests.token_count[row] - 1
    found = NO_ROW
    for depth in range(count, -1, -1):
        found = find_snapshot(world, page, depth * world[0].settings.page_tokens, row, last)
        if found != NO_ROW or page == NO_ROW:
            count = depth
            break
        page = pages.parent[page]
    requests.match_snapshot[row] = found
    requests.match_page[row] = page if found != NO_ROW else NO_ROW
    requests.match_count[row] = count if found != NO_ROW else 0


@system(
    reads="settings.* requests.* slots.live_count tokens.ids pages.* prefixes.* "
          "snapshots.*",
    writes="requests.match_page requests.match_count requests.match_snapshot requests.match_epoch "
           "prefixes.window_hash prefixes.window_row tiers.refused_count",
)
def match(world):
    """As many heads of the waiting list as slots are free; again only if the index changed."""
    requests, settings = world[0].requests, world[0].settings
    if settings.caching == 0:
        return
    row = requests.waiting_first
    for _ in range(min(requests.waiting_count, settings.slot_count - world[0].slots.live_count)):
        if scores_left(world, row):  # what is not computed is not scored
            requests.match_page[row] = NO_ROW
            requests.match_count[row] = 0
            requests.match_snapshot[row] = NO_ROW
        elif requests.match_epoch[row] != world[0].pages.epoch:
            match_prefix(world, row)
            if settings.stateful == 1:
                match_snapshot(world, row)
        row = requests.waiting_next[row]

"""match: the longest cached prefix of each request that could be admitted now."""

from helios_dod.limits import MATCH_WINDOW, NO_ROW, TOKEN_BLOCK
from helios_dod.system import kernel, prefetch, system
from helios_dod.tables.pages import on_device, tier_of
from helios_dod.tables.prefixes import chain, find_from, home_row, next_tagged
from helios_dod.tables.requests import scores_left
from helios_dod.tables.tiers import worthwhile


@kernel(boundscheck=False)
def look_ahead(world, row, first, size, hashed):
    """Hashes a window of pages and asks for the memory that its lookups will touch; the last hash.

    The lookups of a chain do not depend on each other, only their confirmation does."""
    prefixes, pages, count = world[0].prefixes, world[0].pages, world[0].settings.page_tokens
    blocks, ids = world[0].requests.blocks, world[0].tokens.ids
    for k in range(size):
        at = (first + k) * count
        block = blocks[row, at // TOKEN_BLOCK]
        hashed = chain(hashed, ids, block, at % TOKEN_BLOCK, count)
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
    total = (requests.token_count[row] - 1) // count
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
            if page == NO_ROW:
                break
            parent = page
            found += 1
        if found < first + size:
            break
    parent, found = usable(world, parent, found)
    requests.match_page[row] = parent
    requests.match_count[row] = found
    requests.match_epoch[row] = world[0].pages.epoch


@system(
    reads="settings.* requests.* slots.live_count tokens.ids pages.* prefixes.*",
    writes="requests.match_page requests.match_count requests.match_epoch prefixes.window_hash "
           "prefixes.window_row tiers.refused_count",
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
        elif requests.match_epoch[row] != world[0].pages.epoch:
            match_prefix(world, row)
        row = requests.waiting_next[row]

"""match: the longest cached prefix of each request that could be admitted now."""

from helios_dod.limits import NO_ROW, TOKEN_BLOCK
from helios_dod.system import kernel, system
from helios_dod.tables.prefixes import chain, find_page


@kernel
def match_prefix(world, row):
    """Follows the request's pages through the index; at least one token is left to compute."""
    requests, ids = world[0].requests, world[0].tokens.ids
    count, salt = world[0].settings.page_tokens, requests.salt[row]
    hashed, parent, found = world[0].settings.cache_seed, NO_ROW, 0
    for index in range((requests.token_count[row] - 1) // count):
        first = index * count
        block = requests.blocks[row, first // TOKEN_BLOCK]
        page_ids = ids[block, first % TOKEN_BLOCK:first % TOKEN_BLOCK + count]
        hashed = chain(hashed, page_ids, count)
        page = find_page(world, hashed, parent, salt, page_ids, count)
        if page == NO_ROW:
            break
        parent = page
        found += 1
    requests.match_page[row] = parent
    requests.match_count[row] = found
    requests.match_epoch[row] = world[0].pages.epoch


@system(
    reads="settings.* requests.* slots.live_count tokens.ids pages.* prefixes.*",
    writes="requests.match_page requests.match_count requests.match_epoch",
)
def match(world):
    """As many heads of the waiting list as slots are free; again only if the index changed."""
    requests, settings = world[0].requests, world[0].settings
    if settings.caching == 0:
        return
    row = requests.waiting_first
    for _ in range(min(requests.waiting_count, settings.slot_count - world[0].slots.live_count)):
        if requests.match_epoch[row] != world[0].pages.epoch:
            match_prefix(world, row)
        row = requests.waiting_next[row]

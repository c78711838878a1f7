"""match: the longest cached prefix of each request that could be admitted now."""

import numpy as np

from helios_dod.limits import ENTRY_PAGE, MATCH_AHEAD, MATCH_RING, NO_ROW, TOKEN_BLOCK
from helios_dod.system import kernel, prefetch, system
from helios_dod.tables.pages import on_device, resident, tier_of
from helios_dod.tables.prefixes import chain, find_page, home_row, next_behind, same_tokens
from helios_dod.tables.requests import scores_left
from helios_dod.tables.spans import features_of, span_at
from helios_dod.tables.tiers import probes, token_ns, worthwhile
from helios_dod.tables.values import longest_snapshot
from helios_dod.tables.windows import window_ns
from helios_dod.terms import TIER_DISK, TIER_MEMORY

STREAK = 4  # pages in rows beside each other behind which the next is looked for there


@kernel(boundscheck=False, inline="always")
def hash_ahead(world, row, index, hashed, beside):
    """Hashes page `index` of a request's text; the hash. Asks for its line of the index, unless the
    pages before it lie beside each other: so may this one."""
    prefixes, requests, count = world[0].prefixes, world[0].requests, world[0].settings.page_tokens
    at = index * count
    block = requests.blocks[row, at // TOKEN_BLOCK]
    hashed = chain(hashed, world[0].tokens.ids, block, at % TOKEN_BLOCK, count)
    if requests.span_count[row] > 0:
        hashed ^= features_of(world, row, at, at + count)
    prefixes.ahead_hash[index & (MATCH_RING - 1)] = hashed
    if not beside:
        prefetch(prefixes.entry[home_row(world, hashed)], ENTRY_PAGE)
    return hashed


@kernel(boundscheck=False, inline="always")
def is_beside(world, page, index):
    """Is page `index` in the row behind that of `page`, which it follows? By its hash and its
    parent, which only immutable pages have."""
    pages = world[0].pages
    return (page + 1 < pages.parent.shape[0] and pages.parent[page + 1] == page
            and pages.hash[page + 1] == world[0].prefixes.ahead_hash[index & (MATCH_RING - 1)])


@kernel(boundscheck=False)
def ask_index(world, first, end):
    """Asks for the lines of the index of pages that are hashed and not beside the one before."""
    prefixes = world[0].prefixes
    for index in range(first, end):
        hashed = prefixes.ahead_hash[index & (MATCH_RING - 1)]
        prefetch(prefixes.entry[home_row(world, hashed)], ENTRY_PAGE)


@kernel(boundscheck=False, inline="always")
def probe_ahead(world, index, parent, beside):
    """Finds page `index` by its hash and the page before it, and asks for its tokens and its hash;
    the page, to be confirmed, or NO_ROW. `ahead_row` is its row of the index, or ~page of one that
    lies beside the one before it and was not looked up."""
    prefixes, k = world[0].prefixes, index & (MATCH_RING - 1)
    if beside:
        page = parent + 1
        prefixes.ahead_row[k] = ~page
    else:
        at = next_behind(world, parent, home_row(world, prefixes.ahead_hash[k]))
        prefixes.ahead_row[k] = at
        page = np.int64(prefixes.entry[at, ENTRY_PAGE])
    if page != NO_ROW:
        prefetch(world[0].pages.ids[page], 0)
        prefetch(world[0].pages.hash, page)
    return page


@kernel(boundscheck=False, inline="always")
def probed(world, index):
    """The page that `probe_ahead` found."""
    at = np.int64(world[0].prefixes.ahead_row[index & (MATCH_RING - 1)])
    return np.int64(world[0].prefixes.entry[at, ENTRY_PAGE]) if at >= 0 else ~at


@kernel(boundscheck=False, inline="always")
def confirm(world, row, index, parent):
    """The page with the tokens of page `index` of a request's text behind `parent`, or NO_ROW."""
    prefixes, requests, pages = world[0].prefixes, world[0].requests, world[0].pages
    count, k, ids = world[0].settings.page_tokens, index & (MATCH_RING - 1), world[0].tokens.ids
    block, first = requests.blocks[row, index * count // TOKEN_BLOCK], index * count % TOKEN_BLOCK
    page, hashed = probed(world, index), prefixes.ahead_hash[k]
    if page != NO_ROW and (parent == NO_ROW or pages.hash[page] != hashed or not same_tokens(
            pages.ids, page, ids, block, first, count)):
        page = np.int64(find_page(
            world, hashed, parent, requests.salt[row], ids, block, first, count))
    return page


@kernel(boundscheck=False)
def follow(world, row, first, total, parent, hashed):
    """Follows a request's pages from page `first` on, behind `parent`, as far as they are what the
    index seems to hold: (pages found, the last, the last that was confirmed or NO_ROW).

    Hashes do not depend on what is found, so that memory works on many pages at once: a page is
    hashed first, looked up MATCH_AHEAD pages later, confirmed as many later again. Should another
    page than the expected one be confirmed, what was looked up behind that one is void.

    A text that was computed in long pieces has its pages in rows beside each other. While that is
    so the index is not touched: a line of memory less for each page, at a random place."""
    guessed, end, found, streak = np.int64(parent), total, first, 0
    for step in range(first, total + 2 * MATCH_AHEAD):
        if step < end:
            hashed = hash_ahead(world, row, step, hashed, streak >= STREAK)
        looked, index = step - MATCH_AHEAD, step - 2 * MATCH_AHEAD
        if first <= looked < end:
            if streak >= STREAK and not is_beside(world, guessed, looked):
                streak = 0
                ask_index(world, looked, min(step + 1, end))
            page = probe_ahead(world, looked, guessed, streak >= STREAK)
            streak, guessed = streak + 1 if page == guessed + 1 else 0, page
            if guessed == NO_ROW:
                end = looked + 1
        if index < first:
            continue
        expected = probed(world, index)
        page = confirm(world, row, index, parent)
        if page == NO_ROW:
            return found, parent, NO_ROW
        parent, found = page, index + 1
        if page != expected:
            break
    return found, parent, parent


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
    count = world[0].settings.page_tokens
    total, spans = (requests.token_count[row] - 1) // count, requests.span_count[row]
    hashed, parent, page, found = world[0].settings.cache_seed, NO_ROW, 0, 0
    while found < total and page != NO_ROW:
        found, parent, page = follow(world, row, found, total, parent, hashed)
        hashed = prefixes.ahead_hash[(found - 1) & (MATCH_RING - 1)]
    parent, found = usable(world, parent, found)
    while spans > 0 and found > 0 and span_at(
            world, row, (found - world[0].settings.view_pages) * count) >= 0:
        parent = world[0].pages.parent[parent]
        found -= 1
    if world[0].settings.stateful == 0 and found <= world[0].settings.view_pages:
        while parent != NO_ROW and not resident(world[0].pages.state[parent]):
            parent = world[0].pages.parent[parent]  # none is shared, so none has to come back
            found -= 1
    requests.match_page[row] = parent
    requests.match_count[row] = found
    requests.match_epoch[row] = world[0].pages.epoch


@kernel
def cheapest_snapshot(world, row, found, page, depth):
    """(a snapshot, its page, pages up to it) that a request goes on from in the least time, `found`
    or a shorter one; NO_ROW, NO_ROW and 0 where computing all of it takes less.

    A snapshot takes what brings back its window, and the computing of what is behind it; one that
    is shorter, behind the same page or one before it, spares pages in tiers their way back. None is
    better than one whose window lacks nothing: a page in a tier is on the chain only if computing
    it takes longer."""
    last, cost = world[0].requests.token_count[row] - 1, token_ns(world)
    best, best_page, best_depth, spared = NO_ROW, NO_ROW, 0, np.int64(0)
    least = np.int64(2**62)
    while found != NO_ROW:
        window = window_ns(world, found)
        spent = window + cost * (last - world[0].snapshots.endpoint[found]) - spared
        if spent < least:
            best, best_page, best_depth, least = found, page, depth, spent
        if window == 0:
            return best, best_page, best_depth
        found, page, depth, more = longest_snapshot(
            world, row, page, depth, np.int64(world[0].snapshots.endpoint[found]) - 1)
        spared += more
    if cost * last - spared < least:
        return NO_ROW, NO_ROW, 0
    return best, best_page, best_depth


@kernel
def match_snapshot(world, row):
    """Cuts the match to the longest snapshot on it, since histories go on from there only; or to a
    shorter one, or none, where the window of the longest is not worth its way back."""
    requests, snapshots = world[0].requests, world[0].snapshots
    found, page, depth, _ = longest_snapshot(
        world, row, np.int64(requests.match_page[row]), np.int64(requests.match_count[row]),
        np.int64(requests.token_count[row]) - 1)
    if found != NO_ROW and snapshots.window_away[found] > 0 and world[0].tiers.prefill_tokens > 0:
        chosen, its_page, its_depth = cheapest_snapshot(world, row, found, page, depth)
        tier = TIER_DISK if snapshots.window_stored[found] > 0 else TIER_MEMORY
        if chosen != found and not probes(world, tier):
            found, page, depth = chosen, its_page, its_depth
            world[0].counters.window_restores_refused += 1
    requests.match_snapshot[row] = found
    requests.match_page[row] = page if found != NO_ROW else NO_ROW
    requests.match_count[row] = depth if found != NO_ROW else 0


@system(
    reads="settings.* requests.* slots.live_count tokens.ids pages.* prefixes.* "
          "snapshots.* tiers.*",
    writes="requests.match_page requests.match_count requests.match_snapshot requests.match_epoch "
           "prefixes.ahead_hash prefixes.ahead_row tiers.refused_count "
           "counters.window_restores_refused",
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

"""Shadow contents of the histories beside the paged one, for the simulated executor.

Each history chains the records of its tokens by itself, through its own rows, page table or view:
recurrent rows; a latent plane with one record for several tokens, whose unfinished record lies in a
continuation row; a plane behind a shifted view; a windowed plane of page group 1. All must come to
the record of the paged history. Pages name the record before their first token, so that a wrong
one between others is seen. What disagrees is mixed into the record that a token is drawn from. So a
stale row, a wrong snapshot, a shifted view, a skipped copy or a wrong page changes the tokens.
"""

from collections.abc import Mapping

import numpy as np

from helios_dod.contract.prepared import PreparedContract
from helios_dod.executors.base import Geometry
from helios_dod.executors.simulated_device import EMPTY_HISTORY, NONE, mix, record
from helios_dod.system import kernel
from helios_dod.terms import (
    SOURCE_CONSUMED,
    SOURCE_LIVE_LANES,
    SOURCE_PAGE_COPIES,
    SOURCE_PAGE_COPY_COUNT,
    SOURCE_PAGE_UPDATE_COUNT,
    SOURCE_PAGE_UPDATES,
    SOURCE_PENDING_TOKEN,
    SOURCE_QUERY_LENGTH,
    SOURCE_QUERY_START,
    SOURCE_RESTORE_SOURCE,
    SOURCE_SLOT,
    SOURCE_STATE_ROW,
    SOURCE_TOKEN,
)

PAGED_LATENT, CONTINUATION = 2, 5  # proto HistoryKind
PAGE_TOKENS, ROWS, RATIO, PARTIAL, WINDOW, SHIFT = range(6)  # words of a shape; 0: not there
SHIFTED, WINDOWED = 0, 1  # views beside the page table


@kernel
def copy(target, source):
    """target[:] = source. An assignment of one array to another makes room for a copy first, where
    both might overlap, and kernels allocate nothing."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel
def token_of(words, at, lane, index, pending):
    """Token `index` of a lane's query, as the device reads it."""
    token = np.int32(NONE)
    if at[SOURCE_PENDING_TOKEN] >= 0:
        token = words[at[SOURCE_PENDING_TOKEN] + lane]
    elif at[SOURCE_TOKEN] >= 0:
        token = words[at[SOURCE_TOKEN] + words[at[SOURCE_QUERY_START] + lane] + index]
    return pending[words[at[SOURCE_SLOT] + lane]] if token < 0 else token


@kernel
def update(words, count_at, updates_at, table):
    """Page-table entries newly assigned."""
    for i in range(words[count_at] if count_at >= 0 else 0):
        base = updates_at + 3 * i
        table[words[base], words[base + 1]] = words[base + 2]


@kernel
def judged(found, record_, wanted):
    """What was found so far, changed where a history did not come to the wanted record: not by an
    exclusive or alone, since two histories that go wrong alike would cancel out."""
    return found if record_ == wanted else mix(found ^ record_ ^ mix(wanted))


@kernel
def broken_links(tokens, pages, first, end, plane, links):
    """What pages first .. end - 1 of a text disagree in: each names the record before it."""
    found = np.uint64(0)
    for i in range(first + 1, end):
        found = judged(found, links[pages[i]], plane[pages[i - 1], tokens - 1])
    return found


@kernel
def last_record(tokens, pages, position, plane):
    """The record before a position."""
    if position == 0:
        return np.uint64(EMPTY_HISTORY)
    return plane[pages[(position - 1) // tokens], (position - 1) % tokens]


@kernel
def follow_paged(tokens, pages, position, taken, cache, links, wanted, differ):
    """Records of the tokens that are taken into `wanted`; links of the pages that they begin. What
    the history before them disagrees in, into `differ`."""
    history = last_record(tokens, pages, position, cache)
    differ[:] = broken_links(tokens, pages, 0, -(-position // tokens), cache, links)
    for i in range(len(taken)):
        if (position + i) % tokens == 0:
            links[pages[(position + i) // tokens]] = history
        history = record(history, taken[i])
        wanted[i] = history


@kernel
def follow_rows(shape, row, taken, rows, wanted, differ, kept):
    """Advances recurrent rows."""
    for r in range(shape[ROWS]):
        state = rows[row + r]
        for i in range(len(taken)):
            state = record(state, taken[i])
            differ[i] = judged(differ[i], state, wanted[i])
            if kept:
                rows[row + (1 + i) * shape[ROWS] + r] = state
        if not kept:
            rows[row + r] = state


@kernel
def follow_latent(shape, row, pages, position, taken, latent, continued, wanted, differ, kept):
    """Completes latent records; the unfinished one goes on in the continuation row."""
    ratio, tokens, state = shape[RATIO], shape[PAGE_TOKENS], continued[row]
    for i in range(len(taken)):
        p = position + i
        if p % ratio == 0:
            state = np.uint64(EMPTY_HISTORY)
            if p > 0:
                state = latent[pages[(p - 1) // tokens], (p - 1) % tokens // ratio]
        state = record(state, taken[i])
        differ[i] = judged(differ[i], state, wanted[i])
        if p % ratio == ratio - 1:
            latent[pages[p // tokens], p % tokens // ratio] = state
        if kept:
            continued[row + (1 + i) * shape[ROWS]] = state
    if not kept:
        continued[row] = state


@kernel
def follow_plane(tokens, window, pages, position, taken, plane, links, wanted, differ):
    """Records of a plane behind a view of its own. window: tokens that it sees, 0: all."""
    history = last_record(tokens, pages, position, plane)
    first = max(position - window + 1, 0) // tokens if window > 0 else 0
    found = broken_links(tokens, pages, first, -(-position // tokens), plane, links)
    for i in range(len(taken)):
        if (position + i) % tokens == 0:
            links[pages[(position + i) // tokens]] = history
        history = record(history, taken[i])
        plane[pages[(position + i) // tokens], (position + i) % tokens] = history
        differ[i] = judged(judged(differ[i], found, np.uint64(0)), history, wanted[i])


@kernel
def follow_lane(shape, slot, row, position, taken, table, cache, rows, pages, wanted, differ, kept):
    """Every history of a lane over the tokens that it takes from a position on; what they disagree
    in behind each token, into `differ`.

    rows: recurrent, continued. pages: links, latent, and plane, links and table of both views.
    kept: committed rows stay as they are, the state behind each token goes to rows of its own."""
    tokens = shape[PAGE_TOKENS]
    recurrent, continued = rows
    links, latent, shifted, shifted_links, shifted_table, windowed, windowed_links, window_table = (
        pages)
    follow_paged(tokens, table[slot], position, taken, cache, links, wanted, differ)
    follow_rows(shape, row, taken, recurrent, wanted, differ, kept)
    if shape[RATIO] > 0:
        follow_latent(shape, row, table[slot], position, taken, latent, continued, wanted, differ,
                      kept)
    if shape[SHIFT] > 0:
        follow_plane(tokens, 0, shifted_table[slot], position, taken, shifted, shifted_links,
                     wanted, differ)
    if shape[WINDOW] > 0:
        follow_plane(tokens, shape[WINDOW], window_table[slot], position, taken, windowed,
                     windowed_links, wanted, differ)


@kernel
def row_of(words, at, lane):
    """The first state row of a lane, 0 for a program that takes none."""
    return words[at[SOURCE_STATE_ROW] + lane] if at[SOURCE_STATE_ROW] >= 0 else np.int32(0)


@kernel
def follow(world, frame, at, shape, table, cache, rows, pages, views, pending, scratch, differ):
    """Every lane of a plain program before it draws; differ: what each lane's histories disagree
    in. scratch: tokens, records and disagreements of one lane."""
    words = world[0].staging.words[frame]
    taken, wanted, found = scratch
    update_tables(world, frame, at, table, pages, views)
    for lane in range(words[at[SOURCE_LIVE_LANES]]):
        length = words[at[SOURCE_QUERY_LENGTH] + lane]
        for i in range(length):
            taken[i] = token_of(words, at, lane, i, pending)
        follow_lane(shape, words[at[SOURCE_SLOT] + lane], row_of(words, at, lane),
                    words[at[SOURCE_CONSUMED] + lane], taken[:length], table, cache, rows, pages,
                    wanted, found[:length], False)
        differ[lane] = found[length - 1] if length > 0 else np.uint64(0)


@kernel
def follow_round(world, frame, at, shape, table, cache, rows, pages, views, pending, endpoint,
                 drafts, lengths, scratch, differs):
    """Every lane of a speculative program over its target rows, before they are verified: rows of
    state behind each of them are kept, and committed state stays. differs: [lanes, rows]."""
    words = world[0].staging.words[frame]
    taken, wanted, found = scratch
    update_tables(world, frame, at, table, pages, views)
    for lane in range(words[at[SOURCE_LIVE_LANES]]):
        slot, length = words[at[SOURCE_SLOT] + lane], lengths[lane]
        taken[0] = pending[slot]
        copy(taken[1:length], drafts[lane, :length - 1])
        follow_lane(shape, slot, row_of(words, at, lane), endpoint[slot], taken[:length], table,
                    cache, rows, pages, wanted, found[:length], True)
        copy(differs[lane, :length], found[:length])


@kernel
def commit_rows(world, frame, at, count, rows):
    """The state behind the last target row that was accepted is the lane's."""
    words = world[0].staging.words[frame]
    for lane in range(words[at[SOURCE_LIVE_LANES]]):
        row, emitted = row_of(words, at, lane), world[0].completions.emitted[frame, lane]
        for kind in range(2):
            for r in range(row, row + count):
                rows[kind][r] = rows[kind][r + emitted * count]


@kernel
def update_tables(world, frame, at, table, pages, views):
    """The entries that a program is given, of every view."""
    words = world[0].staging.words[frame]
    update(words, at[SOURCE_PAGE_UPDATE_COUNT], at[SOURCE_PAGE_UPDATES], table)
    update(words, views[SHIFTED, 0], views[SHIFTED, 1], pages[4])
    update(words, views[WINDOWED, 0], views[WINDOWED, 1], pages[7])


@kernel
def clear(world, frame, at, rows):
    """The state of a request that begins. rows: every row of each slot, [slots, rows]."""
    words = world[0].staging.words[frame]
    for lane in range(words[at[SOURCE_LIVE_LANES]]):
        rows[words[at[SOURCE_SLOT] + lane], :] = EMPTY_HISTORY


@kernel
def copy_pages(world, frame, at, cache, pages):
    """Whole pages of group 0."""
    words = world[0].staging.words[frame]
    links, latent, shifted, shifted_links = pages[0], pages[1], pages[2], pages[3]
    for i in range(words[at[SOURCE_PAGE_COPY_COUNT]]):
        source = words[at[SOURCE_PAGE_COPIES] + 2 * i]
        target = words[at[SOURCE_PAGE_COPIES] + 2 * i + 1]
        copy(cache[target], cache[source])
        copy(latent[target], latent[source])
        copy(shifted[target], shifted[source])
        links[target] = links[source]
        shifted_links[target] = shifted_links[source]


@kernel
def copy_page(plane, links, page, kept, restore):
    """Records and link of a page to kept[:-1] and kept[-1], or back."""
    if restore:
        copy(plane[page], kept[:len(plane[page])])
        links[page] = kept[-1]
    else:
        copy(kept[:len(plane[page])], plane[page])
        kept[-1] = links[page]


@kernel
def copy_partial(slot, endpoint, shape, table, cache, pages, kept, restore):
    """The pages that a snapshot does not hold, to its storage or back: those that the endpoint lies
    in, and what a shifted view has behind the complete ones."""
    tokens = shape[PAGE_TOKENS]
    links, latent, shifted, shifted_links, shifted_table, windowed, windowed_links, window_table = (
        pages)
    index, inside = endpoint // tokens, endpoint % tokens > 0
    if inside:
        copy_page(cache, links, table[slot, index], kept[0], restore)
        copy_page(latent, links, table[slot, index], kept[1], restore)
        if shape[WINDOW] > 0:
            copy_page(windowed, windowed_links, window_table[slot, index], kept[2], restore)
    if shape[SHIFT] > 0:
        first = max(index - shape[SHIFT], 0)
        for i in range(first, -(-endpoint // tokens)):
            copy_page(shifted, shifted_links, shifted_table[slot, i], kept[3 + i - first], restore)


@kernel
def copy_snapshots(world, frame, at, source, shape, table, cache, rows, pages, saved_rows,
                   saved_pages):
    """Copies state between the lanes' rows and the snapshot rows that `source` names, if any.

    rows: [slots, rows of one], saved_rows the same of snapshots."""
    words, restore = world[0].staging.words[frame], source == SOURCE_RESTORE_SOURCE
    width = shape[ROWS]
    for lane in range(words[at[SOURCE_LIVE_LANES]]):
        saved = words[at[source] + lane]
        if saved < 0:
            continue
        live = words[at[SOURCE_STATE_ROW] + lane]
        for kind in range(2):
            if restore:
                copy(rows[kind][live:live + width], saved_rows[kind][saved:saved + width])
            else:
                copy(saved_rows[kind][saved:saved + width], rows[kind][live:live + width])
        endpoint = words[at[SOURCE_CONSUMED] + lane] + words[at[SOURCE_QUERY_LENGTH] + lane]
        if shape[PARTIAL] == 1:
            slot = words[at[SOURCE_SLOT] + lane]
            copy_partial(slot, endpoint, shape, table, cache, pages, saved_pages[saved], restore)


class Histories:
    """The contents of one simulated device, beside its paged history and page table."""

    def __init__(self, contract: PreparedContract, geometry: Geometry,
                 staging_first: Mapping[int, int]) -> None:
        cache = contract.cache
        kinds = {region.kind: region for region in cache.regions}
        latent = kinds[PAGED_LATENT].compression_ratio if PAGED_LATENT in kinds else 0
        tokens = geometry.page_tokens
        # Speculative programs have more rows than these, for state that is not committed.
        width = min(program.state_rows_per_request for program in contract.programs)
        self.shape = np.array([tokens, width if cache.stateful else 0, latent,
                               CONTINUATION in kinds, cache.window_tokens, cache.view_pages])
        self.rows = self.make_rows(geometry.state_rows)
        self.by_slot = tuple(row.reshape(geometry.slots, -1) for row in self.rows)
        self.saved_rows = self.make_rows(geometry.snapshot_rows)
        self.saved_pages = np.zeros(
            (geometry.snapshot_rows, 4 + cache.view_pages, tokens + 1), np.uint64)
        table = (geometry.slots, geometry.pages_per_request)
        self.pages = (
            *self.make_plane(geometry.pages, tokens)[::-1],
            *self.make_plane(geometry.pages, tokens), np.zeros(table, np.int32),
            *self.make_plane(geometry.windowed_pages, tokens), np.zeros(table, np.int32))
        self.scratch = (np.zeros(geometry.packed, np.int32), np.zeros(geometry.packed, np.uint64),
                        np.zeros(geometry.packed, np.uint64))
        self.views = np.full((len(contract.programs), 2, 2), NONE, np.int64)
        for row, program in enumerate(contract.programs):
            for binding in program.bindings:
                if binding.table > 0:
                    which = cache.tables[binding.table].page_group
                    counted = binding.source == SOURCE_PAGE_UPDATE_COUNT
                    self.views[row, which, 0 if counted else 1] = staging_first[binding.buffer]

    def contents(self) -> tuple[np.ndarray, ...]:
        """All that programs write."""
        return (*self.rows, *self.saved_rows, self.saved_pages, *self.pages, *self.scratch)

    @staticmethod
    def make_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
        """Recurrent rows, continuation rows."""
        return np.zeros(count, np.uint64), np.zeros(count, np.uint64)

    @staticmethod
    def make_plane(pages: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Records, links."""
        return np.zeros((pages, tokens), np.uint64), np.zeros(pages, np.uint64)

    def load_page(self, cache: np.ndarray, place: int) -> np.ndarray:
        """What a page of group 0 holds, over all planes."""
        links, latent, shifted, shifted_links = self.pages[:4]
        return np.concatenate((cache[place], latent[place], shifted[place], links[place:place + 1],
                               shifted_links[place:place + 1]))

    def store_page(self, cache: np.ndarray, place: int, words: np.ndarray | np.uint64) -> None:
        """Puts back what `load_page` gave, or one word everywhere."""
        links, latent, shifted, shifted_links = self.pages[:4]
        held = np.broadcast_to(words, 3 * cache.shape[1] + 2)
        cache[place], latent[place], shifted[place] = held[:-2].reshape(3, -1)
        links[place], shifted_links[place] = held[-2:]

    @property
    def windowed(self) -> np.ndarray:
        """Records of page group 1."""
        return self.pages[5]

    def load_window(self, place: int) -> np.ndarray:
        """What a page of group 1 holds."""
        return np.append(self.windowed[place], self.pages[6][place])

    def store_window(self, place: int, words: np.ndarray | np.uint64) -> None:
        """Puts back what `load_window` gave, or one word everywhere."""
        held = np.broadcast_to(words, self.windowed.shape[1] + 1)
        self.windowed[place], self.pages[6][place] = held[:-1], held[-1]

    def clear(self, world: np.ndarray, frame: int, at: np.ndarray) -> None:
        """An initialising program."""
        for rows in self.by_slot:
            clear(world, frame, at, rows)

    def follow(self, world: np.ndarray, frame: int, at: np.ndarray, program: int,
               table: np.ndarray, cache: np.ndarray, pending: np.ndarray,
               differ: np.ndarray) -> None:
        """What comes before a plain program's own work."""
        follow(world, frame, at, self.shape, table, cache, self.rows, self.pages,
               self.views[program], pending, self.scratch, differ)

    def follow_round(self, world: np.ndarray, frame: int, at: np.ndarray, program: int,
                     table: np.ndarray, cache: np.ndarray, pending: np.ndarray,
                     endpoint: np.ndarray, drafts: np.ndarray, lengths: np.ndarray,
                     differs: np.ndarray) -> None:
        """What comes between a speculative program's proposals and their verification."""
        follow_round(world, frame, at, self.shape, table, cache, self.rows, self.pages,
                     self.views[program], pending, endpoint, drafts, lengths, self.scratch, differs)

    def commit(self, world: np.ndarray, frame: int, at: np.ndarray) -> None:
        """What comes behind the verification."""
        commit_rows(world, frame, at, self.shape[ROWS], self.rows)

    def restore(self, world: np.ndarray, frame: int, at: np.ndarray, program: int,
                table: np.ndarray, cache: np.ndarray) -> None:
        """What a restoring program does: updates every view, then copies pages."""
        update_tables(world, frame, at, table, self.pages, self.views[program])
        if at[SOURCE_PAGE_COPY_COUNT] >= 0:
            copy_pages(world, frame, at, cache, self.pages)

    def copy(self, world: np.ndarray, frame: int, at: np.ndarray, source: int, table: np.ndarray,
             cache: np.ndarray) -> None:
        """What a program that binds `source` does about snapshots."""
        if at[source] >= 0:
            copy_snapshots(world, frame, at, source, self.shape, table, cache, self.rows,
                           self.pages, self.saved_rows, self.saved_pages)

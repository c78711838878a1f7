"""What must hold between systems: counts add up, links agree, nothing is owned twice."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helios_dod.limits import MASK_BITS, NO_ROW
from helios_dod.simulation.windows import compare_windows
from helios_dod.terms import (
    COPY_FETCH,
    COPY_OFFLOAD,
    COPY_RESTORE,
    COPY_SINK,
    FINISHED,
    FRAME_SUBMITTED,
    FREE,
    GRAMMAR_READY,
    OP_SPECULATIVE,
    PAGE_FETCHING,
    PAGE_IMMUTABLE,
    PAGE_LEAVING,
    PAGE_OFFLOADED,
    PAGE_PRIVATE,
    PAGE_RESTORING,
    PAGE_SINKING,
    PAGE_STORED,
    RUNNING,
    SLOT_DRAINING,
    SLOT_RESTORING,
    SNAPSHOT_READY,
    SNAPSHOT_WRITING,
    TEXT_ALL,
    TIER_DISK,
    TIER_MEMORY,
    WAITING,
)

# Copy of group 0 -> where its source and target lie: 0 the device, 1 memory, 2 disk.
COPY_TIERS = {COPY_OFFLOAD: (0, 1), COPY_RESTORE: (1, 0), COPY_SINK: (1, 2), COPY_FETCH: (2, 0)}
# Copy -> (state of its page, which of source and target is the page's own place by that).
MOVING = {COPY_OFFLOAD: (PAGE_LEAVING, 0), COPY_RESTORE: (PAGE_RESTORING, 1),
          COPY_SINK: (PAGE_SINKING, 0), COPY_FETCH: (PAGE_FETCHING, 1)}


class Violation(AssertionError):
    """An invariant that does not hold: table, row and value."""


def require(held: bool, what: str) -> None:
    """Raises Violation unless `held`."""
    if not held:
        raise Violation(what)


def require_equal(counted: np.ndarray, held: np.ndarray, what: str) -> None:
    """Raises Violation unless a column holds what was counted."""
    if not np.array_equal(counted, held):
        raise Violation(f"{what} {held}, counted {counted}")


@dataclass(frozen=True)
class Invariant:
    """A check of a world's record, which raises Violation, and the columns that it reads."""

    check: Callable[[np.void], None]
    reads: frozenset[str]

    def __call__(self, w: np.void) -> None:
        self.check(w)


INVARIANTS: list[Invariant] = []  # in the order of the file


def invariant(reads: str) -> Callable[[Callable[[np.void], None]], Invariant]:
    """Declares an invariant. reads: space-separated `table.column` or `table.*`."""

    def declare(check: Callable[[np.void], None]) -> Invariant:
        INVARIANTS.append(Invariant(check, frozenset(reads.split())))
        return INVARIANTS[-1]

    return declare


def check_free(table: np.void, name: str, rows: int) -> None:
    """The free stack holds exactly the FREE rows, each once."""
    stack = np.sort(table["free"][: int(table["free_count"])])
    require_equal(np.nonzero(table["state"][:rows] == FREE)[0], stack,
                  f"{name}: not the FREE rows, free stack")


@invariant("requests.state requests.free requests.free_count requests.waiting_first "
           "requests.waiting_last requests.waiting_count requests.waiting_previous "
           "requests.waiting_next requests.order_ns requests.slot requests.token_count "
           "requests.prompt_count requests.output_limit requests.emitted_count requests.withheld "
           "requests.text_end requests.finish slots.request stops.active stops.strings "
           "stops.text_count")
def check_requests(w: np.void) -> None:
    """States, the waiting list, links to slots, blocks of the token arena."""
    r = w["requests"]
    check_free(r, "requests", len(r["state"]))
    listed, row, previous = [], int(r["waiting_first"]), NO_ROW
    for _ in range(int(r["waiting_count"])):
        require(int(r["waiting_previous"][row]) == previous, f"requests[{row}].waiting_previous")
        listed.append(row)
        previous, row = row, int(r["waiting_next"][row])
    require(row == NO_ROW and int(r["waiting_last"]) == previous, "requests.waiting_last")
    waiting = np.nonzero(r["state"] == WAITING)[0].tolist()
    require(sorted(listed) == waiting, f"requests: waiting list {listed}, WAITING rows {waiting}")
    order = [int(r["order_ns"][row]) for row in listed]
    require(order == sorted(order), f"requests: order in the waiting list {order}")
    for row in np.nonzero(r["state"] != FREE)[0].tolist():
        slot = int(r["slot"][row])
        require((slot != NO_ROW) or r["state"][row] != RUNNING, f"requests[{row}].slot")
        require(slot == NO_ROW or int(w["slots"]["request"][slot]) == row,
                f"requests[{row}].slot {slot}")
        count, prompt = int(r["token_count"][row]), int(r["prompt_count"][row])
        require(prompt <= count <= prompt + int(r["output_limit"][row]),
                f"requests[{row}].token_count")
        require(0 <= int(r["emitted_count"][row]) <= count - prompt,
                f"requests[{row}].emitted_count")
        require(0 <= int(r["withheld"][row]) <= count - prompt, f"requests[{row}].withheld")
        stops = w["stops"]
        if stops["active"][row] and stops["strings"][row]:
            require(r["text_end"][row] in (TEXT_ALL, *range(stops["text_count"][row] + 1)),
                    f"requests[{row}].text_end {r['text_end'][row]}")
        require((r["finish"][row] != 0) == (r["state"][row] == FINISHED), f"requests[{row}].finish")


@invariant("tokens.owner tokens.free_count requests.state requests.block_count requests.blocks")
def check_tokens(w: np.void) -> None:
    """Every block is free or belongs to the request that lists it."""
    t, r = w["tokens"], w["requests"]
    owned = {}
    for row in np.nonzero(r["state"] != FREE)[0]:
        for index in range(int(r["block_count"][row])):
            owned[int(r["blocks"][row, index])] = int(row)
    for block, owner in owned.items():
        require(int(t["owner"][block]) == owner, f"tokens[{block}].owner {t['owner'][block]}")
    require(len(owned) + int(t["free_count"]) == len(t["owner"]),
            f"tokens.free_count {t['free_count']}")


@invariant("slots.state slots.free slots.free_count slots.live slots.live_count slots.feedback "
           "slots.restore slots.copying slots.in_flight slots.consumed slots.scheduled slots.open "
           "slots.narrow slots.page_count slots.request settings.* frames.state frames.program "
           "frames.lane_count lanes.slot lanes.sampled lanes.query_length lanes.ceiling "
           "lanes.restore programs.operation requests.span_count requests.span_first "
           "requests.span_end requests.state")
def check_slots(w: np.void) -> None:
    """Endpoints, page counts, frames in flight, the live list."""
    s = w["slots"]
    rows = int(w["settings"]["slot_count"])
    check_free(s, "slots", rows)
    live = s["live"][: int(s["live_count"])].tolist()
    require(sorted(live) == np.nonzero(s["state"][:rows] != FREE)[0].tolist(), f"slots.live {live}")
    in_flight, rounds, unknown, ahead = np.zeros((4, len(s["state"])), int)
    for frame in np.nonzero(w["frames"]["state"] >= FRAME_SUBMITTED)[0]:
        if w["frames"]["state"][frame] in (FRAME_SUBMITTED, FRAME_SUBMITTED + 1):
            program = w["frames"]["program"][frame]
            for lane in range(int(w["frames"]["lane_count"][frame])):
                slot = w["lanes"]["slot"][frame, lane]
                in_flight[slot] += 1
                rounds[slot] += w["lanes"]["sampled"][frame, lane]
                unknown[slot] += w["programs"]["operation"][program] == OP_SPECULATIVE
                ahead[slot] += w["lanes"]["query_length"][frame, lane]
                require(not s["narrow"][slot] or w["lanes"]["ceiling"][frame, lane] <= 1,
                        f"lanes[{frame}, {lane}].ceiling of slot {slot}, which is narrow")
    restoring = {*np.nonzero((s["restore"] != NO_ROW) | (s["copying"] > 0))[0].tolist(),
                 *w["lanes"]["slot"][w["lanes"]["restore"] != NO_ROW].tolist()}
    for slot in live:
        require(int(s["in_flight"][slot]) == in_flight[slot],
                f"slots[{slot}].in_flight {s['in_flight'][slot]}, frames hold {in_flight[slot]}")
        require(not s["feedback"][slot] or rounds[slot] <= 1,
                f"slots[{slot}]: {rounds[slot]} rounds in flight, but it needs feedback")
        require(0 <= s["consumed"][slot] <= s["scheduled"][slot], f"slots[{slot}].consumed")
        require(int(s["open"][slot]) == unknown[slot], f"slots[{slot}].open {s['open'][slot]}")
        require(int(s["scheduled"][slot] - s["consumed"][slot]) == ahead[slot],
                f"slots[{slot}].scheduled {s['scheduled'][slot]}, {ahead[slot]} tokens in flight")
        tokens = int(w["settings"]["page_tokens"])
        held = max(int(s["page_count"][slot]) - int(w["settings"]["view_pages"]), 0) * tokens
        if slot in restoring:  # a page that is not complete, and those of views, are to come
            held = int(s["page_count"][slot]) * tokens + tokens - 1
        require(held >= int(s["scheduled"][slot]), f"slots[{slot}].page_count holds {held}")
        request = int(s["request"][slot])
        if request == NO_ROW:
            require(s["state"][slot] == SLOT_DRAINING, f"slots[{slot}].request of no draining slot")
            continue
        for name in ("consumed", "scheduled"):
            inside = [i for i in range(int(w["requests"]["span_count"][request]))
                      if w["requests"]["span_first"][request, i] < s[name][slot]
                      < w["requests"]["span_end"][request, i]]
            require(not inside, f"slots[{slot}].{name} {s[name][slot]}: inside a span")
        expected = FINISHED if s["state"][slot] == SLOT_DRAINING else RUNNING
        require(int(w["requests"]["state"][request]) == expected, f"slots[{slot}].state")


@invariant("pages.rows pages.row_count pages.state pages.page_count pages.free pages.free_count "
           "pages.place tiers.place_count tiers.first tiers.free_count copies.first copies.end "
           "copies.kind copies.page copies.source copies.target copies.leaving_count "
           "copies.sinking_count")
def check_places(w: np.void) -> None:
    """Every place of the device and of each tier is free, a page's, or a copy's; rows add up."""
    p, tiers, copies = w["pages"], w["tiers"], w["copies"]
    free_rows = p["rows"][: int(p["row_count"])].tolist()
    state = p["state"]
    rows = int(p["page_count"] + tiers["place_count"].sum())
    require(sorted(free_rows) == np.nonzero(state[:rows] == FREE)[0].tolist(),
            f"pages.rows {sorted(free_rows)}: not the FREE rows")
    held: list[list[int]] = [[], [], []]  # the device, then each tier
    held[0] += p["free"][: int(p["free_count"])].tolist()
    for tier in range(len(tiers["place_count"])):
        first = int(tiers["first"][tier])
        held[1 + tier] += p["free"][first : first + int(tiers["free_count"][tier])].tolist()
    for page in np.nonzero(state != FREE)[0].tolist():
        at = 0 if state[page] <= PAGE_FETCHING else 1 + int(state[page] == PAGE_STORED)
        held[at].append(int(p["place"][page]))
    leaving = sinking = 0
    for queue in range(len(copies["first"])):
        for number in range(int(copies["first"][queue]), int(copies["end"][queue])):
            k = number % copies["kind"].shape[1]
            kind, page = int(copies["kind"][queue, k]), int(copies["page"][queue, k])
            if kind not in COPY_TIERS:
                continue
            leaving, sinking = leaving + (kind == COPY_OFFLOAD), sinking + (kind == COPY_SINK)
            tiers_of = COPY_TIERS[kind]
            moving, holds = MOVING[kind]
            both = int(copies["source"][queue, k]), int(copies["target"][queue, k])
            ours = state[page] == moving and int(p["place"][page]) == both[holds]
            for end in (0, 1):
                if not (ours and end == holds):
                    held[tiers_of[end]].append(both[end])
    counts = [int(p["page_count"]), *tiers["place_count"].tolist()]
    for name, places, count in zip(("device", "memory", "disk"), held, counts, strict=True):
        require(sorted(places) == list(range(count)), f"places of the {name}: {sorted(places)}")
    require(leaving == int(copies["leaving_count"]), f"copies.leaving_count, {leaving} leave")
    require(sinking == int(copies["sinking_count"]), f"copies.sinking_count, {sinking} sink")


@invariant("pages.page_count pages.state pages.parent pages.owner pages.references "
           "pages.promised_count tiers.place_count slots.live slots.live_count slots.page_count "
           "slots.restoring slots.promise slots.state slots.published_page slots.published_count "
           "slots.pages")
def check_pages(w: np.void) -> None:
    """Every page is free, private and listed once by its owner, or immutable and counted."""
    p, s = w["pages"], w["slots"]
    rows = int(p["page_count"] + w["tiers"]["place_count"].sum())
    state = p["state"][:rows]
    named = np.zeros(rows, int)
    promised = 0
    for slot in s["live"][: int(s["live_count"])]:
        count, away = int(s["page_count"][slot]), int(s["restoring"][slot])
        promised += max(int(s["promise"][slot]) - count, 0) + away
        readable = s["state"][slot] not in (SLOT_RESTORING, SLOT_DRAINING)
        text = int(s["published_page"][slot])
        for _ in range(int(s["published_count"][slot])):
            require(state[text] >= PAGE_IMMUTABLE, f"slots[{slot}]: page {text} of its text")
            require(not readable or state[text] <= PAGE_LEAVING,
                    f"slots[{slot}]: page {text} of its text is in state {state[text]}")
            named[text] += 1
            text = int(p["parent"][text])
        require(text == NO_ROW, f"slots[{slot}].published_page: a text with no beginning")
        for page in s["pages"][slot, :count]:
            named[page] += 1
            require(state[page] >= PAGE_IMMUTABLE or int(p["owner"][page]) == int(slot),
                    f"pages[{page}].owner {p['owner'][page]}, in the table of slot {slot}")
            require(not readable or state[page] <= PAGE_LEAVING,
                    f"slots[{slot}]: page {page} of its table is in state {state[page]}")
    private, shared = state == PAGE_PRIVATE, state >= PAGE_IMMUTABLE
    require((named[private] == 1).all(), "pages: a private one is not named once")
    require_equal(named[shared], p["references"][:rows][shared], "pages.references")
    require(not named[~private & ~shared].any(), "pages: a free page in a page table")
    require(promised == int(p["promised_count"]), f"pages.promised_count {p['promised_count']}, "
            f"slots are promised {promised}")


def check_snapshots(w: np.void, page_rows: int) -> np.ndarray:
    """States, readers, writers, buckets and the eviction list; how many stand behind each page."""
    s, lanes = w["snapshots"], w["lanes"]
    rows = int(w["snapshots"]["snapshot_count"])
    check_free(s, "snapshots", rows)
    read, written = np.zeros(rows, int), np.zeros(rows, int)
    for slot in w["slots"]["live"][: int(w["slots"]["live_count"])]:
        if w["slots"]["restore"][slot] != NO_ROW:
            read[w["slots"]["restore"][slot]] += 1
    for column, count in (("restore", read), ("snapshot", written)):
        for row in lanes[column][lanes[column] != NO_ROW]:
            count[row] += 1
    require_equal(read, s["readers"][:rows], "snapshots.readers")
    writing, ready = s["state"][:rows] == SNAPSHOT_WRITING, s["state"][:rows] == SNAPSHOT_READY
    require_equal(written, writing, "snapshots: WRITING")
    listed: list[int] = []
    row = int(s["oldest"])
    while row != NO_ROW and len(listed) <= rows:
        listed.append(row)
        row = int(s["newer"][row])
    require(sorted(listed) == np.nonzero(ready & (read == 0))[0].tolist(),
            f"snapshots: eviction list {listed}")
    found: list[int] = []
    for bucket, first in enumerate(s["buckets"]):
        while first != NO_ROW and len(found) <= rows:
            found.append(int(first))
            require(int(s["page"][first]) % len(s["buckets"]) == bucket,
                    f"snapshots[{first}]: bucket {bucket}")
            first = s["bucket_next"][first]
    require(sorted(found) == np.nonzero(ready)[0].tolist(), f"snapshots: in buckets {found}")
    for row in np.nonzero(ready & (read > 0) & (s["page"][:rows] != NO_ROW))[0]:
        require(w["pages"]["references"][s["page"][row]] > 0,
                f"snapshots[{row}] is read, but its page {s['page'][row]} is idle")
    pages = s["page"][:rows][ready]
    return np.bincount(pages[pages != NO_ROW], minlength=page_rows)


@invariant("windows.* settings.* slots.live slots.live_count slots.window_pages "
           "slots.window_first slots.window_end slots.consumed snapshots.window_pages copies.* "
           "snapshots.window_places snapshots.window_first snapshots.window_end "
           "snapshots.window_away snapshots.window_stored snapshots.window_sinking")
def check_windows(w: np.void) -> None:
    """Pages of group 1 and places of them are free or held as counted; slots hold what they see."""
    table, s, settings = w["windows"], w["slots"], w["settings"]
    for what, counted, held in compare_windows(w):
        require_equal(counted, held, what)
    require(table["moving_count"] <= table["moving_max"],
            f"windows.moving_count {table['moving_count']}")
    if settings["window_tokens"] == 0:
        return
    tokens = int(settings["page_tokens"])
    for slot in s["live"][: int(s["live_count"])]:
        seen = max(int(s["consumed"][slot]) - int(settings["window_tokens"]) + 1, 0) // tokens
        require(s["window_first"][slot] <= seen or s["window_first"][slot] == s["window_end"][slot],
                f"slots[{slot}].window_first {s['window_first'][slot]}, sees from {seen}")


@invariant("pages.page_count pages.state pages.parent pages.children pages.behind pages.references "
           "pages.idle_count pages.oldest pages.newer tiers.place_count tiers.oldest "
           "prefixes.entry snapshots.state snapshots.free snapshots.free_count "
           "snapshots.snapshot_count snapshots.readers snapshots.oldest snapshots.newer "
           "snapshots.buckets snapshots.bucket_next snapshots.page slots.live slots.live_count "
           "slots.restore lanes.restore lanes.snapshot")
def check_cache(w: np.void) -> None:
    """Children, the lists and the index against the immutable pages; snapshots."""
    p = w["pages"]
    rows = int(p["page_count"] + w["tiers"]["place_count"].sum())
    state = p["state"][:rows]
    shared = state >= PAGE_IMMUTABLE
    near = shared & (state <= PAGE_FETCHING) & (state != PAGE_LEAVING)
    pinned, none = check_snapshots(w, rows), np.zeros(rows, int)
    tiered = w["tiers"]["place_count"][TIER_MEMORY] > 0
    children, behind = (none, pinned.copy()) if tiered else (pinned.copy(), none)
    require(not pinned[~(shared & (tiered | (state <= PAGE_LEAVING)))].any(),
            "snapshots: one stands behind a page that is not on the device")
    for page in np.nonzero(shared)[0]:
        parent = int(p["parent"][page])
        if parent == NO_ROW:
            continue
        (children if near[page] else behind)[parent] += 1
        # A copy to the device goes back when it ends, if that of the page before it failed.
        coming = state[page] in (PAGE_RESTORING, PAGE_FETCHING)
        require(coming or state[page] > PAGE_FETCHING or state[parent] <= PAGE_FETCHING,
                f"pages[{page}] is on the device, the page before it is in state {state[parent]}")
    require_equal(children[shared], p["children"][:rows][shared], "pages.children")
    require_equal(behind[shared], p["behind"][:rows][shared], "pages.behind")
    free = p["references"][:rows] == 0
    for page in np.nonzero(shared & free)[0]:
        require(free[(p["parent"][:rows] == page) & shared].all(),
                f"pages[{page}]: idle, but a page behind it is not")
    idle = shared & free & (state <= PAGE_LEAVING)
    require(int(idle.sum()) == int(p["idle_count"]), f"pages.idle_count {p['idle_count']}")
    lists = [("eviction list", p["oldest"], idle & (state == PAGE_IMMUTABLE) & (children == 0))]
    for tier, where in ((TIER_MEMORY, PAGE_OFFLOADED), (TIER_DISK, PAGE_STORED)):
        lists.append((f"list of tier {tier}", w["tiers"]["oldest"][tier], free & (state == where)))
    for name, oldest, expected in lists:
        listed: list[int] = []
        at = int(oldest)
        while at != NO_ROW and len(listed) <= rows:
            listed.append(at)
            at = int(p["newer"][at])
        require(sorted(listed) == np.nonzero(expected)[0].tolist(),
                f"pages: {name} {listed}, should hold {np.nonzero(expected)[0].tolist()}")
    indexed, parents = w["prefixes"]["entry"].T
    used = indexed != NO_ROW
    require_equal(p["parent"][indexed[used]], parents[used], "prefixes: parents")
    require(sorted(indexed[used].tolist()) == np.nonzero(shared)[0].tolist(),
            "prefixes: not the immutable pages, each once")


@invariant("grammars.* candidates.count candidates.found_count candidates.tokens slots.state "
           "slots.grammar slots.request requests.token_count requests.prompt_count")
def check_grammars(w: np.void) -> None:
    """Links to slots, the free stack, the queue of jobs."""
    g, s = w["grammars"], w["slots"]
    check_free(g, "grammars", len(g["state"]))
    for slot in range(len(s["state"])):
        row = int(s["grammar"][slot])
        require(row == NO_ROW or int(g["slot"][row]) == slot, f"slots[{slot}].grammar {row}")
    for row in np.nonzero(g["state"] != FREE)[0].tolist():
        slot = int(g["slot"][row])
        require(int(s["grammar"][slot]) == row, f"grammars[{row}].slot {slot}")
        request = int(s["request"][slot])
        generated = int(w["requests"]["token_count"][request] -
                        w["requests"]["prompt_count"][request])
        require(0 <= int(g["given"][row]) <= generated, f"grammars[{row}].given {g['given'][row]}")
        if g["state"][row] == GRAMMAR_READY and int(g["given"][row]) == generated:
            check_drafts(w, row, slot, int(w["requests"]["token_count"][request]))
    queue = g["queue"][: int(g["queue_count"])].tolist()
    require(sorted(queue) == np.nonzero(g["job"])[0].tolist(), f"grammars.queue {queue}")


def check_drafts(w: np.void, row: int, slot: int, token_count: int) -> None:
    """Each draft of a READY row continues its slot's text, and is in the mask before it."""
    g, c = w["grammars"], w["candidates"]
    drafts, words = int(g["drafts"][row]), int(g["mask_words"])
    require(drafts == 0 or (
        row < int(g["drafted_rows"]) and drafts < int(g["positions"])
        and int(c["found_count"][slot]) == token_count and drafts <= int(c["count"][slot])),
        f"grammars[{row}].drafts {drafts} of {c['count'][slot]} candidates")
    for i, token in enumerate(c["tokens"][slot, :drafts].tolist()):
        word = g["masks"][(row * int(g["positions"]) + i) * words + token // MASK_BITS]
        require(int(word) >> token % MASK_BITS & 1 == 1,
                f"grammars[{row}]: draft {i}, token {token}, is not in its mask")


def check(world: np.ndarray) -> None:
    """Every invariant. Raises Violation."""
    for each in INVARIANTS:
        each.check(world[0])


def check_quiet(world: np.ndarray) -> None:
    """What must hold when all work is done and delivered: nothing is held but cached pages."""
    check(world)
    w = world[0]
    pages = int(w["pages"]["free_count"]) + int(w["pages"]["idle_count"])
    require(pages == int(w["pages"]["page_count"]), f"pages: {pages} of {w['pages']['page_count']}")
    capacities = {"requests": len(w["requests"]["state"]), "tokens": len(w["tokens"]["owner"]),
                  "slots": int(w["settings"]["slot_count"]),
                  "grammars": len(w["grammars"]["state"])}
    for name, rows in capacities.items():
        require(int(w[name]["free_count"]) == rows, f"{name}.free_count {w[name]['free_count']}")
    copies = w["copies"]
    require((copies["first"] == copies["end"]).all(), f"copies in flight {copies['end']}")
    require(not w["frames"]["state"].any(), f"frames.state {w['frames']['state']}")
    require(int(w["pages"]["promised_count"]) == 0, "pages.promised_count")
    require(not (w["snapshots"]["state"] == SNAPSHOT_WRITING).any(), "snapshots: one is written")
    require(not w["snapshots"]["readers"].any(), "snapshots.readers")

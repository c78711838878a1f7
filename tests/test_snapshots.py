"""Snapshots in the simulator over all kinds of history, their table alone, and canaries."""

import random
from dataclasses import replace

import numpy as np
import pytest

from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError
from helios_dod.contract.wire.contract_pb2 import CONTINUATION
from helios_dod.edges import Submission
from helios_dod.limits import NO_ROW, SMALL, TEST_MIN
from helios_dod.runtime.selection import Options, SelectionError, choose, snapshot_bytes
from helios_dod.runtime.served import require_served
from helios_dod.simulation.invariants import Violation, check_snapshots
from helios_dod.simulation.kinds import Kinds
from helios_dod.simulation.programs import simulated_core
from helios_dod.simulation.simulator import Drafting, Simulator, Workload
from helios_dod.simulation.stand_in import grammar_text
from helios_dod.systems.evict import evict
from helios_dod.systems.lanes import pauses
from helios_dod.systems.match import match_snapshot
from helios_dod.tables.pages import dereference_page, publish_page, take_page
from helios_dod.tables.requests import take_request
from helios_dod.tables.snapshots import (
    drop_snapshot,
    evict_snapshot,
    find_snapshot,
    hold_snapshot,
    publish_snapshot,
    release_snapshot,
    take_snapshot,
)
from helios_dod.tables.tiers import PROBES
from helios_dod.tables.tokens import take_blocks
from helios_dod.tables.values import (
    ANSWER_PAGES,
    RETRY,
    TRIAL,
    choose_snapshot,
    note_saved,
    observe_copying,
    wanted,
)
from helios_dod.terms import (
    CAUSE_ANSWER,
    CAUSE_PAGE,
    CAUSE_PROMPT,
    CAUSE_TURN,
    EGRESS_FINISHED,
    EGRESS_TOKEN,
    FREE,
    SNAPSHOT_READY,
    SNAPSHOT_WRITING,
    SOURCE_PAGE_COPY_COUNT,
    SOURCE_RESTORE_SOURCE,
)
from helios_dod.world import boot, fill_free, fill_pages

HYBRID = Kinds(recurrent=True, continuation=True, snapshots=8)
EVERYTHING = Kinds(recurrent=True, latent=4, window=24, shift=2, state_rows=2, snapshots=8)
TURNS = Workload(arrival=0.15, shared=1.0, turns=0.9, cancel=0.02, prompt_max=40)
KINDS = [
    pytest.param(HYBRID, id="recurrent and continuation"),
    pytest.param(Kinds(recurrent=True, snapshots=8, state_rows=3), id="recurrent, three rows"),
    pytest.param(Kinds(latent=8, snapshots=8), id="latent"),
    pytest.param(replace(HYBRID, closing=False, snapshots=1), id="one snapshot"),
    pytest.param(replace(HYBRID, inline=False, latent=2), id="ends of answers only"),
    pytest.param(replace(HYBRID, snapshots=0), id="none kept"),
    pytest.param(Kinds(window=5, continuation=True, snapshots=8), id="small window"),
    pytest.param(Kinds(window=30, snapshots=8), id="window, whole pages"),
    pytest.param(Kinds(shift=1), id="shifted view"),
    pytest.param(EVERYTHING, id="all kinds"),
]


def counters(simulator: Simulator) -> dict[str, int]:
    table = simulator.world[0]["counters"]
    return {name: int(table[name]) for name in table.dtype.names}


@pytest.mark.parametrize("kinds", KINDS)
def test_walked_equals_fused(kinds):
    """Invariants and write-sets hold after every system; the fused tick leaves the same bytes."""
    walked = Simulator(3, walked=True, kinds=kinds, workload=TURNS)
    fused = Simulator(3, walked=False, kinds=kinds, workload=TURNS)
    assert walked.run(100) == fused.run(100)
    assert walked.finished > 0


@pytest.mark.parametrize("kinds", KINDS)
def test_answers_are_the_oracle_s(kinds):
    """Restored, cold and preempted requests get the tokens that the text alone determines."""
    found = dict.fromkeys(counters(Simulator(1, kinds=kinds)), 0)
    for seed in range(200, 203):
        simulator = Simulator(seed, walked=False, kinds=kinds, workload=TURNS, pages=20 + seed % 9,
                              frames=1 + seed % 2, host_pending=seed % 3 == 0)
        simulator.run(1200)
        for name, count in counters(simulator).items():
            found[name] += count
    if kinds.snapshots == 0:
        assert found["snapshots_published"] == 0
        assert (found["prompt_tokens_cached"] > 0) == (not kinds.stateful)
        return
    for name in ("snapshots_published", "snapshots_evicted", "snapshot_hits",
                 "prompt_tokens_cached"):
        assert found[name] > 0, name


def ask(simulator, tag, prompt, limit, tokens=10**6):
    """(tokens, cached prompt tokens) of a request, cancelled once it has so many tokens."""
    simulator.engine.step()
    assert simulator.edge.submit(Submission(tag, np.array(prompt, np.int32), limit))
    answer = []
    while True:
        for event in simulator.edge.events().copy():
            if event["kind"] == EGRESS_TOKEN:
                answer.append(int(event["token"]))
            else:
                assert event["kind"] == EGRESS_FINISHED
                return answer, int(event["value"])
        if len(answer) >= tokens:
            simulator.edge.cancel(tag)
        simulator.clock.now_ns = simulator.executor.next_end() or simulator.clock.now_ns + 1
        simulator.engine.step()


@pytest.mark.parametrize("kinds", [
    HYBRID, replace(EVERYTHING, shift=0), Kinds(window=30, snapshots=8)], ids=repr)
@pytest.mark.parametrize("frames", [1, 2])
def test_an_answer_goes_on_where_it_was_left(kinds, frames):
    """Ended by itself, a text goes on at its end; broken off, at the last boundary of its own that
    a snapshot was taken at, and not at the end of the prompt: with the tokens of a cold one."""
    load = replace(TURNS, arrival=0)
    warm, cold = (Simulator(3, walked=False, frames=frames, kinds=replace(kinds, snapshots=count),
                            workload=load) for count in (8, 0))
    exact = kinds.continued
    prompt = list(range(20))
    whole, cached = ask(warm, 1, prompt, 75)
    assert cached == 0 and whole == ask(cold, 1, prompt, 75)[0]
    text = prompt + whole + [7]
    after, cached = ask(warm, 2, text, 10)
    assert cached == len(text) - 2 if exact else 64 <= cached < len(text)
    assert after == ask(cold, 2, text, 10)[0]
    broken_off, cached = ask(warm, 3, prompt[::-1], 200, tokens=52)
    text = prompt[::-1] + broken_off[:50] + [9]
    after, cached = ask(warm, 4, text, 10)
    assert cached == ANSWER_PAGES * 16 > len(prompt)
    assert after == ask(cold, 4, text, 10)[0]
    saved, taken = (warm.world[0]["snapshots"][name][CAUSE_ANSWER] for name in ("saved", "taken"))
    boundary = ANSWER_PAGES * 16  # less what a snapshot of the prompt would restore, or of a page
    value = boundary - len(prompt) if exact else 2 * (boundary - 16)
    assert saved == value and taken >= 2, "and its value is measured"


@pytest.mark.parametrize("width", [0, 2])
@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("grammar", [b"", grammar_text(2)], ids=["free", "constrained"])
def test_the_loop_does_not_sleep_while_an_answer_pauses(width, frames, grammar):
    """Once the last mask or fence has come, nothing else would wake it."""
    simulator = Simulator(3, walked=False, frames=frames, kinds=HYBRID,
                          workload=replace(TURNS, arrival=0),
                          drafting=Drafting(width=width, accept=0, history=True))
    simulator.engine.step()
    assert simulator.edge.submit(Submission(1, np.arange(20, dtype=np.int32), 100, grammar=grammar))
    ended = False
    while not ended:
        launched, events = simulator.engine.step(), simulator.edge.events().copy()
        ended = EGRESS_FINISHED in events["kind"]
        end, jobs = simulator.executor.next_end(), simulator.worker.waiting
        assert launched or len(events) or jobs or end is not None
        while jobs:
            simulator.worker.do(jobs.pop(0))
        simulator.clock.now_ns = max(simulator.clock.now_ns, end or 0)
    assert simulator.world[0]["snapshots"]["taken"][CAUSE_ANSWER] == 1


def test_an_answer_that_nobody_goes_on_with_is_not_kept():
    """What snapshots of answers have not saved ends them; they are tried again now and then."""
    simulator = Simulator(3, walked=False, kinds=HYBRID, workload=replace(TURNS, arrival=0))
    for tag in range(TRIAL + 2 * RETRY):
        ask(simulator, tag, [tag % 50, tag // 50, *range(18)], 60)
    snapshots = simulator.world[0]["snapshots"]
    assert TRIAL <= snapshots["taken"][CAUSE_ANSWER] <= TRIAL + 2


def test_an_answer_has_one_snapshot():
    simulator = Simulator(3, walked=False, kinds=HYBRID, workload=replace(TURNS, arrival=0))
    ask(simulator, 1, range(20), 260)
    snapshots = simulator.world[0]["snapshots"]
    assert snapshots["taken"][CAUSE_ANSWER] == 4
    ready = snapshots["state"] == SNAPSHOT_READY
    assert (snapshots["cause"][ready] == CAUSE_ANSWER).sum() == 1


def test_every_rare_branch_is_reached():
    """Duplicates and failures are dropped; sent-back requests go on from snapshots."""
    load = replace(TURNS, arrival=0.6, cancel=0.1, output_max=80)
    simulator = Simulator(31, walked=False, kinds=HYBRID, workload=load, pages=14)
    simulator.run(2500)
    for name in ("snapshots_dropped", "snapshots_evicted", "preempted", "snapshot_hits"):
        assert counters(simulator)[name] > 0, name


def broken(simulator: Simulator, ticks: int = 4000) -> None:
    """A run that must be noticed."""
    with pytest.raises(Violation, match=r"got|not a prefix|shown of"):
        simulator.run(ticks)


def test_canary_skipped_copy():
    """A device that does not copy a snapshot back answers wrong tokens."""
    simulator = Simulator(5, walked=False, kinds=HYBRID, workload=TURNS)
    copy = simulator.executor.histories.copy

    def skipping(world, frame, at, source, table, cache):
        if source != SOURCE_RESTORE_SOURCE:
            copy(world, frame, at, source, table, cache)

    simulator.executor.histories.copy = skipping
    broken(simulator)


def test_canary_stale_row():
    """A device that once forgets to write its state rows answers wrong tokens."""
    simulator = Simulator(6, walked=False, kinds=HYBRID, workload=TURNS)
    histories = simulator.executor.histories
    follow, left = histories.follow, [40]

    def forgetting(*arguments):
        before = histories.rows[0].copy()
        follow(*arguments)
        left[0] -= 1
        if left[0] == 0:
            histories.rows[0][:] = before

    histories.follow = forgetting
    broken(simulator)


def test_canary_wrong_snapshot():
    """A program that is given the row of another snapshot answers wrong tokens."""
    simulator = Simulator(7, walked=False, kinds=HYBRID, workload=TURNS)
    copy = simulator.executor.histories.copy

    def misled(world, frame, at, source, table, cache):
        words = world[0]["staging"]["words"][frame]
        if source == SOURCE_RESTORE_SOURCE and at[source] >= 0 and words[at[source]] >= 0:
            words[at[source]] = (words[at[source]] + 1) % HYBRID.snapshots
        copy(world, frame, at, source, table, cache)

    simulator.executor.histories.copy = misled
    broken(simulator)


def test_canary_lost_partial_page():
    """Continuation storage that loses a page is noticed, although the state rows are right."""
    simulator = Simulator(8, walked=False, kinds=HYBRID, workload=TURNS)
    copy = simulator.executor.histories.copy

    def losing(*arguments):
        simulator.executor.histories.saved_pages[:] = 0
        copy(*arguments)

    simulator.executor.histories.copy = losing
    broken(simulator)


def test_canary_leaked_reader():
    """A reader that no slot is, is noticed at the next check."""
    simulator = Simulator(9, walked=True, kinds=HYBRID, workload=TURNS)
    snapshots = simulator.world[0]["snapshots"]
    while not (snapshots["state"] == SNAPSHOT_READY).any():
        simulator.tick()
    snapshots["readers"][int(np.nonzero(snapshots["state"] == SNAPSHOT_READY)[0][0])] += 1
    with pytest.raises(Violation, match=r"snapshots\.readers"):
        simulator.tick()


def table(pages: int = 24) -> np.ndarray:
    """A world with snapshots, and one request whose text is 0, 1, 2 ..."""
    world = boot(TEST_MIN)
    w = world[0]
    fill_pages(world, pages)
    fill_free(w["snapshots"], TEST_MIN.snapshots_max)
    w["snapshots"]["snapshot_count"] = TEST_MIN.snapshots_max
    w["settings"]["page_tokens"], w["settings"]["stateful"] = 16, 1
    request = take_request(world)
    take_blocks(world, request, 2)
    w["tokens"]["ids"][w["requests"]["blocks"][request, :2]] = np.arange(512).reshape(2, 256)
    w["requests"]["token_count"][request] = 512
    w["requests"]["output_limit"][request] = 512
    w["slots"]["request"][0] = request
    return world


def publish_text(world: np.ndarray, count: int, salt: int = 1) -> list[int]:
    """Immutable pages 0 .. count - 1 of a text, idle."""
    made = [NO_ROW]
    for index in range(count):
        page = take_page(world, 0)
        publish_page(world, page, np.uint64(1000 * salt + index), made[-1], np.uint64(salt))
        made.append(page)
    for page in reversed(made[1:]):
        dereference_page(world, page)
    return made[1:]


def add_snapshot(world: np.ndarray, page: int, endpoint: int) -> int:
    row = take_snapshot(world, 0, CAUSE_PAGE)
    publish_snapshot(world, row, page, endpoint, 0)
    return row


def test_pages_and_snapshots_are_evicted_in_one_order_of_use():
    """The oldest of both goes first; a snapshot keeps the pages of its text, and they follow it."""
    world = table(pages=6)
    w = world[0]
    order = []
    for tick, salt in enumerate((1, 2, 3), 1):
        w["clock"]["tick"] = tick
        order.append(publish_text(world, 2, salt))
    w["clock"]["tick"] = 2
    row = add_snapshot(world, order[0][1], 32)  # of the oldest text, used as late as the second
    w["slots"]["live_count"], w["slots"]["state"][0] = 1, 3  # SLOT_DECODE
    w["slots"]["scheduled"][0] = 15

    def need(count: int) -> list[int]:
        """Evicts until `count` pages are free; which are."""
        w["slots"]["scheduled"][0] = count * 16 - 1
        evict.run(world)
        return sorted(w["pages"]["free"][: int(w["pages"]["free_count"])].tolist())

    assert need(1) == [order[0][1]]  # the snapshot, as old as the second text, went just before
    assert w["snapshots"]["state"][row] == FREE and w["counters"]["snapshots_evicted"] == 1
    assert need(2) == sorted(order[0])
    late = add_snapshot(world, order[1][1], 32)
    w["snapshots"]["age"][late] = 9
    assert need(4) == sorted(order[0] + order[2])  # younger pages go before a younger snapshot
    assert need(6) == sorted(page for text in order for page in text)
    assert w["snapshots"]["state"][late] == FREE


def test_a_snapshot_that_is_read_keeps_its_pages():
    world = table(pages=3)
    w = world[0]
    pages = publish_text(world, 3)
    row = add_snapshot(world, pages[2], 48)
    hold_snapshot(world, row)
    w["slots"]["live_count"], w["slots"]["state"][0], w["slots"]["scheduled"][0] = 1, 3, 31
    evict.run(world)
    assert w["pages"]["free_count"] == 0
    release_snapshot(world, row)
    evict.run(world)
    assert w["pages"]["free_count"] == 2


def test_what_snapshots_of_a_cause_have_saved_decides():
    """Every kind is tried, a kind that saves less time than it takes is refused and tried again now
    and then, and in a full table a better kind takes the place of a worse one."""
    world = table()
    s, tiers = world[0]["snapshots"], world[0]["tiers"]
    assert wanted(world, CAUSE_TURN)
    s["taken"][CAUSE_TURN], s["saved"][CAUSE_TURN] = TRIAL, TRIAL - 1
    assert not wanted(world, CAUSE_TURN)
    s["saved"][CAUSE_TURN] = TRIAL
    assert wanted(world, CAUSE_TURN)  # what taking one costs is not known
    observe_copying(world, 2000, 4)
    tiers["prefill_ns"], tiers["prefill_tokens"] = 10_000, 100  # a snapshot costs five tokens
    s["refused"][CAUSE_TURN] = 0
    s["saved"][CAUSE_TURN] = TRIAL * 5
    assert wanted(world, CAUSE_TURN)
    s["saved"][CAUSE_TURN] = TRIAL * 5 - 1
    assert [bool(wanted(world, CAUSE_TURN)) for _ in range(RETRY + 2)] == (
        [False] * RETRY + [True] * 2)
    row = choose_snapshot(world, 0, CAUSE_TURN, 5)
    assert s["state"][row] == SNAPSHOT_WRITING and s["refused"][CAUSE_TURN] == 0
    publish_snapshot(world, row, NO_ROW, 5, 0)
    for _ in range(TEST_MIN.snapshots_max - 1):
        add_snapshot(world, NO_ROW, 7)
    s["taken"][:], s["saved"][:] = 100, (2000, 900, 1000, 0, 0)
    assert s["free_count"] == 0 and s["oldest"] == row
    assert wanted(world, CAUSE_PROMPT) and not wanted(world, CAUSE_PAGE)
    assert choose_snapshot(world, 0, CAUSE_PROMPT, 9) == row
    hold = [r for r in range(TEST_MIN.snapshots_max) if s["state"][r] == SNAPSHOT_READY]
    for other in hold:
        hold_snapshot(world, other)
    assert not wanted(world, CAUSE_PROMPT) and choose_snapshot(world, 0, CAUSE_PROMPT, 9) == NO_ROW


def test_a_hit_saves_what_a_shorter_snapshot_would_not():
    """The value of a snapshot is what would be computed without it: not what a shorter one of the
    same text would have restored, behind the same page or before it; one of another is none."""
    world = table()
    w = world[0]
    pages = publish_text(world, 6)
    s, requests = w["snapshots"], w["requests"]

    def saved(snapshot, page, count):
        requests["match_snapshot"][0] = snapshot
        requests["match_page"][0], requests["match_count"][0] = page, count
        before = int(s["saved"][CAUSE_PAGE])
        note_saved(world, 0)
        return int(s["saved"][CAUSE_PAGE]) - before

    long = add_snapshot(world, pages[5], 100)
    assert saved(long, pages[5], 6) == 100
    other = add_snapshot(world, pages[3], 70)
    s["ids"][other, 0] += 1
    assert saved(long, pages[5], 6) == 100
    short = add_snapshot(world, pages[1], 32)
    assert saved(long, pages[5], 6) == 68 and saved(short, pages[1], 2) == 32
    add_snapshot(world, pages[5], 97)
    assert saved(long, pages[5], 6) == 3
    add_snapshot(world, NO_ROW, 10)
    assert saved(short, pages[1], 2) == 22
    assert w["counters"]["snapshot_hits"] == 6


def test_a_window_comes_back_only_where_that_is_cheaper():
    """Of two snapshots the one is taken that a request goes on from in the least time: the shorter
    one on the device, where the longer one's window is slower than computing what is between; none
    where both are; the longer one while a cost is unknown, and now and then to measure again."""
    world = table()
    w = world[0]
    pages = publish_text(world, 6)
    short, long = add_snapshot(world, pages[1], 32), add_snapshot(world, pages[5], 96)
    s, tiers, requests = w["snapshots"], w["tiers"], w["requests"]

    def matched():
        requests["match_page"][0], requests["match_count"][0] = pages[5], 6
        match_snapshot(world, 0)
        return tuple(int(requests[name][0]) for name in (
            "match_snapshot", "match_page", "match_count"))

    shorter, longer, none = (short, pages[1], 2), (long, pages[5], 6), (NO_ROW, NO_ROW, 0)
    assert matched() == longer
    s["window_away"][long] = 2
    tiers["prefill_ns"], tiers["prefill_tokens"] = 10_000, 100  # 100 ns a token
    assert matched() == longer
    tiers["window_restored_ns"][0], tiers["window_restored_count"][0] = 3199 * 4, 4
    assert matched() == longer  # two pages, 64 tokens
    tiers["window_restored_ns"][0] = 3201 * 4
    assert matched() == shorter and w["counters"]["window_restores_refused"] == 1
    s["window_stored"][long] = 1  # on disk, of which nothing is known
    assert matched() == longer
    tiers["window_restored_ns"][1], tiers["window_restored_count"][1] = 3300, 1
    assert matched() == shorter
    s["window_away"][short] = 1
    assert matched() == longer  # 6,501 ns; 3,201 and 64 tokens; or 96 tokens
    tiers["window_restored_ns"][1] = 6500
    assert matched() == none  # 9,701 ns; 3,201 and 64 tokens; or 96 tokens
    tiers["window_restored_ns"][0] = 3100 * 4
    assert matched() == shorter  # 9,600 ns; 3,100 and 64 tokens; or 96 tokens
    tiers["refused_count"][1] = PROBES - 1
    assert matched() == longer
    beside = add_snapshot(world, pages[4], 90)
    s["window_away"][beside] = 1
    near = add_snapshot(world, pages[4], 85)  # behind the same page, and all on the device
    assert matched() == (near, pages[4], 5)


def test_a_text_has_no_second_snapshot_of_an_endpoint():
    """What is kept already is used again, and no other goes for it."""
    world = table()
    w = world[0]
    page = publish_text(world, 1)[0]
    known = add_snapshot(world, page, 20)
    for _ in range(TEST_MIN.snapshots_max - 1):
        add_snapshot(world, NO_ROW, 7)
    w["slots"]["published_count"][0], w["slots"]["published_page"][0] = 1, page
    assert w["snapshots"]["free_count"] == 0 and w["snapshots"]["oldest"] == known
    assert choose_snapshot(world, 0, CAUSE_PROMPT, 20) == NO_ROW
    assert w["counters"]["snapshots_evicted"] == 0 and w["snapshots"]["newest"] == known
    assert choose_snapshot(world, 0, CAUSE_PROMPT, 21) not in (known, NO_ROW)
    assert w["counters"]["snapshots_evicted"] == 1


@pytest.mark.parametrize(("taken", "refused"), [(TRIAL - 1, 0), (TRIAL, RETRY)])
def test_one_of_answers_side_by_side_pauses_to_try(taken, refused):
    world = table()
    w = world[0]
    w["settings"]["snapshot_closing"] = 1
    w["slots"]["scheduled"][:] = ANSWER_PAGES * 16
    s = w["snapshots"]
    s["taken"][CAUSE_ANSWER], s["refused"][CAUSE_ANSWER] = taken, refused
    slots = range(len(w["slots"]["scheduled"]))
    assert len(slots) > 1 and [bool(pauses(world, slot)) for slot in slots].count(True) == 1
    assert s["taken"][CAUSE_ANSWER] == taken + 1


def test_salt_and_tokens_confirm_a_hit():
    world = table()
    w = world[0]
    add_snapshot(world, NO_ROW, 9)
    row = add_snapshot(world, NO_ROW, 12)
    assert find_snapshot(world, NO_ROW, 0, 0, 511) == row
    assert find_snapshot(world, NO_ROW, 0, 0, 11) != row
    w["tokens"]["ids"][w["requests"]["blocks"][0, 0], 11] += 1
    assert find_snapshot(world, NO_ROW, 0, 0, 511) not in (row, NO_ROW)
    w["requests"]["salt"][0] = 3
    assert find_snapshot(world, NO_ROW, 0, 0, 511) == NO_ROW


class Twin:
    """The table as a dict: row -> what it is."""

    def __init__(self) -> None:
        self.rows: dict[int, list] = {}  # state, readers, endpoint
        self.order: list[int] = []  # READY without readers, oldest first

    def ready(self, readers: bool) -> list[int]:
        return [row for row, (state, count, _) in self.rows.items()
                if state == SNAPSHOT_READY and bool(count) == readers]


@pytest.mark.parametrize("seed", range(4))
def test_table_against_a_naive_twin(seed):
    """Random takes, publications, drops, readers and evictions."""
    rng, world, twin = random.Random(seed), table(), Twin()
    page = publish_text(world, 1)[0]
    for _ in range(300):
        world[0]["clock"]["tick"] += 1
        writing = [r for r, (state, _, _) in twin.rows.items() if state == SNAPSHOT_WRITING]
        idle, read = twin.ready(False), twin.ready(True)
        action = rng.choice(("take", "publish", "drop", "hold", "release", "evict"))
        if action == "take" and len(twin.rows) < TEST_MIN.snapshots_max:
            twin.rows[int(take_snapshot(world, 2, CAUSE_PAGE))] = [SNAPSHOT_WRITING, 0, 0]
        elif action == "publish" and writing:
            row, endpoint = rng.choice(writing), rng.randint(17, 31)
            publish_snapshot(world, row, page, endpoint, 0)
            twin.rows[row] = [SNAPSHOT_READY, 0, endpoint]
            twin.order.append(row)
        elif action == "drop" and writing:
            row = rng.choice(writing)
            drop_snapshot(world, row)
            del twin.rows[row]
        elif action == "hold" and idle + read:
            row = rng.choice(idle + read)
            hold_snapshot(world, row)
            twin.rows[row][1] += 1
            twin.order = [r for r in twin.order if r != row]
        elif action == "release" and read:
            row = rng.choice(read)
            release_snapshot(world, row)
            twin.rows[row][1] -= 1
            twin.order += [] if twin.rows[row][1] else [row]
        elif action == "evict" and idle:
            row = rng.choice(idle)
            evict_snapshot(world, row)
            twin.order.remove(row)
            del twin.rows[row]
        compare(world, twin, page)


def compare(world: np.ndarray, twin: Twin, page: int) -> None:
    """The table equals its twin."""
    s = world[0]["snapshots"]
    listed, row = [], int(s["oldest"])
    while row != NO_ROW:
        listed.append(row)
        row = int(s["newer"][row])
    assert listed == twin.order
    assert {r: int(s["state"][r]) for r in np.nonzero(s["state"])[0]} == {
        r: state for r, (state, _, _) in twin.rows.items()}
    ends = [e for state, _, e in twin.rows.values() if state == SNAPSHOT_READY]
    found = find_snapshot(world, page, 16, 0, 31)
    assert (found == NO_ROW) == (not ends)
    assert not ends or s["endpoint"][found] == max(ends)
    assert world[0]["pages"]["children"][page] == len(ends)


def test_checks_of_the_table_can_fail():
    world = table()
    row = add_snapshot(world, NO_ROW, 9)
    check_snapshots(world[0], 24)
    world[0]["snapshots"]["oldest"] = NO_ROW
    with pytest.raises(Violation, match="eviction list"):
        check_snapshots(world[0], 24)
    world[0]["snapshots"]["oldest"] = row
    world[0]["snapshots"]["buckets"][:] = NO_ROW
    with pytest.raises(Violation, match="buckets"):
        check_snapshots(world[0], 24)


def test_a_core_that_cannot_restore_is_refused():
    manifest, serving = simulated_core(kinds=HYBRID)
    contract = decode(serving, manifest)
    rows = range(len(contract.programs))
    require_served(contract, rows, "simulated")
    kept = [i for i in rows if contract.programs[i].name != "restore"]
    with pytest.raises(ContractError, match=r"contract\.snapshots.*RESTORE"):
        require_served(contract, kept, "simulated")


def test_canary_shifted_view():
    """A device whose shifted view names pages that are one off answers wrong tokens."""
    simulator = Simulator(10, walked=False, kinds=Kinds(shift=1), workload=TURNS)
    restore, table = simulator.executor.histories.restore, simulator.executor.histories.pages[4]

    def misplaced(*arguments):
        restore(*arguments)
        table[:, :-1] = table[:, 1:].copy()

    simulator.executor.histories.restore = misplaced
    broken(simulator)


def test_canary_skipped_page_copy():
    """A device that does not copy the pages that a shifted view still needs is noticed."""
    simulator = Simulator(11, walked=False, kinds=Kinds(shift=1), workload=TURNS)
    copies = simulator.executor.at[:, SOURCE_PAGE_COPY_COUNT]
    copies[:] = -1
    broken(simulator)


def test_canary_window_cut_too_early(monkeypatch):
    """A scheduler that frees pages which the window still sees is noticed, by the check and by the
    tokens."""
    kinds = Kinds(window=30, continuation=True, snapshots=8)
    simulator = Simulator(12, walked=True, kinds=kinds, workload=TURNS)
    for _ in range(60):
        simulator.tick()
    slots = simulator.world[0]["slots"]
    held = [slot for slot in slots["live"][: int(slots["live_count"])]
            if slots["window_end"][slot] > slots["window_first"][slot] + 1]
    while not held:
        simulator.tick()
        held = [slot for slot in slots["live"][: int(slots["live_count"])]
                if slots["window_end"][slot] > slots["window_first"][slot] + 1]
    simulator.world[0]["settings"]["window_tokens"] = 1
    with pytest.raises(Violation):
        for _ in range(400):
            simulator.tick()


def test_windowed_pages_are_freed_behind_the_window():
    """A long answer holds no more than its window and what is in flight."""
    kinds = Kinds(window=30, continuation=True, snapshots=1)
    load = Workload(arrival=0.3, output_max=120, prompt_max=60, cancel=0.0, deadline=0.0, stops=0.0,
                    ignore_eos=1.0, oversize=0.0, grammar=0.0)
    simulator = Simulator(13, walked=False, kinds=kinds, workload=load)
    slots, longest, held = simulator.world[0]["slots"], 0, 0
    for _ in range(1500):
        simulator.tick()
        for slot in slots["live"][: int(slots["live_count"])]:
            longest = max(longest, int(slots["consumed"][slot]) // 16)
            held = max(held, int(slots["window_end"][slot] - slots["window_first"][slot]))
    assert longest >= 8 and held <= 2 + 3
    simulator.run(0)
    assert int(simulator.world[0]["windows"]["free_count"]) >= (
        int(simulator.world[0]["windows"]["page_count"]) - 2)


def test_shifted_views_need_copies_and_room():
    manifest, serving = simulated_core(kinds=Kinds(shift=1))
    contract = decode(serving, manifest)
    rows = range(len(contract.programs))
    require_served(contract, rows, "simulated")
    with pytest.raises(ContractError, match=r"cache\.tables.*PAGE_COPIES"):
        require_served(contract, [i for i in rows if contract.programs[i].name != "restore"],
                       "simulated")
    serving.model.cache.tables[1].page_offset = -1
    with pytest.raises(ContractError, match=r"tables\[1\]\.page_offset"):
        require_served(decode(serving, manifest), rows, "simulated")
    manifest, serving = simulated_core(kinds=Kinds(recurrent=True, shift=1, snapshots=4))
    regions = serving.model.cache.regions
    del regions[[region.kind for region in regions].index(CONTINUATION)]
    contract = decode(serving, manifest)
    with pytest.raises(ContractError, match=r"cache\.regions.*CONTINUATION"):
        require_served(contract, range(len(contract.programs)), "simulated")


def test_places_of_snapshots_are_chosen_with_the_cache():
    """Preparation's, or as many beside the pages as it had, within the memory of both."""
    manifest, serving = simulated_core(
        lanes=4, context=4096, kinds=Kinds(recurrent=True, snapshots=6))
    contract = decode(serving, manifest)
    contract = replace(contract, cache=replace(contract.cache, snapshot_row_bytes=512))
    each = snapshot_bytes(contract, contract.programs)
    assert (each, contract.pages) == (512, 64)

    def chosen(**options):
        return choose(contract, 128, lambda geometry: 1, Options(**options)).geometry

    roomy = chosen(cache_bytes=1 << 30)
    assert roomy.snapshots == min(SMALL.snapshots_max, 6 * 4 * 4096 // 16 // 64)
    unit = 64 * 128 + 6 * each  # what preparation counted with
    scarce = chosen(cache_bytes=3 * unit)
    assert scarce.snapshots == 18 and scarce.pages == 3 * 64
    assert scarce.snapshot_rows == 18 * scarce.state_rows_per_request
    assert chosen(cache_bytes=unit, context_tokens=64).snapshots == 6  # with 16 pages in all
    assert chosen(cache_bytes=unit // 2).snapshots == 3
    asked = chosen(cache_bytes=3 * unit, snapshots=2)
    assert (asked.snapshots, asked.pages) == (2, (3 * unit - 2 * each) // 128)
    with pytest.raises(SelectionError, match="snapshots: 1025 asked, 1 to 1024 possible"):
        chosen(cache_bytes=1 << 30, snapshots=1025)
    with pytest.raises(SelectionError, match="but one page takes 128 bytes beside 1024 "):
        chosen(cache_bytes=2 * each, snapshots=2)


def test_a_core_without_snapshots_has_no_places_for_them():
    manifest, serving = simulated_core()
    with pytest.raises(SelectionError, match="snapshots: 3 asked, but the core was prepared"):
        choose(decode(serving, manifest), 128, lambda geometry: 1, Options(snapshots=3))


def test_windowed_histories_take_their_memory_first():
    manifest, serving = simulated_core(kinds=Kinds(window=30, snapshots=8))
    contract = decode(serving, manifest)

    def chosen(cache_bytes):
        return choose(contract, 128, lambda geometry: 1,
                      Options(size="TEST_MIN", cache_bytes=cache_bytes)).geometry

    windowed = chosen(1 << 20).windowed_pages
    assert windowed == 3 * (2 + 3) + 2 + 3 * 2
    assert chosen(windowed * 128 + 5 * 128).pages == 5
    with pytest.raises(SelectionError, match="windowed histories and snapshots: choose smaller"):
        chosen((windowed - 8) * 128)

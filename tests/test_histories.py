"""All kinds of history in the simulator: rounds of several tokens, tiers, preemption, the cache and
frames in flight change nothing that a request is answered; committed state is exact."""

from dataclasses import replace

import numpy as np
import pytest

from helios_dod.executors.simulated import CopyCost
from helios_dod.limits import NO_ROW
from helios_dod.simulation.invariants import Violation, require
from helios_dod.simulation.kinds import Kinds
from helios_dod.simulation.simulator import Drafting, Live, Simulator, Workload
from helios_dod.terms import (
    OP_SPECULATIVE,
    PAGE_IMMUTABLE,
    PAGE_LEAVING,
    PAGE_OFFLOADED,
    SLOT_DECODE,
    SNAPSHOT_READY,
    SOURCE_STATE_ROW,
)

PLAIN = Kinds()
HYBRID = Kinds(recurrent=True, continuation=True, snapshots=8)
WINDOWED = Kinds(window=30, snapshots=8)  # nothing is kept of a page that is not complete
EVERYTHING = Kinds(recurrent=True, latent=4, window=24, shift=2, state_rows=2, snapshots=8)
KINDS = [
    pytest.param(PLAIN, id="paged"),
    pytest.param(HYBRID, id="recurrent and continuation"),
    pytest.param(Kinds(recurrent=True, snapshots=8, state_rows=3), id="recurrent, whole pages"),
    pytest.param(Kinds(latent=8, snapshots=8), id="latent"),
    pytest.param(WINDOWED, id="window, whole pages"),
    pytest.param(Kinds(window=5, continuation=True, snapshots=8), id="small window"),
    pytest.param(Kinds(shift=1), id="shifted view"),
    pytest.param(EVERYTHING, id="all kinds"),
]
STATEFUL = [param for param in KINDS if param.values[0].stateful]
# Every request is answered whole, so that two runs can be compared.
WHOLE = Workload(
    arrival=0.3, cancel=0.0, deadline=0.0, stops=0.0, ignore_eos=0.5, shared=1.0, turns=0.9,
    scored=0.1, grammar=0.0, salted=0.0, oversize=0.0, drain=1.0, prompt_max=40, output_max=40,
    priority_max=0)
ROUNDS = Drafting(width=4, accept=70, cursor_lag=1, history=True, refuse=0.05)
TIERS = {"memory_pages": 5, "disk_pages": 8, "copy_ns": 20}


class Asked(Simulator):
    """Sends given requests, one a tick while there is room, and keeps what they are answered."""

    def __init__(self, made, **fields):
        super().__init__(1, **fields)
        self.planned, self.answers = list(made), {}

    def send(self, arrivals):
        if self.planned and self.edge.submit(self.planned[0]):
            submission = self.planned.pop(0)
            self.live[submission.tag] = Live(submission, [])

    def judge(self, live, reason, *rest):
        super().judge(live, reason, *rest)
        self.answers[live.submission.tag] = (reason, tuple(live.tokens), tuple(live.scores))


def planned(seed, kinds, count):
    """Requests of a seed, drawn by running it once: prompts go on behind earlier answers."""
    first = Simulator(seed, walked=False, kinds=kinds, workload=WHOLE)
    made, draw = [], first.request

    def note():
        made.append(draw())
        return made[-1]

    first.request = note
    while len(made) < count:
        first.tick()
    return [replace(request, tag=tag) for tag, request in enumerate(made, 1)]


def answers(made, tiers=None, **fields):
    """What a simulator answers to requests; the simulator."""
    simulator = Asked(made, walked=False, workload=replace(WHOLE, **(tiers or {})), contents=True,
                      **fields)
    while simulator.planned or simulator.live:
        simulator.tick()
        require(int(simulator.world[0]["clock"]["tick"]) < 30_000, "requests never end")
    simulator.run(0)
    return simulator.answers, simulator


def count(simulator, name):
    return int(simulator.world[0]["counters"][name])


@pytest.mark.parametrize("kinds", KINDS)
def test_equal(kinds):
    """Cached = cold, preempted = not, offloaded = resident, two frames = one, width W = width 1."""
    made = planned(7, kinds, 40)
    reference, cold = answers(made, kinds=replace(kinds, snapshots=0), frames=1, pages=60)
    assert len(reference) == 40 and count(cold, "preempted") == 0
    ways = {
        "cached": {"pages": 60, "frames": 1}, "two frames": {"pages": 60},
        "preempted": {"pages": 10}, "offloaded": {"pages": 13, "tiers": TIERS},
        "rounds": {"pages": 24, "drafting": ROUNDS},
        "rounds offloaded": {"pages": 13, "tiers": TIERS, "drafting": ROUNDS}}
    found = {}
    for name, fields in ways.items():
        found[name], simulator = answers(made, kinds=kinds, **fields)
        assert found[name] == reference, name
        ways[name] = simulator
    for name in ("cached", "offloaded", "rounds"):
        assert count(ways[name], "prompt_tokens_cached") > 0
        assert not kinds.stateful or count(ways[name], "snapshot_hits") > 0, name
    assert count(ways["preempted"], "preempted") > 0
    for name in ("rounds", "rounds offloaded"):
        assert count(ways[name], "rounds_speculative") > 0
        assert not kinds.stateful or count(ways[name], "state_rollbacks") > 0
    for name in ("offloaded", "rounds offloaded"):
        assert count(ways[name], "pages_offloaded") > 0


@pytest.mark.parametrize("kinds", KINDS)
def test_rounds_and_tiers_walked_equal_fused(kinds):
    """Invariants and write-sets hold after every system; the fused tick leaves the same bytes."""
    load = replace(WHOLE, cancel=0.02, stops=0.1, grammar=0.1, drain=0.7, arrival=0.5, **TIERS)
    made = {"kinds": kinds, "workload": load, "drafting": ROUNDS, "pages": 14}
    walked = Simulator(3, walked=True, **made)
    fused = Simulator(3, walked=False, **made)
    assert walked.run(120) == fused.run(120)
    assert count(walked, "rounds_speculative") > 0 and count(walked, "pages_offloaded") > 0


@pytest.mark.parametrize("kinds", STATEFUL)
def test_snapshots_whose_pages_are_away_are_hit(kinds):
    """Pages that belong to a snapshot leave and come back; it stays, and its text goes on from it.
    Copies fail and are late, requests are cancelled."""
    totals = dict.fromkeys(
        ("snapshot_hits_away", "pages_restored_memory", "pages_dropped_memory", "copies_failed",
         "snapshots_evicted"), 0)
    for seed in range(40, 46):
        load = replace(
            WHOLE, arrival=0.1, cancel=(0.0, 0.1)[seed % 2], copy_failure=(0.0, 0.1)[seed % 2],
            copy_late=0.1, memory_pages=(4, 12, 16)[seed % 3], disk_pages=(0, 6)[seed % 2],
            copy_ns=20)
        simulator = Simulator(seed, walked=False, kinds=kinds, workload=load, pages=14,
                              contents=True, drafting=(Drafting(), ROUNDS)[seed // 2 % 2])
        simulator.run(900)
        for name in totals:
            totals[name] += count(simulator, name)
    assert all(totals.values()), totals


NARROW = [Kinds(window=30, snapshots=8, spare=1),
          Kinds(window=30, continuation=True, snapshots=8, spare=2)]


def narrow(seed, kinds, **fields):
    """A simulator whose windowed pages hold few snapshots beside what slots have."""
    load = replace(WHOLE, arrival=0.2, turns=0.5, copy_ns=20, copy_late=0.1,
                   **{"memory_pages": (12, 8)[seed % 2], **fields})
    return Simulator(seed, walked=seed == 6, kinds=kinds, workload=load, pages=24,
                     lanes=1 + seed % 2, drafting=(Drafting(), ROUNDS)[seed // 2 % 2],
                     contents=True)


@pytest.mark.parametrize("kinds", NARROW, ids=["whole pages", "continuation"])
def test_snapshots_whose_windows_are_away_are_hit(kinds):
    """Windows of snapshots leave and come back: every answer is the oracle's, wherever its window
    was. Copies fail and are late, requests are cancelled."""
    totals = dict.fromkeys(("window_pages_offloaded", "window_pages_restored", "copies_failed",
                            "snapshot_hits_away", "snapshots_evicted"), 0)
    for seed in range(1, 7):
        simulator = narrow(seed, kinds, cancel=(0.0, 0.1)[seed % 2],
                           copy_failure=(0.0, 0.1)[seed % 2])
        simulator.run(150 if simulator.walked else 400)
        for name in totals:
            totals[name] += count(simulator, name)
    assert all(totals.values()), totals


def test_a_window_that_was_away_equals_resident():
    """The same requests with windows on the device and away are answered alike."""
    made = planned(7, WINDOWED, 40)
    resident, one = answers(made, kinds=WINDOWED, pages=60)
    away, other = answers(made, kinds=NARROW[0], pages=24, lanes=1,
                          tiers={"memory_pages": 12, "copy_ns": 20})
    assert away == resident
    assert count(one, "window_pages_offloaded") == 0 < count(other, "window_pages_restored")


DEEP = {"memory_pages": 2, "disk_pages": 12}  # windows of most snapshots lie on disk


@pytest.mark.parametrize("kinds", NARROW, ids=["whole pages", "continuation"])
def test_snapshots_whose_windows_are_on_disk_are_hit(kinds):
    """Windows sink from a small memory to disk and come back from there; copies fail and are late,
    requests are cancelled, snapshots go while their windows are on their way."""
    totals = dict.fromkeys(("window_pages_offloaded", "window_pages_stored", "window_pages_fetched",
                            "copies_failed", "snapshot_hits_away", "snapshots_evicted"), 0)
    for seed in range(1, 9):
        simulator = narrow(seed, kinds, cancel=(0.0, 0.1)[seed % 2],
                           copy_failure=(0.0, 0.1)[seed % 2], **DEEP)
        simulator.run(150 if simulator.walked else 600)
        for name in totals:
            totals[name] += count(simulator, name)
    assert all(totals.values()), totals


def test_a_window_that_was_on_disk_equals_resident():
    """The same requests with windows on the device and on disk are answered alike."""
    made = planned(7, WINDOWED, 40)
    resident, one = answers(made, kinds=WINDOWED, pages=60)
    away, other = answers(made, kinds=NARROW[0], pages=24, lanes=1, tiers={"copy_ns": 20, **DEEP})
    assert away == resident
    assert count(one, "window_pages_stored") == 0 < count(other, "window_pages_fetched")


def test_slow_windows_are_computed_again():
    """Where copies are slower than computing, snapshots are left for shorter ones or none, and
    every answer is the oracle's."""
    refused = 0
    for seed in range(20, 32):
        simulator = narrow(seed, NARROW[0], memory_pages=12)
        simulator.executor.copy_cost = CopyCost(30_000, 30_000)
        simulator.run(400)
        refused += count(simulator, "window_restores_refused")
    assert refused > 0


def test_canary_leaked_place_of_a_window():
    """A place on disk that a window's return does not give back is missed."""
    for seed in (2, 4, 6, 8):
        simulator = narrow(seed, NARROW[0], **DEEP)
        simulator.walked = True
        windows = simulator.world[0]["windows"]
        while windows["stored_free_count"] == windows["stored_count"]:
            simulator.tick()
        windows["stored_free_count"] -= 1
        with pytest.raises(Violation, match="places of windows"):
            simulator.run(20)


@pytest.mark.parametrize(("ends", "deep"), [
    (("windowed", "windows"), False), (("windows", "windowed"), False),
    (("windows", "stored"), True), (("stored", "windowed"), True)],
    ids=["offload", "restore", "sink", "fetch"])
def test_canary_skipped_copy_of_a_window(ends, deep):
    """One copy of a windowed page that is reported as done and was not."""
    for seed in (8, 10, 12, 14, 16, 18):
        simulator = narrow(seed, NARROW[0], **(DEEP if deep else {}))
        executor = simulator.executor
        moved, skipped = executor._move, []

        def move(source, target, moved=moved, skipped=skipped, executor=executor):
            planes = {"windowed": executor.histories.windowed, "windows": executor.windows,
                      "stored": executor.stored}
            if not skipped and all(given[0] is planes[end] for given, end in
                                   zip((source, target), ends, strict=True)):
                skipped.append(target)
            else:
                moved(source, target)

        executor._move = move
        try:
            simulator.run(400)
        except Violation as violation:
            assert skipped and "of its window" in str(violation)
            return
    raise AssertionError("no seed tells")


def test_pages_behind_a_shifted_view_come_back():
    """What a shifted view needs is copied from pages of the text: they come back for it, too."""
    totals = dict.fromkeys(("pages_restored_memory", "pages_restored_disk", "preempted"), 0)
    for seed in range(50, 58):
        load = replace(WHOLE, copy_failure=(0.0, 0.1)[seed % 2], copy_late=0.1, copy_ns=20,
                       cancel=(0.0, 0.1)[seed % 2], memory_pages=(4, 12)[seed % 2], disk_pages=8)
        simulator = Simulator(seed, walked=seed % 4 == 0, kinds=Kinds(shift=1 + seed % 2),
                              workload=load, pages=13, contents=True)
        simulator.run(150 if simulator.walked else 600)
        for name in totals:
            totals[name] += count(simulator, name)
    assert all(totals.values()), totals


def test_a_snapshot_goes_with_the_page_that_is_dropped():
    """Behind one page of memory: what is dropped takes its snapshots with it, and nothing of them
    is found again."""
    load = replace(WHOLE, memory_pages=1, copy_ns=20)
    simulator = Simulator(47, walked=True, kinds=HYBRID, workload=load, pages=11)
    simulator.run(400)
    assert count(simulator, "snapshots_evicted") > 0 and count(simulator, "pages_evicted") > 0


def test_rounds_that_jump_over_page_boundaries_leave_no_inexact_state():
    """Without storage for parts of pages only rounds that end on a boundary leave a snapshot."""
    simulator = Simulator(5, walked=False, kinds=WINDOWED, workload=WHOLE, contents=True,
                          drafting=replace(ROUNDS, accept=95, refuse=0.0))
    simulator.run(3000)
    assert count(simulator, "drafts_accepted") > 200
    assert int(simulator.world[0]["snapshots"]["taken"].sum()) > 20


def broken(simulator, ticks=4000):
    """A run that must be noticed by an answer."""
    with pytest.raises(Violation, match=r"got|not a prefix|shown of"):
        simulator.run(ticks)


def rounds(kinds, seed, accept=60, **load):
    return Simulator(seed, walked=False, kinds=kinds, workload=replace(WHOLE, **load),
                     drafting=replace(ROUNDS, accept=accept), pages=14)


@pytest.mark.parametrize("kinds", [HYBRID, Kinds(latent=8, snapshots=8)], ids=["rows", "latent"])
def test_canary_state_of_what_was_offered(kinds):
    """Some commits of the state behind all that was offered, instead of what was accepted."""
    simulator = rounds(kinds, 61)
    histories, done = simulator.executor.histories, simulator.world[0]["completions"]
    commit, wrong = histories.commit, []

    def committing(world, frame, at):
        kept = done["emitted"].copy()
        refused = (kept[frame] > 0) & (kept[frame] <= done["offered"][frame])
        live = int(world[0]["frames"]["lane_count"][frame])
        if len(wrong) < 5 and refused[:live].any():
            wrong.append(frame)
            done["emitted"][frame] = np.where(refused, done["offered"][frame] + 1, kept[frame])
        commit(world, frame, at)
        done["emitted"][:] = kept

    histories.commit = committing
    broken(simulator)
    assert wrong


def test_canary_commit_of_a_refused_cohort():
    """A device that commits state although a rank rejected the cohort."""
    simulator = rounds(HYBRID, 62)
    histories, done = simulator.executor.histories, simulator.world[0]["completions"]
    commit = histories.commit

    def committing(world, frame, at):
        kept = done["emitted"].copy()
        if not done["agreement"][frame]:
            done["emitted"][frame] = 1
        commit(world, frame, at)
        done["emitted"][:] = kept

    histories.commit = committing
    broken(simulator)


def test_canary_state_rows_of_another_slot():
    """A round that is given the state rows of another slot."""
    simulator = rounds(HYBRID, 63)
    run = simulator.executor._run_round

    def misled(frame, program):
        words = simulator.world[0]["staging"]["words"][frame]
        at = int(simulator.executor.at[program][SOURCE_STATE_ROW])
        count = int(simulator.world[0]["frames"]["lane_count"][frame])
        if count > 1:
            words[at:at + 2] = words[at:at + 2][::-1].copy()
        run(frame, program)

    simulator.executor._run_round = misled
    broken(simulator)


@pytest.mark.parametrize("plane", ["latent", "links"])
def test_canary_plane_left_behind_by_a_copy(plane):
    """A copy between tiers that forgets one plane of the page."""
    simulator = rounds(EVERYTHING, 64, **TIERS)
    histories = simulator.executor.histories
    store, tokens = histories.store_page, simulator.executor.page_tokens

    def forgetting(cache, place, words):
        if np.ndim(words):
            words = words.copy()
            words[slice(tokens, 2 * tokens) if plane == "latent" else slice(-2, -1)] = 7
        store(cache, place, words)

    histories.store_page = forgetting
    broken(simulator)


def test_canary_snapshot_that_outlives_its_page():
    """A snapshot that is still behind a page which was dropped is noticed at the next check."""
    simulator = Simulator(65, walked=True, kinds=HYBRID, workload=replace(WHOLE, **TIERS), pages=14)
    s = simulator.world[0]["snapshots"]
    while not ((s["state"] == SNAPSHOT_READY) & (s["page"] != NO_ROW)).any():
        simulator.tick()
    row = int(np.nonzero((s["state"] == SNAPSHOT_READY) & (s["page"] != NO_ROW))[0][0])
    simulator.world[0]["pages"]["behind"][s["page"][row]] -= 1
    with pytest.raises((Violation, AssertionError)):
        simulator.tick()


def test_rounds_are_given_rows_of_their_own():
    """Speculative programs need more state rows than others; all requests and snapshots have as
    many as the most of them, and what is loaded decides."""
    simulator = rounds(EVERYTHING, 1)
    programs = simulator.executor.contract.programs
    most = max(p.state_rows_per_request for p in programs)
    assert most == 2 * (1 + 4)
    assert {p.state_rows_per_request for p in programs if p.operation != OP_SPECULATIVE} == {2}
    assert int(simulator.world[0]["settings"]["state_rows"]) == most
    assert int(simulator.world[0]["pages"]["state"].max()) <= PAGE_LEAVING


def with_contents(kinds, seed):
    """A simulator whose device's contents are judged."""
    return Simulator(seed, walked=False, kinds=kinds, workload=replace(WHOLE, **TIERS),
                     drafting=ROUNDS, contents=True, pages=14)


@pytest.mark.parametrize("what, message", [
    ("record", "records of other tokens"), ("latent", "latent records"),
    ("shifted", "of the shifted view"), ("links", "the page before it"),
    ("state", "state row"), ("window", "of its window"), ("endpoint", r"snapshots\[")])
def test_canary_contents(what, message):
    """Each thing that the oracle of contents looks at, changed by one bit."""
    simulator = with_contents(EVERYTHING, 70)
    w, executor = simulator.world[0], simulator.executor
    histories, pages, s = executor.histories, w["pages"], w["snapshots"]
    deep, rows = [], np.zeros(0)
    while not (deep and rows.size):
        simulator.tick()
        deep = [int(p) for p in np.nonzero(pages["state"] == PAGE_IMMUTABLE)[0]
                if len(simulator.contents.tokens_up_to(int(p))) > EVERYTHING.shift]
        rows = np.nonzero((s["state"] == SNAPSHOT_READY) & (s["window_end"] > s["window_first"]))[0]
    place, row = int(pages["place"][deep[0]]), int(rows[0])
    ring = s["window_pages"].shape[1]
    windowed = int(s["window_pages"][row, s["window_first"][row] % ring])
    changed = {
        "record": (executor.cache, (place, 3)), "latent": (histories.pages[1], (place, 0)),
        "shifted": (histories.pages[2], (place, 5)), "links": (histories.pages[0], (place,)),
        "state": (histories.saved_rows[0], (row * int(w["settings"]["state_rows"]) + 1,)),
        "window": (histories.pages[5], (windowed, 2)),
        "endpoint": (s["endpoint"], (row,))}
    simulator.contents.check()
    array, at = changed[what]
    array[at] ^= 1
    with pytest.raises(Violation, match=message):
        simulator.contents.check()
    array[at] ^= 1
    simulator.contents.check()


def test_canary_contents_of_a_slot_and_of_a_tier():
    """State rows of a request that nothing is in flight of, and a page in host memory."""
    simulator = with_contents(HYBRID, 71)
    w, executor = simulator.world[0], simulator.executor
    found = set()
    for _ in range(600):
        simulator.tick()
        idle = [s for s in w["slots"]["live"][: int(w["slots"]["live_count"])]
                if w["slots"]["in_flight"][s] == 0 and w["slots"]["state"][s] == SLOT_DECODE]
        away = np.nonzero(w["pages"]["state"] == PAGE_OFFLOADED)[0]
        stride = int(w["settings"]["state_rows"])
        for name, array, rows in (
                ("slot", executor.histories.rows[0], [s * stride for s in idle[:1]]),
                ("tier", executor.memory, w["pages"]["place"][away[:1]])):
            for row in rows:
                before = array[row].copy()
                array[row] ^= np.uint64(1)
                with pytest.raises(Violation):
                    simulator.contents.check()
                array[row] = before
                found.add(name)
    assert found == {"slot", "tier"}

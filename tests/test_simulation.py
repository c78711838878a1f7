"""The shipped tick in the simulator: invariants, write-sets, oracle, liveness, canaries."""

from dataclasses import replace

import numpy as np
import pytest

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.edges import Submission
from helios_dod.executors.simulated import expected_tokens
from helios_dod.limits import NO_ROW
from helios_dod.simulation.invariants import Violation
from helios_dod.simulation.simulator import Live, Simulator, Workload
from helios_dod.tables.prefixes import find_page
from helios_dod.terms import (
    FINISH_LIMIT,
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    PAGE_IMMUTABLE,
    RUNNING,
    WAITING,
)

BUSY = Workload(arrival=1.0, cancel=0.05, deadline=0.1, stops=0.2, oversize=0.1, drain=0.5,
                prompt_max=60)


@pytest.mark.parametrize("seed", range(1, 9))
def test_seed_walked_equals_fused(seed):
    """Invariants and write-sets hold after every system; the fused tick leaves the same bytes."""
    shape = {"frames": 1 + seed % 2, "host_pending": seed % 4 == 0}
    walked = Simulator(seed, walked=True, **shape)
    fused = Simulator(seed, walked=False, **shape)
    assert walked.run(120) == fused.run(120)
    assert walked.finished > 0


@pytest.mark.parametrize("seed", range(100, 130))
def test_fused_seeds(seed):
    """Longer runs of the fused form against the oracle, ending with everything free."""
    simulator = Simulator(seed, walked=False, frames=1 + seed % 2)
    simulator.run(1500)
    assert simulator.finished > 0


def test_duplicate_texts_keep_their_original():
    """Two slots publish one text; the original stays while the duplicate's text goes on (a seed
    that once evicted it)."""
    Simulator(1037, walked=False, pages=16).run(1000)


def test_same_seed_same_digest():
    assert Simulator(7, walked=False).run(400) == Simulator(7, walked=False).run(400)


def test_capacity_is_reached():
    """The busy workload fills slots and pages, rejects, cancels and times out."""
    lazy = replace(BUSY, drain=0.08)
    simulator = Simulator(3, walked=True, workload=lazy, pages=10)
    simulator.run(800)
    counters = simulator.world[0]["counters"]
    for name in ("slots_full", "pages_full", "cancelled", "failed", "egress_full", "finished",
                 "rejected"):
        assert counters[name] > 0, name


def test_canary_skipped_page_update():
    """A device that loses one page-table entry answers wrong tokens, and the oracle sees it."""
    simulator = Simulator(5, walked=False, workload=BUSY, pages=12)
    submit = simulator.executor._run

    def lossy(frame, program):
        words = simulator.world[0]["staging"]["words"][frame]
        at = int(simulator.executor.at[program][30])
        if at >= 0 and words[at] > 0:
            words[at] -= 1
        submit(frame, program)

    simulator.executor._run = lossy
    with pytest.raises((Violation, IndexError)):
        simulator.run(400)


def test_only_newly_assigned_entries_are_uploaded():
    """A hundred frames upload seven entries: those of the seven pages of a text, once; and again
    for the next request of the same slot, whose generation is another."""
    simulator = Simulator(5, walked=False, workload=Workload(arrival=0.0, cancel=0.0))
    run, uploaded, frames = simulator.executor._run, [0, 0], 0

    def counted(frame, program):
        nonlocal frames
        at = int(simulator.executor.at[program][contract.PAGE_UPDATE_COUNT])
        if at >= 0:
            uploaded[tag - 1] += int(simulator.world[0]["staging"]["words"][frame][at])
        frames += 1
        run(frame, program)

    simulator.executor._run = counted
    for tag in (1, 2):
        prompt = np.arange(tag, 40 + tag, dtype=np.int32)
        simulator.live[tag] = Live(Submission(tag, prompt, 60, seed=tag), [])
        assert simulator.edge.submit(simulator.live[tag].submission)
        simulator.run(0)
    assert frames > 100 and uploaded == [7, 7]


def test_pages_are_reused_and_requests_preempted():
    """The corpus reaches every rare branch of the cache: hits, eviction, preemption."""
    load = replace(BUSY, shared=1.0, prompt_max=40, output_max=80, cancel=0.0, stops=0.0,
                   deadline=0.0, ignore_eos=1.0, drain=1.0)
    simulator = Simulator(25, walked=True, workload=load, pages=12)
    simulator.run(400)
    counters = simulator.world[0]["counters"]
    for name in ("prompt_tokens_cached", "pages_published", "pages_evicted", "preempted"):
        assert counters[name] > 0, name


def test_cancels_pass_a_submission_that_waits():
    """With every request row taken, a cancel behind a waiting submission still acts, also on it."""
    load = Workload(arrival=0.0, cancel=0.0)
    simulator = Simulator(24, walked=True, workload=load)
    prompt = np.arange(20, dtype=np.int32) % 50
    for tag in range(1, 7):
        simulator.live[tag] = Live(Submission(tag, prompt, 300, seed=tag), [])
        assert simulator.edge.submit(simulator.live[tag].submission)
        simulator.tick()
    simulator.live[7] = Live(Submission(7, prompt, 300), [], cancelled=True)
    assert simulator.edge.submit(simulator.live[7].submission)
    simulator.tick()
    received = int(simulator.world[0]["counters"]["received"])
    assert received < 7
    for tag in (7, 1):
        simulator.live[tag].cancelled = True
        assert simulator.edge.cancel(tag)
    for _ in range(20):
        simulator.tick()
        simulator.read()
    assert 7 not in simulator.live and 1 not in simulator.live
    assert int(simulator.world[0]["counters"]["cancelled"]) == 2
    simulator.run(0)


def test_canary_leaked_reference():
    """A reference that nothing holds is noticed at the next check."""
    simulator = Simulator(22, walked=True, workload=BUSY)
    for _ in range(60):
        simulator.tick()
    pages = simulator.world[0]["pages"]
    pages["references"][int(np.nonzero(pages["state"] == PAGE_IMMUTABLE)[0][0])] += 1
    with pytest.raises((Violation, AssertionError)):
        simulator.tick()


def test_canary_hash_without_comparison():
    """Were equal hashes enough, texts that collide would share pages; the comparison refuses."""
    simulator = Simulator(23, walked=True, workload=BUSY)
    for _ in range(60):
        simulator.tick()
    w = simulator.world[0]
    page = int(np.nonzero(w["pages"]["state"] == PAGE_IMMUTABLE)[0][0])
    ids = w["pages"]["ids"][page:page + 1].copy()
    found = find_page(simulator.world, w["pages"]["hash"][page], int(w["pages"]["parent"][page]),
                      w["pages"]["salt"][page], ids, 0, 0, 16)
    assert found == page
    ids[0, 7] += 1
    assert find_page(simulator.world, w["pages"]["hash"][page], int(w["pages"]["parent"][page]),
                     w["pages"]["salt"][page], ids, 0, 0, 16) == NO_ROW
    assert find_page(simulator.world, w["pages"]["hash"][page], int(w["pages"]["parent"][page]),
                     w["pages"]["salt"][page] + np.uint64(1),
                     w["pages"]["ids"][page:page + 1].copy(), 0, 0, 16) == NO_ROW


def test_canary_leaked_page():
    """One page taken off the free stack is noticed at the next check."""
    simulator = Simulator(6, walked=True, workload=BUSY)
    for _ in range(20):
        simulator.tick()
    simulator.world[0]["pages"]["free_count"] -= 1
    with pytest.raises(Violation, match="places of the device"):
        simulator.tick()


def test_canary_stale_generation():
    """A completion for an older owner of a slot is a broken invariant, not a token."""
    simulator = Simulator(8, walked=False, workload=BUSY)
    run = simulator.executor._run

    def stale(frame, program):
        run(frame, program)
        simulator.world[0]["completions"]["generation"][frame, 0] -= 1

    simulator.executor._run = stale
    with pytest.raises(AssertionError, match="completions"):
        simulator.run(50)


def test_non_finite_row_is_contained():
    """A poisoned slot fails its own request with an error; every other answer is the oracle's."""
    from helios_dod.terms import FINISH_NON_FINITE, SLOT_DECODE

    simulator = Simulator(9, walked=True, workload=BUSY)
    reasons = []
    judge = simulator.judge

    def note(live, reason, *rest):
        reasons.append(reason)
        if reason != FINISH_NON_FINITE:
            judge(live, reason, *rest)

    simulator.judge = note
    poisoned = 0
    for _ in range(150):
        simulator.tick()
        slots = simulator.world[0]["slots"]
        if poisoned < 3 and slots["state"][1] == SLOT_DECODE:
            simulator.executor.poison(1)
            poisoned += 1
    simulator.run(50)
    assert reasons.count(FINISH_NON_FINITE) >= 1
    assert len(reasons) > 3 * reasons.count(FINISH_NON_FINITE)


def test_device_error_fails_live_requests_with_everything_freed():
    """After a device error requests end with that reason and nothing stays held."""
    from helios_dod.executors.base import DeviceError
    from helios_dod.terms import FINISH_DEVICE_ERROR

    load = Workload(arrival=1.0, cancel=0.0, deadline=0.0)
    simulator = Simulator(10, walked=False, workload=load)
    reasons = []
    simulator.judge = lambda live, reason, *rest: reasons.append(reason)
    for _ in range(30):
        simulator.tick()

    def broken():
        raise DeviceError("launch(frame=0): injected")

    simulator.executor.poll = broken
    simulator.executor.next_end = lambda: None
    simulator.run(10)
    assert FINISH_DEVICE_ERROR in reasons
    assert "injected" in str(simulator.engine.failure)


def test_prompt_scores_and_times_survive_a_lazy_reader_and_preemption():
    """Every request is timed and scored; the ring is often full and requests are sent back."""
    load = replace(BUSY, shared=1.0, prompt_max=40, output_max=80, cancel=0.0, stops=0.0,
                   deadline=0.0, ignore_eos=1.0, drain=0.3, timed=1.0, scored=1.0)
    simulator = Simulator(31, walked=True, workload=load, pages=12)
    simulator.run(500)
    counters = simulator.world[0]["counters"]
    for name in ("preempted", "egress_full", "finished", "pages_published"):
        assert counters[name] > 0, name


@pytest.mark.parametrize("timed", [False, True])
def test_the_clock_is_read_again_only_for_timed_tokens(timed):
    """Once a tick, and once more in a tick that accepted a timed token."""
    load = Workload(arrival=0.0, cancel=0.0, drain=1.0)
    simulator = Simulator(32, walked=False, workload=load)
    reads = 0

    def clock():
        nonlocal reads
        reads += 1
        return simulator.clock.now_ns

    simulator.engine.clock = clock
    submission = Submission(1, np.arange(9, dtype=np.int32), 20, timed=timed)
    simulator.live[1] = Live(submission, [])
    assert simulator.edge.submit(submission)
    ticks = stamped = 0
    while simulator.live:
        before = reads
        simulator.tick()
        stamped += reads - before - 1
        ticks += 1
    assert stamped == (20 if timed else 0) and reads == ticks + stamped


def test_queue_capacity_bounds_the_ring_and_the_waiting_list():
    simulator = Simulator(33, walked=True, workload=Workload(arrival=0.0, cancel=0.0))
    settings, requests = simulator.world[0]["settings"], simulator.world[0]["requests"]
    settings["queue_capacity"] = 1
    prompt = np.arange(20, dtype=np.int32) % 50
    held = 0
    for tag in range(1, 7):
        submission = Submission(tag, prompt, 200, seed=tag)
        if simulator.edge.submit(submission):
            simulator.live[tag] = Live(submission, [])
            assert not simulator.edge.submit(replace(submission, tag=99))  # one row of four
        else:
            held += 1
        simulator.tick()
        assert requests["waiting_count"] <= 1
    assert held > 0 and simulator.edge.cancel(1)  # a cancel finds room
    simulator.live[1].cancelled = True
    simulator.run(10)


def with_stops(simulator, odd, even):
    """Gives every request the fields `odd` or `even`, by its tag."""
    drawn = simulator.request

    def request():
        return replace(drawn(), **(odd if simulator.next_tag % 2 else even))

    simulator.request = request


def test_stops_of_every_kind_end_answers():
    load = replace(BUSY, stops=0.9, output_max=60, ignore_eos=0.7)
    simulator = Simulator(33, walked=False, workload=load)
    simulator.run(2000)
    for reason in (FINISH_STOP_STRING, FINISH_STOP_SEQUENCE, FINISH_STOP_TOKEN, FINISH_LIMIT):
        assert simulator.reasons[reason] > 0, reason


def test_a_part_of_a_stop_survives_preemption():
    """Requests are sent back, resumed and cancelled while what they end with may become a stop."""
    load = Workload(arrival=1.0, cancel=0.05, deadline=0.0, stops=0.0, shared=0.0, output_max=80,
                    prompt_max=20, ignore_eos=1.0, drain=0.3, oversize=0.0)
    sequences = tuple((a, b, a, b) for a in range(0, 50, 7) for b in (1, 2))
    held = {"waiting": 0, "cancelled": 0}
    for seed in range(30, 36):
        simulator = Simulator(seed, walked=False, workload=load, pages=9)
        with_stops(simulator,
                   {"stop_strings": (b"aaaaaaab", b"bbbbbbbb", b"abbaabba", b"\n\n\n a")},
                   {"stop_sequences": sequences})
        count_parts(simulator, held)
    assert held["waiting"] > 0 and held["cancelled"] > 0, held


def count_parts(simulator, held):
    """Runs, and counts requests that wait or are cancelled with a part of a stop at their end."""
    w, cancel = simulator.world[0], simulator.edge.cancel
    requests, stops = w["requests"], w["stops"]

    def parts(state):
        return (requests["state"] == state) & (
            requests["token_count"] > requests["prompt_count"]) & (
            (stops["longest"] > 0) | (requests["withheld"] > 0))

    def note(tag):
        held["cancelled"] += int((parts(RUNNING) & (requests["tag"] == tag)).sum())
        return cancel(tag)

    simulator.edge.cancel = note
    for _ in range(1200):
        simulator.tick()
        held["waiting"] += int(parts(WAITING).sum())
    simulator.run(0)
    assert sum(simulator.reasons.values()) > 10


@pytest.mark.parametrize("column", ["depths", "text_count", "failures"])
def test_canary_broken_automaton(column):
    """An automaton that forgets, miscounts or links wrongly is seen by the naive scan."""
    load = Workload(arrival=1.0, stops=0.0, cancel=0.0, deadline=0.0, ignore_eos=1.0,
                    output_max=60, drain=1.0)
    simulator = Simulator(34, walked=False, workload=load)
    with_stops(simulator, {"stop_strings": (b"aab", b"babb")}, {"stop_strings": (b"aab",)})
    with pytest.raises(Violation):
        for _ in range(3000):
            simulator.tick()
            values = simulator.world[0]["stops"][column]
            values[...] = values + 1 if column == "text_count" else 0


def test_a_matched_stop_publishes_nothing_more():
    """The page that the stop's token completes stays private; the page before it is published."""
    prompt = np.arange(10, dtype=np.int32)
    found = 0
    for seed in range(20):
        drawn = expected_tokens(prompt.tolist(), seed, 50, 23, 0, ())
        # When output token 22 is drawn, 32 tokens are consumed: the second page is complete.
        sequence = (drawn[21], drawn[22])
        if any(tuple(drawn[i:i + 2]) == sequence for i in range(21)):
            continue
        for stops, reason, pages in (((), FINISH_LIMIT, 2),
                                     ((sequence,), FINISH_STOP_SEQUENCE, 1)):
            simulator = Simulator(1, walked=False, workload=Workload(arrival=0.0, cancel=0.0))
            request = Submission(1, prompt, 23, seed=seed, stop_sequences=stops)
            simulator.live[1] = Live(request, [])
            assert simulator.edge.submit(request)
            simulator.run(60)
            assert simulator.reasons == {reason: 1}
            assert simulator.world[0]["counters"]["pages_published"] == pages
        found += 1
    assert found > 10


def test_a_cached_prompt_is_scored_where_only_one_copy_fits():
    """Scores need the prompt computed again: then the cached pages of its text give way."""
    quiet = Workload(arrival=0.0, cancel=0.0, deadline=0.0, drain=1.0)
    simulator = Simulator(1, walked=True, workload=quiet, pages=12)
    prompt = np.arange(146, dtype=np.int32) % 50
    for tag, scored in ((1, False), (2, True)):
        submission = Submission(tag, prompt, 1, seed=tag, scored=scored)
        simulator.live[tag] = Live(submission, [])
        assert simulator.edge.submit(submission)
        simulator.run(0)
    assert simulator.finished == 2

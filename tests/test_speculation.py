"""Speculative rounds on the simulated device: what they emit, reserve, wait for and cost."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from helios_dod.edges import Submission
from helios_dod.executors.costs import FixedCost
from helios_dod.executors.simulated_rounds import allocate_prefixes
from helios_dod.simulation.programs import Round
from helios_dod.simulation.simulator import Drafting, Live, Simulator, Workload
from helios_dod.terms import OP_SPECULATIVE

QUIET = Workload(arrival=0.0, cancel=0.0, deadline=0.0, drain=1.0)
BUSY = Workload(arrival=0.4, cancel=0.02, deadline=0.05, stops=0.3, shared=0.7, drain=0.8,
                prompt_max=40, output_max=60)
OWN = Round(3, 4, 12)  # endpoints are the device's own
STAGED = Round(3, 4, 12, staged=True)


def drafting(seed):
    pick = random.Random(seed).choice
    return Drafting(width=pick((2, 4)), accept=pick((0, 50, 90, 100)), history=seed % 3 == 0,
                    cursor_lag=pick((None, 0, 1, 5)), refuse=pick((0.0, 0.1)))


@pytest.mark.parametrize("seed", range(1, 7))
def test_walked_rounds_equal_fused(seed):
    """Invariants and write-sets hold after every system; the fused tick leaves the same bytes."""
    shape = {"frames": 1 + seed % 2, "drafting": drafting(seed), "vocabulary": 6 + 44 * (seed % 2),
             "workload": BUSY}
    walked = Simulator(seed, walked=True, **shape)
    fused = Simulator(seed, walked=False, **shape)
    assert walked.run(100) == fused.run(100)
    assert walked.world[0]["counters"]["rounds_speculative"] > 0


@pytest.mark.parametrize("seed", range(200, 230))
def test_fused_rounds(seed):
    """Whatever is drafted, copied, refused or cut, answers are the oracle's: those of width one."""
    simulator = Simulator(seed, walked=False, frames=1 + seed % 2, drafting=drafting(seed),
                          vocabulary=6 if seed % 3 == 0 else 50, pages=(12, 16, 24)[seed % 3])
    simulator.run(1500)


def test_the_corpus_reaches_every_branch():
    """Rounds, copies, refusals, preemption in a round, and waits of every cause that can arise."""
    totals = {}
    for seed in range(12):
        simulator = Simulator(seed, walked=False, drafting=replace(drafting(seed), refuse=0.05),
                              vocabulary=6, pages=14, workload=BUSY)
        simulator.run(800)
        counters = simulator.world[0]["counters"]
        for name in counters.dtype.names:
            totals[name] = totals.get(name, 0) + int(counters[name])
    for name in ("rounds_speculative", "drafts_accepted", "drafts_copied_offered",
                 "drafts_copied_accepted", "cohorts_refused", "preempted", "cancelled",
                 "barrier_stops", "barrier_history", "barrier_cost", "barrier_endpoint"):
        assert totals[name] > 0, name
    assert totals["drafts_accepted"] < totals["drafts_offered"]


def drive(simulator, submissions):
    """Runs submissions to their ends, time passing from fence to fence; virtual nanoseconds."""
    for submission in submissions:
        simulator.live[submission.tag] = Live(submission, [])
        while not simulator.edge.submit(submission):
            step(simulator)
    began = simulator.clock.now_ns
    while simulator.live:
        step(simulator)
    assert simulator.rejected == 0
    return simulator.clock.now_ns - began


def step(simulator):
    launched = simulator.engine.step()
    end = simulator.executor.next_end()
    if end is not None and not launched:
        simulator.clock.now_ns = max(simulator.clock.now_ns, end)
    simulator.read()


def requests(count, output=100, first=1, **fields):
    return [Submission(tag, np.arange(tag, tag + 20, dtype=np.int32) % 50, output, seed=tag,
                       **fields) for tag in range(first, first + count)]


def quiet(vocabulary=50, **fields):
    return Simulator(1, walked=False, workload=QUIET, vocabulary=vocabulary,
                     drafting=Drafting(**fields))


@pytest.mark.parametrize("accept", [0, 20, 50, 80, 100])
def test_choice_follows_cost_and_acceptance(accept):
    """Rows cost: wide rounds are taken where drafts are accepted, and where they are not the time
    is that of plain decode, but for 5 %."""
    def run(width):
        simulator = quiet(rounds=() if width == 0 else (
            Round(0, 1, 3), Round(1, 2, 6), Round(3, 4, 12)), accept=accept)
        simulator.executor.cost = FixedCost(1000, 300)
        drive(simulator, requests(3))  # costs become known
        took = sum(drive(simulator, requests(3, first=first)) for first in range(10, 90, 10))
        return took, int(simulator.world[0]["counters"]["rounds_speculative"])

    plain, _ = run(0)
    took, rounds = run(4)
    assert took <= 1.05 * plain
    if accept >= 80:
        assert took < 0.9 * plain and rounds > 50
    if accept <= 20:
        assert rounds < 50


def test_a_change_of_acceptance_is_noticed():
    """Drafts that become right are found by the rounds that are tried now and then."""
    simulator = quiet(rounds=(Round(0, 1, 3), OWN), accept=0)
    simulator.executor.cost = FixedCost(1000, 300)
    for first in range(1, 40, 10):
        drive(simulator, requests(3, first=first))
    before = int(simulator.world[0]["counters"]["rounds_speculative"])
    simulator.executor.accept = 100
    for first in range(100, 190, 10):
        drive(simulator, requests(3, first=first))
    assert int(simulator.world[0]["counters"]["rounds_speculative"]) > before + 50


@pytest.mark.parametrize("program, most", [(OWN, 2), (STAGED, 1)], ids=["own", "staged"])
def test_frames_in_flight_follow_from_the_inputs(program, most):
    """A program that is given endpoints waits for them; one with its own runs behind another."""
    simulator = quiet(rounds=(program,), accept=90)
    simulator.executor.cost = FixedCost(1000, 0)
    seen = 0
    submit = simulator.executor.submit

    def watch(frame, number, sequence):
        nonlocal seen
        submit(frame, number, sequence)
        ahead = [p for _, _, _, p in simulator.executor.in_flight()
                 if simulator.executor.contract.programs[p].operation == OP_SPECULATIVE]
        seen = max(seen, len(ahead))

    simulator.executor.submit = watch
    drive(simulator, requests(2))
    assert seen == most
    assert (int(simulator.world[0]["counters"]["barrier_endpoint"]) > 0) == (most == 1)


def test_an_end_in_the_middle_cuts_the_rest():
    """EOS, limits and stop ids inside a round of accepted drafts end the answer there."""
    accepted = 0
    for fields in ({"eos": (7, 11, 13)}, {"stop_ids": (5, 6)}, {"eos": (9,), "output_minimum": 30}):
        simulator = quiet(rounds=(OWN,), accept=100)
        drive(simulator, requests(3, output=61, **fields))  # `judge` compares with the oracle
        accepted += int(simulator.world[0]["counters"]["drafts_accepted"])
    assert accepted > 20


def test_ceilings_are_reserved_and_never_pass_the_limit():
    """With prefix limits ceilings pass P together, and each lane has pages for all of its own."""
    simulator = quiet(rounds=(Round(3, 4, 6, prefix=True, confidence=True),), accept=70)
    passed = 0
    submit = simulator.executor.submit

    def watch(frame, number, sequence):
        nonlocal passed
        w = simulator.world[0]
        if simulator.executor.contract.programs[number].operation == OP_SPECULATIVE:
            count = int(w["frames"]["lane_count"][frame])
            ceilings = w["lanes"]["ceiling"][frame, :count]
            passed += int(ceilings.sum()) > 6
            for lane in range(count):
                slot = w["lanes"]["slot"][frame, lane]
                end = int(w["lanes"]["consumed"][frame, lane] + ceilings[lane])
                assert w["slots"]["uploaded_count"][slot] * 16 >= end
                row = w["slots"]["request"][slot]
                assert end < w["requests"]["prompt_count"][row] + w["requests"]["output_limit"][row]
        submit(frame, number, sequence)

    simulator.executor.submit = watch
    drive(simulator, requests(3))
    assert passed > 0
    offered = simulator.executor.confidence
    assert ((offered >= 0) & (offered < 1)).all() and offered.any()


@pytest.mark.parametrize("column, change", [
    ("offered", 9), ("accepted", 1), ("emitted", 1), ("endpoint", 1), ("cursor", 3),
    ("reserved", 1), ("generation", 1), ("aggregate", 1), ("agreement", -1), ("tokens", 10_000)])
def test_canary_wrong_completion(column, change):
    """Every column of a speculative completion is checked before anything is committed."""
    simulator = quiet(rounds=(OWN,), accept=90, cursor_lag=1)
    run = simulator.executor._run

    def wrong(frame, number):
        run(frame, number)
        if simulator.executor.contract.programs[number].operation == OP_SPECULATIVE:
            values = simulator.world[0]["completions"][column]
            if values.ndim == 1:
                values[frame] += change
            else:
                values[frame, 0] += change

    simulator.executor._run = wrong
    with pytest.raises(AssertionError):
        drive(simulator, requests(2))


def test_canary_lost_history_of_a_rejected_draft():
    """A device that goes on behind a refused draft answers wrong tokens, and the oracle sees it."""
    simulator = quiet(rounds=(OWN,), accept=50)
    run = simulator.executor._run

    def wrong(frame, number):
        before = simulator.executor.endpoint.copy()
        run(frame, number)
        moved = simulator.executor.endpoint - before
        if simulator.executor.contract.programs[number].operation == OP_SPECULATIVE:
            simulator.executor.endpoint[moved == 2] += 1

    simulator.executor._run = wrong
    with pytest.raises(AssertionError):
        drive(simulator, requests(3))


def test_copies_are_offered_and_accepted():
    """A text of three letters is drafted by its own earlier tokens, a third of which are right; the
    device's own never are."""
    simulator = quiet(rounds=(Round(0, 1, 3), Round(3, 4, 12, history=True, staged=True)),
                      history=True, accept=0, vocabulary=3)
    prompt = np.array([0, 1, 2] * 12, np.int32)
    for seed in range(8):
        drive(simulator, [Submission(seed, prompt, 120, seed=seed)])
    counters = simulator.world[0]["counters"]
    assert counters["drafts_copied_accepted"] > 30
    assert counters["drafts_accepted"] == counters["drafts_copied_accepted"]


def brute_force(confidence, slots, ceilings, packed):
    """All positions behind the pending ones, likeliest first, ties by length, then slot."""
    count, drafts = confidence.shape
    places = []
    for lane in range(count):
        survival = 1.0
        for depth in range(min(int(ceilings[lane]) - 1, drafts)):
            survival *= float(confidence[lane, depth])
            places.append((-survival, depth, int(slots[lane]), lane))
    lengths = [1] * count
    for _, _, _, lane in sorted(places)[: packed - count]:
        lengths[lane] += 1
    return lengths


def test_allocation_is_the_likeliest_set_of_prefixes():
    """Against the sorted list of all positions: survival never grows along a prefix, so its front
    is a set of prefixes."""
    rng = np.random.default_rng(5)
    levels = np.array([0.0, 0.25, 0.5, 0.5, 1.0], np.float32)
    for _ in range(400):
        count, drafts = int(rng.integers(1, rng.choice((6, 40)))), int(rng.integers(1, 5))
        confidence = (rng.choice(levels, (count, drafts)) if rng.random() < 0.5
                      else rng.random((count, drafts), np.float32))
        slots = rng.permutation(48)[:count].astype(np.int32)
        ceilings = rng.integers(1, drafts + 2, count).astype(np.int32)
        packed = int(rng.integers(count, count * (drafts + 1) + 1))
        lengths = np.zeros(count, np.int32)
        survivals, heap = rng.random(count), rng.integers(0, 99, count, np.int32)
        allocate_prefixes(confidence, slots, ceilings, packed, survivals, heap, lengths)
        assert lengths.tolist() == brute_force(confidence, slots, ceilings, packed)


def test_allocation_by_hand():
    """A likely second draft does not admit its unlikely predecessor; ties go to the shorter prefix,
    then to the smaller slot; products are fp64."""
    def allocate(confidence, slots, packed, ceilings=(3, 3)):
        lengths = np.zeros(2, np.int32)
        allocate_prefixes(np.array(confidence, np.float32), np.array(slots, np.int32),
                          np.array(ceilings, np.int32), packed, np.zeros(2),
                          np.zeros(2, np.int32), lengths)
        return lengths.tolist()

    assert allocate([[0.1, 1.0], [0.2, 0.3]], [0, 1], 3) == [1, 2]
    assert allocate([[1.0, 1.0], [1.0, 1.0]], [7, 2], 3) == [1, 2]
    assert allocate([[1.0, 1.0], [1.0, 1.0]], [7, 2], 4) == [2, 2]
    assert allocate([[1.0, 1.0], [1.0, 1.0]], [7, 2], 9, (2, 3)) == [2, 3]
    tiny = np.float32(1e-30)  # squared, it is zero in fp32
    assert allocate([[tiny, tiny], [0.0, 0.0]], [5, 1], 4) == [3, 1]


def test_candidates_are_what_followed_before():
    """The index against a search through the text, over texts that repeat."""
    from helios_dod.limits import TEST_MIN
    from helios_dod.tables.candidates import find_candidates, forget_candidates
    from helios_dod.tables.tokens import take_blocks
    from helios_dod.world import boot

    rng = random.Random(4)
    for alphabet, size in itertools.product((2, 5, 40), (3, 4, 60, 500)):
        world = boot(TEST_MIN)
        w = world[0]
        take_blocks(world, 0, 2)
        w["slots"]["request"][0] = 0
        forget_candidates(world, 0)
        text = [rng.randrange(alphabet) for _ in range(size)]
        for count in range(1, size + 1):
            block = w["requests"]["blocks"][0, (count - 1) // 256]
            w["tokens"]["ids"][block, (count - 1) % 256] = text[count - 1]
            w["requests"]["token_count"][0] = count
            if rng.random() < 0.3:
                continue
            find_candidates(world, 0, 4)
            found = int(w["candidates"]["count"][0])
            ends = [end for end in range(3, count) if text[end - 3:end] == text[count - 3:count]]
            if found:
                assert ends
                following = list(text[:count])
                for i in range(4):
                    following.append(following[ends[-1] + i])
                assert w["candidates"]["tokens"][0].tolist() == following[count:]
            elif ends:  # another n-gram has taken its row
                assert alphabet == 40 or size == 500

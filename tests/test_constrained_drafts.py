"""Constrained requests in speculative rounds: a mask for every position of a copied draft."""

from dataclasses import replace

import numpy as np
import pytest

from helios_dod.edges import Submission
from helios_dod.executors.costs import FixedCost
from helios_dod.simulation.invariants import Violation
from helios_dod.simulation.programs import Round
from helios_dod.simulation.simulator import Drafting, Live, Simulator, Workload
from helios_dod.simulation.stand_in import grammar_text
from helios_dod.tables.grammars import mask_row
from helios_dod.terms import JOB_ADVANCE, OP_DECODE, OP_SPECULATIVE

MASKS = 2  # words of a mask over 50 tokens
BUSY = Workload(arrival=0.4, cancel=0.02, deadline=0.05, grammar=0.7, stops=0.1, drain=0.8,
                prompt_max=40, output_max=80, ignore_eos=0.7)
WIDE = Round(3, 4, 12, history=True, staged=True, masks=MASKS)
ROUNDS = (Round(0, 1, 3), WIDE)
REPEATING = 3  # a seed of a grammar that allows few tokens, again and again the same


def drafting(**fields):
    return Drafting(**{"width": 4, "history": True, **fields})


@pytest.mark.parametrize("seed", (400, 402, 403, 405))
def test_walked_equals_fused(seed):
    """With invariants: every draft that is offered is in the mask before it."""
    shape = {"frames": 1 + seed % 2, "drafting": drafting(refuse=0.05), "workload": BUSY}
    walked = Simulator(seed, walked=True, **shape)
    assert walked.run(400) == Simulator(seed, walked=False, **shape).run(400)
    assert walked.world[0]["counters"]["drafts_constrained_offered"] > 0


@pytest.mark.parametrize("seed", range(410, 422))
def test_answers_are_the_oracle_s(seed):
    """Every token is the one that width one draws under the mask of its place."""
    simulator = Simulator(seed, walked=False, frames=1 + seed % 2, workload=BUSY,
                          drafting=drafting(width=2 + 2 * (seed % 2), refuse=0.02),
                          pages=(12, 16, 24)[seed % 3])
    simulator.run(1500)


def test_the_corpus_reaches_every_branch():
    """Drafts under masks that are accepted, that are not, that a grammar refuses, and that had no
    room; and never a second frame beside a constrained one."""
    totals = {}
    for seed in range(430, 436):
        simulator = Simulator(seed, walked=False, drafting=drafting(), workload=BUSY,
                              vocabulary=6 if seed % 2 else 50, pages=14)
        simulator.run(800)
        counters = simulator.world[0]["counters"]
        assert counters["constrained_in_flight_max"] == 1
        for name in counters.dtype.names:
            totals[name] = totals.get(name, 0) + int(counters[name])
    for name in ("drafts_constrained_accepted", "drafts_grammar_refused", "draft_masks_full",
                 "mixed_grammar_submitted", "barrier_grammar", "preempted"):
        assert totals[name] > 0, name
    assert totals["drafts_constrained_accepted"] < totals["drafts_constrained_offered"]
    assert totals["drafts_constrained_offered"] < totals["drafts_copied_offered"]


def requests(count, output=100, **fields):
    return [Submission(tag, np.arange(tag, tag + 20, dtype=np.int32) % 50, output, seed=tag,
                       grammar=grammar_text(REPEATING + 4 * tag), **fields)
            for tag in range(1, 1 + count)]


def drive(simulator, submissions):
    """Answers, by tag; the oracle judges each."""
    answers = {}
    for submission in submissions:
        live = simulator.live[submission.tag] = Live(submission, [])
        answers[submission.tag] = live.tokens
        while not simulator.edge.submit(submission):
            step(simulator)
    while simulator.live:
        step(simulator)
    return answers


def step(simulator):
    launched = simulator.engine.step()
    for job in simulator.worker.waiting:
        simulator.worker.do(job)
    simulator.worker.waiting.clear()
    end = simulator.executor.next_end()
    if end is not None and not launched:
        simulator.clock.now_ns = max(simulator.clock.now_ns, end)
    simulator.read()


def quiet(rounds, **fields):
    simulator = Simulator(1, walked=False, workload=replace(BUSY, arrival=0.0, drain=1.0),
                          drafting=drafting(rounds=rounds), **fields)
    simulator.executor.cost = FixedCost(1000, 10)
    return simulator


def test_copies_under_masks_are_accepted():
    """More than a token a round where a grammar repeats itself, and the tokens of width one."""
    plain, wide = quiet(()), quiet(ROUNDS)
    expected = drive(plain, requests(2, 200))
    assert drive(wide, requests(2, 200)) == expected
    counters = wide.world[0]["counters"]
    assert counters["drafts_constrained_accepted"] > 50
    programs = wide.world[0]["programs"]
    assert counters["constrained_submitted"] < plain.world[0]["counters"]["constrained_submitted"]
    assert programs["launches"][programs["operation"] == OP_SPECULATIVE].sum() > 50


def test_free_lanes_draw_beside_constrained_ones():
    """In one round a lane without a grammar draws its drafts; the constrained one never does."""
    wide = quiet((Round(0, 1, 3), replace(WIDE, packed=8)))
    wide.executor.accept = 100
    submit, seen = wide.executor.submit, set()

    def watch(frame, program, sequence):
        w = wide.world[0]
        if w["programs"]["width"][program] > 1:
            for lane in range(int(w["frames"]["lane_count"][frame])):
                slot = w["lanes"]["slot"][frame, lane]
                constrained = int(w["slots"]["grammar"][slot]) < len(w["grammars"]["state"])
                drawn = int(w["lanes"]["query_length"][frame, lane]) - 1 - int(
                    w["lanes"]["candidate_count"][frame, lane])
                assert drawn == 0 or not constrained
                seen.add((constrained, drawn > 0))
        submit(frame, program, sequence)

    wide.executor.submit = watch
    free = [Submission(tag, np.arange(20, dtype=np.int32) * tag % 50, 150, seed=tag)
            for tag in (10, 11)]
    drive(wide, [*requests(1, 150), *free])
    assert {(True, False), (False, True)} <= seen


def test_masked_variants_beside_others():
    """Of two programs of a size, that with masks runs only where a lane is constrained."""
    wide = quiet((Round(0, 1, 3), replace(WIDE, masks=0), WIDE))
    drive(wide, requests(1, 150))
    drive(wide, [Submission(9, np.array([0, 1, 2] * 12, np.int32), 150, seed=4)])
    programs = wide.world[0]["programs"]
    launches = {masked: int(programs["launches"][
        (programs["width"] > 1) & (programs["masked"] == masked)].sum()) for masked in (0, 1)}
    assert launches[0] > 0 and launches[1] > 0


@pytest.mark.parametrize("rounds", [(Round(0, 1, 3), replace(WIDE, masks=0)), ROUNDS],
                         ids=["rounds without masks", "without history"])
def test_where_no_round_verifies_copies_under_masks(rounds):
    """One token a step by a masked decode program, beside lanes without a grammar."""
    simulator = Simulator(1, walked=False, workload=replace(BUSY, arrival=0.0, drain=1.0),
                          drafting=drafting(rounds=rounds, history=rounds is not ROUNDS))
    drive(simulator, [*requests(2), Submission(9, np.arange(9, dtype=np.int32), 60, seed=2)])
    w = simulator.world[0]
    assert w["counters"]["drafts_constrained_offered"] == 0
    assert w["counters"]["mixed_grammar_submitted"] > 0
    assert w["programs"]["launches"][w["programs"]["operation"] == OP_DECODE].sum() > 50


def broken(do_wrong):
    """A simulator whose worker does `do_wrong` behind each job about drafts."""
    simulator = quiet(ROUNDS)
    do = simulator.worker.do

    def wrong(job):
        do(job)
        if job.kind == JOB_ADVANCE and job.drafts:
            first = int(mask_row(simulator.world, job.row)) * MASKS
            do_wrong(simulator.world[0]["grammars"]["masks"][first:], job)

    simulator.worker.do = wrong
    with pytest.raises((Violation, AssertionError)):
        drive(simulator, requests(3, 200))


def test_canary_masks_of_the_next_position():
    broken(lambda masks, job: masks.__setitem__(
        slice(0, MASKS * len(job.drafts)), masks[MASKS:MASKS * (len(job.drafts) + 1)].copy()))


def test_canary_masks_of_the_position_before():
    broken(lambda masks, job: masks.__setitem__(
        slice(MASKS, MASKS * (len(job.drafts) + 1)), masks[:MASKS * len(job.drafts)].copy()))


def test_canary_one_mask_for_all_positions():
    """What a program would do that knows one mask a lane."""
    broken(lambda masks, job: masks.__setitem__(
        slice(MASKS, MASKS * (len(job.drafts) + 1)), np.tile(masks[:MASKS], len(job.drafts))))


def test_canary_a_refused_draft_is_offered():
    """Invariants see a draft that is not in the mask before it, whatever comes of it."""
    simulator = Simulator(5, walked=True, workload=replace(BUSY, grammar=1.0), vocabulary=6,
                          drafting=drafting())
    simulator.worker.advance = (lambda advance: lambda job: (
        advance(job)[0], len(job.drafts)))(simulator.worker.advance)
    with pytest.raises(Violation, match="is not in its mask"):
        simulator.run(400)

"""Constrained requests in the simulator: masks by a deterministic worker, judged by the oracle."""

from dataclasses import replace

import numpy as np
import pytest

from helios_dod.edges import Submission
from helios_dod.simulation.invariants import Violation
from helios_dod.simulation.simulator import Live, Simulator, Workload
from helios_dod.simulation.stand_in import grammar_text
from helios_dod.terms import JOB_ADVANCE, JOB_RELEASE

MIXED = Workload(arrival=0.6, cancel=0.02, deadline=0.1, grammar=0.6, drain=1.0, prompt_max=40)


@pytest.mark.parametrize("seed", range(200, 206))
def test_constrained_requests_walked_equals_fused(seed):
    shape = {"frames": 1 + seed % 2, "host_pending": seed % 3 == 0, "workload": MIXED}
    walked = Simulator(seed, walked=True, **shape)
    assert walked.run(100) == Simulator(seed, walked=False, **shape).run(100)
    assert walked.world[0]["counters"]["constrained_submitted"] > 0


def test_a_constrained_token_waits_for_everything_in_flight():
    """Never a second frame beside a constrained one that is submitted; lanes without a grammar go
    along, and the barrier that this takes is counted."""
    simulator = Simulator(31, walked=False, frames=2, workload=replace(MIXED, ignore_eos=1.0))
    simulator.run(1500)
    counters = simulator.world[0]["counters"]
    assert counters["constrained_in_flight_max"] == 1
    for name in ("mixed_grammar_submitted", "barrier_grammar", "failed"):
        assert counters[name] > 0, name


@pytest.mark.parametrize("behind", range(1, 8))
def test_constrained_answers_go_on_together(behind):
    """Two that begin at different times, with masks that come one a tick, share every frame once
    both decode: none of them waits for frames of the other alone."""
    simulator = Simulator(36, walked=False, workload=replace(MIXED, arrival=0.0, cancel=0.0))
    w, lanes = simulator.world[0], []
    submit = simulator.executor.submit

    def watch(frame, program, sequence):
        if all(len(live.tokens) > 2 for live in simulator.live.values()):
            lanes.append(int(w["frames"]["constrained_count"][frame]))
        submit(frame, program, sequence)

    simulator.executor.submit = watch
    for tag in (1, 2):
        submission = Submission(tag, np.arange(9, dtype=np.int32), 40, seed=tag,
                                grammar=grammar_text(2 * tag))
        simulator.live[tag] = Live(submission, [])
        assert simulator.edge.submit(submission)
        for _ in range(behind + 15 if tag == 1 else 400):
            simulator.engine.step()
            simulator.read()
            if simulator.worker.waiting:
                simulator.worker.do(simulator.worker.waiting.pop(0))
            simulator.clock.now_ns = max(simulator.clock.now_ns, simulator.executor.next_end() or 0)
    assert not simulator.live
    together = lanes.count(2)
    assert together > 20 and 1 not in lanes[lanes.index(2):lanes.index(2) + together]


def test_preempted_constrained_requests_resume():
    """Their worker starts over with the tokens so far; the oracle sees the same answer."""
    load = replace(MIXED, shared=1.0, grammar=1.0, output_max=80, cancel=0.0, deadline=0.0,
                   ignore_eos=1.0)
    simulator = Simulator(21, walked=True, workload=load, pages=12)
    resumed = []
    hand = simulator.worker.hand
    simulator.worker.hand = lambda jobs: (
        resumed.extend(job for job in jobs if job.text and job.tokens), hand(jobs))
    simulator.run(500)
    assert simulator.world[0]["counters"]["preempted"] > 0 and resumed


def broken(simulator: Simulator, do) -> None:
    """The simulator with a worker that does jobs in another way."""
    simulator.worker.do = do
    with pytest.raises(Violation):
        simulator.run(600)


def test_canary_stale_mask():
    """A worker that answers without a new mask: the device draws from the old one."""
    simulator = Simulator(32, walked=False, workload=MIXED)
    do = simulator.worker.do

    def stale(job):
        first = job.row * int(simulator.world[0]["grammars"]["mask_words"])
        masks = simulator.world[0]["grammars"]["masks"]
        before = masks[first : first + 2].copy()
        do(job)
        if job.kind == JOB_ADVANCE:
            masks[first : first + 2] = before

    broken(simulator, stale)


def test_canary_mask_of_another_row():
    simulator = Simulator(33, walked=False, workload=replace(MIXED, grammar=1.0))
    do = simulator.worker.do
    broken(simulator, lambda job: do(replace(job, row=(job.row + 1) % 4)))


def test_canary_lost_release():
    """State of a worker that outlives its request is noticed."""
    simulator = Simulator(34, walked=False, workload=MIXED)
    do = simulator.worker.do
    broken(simulator, lambda job: None if job.kind == JOB_RELEASE else do(job))


def test_without_a_worker_grammars_are_rejected():
    simulator = Simulator(35, walked=False, workload=replace(MIXED, oversize=0.0))
    simulator.world[0]["settings"]["masked"] = 0
    simulator.run(300)
    assert simulator.rejected > 0
    assert simulator.world[0]["counters"]["constrained_submitted"] == 0

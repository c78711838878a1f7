"""Speculation in studies: acceptance by place, allocation, ends that are not known before."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from helios_dod import Engine, Submission
from helios_dod.errors import UserError
from helios_dod.executors.acceptance import ONE, Acceptance, fitted, foretell
from helios_dod.executors.costs import FixedCost, read_costs
from helios_dod.executors.simulated import SimulatedExecutor
from helios_dod.perf.__main__ import main
from helios_dod.recording import Recorder
from helios_dod.simulation import machine as machine_module
from helios_dod.simulation import study as study_module
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.observed import observe_file
from helios_dod.simulation.study import Study
from helios_dod.simulation.traces import drawn_trace, make_trace
from helios_dod.terms import EGRESS_TOKEN, FINISH_EOS, FINISH_LIMIT

FLAT = FixedCost(1_000_000, 0)  # rows cost nothing: the widest round wins
STEEP = FixedCost(1_000_000, 300_000)
SHAPES = {"constant": ((0.8,), 3), "falling": ((0.9, 0.6, 0.3), 3), "one": ((0.5,), 1),
          "never": ((0.0,), 3), "always": ((1.0,), 3)}
MODEL = Acceptance.of((0.9, 0.6, 0.3))


def speculating(shares, drafts=3, cost=FLAT, spread=0.0, lanes=4):
    return Machine(lanes=lanes, prefill_tokens=64, vocabulary=997, cost=cost, drafts=drafts,
                   acceptance=Acceptance.of(shares, spread))


def answers(count=4, tokens=3000):
    return make_trace(np.zeros(count), np.full(count, 30), np.full(count, tokens))


def recorded(machine, path):
    """What a flight recording of a study shows."""
    study = Study(machine, answers(tokens=1500))
    study.engine.recorder = Recorder(study.world, "SMALL")
    study.run()
    study.engine.recorder.save(path, "the trace ended")
    return observe_file(path)


@pytest.mark.parametrize("name", SHAPES)
def test_each_place_is_accepted_as_the_model_says(name, tmp_path):
    """What was accepted at each is within five deviations."""
    shares, drafts = SHAPES[name]
    seen = recorded(speculating(shares, drafts), tmp_path / "r.rec")
    offered, accepted = seen.steps.drafts
    for place in range(drafts):
        wanted = shares[min(place, len(shares) - 1)]
        bound = 5 * np.sqrt(max(offered[place] * wanted * (1 - wanted), 0))
        assert abs(accepted[place] - offered[place] * wanted) <= bound
    if name != "never":
        assert offered[0] > 1000


def test_expected_tokens_are_sums_of_products():
    assert MODEL.expected_tokens(0) == 1
    assert MODEL.expected_tokens(3) == pytest.approx(1 + 0.9 + 0.54 + 0.162, abs=1e-3)
    assert MODEL.expected_tokens(4) == pytest.approx(1 + 0.9 + 0.54 + 0.162 + 0.0486, abs=1e-3)


def test_tokens_a_round_are_the_expectation():
    """Emitted tokens of full rounds, over all of them: within five deviations of the mean."""
    study = Study(speculating((0.9, 0.6, 0.3)), answers())
    study.run()
    counters = study.world[0]["counters"]
    rounds = int(counters["drafts_offered"]) / 3
    accepted = int(counters["drafts_accepted"]) / rounds
    assert rounds > 3000
    assert 1 + accepted == pytest.approx(MODEL.expected_tokens(3), abs=5 * 1.5 / np.sqrt(rounds))


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.5])
def test_confidence_is_calibrated(spread):
    """Drafts of a confidence are right as often as it says, whatever the spread."""
    model = Acceptance.of((0.7,), spread).model
    told = [foretell(model, np.uint64(5), position, 0) for position in range(40_000)]
    hits, sure = (np.array(column, float) for column in zip(*told, strict=True))
    assert hits.mean() == pytest.approx(0.7, abs=0.012)
    assert sure.mean() == pytest.approx(0.7, abs=0.005)
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        own = (sure >= low) & (sure < high)
        if own.sum() > 500:
            assert hits[own].mean() == pytest.approx(
                sure[own].mean(), abs=5 * 0.5 / np.sqrt(own.sum()))


def test_allocation_gives_rows_to_the_likeliest(monkeypatch):
    """Of four drafts the two likeliest are given rows: the fourth and third smallest of four even
    draws from 0.2 to 1 have a mean of 0.76, where drafts have one of 0.6."""
    made = speculating((0.6,), drafts=1, spread=0.4)
    plain, *_, allocating = machine_module.rounds_of(made)
    assert allocating.prefix and allocating.packed == 6
    monkeypatch.setattr(machine_module, "rounds_of", lambda machine: (plain, allocating))
    counters = Study(made, answers()).run().counters
    offered = counters["drafts_offered"]
    assert offered > 2000
    assert counters["drafts_accepted"] / offered == pytest.approx(
        0.76, abs=5 * 0.5 / np.sqrt(offered))


@pytest.mark.parametrize("share, pays", [(0.95, True), (0.1, False)])
def test_widths_follow_acceptance_and_cost(share, pays):
    """Rows cost: wide rounds shorten a study where drafts are right, and are left where not."""
    trace = answers(tokens=1000)
    plain = Study(Machine(lanes=4, prefill_tokens=64, vocabulary=997, cost=STEEP), trace).run()
    drafted = Study(speculating((share,), cost=STEEP), trace).run()
    if pays:
        assert drafted.virtual_ns < 0.8 * plain.virtual_ns
    else:
        assert plain.virtual_ns * 0.99 < drafted.virtual_ns < 1.06 * plain.virtual_ns
    assert (drafted.tokens == plain.tokens).all()


def test_the_same_seed_gives_the_same_digest_and_another_other_drafts():
    trace = answers(tokens=400)
    made = speculating((0.7,), spread=0.2)
    first, again = Study(made, trace).run(), Study(made, trace).run()
    other = Study(made, trace, seed=2).run()
    assert first.digest == again.digest and (first.last_ns == again.last_ns).all()
    assert first.counters["drafts_accepted"] != other.counters["drafts_accepted"]


def test_leaps_and_steps_are_the_same_bytes():
    trace = drawn_trace("code", 20, 200.0)
    leapt, stepped = (Study(speculating((0.7,), spread=0.2), trace, output_limit=600)
                      for _ in range(2))
    whole = leapt.run()
    while stepped.ended < len(trace):
        stepped.step()
    assert stepped.outcome(0.0).digest == whole.digest


def test_rounds_on_noise_schedule_as_those_with_contents(monkeypatch):
    """The same model on the shadow device: every time and count is the same."""
    trace = drawn_trace("code", 20, 200.0, shared_tokens=64, groups=2)
    made = speculating((0.8, 0.5), spread=0.3)
    drawn = Study(made, trace).run()
    monkeypatch.setattr(study_module, "NoiseExecutor", SimulatedExecutor)
    kept = Study(made, trace)
    while kept.ended < len(trace):
        kept.step()
    other = kept.outcome(0.0)
    for name in ("first_ns", "last_ns", "tokens", "finish", "gaps", "counters"):
        assert np.array_equal(getattr(drawn, name), getattr(other, name)), name


def test_ends_under_a_limit_are_not_known_before():
    """Answers are as long as the trace's and end by themselves; one that is longer is cut."""
    trace = make_trace([0, 0, 0], [20, 20, 20], [5, 40, 90])
    outcome = Study(speculating((0.8,)), trace, output_limit=60).run()
    assert outcome.tokens.tolist() == [5, 40, 60]
    assert outcome.finish.tolist() == [FINISH_EOS, FINISH_EOS, FINISH_LIMIT]
    known = Study(speculating((0.8,)), trace).run()
    assert known.tokens.tolist() == [5, 40, 90] and set(known.finish) == {FINISH_LIMIT}


def test_a_preempted_answer_ends_at_its_length():
    trace = make_trace(np.zeros(8), np.full(8, 40), np.full(8, 100))
    made = replace(speculating((0.8,)), pages=16, context_tokens=256)
    outcome = Study(made, trace, output_limit=200).run()
    assert outcome.counters["preempted"] > 0
    assert (outcome.tokens == 100).all() and (outcome.finish == FINISH_EOS).all()


def perf(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["perf", *map(str, arguments)])
    return main()


def test_a_fit_gives_back_what_was_simulated(monkeypatch, tmp_path):
    recorded(speculating((0.9, 0.6, 0.3)), tmp_path / "r.rec")
    assert perf(monkeypatch, "fit", tmp_path / "r.rec", "--out", tmp_path / "c.json") == 0
    found = read_costs(tmp_path / "c.json").acceptance
    for chance, wanted in zip(found.chances, (0.9, 0.6, 0.3), strict=True):
        assert chance / ONE == pytest.approx(wanted, abs=0.04)
    assert fitted(np.zeros(4, np.int64), np.zeros(4, np.int64)) is None


def test_the_library_takes_a_model():
    made = speculating((1.0,))
    with Engine.simulated(replace(made, context_tokens=512)) as engine:
        engine.submit(Submission(tag=1, prompt=np.arange(20, dtype=np.int32), output_limit=200))
        tokens = sum(int((events["kind"] == EGRESS_TOKEN).sum()) for events in engine.batches())
        assert tokens == 200
        assert engine.stats()["drafts_accepted"] > 100


def test_commands_simulate_drafts(capsys, monkeypatch):
    assert perf(monkeypatch, "simulate", "--shape", "code", "--requests", 40, "--rate", 50,
                "--lanes", 8, "--drafts", 3, "--accept", "0.9,0.8", "--output-limit", 2000,
                "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["drafts_accepted"] < result["drafts_offered"]


@pytest.mark.parametrize("make, words", [
    (lambda: Acceptance(()), "acceptance.chances"),
    (lambda: Acceptance((1, ONE + 1)), r"acceptance.chances\[1\]: 0 to 65536 possible, got 65537"),
    (lambda: Acceptance.of((0.5, 1.5)), r"acceptance.chances\[1\]"),
    (lambda: Acceptance.of((0.5,), 2), "acceptance.spread"),
    (lambda: Machine(drafts=3), "acceptance: needed for drafts, of which 3"),
    (lambda: Machine(drafts=8, acceptance=MODEL), "drafts: 0 to 7 possible, got 8"),
    (lambda: Machine(acceptance=0.5), "acceptance: expected Acceptance, got 0.5"),
    (lambda: Study(Machine(lanes=2), answers(), output_limit=-1), "output_limit: 0 to"),
])
def test_impossible_models_are_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize("text, words", [
    ("5", "acceptance: expected an object"), ("[]", "acceptance: expected an object"),
    ('{"chances": [0.5]}', r"acceptance.chances\[0\]"),
    ('{"chances": [1], "spread": -1}', "acceptance.spread"),
])
def test_bad_files_of_acceptance_are_named(tmp_path, text, words):
    path = tmp_path / "costs.json"
    path.write_text(f'{{"format": 1, "operations": {{}}, "acceptance": {text}}}')
    with pytest.raises(UserError, match=words) as raised:
        read_costs(path)
    assert "costs.json" in str(raised.value)


def test_drafts_without_acceptance_are_refused(capsys, monkeypatch):
    assert perf(monkeypatch, "simulate", "--lanes", 4, "--drafts", 2) == 1
    assert "--accept is needed" in capsys.readouterr().err

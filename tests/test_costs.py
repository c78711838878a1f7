"""Costs of programs: what they add up to, files of them, and fitting recovers what was true."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from helios_dod.errors import UserError
from helios_dod.executors.costs import (
    FEATURES,
    OPERATIONS,
    SCALED_MAX,
    TABLE_SHAPE,
    Costs,
    FixedCost,
    count_features,
    program_ns,
    read_costs,
    unscaled,
)
from helios_dod.perf.__main__ import main as perf
from helios_dod.perf.fit import fit, least_squares
from helios_dod.perf.validate import compare, figures
from helios_dod.recording import Recorder
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.observed import Steps, observe_file, prefixes
from helios_dod.simulation.study import Study
from helios_dod.simulation.traces import drawn_trace, make_trace
from helios_dod.terms import OP_DECODE, OP_MIXED, OP_PREFILL

SMALL = Machine(lanes=4, prefill_tokens=64, vocabulary=997, context_tokens=512)


def costs_of(host_ns=0, **operations):
    """operation=(program, lanes, packed, sampled, history, pairs), nanoseconds."""
    table = np.zeros(TABLE_SHAPE, np.int64)
    table[1:, 0, 0] = 50_000_000  # of those that are not named
    for name, row in operations.items():
        table[OPERATIONS[name], 0] = np.array(row) * 1000
    return Costs(table, host_ns)


TRUE = costs_of(70_000, initialize=(30_000, 0, 0, 0, 0, 0), decode=(900_000, 50_000, 0, 0, 40, 0),
                mixed=(900_000, 50_000, 4_000, 0, 40, 2), prefill=(900_000, 0, 4_000, 0, 40, 2))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(study, outcome, its recording) with TRUE costs."""
    rng = np.random.default_rng(5)
    count = 60
    trace = make_trace(np.sort(rng.integers(0, 3_000_000_000, count)),
                       rng.integers(40, 300, count), rng.integers(2, 60, count),
                       np.arange(count) % 5, np.full(count, 32))
    study = Study(replace(SMALL, cost=TRUE), trace)
    study.engine.recorder = Recorder(study.world, "SMALL")
    while study.ended < count:
        study.step()
    outcome = study.outcome(0.0)
    path = tmp_path_factory.mktemp("recording") / "file"
    study.engine.recorder.save(path, "done")
    return study, outcome, path


def test_features_are_counted_as_the_frame_says():
    study = Study(replace(SMALL, cost=FixedCost(1, 0)), make_trace([0, 0], [10, 30], [5, 5]))
    seen = set()
    features, world = np.zeros(len(FEATURES), np.int64), study.world[0]
    while study.ended < 2:
        study.step()
        for frame in np.nonzero(world["frames"]["state"])[0]:
            count_features(study.world, frame, features)
            lanes = int(world["frames"]["lane_count"][frame])
            consumed, length = (world["lanes"][name][frame, :lanes].astype(np.int64)
                                for name in ("consumed", "query_length"))
            pairs = sum(int(c) + i for c, q in zip(consumed, length, strict=True)
                        for i in range(1, q + 1))
            assert features.tolist() == [
                1, lanes, int(world["frames"]["packed_count"][frame]),
                int(world["frames"]["sampled_count"][frame]), int((consumed + length).sum()), pairs]
            seen.add(int(world["programs"]["operation"][world["frames"]["program"][frame]]))
    assert {OP_DECODE} < seen and seen & {OP_PREFILL, OP_MIXED}


def test_the_larger_side_counts():
    study = Study(SMALL, make_trace([0], [10], [5]))
    while not study.world[0]["frames"]["packed_count"].any():
        study.step()
    frame = int(np.argmax(study.world[0]["frames"]["packed_count"]))
    table, features = np.zeros(TABLE_SHAPE, np.int64), np.zeros(len(FEATURES), np.int64)
    table[OP_DECODE, 0, 0], table[OP_DECODE, 1, 2] = 5_000_000, 1_000_000
    packed = int(study.world[0]["frames"]["packed_count"][frame])
    scale = unscaled()
    most = max(5000, 1000 * packed)
    assert program_ns(study.world, frame, OP_DECODE, (table, scale), features) == most
    assert packed <= SCALED_MAX
    scale[OP_DECODE, packed] = 1500
    assert program_ns(study.world, frame, OP_DECODE, (table, scale), features) == most * 3 // 2


def test_costs_go_through_files(tmp_path):
    path = tmp_path / "costs"
    scale = unscaled()
    scale[OP_DECODE, 3], scale[OP_MIXED, SCALED_MAX] = 1400, 990
    path.write_text(json.dumps(replace(TRUE, scale=scale).plain()))
    back = read_costs(path)
    assert (back.table == TRUE.table).all() and back.host_ns == TRUE.host_ns
    assert (back.scale == scale).all()


@pytest.mark.parametrize("value,words", [
    ("[]", "format: expected 1"), ("{", "not JSON"), ({"format": 1}, "operations: expected an"),
    ({"format": 1, "operations": {"dance": {}}}, "got dance"),
    ({"format": 1, "operations": {"decode": {"time": {}}}}, "got time"),
    ({"format": 1, "operations": {"decode": {"bytes": {"weather": 1}}}}, "got weather"),
    ({"format": 1, "operations": {"decode": {"bytes": {"lanes": -1}}}}, "decode.bytes.lanes"),
    ({"format": 1, "operations": {"decode": {"thousandths": {"17": 1}}}}, "got 17"),
    ({"format": 1, "operations": {"decode": {"thousandths": {"3": 2_000_000}}}},
     "decode.thousandths.3: expected a whole number from 0 to 1000000"),
    ({"format": 1, "host_ns": 1.5, "operations": {}}, "host_ns"),
])
def test_bad_costs_are_named(tmp_path, value, words):
    path = tmp_path / "costs"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(UserError) as raised:
        read_costs(path)
    assert words in str(raised.value)


def test_least_squares_stay_at_zero_where_less_would_fit():
    rng = np.random.default_rng(1)
    matrix = rng.random((200, 5))
    truth = np.array([3.0, 0.0, 2.0, 0.0, 0.5])
    assert least_squares(matrix, matrix @ truth) == pytest.approx(truth, abs=1e-9)
    found = least_squares(matrix, matrix @ np.array([3.0, -1.0, 2.0, -0.5, 0.5]))
    assert (found >= 0).all() and found[1] == found[3] == 0
    slopes = matrix.T @ (matrix @ np.array([3.0, -1.0, 2.0, -0.5, 0.5]) - matrix @ found)
    assert slopes[found == 0].max() <= 1e-9, "no coefficient that is 0 would help if it were not"
    assert slopes[found > 0] == pytest.approx(0, abs=1e-9)


def test_a_recording_shows_what_the_study_saw(recorded):
    study, outcome, path = recorded
    seen = observe_file(path)
    assert (seen.trace.prompt_tokens == study.trace.prompt_tokens).all()
    assert (seen.trace.output_tokens == study.trace.output_tokens).all()
    assert (seen.outcome.ttft_ns <= outcome.ttft_ns).all(), "an arrival is noticed by a tick"
    assert np.median(outcome.ttft_ns - seen.outcome.ttft_ns) < 2_000_000
    assert seen.outcome.cached_tokens.sum() == outcome.cached_tokens.sum() > 0
    assert (seen.machine.lanes, seen.machine.prefill_tokens) == (4, 64)


def test_fitting_recovers_what_was_true(recorded):
    costs, report = fit(observe_file(recorded[2]).steps)
    assert report["operations"]["decode"]["off_p90"] < 0.001
    assert report["operations"]["mixed"]["off_p90"] < 0.02, "some hide a part of the host's time"
    decode = dict(zip(FEATURES, costs.table[OP_DECODE, 0].tolist(), strict=True))
    assert decode["program"] == pytest.approx(900e6, rel=0.01)
    assert decode["history"] == pytest.approx(40e3, rel=0.02)
    assert costs.host_ns == pytest.approx(70_000, rel=0.2)
    seen = observe_file(recorded[2])
    again = figures(Study(replace(seen.machine, cost=costs), seen.trace).run())
    rows = compare(np.array([figures(seen.outcome)]), np.array([again]))
    assert all(row["within_bar"] for row in rows), rows
    other = figures(Study(replace(seen.machine, cost=FixedCost(3_000_000, 0)), seen.trace).run())
    assert not all(row["within_bar"] for row in compare(
        np.array([figures(seen.outcome)]), np.array([other]))), "other costs are noticed"


def test_fitting_sees_what_few_rows_take():
    """Three lanes take longer than four, as on the host: no sum of features follows that."""
    rng = np.random.default_rng(2)
    lanes = rng.integers(1, 25, 600)
    features = np.stack([np.ones(600, int), lanes, lanes, lanes, 100 * lanes, 100 * lanes], axis=1)
    wanted = (9_000_000 + 2_000_000 * lanes) * np.where(lanes == 3, 1.5, 1.0)
    steps = Steps(np.full(600, OP_DECODE), features, wanted.astype(np.int64), np.zeros(600, bool))
    costs, report = fit(steps)
    assert report["operations"]["decode"]["off_p90"] < 0.01
    ratio = costs.scale[OP_DECODE, 3] / costs.scale[OP_DECODE, 4]
    assert ratio == pytest.approx(1.5, rel=0.01)
    assert (costs.scale[OP_MIXED] == 1000).all()


def test_too_few_programs_are_refused(recorded):
    steps = observe_file(recorded[2]).steps
    few = type(steps)(*(getattr(steps, name)[:3] for name in vars(steps)))
    with pytest.raises(UserError, match="expected at least 6 programs"):
        fit(few)


def test_a_recording_is_drawn(recorded, tmp_path, capsys, monkeypatch):
    page, results = tmp_path / "page.html", tmp_path / "results.json"
    results.write_text(json.dumps({"offered": {"requests_per_s": None}, "runs": [
        {"requests_per_s": rate, "goodput_per_s": rate / 2, "ttft_ms": {"p50": 1, "p99": 2 + rate},
         "between_tokens_ms": {"p50": 1, "p99": 2}} for rate in (1.0, 2.0)]}))
    monkeypatch.setattr(sys, "argv", ["perf", "report", str(recorded[2]), "--results",
                                      str(results), "--out", str(page)])
    assert perf() == 0
    text = page.read_text()
    assert text.count("<svg") == 9 and "http" not in text, "one file"
    results.write_text("{}")
    assert perf() == 1
    assert "expected what `perf serve --json` printed" in capsys.readouterr().err


def test_prefixes_are_found():
    shared, other = np.arange(40), np.arange(100, 140)
    group, count = prefixes([shared, other, np.concatenate([shared[:25], other]), shared[:20]])
    assert group == [0, 1, 0, 0] and count == [40, 40, 25, 20]


def test_a_study_leaps_as_it_steps():
    trace = drawn_trace("code", 25, 300.0, shared_tokens=64, groups=2)
    made = replace(SMALL, context_tokens=0, cost=TRUE)
    for concurrency in (0, 3):
        stepped, leapt = Study(made, trace, concurrency), Study(made, trace, concurrency)
        while stepped.ended < len(trace):
            stepped.step()
        outcomes = stepped.outcome(0.0), leapt.run()
        for name in ("first_ns", "last_ns", "tokens", "finish", "cached_tokens", "gaps",
                     "arrival_ns"):
            assert (getattr(outcomes[0], name) == getattr(outcomes[1], name)).all(), name
        assert outcomes[0].digest == outcomes[1].digest
        assert outcomes[0].steps == outcomes[1].steps

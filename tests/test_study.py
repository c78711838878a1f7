"""Traces through the shipped scheduler in virtual time."""

import json

import numpy as np
import pytest

from helios_dod.errors import UserError
from helios_dod.executors.costs import FixedCost
from helios_dod.executors.simulated import SimulatedExecutor
from helios_dod.executors.simulated_flight import COUNT
from helios_dod.perf.simulate import summary
from helios_dod.simulation import study as study_module
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.study import Study
from helios_dod.simulation.traces import (
    COLUMNS,
    Lengths,
    Trace,
    drawn_trace,
    make_trace,
    read_trace,
    write_trace,
)
from helios_dod.terms import FINISH_LIMIT

STEP_NS = 1_000_000
SMALL = Machine(lanes=4, prefill_tokens=64, vocabulary=997, cost=FixedCost(STEP_NS, 0))


def test_one_request_takes_the_steps_that_it_needs():
    """Initialise, two chunks of prompt (the second draws a token), then a step a token."""
    trace = make_trace([5000], [100], [10])
    outcome = Study(SMALL, trace).run()
    assert outcome.first_ns[0] - 5000 == 3 * STEP_NS
    assert outcome.last_ns[0] - outcome.first_ns[0] == 9 * STEP_NS
    assert outcome.tokens[0] == 10 and outcome.finish[0] == FINISH_LIMIT
    assert outcome.gaps.sum() == 9
    assert outcome.gap_ns(50) == pytest.approx(STEP_NS, rel=0.011)


def test_a_second_frame_is_launched_at_once_as_the_engine_does():
    study = Study(SMALL, make_trace([5000], [100], [10]))
    flying = []
    while study.ended < 1:
        study.step()
        flying.append(int(study.executor.flight[COUNT]))
    assert flying.count(2) > 5, "a generating request has both frames in flight"


def test_an_open_loop_queues_and_a_closed_one_does_not():
    trace = make_trace(np.zeros(40), np.full(40, 30), np.full(40, 20))
    opened, closed = Study(SMALL, trace).run(), Study(SMALL, trace, concurrency=4).run()
    assert np.median(opened.ttft_ns) > 4 * np.median(closed.ttft_ns)
    assert (closed.arrival_ns[4:] > 0).all() and (opened.arrival_ns == 0).all()
    for outcome in (opened, closed):
        assert (outcome.tokens == 20).all() and outcome.counters["admitted"] == 40


def test_shared_prefixes_are_found():
    alone = make_trace(np.arange(8) * 10**9, np.full(8, 200), np.full(8, 4))
    shared = make_trace(np.arange(8) * 10**9, np.full(8, 200), np.full(8, 4), np.zeros(8),
                        np.full(8, 160))
    assert Study(SMALL, alone).run().cached_tokens.sum() == 0
    outcome = Study(SMALL, shared).run()
    assert outcome.cached_tokens.tolist() == [0] + [160] * 7


def test_the_same_trace_and_seed_give_the_same_digest():
    trace = drawn_trace("code", 30, 200.0)
    made = Machine(lanes=4, vocabulary=997, cost=FixedCost(STEP_NS, 0))
    first, again = Study(made, trace).run(), Study(made, trace).run()
    assert first.digest == again.digest and (first.first_ns == again.first_ns).all()
    assert Study(made, trace, seed=2).run().digest != first.digest


def test_a_summary_is_plain_json():
    result = summary(Study(SMALL, make_trace([0, 0], [9, 9], [3, 3])).run())
    assert json.loads(json.dumps(result)) == result
    assert result["rejected"] == 0 and result["ttft_ms"]["p50"] > 0


def test_traces_go_through_files(tmp_path):
    trace = drawn_trace("conversation", 50, 20.0, shared_tokens=64, groups=3)
    write_trace(trace, tmp_path / "t.jsonl")
    back = read_trace(tmp_path / "t.jsonl")
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "prefix", "prefix_tokens"):
        assert (getattr(back, name) == getattr(trace, name)).all()


def test_parquet_files_are_traces_too(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    trace = drawn_trace("code", 40, 5.0, seed=3, shared_tokens=9, groups=3)
    write_trace(trace, tmp_path / "t.parquet")
    back = read_trace(tmp_path / "t.parquet")
    assert all((getattr(back, name) == getattr(trace, name)).all() for name in COLUMNS)
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 nothing")
    arrow.parquet.write_table(arrow.table({"arrival_ns": [1.5]}), tmp_path / "half.parquet")
    for name, words in (("junk", "junk.parquet: "), ("half", "arrival_ns: expected an integer")):
        with pytest.raises(UserError) as raised:
            read_trace(tmp_path / f"{name}.parquet")
        assert words in str(raised.value)


def test_public_files_are_read(tmp_path):
    azure, burst = tmp_path / "azure.csv", tmp_path / "burst.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                     "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.9805900,396,109\n")
    burst.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                     "5,x,472,18,490,y\n45,x,1087,0,1087,y\n118,x,417,276,693,y\n")
    assert read_trace(azure).arrival_ns.tolist() == [0, 1_300_000_000]
    assert read_trace(azure).prompt_tokens.tolist() == [374, 396]
    assert read_trace(burst).arrival_ns.tolist() == [0, 113_000_000_000]
    assert read_trace(burst).output_tokens.tolist() == [18, 276]


@pytest.mark.parametrize("name,text,words", [
    ("t.txt", "", "expected a name that ends in"),
    ("t.jsonl", "{]", "line 1"),
    ("t.jsonl", "[1]", "expected an object"),
    ("t.jsonl", '{"arrival_ns": 1.5, "prompt_tokens": 1, "output_tokens": 1}', "arrival_ns"),
    ("t.jsonl", '{"arrival_ns": 1, "prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens[0]"),
    ("t.jsonl", '{"arrival_ns": 1, "prompt_tokens": 1, "output_tokens": 9e18}', "output_tokens"),
    ("t.jsonl", '{"arrival_ns": 1, "prompt_tokens": 1, "output_tokens": ' + "9" * 18 + "}",
     "output_tokens[0]"),
    ("t.jsonl", '{"arrival_ns": 1, "prompt_tokens": ' + "9" * 40 + "}", "integer of 64 bits"),
    ("t.jsonl", '{"arrival_ns": ' + "9" * 5000 + "}", "line 1"),
    ("t.jsonl", '{"arrival_ns": 9223372036854775807, "prompt_tokens": 1, "output_tokens": 1}',
     "arrival_ns[0]"),
    ("t.jsonl", "[" * 100_000, "line 1"),
    ("t.jsonl", b"\xff", "line 1"),
    ("t.csv", "Timestamp,Request tokens,Response tokens\ninf,1,1\n", "line 2"),
    ("t.csv", b"\xff\n1,1,1\n", "expected columns"),
    ("t.csv", "a,b\n1,2\n", "expected columns"),
    ("t.csv", "Timestamp,Request tokens,Response tokens\nx,1,1\n", "line 2"),
])
def test_bad_files_are_named(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as raised:
        read_trace(path)
    assert words in str(raised.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_drawn_lengths_have_the_stated_median_and_mean():
    drawn = Lengths(1020, 1155).draw(np.random.default_rng(1), 200_000)
    assert np.median(drawn) == pytest.approx(1020, rel=0.01)
    assert drawn.mean() == pytest.approx(1155, rel=0.01)


def test_a_trace_out_of_order_is_refused():
    with pytest.raises(UserError, match=r"arrival_ns\[1\]"):
        Trace(*(np.array(column, np.int64) for column in ([5, 3], [1, 1], [1, 1], [-1, -1],
                                                           [0, 0])))


def test_a_device_that_draws_noise_schedules_as_one_with_contents(monkeypatch):
    """Only tokens differ: every time and count is that of the shadow device, step by step."""
    trace = drawn_trace("code", 30, 200.0, shared_tokens=64, groups=2)
    drawn = Study(SMALL, trace)
    outcomes = [drawn.run()]
    monkeypatch.setattr(study_module, "NoiseExecutor", SimulatedExecutor)
    kept = Study(SMALL, trace)
    while kept.ended < len(trace):
        kept.step()
    outcomes.append(kept.outcome(0.0))
    for name in ("first_ns", "last_ns", "tokens", "finish", "cached_tokens", "gaps", "counters"):
        assert np.array_equal(*(getattr(one, name) for one in outcomes)), name
    ids = [one.world[0]["tokens"]["ids"] for one in (drawn, kept)]
    assert not np.array_equal(*ids), "they are two devices"

"""The engine as a library: several in a process, snapshots, systems of one's own, the examples."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from helios_dod import Engine, Machine, Submission
from helios_dod.errors import UserError
from helios_dod.examples import admission_policy, capacity_study, router
from helios_dod.executors.costs import FixedCost
from helios_dod.executors.paced import PacedExecutor
from helios_dod.recording import Divergence, Recorder, load, replay
from helios_dod.schedule import TICK
from helios_dod.simulation.study import Study
from helios_dod.simulation.traces import make_trace
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN, FINISH_CANCELLED
from helios_dod.world import digest

SMALL = Machine(lanes=4, prefill_tokens=64, context_tokens=512, vocabulary=997,
                cost=FixedCost(1_000_000, 0))


def submission(tag, count=40, answer=12, **others):
    prompt = np.random.default_rng(tag).integers(0, SMALL.vocabulary, count, dtype=np.int32)
    return Submission(tag, prompt, answer, **others)


def drive(engine):
    """Everything that happens until nothing is left to do: (time, events)."""
    return [(engine.now_ns, events.copy()) for events in engine.batches()]


def equal(events, others):
    """Columns that mean something without log-probabilities."""
    return all((events[name] == others[name]).all()
               for name in events.dtype.names if not name.startswith(("top_t", "top_l", "logp")))


def tokens_of(happened, tag):
    return [int(event["token"]) for _, events in happened for event in events
            if event["kind"] == EGRESS_TOKEN and event["tag"] == tag]


def test_engines_of_one_process_do_not_meet():
    with Engine.simulated(SMALL) as one, Engine.simulated(SMALL) as other:
        for tag in range(6):
            assert one.submit(submission(tag))
        assert other.submit(submission(3))
        together, alone = drive(one), drive(other)
        assert tokens_of(together, 3) == tokens_of(alone, 3) != []
        assert one.stats()["finished"] == 6 and other.stats()["finished"] == 1
        assert one.stats()["running"] == one.stats()["frames_in_flight"] == 0


def test_an_engine_leaves_nothing_behind():
    def now():
        return (threading.active_count(), len(os.listdir("/proc/self/fd")),
                [signal.getsignal(number) for number in signal.valid_signals()],
                Path("/proc/self/task/" + str(os.getpid()) + "/children").read_text())

    before = now()
    with Engine.simulated(SMALL) as engine:
        engine.submit(submission(1))
        assert drive(engine)
        inside = now()
    assert now() == before and inside[2:] == before[2:] and inside[0] == before[0]


def test_a_cancel_ends_a_request():
    with Engine.simulated(SMALL) as engine:
        engine.submit(submission(1, answer=400))
        happened = []
        for events in engine.batches():
            happened.append(events.copy())
            if len(happened) == 5:
                assert engine.cancel(1)
        last = happened[-1][-1]
        assert last["kind"] == EGRESS_FINISHED and last["reason"] == FINISH_CANCELLED
        assert engine.stats()["cancelled"] == 1


def test_what_follows_a_snapshot_follows_again():
    with Engine.simulated(SMALL) as engine, Engine.simulated(SMALL) as twin:
        for tag in range(9):
            engine.submit(submission(tag))
        for _ in range(7):
            engine.tick()
            engine.advance()
        saved = engine.snapshot()
        assert engine.stats()["frames_in_flight"] > 0, "taken in the midst of things"
        first, end = drive(engine), digest(engine.loop.world)
        for again in (engine, twin):
            again.restore(saved)
            for (when, events), (then, others) in zip(drive(again), first, strict=True):
                assert when == then and equal(events, others)
            assert digest(again.loop.world) == end


def test_snapshots_of_other_sizes_and_devices_are_refused():
    with Engine.simulated(SMALL) as engine:
        other = Engine.simulated(Machine(lanes=40, context_tokens=512))
        with pytest.raises(UserError, match="expected a world of"):
            engine.restore(other.snapshot())
        other.close()
        simulated = engine.loop.executor
        engine.loop.executor = paced = PacedExecutor(simulated.contract, FixedCost(1, 0))
        with pytest.raises(UserError, match="in virtual time"):
            engine.snapshot()
        engine.loop.executor = simulated
        paced.histories = None
        paced.close()


def test_systems_one_by_one_are_the_tick():
    worlds = []
    for systems in (None, TICK):
        with Engine.simulated(SMALL, systems=systems) as engine:
            for tag in range(6):
                engine.submit(submission(tag, timed=tag % 2 == 0))
            drive(engine)
            worlds.append(digest(engine.loop.world))
    assert worlds[0] == worlds[1]


def test_a_tick_without_accept_is_refused():
    with pytest.raises(UserError, match="expected `accept`"):
        Engine.simulated(SMALL, systems=TICK[:2])
    with Engine.simulated(SMALL) as engine:
        engine.loop.recorder = Recorder(engine.loop.world, "SMALL")
        with pytest.raises(UserError, match="not possible while recording"):
            engine.loop.use(TICK)


def recorded(tmp_path, systems):
    """A study's recording."""
    trace = make_trace(np.arange(12) * 3e6, np.full(12, 100), np.full(12, 20), np.zeros(12),
                       np.full(12, 64))
    study = Study(SMALL, trace)
    if systems is not None:
        study.engine.use(systems)
    recorder = study.engine.recorder = Recorder(
        study.world, "SMALL", ticks=1_000_000, memory_bytes=1 << 30)
    study.run()
    recorder.save(tmp_path / "file", "done")
    return load(tmp_path / "file")


def test_a_study_runs_the_shipped_tick(tmp_path):
    """The flight recorder runs what a server runs: a study's ticks come out the same in it."""
    file = recorded(tmp_path, None)
    assert sum(1 for _ in replay(file)) == len(file.entries) > 50


def test_a_special_case_would_be_noticed(tmp_path):
    file = recorded(tmp_path, [step for step in TICK if step.name != "publish"])
    with pytest.raises(Divergence):
        list(replay(file))


def test_the_capacity_example_finds_a_limit(capsys):
    assert capacity_study.capacity([4, 400], 60, 500.0) == 4
    assert capsys.readouterr().out.count("first token after") == 2


def test_the_router_example_prefers_a_prefix():
    in_turn, by_prefix = (router.run(policy, 120, 80.0)
                          for policy in (router.in_turn, router.by_prefix))
    assert by_prefix.cached > in_turn.cached + 0.1
    assert by_prefix.p50_ms < in_turn.p50_ms


def test_the_admission_example_lets_short_prompts_pass():
    lengths = np.array([1500] * 12 + [32] * 12)
    plain, short_first = (admission_policy.first_tokens(systems, lengths)
                          for systems in (None, admission_policy.with_policy()))
    short = lengths == 32
    assert short_first[short].max() < plain[short].min()
    assert (short_first > 0).all(), "and the long ones are not forgotten"

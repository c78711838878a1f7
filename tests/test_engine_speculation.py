"""Speculative programs of the real model: the bits of plain decode, whatever is drafted."""

from dataclasses import replace

import numpy as np
import pytest
from embedded import Embedded
from test_engine_equal import requests

from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options
from helios_dod.terms import FINISH_CANCELLED, OP_SPECULATIVE

OUTPUT = 24


@pytest.fixture(scope="module")
def core(checkpoint, tmp_path_factory):
    """The demo model with a float32 cache and programs of widths 1, 2 and 4."""
    path = tmp_path_factory.mktemp("core") / "speculative"
    make_core(checkpoint, path, Options(cache="f32", lanes=8, packed=(64, 256), widths=(2, 4)),
              namespace="test")
    return path


def asked(count, **fields):
    """Greedy and sampled requests, with penalties and biases; log-probabilities of some."""
    return [replace(request, output_limit=OUTPUT, top_logprobs=2 if i == 3 else -1, **fields)
            for i, request in enumerate(requests(count))]


def copying(count):
    """Prompts that repeat themselves, so that greedy answers copy."""
    rng = np.random.default_rng(5)
    made = []
    for request in asked(count):
        period = rng.integers(1000, 40_000, 6, dtype=np.int32)
        made.append(replace(request, prompt=np.tile(period, 8), temperature=0.0, bias={},
                            repetition_penalty=1.0, presence_penalty=0.0))
    return made


@pytest.fixture(scope="module")
def plain(f32_core):
    """Answers of the core without speculation."""
    with Embedded(f32_core) as engine:
        return engine.ask(asked(8)), engine.ask(copying(4))


def insist(engine):
    """Keeps the cost of the widest rounds unknown, so that they are chosen as long as drafts may be
    accepted."""
    programs = engine.engine.world[0]["programs"]
    widest = programs["lane_limit"] == programs["round_width"]
    programs["observed_count"][widest & (programs["operation"] == OP_SPECULATIVE)] = -(1 << 30)


def assert_same(answers, expected):
    for answer, known in zip(answers, expected, strict=True):
        assert answer.tokens == known.tokens and answer.reason == known.reason
        assert answer.scores == known.scores and answer.tops == known.tops


def counter(engine, name):
    return int(engine.engine.world[0]["counters"][name])


@pytest.mark.parametrize("options", [
    pytest.param({}, id="width 4"),
    pytest.param({"speculative_width": 2}, id="width 2"),
    pytest.param({"frames": 1}, id="one frame"),
    pytest.param({"concurrency": 3}, id="three slots"),
])
def test_drafted_equals_plain(core, plain, options):
    """By the model's own first layers, greedy and sampled, with penalties."""
    with Embedded(core, **options) as engine:
        insist(engine)
        assert_same(engine.ask(asked(8)), plain[0])
        assert counter(engine, "rounds_speculative") > 10
        assert counter(engine, "drafts_offered") > counter(engine, "drafts_accepted")


def test_width_one_equals_plain(core, plain):
    with Embedded(core, speculative_width=1) as engine:
        assert_same(engine.ask(asked(8)), plain[0])
        launched = engine.engine.world[0]["programs"]["launches"]
        operation = engine.engine.world[0]["programs"]["operation"]
        assert launched[operation == OP_SPECULATIVE].sum() > 10


def test_copied_equals_plain(core, plain):
    """Drafts from the request's own text, most of them right where it repeats itself."""
    with Embedded(core, history_drafting=True) as engine:
        insist(engine)
        assert_same(engine.ask(asked(8)), plain[0])
        before = counter(engine, "drafts_copied_accepted")
        assert_same(engine.ask([replace(request, tag=request.tag + 100)
                                for request in copying(4)]), plain[1])
        assert counter(engine, "drafts_copied_accepted") > before + 10


def test_ends_and_cancels_in_a_round(core, f32_core, plain):
    """An EOS, a limit and a cancel in the middle of a round, and what the others answer."""
    made = [replace(request, eos=(plain[1][i].tokens[9 + i],), output_minimum=i,
                    output_limit=OUTPUT - i) for i, request in enumerate(copying(4))]
    with Embedded(f32_core) as engine:
        known = engine.ask(made)
    with Embedded(core, history_drafting=True) as engine:
        insist(engine)
        note, seen = engine.note, []

        def cancel_first(answer, event, live):
            seen.append(int(event["tag"]))
            if seen.count(1) == 5 and engine.edge.cancel(1):
                seen.append(1)
            note(answer, event, live)

        engine.note = cancel_first
        answers = engine.ask(made)
        assert_same(answers[1:], known[1:])
        assert answers[0].reason in (FINISH_CANCELLED, known[0].reason)
        assert answers[0].tokens == known[0].tokens[:len(answers[0].tokens)]


def test_preempted_in_a_round_equals_undisturbed(core, plain):
    page_bytes = 2 * 368_640  # f32 planes, 16 tokens a page
    with Embedded(core, cache_bytes=22 * page_bytes, context_tokens=176) as engine:
        insist(engine)
        assert_same(engine.ask(asked(8)), plain[0])
        assert counter(engine, "rounds_speculative") > 10 and counter(engine, "preempted") > 0

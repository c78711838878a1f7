"""llguidance behind the engine: constrained answers of a real model, embedded."""

import json
import time

import numpy as np
import pytest
from embedded import Embedded
from ignition_fixtures import TINY

from helios_dod.edges import Submission
from helios_dod.grammars.library import ROW_ITEMS_MAX, Text, encode
from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options
from helios_dod.server.choices import failure_of
from helios_dod.terms import (
    ANSWER_NO_COMPILE,
    ANSWER_TOO_WIDE,
    FINISH_EOS,
    FINISH_GRAMMAR,
    FINISH_LIMIT,
)

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
                                           "count": {"type": "integer", "maximum": 999}},
          "required": ["name", "count"], "additionalProperties": False}


def lark(text: str) -> bytes:
    return encode(Text(grammar=text))


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grammars")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOS_CONFIG", str(folder / "config"))
        make_core(TINY / "smollm2", folder / "core",
                  Options(cache="f32", lanes=8, packed=(64, 128)), namespace="test")
        yield folder / "core"


def ask(core, grammars, temperature=1.0, limit=120, **options):
    """(text, reason) of a request for each grammar, all at once."""
    with Embedded(core, **options) as engine:
        eos = engine.plan.contract.frontend.eos_tokens
        table = engine.plan.core.token_bytes()
        answers = engine.ask([
            Submission(tag=i + 1, prompt=np.array([5, 6, 7], np.int32), output_limit=limit,
                       temperature=temperature, seed=i, eos=eos, grammar=grammar)
            for i, grammar in enumerate(grammars)])
        counters = engine.engine.world[0]["counters"]
        assert counters["constrained_in_flight_max"] == any(map(len, grammars))
        worker, patience = engine.engine.desk.worker, time.monotonic() + 30
        while worker.rows and time.monotonic() < patience:  # the last releases are on their way
            time.sleep(0.01)
        assert not worker.rows
    data, offsets = table.data.tobytes(), table.offsets.tolist()
    return [(b"".join(data[offsets[t]:offsets[t + 1]] for t in answer.tokens
                      if t not in eos).decode("utf-8", "replace"), answer.reason)
            for answer in answers]


def test_answers_are_in_their_grammars(core):
    """A random model answers nothing but what the grammars allow, beside one without a grammar."""
    schema = lark("start: %json " + json.dumps(SCHEMA | {"x-guidance": {
        "whitespace_flexible": False}}))
    grammars = [schema, lark('start: "yes" | "no"'), b"", lark("start: /[a-c]{3,6}/"), schema]
    answers = ask(core, grammars)
    for text, reason in (answers[0], answers[4]):
        assert reason == FINISH_EOS, text
        assert set(json.loads(text)) == {"name", "count"}
    assert answers[1] in (("yes", FINISH_EOS), ("no", FINISH_EOS))
    assert answers[2][1] in (FINISH_EOS, FINISH_LIMIT)
    assert set(answers[3][0]) <= set("abc") and answers[3][1] == FINISH_EOS


def test_one_slot_answers_as_many(core):
    """Alone or together, the masks and so the tokens are the same."""
    grammars = [lark("start: /[a-z0-9 ]{20}/"), lark('start: ("ab" | "cd" | "e")+ "."')] * 3
    assert ask(core, grammars) == ask(core, grammars, concurrency=1)


def test_a_grammar_that_does_not_compile_fails_alone(core):
    with Embedded(core) as engine:
        requests = [Submission(tag=i + 1, prompt=np.array([5], np.int32), output_limit=4,
                               grammar=grammar)
                    for i, grammar in enumerate((lark("start: missing"), b"{}", b""))]
        answers = engine.ask(requests)
    assert [answer.reason for answer in answers] == [FINISH_GRAMMAR, FINISH_GRAMMAR, FINISH_LIMIT]
    assert [answer.failure for answer in answers[:2]] == [ANSWER_NO_COMPILE] * 2


def test_an_ambiguous_grammar_ends_alone(core, monkeypatch):
    """Every token has more ways to be read: the parser's limit ends the request and names itself;
    answers beside it go on, with rows that count as slow too."""
    monkeypatch.setattr("helios_dod.grammars.worker.SLOW_NS", 0)
    ambiguous, long = lark('start: a\na: a a | a a a | "x"'), lark("start: /[a-c]{200}/")
    with Embedded(core) as engine:
        table = engine.plan.core.token_bytes()
        texts = [table.data[first:end].tobytes()
                 for first, end in zip(table.offsets, table.offsets[1:], strict=False)]
        answers = engine.ask([
            Submission(tag=i + 1, prompt=np.array([5, 6, 7], np.int32), output_limit=limit,
                       temperature=1.0, seed=i, grammar=grammar, bias=bias)
            for i, (grammar, limit, bias) in enumerate((
                (ambiguous, 400, {texts.index(b"x"): 100.0}), (long, 220, {}), (b"", 220, {})))])
    assert (answers[0].reason, answers[0].failure) == (FINISH_GRAMMAR, ANSWER_TOO_WIDE), answers[0]
    assert 50 < len(answers[0].tokens) < 400
    assert f"more than {ROW_ITEMS_MAX} items" in str(failure_of(FINISH_GRAMMAR, ANSWER_TOO_WIDE))
    assert len(answers[1].tokens) >= 60 and answers[1].reason != FINISH_GRAMMAR
    assert (answers[2].reason, len(answers[2].tokens)) == (FINISH_LIMIT, 220)

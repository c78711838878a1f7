"""Trials of grammars: verdicts, what stops them, a helper that dies."""

import os
import signal

import pytest
from ignition_fixtures import TINY

from helios_dod.grammars.library import GrammarError, Source, Text, encode
from helios_dod.grammars.trial import Trials


@pytest.fixture
def trials():
    tokenizer = (TINY / "smollm2" / "tokenizer.json").read_bytes()
    made = Trials(Source(tokenizer, 300, (2,)))
    yield made
    made.close()


def lark(text: str) -> bytes:
    return encode(Text(grammar=text))


def test_verdicts_are_kept_by_content(trials):
    trials.check(lark('start: "a"'))
    with pytest.raises(GrammarError, match="unknown name"):
        trials.check(lark("start: missing"))
    assert "" in trials.verdicts.values()
    trials._process.kill()
    trials._process.wait()
    trials.check(lark('start: "a"'))  # asks nobody
    with pytest.raises(GrammarError, match="unknown name"):
        trials.check(lark("start: missing"))


@pytest.mark.parametrize("text", ["start: /[^\\s\\S]/", 'start: "a" X\nX: /[^\\s\\S]/'])
def test_a_grammar_without_an_answer_says_so(trials, text):
    with pytest.raises(GrammarError, match="no answer fulfils it"):
        trials.check(lark(text))


def test_a_helper_that_dies_is_started_again(trials):
    trials.check(lark('start: "a"'))
    os.kill(trials._process.pid, signal.SIGKILL)
    trials._process.wait()
    trials.check(lark('start: "b"'))


def test_what_takes_too_long_is_stopped(trials):
    patterns = ", ".join(f'{{"pattern": "(a|b)*a(a|b){{{i}}}"}}' for i in range(20, 40))
    with pytest.raises(GrammarError, match="takes more than 2 s"):
        trials.check(lark(f'start: %json {{"type": "string", "allOf": [{patterns}]}}'))
    trials.check(lark('start: "c"'))


def test_what_is_no_text_of_a_grammar_is_refused(trials):
    with pytest.raises(GrammarError, match="not a grammar of this engine"):
        trials.check(b"{}")

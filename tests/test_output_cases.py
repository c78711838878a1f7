"""Output cases: every case in every split, and what `helios parse` says of a failure."""

import json
from pathlib import Path

import pytest

from helios_dod.cli import main
from helios_dod.frontend.output import cases as output_cases
from helios_dod.frontend.output.case_names import CASE_SYNTAXES
from helios_dod.frontend.output.cases import (
    CaseTokenizer,
    check,
    gather,
    means,
    parse,
    read_cases,
    syntax_of,
)
from helios_dod.frontend.output.marks import Vocabulary
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.terms import Start

OWN = Path(__file__).parent / "fixtures" / "output_cases.jsonl"
SHARED = Path(__file__).parents[2] / "shared" / "formats" / "cases.jsonl"
FILES = [path for path in (OWN, SHARED) if path.exists()]
CASES = [case for path in FILES for case in read_cases(path)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_in_every_split(case):
    assert check(case) == []


def test_every_syntax_has_cases():
    assert {case["syntax"] for case in read_cases(OWN)} == set(CASE_SYNTAXES)


@pytest.mark.parametrize("case", read_cases(OWN), ids=lambda case: case["id"])
def test_case_without_single_tokens(case):
    """A tokenizer that has no delimiter as one token: all of them are matched by bytes."""
    tokenizer = CaseTokenizer(syntax_of(case))
    plain = [bytes([i]) for i in range(256)]
    single = parse(case, tokenizer, tokenizer.split(case["model_output"], "bytes"))
    tokenizer.bound = Vocabulary(plain).bind(tokenizer.bound.syntax)
    tokenizer.table = plain
    output, tail = case["model_output"], case.get("prompt_tail")
    for dropped in tokenizer.bound.syntax.dropped:  # no text, but only as tokens
        output = output.replace(dropped, "")
    if case["id"] == "fn-24" or tail is not None:
        return  # a closer in text is text; a prompt's boundaries are tokens
    spelled = parse(case, tokenizer, [(0, bytes([byte])) for byte in output.encode()])
    assert spelled == single


@pytest.mark.parametrize("case", read_cases(OWN), ids=lambda case: case["id"])
def test_spelled_tokens_are_text(case):
    """Where delimiters are tokens, an output that spells them all in text has no markup."""
    tokenizer = CaseTokenizer(syntax_of(case))
    if not tokenizer.bound.atoms or case["syntax"] in ("llama3_json", "mistral"):
        return
    start = {"reasoning": Start.REASONING}.get(case["start"], Start.RESPONSE)
    parser = Parser(tokenizer.bound, case["tools"], start)
    text = case["model_output"]
    for plain in ("<function=", " to=", "\n"):  # delimiters that are text themselves
        text = text.replace(plain, "")
    events = []
    for byte in text.encode():
        events += parser.feed(0, bytes([byte]))
    result = gather([*events, *parser.finish()])
    assert result.content + result.reasoning == text
    assert not result.calls and not result.incomplete


def test_failures_are_reported(tmp_path, capsys):
    good = read_cases(OWN)[0]
    bad = {**good, "id": "wrong", "expected_content": "something else"}
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, (good, bad))) + "\n")
    assert main(["parse", "--cases", str(path)]) == 1
    out = capsys.readouterr().out
    assert "wrong: whole: content: expected 'something else', got 'Sure.'" in out
    assert good["id"] + ":" not in out
    path.write_text(json.dumps(good))
    assert main(["parse", "--cases", str(path)]) == 0


def test_streamed_differences_are_reported(monkeypatch):
    """A canary: a parser that sees token boundaries fails the splits."""
    feed = Parser.feed

    def careless(self, token, data):
        return feed(self, token, data.replace(b"<", b"")) if len(data) == 1 else feed(
            self, token, data)

    monkeypatch.setattr(Parser, "feed", careless)
    case = next(case for case in read_cases(OWN) if case["id"] == "fn-21")
    assert any("differs from whole" in line or "whole" in line for line in check(case))


@pytest.mark.parametrize("line, said", [
    ("{", "1"), ('{"id": "a"}', "`syntax`"), ("7", "1: Expected `object`"), ("[" * 9999, "1"),
    ('{"syntax": "xtml", "model_output": 3}', "$.model_output"),
    ('{"syntax": "xtml", "model_output": "\\ud800"}', "surrogates"),
    ('{"syntax": "xtml", "model_output": "", "start": []}', "$.start"),
    ('{"syntax": "xtml", "model_output": "", "tools": ["f"]}', "$.tools"),
    ('{"syntax": "xtml", "model_output": "", "uses": 1}', "$.uses"),
    ('{"syntax": "xtml", "model_output": "", "prompt_tail": 1}', "$.prompt_tail"),
    ('{"syntax": "xtml", "model_output": "", "expected_content": 1}', "$.expected_content"),
    ('{"syntax": "xtml", "model_output": "", "expected_calls": [{"name": "f"}]}',
     "expected_calls[0] has neither"),
    ('{"syntax": "xtml", "model_output": "", "expected_calls": [7]}', "$.expected_calls[0]"),
    ('{"syntax": "xtml", "model_output": "", "expected_incomplete": {"name": "f"}}',
     "args_prefix"),
    (b"\xff", "is not UTF-8"), ("\n", "no cases"),
    ('{"syntax": "xtml", "model_output": "", "start": "middle"}', "start 'middle'"),
    ('{"syntax": "none_such", "model_output": ""}', "none_such"),
])
def test_bad_files_are_refused(tmp_path, capsys, line, said):
    path = tmp_path / "cases.jsonl"
    path.write_bytes(line if isinstance(line, bytes) else line.encode())
    assert main(["parse", "--cases", str(path)]) == 1
    error = capsys.readouterr().err
    assert said in error and str(path) in error
    assert main(["parse", "--cases", str(tmp_path)]) == 1


def test_an_unfinished_call_that_nothing_expects_is_reported():
    case = next(case for case in read_cases(OWN) if case["id"] == "fn-15")
    assert check(case) == []
    assert "incomplete" in check({**case, "expected_incomplete": None})[0]
    del case["expected_incomplete"]
    assert "incomplete" in check(case)[0]


def test_json_values_are_compared_as_values():
    assert means('{"a": 5.0, "b": [true]}', {"b": [True], "a": 5})
    assert not means('{"a": 1}', {"a": True})
    assert not means('{"a": 1}', {"a": 1, "b": 2})
    assert not means("{", {})
    assert output_cases.RANDOM_SPLITS == 200

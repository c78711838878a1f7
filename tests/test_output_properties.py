"""Output parsers under mutated outputs: no exception, streamed equals whole, bounded work."""

import json
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios_dod.frontend.output.case_names import CASE_SYNTAXES
from helios_dod.frontend.output.cases import (
    STARTS,
    CaseTokenizer,
    gather,
    parse,
    read_cases,
    syntax_of,
)
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.fences import Fences
from helios_dod.frontend.output.marks import Vocabulary
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.states import Flow
from helios_dod.frontend.output.terms import ARGUMENTS, CONTENT, INCOMPLETE, Finish, Names, Start
from helios_dod.frontend.output.values import is_object
from tests.oracles.output_differential import SYNTAXES
from tests.oracles.output_differential import TOOLS as TOOLS_OF_TWO

CASES = read_cases(Path(__file__).parent / "fixtures" / "output_cases.jsonl")
NAMES = sorted(CASE_SYNTAXES)
ODD = [b"\xff", b"\xe2\x82", b"\xf0\x9f", b"\n", b" ", b"\\u00", b"\\ud83d", b"\\", b'"', b"{",
       b"}", b"[", b">", b"<", b"```\n", b"~~~\n", b"null", b" to=", b";", b"\xc2\x85"]
PIECE = re.compile(r"\w+|\s|[^\w\s]")
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def tokenizer_of(name):
    return CaseTokenizer(syntax_of({"id": name, "syntax": name}))


@cache
def pieces_of(name):
    """Tokens that outputs of a syntax are made of."""
    tokenizer, found = tokenizer_of(name), []
    for case in CASES:
        if case["syntax"] == name:
            for token, part in tokenizer.pieces(case["model_output"]):
                found += [(token, part.encode())] if token is not None else [
                    (0, piece.encode()) for piece in PIECE.findall(part)]
    found += [(tokenizer.ids[marker], marker.encode()) for marker in tokenizer.markers]
    found += [(0, marker.encode()) for marker in tokenizer.markers]
    return found + [(0, data) for data in ODD]


def mutated(name, seed):
    """A case of the syntax and its output with a few changes, as tokens."""
    choose = random.Random(seed)
    case = choose.choice([case for case in CASES if case["syntax"] == name])
    tokenizer = tokenizer_of(name)
    tokens = []
    for token, part in tokenizer.pieces(case["model_output"]):
        tokens += [(token, part.encode())] if token is not None else [
            (0, piece.encode()) for piece in PIECE.findall(part)]
    for _ in range(choose.randrange(1, 7)):
        at = choose.randrange(len(tokens) + 1)
        change = choose.randrange(4)
        if change == 0:
            del tokens[at:at + 1]
        elif change == 1:
            tokens.insert(at, choose.choice(pieces_of(name)))
        elif change == 2 and tokens:
            tokens.insert(at, choose.choice(tokens))
        elif choose.random() < 0.4:
            del tokens[at:]
    start = choose.choice(list(STARTS)) if choose.random() < 0.1 else case["start"]
    return {**case, "start": start, "prompt_tail": None}, tokens


def joined(tokens):
    """Ordinary text as long as it goes."""
    found = []
    for token, data in tokens:
        if token == 0 and found and found[-1][0] == 0:
            found[-1] = (0, found[-1][1] + data)
        else:
            found.append((token, data))
    return found


def by_bytes(tokens):
    return [(token, data[i:i + 1]) if token == 0 else (token, data) for token, data in tokens
            for i in range(len(data) if token == 0 else 1)]


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=st.integers(0, 2**32))
def test_mutated_outputs(name, seed):
    case, tokens = mutated(name, seed)
    tokenizer = tokenizer_of(name)
    whole = parse(case, tokenizer, joined(tokens))
    assert parse(case, tokenizer, by_bytes(tokens)) == whole
    assert parse(case, tokenizer, tokens) == whole
    for call in whole.calls:
        assert call.name and call.id
    assert len({call.id for call in whole.calls + whole.incomplete}) == len(
        whole.calls + whole.incomplete) or name == "kimi_k2_tokens"


RAW_CLOSERS = {  # what closes a body that passes as written
    "harmony": "<|call|> <|return|>", "kimi_k2_tokens": "<|tool_call_end|>",
    "xtml": "<|close|>json"}


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=st.integers(0, 2**32))
def test_finished_calls_have_whole_arguments(name, seed):
    """A finished call's arguments are a JSON object, or a body that its own delimiter closed."""
    case, tokens = mutated(name, seed)
    result = parse(case, tokenizer_of(name), tokens)
    output = b"".join(data for _, data in tokens).decode("utf-8", "replace")
    closed = sum(output.count(closer) for closer in RAW_CLOSERS.get(name, "").split())
    broken = [call for call in result.calls if not is_object(call.arguments)]
    assert len(broken) <= closed


def channel_frames(message):
    """As the format document writes a message."""
    frames = [f"<|channel|>{channel}<|message|>{text}<|end|>" for channel, text in (
        ("analysis", message["reasoning"]), ("final", message["content"])) if text]
    frames += [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
               f"{json.dumps(arguments)}<|call|>" for name, arguments in message["calls"]]
    return "<|start|>assistant".join(frames)


WRITERS = {name: entry[:2] for name, entry in SYNTAXES.items()}
WRITERS["channel_frames"] = (channel_frames, Start.HEADER)
ARGUMENTS_OF_TWO = {"text": 'a"\n{', "items": [1, {"k": "}"}], "count": 12}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("spelled", [False, True])
def test_an_output_cut_anywhere(name, spelled):
    """What was cut within a call is unfinished, and none of it is content; what may only have
    become an opener is."""
    write, start = WRITERS[name]
    content = "" if name == "bare_json" else "Look."  # its writer says one or the other
    arguments = [ARGUMENTS_OF_TWO, {}]
    text = write({"content": content, "reasoning": "",
                  "calls": [("plan", given) for given in arguments]})
    tokenizer = CaseTokenizer(CATALOG[name])
    bound, tokens = tokenizer.bound, tokenizer.split(text, "bytes")
    if spelled:  # a tokenizer that has no delimiter as one token
        bound = Vocabulary([]).bind(CATALOG[name])
        tokens = [(0, bytes([byte])) for byte in text.encode()]
    opened = False
    for size in range(len(tokens) + 1):
        parser = Parser(bound, TOOLS_OF_TWO, start)
        events = [event for token, data in tokens[:size] for event in parser.feed(token, data)]
        state, header = parser.state, vars(parser.document).get("header")
        words = state.words if state.kind == CONTENT or state is header else ()
        events += parser.finish(Finish.LENGTH)
        result = gather(events)
        made = [json.loads(call.arguments) for call in result.calls]
        assert made == arguments[:len(made)] and len(result.incomplete) <= 1
        opened = opened or bool(result.incomplete)
        if opened:  # the first call's opener is behind
            rest = result.content.removeprefix(content).strip()
            assert not rest or (spelled and any(
                word.startswith(rest.encode().decode("latin-1")) for word in words))
    assert made == arguments and not result.incomplete


BROKEN = ('{"text": "a"', '{"text": "a"]', '{"text": }', "{'text': 1}", "[1]", '"text"', "7", "",
          '{"text": "a",}', '{"text": "a\nb"}', '{"text": NaN}', '{"text": "\\x"}', "{]}",
          '{"text": 01}', '{"text": "a"}}}', "nul", '"{"', '{"a": tru}', '{"a" "b"}', "{{}}")
JSON_CALLS = {  # what writes a call's arguments as JSON: an output, and what may follow it
    "tagged_json": ('<tool_call>\n{"name": "plan", "arguments": %s}\n</tool_call>', ""),
    "bare_json": ('{"name": "plan", "parameters": %s}', ""),
    "named_json": ("[TOOL_CALLS]plan[ARGS]%s", "[TOOL_CALLS]plan{}"),
    "identified_json": ("<|tool_calls_section_begin|><|tool_call_begin|>functions.plan:0"
                        "<|tool_call_argument_begin|>%s<|tool_call_end|>"
                        "<|tool_calls_section_end|>", ""),
    "channel_frames": ("<|channel|>commentary to=functions.plan<|message|>%s<|end|>", ""),
    "xtml": ('<|open|>tools<|sep|><|open|>call tool="plan" index="1"<|sep|><|open|>json '
             'type="object"<|sep|>%s<|close|>json<|sep|><|close|>call<|sep|>', ""),
}


RAW_CALLS = {  # a body that passes as written up to its own delimiter: the last one here
    "identified_json": JSON_CALLS["identified_json"][0].removesuffix(
        "<|tool_calls_section_end|>"),
    "channel_frames": JSON_CALLS["channel_frames"][0].replace("<|end|>", "<|call|>"),
    "xtml": JSON_CALLS["xtml"][0],
}


@pytest.mark.parametrize("name", RAW_CALLS)
@pytest.mark.parametrize("body", BROKEN)
def test_a_raw_body_is_closed_by_its_delimiter_only(name, body):
    """It passes as written, `{}` if it is empty; until its delimiter came it is unfinished."""
    start = Start.HEADER if name == "channel_frames" else Start.CONTENT
    tokenizer = CaseTokenizer(CATALOG[name])
    tokens = tokenizer.split(RAW_CALLS[name] % body, "bytes")
    for size in range(len(tokens) + 1):
        parser = Parser(tokenizer.bound, TOOLS_OF_TWO, start)
        events = [event for token, data in tokens[:size] for event in parser.feed(token, data)]
        result = gather([*events, *parser.finish(Finish.LENGTH)])
        assert result.content == "" and (not result.calls or size == len(tokens))
    assert [call.arguments for call in result.calls] == [body or "{}"] and not result.incomplete


@pytest.mark.parametrize("body", ["", "{oops"])
def test_a_raw_body_that_only_its_call_closes_is_unfinished(body):
    output = (RAW_CALLS["xtml"] % body).replace("<|close|>json<|sep|>", "")
    tokenizer = CaseTokenizer(CATALOG["xtml"])
    result = parse({"start": "content"}, tokenizer, tokenizer.split(output, "bytes"))
    assert not result.calls and [call.arguments for call in result.incomplete] == [body]


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize("body", BROKEN)
def test_arguments_that_are_no_object(name, body):
    """No finished call, unless its own delimiter closed a raw body; once it has begun, nothing of
    it is content."""
    write, more = JSON_CALLS[name]
    start = Start.HEADER if name == "channel_frames" else Start.CONTENT
    tokenizer = CaseTokenizer(CATALOG[name])
    for split in ("whole", "bytes"):
        parser = Parser(tokenizer.bound, TOOLS_OF_TWO, start)
        events = [event for token, data in tokenizer.split(write % body + more, split)
                  for event in parser.feed(token, data)]
        result = gather([*events, *parser.finish()])
        ended = '{"text": "a"}' if body.endswith("}}}") else None  # the rest is behind its end
        alone = [ended] if ended and name in ("tagged_json", "bare_json", "named_json") else []
        if name in ("identified_json", "xtml") or (name == "channel_frames" and not body):
            alone = [body or "{}"]
        assert [call.arguments for call in result.calls] == alone + (["{}"] if more else [])
        if result.incomplete or alone:
            assert result.content == ""


@pytest.mark.parametrize("name", ("xtml", "glm_arg_tags", "kimi_k2_tokens"))
@FEW
@given(seed=st.integers(0, 2**32))
def test_no_token_markup_in_content(name, seed):
    """Delimiters that came as tokens while a call was open are in no content."""
    case, tokens = mutated(name, seed)
    tokenizer = tokenizer_of(name)
    parser = Parser(tokenizer.bound, case["tools"], STARTS[case["start"]])
    for token, data in tokens:
        inside = parser.out.open
        events = parser.feed(token, data)
        if inside and token in tokenizer.bound.symbols:
            assert not any(event.kind == CONTENT and data.decode() in event.text
                           for event in events)
    parser.finish()


@pytest.mark.parametrize("name", NAMES)
def test_no_token_markup_behind_a_call_that_broke(name):
    """Delimiters that came as tokens behind a call that is not finished are in no content."""
    tokenizer = CaseTokenizer(syntax_of({"id": name, "syntax": name}))
    tokenizer.bound.spelling = dict.fromkeys(tokenizer.bound.spelling, "\0")
    for seed in range(500):
        case, tokens = mutated(name, seed)
        parser = Parser(tokenizer.bound, case["tools"], STARTS[case["start"]])
        events = [event for token, data in tokens for event in parser.feed(token, data)]
        events += parser.finish()
        kinds = [event.kind for event in events]
        behind = events[kinds.index(INCOMPLETE):] if INCOMPLETE in kinds else []
        assert not any(event.kind == CONTENT and "\0" in event.text for event in behind), seed


DSML = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n%s</｜DSML｜tool_calls>"
DSML_BROKEN = DSML % '<｜DSML｜parameter name="x" string="true">a</｜DSML｜parameter>\nb\n'
ATEM = ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:'
BEHIND = [  # (syntax, an output whose first call breaks, what is content behind it)
    ("argument_tags", "<tool_call>f<arg_key></tool_call>a</arg_key>b<arg_value>c</arg_value>d"
     "</tool_call>e", "abde"),
    ("argument_tags", "<tool_call>f<arg_key></tool_call><arg_value>c", ""),
    ("argument_tags", "<tool_call>f<arg_key></tool_call><arg_key>a<tool_call>f</tool_call>b", "b"),
    ("tagged_json", '<tool_call>{"name": "f", "arguments": ]</tool_call>a<tool_call>b</tool_call>c',
     "ac"),
    ("tagged_json", '<tool_call>{"name": "f", "arguments": <tool_call>{}}', ""),
    ("dsml_tool_calls", DSML_BROKEN + "a" + DSML % "</｜DSML｜" + "b", "ab"),
    ("dsml_tool_calls", DSML_BROKEN + "a" + DSML % "b</｜DSML｜invoke>" + "c", "ac"),
    ("dsml_tool_calls", DSML_BROKEN + '<｜DSML｜invoke name="f>\n</｜DSML｜invoke>\na', "a"),
    ("dsml_tool_calls", DSML_BROKEN + '<｜DSML｜invoke name="f">\n<', ""),
    ("dsml_tool_calls", DSML_BROKEN + "a<<｜DSML｜tool_calls<>b</｜DSML｜ invoke\nc｜DSML｜",
     "a<<>b\nc"),
    ("dsml_tool_calls", DSML_BROKEN + '<｜DSML｜parameter name="x">a</｜DSML｜parameter>'
     "</｜DSML｜invoke></｜DSML｜tool_calls>b", "b"),
    ("recipient_frames", ATEM + '<|eot|>parameter name="x">a</atem:parameter>', ""),
]


@pytest.mark.parametrize("name, output, content", BEHIND)
@pytest.mark.parametrize("split", ["whole", "bytes"])
def test_content_behind_a_call_that_broke(name, output, content, split):
    """Markup is the rest of the call, whatever stands between it too; text behind it is content."""
    tokenizer = CaseTokenizer(CATALOG[name])
    start = Start.HEADER if name == "recipient_frames" else Start.CONTENT
    parser = Parser(tokenizer.bound, TOOLS, start)
    events = [event for token, data in tokenizer.split(output, split)
              for event in parser.feed(token, data)]
    result = gather([*events, *parser.finish()])
    assert len(result.incomplete) == 1 and result.content == content


@pytest.mark.parametrize("name, output, content", BEHIND)
def test_content_behind_a_broken_call_of_no_declared_tool(name, output, content):
    """The same, though nothing of the call is shown."""
    start = Start.HEADER if name == "recipient_frames" else Start.CONTENT
    tokenizer = CaseTokenizer(replace(CATALOG[name], unknown_names=Names.DROP))
    parser = Parser(tokenizer.bound, {"g": {}}, start)
    events = [event for token, data in tokenizer.split(output, "words")
              for event in parser.feed(token, data)]
    result = gather([*events, *parser.finish()])
    assert not result.calls and not result.incomplete and result.content == content


# A value's own text in each syntax that has text values, and the value.
VALUES = {
    "qwen_function_tags": ("<tool_call>\n<function=f>\n<parameter=x>\n", "\n</parameter>\n"
                           "</function>\n</tool_call>"),
    "glm_arg_tags": ("<tool_call>f<arg_key>x</arg_key><arg_value>", "</arg_value></tool_call>"),
    "dsml_v4": ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" '
                'string="true">', "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"),
    "xtml": ('<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" '
             'type="string"<|sep|>', "<|close|>argument<|sep|><|close|>call<|sep|>"),
}
TOOLS = {"f": {"type": "object", "properties": {"x": {"type": "string"}}}}


@pytest.mark.parametrize("name", sorted(VALUES))
@FEW
@given(value=st.text(max_size=60), seed=st.integers(0, 99))
def test_string_values_come_back_exactly(name, value, seed):
    """Also values that spell the syntax's single-token delimiters."""
    tokenizer = tokenizer_of(name)
    choose = random.Random(seed)
    value += choose.choice(("", *tokenizer.markers))
    before, after = VALUES[name]
    data, middle = value.encode(), []
    while data:
        size = choose.randrange(1, 6)
        middle.append((0, data[:size]))
        data = data[size:]
    tokens = [*tokenizer.split(before, "random", seed), *middle,
              *tokenizer.split(after, "random", seed)]
    case = {"tools": TOOLS, "start": "response" if name == "xtml" else "content"}
    result = parse(case, tokenizer, tokens)
    assert [json.loads(call.arguments) for call in result.calls] == [{"x": value}]


@FEW
@given(text=st.text(alphabet="`~ a\n\tb", max_size=80), cut=st.integers(0, 80))
def test_fences_do_not_depend_on_cuts(text, cut):
    whole, parts = Fences(), Fences()
    whole.read(text)
    parts.read(text[:cut])
    parts.read(text[cut:])
    assert (whole.inside, whole.line) == (parts.inside, parts.line)
    inside = False  # a naive reading, line by line
    fence = ""
    for line in text.split("\n")[:-1]:
        match = re.match(r" {0,3}(`{3,}|~{3,})(.*)$", line)
        if match and not inside and not ("`" in match[2] and match[1][0] == "`"):
            inside, fence = True, match[1]
        elif match and inside and match[1][0] == fence[0] and len(match[1]) >= len(fence) and (
                not match[2].strip(" \t")):
            inside = False
    assert whole.inside == inside


WORST = [  # (syntax, start, before, unit): patterns that are held back or looked at again
    ("function_tags", Start.CONTENT, "", "a"), ("function_tags", Start.CONTENT, "", "\n"),
    ("function_tags", Start.CONTENT, "", "<functio"),
    ("function_tags", Start.CONTENT, "", "<function=f\n"),
    ("function_tags", Start.CONTENT, "", "```\n"),
    ("bare_json", Start.CONTENT, "", '{"name": "f", '), ("bare_json", Start.CONTENT, "", "{"),
    ("dsml_tool_calls", Start.CONTENT, "", '<｜DSML｜invoke name="f">\n'),
    ("dsml_tool_calls", Start.CONTENT, DSML_BROKEN, "<｜DSML｜x"),
    ("dsml_tool_calls", Start.CONTENT, DSML_BROKEN, '<｜DSML｜invoke name="f"'),
    ("argument_tags", Start.CONTENT, "<tool_call>f<arg_key></tool_call>", "a</arg_key><arg_value>"),
    ("recipient_frames", Start.CONTENT, "", " to=f"),
    ("recipient_frames", Start.HEADER, " to=", "a"),
    ("recipient_frames", Start.HEADER, "<|message|>", " "),
    ("recipient_frames", Start.HEADER, ' to=f<|message|><atem:function_calls>\n<atem:invoke '
     'name="f">\n<atem:parameter name="x">', "</atem:parameter>\n"),
    ("tagged_json", Start.CONTENT, '<tool_call>{"name": "f", "arguments": ', "["),
    ("tagged_json", Start.CONTENT, '<tool_call>{"name": "f", "arguments": {"a": "', "\\ud83d"),
    ("tagged_json", Start.CONTENT, '<tool_call>{"name": "f", "arguments": "', "\\\\"),
    ("identified_json", Start.CONTENT,
     "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{", " "),
    ("xtml", Start.CONTENT, "", "<|open|>respons"),
    ("argument_tags", Start.CONTENT, "<tool_call>f\n<arg_key>y</arg_key><arg_value>", "1"),
]


@pytest.mark.parametrize("name, start, before, unit", WORST)
def test_symbols_looked_at_are_bounded(monkeypatch, name, start, before, unit):
    """What is held, and so looked at again, has a bound that does not grow with the output."""
    looked = []
    step = Flow.step

    def counted(self, buffer):
        looked.append(len(buffer))
        step(self, buffer)

    monkeypatch.setattr(Flow, "step", counted)
    tokenizer = CaseTokenizer(CATALOG[name])
    longest = []
    for size in (2_000, 8_000):
        looked.clear()
        parser = Parser(tokenizer.bound, TOOLS, start)
        for token, data in tokenizer.split(before + unit * (size // len(unit)), "bytes"):
            parser.feed(token, data)
        parser.finish()
        longest.append(max(looked, default=0))
        assert sum(looked) <= 300 * size
    assert longest[1] <= max(longest[0], 300)


@FEW
@given(data=st.binary(max_size=300), name=st.sampled_from(sorted(CATALOG)))
def test_any_bytes(data, name):
    """Any output is taken, and what is no markup comes out as lossy UTF-8."""
    bound = Vocabulary([bytes([i]) for i in range(256)]).bind(CATALOG[name])
    parser = Parser(bound, {}, Start.CONTENT)
    events = [event for byte in data for event in parser.feed(byte, bytes([byte]))]
    events += parser.finish()
    text = data.decode("utf-8", "replace")
    if not re.search(r"[<\[{]| to=|\sto=", text):
        assert "".join(event.text for event in events) == text
    assert all(event.kind != ARGUMENTS or event.index >= 0 for event in events)

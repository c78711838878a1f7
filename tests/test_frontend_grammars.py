"""Grammars of whole outputs: what they admit, the parser reads as the request demands."""

import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest

from helios_dod.frontend.grammars.calls import Calls, CallTool
from helios_dod.frontend.grammars.constrainer import check_together, demand_of
from helios_dod.frontend.grammars.endings import lark_ends
from helios_dod.frontend.grammars.envelope import Demand, Envelope
from helios_dod.frontend.grammars.structured import answer_of
from helios_dod.frontend.output.cases import CaseTokenizer, gather
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.marks import Vocabulary
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, END, REASONING, Start
from helios_dod.frontend.requests import ChatRequest, RequestError, decode_chat
from helios_dod.grammars.library import decode, limits
from tests.oracles.output_differential import SYNTAXES

WEATHER = {
    "type": "object", "additionalProperties": False, "required": ["city", "days"],
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]},
                   "days": {"type": "integer", "minimum": 1, "maximum": 9},
                   "note": {"type": "string", "maxLength": 4}, "exact": {"type": "boolean"}}}
TOOLS = {"weather": WEATHER, "stop": {"type": "object", "properties": {},
                                      "additionalProperties": False}}
CALLING = [name for name, syntax in CATALOG.items() if syntax.tool is not None]
STEPS_MAX = 600


class Letters:
    """A byte-level vocabulary whose last tokens are a syntax's delimiters and an end token."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        delimiters = [text.encode() for text in texts]
        self.tokens = [bytes([i]) for i in range(256)] + delimiters + [b"<end>"]
        self.eos = len(self.tokens) - 1
        self.bound_tokens = self.tokens
        self.special_token_ids = list(range(256, self.eos + 1))
        self.eos_token_id, self.bos_token_id = self.eos, None

    def __call__(self, text: Any) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def matcher(self, data: bytes, eos: list[int] | None = None) -> Any:
        tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self), eos_token=eos or [self.eos])
        matcher = llguidance.LLMatcher(tokenizer, decode(data).grammar, log_level=0,
                                       limits=limits())
        assert not matcher.is_error(), matcher.get_error()[:2000]
        return matcher

    def draw(self, data: bytes, seed: int) -> list[int]:
        """Random tokens that a grammar admits, up to the end; structure is drawn rather than long
        text."""
        matcher, rng, drawn = self.matcher(data), random.Random(seed), []
        for _ in range(STEPS_MAX):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            assert mask, "a grammar that no token goes on with"
            allowed = [i for i in range(len(self.tokens)) if mask >> i & 1]
            special = [i for i in allowed if i >= 256]
            pool = special if special and rng.random() < 0.6 else allowed
            plain = [i for i in pool if i in range(97, 123) or i >= 256 or i in b' "{}:,\n<>/=[]']
            token = rng.choice(plain or pool)
            if token == self.eos:
                return drawn
            drawn.append(token)
            assert matcher.consume_token(token)
        return []


def vocabulary_of(name: str, spelled: bool = False) -> tuple[Letters, Any]:
    """spelled: no delimiter is a token of its own."""
    syntax = CATALOG[name]
    letters = Letters(() if spelled else tuple(dict.fromkeys(syntax.tokens)))
    return letters, Vocabulary(letters.tokens).bind(syntax)


def calls(required: bool = True, several: bool = True) -> Demand:
    tools = tuple(CallTool(name, schema, True, f"tools[{i}].function")
                  for i, (name, schema) in enumerate(TOOLS.items()))
    return Demand(calls=Calls(tools, several, "tool_choice"), calls_required=required)


def read(bound: Any, tokens: list[int], table: list[bytes], start: Start, **options: Any) -> Any:
    """(content, reasoning, calls) of an output; calls are (name, arguments), finished ones."""
    parser = Parser(bound, TOOLS, start, **options)
    events = [*parser.feed_all(tokens, table), *parser.finish()]
    texts = {kind: "".join(event.text for event in events if event.kind == kind)
             for kind in (CONTENT, REASONING)}
    names = {event.index: event.text for event in events if event.kind == BEGIN}
    ended = {event.index for event in events if event.kind == END}
    arguments = {index: "".join(event.text for event in events
                                if event.kind == ARGUMENTS and event.index == index)
                 for index in names}
    assert ended == set(names), "a call that is not finished"
    return texts[CONTENT], texts[REASONING], [
        (names[index], json.loads(arguments[index])) for index in sorted(names)]


@pytest.mark.parametrize("name", CALLING)
def test_required_calls_are_read_as_calls(name):
    """Whatever the grammar of required calls admits is one or more calls by their schemas."""
    letters, bound = vocabulary_of(name)
    framed = type(bound.syntax.tool).__name__ == "FrameSyntax"
    start = Start.HEADER if framed else Start.CONTENT
    data = Envelope(bound, start, False, False).text(calls())
    complete = 0
    for seed in range(12):
        tokens = letters.draw(data, seed)
        if not tokens:
            continue
        content, _, made = read(bound, tokens, letters.tokens, start)
        assert made and not content.strip(), (tokens, content)
        for called, arguments in made:
            jsonschema.validate(arguments, TOOLS[called])
        complete += 1
    assert complete >= 3


@pytest.mark.parametrize("ends", [("<end>",), ("<|return|>", "<|call|>"), ("<|call|>", "<end>")])
def test_a_call_is_closed_whatever_ends_an_output(ends):
    """Only its closer finishes a body of arguments: the grammar lets no other end come."""
    letters, bound = vocabulary_of("channel_frames")
    eos = [letters.tokens.index(end.encode()) for end in ends]
    closer = letters.tokens.index(b"<|call|>")
    data = Envelope(bound, Start.HEADER, False, False).text(calls(several=False))
    matcher = letters.matcher(data, eos)
    text = ' to=functions.stop<|channel|>commentary <|constrain|>json<|message|>{}'
    tokens = CaseTokenizer(bound.syntax).ids_of(text)
    assert matcher.try_consume_tokens(tokens) == len(tokens) and not matcher.is_accepting()
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    assert [i for i in range(len(letters.tokens)) if allowed >> i & 1] == [closer]
    assert matcher.consume_token(closer) and matcher.is_accepting()
    assert read(bound, [*tokens, closer], letters.tokens, Start.HEADER) == ("", "", [("stop", {})])


@pytest.mark.parametrize("name", ["function_tag_lines", "tagged_json", "named_json",
                                  "argument_tags", "dsml_tool_calls", "think_tags"])
@pytest.mark.parametrize("start", [Start.CONTENT, Start.REASONING])
def test_a_structured_answer_follows_reasoning(name, start):
    """A document behind reasoning; delimiters spelled inside it are its own text."""
    letters, bound = vocabulary_of(name)
    request = ChatRequest(model="m", messages=[], structured_outputs=None)
    request.guided_json = {"type": "object", "additionalProperties": False, "required": ["a"],
                           "properties": {"a": {"const": "</think><tool_call>"}}}
    data = Envelope(bound, start, False, False).text(Demand(answer=answer_of(request)))
    complete = 0
    for seed in range(8):
        tokens = letters.draw(data, seed)
        if tokens:
            content, _, made = read(bound, tokens, letters.tokens, start, opaque=True)
            assert json.loads(content) == {"a": "</think><tool_call>"} and not made
            complete += 1
    assert complete >= 4


@pytest.mark.parametrize("name", ["recipient_frames", "channel_frames"])
def test_a_structured_answer_in_frames(name):
    """Reasoning frames, then the answer in its own; a tool's frame may come instead."""
    letters, bound = vocabulary_of(name)
    request = ChatRequest(model="m", messages=[])
    request.guided_choice = ["yes", "no"]
    for demand, start in ((Demand(answer=answer_of(request)), Start.HEADER),
                          (Demand(answer=answer_of(request)), Start.REASONING)):
        data = Envelope(bound, start, False, False).text(demand)
        complete = 0
        for seed in range(8):
            tokens = letters.draw(data, seed)
            if tokens:
                content, _, made = read(bound, tokens, letters.tokens, start, opaque=True)
                assert content in ("yes", "no") and not made
                complete += 1
        assert complete >= 4


@pytest.mark.parametrize("start", [Start.CONTENT, Start.REASONING, Start.RESPONSE])
def test_channels_of_an_element_stream(start):
    """From wherever the prompt left it: a constrained answer, or calls instead of it."""
    letters, bound = vocabulary_of("xtml")
    request = ChatRequest(model="m", messages=[])
    request.guided_choice = ["yes", "<|close|>"]
    answer = answer_of(request)
    for demand, answers in ((Demand(answer=answer), True), (calls(), False),
                            (Demand(answer=answer, calls=calls(False).calls), None),
                            (calls(False), None)):
        data = Envelope(bound, start, False, False).text(demand)
        seen = set()
        for seed in range(8):
            tokens = letters.draw(data, seed)
            if tokens:
                content, _, made = read(bound, tokens, letters.tokens, start)
                seen.add(bool(made))
                assert demand.answer is None or made or content in ("yes", "<|close|>")
                assert not (made and demand.answer is not None and content)
        assert seen == ({True, False} if answers is None else {not answers})


def written(name: str, start: Start, spelled: bool, answer: str = "") -> str:
    """An output behind some reasoning, as its template writes it: an answer, or a call."""
    calls = [] if answer else [("weather", {"city": "Oslo", "days": 3, "note": "a b"}),
                               ("stop", {})][:1 if name == "bare_json" else 2]
    if name == "channel_frames":
        frame = f"<|channel|>final<|message|>{answer}" if answer else (
            "<|end|><|start|>assistant".join(
                f" to=functions.{tool}<|channel|>commentary <|constrain|>json<|message|>"
                f"{json.dumps(arguments)}" for tool, arguments in calls))
    elif name == "named_json" and spelled and calls:  # without a token the name has no end
        frame = "[TOOL_CALLS][" + ", ".join(
            json.dumps({"name": tool, "arguments": arguments}) for tool, arguments in calls) + "]"
    else:
        write = SYNTAXES[name.replace("tag_lines", "tags").removesuffix("_lines")][0]
        frame = write({"content": answer, "reasoning": "", "calls": calls})
    if name == "xtml":
        return {Start.CONTENT: "", Start.RESPONSE: "",
                Start.REASONING: "hm<|close|>think<|sep|>"}[start] + (
            "" if start == Start.RESPONSE else "<|open|>response<|sep|>") + frame
    if name in ("recipient_frames", "channel_frames"):
        frame = frame.removesuffix("<|eot|>")
        end = "<|eom|>" if name == "recipient_frames" else "<|end|>"
        if name == "channel_frames" and calls:
            frame += "<|call|>"
        if start == Start.CONTENT:
            return answer or f"{end}<|start|>assistant{frame}"
        return ("" if start == Start.HEADER else f"hm{end}<|start|>assistant") + frame
    think = CATALOG[name].think
    return (f"hm{think.close}" if think and start == Start.REASONING else "") + frame


def resplit(tokens: list[int], table: list[bytes], rng: random.Random) -> list[tuple[int, bytes]]:
    """The same output, whose text is other tokens."""
    parts: list[tuple[int, bytes]] = []
    for token in tokens:
        if token < 256 and parts and parts[-1][0] < 0 and rng.random() < 0.8:
            parts[-1] = (-1, parts[-1][1] + table[token])
        else:
            parts.append((token if token >= 256 else -1, table[token]))
    return parts


STARTS_OF = {"xtml": (Start.CONTENT, Start.REASONING, Start.RESPONSE),
             "recipient_frames": (Start.HEADER, Start.REASONING, Start.CONTENT),
             "channel_frames": (Start.HEADER, Start.REASONING, Start.CONTENT),
             "bare_json": (Start.CONTENT,)}
BOTH = [(name, start, spelled) for name in CALLING for spelled in (False, True)
        for start in STARTS_OF.get(name, (Start.CONTENT, Start.REASONING))
        if not (name == "xtml" and spelled)]  # what ends its answer has to be a token


@pytest.mark.parametrize(("name", "start", "spelled"), BOTH)
def test_a_structured_answer_or_a_call(name, start, spelled):
    """With tools beside a schema the model writes either: a call is no content, and an answer is
    content also where it spells a call; both however they are cut into tokens."""
    letters, bound = vocabulary_of(name, spelled)
    values = [{"a": written(name, start, spelled) + "</think><think>"},
              {"name": "stop", "parameters": {}, "b": {"name": "stop", "parameters": {}}}]
    answers = [json.dumps(value, ensure_ascii=False) for value in values]
    data = Envelope(bound, start, False, False).text(demand_of(decode_chat(body(
        response_format={"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"enum": values}}},
        tools=[{"type": "function", "function": {"name": tool, "parameters": schema}}
               for tool, schema in TOOLS.items()]))))
    markers = {} if spelled else {text: i for i, text in enumerate(letters.tokens) if i >= 256}
    for answer in ("", *answers):
        tokens, rest = [], written(name, start, spelled, answer)
        inside = rest.partition(answer) if answer else (rest, "", "")
        for place, text in enumerate(inside):
            pieces = [(None, text)] if place == 1 else CaseTokenizer(bound.syntax).pieces(text)
            for _, part in pieces:
                marker = markers.get(part.encode()) if place != 1 else None
                tokens += list(part.encode()) if marker is None else [marker]
        matcher = letters.matcher(data)
        assert matcher.try_consume_tokens(tokens) == len(tokens), rest
        assert matcher.is_accepting()
        for cut in range(20):
            rng = random.Random(cut)
            parser = Parser(bound, TOOLS, start, opaque=True)
            parts = resplit(tokens, letters.tokens, rng) if cut else [
                (token, letters.tokens[token]) for token in tokens]
            events = [event for token, part in parts for event in parser.feed(token, part)]
            result = gather([*events, *parser.finish()])
            made = [(call.name, json.loads(call.arguments)) for call in result.calls]
            assert result.content == answer and not result.incomplete
            if answer:
                assert not made
            else:
                assert made[0] == ("weather", {"city": "Oslo", "days": 3, "note": "a b"})
                assert made[1:] == ([] if name == "bare_json" else [("stop", {})])


UNIONS = {
    "type": "object", "required": ["a", "b", 'q"&'], "$defs": {"n": {"type": ["integer", "null"]}},
    "properties": {"a": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "string", "maxLength": 2}]},
                   "b": {"enum": ["", "x", 3, None, [1]]},
                   "c": {"allOf": [{"type": "boolean"}, {"const": True}]},
                   'q"&': {"type": "object", "properties": {"k": {"type": "number"}},
                           "additionalProperties": False}}}


def test_types_of_an_element_are_those_of_its_schema():
    """Unions become one element of several types; attributes are escaped."""
    letters, bound = vocabulary_of("xtml")
    tools = (CallTool("weather", UNIONS, True, "tools[0].function"),)
    data = Envelope(bound, Start.RESPONSE, False, False).text(
        Demand(calls=Calls(tools, False, "tool_choice"), calls_required=True))
    kinds = set()
    for seed in range(30):
        tokens = letters.draw(data, seed)
        if not tokens:
            continue
        text = b"".join(letters.tokens[token] for token in tokens).decode()
        assert 'key="q&quot;&amp;" type="object"' in text
        _, _, ((name, arguments),) = read(bound, tokens, letters.tokens, Start.RESPONSE)
        assert name == "weather"
        jsonschema.validate(arguments, UNIONS)
        kinds |= {type(arguments["a"]), type(arguments["b"]), type(arguments.get("c"))}
    assert kinds >= {int, str, type(None), list, bool}


def demanded(name, schema):
    """The grammar of calls of one tool, in the syntax of that name."""
    tool = CallTool("f", schema, True, "tools[0].function")
    return Envelope(vocabulary_of(name)[1], Start.RESPONSE if name == "xtml" else Start.CONTENT,
                    False, False).text(Demand(calls=Calls((tool,), False, "tool_choice"),
                                              calls_required=True))


def test_alternatives_behind_references_are_counted():
    definitions = {"0": {"type": "string"}, **{
        f"{i}": {"anyOf": [{"$ref": f"#/$defs/{i - 1}"}] * 8} for i in range(1, 15)}}
    with pytest.raises(RequestError, match=r"^'tools\[0\]\.function\.parameters' has more than "
                                           "4000 alternatives of one argument"):
        demanded("xtml", {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/14"}}})


@pytest.mark.parametrize("name", ["xtml", "function_tag_lines", "tagged_json"])
@pytest.mark.parametrize("schema", [
    {"required": 3}, {"properties": {"a": {"type": [[1]]}}}, {"properties": {"a": {"enum": 3}}},
    {"properties": {"a": {"type": "string", "maxLength": "x"}}}, {"properties": {"a": 3}}])
def test_parameters_that_are_no_schema_are_refused(name, schema):
    with pytest.raises(RequestError, match=r"^'tools\[0\]\.function\.parameters' is not a JSON"):
        demanded(name, schema)


DROPPED = {"not": {"anyOf": [{"$ref": "#/$defs/5"}, {"pattern": "a"}]}, "$defs": {
    "0": {"type": "string"}, **{f"{i}": {"properties": {
        f"{j}": {"$ref": f"#/$defs/{i - 1}"} for j in range(4)}} for i in range(1, 6)}}}


def test_schemas_of_one_request_are_counted_together():
    """What each of them may cost, a thousand of them may not."""
    tag = {"structures": [{"begin": "<a>", "schema": DROPPED, "end": "</a>"}] * 200,
           "triggers": ["<a>"]}
    with pytest.raises(RequestError, match="have more than 500000 parts once"):
        answer_of(decode_chat(body(structured_outputs={"structural_tag": tag})))
    with pytest.raises(RequestError, match=r"^'tools\[0\].*have more than 500000 parts once"):
        demanded("function_tag_lines", {"$defs": DROPPED["$defs"], "properties": {
            f"p{i}": {"type": "object", "not": DROPPED["not"]} for i in range(200)}})
    large = {"properties": {f"p{i}": {"type": "object"} for i in range(100)},
             "$defs": {"a": {"description": "x" * 50_000}}}
    with pytest.raises(RequestError, match="have more than 4194304 bytes, definitions counted"):
        demanded("function_tag_lines", large)


def test_an_empty_word_of_an_enum():
    """It is one of the words, also where values stand as plain text."""
    letters, bound = vocabulary_of("function_tag_lines")
    schema = {"type": "object", "required": ["e"], "properties": {"e": {"enum": ["", "on"]}}}
    data = Envelope(bound, Start.CONTENT, False, False).text(Demand(calls=Calls(
        (CallTool("f", schema, True, "tools[0].function"),), False, "tool_choice"),
        calls_required=True))
    found = {b"".join(letters.tokens[token] for token in letters.draw(data, seed)).decode()
             .partition("<parameter=e>")[2].partition("</parameter>")[0].strip("\n")
             for seed in range(16)}
    assert found <= {"", "on"} and "on" in found


@pytest.mark.parametrize("name", ["tagged_json", "named_json", "bare_json"])
def test_arguments_are_an_object_where_a_schema_allows_more(name):
    """Of a list of types: null is no call's arguments."""
    letters, bound = vocabulary_of(name)
    schema = {"type": ["null", "object"], "maxProperties": 0}
    tool = CallTool("f", schema, True, "tools[0].function")
    data = Envelope(bound, Start.CONTENT, False, False).text(Demand(
        calls=Calls((tool,), False, "tool_choice"), calls_required=True))
    for seed in range(16):
        text = b"".join(letters.tokens[token] for token in letters.draw(data, seed)).decode()
        assert "null" not in text and "{" in text.partition("f")[2], text


@pytest.mark.parametrize("budget", [0, 5])
@pytest.mark.parametrize(("name", "closes", "answer"), [
    ("think_tags", "</think>", "b"),
    ("xtml", "<|close|>", "think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|><|close|>"
                          "message<|sep|>"),
    ("recipient_frames", "<|eom|>", "<|start|>assistant to=user<|message|>b")])
def test_a_thinking_budget_closes_reasoning(name, closes, answer, budget):
    letters, bound = vocabulary_of(name)
    data = Envelope(bound, Start.REASONING, False, False).text(Demand(thinking_budget=budget))
    matcher = letters.matcher(data)
    close = letters.tokens.index(closes.encode())
    for _ in range(budget):
        assert matcher.consume_token(ord("a"))
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    assert [i for i in range(len(letters.tokens)) if mask >> i & 1] == [close]
    rest = CaseTokenizer(bound.syntax).pieces(answer)
    assert matcher.consume_token(close)
    for token, part in rest:
        ids = list(part.encode()) if token is None else [letters.tokens.index(part.encode())]
        assert matcher.try_consume_tokens(ids) == len(ids), part
    assert matcher.is_accepting()


@pytest.mark.parametrize("name", SYNTAXES)
def test_tools_may_still_be_called_under_a_budget(name):
    """What constrains reasoning leaves the calls that a request declares possible."""
    write, start, *_ = SYNTAXES[name]
    letters, bound = vocabulary_of(name)
    demand = demand_of(decode_chat(body(thinking_token_budget=5, tools=[
        {"type": "function", "function": {"name": tool, "parameters": schema}}
        for tool, schema in TOOLS.items()])))
    assert demand is not None and not demand.calls_required
    data = Envelope(bound, start, False, False).text(demand)
    for content in ("", "Ok."):
        for calls in ([], [("stop", {})]):
            text = write({"content": content, "reasoning": "", "calls": calls})
            dropped = text.removesuffix("<|eot|>")  # the end of the output
            tokens = [token for cut, part in CaseTokenizer(bound.syntax).pieces(dropped)
                      for token in (list(part.encode()) if cut is None else
                                    [letters.tokens.index(part.encode())])]
            matcher = letters.matcher(data)
            if not tokens or (name == "recipient_frames" and not (content or calls)):
                continue
            assert matcher.try_consume_tokens(tokens) == len(tokens), text
            assert matcher.is_accepting(), text


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}],
                       **fields}).encode()


def deep(count: int) -> dict[str, Any]:
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}}


def nest(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(count):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(("fields", "words"), [
    ({"response_format": {"type": "xml"}}, "must be text, json_object"),
    ({"response_format": {"type": "json_schema"}}, "Missing required parameter"),
    ({"guided_json": "{"}, "not valid JSON"),
    ({"guided_json": {"x-guidance": {}}}, "which is the server's"),
    ({"guided_json": {"$ref": "http://example.org/a"}}, "only references within"),
    ({"guided_json": deep(200)}, "more than 128 references in a row"),
    ({"guided_json": nest(120)}, "nested deeper than 96"),
    ({"guided_json": {"minLength": 10**9}}, "minLength 1000000000; 0 to 100000"),
    ({"guided_json": {"pattern": "a{1,999999}"}}, "repeats 999999 times"),
    ({"guided_json": {"description": "x" * 130_000}}, "at most 120000 are accepted"),
    ({"guided_json": {"maximum": 2**53 + 1}}, "asks for maximum 9007199254740993, which cannot"),
    ({"guided_json": {"items": {"exclusiveMinimum": 1e19}}}, "asks for exclusiveMinimum 1e"),
    ({"guided_json": {"$ref": "#/" + "x" * 2000}}, "a reference of 2002 characters; at most 1024"),
    ({"guided_json": {"$ref": "#"}}, "so that no answer ends"),
    ({"guided_json": {"type": "object", "required": ["a"], "properties": {
        "a": {"anyOf": [{"$ref": "#"}, False]}}}}, "so that no answer ends"),
    ({"guided_json": {"type": "array", "minItems": 1, "items": {"$ref": "#"}}}, "no answer ends"),
    ({"guided_grammar": 'start: "a" start | ("b" start)+'}, "so that no answer ends"),
    ({"guided_grammar": 'root ::= "a" other\nother ::= [x] root'}, "so that no answer ends"),
    ({"guided_regex": "a" * 20_000}, "at most 16384 are accepted"),
    ({"guided_choice": []}, "at least one text"),
    ({"guided_choice": ["a"] * 5000}, "at most 4000 are accepted"),
    ({"guided_grammar": "start: x\n" + "x: x\n" * 3000}, "at most 2000 are accepted"),
    ({"guided_grammar": "%import common.INT\nstart: INT"}, "imports other grammars"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "cannot be combined with 'guided_regex'"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "holds json, regex; give one"),
    ({"structured_outputs": {}}, "holds no constraint"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
     "both constrain the answer"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "needs 'structures' and 'triggers'"),
    ({"structured_outputs": {"structural_tag": {"structures": [
        {"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b>"]}}},
     "that no trigger begins"),
    ({"structured_outputs": {"structural_tag": {"format": {"type": "qwerty"}}}},
     "format of type 'qwerty'"),
    *(({"structured_outputs": {"structural_tag": {"format": {"type": "grammar", "grammar": text}}}},
       words) for text, words in (
        ("root ::= (((", "neither a Lark nor a GBNF grammar"),
        ("root ::= foo", "neither a Lark nor a GBNF grammar"),
        ("start: start", "so that no answer ends"),
        ("%import common.INT\nstart: INT", "imports other grammars"))),
])
def test_what_is_out_of_bounds_is_refused_by_name(fields, words):
    request = decode_chat(body(**fields))
    with pytest.raises(RequestError, match=words) as caught:
        answer_of(request)
    assert caught.value.param and caught.value.param.split(".")[0] in fields


@pytest.mark.parametrize("fields", [
    {"stop": "a"}, {"stop": ["a"]}, {"ignore_eos": True}, {"min_tokens": 1},
])
def test_a_constrained_answer_ends_where_its_grammar_does(fields):
    with pytest.raises(RequestError, match="cannot be combined with 'response_format'") as caught:
        check_together(decode_chat(body(**fields)), "response_format")
    assert caught.value.param in fields
    for allowed in ({"stop": []}, {"stop_token_ids": [1]}, {"stop_token_sequences": [[1, 2]]}):
        check_together(decode_chat(body(**allowed)), "response_format")


@pytest.mark.parametrize(("fields", "good", "bad"), [
    ({"response_format": {"type": "json_object"}}, '{"a": [1, null]}', "[1]"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "n", "schema": {"type": "array", "items": {"type": "integer"}}}}}, "[1, 2]",
     '["a"]'),
    ({"structured_outputs": {"regex": r"\d{2}/[a-f]+"}}, "12/abc", "1/abc"),
    ({"structured_outputs": {"choice": ['say "hi"', "no\n"]}}, 'say "hi"', "no"),
    ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]+'}}, "x12", "12"),
    ({"structured_outputs": {"grammar": 'start: "x" INT\nINT: /[0-9]+/'}}, "x12", "12"),
    ({"structured_outputs": {"json": '{"const": 3}'}}, "3", "4"),
    ({"structured_outputs": {"structural_tag": {"structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f="]}}}, "text <f=a>12</f> more", "text <f=a>x</f>"),
    ({"structured_outputs": {"structural_tag": {"format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "A"}, {"type": "tag", "begin": "<", "end": ">",
                                                  "content": {"type": "any_text"}}]}}}},
     "A<bcd>", "B<bcd>"),
])
def test_what_is_asked_for_is_admitted(fields, good, bad):
    request = decode_chat(body(**fields))
    letters = Letters(())
    data = Envelope(None, Start.CONTENT, False, False).text(Demand(answer=answer_of(request)))

    def fits(text: str) -> bool:
        matcher = letters.matcher(data)
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert fits(good) and not fits(bad)


ENDING = (
    {"type": "array", "items": {"$ref": "#"}}, {"type": ["null", "array"], "minItems": 1,
                                                "items": {"$ref": "#"}},
    {"required": ["a"], "properties": {"a": {"$ref": "#"}}},
    {"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [
        {"$ref": "#"}, {"type": "null"}]}}},
    {"type": "object", "properties": {"a": {"$ref": "#"}}})
LARK_ENDING = (
    'start: "a" start?', 'start: "a" start | "b"', 'start: x* "b"\nx: "c" x', 'start: x~0..2\nx: x',
    'start: [x] "y"\nx: x', 'start: (start | "a") "b"', 'start: X\nX: /a/ | X', 'start: %json {}',
    'start: "a" -> start\n// start: start', "start: <|x|> start?", 'start: x{0,2} "y"\nx: x')


def test_grammars_whose_answers_may_end():
    for schema in ENDING:
        assert answer_of(decode_chat(body(guided_json=schema)))
    for text in LARK_ENDING:
        assert lark_ends(text), text
    for text in ("start: start", 'start: x~1..2\nx: x "a"', 'start: (x | y)\nx: x\ny: "a" x',
                 'start: "a" x+\nx[lazy]: "b" x', "start: x{1,2}\nx.2: x"):
        assert not lark_ends(text), text
    chain = "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(1900))
    assert lark_ends(chain) and not lark_ends(chain + "r1900: r0\n")  # each rule is read once


@pytest.mark.parametrize("text", ['"a"{' + " " * 100_000 + "x", "_" * 100_000, "?" * 100_000,
                                  "a[" * 50_000, "~ " * 50_000, '"a' * 50_000])
def test_a_grammar_is_read_once(text):
    assert lark_ends(f"start: {text}")  # by an expression that reads again, in minutes or years


@pytest.mark.parametrize(("limits", "good", "bad"), [
    ({"maximum": 2**63 - 1}, 2**63 - 1, 2**63), ({"minimum": -(2**62)}, -(2**62), -(2**62) - 1),
    ({"minimum": 10**15 + 1, "maximum": 10**15 + 3}, 10**15 + 2, 10**15 + 4),
    ({"exclusiveMaximum": 2**53}, 2**53 - 1, 2**53), ({"minimum": 1e16}, 10**17, 10**15)])
def test_bounds_of_numbers_hold_exactly(limits, good, bad):
    letters = Letters(())
    data = Envelope(None, Start.CONTENT, False, False).text(Demand(answer=answer_of(decode_chat(
        body(guided_json={"type": "integer", **limits})))))
    for value, admitted in ((good, True), (bad, False)):
        matcher, tokens = letters.matcher(data), list(str(value).encode())
        fits = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert fits == admitted, value


def test_white_space_ends():
    """A model cannot go on with white space for ever."""
    request = decode_chat(body(response_format={"type": "json_object"}))
    letters = Letters(())
    matcher = letters.matcher(Envelope(None, Start.CONTENT, False, False).text(
        Demand(answer=answer_of(request))))
    assert matcher.consume_token(ord("{"))
    assert matcher.try_consume_tokens(list(b"\n" + b" " * 100)) < 60

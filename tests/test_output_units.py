"""Parts of output parsing: types from schemas, text to JSON, syntax data, ids, start states."""

import json
from dataclasses import replace

import pytest

from helios_dod.contract.strict import check_known
from helios_dod.contract.wire import contract_pb2
from helios_dod.errors import UserError
from helios_dod.frontend.output.cases import CaseTokenizer, gather
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.families.tags import FUNCTIONS
from helios_dod.frontend.output.marks import Marks, Vocabulary
from helios_dod.frontend.output.output import call_id
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.schemas import ToolSet
from helios_dod.frontend.output.start import start_state
from helios_dod.frontend.output.syntax import OutputSyntax, ThinkSyntax, openers_of
from helios_dod.frontend.output.terms import (
    ARGUMENTS,
    BEGIN,
    CONTENT,
    END,
    INCOMPLETE,
    Event,
    Start,
)
from helios_dod.frontend.output.values import by_schema, escape_cut, is_object, json_or_text
from helios_dod.frontend.output.wire import from_contract, selectors, to_contract
from helios_dod.frontend.syntaxes import without_tools


def value(schema, text, json_first=True, python=False, **root):
    tools = ToolSet({"f": {"properties": {"x": schema}, **root}})
    return json.loads(by_schema(text, tools.admitted("f", "x"), json_first, python))


@pytest.mark.parametrize("schema, text, expected", [
    ({"type": "string"}, "7", "7"), ({"type": "integer"}, "7", 7),
    ({"type": "integer"}, "7.5", "7.5"), ({"type": "integer"}, "+007", 7),
    ({"type": "number"}, "1e3", 1000.0), ({"type": "number"}, "12ab", "12ab"),
    ({"type": "number"}, '"12"', 12), ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "True", "True"), ({"type": "null"}, "null", None),
    ({"type": ["string", "null"]}, "null", None), ({"type": ["string", "null"]}, '"null"', "null"),
    ({"type": "string", "nullable": True}, "null", None),
    ({"type": ["string", "integer"]}, "7", 7), ({"type": ["string", "integer"]}, "true", "true"),
    ({"type": ["string", "object"]}, "[1]", "[1]"), ({"enum": ["7", 8]}, "7", "7"),
    ({"enum": ["7", 8]}, "8", 8), ({"enum": [1, "a"], "type": ["number", "string"]}, "1.0", 1.0),
    ({"const": 7}, "7", 7), ({"const": "null"}, "null", "null"), ({"const": {"a": 1}}, '{"a": 1}',
                                                                  {"a": 1}),
    ({"anyOf": [{"type": "null"}, {"type": "array"}]}, "[1, 2]", [1, 2]),
    ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "7", 7),
    ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "7", 7),
    ({"properties": {}}, '{"a": 1}', {"a": 1}), ({"items": {}}, "[1]", [1]),
    ({}, "123_456", "123_456"), ({}, "007", "007"), ({}, '{"a": 1}', {"a": 1}),
    (True, "7", 7), ({"type": "none such"}, "7", 7), ({"type": 5, "anyOf": 3}, "x", "x"),
])
def test_values_by_schema(schema, text, expected):
    got = value(schema, text)
    assert got == expected and type(got) is type(expected)


def test_unions_read_as_text():
    either = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert value(either, "12", json_first=False) == "12"
    assert value({"type": ["string", "null"]}, "null", json_first=False) is None
    assert value({"enum": ["a", 1]}, "1", json_first=False) == 1


def test_python_spellings():
    assert value({"type": "boolean"}, "False", python=True) is False
    assert value({"type": ["integer", "null"]}, "None", python=True) is None
    assert value({"type": "array"}, "['a', True, None, {'b': 1}]", python=True) == [
        "a", True, None, {"b": 1}]
    for text in ("[" * 300, "[" + "-" * 3000 + "1]", "['a'", "{1: set()}"):
        assert value({"type": "array"}, text, python=True) == text


def test_numbers_and_documents_pass_as_written():
    big = "9" * 5000
    tools = ToolSet({"f": {"properties": {"x": {"type": "integer"}, "y": {"type": "object"}}}})
    assert by_schema(big, tools.admitted("f", "x"), True, False) == big
    document = '{"a":  ' + big + ', "b": 1.10}'
    assert by_schema(document, tools.admitted("f", "y"), True, False) == document
    deep = "[" * 100_000
    assert json.loads(json_or_text(deep)) == deep


def test_listed_values_beside_what_python_cannot_read():
    listed = {"enum": ["a", None, [1], 10**4200, [2] * 5000]}
    for depth in range(900, 1100):  # one of them is too deep for one reader and not for the other
        text = "[" * depth + "]" * depth
        assert value(listed, text) == text
    digits = "9" * 4400
    assert value(listed, digits) == digits
    assert value(listed, "[" + "1, " * 5000 + "1]") == "[" + "1, " * 5000 + "1]"
    assert value(listed, json.dumps([2] * 5000)) == [2] * 5000


def test_references():
    for place in ("$defs", "definitions"):
        root = {place: {"a/b~c": {"type": "integer"}, "loop": {"$ref": f"#/{place}/loop"}}}
        assert value({"$ref": f"#/{place}/a~1b~0c"}, "7", **root) == 7
        assert value({"$ref": f"#/{place}/loop"}, "auto", **root) == "auto"
    assert value({"$ref": "#/nowhere"}, "x") == "x"
    tools = ToolSet({"f": {"$ref": "#/$defs/args", "$defs": {"args": {
        "properties": {"x": {"type": "string"}}}}}})
    assert tools.admitted("f", "x").text_only
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}
    assert value({"$ref": "#/$defs/d0"}, "x", **{"$defs": chain}) == "x"


def test_wide_schemas_are_read_in_part():
    wide = {"anyOf": [{"allOf": [{"type": "integer"}] * 300}] * 300}
    assert value(wide, "x") == "x"


def test_properties_of_branches():
    branches = [{"properties": {"x": {"type": kind}}} for kind in ("string", "integer")]
    for word in ("anyOf", "oneOf", "allOf"):
        tools = ToolSet({"f": {word: branches}})
        assert tools.admitted("f", "x").types == {"string", "integer"}
    assert not ToolSet({"f": {}}).admitted("f", "x").known
    assert ToolSet({"f": {"additionalProperties": {"type": "integer"}}}).admitted(
        "f", "x").types == {"integer"}


@pytest.mark.parametrize("text, whole", [
    ("ab", "ab"), ("a\\", "a"), ("a\\\\", "a\\\\"), ("a\\u00", "a"), ("a\\u00e9", "a\\u00e9"),
    ("\\ud83d", ""), ("\\ud83d\\", ""), ("\\ud83d\\ude0", ""), ("\\ud83d\\ude00", "\\ud83d\\ude00"),
    ("\\ud83dx", "\\ud83dx"), ("\\\\u00", "\\\\u00"), ("\\uzz", "\\uzz"), ("\\n\\", "\\n"),
])
def test_escapes_are_not_cut(text, whole):
    assert text[:escape_cut(text)] == whole


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_syntax_data_survives_the_contract(name):
    syntax = CATALOG[name]
    message = to_contract(syntax, contract_pb2.OutputSyntax())
    check_known(message, "output")
    again = contract_pb2.OutputSyntax.FromString(message.SerializeToString())
    assert from_contract(again) == syntax
    tool, reasoning = selectors(syntax)
    assert contract_pb2.ToolSyntax.Value(tool) and contract_pb2.ReasoningSyntax.Value(reasoning)


def test_bad_syntax_data_is_refused():
    message = to_contract(CATALOG["function_tags"], contract_pb2.OutputSyntax())
    message.tags.invoke_close = ""
    with pytest.raises(UserError, match="invoke_close is empty"):
        from_contract(message)
    message.tags.invoke_close = "<tool_call>x"
    message.tags.parameter_open = "<tool_call>"
    with pytest.raises(UserError, match="told apart"):
        from_contract(message)
    message = to_contract(CATALOG["function_tags"], contract_pb2.OutputSyntax())
    message.think.terminals.markers.append("<function=")
    with pytest.raises(UserError, match=r"one of <tool_call>, got '<function='"):
        from_contract(message)
    message = to_contract(CATALOG["xtml"], contract_pb2.OutputSyntax())
    message.think.open, message.think.close = "<a>", "</a>"
    with pytest.raises(UserError, match="own reasoning"):
        from_contract(message)
    message.call_ids = 77
    with pytest.raises(UserError, match="call_ids"):
        from_contract(message)


def parse(syntax, text, tools=None, start=Start.CONTENT, **options):
    tokenizer = CaseTokenizer(syntax)
    parser = Parser(tokenizer.bound, tools, start, **options)
    events = []
    for token, data in tokenizer.split(text, "bytes"):
        events += parser.feed(token, data)
    return [*events, *parser.finish()]


def test_a_new_syntax_is_only_data():
    tool = replace(FUNCTIONS, wrapper_open="[[calls", wrapper_close="calls]]", invoke_open="{{",
                   invoke_close="{{/}}", parameter_open="::", parameter_close="::/")
    tool = replace(tool, invoke_open="@call ", invoke_close="@end", parameter_open="@set ",
                   parameter_close="@done")
    syntax = OutputSyntax(tool, ThinkSyntax("(((", ")))"))
    result = gather(parse(syntax, "(((hm)))Hi [[calls@call f>@set x>1@done@endcalls]]"))
    assert (result.reasoning, result.content) == ("hm", "Hi ")
    assert [(call.name, call.arguments) for call in result.calls] == [("f", '{"x": "1"}')]


@pytest.mark.parametrize("name", [name for name, s in CATALOG.items() if s.tool and s.think])
def test_what_ends_reasoning_is_data(name):
    """An opener ends reasoning where it is declared; cores of before the field declare them all."""
    syntax = CATALOG[name]
    assert syntax.think.terminals.markers == openers_of(syntax.tool) != ()
    message = to_contract(syntax, contract_pb2.OutputSyntax())
    message.think.ClearField("terminals")
    assert from_contract(message) == syntax
    message.think.terminals.SetInParent()
    never = from_contract(message)
    assert never.think.terminals.markers == ()
    assert without_tools(syntax).think.terminals.markers == ()
    for opener in openers_of(syntax.tool):
        text = f"hm{opener}"
        reasoning = gather(parse(never, text, start=Start.REASONING)).reasoning
        assert reasoning == text
        assert gather(parse(syntax, text, start=Start.REASONING)).reasoning == "hm"


def test_wrapping_newlines_are_data():
    text = "\nPlan.\n</think>\n\nAnswer"
    kept = gather(parse(CATALOG["think_tags"], "<think>" + text))
    assert (kept.reasoning, kept.content) == ("\nPlan.\n", "\n\nAnswer")
    taken = gather(parse(CATALOG["think_tag_lines"], "<think>" + text))
    assert (taken.reasoning, taken.content) == ("Plan.", "Answer")


def test_strings_stream_as_they_come():
    events = parse(CATALOG["function_tags"], "<tool_call>\n<function=f>\n<parameter=x>\nab\"c")
    assert events == [
        Event(BEGIN, "f", 0, call_id(0, 0, False)), Event(ARGUMENTS, '{"x": "', 0),
        Event(ARGUMENTS, "a", 0), Event(ARGUMENTS, "b", 0), Event(ARGUMENTS, '\\"', 0),
        Event(ARGUMENTS, "c", 0), Event(INCOMPLETE, "", 0)]


def test_zero_arguments_come_once():
    kinds = [(event.kind, event.text) for event in parse(
        CATALOG["argument_tags"], "<tool_call>f</tool_call>")]
    assert kinds == [(BEGIN, "f"), (ARGUMENTS, "{}"), (END, "")]


def test_call_ids():
    ids = {call_id(seed, index, short) for seed in range(40) for index in range(40)
           for short in (False, True)}
    assert len(ids) == 3200
    assert all(one.removeprefix("call_").isalnum() for one in ids)
    events = parse(CATALOG["named_json"], "[TOOL_CALLS]f{}", seed=5)
    assert events[0].id == call_id(5, 0, True) and len(events[0].id) == 9


def test_calls_past_the_most_are_left_out():
    text = "<tool_call>f</tool_call>" * 3
    result = gather(parse(CATALOG["argument_tags"], text, calls_max=1))
    assert [call.name for call in result.calls] == ["f"] and result.content == ""


def test_an_opaque_answer_keeps_its_tags():
    answer = '{"a": "<tool_call> </think> <think>"}'
    for name in ("function_tags", "tagged_json", "argument_tags", "think_tags"):
        result = gather(parse(CATALOG[name], "hm</think>" + answer, start=Start.REASONING,
                              opaque=True))
        assert (result.reasoning, result.content) == ("hm", answer)
    bare = '{"name": "f", "parameters": {}}'
    assert gather(parse(CATALOG["bare_json"], bare, opaque=True)).content == bare
    called = gather(parse(CATALOG["argument_tags"], "<tool_call>f</tool_call>", opaque=True))
    assert [call.name for call in called.calls] == ["f"]


def test_one_leading_space_is_stripped_where_asked():
    assert gather(parse(CATALOG["think_tags"], "  a", strip_leading_space=True)).content == " a"


@pytest.mark.parametrize("name, prompt, expected", [
    ("function_tags", "<|im_start|>assistant\n<think>\n", Start.REASONING),
    ("function_tags", "<|im_start|>assistant\n<think>\n\n</think>\n\n", Start.CONTENT),
    ("function_tags", "<|im_start|>user\n<think>", Start.CONTENT),
    ("function_tags", "<|im_start|>assistant\n<think>a<|im_end|>\n", Start.CONTENT),
    ("function_tags", "<think>a<|im_end|>\nresumed <think>\n", Start.REASONING),
    ("dsml_tool_calls", "<｜User｜>q<｜Assistant｜><think>", Start.REASONING),
    ("dsml_tool_calls", "<｜User｜>q<｜Assistant｜></think>", Start.CONTENT),
    ("argument_tags", "<|user|>q<|assistant|>\n<think></think>", Start.CONTENT),
    ("xtml", '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>', Start.REASONING),
    ("xtml", '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>', Start.RESPONSE),
    ("recipient_frames", "<|start|>assistant", Start.HEADER),
    ("recipient_frames", "<|start|>assistant to=self<|message|>", Start.REASONING),
    ("channel_frames", "<|start|>assistant<|channel|>final<|message|>", Start.CONTENT),
    ("channel_frames", "<|start|>assistant<|channel|>analysis<|message|>x", Start.REASONING),
    ("channel_frames", "<|start|>user<|message|>x<|end|><|start|>assistant", Start.HEADER),
    ("bare_json", "anything", Start.CONTENT), ("think_tags", "", Start.CONTENT),
])
def test_start_states(name, prompt, expected):
    tokenizer = CaseTokenizer(CATALOG[name])
    assert start_state(tokenizer.bound, tokenizer.ids_of(prompt), tokenizer.table) == expected
    sentinels = [len(tokenizer.table), *tokenizer.ids_of(prompt)]  # of an image: beyond the table
    assert start_state(tokenizer.bound, sentinels, tokenizer.table) == expected
    spelled = list(prompt.encode())
    if "think" in prompt and name != "xtml":  # tags spelled in text open nothing
        assert start_state(tokenizer.bound, spelled, tokenizer.table) == Start.CONTENT


def test_whole_tag_tokens_are_their_delimiter():
    """A vocabulary may have a whole tag as one token beside the token it contains."""
    mark, tag = "｜DSML｜".encode(), "<｜DSML｜tool_calls>".encode()
    bound = Vocabulary([mark, tag]).bind(CATALOG["dsml_tool_calls"])
    parser = Parser(bound)
    events = [*parser.feed(1, tag), *parser.feed(9, b"\n<"), *parser.feed(0, mark),
              *parser.feed(9, b'invoke name="f"/>'), *parser.finish()]
    assert [event.kind for event in events] == [BEGIN, ARGUMENTS, END]


def test_delimiters_that_begin_each_other_are_refused():
    with pytest.raises(AssertionError):
        Marks({"<a": 1, "<a>": 2})


OBJECTS = ['{"a": 1}', "{}", " { } ", '{"\\ud800": "\\udc00x"}', '{"a": %s}' % ("1" * 4300),
           '{"a": "%s"}' % ("1" * 5000), '{"a": 1e400, "a": [{}]}', '{"a": "\x7f"}']
NO_OBJECTS = ["", "{", "{}}", "[]", "null", '{"a": NaN}', '{"a": -Infinity}', '{"a": "\n"}',
              "{'a': 1}", '{"a": 01}', '{"a": 1.}', '{"a": "\\x"}', "\ufeff{}", '{"a": tru}',
              '{"a" 1}', '{"a": 1,}', "{1: 2}", '{"a": %s}' % ("1" * 4301),
              '{"a": %s}' % ("[" * 5000 + "]" * 5000)]


@pytest.mark.parametrize("text", OBJECTS + NO_OBJECTS, ids=lambda text: text[:20])
def test_what_finishes_a_call(text):
    """As the clients' decoder sees it."""
    assert is_object(text) == (text in OBJECTS)
    if text in OBJECTS:
        assert isinstance(json.loads(text), dict)


def test_nothing_is_said_twice():
    events = parse(CATALOG["think_tags"], "a\xe9b")
    assert "".join(event.text for event in events) == "a\xe9b"
    assert all(event.kind == CONTENT for event in events)

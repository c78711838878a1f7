"""Which schema types an argument: alternatives told apart by constants, patterns of names."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios_dod.frontend.output.cases import CaseTokenizer, gather
from helios_dod.frontend.output.expressions import MATCHES_MAX, PATTERNS_MAX, Expressions
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.schemas import UNKNOWN, VISITS_MAX, ToolSet

SHAPES = {"oneOf": [
    {"properties": {"kind": {"const": "circle"}, "size": {"type": "integer"}}},
    {"properties": {"kind": {"enum": ["label"]}, "size": {"type": "string"}}},
    {"properties": {"kind": {"const": "path"}, "size": {"type": "array"}, "open": {"const": 1}}}]}


def types(schema, key="size", **constants):
    chosen = tuple((name, json.dumps(value)) for name, value in constants.items())
    return set(ToolSet({"f": schema}).admitted("f", key, chosen).types)


@pytest.mark.parametrize("kind, expected", [
    ("circle", {"integer"}), ("label", {"string"}), ("path", {"array"}),
    ("square", {"integer", "string", "array"}), (None, {"integer", "string", "array"})])
@pytest.mark.parametrize("word", ["oneOf", "anyOf"])
def test_a_constant_selects_the_alternative(word, kind, expected):
    assert types({word: SHAPES["oneOf"]}, kind=kind) == expected


def test_alternatives_behind_references_and_all_of():
    circle, label, path = SHAPES["oneOf"]
    schema = {"$ref": "#/$defs/shape", "$defs": {
        "shape": {"allOf": [{"anyOf": [{"$ref": "#/$defs/circle"}, {"allOf": [
            {"properties": {"kind": label["properties"]["kind"]}},
            {"properties": {"size": {"$ref": "#/$defs/text"}}}]}, {"oneOf": [path]}]}]},
        "circle": {"$ref": "#/$defs/round"}, "round": circle, "text": {"type": "string"}}}
    for kind, expected in (("circle", "integer"), ("label", "string"), ("path", "array")):
        assert types(schema, kind=kind) == {expected}
    assert ToolSet({"f": schema}).deciding("f") == {"kind", "open"}


def test_two_constants_decide_together():
    schema = {"oneOf": [
        {"properties": {"a": {"const": a}, "b": {"const": b}, "size": {"type": kind}}}
        for a, b, kind in ((1, True, "string"), (1, False, "integer"), (True, True, "array"))]}
    assert types(schema, a=1, b=True) == {"string"}  # true is not 1
    assert types(schema, a=1) == {"string", "integer"}
    assert types(schema, b=True) == {"string", "array"}


def test_what_the_root_says_of_the_argument_holds_in_every_alternative():
    root = {**SHAPES, "properties": {"size": {"type": ["integer", "string"]}, "at": {}}}
    assert types(root, kind="circle") == {"integer"}
    assert types(root, kind="label") == {"string"}
    assert types({**SHAPES, "properties": {"size": {}}}, kind="path") == {"array"}


def test_an_argument_that_the_selected_alternative_does_not_name_is_typed_by_those_that_do():
    tools = ToolSet({"f": SHAPES})
    assert tools.admitted("f", "open", (("kind", '"circle"'),)) == tools.admitted("f", "open")
    assert tools.admitted("f", "none", (("kind", '"circle"'),)) == UNKNOWN


def test_constants_without_alternatives_decide_nothing():
    tools = ToolSet({"f": {"properties": {"kind": {"const": 1}, "x": {"type": "string"}}}})
    assert tools.deciding("f") == frozenset()
    assert types(tools.tools["f"], "x", kind=2) == {"string"}


@pytest.mark.parametrize("first, last", [(1, 2), (2, 1)])
def test_readings_are_kept_apart_by_what_was_decided(first, last):
    tools = ToolSet({"f": SHAPES})
    kinds = {1: ("kind", '"circle"'), 2: ("kind", '"label"')}
    seen = {i: tools.admitted("f", "size", (kinds[i],)) for i in (first, last, first)}
    assert seen[1].types == {"integer"} and seen[2].types == {"string"}


def parsed(schema, pairs, split="bytes", syntax="function_tags"):
    """The arguments of one call, streamed and whole."""
    tokenizer = CaseTokenizer(CATALOG[syntax])
    if syntax == "function_tags":
        text = "<tool_call>\n<function=f>\n" + "".join(
            f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
        text += "</function>\n</tool_call>"
    else:
        text = "<tool_call>f" + "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in pairs)
        text += "</tool_call>"
    parser, events = Parser(tokenizer.bound, {"f": schema}), []
    for token, data in tokenizer.split(text, split):
        events += parser.feed(token, data)
    call, = gather([*events, *parser.finish()]).calls
    return json.loads(call.arguments)


OPEN = {"anyOf": [*SHAPES["oneOf"], {"properties": {"kind": {"type": "string"}}}]}


@pytest.mark.parametrize("syntax, either", [("function_tags", "7"), ("argument_tags", 7)])
@pytest.mark.parametrize("split", ["bytes", "words"])
@pytest.mark.parametrize("schema", [SHAPES, OPEN], ids=["constants", "one streams"])
@pytest.mark.parametrize("pairs, expected", [
    ([("kind", "circle"), ("size", "7")], {"kind": "circle", "size": 7}),
    ([("kind", "label"), ("size", "7")], {"kind": "label", "size": "7"}),
    ([("kind", "path"), ("open", "1"), ("size", "[7]")], {"kind": "path", "open": 1, "size": [7]}),
    ([("size", "7"), ("kind", "circle")], {"kind": "circle"}),
    ([("kind", "x" * 10_000), ("size", "7")], {"kind": "x" * 10_000}),
    ([("kind", "[1]"), ("size", "7")], {"kind": "[1]"}),
])
def test_calls_of_alternatives(syntax, either, split, schema, pairs, expected):
    """either: 7 in a union of string and integer, by the syntax's own rule."""
    assert parsed(schema, pairs, split, syntax) == {"size": either, **expected}


def test_a_call_does_not_decide_for_the_next():
    tokenizer = CaseTokenizer(CATALOG["argument_tags"])
    one = "<tool_call>f<arg_key>kind</arg_key><arg_value>circle</arg_value></tool_call>"
    two = "<tool_call>f<arg_key>size</arg_key><arg_value>7</arg_value></tool_call>"
    parser, events = Parser(tokenizer.bound, {"f": SHAPES}), []
    for token, data in tokenizer.split(one + two, "words"):
        events += parser.feed(token, data)
    calls = gather([*events, *parser.finish()]).calls
    assert json.loads(calls[1].arguments) == {"size": 7}  # all alternatives, not the circle alone
    assert parser.out.tools.read.keys() >= {("f", "size", ())}


# patternProperties

PATTERNS = {
    "properties": {"x-id": {"type": ["integer", "string"]}},
    "patternProperties": {"^x-": {"type": ["integer", "boolean"]}, "n$": {"$ref": "#/$defs/n"},
                          "[": {"type": "array"}},
    "additionalProperties": {"type": "object"}, "$defs": {"n": {"type": ["boolean", "null"]}}}


@pytest.mark.parametrize("key, expected", [
    ("x-id", {"integer"}), ("x-a", {"integer", "boolean"}), ("x-n", {"boolean"}),
    ("n", {"boolean", "null"})])
def test_patterns_of_names(key, expected):
    assert types(PATTERNS, key) == expected


def test_additional_properties_are_what_no_pattern_is_of():
    schema = {**PATTERNS, "patternProperties": {"^x-": {"type": "integer"}}}
    assert types(schema, "y") == {"object"}
    assert types(schema, "x-y") == {"integer"}
    assert types({"allOf": [{"$ref": "#/$defs/p"}], "$defs": {"p": schema}}, "x-y") == {"integer"}


def test_a_name_that_a_pattern_cannot_be_held_against_is_one_that_nothing_names():
    assert ToolSet({"f": PATTERNS}).admitted("f", "y") == UNKNOWN  # "[" may or may not match
    assert not ToolSet({"f": PATTERNS}).declares("f", "y")


def test_alternatives_with_patterns():
    schema = {"oneOf": [
        {"properties": {"kind": {"const": kind}}, "patternProperties": {"^v": {"type": told}}}
        for kind, told in (("a", "integer"), ("b", "string"))]}
    assert types(schema, "v1", kind="a") == {"integer"}
    assert types(schema, "v1", kind="b") == {"string"}
    assert parsed(schema, [("kind", "a"), ("v1", "7")]) == {"kind": "a", "v1": 7}
    assert parsed(schema, [("kind", "b"), ("v1", "7")]) == {"kind": "b", "v1": "7"}


SAME = [  # what the grammar library and Python say alike of ASCII names
    "", "a", "^a", "a$", "^a$", "^$", "a|b", "^(?:a|bc)+$", "a.c", "^[a-c]{2}$", "^[^a-c]+$",
    "^a{2,3}$", "^a{2,}$", "^(a|b)*?c$", r"^\d+$", r"^\w+-\w+$", r"\s", r"\S\D", r"^[\w.-]+$",
    r"a\.b", r"^[\]a\\-]+$", "(a(b(c)?)?)$", "^(a*)*$", "^(a|a)*$", "(a+)+b$",
    "^x-(?:id|n)$", r"^\x61\u0062$", "a{0}b", "^(){3}$", "[a-]", "^[a|]+$", "(^a|b$)", "a+?b*?c??"]


@pytest.mark.parametrize("pattern", SAME)
@given(name=st.text("abc-|.] \\d1xn", max_size=8))
def test_names_match_as_in_python(pattern, name):
    found = Expressions().match(pattern, name)
    expected = re.search(pattern.replace("$", r"\Z"), name, re.ASCII) is not None
    assert found is expected


def test_names_beyond_ascii():
    for pattern, name, found in ((".", "\n", False), (".", "é", True), (r"\w", "é", False),
                                 (r"^[à-ü]$", "é", True), (r"^\u{1F600}$", "😀", True),
                                 (r"^[^a]$", "😀", True), (r"^\p{L}$", "é", True)):
        assert Expressions().match(pattern, name) is found, pattern


@pytest.mark.parametrize("pattern", [
    "(", ")", "[", "[b-a]", "*", "a{2,1}", "(?=a)", "(?!a)", "(?<=a)", r"(a)\1", r"\k<a>",
    r"\x6", r"\u12", r"\u{110000}", "^*", r"\ba", "a" * 5000, "(?:" * 300, 7, "a{99999999999}"])
def test_patterns_that_are_not_judged(pattern):
    assert Expressions().match(pattern, "aa") is None


@pytest.mark.parametrize("pattern", ["(.*a){300}", "[ab]*a[ab]{200}$", "(((a{99}){99}){99}){99}"])
def test_a_match_that_costs_too_much_is_not_judged(pattern):
    assert Expressions().match(pattern, "a" * 200) is None
    assert Expressions().match(pattern, "a" * 257) is None


def test_one_response_asks_for_so_many_matches():
    expressions = Expressions()
    for _ in range(2):  # each is asked for once
        assert all(expressions.match("^1", str(i)) is str(i).startswith("1")
                   for i in range(MATCHES_MAX))
    assert expressions.match("^a", "a") is None


def test_one_response_has_so_many_patterns():
    expressions = Expressions()
    for _ in range(2):
        assert all(expressions.match(f"^{i}$", "1") is (i == 1) for i in range(PATTERNS_MAX))
    assert expressions.match("^a", "a") is None
    assert expressions.match("^1$", "2") is False


def test_many_patterns_and_many_alternatives_are_read_in_part():
    many = {"patternProperties": {f"^{i}": {"type": "integer"} for i in range(50_000)}}
    assert ToolSet({"f": many}).admitted("f", "x") == UNKNOWN
    circles = {"anyOf": [{"$ref": "#"}] * 50_000}
    tools = ToolSet({"f": circles})
    assert tools.admitted("f", "x") == UNKNOWN and not tools.deciding("f")
    kinds = {"oneOf": [{"properties": {**{f"k{i}": {"const": i} for i in range(40)}, "x": {}}}
                       for _ in range(60)]}
    tools, given = ToolSet({"f": kinds}), tuple((f"k{i}", str(i)) for i in range(40))
    assert tools.admitted("f", "x", given[:1]).known and tools.admitted("f", "x", given).known
    reader = tools.reader("f")
    reader.parameter("x", {f"k{i}": i for i in range(40)})
    assert reader.visits < 2 * VISITS_MAX
    values = {"properties": {"x": circles}, "anyOf": [{"$ref": "#"}] * 2}
    assert ToolSet({"f": values}).admitted("f", "x").members is None
    listed = {"properties": {"x": {"anyOf": [{"enum": list(range(50_000))}] * VISITS_MAX}}}
    assert ToolSet({"f": listed}).admitted("f", "x").members is None


def test_a_long_reference_leads_nowhere():
    """Each of a thousand would be read whole, for each new name of an argument."""
    schema = {"anyOf": [{"$ref": "#/a"}] * 1000, "a": {"$ref": "#/" + "x/" * 1_000_000}}
    tools = ToolSet({"f": schema})
    assert not any(tools.admitted("f", f"name{i}").known for i in range(100))
    schema = {"properties": {"a": {"$ref": "#/$defs/" + "x" * 1000}}, "$defs": {
        "x" * 1000: {"type": "integer"}}}
    assert ToolSet({"f": schema}).admitted("f", "a").types == {"integer"}

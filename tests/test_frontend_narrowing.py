"""Keywords without a grammar of their own: what is admitted fulfils the schema as it was given."""

import copy
import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest
from test_frontend_grammars import Letters

from helios_dod.frontend.grammars import root
from helios_dod.frontend.grammars.bounds import checked_schema
from helios_dod.frontend.grammars.structured import schema_grammar
from helios_dod.frontend.requests import RequestError
from helios_dod.grammars.library import limits

PERSON = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3},
                                           "b": {"type": "integer"}, "c": {"type": "boolean"}}}
SCHEMAS: dict[str, Any] = {
    "counts as floats": {"type": "string", "minLength": 2.0, "maxLength": 3.0},
    "an unknown format": {"type": "string", "maxLength": 4, "format": "postcode"},
    "draft 4 bounds": {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9},
    "far bounds": {"type": "integer", "minimum": -(2**62), "maximum": 2**63 - 1},
    "if then": {**PERSON, "additionalProperties": False,
                "if": {"properties": {"b": {"const": 1}}, "required": ["b"]},
                "then": {"required": ["a"]}, "else": {"required": ["c"]}},
    "if alone": {"type": "boolean", "if": {"const": True}},
    "then alone": {"type": "boolean", "then": {"const": True}},
    "not a type": {"not": {"type": ["string", "object", "array"]}},
    "not required": {**PERSON, "additionalProperties": False, "not": {"required": ["a"]}},
    "not texts": {"type": "string", "maxLength": 4, "not": {"enum": ["ab", "cd"]}},
    "not below": {"type": "integer", "maximum": 99, "not": {"maximum": 9}},
    "one of two": {**PERSON, "additionalProperties": False,
                   "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "one of ranges": {"oneOf": [{"type": "integer", "maximum": 9}, {"type": "integer",
                                                                   "minimum": 5}]},
    "one of constants": {"oneOf": [
        {"type": "object", "properties": {"k": {"const": kind}}, "required": ["k"],
         "additionalProperties": False} for kind in ("x", "y")]},
    "dependencies": {**PERSON, "additionalProperties": False,
                     "dependencies": {"a": ["b"], "c": {"required": ["a"]}}},
    "dependent": {**PERSON, "additionalProperties": False, "dependentRequired": {"a": ["b", "c"]},
                  "dependentSchemas": {"b": {"properties": {"c": {"const": True}}}}},
    "names by enum": {"type": "object", "propertyNames": {"enum": ["x", "y"]},
                      "additionalProperties": {"type": "integer"}},
    "names by pattern": {"type": "object", "propertyNames": {"pattern": "^x[0-9]$"},
                         "additionalProperties": {"type": "null"}},
    "names by length": {"type": "object", "propertyNames": {"maxLength": 2},
                        "additionalProperties": {"type": "null"}},
    "contains": {"type": "array", "items": {"type": "integer"}, "maxItems": 4,
                 "contains": {"minimum": 5}, "minContains": 2},
    "contains at most": {"type": "array", "items": {"type": "integer"},
                         "contains": {"minimum": 5}, "maxContains": 1},
    "unique of an enum": {"type": "array", "uniqueItems": True, "minItems": 1,
                          "items": {"enum": ["p", "q", "r"]}},
    "unique of any": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    "unevaluated names": {"type": "object", "allOf": [PERSON], "unevaluatedProperties": False},
    "unevaluated items": {"type": "array", "allOf": [{"prefixItems": [{"type": "integer"}]}],
                          "unevaluatedItems": False},
    "patterns that meet": {"type": "object", "properties": {"ab": {"type": "integer"}},
                           "patternProperties": {"a": {"minimum": 2}, "b": {"maximum": 7}}},
    "few names": {**PERSON, "minProperties": 2, "maxProperties": 2},
    "some names": {"type": "object", "minProperties": 2,
                   "additionalProperties": {"type": "integer"}},
    "contains of an older draft": {
        "$schema": "https://json-schema.org/draft/2019-09/schema", "type": "array",
        "contains": {"const": 1}, "minContains": 1},
    "a tuple of an older draft": {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "minItems": 2,
        "items": [{"const": 1}], "additionalItems": {"type": "boolean"}},
    "behind a reference": {"$ref": "#/parts/tags/list", "parts": {"tags": {"list": {
        "type": "array", "uniqueItems": True, "items": {"type": "boolean"}}}}},
}


def documents(schema: Any, count: int = 10) -> list[Any]:
    """Random documents that the grammar admits."""
    letters, made = Letters(()), []
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(letters),
                                       eos_token=[letters.eos])
    grammar = json.dumps({"grammars": [schema_grammar(copy.deepcopy(schema), "x", compact=True)]})
    start = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    assert not start.is_error(), start.get_error()[:500]
    for seed in range(count):
        matcher, rng, text = start.deep_copy(), random.Random(seed), bytearray()
        for _ in range(400):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [i for i in range(len(letters.tokens)) if mask >> i & 1]
            if letters.eos in allowed and rng.random() < 0.8:
                made.append(json.loads(text))
                break
            short = [i for i in allowed if i in (34, 93, 125)]
            token = rng.choice(short if short and rng.random() < 0.3 else
                               [i for i in allowed if 32 <= i < 127] or allowed)
            if token == letters.eos:
                made.append(json.loads(text))
                break
            text.append(token)
            assert matcher.consume_token(token)
    return made


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_admitted_fulfils_the_schema(name):
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator
    if name in ("draft 4 bounds", "dependencies"):
        validator = jsonschema.Draft4Validator
    validator = jsonschema.validators.validator_for(schema, default=validator)
    made = documents(schema)
    assert len(made) >= 3
    for document in made:
        problems = [error.message for error in validator(schema).iter_errors(document)]
        assert not problems, (document, problems)


def test_both_branches_and_many_names_are_left():
    """Narrowing keeps what can be said: an `else`, subsets, either of two."""
    assert {True, False} <= {"a" in made for made in documents(SCHEMAS["one of two"], 30)}
    assert {1, 2} <= {len(made) for made in documents(SCHEMAS["unique of an enum"], 30)}
    assert {True, False} <= {made.get("b") == 1 for made in documents(SCHEMAS["if then"], 60)}


@pytest.mark.parametrize("schema", [
    {"properties": []}, {"allOf": {}}, {"type": 3}, {"required": "a"}, {"minLength": "x"},
    {"items": 5}, {"enum": "ab"}, {"anyOf": ["x"]}, {"not": 1}, {"dependencies": {"a": 1}},
    {"required": [[1]], "minProperties": 3}, {"type": [{}]}, {"not": {"type": [["string"]]}},
    {"dependentRequired": {"a": 3}}, {"dependencies": {"a": [{}]}},
    {"$ref": "#/parts/a", "parts": {"a": {"required": [[1]]}}}])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(RequestError, match="is not a JSON schema"):
        schema_grammar(schema, "guided_json")


def nested(depth, around):
    """A schema inside a schema inside ..."""
    schema = {"type": "string"}
    for _ in range(depth):
        schema = around(schema)
    return schema


FANNED = {"$ref": "#/$defs/13", "$defs": {"0": {"type": "string"}, **{
    str(i): {"properties": {f"{j}": {"$ref": f"#/$defs/{i - 1}"} for j in range(4)}}
    for i in range(1, 14)}}}


@pytest.mark.parametrize(("schema", "words"), [
    ({"not": FANNED, "$defs": FANNED["$defs"]}, "more than 120000 parts"),
    ({"anyOf": [{"minProperties": 100_000}] * 2}, "more than 120000 parts"),
    (nested(12, lambda part: {"contains": part, "minContains": 16}), "more than 120000 bytes"),
    (nested(9, lambda part: {"oneOf": [{"not": part}, *(
        {"type": "object", "required": [f"{i}"]} for i in range(7))]}), "more than 120000 bytes"),
    ({"type": "object", "properties": {"a": {"$ref": "#", "unevaluatedProperties": False}}},
     "holds itself")])
def test_a_short_schema_that_asks_for_much_is_refused(schema, words):
    with pytest.raises(RequestError, match=f"^'guided_json' .*{words}.* once its keywords are "):
        schema_grammar(schema, "guided_json")


BACKTRACKS = "^(a+)+$"  # years, where every way to match is tried


@pytest.mark.parametrize("more", [
    {"propertyNames": {"pattern": BACKTRACKS}}, {"patternProperties": {BACKTRACKS: {}, "b": {}}}])
def test_names_are_held_against_patterns_in_linear_time(more):
    made = json.dumps(schema_grammar(
        {"type": "object", "properties": {"a" * 50 + "!": {}, "aa": {}}, **more}, "x"))
    assert '"aa"' in made


def test_a_name_of_which_nobody_can_say_if_it_may_be_is_left_out():
    made = documents({"type": "object", "properties": {"a" * 300: {}, "aa": {"const": 1}},
                      "propertyNames": {"pattern": "^a+$"}, "required": ["aa"]})
    assert made and not any("a" * 300 in document for document in made)


def test_patterns_that_take_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(root, "PATTERN_SECONDS_MAX", 0.01)
    patterns = {f"^[a-z]+{i}$": {} for i in range(100)}
    with pytest.raises(RequestError, match=r"^'x' takes more than 0\.01 s to hold the names"):
        schema_grammar({"type": "object", "properties": {f"c{i}": {} for i in range(200)},
                        "patternProperties": patterns}, "x")


def test_what_refers_to_itself_has_no_negation():
    part = {"type": "object", "required": ["b"], "properties": {"x": {"$ref": "#/$defs/part"}}}
    made = documents({"$defs": {"part": part}, "type": ["object", "null"],
                      "not": {"$ref": "#/$defs/part"}}, 30)
    assert made and not any(document and "b" in document for document in made)


@pytest.mark.parametrize("schema", [
    {"anyOf": [{"$ref": f"#x{i}"} for i in range(3000)]},
    {"$defs": {"a": {"anyOf": [{"$ref": f"#/$defs/{i % 2}"} for i in range(5000)]}, "0": {
        "$ref": "#/$defs/a"}, "1": {"$ref": "#/$defs/a"}}}])
def test_references_are_followed_once(schema):
    assert checked_schema(schema, "x") == schema

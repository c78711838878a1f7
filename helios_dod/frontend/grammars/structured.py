"""What a request demands of its answer: `response_format`, `structured_outputs`, and the older
`guided_*` names of it, as a grammar of the answer alone."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from helios_dod.frontend.grammars.bounds import (
    CHOICES_MAX,
    TEXT_BYTES_MAX,
    check_bytes,
    checked_schema,
    refuse,
)
from helios_dod.frontend.grammars.endings import schema_ends
from helios_dod.frontend.grammars.expressed import lark_of_grammar, lark_of_regex
from helios_dod.frontend.grammars.narrowing import Malformed, check_shapes, narrowed
from helios_dod.frontend.grammars.root import Costly, Room, Root, check_unfolded
from helios_dod.frontend.grammars.tags import structural_tag
from helios_dod.frontend.requests import ChatRequest, RequestError

# Between JSON tokens: nothing, a space, or a new line and its indent. Any amount would let a model
# write white space for ever.
WHITESPACE = r"( |\n {0,40})"
ANY_OBJECT = {"type": "object"}
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
          "guided_grammar": "grammar"}


@dataclass(frozen=True)
class Answer:
    """A grammar of the answer. grammars: entries of llguidance's list, the first one being it.

    field: of the request."""

    grammars: tuple[dict[str, Any], ...]
    field: str


def json_options(compact: bool, lenient: bool) -> dict[str, Any]:
    """How a schema is compiled."""
    options: dict[str, Any] = {"lenient": True} if lenient else {}
    if compact:
        return options | {"whitespace_flexible": False}
    return options | {"whitespace_pattern": WHITESPACE}


def schema_grammar(schema: Any, field: str, compact: bool = False,
                   lenient: bool = False, room: Room | None = None) -> dict[str, Any]:
    """A grammar entry of a JSON schema. lenient: keywords that cannot be enforced are ignored.
    room: of the request, where it has several schemas. Raises RequestError."""
    room = room or Room()
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise refuse(field, "must be a JSON schema that some answer fulfils")
    checked = checked_schema(schema, field, lenient)
    try:
        made = narrowed(checked, room)
        check_unfolded(made, TEXT_BYTES_MAX)
        text = msgspec.json.encode(made)
        room.write(len(text))
    except Malformed as error:
        raise refuse(field, f"is not a JSON schema: {error}") from None
    except Costly as error:
        raise refuse(field, str(error)) from None
    if not schema_ends(made):
        raise refuse(field, "refers to itself, so that no answer ends")
    check_bytes(text.decode(), field)
    return {"json_schema": made | {"x-guidance": json_options(compact, lenient)}}


def check_schema(schema: Any, field: str) -> None:
    """Bounds of a schema of which parts will be read, and types of its keywords. Raises
    RequestError."""
    try:
        check_shapes(schema, Root(checked_schema(schema, field, lenient=True), Room()))
    except Malformed as error:
        raise refuse(field, f"is not a JSON schema: {error}") from None


def parsed(text: Any, field: str) -> Any:
    """JSON that may have come as text."""
    if not isinstance(text, str):
        return text
    check_bytes(text, field)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise refuse(field, f"is not valid JSON: {error}") from None


def choice_grammar(choices: list[str], field: str) -> dict[str, Any]:
    """One of several texts."""
    if not choices or not all(choices):
        raise refuse(field, "must hold at least one text, and no empty one")
    if len(choices) > CHOICES_MAX:
        raise refuse(field, f"has {len(choices)} entries; at most {CHOICES_MAX} are accepted")
    lark = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)
    check_bytes(lark, field)
    return {"lark_grammar": lark}


def from_format(request: ChatRequest) -> Answer | None:
    """Of `response_format`."""
    given, field = request.response_format, "response_format"
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return Answer((schema_grammar(given.schema or ANY_OBJECT, field),), field)
    if given.type == "json_schema":
        if given.json_schema is None:
            raise RequestError(f"Missing required parameter: '{field}.json_schema'.",
                               f"{field}.json_schema", "missing_required_parameter")
        field += ".json_schema.schema"
        schema = given.json_schema.schema
        return Answer((schema_grammar(ANY_OBJECT if schema is None else schema, field),), field)
    if given.type == "structural_tag":
        tag = {name: value for name in ("structures", "triggers", "format")
               if (value := getattr(given, name)) is not None}
        return Answer(tuple(structural_tag(tag, field, schema_grammar)), field)
    raise RequestError(
        f"'{field}.type' must be text, json_object, json_schema or structural_tag, got "
        f"{given.type!r}.", f"{field}.type", "invalid_value")


def from_structured(request: ChatRequest) -> Answer | None:
    """Of `structured_outputs`, or of one `guided_` field."""
    given = request.structured_outputs
    kinds: dict[str, tuple[str, Any]] = {}  # kind -> (field, value)
    compact = False
    if given is not None:
        for kind in ("json", "regex", "choice", "grammar", "structural_tag"):
            if getattr(given, kind) is not None:
                kinds[kind] = (f"structured_outputs.{kind}", getattr(given, kind))
        if given.json_object:
            kinds["json_object"] = ("structured_outputs.json_object", ANY_OBJECT)
        compact = bool(given.disable_any_whitespace)
    for field, kind in GUIDED.items():
        if getattr(request, field) is not None:
            if kinds:
                raise refuse(field, f"cannot be combined with '{next(iter(kinds.values()))[0]}'")
            kinds[kind] = (field, getattr(request, field))
    if len(kinds) > 1:
        raise refuse("structured_outputs", f"holds {', '.join(kinds)}; give one")
    if not kinds:
        if given is not None:
            raise refuse("structured_outputs", "holds no constraint: give json, regex, choice, "
                                               "grammar, json_object or structural_tag")
        return None
    (kind, (field, value)), = kinds.items()
    if kind in ("json", "json_object"):
        return Answer((schema_grammar(parsed(value, field), field, compact),), field)
    if kind == "structural_tag":
        return Answer(tuple(structural_tag(parsed(value, field), field, schema_grammar)), field)
    if kind == "regex":
        return Answer(({"lark_grammar": f"start: {lark_of_regex(value, field)}"},), field)
    if kind == "choice":
        return Answer((choice_grammar(value, field),), field)
    return Answer(({"lark_grammar": lark_of_grammar(value, field)},), field)


def answer_of(request: ChatRequest) -> Answer | None:
    """The grammar that a request gives its answer, or None. Raises RequestError."""
    first, second = from_format(request), from_structured(request)
    if first is not None and second is not None:
        raise refuse("response_format", f"and '{second.field}' both constrain the answer; give one")
    return first or second

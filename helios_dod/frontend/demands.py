"""The parts of a request that say what form its answer must have."""

from typing import Any

import msgspec


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A schema that the answer has to fulfil. It is always enforced."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The answer's form: text, json_object, json_schema or structural_tag."""

    type: str
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None  # of json_object
    structures: list[Any] | None = None  # of structural_tag, as the other two
    triggers: list[Any] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's constraints of the answer; one kind of them."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # Lark or GBNF
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None

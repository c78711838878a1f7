"""What a schema does not admit, as a schema: for keywords that speak of it."""

import re
from typing import Any

from helios_dod.frontend.grammars.bounds import NESTING_MAX
from helios_dod.frontend.grammars.root import Root

Schema = Any  # a dict or a boolean
PARTS = 4  # objects and arrays that say the opposite of one schema, at least
TYPES = ("null", "boolean", "number", "string", "array", "object")
ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "$schema", "$id", "id",
               "deprecated", "readOnly", "writeOnly"}


def resolved(schema: Schema, root: Root) -> Schema:
    """A schema behind its references, where it says nothing beside them."""
    for _ in range(16):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = root.target(schema["$ref"])
    return schema


def negation(schema: Schema, root: Root, path: tuple[int, ...] = ()) -> Schema | None:
    """A schema none of whose values fulfils `schema`, or None where it cannot be said, as of one
    that refers to itself. path: the schemas around it. Raises Costly."""
    root.spend(PARTS)
    schema = resolved(schema, root)
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict):
        return None
    if not set(schema) - ANNOTATIONS:
        return False
    if id(schema) in path or len(path) > NESTING_MAX:
        return None
    path = (*path, id(schema))
    options: list[Schema] = []
    types = schema.get("type")
    if types is not None:
        named = {types} if isinstance(types, str) else set(types)
        options.append({"type": [name for name in TYPES if name not in named
                                 and not (name == "number" and "integer" in named)]})
        if not options[-1]["type"]:
            options.pop()
    required = schema.get("required")
    if isinstance(required, list):
        options += [{"type": "object", "properties": {name: False}} for name in required]
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, value in properties.items():
            opposite = negation(value, root, path)
            if opposite not in (None, False):
                options.append({"type": "object", "properties": {name: opposite},
                                "required": [name]})
    for name, opposite in (("minimum", "exclusiveMaximum"), ("maximum", "exclusiveMinimum")):
        if name in schema:
            options.append({"type": "number", opposite: schema[name]})
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        options.append({"type": [name for name in TYPES if name != "string"]})
        options.append({"type": "string", "pattern": other_texts(values)})
    elif isinstance(values, list):
        options.append({"type": [name for name in TYPES
                                 if name not in {type_of(value) for value in values}]})
    if "not" in schema:
        options.append(schema["not"])
    if "anyOf" in schema:
        each = [negation(part, root, path) for part in schema["anyOf"]]
        if None not in each:
            options.append({"allOf": each})
    return {"anyOf": options} if options else None


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    names: dict[type, str] = {type(None): "null", bool: "boolean", int: "number", float: "number",
                              str: "string", list: "array", dict: "object"}
    return names[type(value)]


def other_texts(values: list[str]) -> str:
    """A pattern of short texts that are none of the values: by their length and first letter."""
    firsts = "".join(sorted({re.escape(value[0]) for value in values if value}))
    return f"^[^{firsts}].*$" if firsts else "^.+$"

"""An element stream as a grammar: its channels, and calls with typed arguments."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from helios_dod.frontend.grammars.bounds import CHOICES_MAX, refuse
from helios_dod.frontend.grammars.calls import CallTool, Writer, properties, resolved
from helios_dod.frontend.grammars.spelling import literal
from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.syntax import ElementSyntax
from helios_dod.frontend.output.terms import Start

NUMBER = " index="  # a call's attribute, counted from 1; what reads calls needs none
UNIONS_MAX = 16  # alternatives inside alternatives
NAMED_KINDS = {"integer": "number"}  # JSON types that an element's type attribute calls otherwise


def opening(syntax: ElementSyntax, name: str, **attributes: str) -> str:
    """The text of an opening tag."""
    text = syntax.open + name
    for key, value in attributes.items():
        for escape, character in reversed(syntax.escapes):
            value = value.replace(character, escape)
        text += f' {key}="{value}"'
    return text + syntax.separator


def closing(syntax: ElementSyntax, name: str) -> str:
    """The text of a closing tag."""
    return syntax.close + name + syntax.separator


def channels(bound: Bound, syntax: ElementSyntax, start: Start, rules: list[str],
             answer: str, calls: str, required: bool, budget: int | None) -> str:
    """The expression of a message from `start` on: reasoning, the answer, the calls.

    answer: expression of a constrained answer; empty: any text. calls: of calls; empty: none. An
    answer that is constrained and calls exclude each other. budget: tokens of reasoning."""
    def opens(name: str) -> str:
        return literal(bound, opening(syntax, name))

    def closes(name: str) -> str:
        return literal(bound, closing(syntax, name))

    closed = closes(syntax.response)
    tools = f"{opens(syntax.tools)} {calls} {closes(syntax.tools)}"
    if calls and required:
        rest = f"{closed} {tools}"
    elif calls and answer:
        rest = f"({answer} {closed} | {closed} {tools})"
    else:
        rest = f"{answer or 'ANYTEXT?'} {closed}" + (f" ({tools})?" if calls else "")
    rules.append(f"response: {rest} {closes(syntax.message)}")
    if start == Start.RESPONSE:
        return "response"
    respond = f"{opens(syntax.response)} response"
    thought = "ANYTEXT?"
    if budget is not None:
        rules.append(f"thought[max_tokens={budget}]: /(.|\\n)+/")
        thought = "thought?" if budget else ""
    reasoning = f"{thought} {closes(syntax.think)}"
    if start == Start.REASONING:
        return f"{reasoning} {respond}"
    return f"({opens(syntax.think)} {reasoning})? {respond}"


def element_calls(writer: Writer, syntax: ElementSyntax) -> str:
    """The expression of one or more calls."""
    options = []
    for index, tool in enumerate(writer.calls.tools):
        head = opening(syntax, syntax.call, **{syntax.name_attribute: tool.name})
        numbered = head.removesuffix(syntax.separator) + NUMBER
        parts = [f'{writer.literal(numbered)} /"[1-9][0-9]{{0,3}}"/ '
                 f"{writer.literal(syntax.separator)}"]
        for i, (name, schema, needed) in enumerate(properties(tool)):
            rule = f"argument_{index}_{i}"
            given = [argument(writer, syntax, tool, f"{rule}_{kind}", name, kind, part)
                     for kind, part in kinds_of(tool, schema, count())]
            writer.rules.append(f"{rule}: " + " | ".join(given))
            parts.append(rule if needed else f"{rule}?")
        parts.append(writer.literal(closing(syntax, syntax.call)))
        options.append(" ".join(parts))
    return writer.repeated(writer.choice("call", options), "")


def argument(writer: Writer, syntax: ElementSyntax, tool: CallTool, rule: str, key: str,
             kind: str, schema: Any) -> str:
    """One argument's element, of one JSON type."""
    head = opening(syntax, syntax.argument, **{
        syntax.key_attribute: key, syntax.type_attribute: NAMED_KINDS.get(kind, kind)})
    value = writer.value(tool, rule, schema, kind == syntax.string_type,
                         closing(syntax, syntax.argument))
    return f"{writer.literal(head)} {value}"


def kinds_of(tool: CallTool, schema: Any, visits: Iterator[int], depth: int = 0,
             ) -> list[tuple[str, Any]]:
    """The JSON types that a schema allows, each with the schema of its values. visits counts the
    schemas that are read for one argument. Raises RequestError."""
    if next(visits) > CHOICES_MAX:
        raise refuse(f"{tool.field}.parameters", f"has more than {CHOICES_MAX} alternatives of one "
                     "argument, references followed")
    if depth > UNIONS_MAX:
        raise refuse(f"{tool.field}.parameters",
                     f"has alternatives inside alternatives more than {UNIONS_MAX} deep")
    found = resolved(tool, schema)
    if not isinstance(found, dict):
        return [("string", {})]
    shared = {name: schema[name] for name in ("$defs", "definitions")
              if isinstance(schema, dict) and name in schema}
    for name in ("anyOf", "oneOf"):
        if isinstance(found.get(name), list) and "type" not in found:
            made: dict[str, list[Any]] = {}
            for option in found[name]:
                whole = option | shared if isinstance(option, dict) else option
                for kind, part in kinds_of(tool, whole, visits, depth + 1):
                    made.setdefault(kind, []).append(part)
            return [(kind, parts[0] if len(parts) == 1 else {"anyOf": parts} | shared)
                    for kind, parts in made.items()]
    if "type" in found:
        types = found["type"] if isinstance(found["type"], list) else [found["type"]]
        return [(kind, {**found, "type": kind} | shared) for kind in types]
    if "enum" in found or "const" in found:
        values = found["enum"] if "enum" in found else [found["const"]]
        sorted_values: dict[str, list[Any]] = {}
        for value in values:
            sorted_values.setdefault(kind_of(value), []).append(value)
        return [(kind, {"enum": some}) for kind, some in sorted_values.items()]
    if isinstance(found.get("allOf"), list) and found["allOf"]:
        part = found["allOf"][0]
        whole = part | shared if isinstance(part, dict) else part
        return [(kind, {"allOf": [found, {"type": kind}]} | shared)
                for kind, _ in kinds_of(tool, whole, visits, depth + 1)]
    return [("string", found)]


def kind_of(value: Any) -> str:
    """A JSON value's type."""
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", int: "number", float: "number", list: "array"}
    return names.get(type(value), "object")

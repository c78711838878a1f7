"""Tool calls as a grammar: what a model writes in each structural kind, arguments by schema."""

import json
import re
from dataclasses import dataclass
from typing import Any

from helios_dod.frontend.grammars.bounds import refuse
from helios_dod.frontend.grammars.root import Room
from helios_dod.frontend.grammars.spelling import literal
from helios_dod.frontend.grammars.structured import check_schema, schema_grammar
from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.syntax import (
    FrameSyntax,
    JsonSyntax,
    PairSyntax,
    TagSyntax,
)
from helios_dod.frontend.output.terms import NamePlace
from helios_dod.frontend.references import target_of

BLANK = '" "?'
NEWLINE = '"\\n"?'


@dataclass(frozen=True)
class CallTool:
    """A tool that may be called. field: where the request declares it."""

    name: str
    schema: dict[str, Any]
    strict: bool
    field: str


@dataclass(frozen=True)
class Calls:
    """Calls of some tools. several: more than one call. behind_text: free text may come before."""

    tools: tuple[CallTool, ...]
    several: bool
    field: str  # that asks for them
    behind_text: bool = False

    def write(self, bound: Bound, rules: list[str], others: list[dict[str, Any]]) -> str:
        """Adds the rules of one or more calls; their expression."""
        writer = Writer(bound, rules, others, self)
        tool = bound.syntax.tool
        if isinstance(tool, JsonSyntax):
            return writer.marked(tool)
        if isinstance(tool, TagSyntax):
            return writer.tagged(tool)
        if isinstance(tool, PairSyntax):
            return writer.paired(tool)
        if isinstance(tool, FrameSyntax):
            return writer.framed(tool)
        raise AssertionError("an element stream's calls are written by grammars.elements")


class Writer:
    """Writes rules of calls."""

    def __init__(self, bound: Bound, rules: list[str], others: list[dict[str, Any]],
                 calls: Calls) -> None:
        self.bound, self.rules, self.others, self.calls = bound, rules, others, calls
        self.room = Room()
        for tool in calls.tools:
            check_schema(tool.schema, f"{tool.field}.parameters")

    def literal(self, text: str) -> str:
        """Text in Lark, its delimiters as tokens."""
        return literal(self.bound, text)

    def schema(self, name: str, tool: CallTool, schema: Any) -> str:
        """A JSON value by a part of a tool's schema."""
        field = f"{tool.field}.parameters"
        self.others.append({"name": name, **schema_grammar(
            schema, field, lenient=not tool.strict, room=self.room)})
        return f"@{name}"

    def arguments(self, index: int) -> str:
        """A tool's arguments as a JSON object."""
        tool = self.calls.tools[index]
        return self.schema(f"arguments_{index}", tool, {**tool.schema, "type": "object"})

    def repeated(self, one: str, between: str = '"\\n"?') -> str:
        """One call, or several."""
        return f"{one} ({between} {one})*" if self.calls.several else one

    def choice(self, name: str, options: list[str]) -> str:
        """A rule of one of several; its name."""
        self.rules.append(f"{name}: " + " | ".join(options))
        return name

    # JSON between markers

    def marked(self, syntax: JsonSyntax) -> str:
        if syntax.place == NamePlace.OBJECT:
            one = self.choice("call", [self.object_call(syntax, i)
                                       for i in range(len(self.calls.tools))])
            if not syntax.open:
                return one
            self.rules.append(f'marked_call: {self.literal(syntax.open)} "\\n"? {one} "\\n"? '
                              f"{self.literal(syntax.close)}")
            return self.repeated("marked_call")
        if syntax.place == NamePlace.BEFORE:
            return self.before(syntax)
        options = [f"{self.literal(syntax.name_prefix + tool.name + ':')} /[0-9]{{1,4}}/ "
                   f"{self.literal(syntax.name_end)} {self.arguments(i)}"
                   for i, tool in enumerate(self.calls.tools)]
        one = self.choice("call", options)
        self.rules.append(f"marked_call: {self.literal(syntax.item_open)} {one} "
                          f"{self.literal(syntax.item_close)}")
        calls = self.repeated("marked_call", "")
        return f"{self.literal(syntax.open)} {calls} {self.literal(syntax.close)}"

    def object_call(self, syntax: JsonSyntax, index: int) -> str:
        """An object with name and arguments."""
        name = json.dumps(self.calls.tools[index].name)
        keys = " | ".join(json.dumps(json.dumps(key)) for key in syntax.argument_keys)
        return (f'"{{" {BLANK} {json.dumps(json.dumps(syntax.name_keys[0]))} {BLANK} ":" {BLANK} '
                f'{json.dumps(name)} {BLANK} "," {BLANK} ({keys}) {BLANK} ":" {BLANK} '
                f'{self.arguments(index)} {BLANK} "}}"')

    def before(self, syntax: JsonSyntax) -> str:
        """The name before the arguments, or objects of an array where there is no such marker."""
        if not self.bound.is_token(syntax.name_end):
            one = self.choice("call", [self.object_call(syntax, i)
                                       for i in range(len(self.calls.tools))])
            calls = self.repeated(one, f'{BLANK} "," {BLANK}')
            return f'{self.literal(syntax.open)} "[" {calls} "]"'
        options = [f"{self.literal(tool.name)} {self.literal(syntax.name_end)} {self.arguments(i)}"
                   for i, tool in enumerate(self.calls.tools)]
        one = self.choice("call", options)
        self.rules.append(f"marked_call: {self.literal(syntax.open)} {one}")
        return self.repeated("marked_call", "")

    # a tag or a pair of tags for each argument

    def tagged(self, syntax: TagSyntax) -> str:
        one = self.choice("call", [self.tag_call(syntax, i, NEWLINE)
                                   for i in range(len(self.calls.tools))])
        opener, closer = self.literal(syntax.wrapper_open), self.literal(syntax.wrapper_close)
        if syntax.quoted:  # one wrapper around all calls
            if self.calls.behind_text:
                opener = self.behind_text(syntax.wrapper_open)
            return f"{opener} {NEWLINE} {self.repeated(one, NEWLINE)} {NEWLINE} {closer}"
        self.rules.append(f"wrapped_call: {opener} {NEWLINE} {one} {NEWLINE} {closer}")
        return self.repeated("wrapped_call")

    def behind_text(self, opener: str) -> str:
        """An opener that begins with text, before the token by which it is known: free text and
        that text are one lexeme, for a longer match would take the beginning away."""
        found = self.bound.split.search(opener)
        if found is None or found.start() == 0:
            return self.literal(opener)
        text = re.escape(opener[:found.start()]).replace("/", "\\/")
        return f"/(.|\\n)*{text}/ {self.literal(opener[found.start():])}"

    def tag_call(self, syntax: TagSyntax, index: int, newline: str) -> str:
        tool = self.calls.tools[index]
        quote = '"' if syntax.quoted else ""
        head = self.literal(f"{syntax.invoke_open}{tool.name}{quote}>")
        parts = []
        for i, (name, schema, required) in enumerate(properties(tool)):
            rule = f"parameter_{index}_{i}"
            self.rules.append(f"{rule}: " + self.parameter(syntax, tool, rule, name, schema))
            parts.append(f"({rule} {newline})" + ("" if required else "?"))
        return f"{head} {newline} {' '.join(parts)} {self.literal(syntax.invoke_close)}"

    def parameter(self, syntax: TagSyntax, tool: CallTool, rule: str, name: str,
                  schema: Any) -> str:
        """One parameter's tag and value."""
        text = is_text(tool, schema)
        edge = "\n" if syntax.edge_newlines else ""
        close = edge + syntax.parameter_close
        quote = '"' if syntax.quoted else ""
        head = f"{syntax.parameter_open}{name}{quote}"
        if syntax.string_attribute:
            head += f' {syntax.string_attribute}="{"true" if text else "false"}"'
        return (f"{self.literal(head + '>' + edge)} "
                f"{self.value(tool, rule, schema, text, close)}")

    def value(self, tool: CallTool, rule: str, schema: Any, text: bool, close: str) -> str:
        """A value and what closes it."""
        if not text:
            return f"{self.schema(f'{rule}_json', tool, schema)} {self.literal(close)}"
        words = enumerated(schema)
        if words:
            options = " | ".join(self.literal(word) for word in words if word)
            empty = "?" if "" in words else ""
            chosen = f"({options}){empty} " if options else ""
            return f"{chosen}{self.literal(close)}"
        found = resolved(tool, schema)
        low, high = text_bounds(tool, found if isinstance(found, dict) else {})
        pattern = f"/(.|\\n){{{low},{high}}}/" if (low, high) != (0, "") else "/(.|\\n)*/"
        token = self.bound.split.search(close)
        if token:  # text holds none, so the first one ends it, with what the closer has before it
            lead = re.escape(close[:token.start()]).replace("/", "\\/")
            self.rules.append(f"{rule}_text: {pattern[:-1]}{lead}/")
            return f"{rule}_text {self.literal(close[token.start():])}"
        self.rules.append(f"{rule}_text[lazy]: {pattern} {self.literal(close)}")
        return f"{rule}_text"

    def paired(self, syntax: PairSyntax) -> str:
        options = []
        for index, tool in enumerate(self.calls.tools):
            parts = []
            for i, (name, schema, required) in enumerate(properties(tool)):
                rule = f"argument_{index}_{i}"
                value = self.value(tool, rule, schema, is_text(tool, schema), syntax.value_close)
                self.rules.append(
                    f"{rule}: {self.literal(syntax.key_open + name + syntax.key_close)} "
                    f'"\\n"? {self.literal(syntax.value_open)} {value} "\\n"?')
                parts.append(rule if required else f"{rule}?")
            options.append(f'{self.literal(tool.name)} "\\n"? ' + " ".join(parts))
        one = self.choice("call", options)
        self.rules.append(f"wrapped_call: {self.literal(syntax.call_open)} {one} "
                          f"{self.literal(syntax.call_close)}")
        return self.repeated("wrapped_call")

    # messages to recipients

    def framed(self, syntax: FrameSyntax) -> str:
        options = []
        for index, tool in enumerate(self.calls.tools):
            channel = f"{syntax.channel}commentary" if syntax.channel else ""
            head = f"{syntax.recipient}{syntax.tool_prefix}{tool.name}{channel}"
            if syntax.constrain:
                head += f" {syntax.constrain}json"
            if syntax.body is None:
                body = self.arguments(index)
            else:
                body = (f"{self.literal(syntax.body.wrapper_open)} {NEWLINE} "
                        f"{self.tag_call(syntax.body, index, NEWLINE)} {NEWLINE} "
                        f"{self.literal(syntax.body.wrapper_close)}")
            options.append(f"{self.literal(head + syntax.message)} {body}")
        one = self.choice("call", options)
        between = f"{self.literal(syntax.ends[0])} {self.literal(syntax.start + syntax.role)}"
        made = self.repeated(one, between)
        if syntax.body is not None:
            return made
        closer = (syntax.ends[1:] or syntax.ends)[0]  # nothing else finishes a body of arguments
        return f"({made} {self.literal(closer)})"


def properties(tool: CallTool) -> list[tuple[str, Any, bool]]:
    """(name, schema, required) of a tool's parameters, each with the schema's definitions."""
    found = tool.schema.get("properties")
    required = tool.schema.get("required", [])
    shared = {name: tool.schema[name] for name in ("$defs", "definitions") if name in tool.schema}
    made = []
    for name, schema in (found if isinstance(found, dict) else {}).items():
        whole = schema | shared if isinstance(schema, dict) else schema
        made.append((name, whole, name in required))
    return made


def resolved(tool: CallTool, schema: Any) -> Any:
    """A schema behind its first references."""
    for _ in range(16):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = target_of(tool.schema, schema["$ref"])
    return schema


def is_text(tool: CallTool, schema: Any) -> bool:
    """Whether a value stands as plain text: one that is a string, or of no type at all."""
    found = resolved(tool, schema)
    if not isinstance(found, dict):
        return True
    if "type" in found:
        return bool(found["type"] == "string")
    words = enumerated(found)
    return bool(words) or not set(found) & {"anyOf", "oneOf", "allOf", "enum", "const", "$ref"}


def text_bounds(tool: CallTool, schema: dict[str, Any]) -> tuple[int, int | str]:
    """Least and most characters of a string that stands as plain text ("": no most). Raises
    RequestError where a strict tool asks for what plain text cannot be held to."""
    for name in ("pattern", "format"):
        if tool.strict and name in schema:
            raise refuse(f"{tool.field}.parameters",
                         f"gives a string a {name}, which cannot be enforced in this model's tool "
                         "syntax")
    most = schema.get("maxLength")
    return int(schema.get("minLength") or 0), "" if most is None else int(most)


def enumerated(schema: Any) -> list[str]:
    """The texts that a schema names, if it names nothing else."""
    if not isinstance(schema, dict):
        return []
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    words = [value for value in values if isinstance(value, str)]
    return words if len(words) == len(values) else []

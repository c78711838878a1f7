"""Syntax data to and from its message in a core's contract (OutputSyntax of contract.proto).

Messages have the fields of the records here, by name, so any object with them will do and nothing
of protobuf is imported.
"""

from dataclasses import fields, is_dataclass
from enum import IntEnum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from helios_dod.errors import UserError
from helios_dod.frontend.output.marks import Vocabulary
from helios_dod.frontend.output.rehearsal import rehearse
from helios_dod.frontend.output.syntax import (
    ElementSyntax,
    FrameSyntax,
    JsonSyntax,
    OutputSyntax,
    PairSyntax,
    TagSyntax,
    openers_of,
    with_terminals,
)

KINDS: dict[str, type] = {"tags": TagSyntax, "pairs": PairSyntax, "elements": ElementSyntax,
                          "json": JsonSyntax, "frames": FrameSyntax}
TOOL_NAMES = {None: "TOOL_NONE", TagSyntax: "PARAMETER_TAGS", PairSyntax: "KEY_VALUE_TAGS",
              ElementSyntax: "TYPED_ELEMENTS", JsonSyntax: "MARKED_JSON",
              FrameSyntax: "FRAMED_CALLS"}


def selectors(syntax: OutputSyntax) -> tuple[str, str]:
    """Names of the contract's tool_syntax and reasoning_syntax for a syntax."""
    tool = TOOL_NAMES[type(syntax.tool) if syntax.tool else None]
    if isinstance(syntax.tool, ElementSyntax):
        return tool, "THINK_ELEMENT"
    if isinstance(syntax.tool, FrameSyntax):
        return tool, "REASONING_FRAMES"
    return tool, "THINK_TAGS" if syntax.think else "REASONING_NONE"


def to_contract(syntax: OutputSyntax, message: Any) -> Any:
    """Fills an empty OutputSyntax message; returns it."""
    write(syntax, message)
    return message


def write(record: Any, message: Any) -> None:
    """Fills a message with a record of the same fields."""
    for field in fields(record):
        value, name = getattr(record, field.name), field.name
        if name == "tool" and value is not None:
            name = next(kind for kind, cls in KINDS.items() if isinstance(value, cls))
        if value is None:
            continue
        if is_dataclass(value):
            part = getattr(message, name)
            part.SetInParent()
            write(value, part)
        elif isinstance(value, tuple):
            for item in value:
                if isinstance(item, str):
                    getattr(message, name).append(item)
                else:
                    getattr(message, name).add(escape=item[0], character=item[1])
        else:
            setattr(message, name, int(value) if isinstance(value, IntEnum) else value)


def from_contract(message: Any) -> OutputSyntax:
    """The syntax of an OutputSyntax message. Raises UserError naming the field that is wrong."""
    kind = message.WhichOneof("tool")
    values = {field.name: read(message, field.name, hint(OutputSyntax, field.name), "output")
              for field in fields(OutputSyntax) if field.name != "tool"}
    values["tool"] = record_of(
        getattr(message, kind), KINDS[kind], f"output.{kind}") if kind else None
    syntax = OutputSyntax(**values)
    if syntax.think is not None and not message.think.HasField("terminals"):
        syntax = with_terminals(syntax)  # cores of before the field
    check(syntax)
    return syntax


def hint(record: type, name: str) -> Any:
    """The declared type of a record's field; X for `X | None`."""
    declared = get_type_hints(record)[name]
    if get_origin(declared) is UnionType:
        return next(part for part in get_args(declared) if part is not type(None))
    return declared


def record_of(message: Any, record: type, path: str) -> Any:
    """A record from a message with its fields."""
    return record(**{field.name: read(message, field.name, hint(record, field.name), path)
                     for field in fields(record)})


def read(message: Any, name: str, declared: Any, path: str) -> Any:
    """One field's value."""
    value = getattr(message, name)
    if is_dataclass(declared):
        assert isinstance(declared, type)
        has = message.HasField(name)
        optional = name in ("think", "body")
        return None if optional and not has else record_of(value, declared, f"{path}.{name}")
    if get_origin(declared) is tuple:
        return tuple(item if isinstance(item, str) else (item.escape, item.character)
                     for item in value)
    if isinstance(declared, type) and issubclass(declared, IntEnum):
        if value not in list(declared):
            raise UserError(f"{path}.{name}: {[int(item) for item in declared]} expected, "
                            f"got {value}")
        return declared(value)
    return value


REQUIRED: dict[type, tuple[str, ...]] = {
    TagSyntax: ("wrapper_open", "wrapper_close", "invoke_open", "invoke_close", "parameter_open",
                "parameter_close"),
    PairSyntax: ("call_open", "call_close", "key_open", "key_close", "value_open", "value_close"),
    ElementSyntax: ("open", "close", "separator", "message", "think", "response", "tools", "call",
                    "argument", "json", "name_attribute", "key_attribute", "type_attribute",
                    "string_type"),
    JsonSyntax: ("name_keys", "argument_keys"),
    FrameSyntax: ("start", "message", "ends", "role", "recipient"),
}


def check(syntax: OutputSyntax, vocabulary: Vocabulary | None = None) -> None:
    """Refuses data that no parser can be made of. Raises UserError.

    vocabulary: of the tokens that delimiters may be; without one, all are matched by bytes."""
    if syntax.tool is not None:
        for name in REQUIRED[type(syntax.tool)]:
            if not getattr(syntax.tool, name):
                raise UserError(f"output: {type(syntax.tool).__name__}.{name} is empty")
    if syntax.think is not None:
        if isinstance(syntax.tool, ElementSyntax | FrameSyntax):
            raise UserError("output.think: elements and frames carry their own reasoning")
        if not syntax.think.open or not syntax.think.close:
            raise UserError("output.think: open and close must not be empty")
        openers = openers_of(syntax.tool)
        for marker in syntax.think.terminals.markers:
            if marker not in openers:
                raise UserError(f"output.think.terminals: an opener of the tool syntax expected, "
                                f"one of {', '.join(openers) or 'none'}, got {marker!r}")
    rehearse((vocabulary or Vocabulary([])).bind(syntax))

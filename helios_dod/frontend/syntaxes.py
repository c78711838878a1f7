"""Choosing an output syntax by name: a tool syntax and a reasoning syntax, paired.

Names are those of `output.families.catalog`. Element and frame syntaxes carry their own reasoning.
"""

from dataclasses import replace

from helios_dod.errors import UserError
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.syntax import (
    ElementSyntax,
    FrameSyntax,
    OutputSyntax,
    with_terminals,
)

NONE = "none"
TOOL_NAMES = tuple(name for name, syntax in CATALOG.items() if syntax.tool is not None)
REASONING_NAMES = tuple(name for name, syntax in CATALOG.items()
                        if syntax.tool is None and syntax.think is not None)


def joined(*parts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts of several lists, each once."""
    return tuple(dict.fromkeys(text for part in parts for text in part))


def choose(option: str, name: str, names: tuple[str, ...]) -> OutputSyntax | None:
    """A named syntax; None for `none`. Raises UserError."""
    if name == NONE:
        return None
    if name not in names:
        raise UserError(f"{option}: expected {', '.join(names)} or {NONE}, got {name!r}")
    return CATALOG[name]


def compose(tool: str | None, reasoning: str | None,
            base: OutputSyntax | None = None) -> OutputSyntax | None:
    """A syntax of a named tool syntax and a named reasoning syntax, or None: all output is text.

    base: what a name that is None keeps. Raises UserError naming the option that does not fit."""
    syntax = base or OutputSyntax()
    if tool is not None:
        chosen = choose("--tool-syntax", tool, TOOL_NAMES)
        if chosen is None:
            syntax = replace(syntax, tool=None)
        else:
            think = None if carries_reasoning(chosen) else syntax.think
            envelope = syntax.envelope if base and base.envelope.opener else chosen.envelope
            syntax = replace(
                chosen, think=think, envelope=envelope,
                tokens=joined(chosen.tokens, syntax.tokens if base else ()),
                dropped=joined(chosen.dropped, syntax.dropped if base else ()))
    if reasoning is not None:
        chosen = choose("--reasoning-syntax", reasoning, REASONING_NAMES)
        if chosen is None:
            syntax = replace(syntax, think=None)
        elif carries_reasoning(syntax):
            raise UserError(f"--reasoning-syntax: {reasoning!r} cannot be paired with a tool "
                            "syntax that carries its own reasoning")
        else:
            envelope = syntax.envelope if syntax.envelope.opener else chosen.envelope
            syntax = replace(
                syntax, think=chosen.think, envelope=envelope,
                tokens=joined(syntax.tokens, chosen.tokens),
                dropped=joined(syntax.dropped, chosen.dropped))
    if tool is not None or reasoning is not None:
        syntax = with_terminals(syntax)
    return None if syntax.tool is None and syntax.think is None else syntax


def carries_reasoning(syntax: OutputSyntax) -> bool:
    """Whether reasoning is part of the tool syntax."""
    return isinstance(syntax.tool, ElementSyntax | FrameSyntax)


def without_tools(syntax: OutputSyntax) -> OutputSyntax | None:
    """The syntax of a request that declares no tools: calls are text, reasoning is read."""
    if carries_reasoning(syntax):
        return syntax
    if syntax.think is None:
        return None
    plain = replace(syntax, tool=None, tokens=(syntax.think.open, syntax.think.close))
    return with_terminals(plain)

"""Chat templates: Jinja source from the core, run in an immutable sandbox with bounds.

The names that templates may use are those of Hugging Face's `apply_chat_template`: messages, tools,
documents, add_generation_prompt, the core's template tokens, raise_exception, strftime_now, tojson
(plain JSON, no HTML escapes), loop controls and the `generation` block (here without effect).
Every loop looks at the clock, so a template that writes nothing ends in time too.
"""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT_CHARACTERS_MAX = 8 << 20
RENDER_SECONDS_MAX = 10.0
MARK = "\U0010fff0"  # see prompt.py: in text that must not become a control token
MARK_ESCAPED = json.dumps(MARK)[1:-1]
CLOCK = "look_at_the_clock"  # what loops call


class TemplateError(ValueError):
    """The template refused the messages, failed, or wrote too much; the text says which."""


class GenerationBlock(Extension):
    """{% generation %} ... {% endgeneration %}: marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012, the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The block's body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def raise_exception(message: str) -> None:
    """Lets a template refuse its input."""
    raise TemplateError(str(message))


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """JSON without Jinja's HTML escapes, as templates expect it."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)
    return text.replace(MARK_ESCAPED, MARK) if ensure_ascii else text


def strftime_now(pattern: str) -> str:
    """The local time, formatted."""
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """A compiled template. Raises TemplateError if the source is not a template."""

    def __init__(self, source: str, template_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
        try:
            tree = environment.parse(source)
            self.variables = meta.find_undeclared_variables(tree)
            for loop in list(tree.find_all(nodes.For)):
                look = nodes.Call(nodes.Name(CLOCK, "load"), [], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(look).set_lineno(loop.lineno))
            self.template = environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"chat template: {error}") from None
        self.tokens = template_tokens

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True,
               tools: Sequence[Any] | None = None, documents: Sequence[Any] | None = None,
               variables: dict[str, Any] | None = None) -> str:
        """The prompt text of messages. variables: others that the template may use.

        Raises TemplateError."""
        pieces, size = [], 0
        deadline = time.monotonic() + RENDER_SECONDS_MAX

        def look() -> None:
            if time.monotonic() > deadline:
                raise TemplateError(f"chat template: more than {RENDER_SECONDS_MAX} seconds")

        given = {**self.tokens, **(variables or {}), "messages": messages, "tools": tools,
                 "documents": documents, "add_generation_prompt": add_generation_prompt,
                 CLOCK: look}
        try:
            for piece in self.template.generate(given):
                size += len(piece)
                if size > OUTPUT_CHARACTERS_MAX:
                    raise TemplateError(
                        f"chat template: more than {OUTPUT_CHARACTERS_MAX} characters of output")
                look()
                pieces.append(piece)
        except TemplateError:
            raise
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError,
                AttributeError, RecursionError, MemoryError) as error:
            raise TemplateError(f"chat template: {type(error).__name__}: {error}") from None
        return "".join(pieces)

"""Chat templates: Jinja source from the core, run in an immutable sandbox with bounds.

The names that templates may use are those of Hugging Face's `apply_chat_template`: messages, tools,
documents, add_generation_prompt, the core's template tokens, raise_exception, strftime_now, tojson
(plain JSON, no HTML escapes), loop controls and the `generation` block (here without effect).
Every loop looks at the clock, so a template that writes nothing ends in time too. Nothing is
computed while a template is compiled, and one operation, filter or method makes nothing longer
than the output may be.
"""

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from helios_dod.errors import UserError

OUTPUT_CHARACTERS_MAX = 8 << 20
RENDER_SECONDS_MAX = 10.0
SOURCE_CHARACTERS_MAX = 1 << 18
SOURCE_TOKENS_MAX = 20_000  # of Jinja's lexer; compiling takes memory by them
INTEGER_BITS_MAX = 1 << 12
PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap",
                     "batch", "slice"))  # methods and filters that make as much as a number says
NUMBER_MAX = 10_000
WIDTH = re.compile(r"[0-9]{5}|\*")  # in a format: a field too wide, or one that an argument sets
MARK = "\U0010fff0"  # see prompt.py: in text that must not become a control token
MARK_ESCAPED = json.dumps(MARK)[1:-1]
CLOCK = "look_at_the_clock"  # what loops call
JOIN = "join_texts"  # what `~` calls


class TemplateError(UserError):
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


@jinja2.pass_context
def as_it_is(context: Context, value: Any) -> Any:
    """Jinja's `finalize`. One that takes the context keeps it from computing output in advance."""
    return value


def size_of(value: Any) -> int:
    """How much a value adds to what it is joined with."""
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def check_size(size: int) -> None:
    """Refuses to make a text or list of that size."""
    if size > OUTPUT_CHARACTERS_MAX:
        raise TemplateError(
            f"chat template: a value of more than {OUTPUT_CHARACTERS_MAX} characters")


def check_call(name: str, subject: Any, arguments: Sequence[Any]) -> None:
    """Refuses a method or filter of that name that would make far more than it is given."""
    first, second = (*arguments, None, None)[:2]
    if name in PADDING:
        for value in arguments:
            if isinstance(value, int | float) and abs(value) > NUMBER_MAX:
                raise TemplateError(f"chat template: {name}: a number of at most {NUMBER_MAX} "
                                    "expected")
    if not isinstance(subject, str):
        return
    if name == "replace" and isinstance(first, str) and isinstance(second, str):
        check_size(len(subject) + subject.count(first) * len(second))
    elif name == "indent":
        width = first if isinstance(first, int) else size_of(first)
        check_size(len(subject) + (subject.count("\n") + 1) * width)
    elif name == "join" and isinstance(first, list | tuple):
        check_size(sum(size_of(part) + len(subject) for part in first))
    elif name == "translate" and isinstance(first, dict):
        check_size(len(subject) * max(map(size_of, first.values()), default=1))
    elif name in ("format", "format_map") and WIDTH.search(subject):
        raise TemplateError("chat template: format: fields of a fixed width below 10000 expected")


def join_texts(*values: Any) -> str:
    """The operation `~`."""
    texts = [str(value) for value in values]
    check_size(sum(map(len, texts)))
    return "".join(texts)


class Sandbox(ImmutableSandboxedEnvironment):
    """Bounds what one operation makes."""

    intercepted_binops = frozenset(("+", "*", "**", "%", "//"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation, if its result is not too large."""
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "*" and not whole:
            size, count = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(count, int):
                check_size(size_of(size) * max(count, 0))
        elif (operator == "*" and left.bit_length() + right.bit_length() > INTEGER_BITS_MAX) or (
                operator == "**" and whole and left.bit_length() * right > INTEGER_BITS_MAX):
            raise TemplateError("chat template: a number too large")
        elif operator == "+":
            check_size(size_of(left) + size_of(right))
        elif operator == "%" and isinstance(left, str):
            check_call("format", left, ())
        return super().call_binop(context, operator, left, right)

    def call(
        __self, __context: Context, __obj: Any, *args: Any, **kwargs: Any,
    ) -> Any:
        """A call, if its arguments are not too large."""
        subject = getattr(__obj, "__self__", None)
        if isinstance(subject, str):
            check_call(__obj.__name__, subject, (*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)


def bounded(name: str, work: Any) -> Any:
    """A filter that refuses arguments that are too large. Its other ways stay as they are."""
    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = args[1:] if hasattr(work, "jinja_pass_arg") else args
        check_call(name, given[0] if given else None, (*given[1:], *kwargs.values()))
        return work(*args, **kwargs)

    return run


def make_sandbox() -> Sandbox:
    """The environment of every template."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols],
        optimized=False, finalize=as_it_is)
    environment.filters["tojson"] = to_json
    for name in ("replace", "format", *PADDING & environment.filters.keys()):
        environment.filters[name] = bounded(name, environment.filters[name])
    del environment.globals["lipsum"]  # makes text of any length
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment


def parse(environment: Sandbox, source: str) -> tuple[nodes.Template, set[str]]:
    """The tree of a template with its bounds built in, and the variables that it uses."""
    if len(source) > SOURCE_CHARACTERS_MAX:
        raise TemplateError(f"chat template: {len(source)} characters; at most "
                            f"{SOURCE_CHARACTERS_MAX} are accepted")
    for count, _ in enumerate(environment.lexer.tokeniter(source, None)):
        if count >= SOURCE_TOKENS_MAX:
            raise TemplateError(f"chat template: more than {SOURCE_TOKENS_MAX} tokens")
    tree = environment.parse(source)
    if tree.find(nodes.EvalContextModifier):
        raise TemplateError("chat template: blocks that change escaping are not supported")
    variables = meta.find_undeclared_variables(tree)
    for loop in list(tree.find_all(nodes.For)):
        look = nodes.Call(nodes.Name(CLOCK, "load"), [], [], None, None)
        loop.body.insert(0, nodes.ExprStmt(look).set_lineno(loop.lineno))
    return Joining().visit(tree), variables


class Joining(NodeTransformer):
    """Puts a bounded call in the place of every `~`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(JOIN, "load"), node.nodes, [], None, None)
        return call.set_lineno(node.lineno)


class ChatTemplate:
    """A compiled template. Raises TemplateError if the source is not a template."""

    def __init__(self, source: str, template_tokens: dict[str, str]) -> None:
        environment = make_sandbox()
        try:
            tree, self.variables = parse(environment, source)
            self.template = environment.from_string(tree)
        except TemplateError:
            raise
        except Exception as error:  # Jinja and Python's compiler: syntax, recursion, numbers
            raise TemplateError(f"chat template: {error or type(error).__name__}") from None
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
                 CLOCK: look, JOIN: join_texts}
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
        except Exception as error:  # whatever the template's own operations raise
            raise TemplateError(f"chat template: {type(error).__name__}: {error}") from None
        return "".join(pieces)

"""The sandbox of chat templates: what they may use, and how much one operation of them makes.

Nothing is computed while a template is compiled. An operation, filter or method makes nothing
longer than a prompt may be, and no list is written out that would be longer. What compares lists of
lists may still take its time.
"""

import json
import re
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
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from helios_dod.errors import UserError

OUTPUT_CHARACTERS_MAX = 8 << 20
SOURCE_CHARACTERS_MAX = 1 << 18
SOURCE_TOKENS_MAX = 20_000  # of Jinja's lexer; compiling takes memory by them
INTEGER_BITS_MAX = 1 << 12
PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap",
                     "batch", "slice"))  # methods and filters that make as much as a number says
NUMBER_MAX = 10_000
# In a format: a field too wide, or one that an argument sets.
WIDTH = re.compile(r"[0-9]{5}|%[-+ #0-9.]*\*|:[^}]*\{")
TEXT_MAKERS = frozenset((  # methods and filters that write out what they are given
    "capitalize", "center", "e", "escape", "forceescape", "format", "format_map", "indent", "join",
    "lower", "pprint", "replace", "safe", "string", "striptags", "sum", "title", "tojson", "trim",
    "truncate", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"))
VALUES_MAX = 1 << 19  # in what is written out at once
CONTAINERS = (list, tuple, dict, set, frozenset, Namespace)
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


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """JSON without Jinja's HTML escapes, as templates expect it."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)
    return text.replace(MARK_ESCAPED, MARK) if ensure_ascii else text


def raise_exception(message: Any) -> None:
    """Lets a template refuse its input."""
    check_text(message)
    raise TemplateError(str(message))


def strftime_now(pattern: str) -> str:
    """The local time, formatted."""
    return datetime.now().strftime(pattern)


@jinja2.pass_context
def as_it_is(context: Context, value: Any) -> Any:
    """Jinja's `finalize`. One that takes the context keeps it from computing output in advance."""
    check_text(value)
    return value


def size_of(value: Any) -> int:
    """How much a value adds to what it is joined with."""
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def check_size(size: int) -> None:
    """Refuses to make a text or list of that size."""
    if size > OUTPUT_CHARACTERS_MAX:
        raise TemplateError(
            f"chat template: a value of more than {OUTPUT_CHARACTERS_MAX} characters")


def check_text(value: Any) -> None:
    """Refuses a value whose text is too long: lists may hold the same list many times over."""
    waiting, size, count = [value] if isinstance(value, CONTAINERS) else [], 0, 0
    while waiting:
        part = waiting.pop()
        count += 1
        if count > VALUES_MAX:
            raise TemplateError(f"chat template: a text of more than {VALUES_MAX} values")
        size += len(part) if isinstance(part, str | bytes) else 1
        check_size(size)
        if isinstance(part, Namespace):
            part = object.__getattribute__(part, "_Namespace__attrs")
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, CONTAINERS):
            waiting += part


def check_call(name: str, subject: Any, arguments: Sequence[Any]) -> None:
    """Refuses a method or filter of that name that would make far more than it is given."""
    numbers = [value for value in arguments if isinstance(value, int | float)]
    if name in PADDING and any(abs(value) > NUMBER_MAX for value in numbers):
        raise TemplateError(f"chat template: {name}: a number of at most {NUMBER_MAX} expected")
    if name in TEXT_MAKERS:
        for value in (subject, *arguments):
            check_text(value)
    texts = [value for value in arguments if isinstance(value, str)]
    longest = max(map(len, texts), default=1)
    if name in ("join", "sum"):  # a method of the text between, or a filter of what is joined
        for items, between in ((subject, longest), *((part, size_of(subject))
                                                     for part in arguments)):
            if isinstance(items, list | tuple):
                check_size(sum(size_of(item) + between for item in items))
    if not isinstance(subject, str):
        return
    if name == "replace" and len(texts) > 1:
        count = max(subject.count(text) for text in texts)
        check_size(len(subject) + count * longest)
    elif name in ("indent", "wordwrap"):
        check_size(len(subject) + (subject.count("\n") + 1) * int(max(numbers, default=longest)))
    elif name == "translate":
        largest = [max(map(size_of, part.values()), default=1) for part in arguments
                   if isinstance(part, dict)]
        check_size(len(subject) * max(largest, default=1))
    elif name in ("format", "format_map"):
        if WIDTH.search(subject):
            raise TemplateError("chat template: format: fields of a fixed width below 10000 "
                                "expected")
        values = [part for value in arguments
                  for part in (value.values() if isinstance(value, dict) else (value,))]
        fields = max(subject.count("{"), subject.count("%"))
        check_size(len(subject) + fields * max(map(size_of, values), default=1))


def join_texts(*values: Any) -> str:
    """The operation `~`."""
    for value in values:
        check_text(value)
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
            check_call("format", left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja's own form of a text's `format`, if what it makes is not too large."""
        work = super().wrap_str_format(value)
        if work is None:
            return None

        @wraps(work)
        def run(*args: Any, **kwargs: Any) -> Any:
            check_call("format", value.__self__, (*args, *kwargs.values()))
            return work(*args, **kwargs)

        return run

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
    for name in (PADDING | TEXT_MAKERS) & environment.filters.keys():
        environment.filters[name] = bounded(name, environment.filters[name])
    del environment.globals["lipsum"]  # makes text of any length
    environment.globals["strftime_now"] = strftime_now
    environment.globals["raise_exception"] = raise_exception
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

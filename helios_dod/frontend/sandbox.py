"""The sandbox of chat templates: what they may use, and how much one operation of them makes.

Nothing is computed while a template is compiled. An operation, filter or method makes nothing
longer than a prompt may be, and no list is written out that would be longer; what all of them make
in one rendering is counted too. Filters and methods that are not known to be bounded are refused.
What compares lists of lists may still take its time.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from itertools import islice
from string import Formatter
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.environment import Environment
from jinja2.ext import loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from helios_dod.errors import UserError
from helios_dod.frontend.generation_block import GenerationBlock

OUTPUT_CHARACTERS_MAX = 8 << 20
SOURCE_CHARACTERS_MAX = 1 << 18
SOURCE_TOKENS_MAX = 20_000  # of Jinja's lexer; compiling takes memory by them
INTEGER_BITS_MAX = 1 << 12
BYTES_MADE_MAX = 1 << 28  # by all operations of one rendering
INDENT_MAX = 8
SEPARATOR_MAX = 4  # characters of one of JSON's separators
FIELD_MAX = 999  # the width or precision of a format's field
ARGUMENTS_MAX = 1000  # of one call
PATTERN_MAX = 256  # characters of a time's pattern
FIELD = re.compile(r"%(?:\(\w*\))?[-+ #0]*([0-9]*)(?:\.([0-9]*))?[hlL]?[diouxXeEfFgGcrsa%]|%")
LINE_END = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
FILTERS = frozenset((  # all others are refused
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list",
    "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
    "select", "selectattr", "sort", "string", "striptags", "sum", "title", "tojson", "trim",
    "truncate", "unique", "upper"))
METHODS = frozenset((  # of texts and numbers; all others are refused
    "bit_length", "capitalize", "casefold", "count", "endswith", "find", "format", "format_map",
    "index", "is_integer", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper"))
TEXT_MAKERS = frozenset((  # methods and filters that write out what they are given
    "capitalize", "e", "escape", "format", "format_map", "indent", "lower", "replace", "safe",
    "string", "striptags", "title", "tojson", "trim", "truncate", "upper"))
VALUES_MAX = 1 << 19  # in what is written out at once
CONTAINERS = (list, tuple, dict, set, frozenset, Namespace)
MARK = "\U0010fff0"  # see prompt.py: in text that must not become a control token
MARK_ESCAPED = json.dumps(MARK)[1:-1]
CLOCK = "look_at_the_clock"  # what loops call
JOIN = "join_texts"  # what `~` calls
CHARGE = "charge"  # what slices call


class TemplateError(UserError):
    """The template refused the messages, failed, or wrote too much; the text says which."""


class Budget:
    """What the operations of one rendering have made. look: raises when the time is over."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look, self.made = look, 0

    def add(self, size: int) -> None:
        """Refuses what is too much in all."""
        self.look()
        self.made += size
        if self.made > BYTES_MADE_MAX:
            raise TemplateError(f"chat template: more than {BYTES_MADE_MAX} bytes made by its "
                                "operations")


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")


def charge(value: Any) -> Any:
    """The value, counted."""
    if isinstance(value, str | bytes | list | tuple | dict | set):
        BUDGET.get().add(sys.getsizeof(value))
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise TemplateError("chat template: a number too large")
    return value


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """JSON without Jinja's HTML escapes, as templates expect it."""
    check_indent("tojson", indent)
    if separators is not None and any(len(part) > SEPARATOR_MAX for part in separators):
        raise TemplateError(f"chat template: tojson: separators of at most {SEPARATOR_MAX} "
                            "characters expected")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                               sort_keys=sort_keys)
    # With an indent, the text grows by the depth too: it is counted while it is made.
    text = encoder.encode(value) if indent is None else join_all("", encoder.iterencode(value))
    return text.replace(MARK_ESCAPED, MARK) if ensure_ascii else text


def check_indent(name: str, indent: Any) -> None:
    """Refuses an indent, a number or a text, that is too large."""
    if (len(indent) if isinstance(indent, str) else indent or 0) > INDENT_MAX:
        raise TemplateError(f"chat template: {name}: an indent of at most {INDENT_MAX} expected")


def raise_exception(message: Any) -> None:
    """Lets a template refuse its input."""
    check_text(message)
    raise TemplateError(str(message))


def strftime_now(pattern: str) -> str:
    """The local time, formatted."""
    if len(pattern) > PATTERN_MAX:
        raise TemplateError(f"chat template: strftime_now: a pattern of at most {PATTERN_MAX} "
                            "characters expected")
    return datetime.now().strftime(pattern)


@jinja2.pass_context
def as_it_is(context: Context, value: Any) -> Any:
    """Jinja's `finalize`. One that takes the context keeps it from computing output in advance."""
    check_text(value)
    return value if isinstance(value, str) else charge(str(value))


def size_of(value: Any) -> int:
    """How much a value adds to what it is joined with."""
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def check_size(size: int) -> None:
    """Refuses to make a text or list of that size."""
    if size > OUTPUT_CHARACTERS_MAX:
        raise TemplateError(
            f"chat template: a value of more than {OUTPUT_CHARACTERS_MAX} characters")


def check_text(value: Any) -> int:
    """Refuses a value whose text is too long: lists may hold the same list many times over.

    Returns about how long it is."""
    if isinstance(value, str | bytes):
        return len(value)
    waiting, size, count = [value], 0, 0
    while waiting:
        part = waiting.pop()
        count += 1
        if count > VALUES_MAX:
            raise TemplateError(f"chat template: a text of more than {VALUES_MAX} values")
        if isinstance(part, str | bytes):
            size += len(part)
        else:
            size += part.bit_length() // 3 + 1 if isinstance(part, int) else 1
        check_size(size)
        if isinstance(part, Namespace):
            part = object.__getattribute__(part, "_Namespace__attrs")
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, CONTAINERS):
            waiting += part
    return size


def check_call(name: str, subject: Any, arguments: Sequence[Any]) -> None:
    """Refuses a method or filter of that name that would make far more than it is given."""
    if name in TEXT_MAKERS:
        for value in (subject, *arguments):
            check_text(value)
    if name in ("replace", "indent", "title", "striptags", "escape", "e"):
        subject = str(subject)
    if name == "replace":
        texts = [str(value) for value in arguments]
        count = max((subject.count(text) for text in texts), default=0)
        check_size(len(subject) + count * max(map(len, texts), default=0))
    elif name == "indent":
        for value in arguments:
            check_indent(name, value)
        check_count(LINE_END.finditer(subject))
        check_size(len(subject) + (subject.count("\n") + 1) * INDENT_MAX)
    elif name in ("title", "striptags"):
        check_count(subject)
    elif name in ("e", "escape"):
        check_size(len(subject) + 4 * sum(map(subject.count, "&<>'\"")))
    elif name == "splitlines":
        check_count(LINE_END.finditer(subject))
    elif name in ("split", "rsplit"):
        between = next((part for part in arguments if isinstance(part, str)), None)
        most = next((part for part in arguments if isinstance(part, int)), -1)
        if not 0 <= most < VALUES_MAX:
            check_count(re.finditer(re.escape(between) if between else r"\S+", subject))


def check_count(values: Iterable[Any]) -> None:
    """Refuses to make a list of so many."""
    if sum(1 for _ in islice(values, VALUES_MAX + 1)) > VALUES_MAX:
        raise TemplateError(f"chat template: a list of more than {VALUES_MAX} values")


def check_format(fields: Iterable[Sequence[int]], size: int, arguments: Iterable[Any]) -> None:
    """Refuses a format of that size that makes too much. fields: the numbers in each of them."""
    longest = max(map(check_text, arguments), default=0) + 400  # a float's digits
    for numbers in fields:
        if any(number > FIELD_MAX for number in numbers):
            raise TemplateError("chat template: format: fields of a fixed width of at most "
                                f"{FIELD_MAX} expected")
        size += longest + sum(numbers)
        check_size(size)


def check_percent(pattern: str, arguments: Iterable[Any]) -> None:
    """Refuses an operation `%` that makes too much."""
    def fields() -> Iterable[Sequence[int]]:
        for field in FIELD.finditer(pattern):
            if len(field[0]) == 1:
                raise TemplateError("chat template: format: a field without a fixed width")
            yield [number_of(text) for text in field.groups() if text]

    check_format(fields(), len(pattern), arguments)


def check_braces(pattern: str, arguments: Iterable[Any]) -> None:
    """Refuses a text's `format` that makes too much."""
    def fields() -> Iterable[Sequence[int]]:
        for _, name, form, _ in Formatter().parse(pattern):
            if name is None:
                continue
            if form and "{" in form:
                raise TemplateError("chat template: format: a field without a fixed width")
            yield [number_of(text) for text in re.findall("[0-9]+", form or "")]

    check_format(fields(), len(pattern), arguments)


def number_of(digits: str) -> int:
    """A number that is too long to be read is too large as well."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 9 else FIELD_MAX + 1


def join_all(between: str, items: Iterable[Any]) -> str:
    """A text's `join`, counted item by item."""
    texts, size = [], 0
    for item in items:
        size += check_text(item)
        check_size(size)
        text = item if isinstance(item, str) else charge(str(item))
        size += len(between)
        check_size(size)
        texts.append(text)
        if len(texts) % 1024 == 0:
            BUDGET.get().look()
    check_size(sum(map(len, texts)))
    return str(charge(between.join(texts)))


def join_texts(*values: Any) -> str:
    """The operation `~`."""
    return join_all("", values)


@jinja2.pass_environment
def join_filter(environment: Environment, value: Iterable[Any], d: Any = "",
                attribute: str | int | None = None) -> str:
    """Jinja's `join`."""
    check_text(d)
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return join_all(str(d), value)


def list_filter(value: Iterable[Any]) -> list[Any]:
    """Jinja's `list`."""
    made = list(islice(value, VALUES_MAX + 1))
    check_count(made)
    return made


@jinja2.pass_environment
def sum_filter(environment: Environment, iterable: Iterable[Any],
               attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's `sum`, of numbers only."""
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    total = start
    for item in (0, *list_filter(iterable)):
        if not isinstance(item, int | float) or not isinstance(total, int | float):
            raise TemplateError("chat template: sum: only numbers are supported")
        total += item
    return total


def refused(name: str) -> Callable[..., Any]:
    """In the place of a filter that is not known to be bounded."""
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TemplateError(f"chat template: the filter {name} is not supported")

    return refuse


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
            check_percent(left, right if isinstance(right, tuple) else (right,))
        return charge(super().call_binop(context, operator, left, right))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What a macro or a block wrote."""
        return join_all("", pieces)

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja's own form of a text's `format`, if what it makes is not too large."""
        work = super().wrap_str_format(value)
        if work is None:
            return None

        @wraps(work)
        def run(*args: Any, **kwargs: Any) -> Any:
            check_braces(value.__self__, (*args, *kwargs.values()))
            return work(*args, **kwargs)

        return run

    def call(
        __self, __context: Context, __obj: Any, *args: Any, **kwargs: Any,
    ) -> Any:
        """A call, if its arguments are not too large."""
        if len(args) > ARGUMENTS_MAX:
            raise TemplateError(f"chat template: a call with more than {ARGUMENTS_MAX} arguments")
        subject = getattr(__obj, "__self__", None)
        if isinstance(subject, str | bytes | int | float) or (
                isinstance(subject, type) and subject is not dict):
            name = __obj.__name__
            if name not in METHODS:
                raise TemplateError(f"chat template: the method {name} is not supported")
            if name == "join" and isinstance(subject, str) and len(args) == 1 and not kwargs:
                return join_all(subject, args[0])
            check_call(name, subject, (*args, *kwargs.values()))
        return charge(super().call(__context, __obj, *args, **kwargs))


def bounded(name: str, work: Any) -> Any:
    """A filter that refuses arguments that are too large. Its other ways stay as they are."""
    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = args[1:] if hasattr(work, "jinja_pass_arg") else args
        subject: Any = given[0] if given else None
        others = (*given[1:], *kwargs.values())
        if name == "format":
            if not isinstance(subject, str):
                raise TemplateError("chat template: format: only texts are supported")
            check_percent(subject, others)
        elif name in ("sort", "groupby", "unique", "dictsort") and hasattr(subject, "__len__"):
            check_count(subject)
        elif name in ("sort", "groupby", "unique"):
            args = (*args[:len(args) - len(given)], list_filter(subject), *given[1:])
        check_call(name, subject, others)
        return charge(work(*args, **kwargs))

    return run


def make_sandbox() -> Sandbox:
    """The environment of every template."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols],
        optimized=False, finalize=as_it_is)
    environment.filters["tojson"] = to_json
    environment.filters.update(join=join_filter, list=list_filter, sum=sum_filter)
    for name, work in list(environment.filters.items()):
        environment.filters[name] = bounded(name, work) if name in FILTERS else refused(name)
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
    """Puts a bounded call in the place of every `~`, and counts what slices make."""

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        call = nodes.Call(nodes.Name(CHARGE, "load"), [node], [], None, None)
        return call.set_lineno(node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(JOIN, "load"), node.nodes, [], None, None)
        return call.set_lineno(node.lineno)

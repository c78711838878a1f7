"""The sandbox of chat templates: what they may use, and how much one operation of them makes.

Nothing is computed while a template is compiled. An operation, filter or method makes nothing
longer than a prompt may be, and no list is written out, compared, looked up or sorted that would be
longer; what all of them make in one rendering is counted too, and each looks at the clock. Filters
and methods that are not known to be bounded are refused.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.environment import Environment
from jinja2.ext import loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from helios_dod.frontend.generation_block import GenerationBlock
from helios_dod.frontend.sizes import (
    ATTRIBUTE_MAX,
    BUDGET,
    CONTAINERS,
    INTEGER_BITS_MAX,
    VALUE_NBYTES,
    TemplateError,
    charge,
    charge_parts,
    charge_values,
    check_braces,
    check_call,
    check_indent,
    check_percent,
    check_size,
    check_text,
    compared,
    listed,
    looking,
    searched,
    size_of,
)

SOURCE_CHARACTERS_MAX = 1 << 18
SOURCE_TOKENS_MAX = 20_000  # of Jinja's lexer; compiling takes memory by them
SEPARATOR_MAX = 4  # characters of one of JSON's separators
ARGUMENTS_MAX = 1000  # of one call
PATTERN_MAX = 256  # characters of a time's pattern
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
CONTAINER_METHODS = frozenset(("copy", "count", "get", "index", "items", "keys", "values"))
LAZY = frozenset(("map", "reject", "rejectattr", "select", "selectattr"))  # value by value
ORDERING = frozenset(("groupby", "max", "min", "sort", "unique"))  # compare values, or hash them
COMPARING = frozenset((  # tests
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "filter", "ge", "greaterthan", "gt", "in",
    "le", "lessthan", "lower", "lt", "ne", "test", "upper"))
MARK = "\U0010fff0"  # see prompt.py: in text that must not become a control token
MARK_ESCAPED = json.dumps(MARK)[1:-1]
CLOCK = "look_at_the_clock"  # what loops call
JOIN = "join_texts"  # what `~` calls
CHARGE = "charge"  # what slices call
COMPARED = "compared"  # filters that are put around what operations compare,
SEARCHED = "searched"  # and search,
WRITTEN = "written"  # and around lists, tuples and dicts that are written down


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


@jinja2.pass_environment
def sum_filter(environment: Environment, iterable: Iterable[Any],
               attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's `sum`, of numbers only."""
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    total = start
    for item in (0, *listed(iterable)):
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

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raises what was raised. Jinja's own way makes frames for people who write templates,
        which hold all that a template had made until they are collected."""
        error = sys.exception()
        assert error is not None
        if isinstance(error, jinja2.TemplateSyntaxError):
            error.translated = True  # its text is one line
        raise error

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
        if __obj is dict or __obj is Namespace:
            args = tuple(map(searched, args))
        elif not isinstance(__obj, Macro):
            for value in (*args, *kwargs.values()):
                compared(value)
        if isinstance(subject, CONTAINERS) and not isinstance(subject, Cycler):
            name = __obj.__name__
            if name not in CONTAINER_METHODS:
                raise TemplateError(f"chat template: the method {name} is not supported")
            if name in ("count", "index"):
                compared(subject)
        elif isinstance(subject, (str | bytes | int | float, type)):
            name = __obj.__name__
            if name not in METHODS:
                raise TemplateError(f"chat template: the method {name} is not supported")
            if name == "join" and isinstance(subject, str) and len(args) == 1 and not kwargs:
                return join_all(subject, args[0])
            check_call(name, subject, (*args, *kwargs.values()))
        BUDGET.get().add(VALUE_NBYTES * (len(args) + len(kwargs)))
        return charge_parts(super().call(__context, __obj, *args, **kwargs))


def bounded(name: str, work: Any) -> Any:
    """A filter that refuses arguments that are too large. Its other ways stay as they are."""
    parameters = inspect.signature(work) if name in ORDERING else None

    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        first = 1 if hasattr(work, "jinja_pass_arg") else 0
        before, given = args[:first], args[first:]
        subject: Any = given[0] if given else None
        others = (*given[1:], *kwargs.values())
        if name == "format":
            if not isinstance(subject, str):
                raise TemplateError("chat template: format: only texts are supported")
            check_percent(subject, others)
        elif name in LAZY and subject:
            check_attribute(kwargs.get("attribute", others[0] if others else None))
            args = (*before, looking(subject), *given[1:])
        elif parameters is not None:
            subject = listed(subject)
            args = (*before, subject, *given[1:])
            attribute = parameters.bind(*args, **kwargs).arguments.get("attribute")
            check_keys(subject, attribute, *before)
        elif name == "reverse" and not isinstance(subject, str):
            args = (*before, listed(subject))
        elif name == "dictsort":
            compared(subject)
        check_call(name, subject, others)
        return charge_parts(work(*args, **kwargs))

    return run


def check_attribute(path: Any) -> None:
    """Refuses a path of attributes, which is followed for each value, that is too long."""
    if isinstance(path, str) and len(path) > ATTRIBUTE_MAX:
        raise TemplateError(f"chat template: a path of attributes of at most {ATTRIBUTE_MAX} "
                            "characters expected")


def check_keys(values: list[Any], attribute: Any, environment: Environment) -> None:
    """Refuses to compare values, or those attributes of them, that are too large for that."""
    compared(values)
    if attribute is not None:
        check_attribute(attribute)
        for path in attribute.split(",") if isinstance(attribute, str) else (attribute,):
            compared(listed(map(make_attrgetter(environment, path), values)))


def bounded_test(name: str, work: Any) -> Any:
    """A test that refuses to compare what is too large for that."""
    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        limit = searched if name == "in" else compared
        return work(*map(limit, args), **{key: limit(value) for key, value in kwargs.items()})

    return run


def make_sandbox() -> Sandbox:
    """The environment of every template."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols],
        optimized=False, finalize=as_it_is)
    environment.filters["tojson"] = to_json
    environment.filters.update(join=join_filter, list=listed, sum=sum_filter)
    for name, work in list(environment.filters.items()):
        environment.filters[name] = bounded(name, work) if name in FILTERS else refused(name)
    environment.filters |= {COMPARED: compared, SEARCHED: searched, WRITTEN: charge_values}
    for name in COMPARING:
        environment.tests[name] = bounded_test(name, environment.tests[name])
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
        if loop.test is not None:  # of a loop whose body may never run
            loop.test = nodes.And(nodes.Not(look), loop.test)
    return Joining().visit(tree), variables


class Joining(NodeTransformer):
    """Puts a bounded call in the place of every `~`, counts what slices make and what is written
    down, and looks at what is compared, searched, or a key that is looked up."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        node.expr = limited(COMPARED, node.expr)
        for part in node.ops:
            part.expr = limited(SEARCHED if part.op in ("in", "notin") else COMPARED, part.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        node.key = limited(COMPARED, node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            node.arg = limited(COMPARED, node.arg)
            return node
        call = nodes.Call(nodes.Name(CHARGE, "load"), [node], [], None, None)
        return call.set_lineno(node.lineno)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        return limited(WRITTEN, node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """The same, unless it is a constant, or names that a loop sets."""
        self.generic_visit(node)
        fixed = all(isinstance(part, nodes.Const) for part in node.items)
        return node if node.ctx != "load" or fixed else limited(WRITTEN, node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Inner ones first."""
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(JOIN, "load"), node.nodes, [], None, None)
        return call.set_lineno(node.lineno)


def limited(name: str, node: nodes.Expr) -> nodes.Expr:
    """That filter around an expression, unless it is a constant."""
    if isinstance(node, nodes.Const):
        return node
    made = nodes.Filter(node, name, [], [], None, None)
    made.set_lineno(node.lineno)
    return made

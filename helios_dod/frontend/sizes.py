"""How much a template's operation makes or goes through: nothing longer than a prompt may be.

What is written out, compared or looked up is walked first: lists may hold the same list many times
over, so that few of them have more values than could ever be compared.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import islice
from string import Formatter
from typing import Any

from jinja2.utils import Cycler, Namespace

from helios_dod.errors import UserError

OUTPUT_CHARACTERS_MAX = 8 << 20
INTEGER_BITS_MAX = 1 << 12
BYTES_MADE_MAX = 1 << 28  # by all operations of one rendering, whatever it is given
BYTES_MADE_BASE = 1 << 25  # whoever gives little may make so much,
BYTES_MADE_RATE = 64  # and so much for each character of what is given
OBJECT_LENGTH = 1024  # characters that an object, such as a message, counts for
OTHER_NBYTES = 1024  # counted for an object that is no text, number or collection
VALUE_NBYTES = 128  # counted for each value of a list that is written down, and argument of a call
INDENT_MAX = 8
FIELD_MAX = 999  # the width or precision of a format's field
VALUES_MAX = 1 << 19  # in what is written out, compared or looked up at once
DEPTH_MAX = 256  # of the same
ATTRIBUTE_MAX = 256  # characters of a path of attributes
STEPS_MAX = 1 << 28  # of one operation that goes by the length of two texts
STRIPTAGS_MAX = 1 << 16  # it copies the text for each tag
STEPS = 256  # of what is computed step by step, between two looks at the clock
FIELD = re.compile(r"%(?:\(\w*\))?[-+ #0]*([0-9]*)(?:\.([0-9]*))?[hlL]?[diouxXeEfFgGcrsa%]|%")
LINE_END = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
TEXT_MAKERS = frozenset((  # methods and filters that write out what they are given
    "capitalize", "e", "escape", "format", "format_map", "indent", "lower", "replace", "safe",
    "string", "striptags", "title", "tojson", "trim", "truncate", "upper"))
SLOW = frozenset((  # may look at each character of one text for each of the other
    "lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"))
DICT_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
CONTAINERS = (list, tuple, dict, set, frozenset, Namespace, Cycler, *DICT_VIEWS)


class TemplateError(UserError):
    """The template refused the messages, failed, or wrote too much; the text says which."""


class Budget:
    """What the operations of one rendering have made. look: raises when the time is over."""

    def __init__(self, look: Callable[[], None], given: Any) -> None:
        self.look, self.made = look, 0
        self.most = min(BYTES_MADE_MAX, BYTES_MADE_BASE + BYTES_MADE_RATE * length_of(given))

    def add(self, size: int) -> None:
        """Refuses what is too much in all."""
        self.look()
        self.made += size
        if self.made > self.most:
            raise TemplateError(f"chat template: more than {self.most} bytes made by its "
                                "operations")


def length_of(given: Any) -> int:
    """About how many characters a request's values have; nothing in them is there twice."""
    waiting, size = [given], 0
    while waiting:
        part = waiting.pop()
        size += len(part) if isinstance(part, str) else 1
        if isinstance(part, dict):
            size += OBJECT_LENGTH
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    return size


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")


def charge(value: Any) -> Any:
    """The value, counted."""
    if isinstance(value, str | bytes | list | tuple | dict | set):
        BUDGET.get().add(sys.getsizeof(value))
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise TemplateError("chat template: a number too large")
    elif not isinstance(value, int | float):  # what makes values one by one, and others
        BUDGET.get().add(OTHER_NBYTES)
    return value


def charge_parts(parts: Any) -> Any:
    """What a call or filter made, counted with what is in it."""
    if isinstance(parts, list | tuple):
        BUDGET.get().add(sum(map(sys.getsizeof, parts)))
    return charge(parts)


def charge_values(values: Any) -> Any:
    """A list, tuple or dict that was written down, counted."""
    BUDGET.get().add(VALUE_NBYTES * (len(values) + 1))
    return values


def check_indent(name: str, indent: Any) -> None:
    """Refuses an indent, a number or a text, that is too large."""
    if (len(indent) if isinstance(indent, str) else indent or 0) > INDENT_MAX:
        raise TemplateError(f"chat template: {name}: an indent of at most {INDENT_MAX} expected")


def size_of(value: Any) -> int:
    """How much a value adds to what it is joined with."""
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def check_size(size: int) -> None:
    """Refuses to make a text or list of that size."""
    if size > OUTPUT_CHARACTERS_MAX:
        raise TemplateError(
            f"chat template: a value of more than {OUTPUT_CHARACTERS_MAX} characters")


def check_text(value: Any) -> int:
    """Refuses a value whose text is too long, that has too many values inside, or too deep ones:
    whatever is done with each of them ends soon.

    Returns about how long it is."""
    if isinstance(value, str | bytes):
        return len(value)
    level, size, count = [value], 0, 1
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for part in level:
            if isinstance(part, str | bytes):
                size += len(part)
            elif isinstance(part, CONTAINERS):
                size += 1
                for values in parts_of(part):
                    count += len(values)
                    if count > VALUES_MAX:
                        raise TemplateError(
                            f"chat template: a value of more than {VALUES_MAX} values")
                    below += values
            else:
                size += part.bit_length() // 3 + 1 if isinstance(part, int) else 1
        check_size(size)
        if not below:
            return size
        level = below
    raise TemplateError(f"chat template: values nested more than {DEPTH_MAX} deep")


def parts_of(container: Any) -> Sequence[Any]:
    """What a container holds, as one or two collections."""
    if isinstance(container, Namespace):
        container = object.__getattribute__(container, "_Namespace__attrs")
    if isinstance(container, dict):
        return container.keys(), container.values()
    return (container.items if isinstance(container, Cycler) else container,)


def compared(value: Any) -> Any:
    """The value, which will be compared or looked up: not too large for that."""
    if isinstance(value, str | bytes):
        if len(value) > STEPS:
            BUDGET.get().look()
    elif isinstance(value, CONTAINERS):
        BUDGET.get().look()
        check_text(value)
    return value


def searched(value: Any) -> Any:
    """The same for what is searched: what makes its values one by one is made a list."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, range, *CONTAINERS)):
        value = listed(value)
    return compared(value)


def looking(values: Iterable[Any]) -> Iterable[Any]:
    """The values, with looks at the clock between them."""
    for i, value in enumerate(values):
        if i % STEPS == STEPS - 1:
            BUDGET.get().look()
        yield value


def listed(values: Iterable[Any]) -> list[Any]:
    """A list of not too many values."""
    made = list(islice(looking(values), VALUES_MAX + 1))
    check_count(made)
    return charge_parts(made) if isinstance(values, str | range) else made


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
    elif name == "round":
        for value in arguments:
            if isinstance(value, int) and value > FIELD_MAX:
                raise TemplateError(f"chat template: round: at most {FIELD_MAX} digits expected")
    elif name == "title":
        check_count(subject)
    elif name == "striptags" and len(subject) > STRIPTAGS_MAX:
        raise TemplateError(f"chat template: striptags: more than {STRIPTAGS_MAX} characters")
    elif name in SLOW:
        longest = max((len(value) for value in arguments if isinstance(value, str)), default=0)
        if isinstance(subject, str) and len(subject) * longest > STEPS_MAX:
            raise TemplateError(f"chat template: {name}: {longest} characters in {len(subject)} "
                                f"take more than {STEPS_MAX} steps")
    elif name in ("e", "escape"):
        check_size(len(subject) + 4 * sum(map(subject.count, "&<>'\"")))
    elif name == "splitlines":
        check_count(LINE_END.finditer(subject))
    if name in ("split", "rsplit"):
        between = next((part for part in arguments if isinstance(part, str)), None)
        most = next((part for part in arguments if isinstance(part, int)), -1)
        if not 0 <= most < VALUES_MAX:
            check_count(range(subject.count(between)) if between else
                        re.finditer(r"\S+", subject))


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

"""Own bounds of what a request may ask to be compiled; the library's limits do not bound compiling.

What passes is still tried in a child that can be killed (`trial`)."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from helios_dod.frontend.references import REFERENCE_MAX, target_of
from helios_dod.frontend.requests import RequestError

TEXT_BYTES_MAX = 120_000  # of each text that a request's grammar is made of
NESTING_MAX = 96  # containers inside containers
NODES_MAX = 20_000  # of a schema
REFERENCES_MAX = 128  # references that lead to each other, in a row
REPEATS_MAX = 100_000  # minLength, minItems, minProperties; a larger maximum is none
RULES_MAX = 2_000  # of a grammar
CHOICES_MAX = 4_000
REGEX_BYTES_MAX = 16_384
REGEX_REPEATS_MAX = 10_000
LEAST = ("minLength", "minItems", "minProperties")
MOST = ("maxLength", "maxItems", "maxProperties")
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LIMIT_MOST = 2**63
VALUES = ("const", "enum", "default", "examples", "example")  # keywords whose value is no schema
REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def refuse(field: str, problem: str) -> RequestError:
    """The error about a field."""
    return RequestError(f"'{field}' {problem}.", field, "invalid_value")


def check_bytes(text: str, field: str, most: int = TEXT_BYTES_MAX) -> None:
    """Raises RequestError where a text is too long."""
    size = len(text.encode())
    if size > most:
        raise refuse(field, f"has {size} bytes; at most {most} are accepted")


def check_regex(pattern: str, field: str) -> None:
    """Length and repeats of a regular expression."""
    check_bytes(pattern, field, REGEX_BYTES_MAX)
    for low, high in REPEAT.findall(pattern):
        for count in (low, high):
            if count and (len(count) > 9 or int(count) > REGEX_REPEATS_MAX):
                raise refuse(field, f"repeats {count[:12]} times; at most {REGEX_REPEATS_MAX} are "
                                    "accepted")


def check_rules(text: str, field: str) -> None:
    """Length and rules of a Lark or GBNF grammar."""
    check_bytes(text, field)
    count = sum(1 for line in text.splitlines() if ":" in line)
    if count > RULES_MAX:
        raise refuse(field, f"has {count} rules; at most {RULES_MAX} are accepted")


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Parts of a schema's value that may hold schemas, with their names."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in VALUES or not isinstance(part, (dict, list)):
                yield name, part
    elif isinstance(value, list):
        for part in value:
            yield "[]", part


def checked_schema(schema: Any, field: str, lenient: bool = False) -> Any:
    """A schema within the bounds; maxima that no answer can reach are left out, if lenient also
    bounds of numbers that cannot be enforced. Raises RequestError."""
    check_bytes(msgspec.json.encode(schema).decode(), field)
    root = [copied(schema)]
    waiting: list[tuple[Any, int]] = [(root[0], 0)]
    nodes = 0
    while waiting:
        value, depth = waiting.pop()
        nodes += 1
        if nodes > NODES_MAX:
            raise refuse(field, f"has more than {NODES_MAX} nodes")
        if depth > NESTING_MAX:
            raise refuse(field, f"is nested deeper than {NESTING_MAX}")
        if isinstance(value, dict):
            check_keywords(value, field)
            check_limits(value, field, lenient)
        waiting += [(part, depth + 1) for part in containers(value)]
    check_references(root[0], field)
    return root[0]


def copied(value: Any) -> Any:
    """A deep copy of JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def check_keywords(value: dict[str, Any], field: str) -> None:
    """Numbers of one schema, and what it must not say."""
    if "x-guidance" in value:
        raise refuse(field, "uses 'x-guidance', which is the server's")
    for name in LEAST:
        count = value.get(name)
        if isinstance(count, (int, float)) and not 0 <= count <= REPEATS_MAX:
            raise refuse(field, f"asks for {name} {count}; 0 to {REPEATS_MAX} are accepted")
    for name in MOST:
        count = value.get(name)
        if isinstance(count, (int, float)) and count > REPEATS_MAX:
            del value[name]
    pattern = value.get("pattern")
    if isinstance(pattern, str):
        check_regex(pattern, field)
    reference = value.get("$ref")
    if isinstance(reference, str) and len(reference) > REFERENCE_MAX:
        raise refuse(field, f"has a reference of {len(reference)} characters; at most "
                            f"{REFERENCE_MAX} are accepted")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise refuse(field, f"refers to {reference[:200]!r}; only references within the schema "
                            "('#...') are followed")


def check_limits(value: dict[str, Any], field: str, lenient: bool) -> None:
    """Bounds of numbers: the compiler has them as floats of 64 bits, and counts in 64 bits."""
    for name in LIMITS:
        limit = value.get(name)
        if not isinstance(limit, (int, float)) or isinstance(limit, bool):
            continue
        inside = abs(limit) < LIMIT_MOST and float(limit) == limit
        if inside or (name == "maximum" and limit == LIMIT_MOST - 1):
            continue
        if not lenient:
            raise refuse(field, f"asks for {name} {limit}, which cannot be enforced: it has to be "
                                "a number of 64-bit floats below 2**63, or 2**63 - 1")
        del value[name]


def containers(value: Any) -> list[Any]:
    """The objects and arrays directly inside that may hold schemas."""
    return [part for _, part in children(value) if isinstance(part, (dict, list))]


def check_references(schema: Any, field: str) -> None:
    """How many references lead to each other in a row: the compiler recurses over them. The longest
    path over containers and references, each read once: depth-first with an explicit stack."""
    depth: dict[int, int] = {}  # by container: references in a row from it on
    path: set[int] = set()
    stack = [(schema, False)]
    while stack:
        part, entered = stack.pop()
        refers = isinstance(part, dict) and isinstance(part.get("$ref"), str)
        target = target_of(schema, part["$ref"]) if refers else None
        if entered:
            path.discard(id(part))
            count = 1 + depth.get(id(target), 0) if refers else 0
            count = max([count, *(depth.get(id(inner), 0) for inner in containers(part))])
            if count > REFERENCES_MAX:
                raise refuse(field, f"has more than {REFERENCES_MAX} references in a row")
            depth[id(part)] = count
        elif id(part) not in depth and id(part) not in path:
            path.add(id(part))
            stack += [(part, True), *((inner, False) for inner in containers(part))]
            if isinstance(target, (dict, list)):
                stack.append((target, False))

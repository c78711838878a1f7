"""What types a tool's parameter admits, read from its JSON schema.

Only what decides how text becomes a JSON value is read: type, enum, const, nullable, properties,
patternProperties, items, additionalProperties, local $ref, anyOf, oneOf and allOf (JSON Schema
2020-12, and 4 to 7 where they agree). Unknown keywords and broken references admit everything.

A parameter has the schema that `properties` gives it and those of all patterns that are found in
its name; `additionalProperties` only without any. Alternatives (anyOf, oneOf) that list values of
a parameter (const, enum) are left out once an earlier argument of the call has another value.
Arguments are written as they come, so one that comes before the constant is typed by all
alternatives together, as any union is, and so is one that the selected alternatives do not name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from helios_dod.frontend.output.expressions import Expressions
from helios_dod.frontend.references import target_of

ALL = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
VISITS_MAX = 2048  # schemas, their branches, patterns and constants read for one parameter
MEMBERS_A_VISIT = 64  # listed values that are read in the time of a schema
NAMES_KEPT = 1024  # parameters of a request whose types are remembered
WORDS = ("allOf", "anyOf", "oneOf")
Constants = tuple[tuple[str, str], ...]  # parameters and JSON of their values, sorted
TYPE_NAMES = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array",
              dict: "object", type(None): "null"}


@dataclass(frozen=True)
class Admitted:
    """Types a value may have; members: the JSON values it must be one of, if they are listed.

    known: whether a schema said anything about it."""

    types: frozenset[str]
    members: tuple[Any, ...] | None = None
    known: bool = True

    @property
    def text_only(self) -> bool:
        return self.types == {"string"}


ANYTHING = Admitted(ALL)
UNKNOWN = Admitted(ALL, known=False)


@dataclass(frozen=True)
class Said:
    """What a schema says of a parameter, None for nothing; excluded: constants contradict it."""

    admitted: Admitted | None
    excluded: bool = False


NOTHING = Said(None)


class Reader:
    """Reads one root schema within VISITS_MAX schemas."""

    def __init__(self, root: Any, expressions: Expressions) -> None:
        self.root = root
        self.expressions = expressions
        self.visits = 0

    def follow(self, schema: Any) -> Any:
        """The schema behind $ref; None for a circle or a broken reference."""
        while isinstance(schema, dict) and "$ref" in schema:
            self.visits += 1
            if self.visits > VISITS_MAX:
                return None
            schema = target_of(self.root, schema["$ref"])
        return schema

    def branches(self, schema: Any) -> list[list[Any]] | None:
        """Branches of a schema, by WORDS; None if it is none, or too much was read."""
        self.visits += 1
        if self.visits > VISITS_MAX or not isinstance(schema, dict):
            return None
        groups = [as_list(schema.get(word)) for word in WORDS]
        self.visits += sum(map(len, groups)) + len(as_list(schema.get("enum"))) // MEMBERS_A_VISIT
        return groups if self.visits <= VISITS_MAX else None

    def parameter(self, key: str, constants: Mapping[str, Any]) -> Admitted | None:
        """What the root, and the branches of it that the constants leave, say of the parameter
        `key`; None if nothing. Branches are read iteratively, in post-order."""
        done: list[Said] = []
        waiting: list[tuple[Any, list[int] | None]] = [(self.root, None)]
        while waiting:
            schema, counts = waiting.pop()
            if counts is not None:
                parts = [[done.pop() for _ in range(count)] for count in counts]
                done.append(combine(self.own(schema, key, constants), *parts))
                continue
            schema = self.follow(schema)
            groups = self.branches(schema)
            if groups is None:
                done.append(NOTHING)
                continue
            waiting.append((schema, [len(group) for group in groups]))
            waiting += [(branch, None) for group in groups for branch in group]
        return None if done[0].excluded else done[0].admitted

    def own(self, schema: Mapping[str, Any], key: str, constants: Mapping[str, Any]) -> "Said":
        """What a schema says without its branches."""
        declared = schema.get("properties")
        declared = declared if isinstance(declared, dict) else {}
        self.visits += len(constants)
        excluded = any(name in declared and not self.may_be(declared[name], value)
                       for name, value in constants.items())
        found, judged = self.patterned(schema.get("patternProperties"), key)
        if key in declared:
            found.insert(0, declared[key])
        elif judged and not found and isinstance(schema.get("additionalProperties"), dict):
            found = [schema["additionalProperties"]]
        return Said(reduce(intersect, map(self.admitted, found)) if found else None, excluded)

    def patterned(self, patterns: Any, key: str) -> tuple[list[Any], bool]:
        """Schemas whose pattern is found in the name, and whether all patterns could be judged."""
        found: list[Any] = []
        judged = True
        for pattern, schema in patterns.items() if isinstance(patterns, dict) else ():
            self.visits += 1
            if self.visits > VISITS_MAX:
                return found, False
            matches = self.expressions.match(pattern, key)
            judged = judged and matches is not None
            if matches:
                found.append(schema)
        return found, judged

    def may_be(self, schema: Any, value: Any) -> bool:
        """Whether a parameter's listed values, if any are, have this one."""
        members = self.admitted(schema).members
        return members is None or is_member(value, members)

    def deciding(self) -> frozenset[str]:
        """Parameters of which an alternative lists the values."""
        found: set[str] = set()
        waiting = [(self.root, False)]
        while waiting:
            place, alternative = waiting.pop()
            schema = self.follow(place)
            groups = self.branches(schema)
            if groups is None:
                continue
            declared = schema.get("properties")
            if alternative and isinstance(declared, dict):
                self.visits += len(declared)
                if self.visits > VISITS_MAX:
                    break
                found |= {name for name, part in declared.items()
                          if self.admitted(part).members is not None}
            for word, group in zip(WORDS, groups, strict=True):
                waiting += [(branch, alternative or word != "allOf") for branch in group]
        return frozenset(found)

    def admitted(self, schema: Any) -> Admitted:
        """What a schema admits. Branches are read iteratively, in post-order."""
        done: list[Admitted] = []
        waiting: list[tuple[Any, int, int]] = [(schema, -1, -1)]
        while waiting:
            schema, unions, overlaps = waiting.pop()
            if unions >= 0:
                count = unions + overlaps
                parts, done = done[len(done) - count:], done[:len(done) - count]
                own = own_types(schema)
                if unions:
                    own = intersect(own, unite(parts[:unions]))
                for part in parts[unions:]:
                    own = intersect(own, part)
                done.append(own)
                continue
            schema = self.follow(schema)
            groups = self.branches(schema)
            if groups is None:
                done.append(ANYTHING)
                continue
            every, either = groups[0], groups[1] + groups[2]
            waiting.append((schema, len(either), len(every)))
            waiting += [(branch, -1, -1) for branch in (*reversed(every), *reversed(either))]
        return done[0]


def as_list(value: Any) -> list[Any]:
    """A list of branches, or none."""
    return value if isinstance(value, list) else []


def own_types(schema: Mapping[str, Any]) -> Admitted:
    """What a schema itself says, without its branches."""
    members: tuple[Any, ...] | None = None
    if isinstance(schema.get("enum"), list):
        members = tuple(schema["enum"])
    if "const" in schema:
        members = (schema["const"],)
    names = schema.get("type")
    names = [names] if isinstance(names, str) else names
    types = frozenset(name for name in as_list(names) if isinstance(name, str)) & ALL
    if not types:
        if members is not None:
            types = ALL
        elif "properties" in schema:
            types = frozenset({"object"})
        elif "items" in schema:
            types = frozenset({"array"})
        else:
            types = ALL
    if types != ALL and schema.get("nullable") is True:
        types |= {"null"}
    if members is not None:
        types &= {TYPE_NAMES.get(type(value), "null") for value in members} | (
            {"number"} if any(type(value) is int for value in members) else frozenset())
    return Admitted(types or ALL, members)


def unite(parts: Iterable[Admitted]) -> Admitted:
    """What any of the parts admits."""
    types: frozenset[str] = frozenset()
    members: list[Any] | None = []
    for part in parts:
        types |= part.types
        if members is None or part.members is None:
            members = None
        else:
            members += part.members
    return Admitted(types, None if members is None else tuple(members))


def shared_types(one: Admitted, other: Admitted) -> frozenset[str]:
    """Types of values that both admit; an integer is a number."""
    types = one.types & other.types
    if any("integer" in some and "number" in more
           for some, more in ((one.types, other.types), (other.types, one.types))):
        types |= {"integer"}
    return types


def intersect(one: Admitted, other: Admitted) -> Admitted:
    """What both admit. Contradictions admit what the first does."""
    members = one.members if one.members is not None else other.members
    return Admitted(shared_types(one, other) or one.types, members)


def both(one: Admitted | None, other: Admitted | None) -> Admitted | None:
    """What two schemas that hold together say of a parameter; contradictions admit either."""
    if one is None or other is None:
        return one or other
    return intersect(one, other) if shared_types(one, other) else unite((one, other))


def combine(own: Said, every: Iterable[Said], *alternatives: list[Said]) -> Said:
    """What a schema says with its branches: all of `every`, and one of each `alternatives`."""
    admitted, excluded = own.admitted, own.excluded
    for part in every:
        admitted, excluded = both(admitted, part.admitted), excluded or part.excluded
    for parts in filter(None, alternatives):
        left = [part for part in parts if not part.excluded]
        told = [part.admitted for part in left if part.admitted is not None]
        admitted, excluded = both(admitted, unite(told) if told else None), excluded or not left
    return Said(admitted, excluded)


class ToolSet:
    """The tools that a request declares: name -> JSON schema of the parameters, or None."""

    def __init__(self, tools: Mapping[str, Any] | None) -> None:
        self.tools = dict(tools or {})
        self.read: dict[tuple[str, str, Constants], Admitted] = {}
        self.decided_by: dict[str, frozenset[str]] = {}
        self.expressions = Expressions()

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def __len__(self) -> int:
        return len(self.tools)

    def declares(self, name: str, key: str) -> bool:
        """Whether the tool's schema names the parameter."""
        return name in self.tools and self.admitted(name, key).known

    def admitted(self, name: str, key: str, constants: Constants = ()) -> Admitted:
        """What the parameter admits; UNKNOWN where no schema names it. constants: the JSON of
        earlier arguments among those that decide."""
        if (name, key, constants) not in self.read:
            if len(self.read) >= NAMES_KEPT:
                self.read.clear()
            values = {decided: json.loads(text) for decided, text in constants}
            found = self.reader(name).parameter(key, values)
            if found is None:
                found = self.admitted(name, key) if constants else UNKNOWN
            self.read[name, key, constants] = found
        return self.read[name, key, constants]

    def deciding(self, name: str) -> frozenset[str]:
        """Parameters of the tool whose values select among alternatives."""
        if name not in self.decided_by:
            self.decided_by[name] = self.reader(name).deciding() if name in self else frozenset()
        return self.decided_by[name]

    def reader(self, name: str) -> Reader:
        """Reads the tool's schema anew."""
        return Reader(self.tools.get(name), self.expressions)

    def fits(self, name: str, keys: frozenset[str]) -> bool:
        """Whether arguments with these keys are of the tool: all declared, none missing."""
        schema = self.tools.get(name)
        required = as_list(schema.get("required")) if isinstance(schema, dict) else []
        return keys.issuperset(key for key in required if isinstance(key, str)) and all(
            self.declares(name, key) for key in keys)

    def unglue(self, text: str) -> tuple[str, str] | None:
        """A declared name and a parameter of it whose names were written without a break."""
        for name in sorted(self.tools, key=len, reverse=True):
            rest = text[len(name):]
            if rest and text.startswith(name) and self.declares(name, rest):
                return name, rest
        return None


def is_member(value: Any, members: tuple[Any, ...]) -> bool:
    """Whether a JSON value is listed; true is not 1."""
    return any(value == member and isinstance(value, bool) == isinstance(member, bool)
               for member in members)



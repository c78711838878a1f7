"""What types a tool's parameter admits, read from its JSON schema.

Only what decides how text becomes a JSON value is read: type, enum, const, nullable, properties,
items, additionalProperties, local $ref, anyOf, oneOf and allOf (JSON Schema 2020-12, and 4 to 7
where they agree). Unknown keywords and broken references admit everything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

ALL = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
VISITS_MAX = 256  # schemas read for one parameter
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


class Reader:
    """Reads one root schema within VISITS_MAX schemas."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.visits = 0

    def target(self, reference: Any) -> Any:
        """The schema of a local reference, or None."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        place = self.root
        for part in unquote(reference).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list) and key.isdecimal() and len(key) < 9:
                place = place[int(key)] if int(key) < len(place) else None
            else:
                place = place.get(key) if isinstance(place, dict) else None
        return place

    def follow(self, schema: Any) -> Any:
        """The schema behind $ref; None for a circle or a broken reference."""
        while isinstance(schema, dict) and "$ref" in schema:
            self.visits += 1
            if self.visits > VISITS_MAX:
                return None
            schema = self.target(schema["$ref"])
        return schema

    def properties(self, key: str) -> list[Any]:
        """Every schema that the root, or a branch of it, gives the parameter `key`."""
        found, waiting = [], [self.root]
        while waiting and self.visits < VISITS_MAX:
            self.visits += 1
            schema = self.follow(waiting.pop())
            if not isinstance(schema, dict):
                continue
            declared = schema.get("properties")
            if isinstance(declared, dict) and key in declared:
                found.append(declared[key])
            elif isinstance(schema.get("additionalProperties"), dict):
                found.append(schema["additionalProperties"])
            for word in ("allOf", "anyOf", "oneOf"):
                branches = schema.get(word)
                waiting += branches if isinstance(branches, list) else []
        return found

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
            self.visits += 1
            schema = self.follow(schema)
            if not isinstance(schema, dict) or self.visits > VISITS_MAX:
                done.append(ANYTHING)
                continue
            either = [branch for word in ("anyOf", "oneOf")
                      for branch in as_list(schema.get(word))]
            every = as_list(schema.get("allOf"))
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
    members: tuple[Any, ...] | None = ()
    for part in parts:
        types |= part.types
        members = None if members is None or part.members is None else members + part.members
    return Admitted(types, members)


def intersect(one: Admitted, other: Admitted) -> Admitted:
    """What both admit; an integer is a number. Contradictions admit what the first does."""
    types = one.types & other.types
    if any("integer" in some and "number" in more
           for some, more in ((one.types, other.types), (other.types, one.types))):
        types |= {"integer"}
    members = one.members if one.members is not None else other.members
    return Admitted(types or one.types, members)


class ToolSet:
    """The tools that a request declares: name -> JSON schema of the parameters, or None."""

    def __init__(self, tools: Mapping[str, Any] | None) -> None:
        self.tools = dict(tools or {})
        self.read: dict[tuple[str, str], Admitted] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def __len__(self) -> int:
        return len(self.tools)

    def declares(self, name: str, key: str) -> bool:
        """Whether the tool's schema names the parameter."""
        return name in self.tools and self.admitted(name, key).known

    def admitted(self, name: str, key: str) -> Admitted:
        """What the parameter admits; UNKNOWN where no schema names it."""
        if (name, key) not in self.read:
            if len(self.read) >= NAMES_KEPT:
                self.read.clear()
            reader = Reader(self.tools.get(name))
            found = reader.properties(key)
            self.read[name, key] = unite(map(reader.admitted, found)) if found else UNKNOWN
        return self.read[name, key]

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


NAMES_KEPT = 1024


def is_member(value: Any, members: tuple[Any, ...]) -> bool:
    """Whether a JSON value is listed; true is not 1."""
    return any(value == member and isinstance(value, bool) == isinstance(member, bool)
               for member in members)



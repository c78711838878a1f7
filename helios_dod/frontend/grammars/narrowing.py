"""Keywords that no context-free grammar has, said in those that one has.

Every rewriting narrows: what fulfils the new schema fulfils the old one, so an answer is right even
where some right answers are left out. A keyword for which there is no such form stays, and the
compiler refuses it by name. Meanings are those of JSON Schema 2020-12, with the older spellings
`dependencies` and array-valued `items`."""

from collections.abc import Callable, Iterator
from typing import Any

from helios_dod.frontend.grammars.bounds import containers
from helios_dod.frontend.grammars.negation import Schema, negation, resolved
from helios_dod.frontend.grammars.root import Room, Root

# Formats that the compiler knows; any other is an annotation, as the specification has it.
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
           "uri")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
          "minContains", "maxContains")
IN_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
IN_ONE = ("additionalProperties", "items", "contains", "not", "if", "then", "else",
          "propertyNames", "unevaluatedProperties", "unevaluatedItems", "additionalItems")
SHAPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys((*IN_SCHEMAS, "dependencies", "dependentRequired"), dict),
    **dict.fromkeys((*IN_LISTS, "required", "enum"), list),
    **dict.fromkeys(("minimum", "maximum", "multipleOf", *COUNTS), (int, float)),
    "type": (str, list), "$ref": str, "pattern": str, "format": str}
OPTIONS_MAX = 4  # dependencies that are told apart; each doubles the options
SUBSETS_MAX = 6  # values of an enum whose subsets are spelled out


class Malformed(ValueError):
    """A keyword's value has the wrong type: which, and what it should be."""


def narrowed(schema: Schema, room: Room) -> Schema:
    """A schema of the compiler's keywords. `schema` may be changed. Raises Malformed, Costly."""
    root = Root(schema, room)
    check_shapes(schema, root)
    waiting: list[Any] = [schema]
    seen: dict[int, Any] = {}  # they stay, so that no new one takes the place of one that is gone
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and id(part) not in seen:
            seen[id(part)] = part
            for rewrite in REWRITES:
                rewrite(part, root)
            root.spend(sum(map(len, containers(part))))
            waiting += inner(part)
            if isinstance(part.get("$ref"), str):  # its target may lie outside all keywords
                waiting.append(root.target(part["$ref"]))
    return schema


def check_shapes(schema: Schema, root: Root) -> None:
    """Types of the keywords' values, in every schema inside or referred to."""
    waiting, seen = [schema], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        if not isinstance(part, dict):
            raise Malformed(f"a schema must be an object or a boolean, not {str(part)[:100]!r}")
        seen.add(id(part))
        for name, kinds in SHAPES.items():
            value = part.get(name)
            if name in part and (not isinstance(value, kinds) or isinstance(value, bool)):
                raise Malformed(f"{name!r} must not be {str(value)[:100]!r}")
        for name, values in words_of(part):
            if not all(isinstance(value, str) for value in values):
                raise Malformed(f"{name!r} must hold strings only, not {str(values)[:100]!r}")
        waiting += inner(part)
        waiting += [value for value in part.get("dependencies", {}).values()
                    if not isinstance(value, list)]
        target = root.target(part.get("$ref"))
        if target is not None:
            waiting.append(target)


def words_of(schema: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The lists of a schema that hold names, each with its keyword."""
    for name in ("required", "type"):
        if isinstance(schema.get(name), list):
            yield name, schema[name]
    for name in ("dependentRequired", "dependencies"):
        for values in schema.get(name, {}).values():
            if isinstance(values, list):
                yield name, values
            elif name == "dependentRequired":
                raise Malformed(f"{name!r} must hold lists of strings, not {str(values)[:100]!r}")


def inner(schema: dict[str, Any]) -> Iterator[Schema]:
    """The schemas directly inside."""
    for name in IN_SCHEMAS:
        if isinstance(schema.get(name), dict):
            yield from schema[name].values()
    for name in IN_LISTS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in IN_ONE:
        found = schema.get(name)
        if found is not None:
            yield from found if isinstance(found, list) else [found]


def also(schema: dict[str, Any], *more: Schema) -> None:
    """Adds demands to a schema."""
    schema["allOf"] = [*schema.get("allOf", ()), *more]


def dialect(schema: dict[str, Any], root: Root) -> None:
    """Older spellings in those of 2020-12, whose meaning then holds for all of the schema. Where
    older drafts ignore what stands beside a reference, it holds too, which narrows."""
    schema.pop("$schema", None)
    more = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if more is not None:
            schema["items"] = more


def numbers(schema: dict[str, Any], root: Root) -> None:
    """Counts are integers; a bound that is excluded says so itself."""
    for name in COUNTS:
        value = schema.get(name)
        if isinstance(value, float) and value.is_integer():
            schema[name] = int(value)
    for name, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool):  # as draft 4 has it
            if schema.pop(name) and plain in schema:
                schema[name] = schema.pop(plain)


def formats(schema: dict[str, Any], root: Root) -> None:
    """Unknown formats say nothing that has to hold."""
    if "format" in schema and schema["format"] not in FORMATS:
        del schema["format"]


def conditions(schema: dict[str, Any], root: Root) -> None:
    """`if` with `then`: both hold, or the negation and `else` where it can be said."""
    condition = schema.pop("if", None)
    then, other = schema.pop("then", True), schema.pop("else", True)
    if condition is None or (then is True and other is True):
        return
    options = [] if condition is False else [{"allOf": [condition, then]}]
    negated = negation(condition, root)
    if negated is not None:
        options.append({"allOf": [negated, other]})
    also(schema, {"anyOf": options})


def negations(schema: dict[str, Any], root: Root) -> None:
    """`not`, where it can be said."""
    if "not" in schema:
        negated = negation(schema["not"], root)
        if negated is not None:
            del schema["not"]
            also(schema, negated)


def alternatives(schema: dict[str, Any], root: Root) -> None:
    """`oneOf`: each option without the others, where that can be said of all."""
    options = schema.get("oneOf")
    if not isinstance(options, list) or len(options) > 2 * OPTIONS_MAX:
        return
    if told_apart([resolved(option, root) for option in options], root):
        return
    opposites = [negation(option, root) for option in options]
    if None in opposites:
        return
    del schema["oneOf"]
    also(schema, {"anyOf": [
        {"allOf": [option, *(opposites[j] for j in range(len(options)) if j != i)]}
        for i, option in enumerate(options) if option is not False]})


def told_apart(options: list[Schema], root: Root) -> bool:
    """Whether the compiler sees by itself that no value fulfils two options: they are of different
    types, or objects with different constants in one property."""
    if not all(isinstance(option, dict) for option in options):
        return False
    kinds = [option.get("type") for option in options]
    if all(isinstance(kind, str) for kind in kinds) and len(set(kinds)) == len(kinds) and (
            not {"number", "integer"} <= set(kinds)):
        return True
    for name in options[0].get("properties", {}):
        values: list[str] = []
        for option in options:
            found = resolved(option.get("properties", {}).get(name), root)
            given = found.get("enum", [found["const"]] if "const" in found else []) if isinstance(
                found, dict) else []
            if not given or name not in option.get("required", []):
                break
            values += [repr(value) for value in given]
        else:
            return len(set(values)) == len(values)
    return False


def dependencies(schema: dict[str, Any], root: Root) -> None:
    """A property is absent, or what it brings along holds."""
    given = {**schema.pop("dependencies", {}), **schema.pop("dependentRequired", {}),
             **schema.pop("dependentSchemas", {})}
    for i, (name, demand) in enumerate(given.items()):
        absent = {"properties": {name: False}}
        whole = {"required": demand} if isinstance(demand, list) else demand
        if demand in (True, []):
            continue
        if i >= OPTIONS_MAX or whole is False:
            also(schema, absent)
        else:
            also(schema, {"anyOf": [absent, {"allOf": [{"required": [name]}, whole]}]})


def names(schema: dict[str, Any], root: Root) -> None:
    """`propertyNames`: a pattern of names, or those of an enum."""
    demand = resolved(schema.get("propertyNames"), root)
    if demand is True:
        del schema["propertyNames"]
    elif demand is False:
        schema.pop("propertyNames")
        also(schema, {"maxProperties": 0})
    elif isinstance(demand, dict) and "patternProperties" not in schema:
        rest = schema.get("additionalProperties", True)
        values = demand.get("enum", [demand["const"]] if "const" in demand else None)
        pattern = demand.get("pattern")
        if not set(demand) - {"type"}:
            del schema["propertyNames"]
        elif isinstance(values, list):
            del schema["propertyNames"]
            kept = schema.get("properties", {})
            schema["properties"] = {name: kept.get(name, rest) for name in values
                                    if isinstance(name, str)}
            schema["additionalProperties"] = False
        elif "maxLength" in demand and pattern is None and "minLength" not in demand:
            pattern = f"^.{{0,{int(demand['maxLength'])}}}$"
        if isinstance(pattern, str) and "propertyNames" in schema:
            del schema["propertyNames"]
            schema["properties"] = {  # a name of which nobody can say if it may be is left out
                name: value if found else False
                for name, value in schema.get("properties", {}).items()
                if (found := root.has(name, pattern)) is not False}
            schema["patternProperties"] = {pattern: rest}
            schema["additionalProperties"] = False


def contained(schema: dict[str, Any], root: Root) -> None:
    """`contains`: the first items are what has to be there."""
    demand = schema.pop("contains", None)
    least, most = schema.pop("minContains", 1), schema.pop("maxContains", None)
    if demand is None or (least == 0 and most is None):
        return
    items = schema.get("items", True)
    if isinstance(items, list) or "prefixItems" in schema or "additionalItems" in schema:
        schema["contains"] = demand
        return
    if isinstance(least, int) and 0 <= least <= 16:
        schema["prefixItems"] = [{"allOf": [demand, items]} for _ in range(least)]
        schema["minItems"] = max(least, schema.get("minItems", 0))
        if most is not None:
            schema["maxItems"] = min(least, schema.get("maxItems", least))
    else:
        schema["contains"] = demand


def unique(schema: dict[str, Any], root: Root) -> None:
    """`uniqueItems`: subsets of an enum in its order, else one item at most."""
    if schema.get("uniqueItems") is not True:
        schema.pop("uniqueItems", None)
        return
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    items = resolved(schema.get("items"), root)
    if most is not None and most <= 1:
        del schema["uniqueItems"]
    elif isinstance(items, dict) and isinstance(items.get("enum"), list) and (
            0 < len(items["enum"]) <= SUBSETS_MAX) and "prefixItems" not in schema:
        del schema["uniqueItems"]
        also(schema, {"anyOf": [
            {"prefixItems": [{"const": value} for value in chosen], "items": False,
             "minItems": len(chosen), "maxItems": len(chosen)}
            for chosen in subsets(items["enum"])
            if least <= len(chosen) <= (len(items["enum"]) if most is None else most)]})
    elif least <= 1:
        del schema["uniqueItems"]
        schema["maxItems"] = 1


def subsets(values: list[Any]) -> list[list[Any]]:
    """Every subset, in order; the larger ones first."""
    made: list[list[Any]] = [[]]
    for value in values:
        made += [[*chosen, value] for chosen in made]
    return sorted(made, key=len, reverse=True)


def evaluated(schema: Schema, root: Root, read: Callable[[dict[str, Any]], None]) -> None:
    """Reads a schema and all that hold beside it: `allOf` and references."""
    waiting, seen = [schema], 0
    while waiting and seen < 64:
        part = waiting.pop()
        seen += 1
        if isinstance(part, dict):
            read(part)
            waiting += part.get("allOf", [])
            if isinstance(part.get("$ref"), str):
                waiting.append(root.target(part["$ref"]))


def unevaluated(schema: dict[str, Any], root: Root) -> None:
    """What no keyword beside speaks of: allowed names are those that always count as spoken of."""
    rest = schema.pop("unevaluatedProperties", True)
    if rest is not True:
        known: dict[str, Any] = {}
        patterns: dict[str, Any] = {}
        others: list[Schema] = []

        def read(part: dict[str, Any]) -> None:
            known.update(part.get("properties", {}))
            patterns.update(part.get("patternProperties", {}))
            if "additionalProperties" in part:
                others.append(part["additionalProperties"])

        evaluated(schema, root, read)
        if not others:
            schema["properties"] = known | schema.get("properties", {})
            if patterns:
                schema["patternProperties"] = patterns | schema.get("patternProperties", {})
            schema["additionalProperties"] = rest
    rest = schema.pop("unevaluatedItems", True)
    if rest is not True:
        lengths: list[int] = [0]
        free: list[bool] = []

        def count(part: dict[str, Any]) -> None:
            lengths.append(len(part.get("prefixItems", ())))
            items = part.get("items")
            if isinstance(items, list):
                lengths.append(len(items))
            free.append("additionalItems" in part or isinstance(items, (dict, bool)))

        evaluated(schema, root, count)
        if not any(free):
            if rest is False:
                schema["maxItems"] = min(max(lengths), schema.get("maxItems", max(lengths)))
            elif "prefixItems" not in schema and max(lengths) == 0:
                schema["items"] = rest
            else:
                schema["maxItems"] = min(max(lengths), schema.get("maxItems", max(lengths)))


def patterns(schema: dict[str, Any], root: Root) -> None:
    """Several patterns of names: those names are left out, for one could have two patterns."""
    given = schema.get("patternProperties")
    if not isinstance(given, dict) or len(given) < 2:
        return
    properties = schema.setdefault("properties", {})
    for name, value in properties.items():
        more = [demand for pattern, demand in given.items() if root.has(name, pattern) is not False]
        if more:
            properties[name] = {"allOf": [value, *more]}
    del schema["patternProperties"]
    schema["additionalProperties"] = False


def sizes(schema: dict[str, Any], root: Root) -> None:
    """Numbers of properties: that many are named and required, or left out."""
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if (least is None and most is None) or "patternProperties" in schema:
        return
    properties = schema.get("properties", {})
    required = list(dict.fromkeys(schema.get("required", [])))
    rest = schema.get("additionalProperties", True)
    needed = set(required)
    optional = [name for name, value in properties.items()
                if name not in needed and value is not False]
    if isinstance(most, int):
        room = max(most - len(required), 0)
        if len(required) > most:
            return
        kept = optional[:room]
        needed.update(kept)
        schema["properties"] = {name: value for name, value in properties.items()
                                if name in needed}
        spare = room - len(kept)
        if spare and rest is not False and not properties:
            schema["properties"] = {f"name{i}": rest for i in range(min(spare, 8))}
        schema["additionalProperties"] = False
        for name in required:
            schema["properties"].setdefault(name, rest)
        optional = [name for name in schema["properties"] if name not in required]
        rest = False
        del schema["maxProperties"]
    if isinstance(least, int):
        required += optional[:max(least - len(required), 0)]
        root.spend(max(least - len(required), 0))
        added = [f"name{i}" for i in range(least - len(required))] if rest is not False else []
        if len(required) + len(added) >= least:
            schema["properties"] = {**schema.get("properties", {}), **dict.fromkeys(added, rest)}
            schema["required"] = required + added
            del schema["minProperties"]


REWRITES: tuple[Callable[[dict[str, Any], Root], None], ...] = (
    dialect, numbers, formats, unevaluated, conditions, negations, alternatives, dependencies,
    names, contained, unique, patterns, sizes)

"""Whether a grammar has any answer that ends. Without one a model would write until its limit.

A rule has an end if one of its alternatives consists of parts that have one (the emptiness test of
context-free grammars, in linear time). What is not understood is taken to have an end."""

import re
from collections.abc import Iterator
from typing import Any

from helios_dod.frontend.references import target_of

# Possessive: nothing is read again where a token turns out to be none, whatever stands there.
TOKEN = re.compile(r"""
    (?P<skip> //[^\n]*+ | %(?:llguidance|ignore)\b[^\n]*+ | \s++ )
  | (?P<text> "(?:\\.|[^"\\\n])*+"i? | /(?:\\.|[^/\\\n])++/[a-z]*+ | <[^>\n]*+> | @\w++ )
  | (?P<rule> [?!]{0,2}+\w++ (?:\.-?\d++)? (?:\[[^\]\n]{0,1000}+\])? \s*+: )
  | (?P<count> ~\s*+\d++(?:\s*+\.\.\s*+\d++)? | \{\s*+\d*+\s*+,?\s*+\d*+\s*+\} )
  | (?P<name> [?!]{0,2}+\w++ )
  | (?P<sign> -> | [()|?*+] | \[ | \] | \.\. )""", re.VERBOSE)
NAME = re.compile(r"\w+")
ZERO = re.compile(r"(?:~|\{)\s*(?:0|,)").match  # a count that admits none


class Ends:
    """Nodes, each of which has an end once one of its alternatives has. An alternative has one once
    all the nodes that it needs do."""

    def __init__(self) -> None:
        self.alternatives: list[tuple[int, int]] = []  # (node, how many it still waits for)
        self.waiting: list[list[int]] = []  # of each node: alternatives that need it
        self.ready: list[int] = []  # alternatives that need nothing

    def node(self) -> int:
        """A new node, without an alternative."""
        self.waiting.append([])
        return len(self.waiting) - 1

    def add(self, node: int, needs: list[int]) -> None:
        """Gives a node an alternative."""
        for need in needs:
            self.waiting[need].append(len(self.alternatives))
        if not needs:
            self.ready.append(len(self.alternatives))
        self.alternatives.append((node, len(needs)))

    def found(self) -> set[int]:
        """The nodes that have an end."""
        ended: set[int] = set()
        ready = list(self.ready)
        left = [count for _, count in self.alternatives]
        while ready:
            node = self.alternatives[ready.pop()][0]
            if node in ended:
                continue
            ended.add(node)
            for alternative in self.waiting[node]:
                left[alternative] -= 1
                if not left[alternative]:
                    ready.append(alternative)
        return ended


def tokens_of(text: str) -> Iterator[tuple[str, str]] | None:
    """(kind, text) of each token of a Lark grammar; None where something else stands in it."""
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            return None
        if match.lastgroup != "skip":
            found.append((str(match.lastgroup), match.group()))
        at = match.end()
    return iter(found)


def lark_ends(text: str) -> bool:
    """Whether a Lark grammar's `start` has an answer that ends."""
    tokens = tokens_of(text)
    if tokens is None:
        return True
    ends = Ends()
    rules: dict[str, int] = {}
    uses: dict[str, int] = {}  # what a name stands for, defined or not

    def named(name: str) -> int:
        return uses.setdefault(name.lstrip("?!"), ends.node())

    frames: list[tuple[int, list[int]]] = []  # a rule's node or a group's, and the current needs
    aliased = False
    for kind, word in tokens:
        if kind == "rule":
            close_all(ends, frames)
            name = NAME.findall(word)[0]
            rules[name] = named(name)
            frames = [(rules[name], [])]
        elif not frames:
            return True
        elif aliased:
            aliased = False
        elif kind == "name":
            frames[-1][1].append(named(word))
        elif kind == "text":
            frames[-1][1].append(constant(ends))
        elif kind == "count":
            if ZERO(word):
                frames[-1][1].pop()
        elif word in "([":
            frames.append((ends.node(), []))
        elif word in ")]":
            if len(frames) < 2:
                return True
            group, needs = frames.pop()
            ends.add(group, needs)
            if word == "]":  # what it holds may be left out
                ends.add(group, [])
            frames[-1][1].append(group)
        elif word == "|":
            node, needs = frames.pop()
            ends.add(node, needs)
            frames.append((node, []))
        elif word in "?*":
            if not frames[-1][1]:
                return True
            frames[-1][1].pop()
        elif word == "->":
            aliased = True
    close_all(ends, frames)
    for name, node in uses.items():
        if name not in rules:
            ends.add(node, [])
    return "start" not in rules or rules["start"] in ends.found()


def constant(ends: Ends) -> int:
    """A node that has an end."""
    node = ends.node()
    ends.add(node, [])
    return node


def close_all(ends: Ends, frames: list[tuple[int, list[int]]]) -> None:
    """The rule is over, and what is open in it."""
    for node, needs in frames:
        ends.add(node, needs)


def schema_ends(root: Any) -> bool:
    """Whether a JSON schema, in the compiler's keywords, admits a value of finite size."""
    ends = Ends()
    nodes: dict[int, int] = {}
    waiting: list[Any] = []

    def node(schema: Any) -> int:
        if not isinstance(schema, dict):
            made = ends.node()
            if schema is not False:
                ends.add(made, [])
            return made
        if id(schema) not in nodes:
            nodes[id(schema)] = ends.node()
            waiting.append(schema)
        return nodes[id(schema)]

    first = node(root)
    while waiting:
        schema = waiting.pop()
        needs = [node(part) for part in schema.get("allOf", ())]
        if isinstance(schema.get("$ref"), str):
            needs.append(node(target_of(root, schema["$ref"])))
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list):
                either = ends.node()
                for part in schema[name]:
                    ends.add(either, [node(part)])
                needs.append(either)
        types = schema.get("type")
        types = [types] if isinstance(types, str) else types or ["any"]
        for kind in types:
            more = {"object": needed_properties, "array": needed_items}.get(kind)
            ends.add(nodes[id(schema)], needs + [node(part) for part in more(schema)]
                     if more else needs)
    return first in ends.found()


def needed_properties(schema: dict[str, Any]) -> list[Any]:
    """Schemas of the properties that every object has."""
    known = schema.get("properties", {})
    return [known[name] for name in schema.get("required", ())
            if isinstance(name, str) and name in known]


def needed_items(schema: dict[str, Any]) -> list[Any]:
    """Schemas of the items that every array has."""
    least, first = int(schema.get("minItems", 0)), schema.get("prefixItems", [])
    return first[:least] + ([schema["items"]] if least > len(first) and "items" in schema else [])

"""Regular expressions that `patternProperties` finds in names, as the grammar library reads them:
in time that does not grow with the ways to match, and within limits that it counts itself. So a
name is judged here as it is where a grammar holds the answer to its schema.
"""

import json
from functools import cache
from typing import Any

import llguidance

PATTERNS_MAX = 8  # of one response: compiling one takes 0.2 ms, a hostile one 40
MATCHES_MAX = 128  # of one response: 0.1 ms each, 4 for a hostile pattern
PATTERN_MAX = 1024  # characters,
NAME_MAX = 256  # and of a name
FUEL_MAX = 20_000  # of the library, for a pattern and for each byte of a name
STATES_MAX = 1_000


@cache
def bytewise() -> tuple[Any, Any]:
    """The library's vocabulary of single bytes, and the limits of one pattern."""
    limits = llguidance.LLParserLimits(
        initial_lexer_fuel=FUEL_MAX, step_lexer_fuel=FUEL_MAX, step_max_items=STATES_MAX,
        max_lexer_states=STATES_MAX, max_items_in_row=STATES_MAX, verbose_errors=False)
    return llguidance.LLTokenizer("byte"), limits


class Expressions:
    """Patterns of one response or schema, each compiled once. patterns: how many at most; left:
    matches that it may still ask for."""

    def __init__(self, patterns: int = PATTERNS_MAX, matches: int = MATCHES_MAX) -> None:
        self.patterns, self.left = patterns, matches
        self.compiled: dict[str, Any] = {}
        self.known: dict[tuple[str, str], bool | None] = {}

    def match(self, pattern: Any, name: str) -> bool | None:
        """Whether the pattern is found in the name; None where this cannot be judged: it is no
        pattern, has what the library does not know (look-around, `\\b`), one of both is too long,
        or so many patterns or matches were asked for."""
        if not isinstance(pattern, str) or len(pattern) > PATTERN_MAX or len(name) > NAME_MAX:
            return None
        if (pattern, name) not in self.known:
            if pattern not in self.compiled and len(self.compiled) < self.patterns:
                self.compiled[pattern] = compiled(pattern)
            if self.left == 0 or pattern not in self.compiled:
                return None
            self.left -= 1
            self.known[pattern, name] = found_in(self.compiled[pattern], name)
        return self.known[pattern, name]


def compiled(pattern: str) -> Any:
    """A matcher of the names that the pattern is found in, as JSON."""
    vocabulary, limits = bytewise()
    schema = json.dumps({"type": "string", "pattern": pattern})
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    return llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)


def found_in(pattern: Any, name: str) -> bool | None:
    """Whether a compiled pattern is found in the name; None if it is none, or costs too much."""
    matcher = pattern.deep_copy()
    text = json.dumps(name, ensure_ascii=False).encode(errors="replace")
    taken = 0 if matcher.is_error() else matcher.try_consume_tokens(list(text))
    return None if matcher.is_error() else bool(taken == len(text) and matcher.is_accepting())

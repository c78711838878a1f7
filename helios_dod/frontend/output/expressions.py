"""Regular expressions that `patternProperties` finds in names, as the grammar library reads them:
in time that does not grow with the ways to match, and within limits that it counts itself. So a
name is judged here as it is where a grammar holds the answer to its schema.
"""

import json
from functools import cache
from typing import Any

import llguidance

MATCHES_MAX = 64  # of one response: at most 2 ms each, mostly 0.5
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
    """Patterns of one response. left: matches that it may still ask for."""

    def __init__(self) -> None:
        self.left = MATCHES_MAX
        self.known: dict[tuple[str, str], bool | None] = {}

    def match(self, pattern: Any, name: str) -> bool | None:
        """Whether the pattern is found in the name; None where this cannot be judged: it is no
        pattern, has what the library does not know (look-around, `\\b`), one of both is too long,
        or MATCHES_MAX were asked for."""
        if not isinstance(pattern, str) or len(pattern) > PATTERN_MAX or len(name) > NAME_MAX:
            return None
        if (pattern, name) not in self.known:
            if self.left == 0:
                return None
            self.left -= 1
            self.known[pattern, name] = found_in(pattern, name)
        return self.known[pattern, name]


def found_in(pattern: str, name: str) -> bool | None:
    """Whether the pattern is found in the name; None if it is none, or costs too much."""
    vocabulary, limits = bytewise()
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = llguidance.LLMatcher(
        vocabulary, llguidance.LLMatcher.grammar_from_json_schema(schema), log_level=0,
        limits=limits)
    text = json.dumps(name, ensure_ascii=False).encode(errors="replace")
    if matcher.is_error():
        return None
    taken = matcher.try_consume_tokens(list(text))
    if matcher.is_error():
        return None
    return bool(taken == len(text) and matcher.is_accepting())

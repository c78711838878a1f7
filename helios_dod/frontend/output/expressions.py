"""Regular expressions that `patternProperties` finds in names, in steps that do not grow with the
ways to match.

The syntax is that of ECMA-262, 2024, 22.2.1, without look-around, back references, `\\p` and flags.
All ways are followed at once (Thompson, Communications of the ACM 11(6), 1968), so a name takes at
most instructions x characters steps; STEPS_MAX bounds what one response may take.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

STEPS_MAX = 1 << 15  # of one response: at most 40 ms
PATTERN_MAX = 1024  # characters
INSTRUCTIONS_MAX = 1024  # of one pattern
CODES = 0x110000

# TAKE takes one character of a set and goes on behind it, SPLIT goes on at several places relative
# to its own, the others are assertions. The place behind the last instruction has matched.
TAKE, SPLIT, BEGIN, FINISH, BOUNDARY, NO_BOUNDARY = range(6)
Codes = tuple[int, ...]  # of a set: where it begins and ends, in turn
Program = list[tuple[int, Any]]

GROUP = re.compile(r"\((?:\?(?:(:)|<[A-Za-z_$][\w$]*>))?(?!\?)", re.ASCII)
COUNTS = re.compile(r"(?:([*+?])|\{([0-9]+)(?:(,)([0-9]+)?)?\})\??")
ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}"
                    r"|c([A-Za-z])|([^\w]|[dDwWsSbtnrfv]|0(?![0-9])))", re.ASCII | re.S)
CONTROLS = {"b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
DIGIT: Codes = (48, 58)
WORD: Codes = (48, 58, 65, 91, 95, 96, 97, 123)
SPACE: Codes = (9, 14, 32, 33, 160, 161, 0x1680, 0x1681, 0x2000, 0x200b, 0x2028, 0x202a, 0x202f,
                0x2030, 0x205f, 0x2060, 0x3000, 0x3001, 0xfeff, 0xff00)
ANY: Codes = (0, 10, 11, 13, 14, 0x2028, 0x202a, CODES)  # no ends of lines


class NotJudged(ValueError):
    """What this engine does not know, or would not hold."""


def union(sets: Iterable[Codes]) -> Codes:
    """The characters of any of the sets."""
    made: list[int] = []
    for begin, end in sorted(pair for codes in sets
                             for pair in zip(codes[::2], codes[1::2], strict=True)):
        if made and begin <= made[-1]:
            made[-1] = max(made[-1], end)
        else:
            made += (begin, end)
    return tuple(made)


def others(codes: Codes) -> Codes:
    """The characters that are not in a set."""
    inner = codes[1:] if codes[:1] == (0,) else (0, *codes)
    return inner[:-1] if inner[-1:] == (CODES,) else (*inner, CODES)


SETS = {"d": DIGIT, "w": WORD, "s": SPACE,
        "D": others(DIGIT), "W": others(WORD), "S": others(SPACE)}


@dataclass
class Group:
    """An open group, or the whole pattern. last: the part that a quantifier may follow."""

    alternatives: list[Program] = field(default_factory=list)
    program: Program = field(default_factory=list)  # of the alternative, without its last part
    last: Program = field(default_factory=list)
    repeatable: bool = False

    def add(self, part: Program, repeatable: bool) -> None:
        """One more part of the alternative."""
        self.program += self.last
        self.last, self.repeatable = part, repeatable
        check_size(len(self.program) + len(part))

    def next(self) -> None:
        """The alternative is complete."""
        self.add([], False)
        self.alternatives.append(self.program)
        self.program = []

    def whole(self) -> Program:
        """What matches any alternative."""
        self.next()
        made = self.alternatives.pop()
        while self.alternatives:
            one = self.alternatives.pop()
            made = [(SPLIT, (1, len(one) + 2)), *one, (SPLIT, (len(made) + 1,)), *made]
            check_size(len(made))
        return made


def check_size(count: int) -> None:
    """Raises NotJudged for a program that is too long."""
    if count > INSTRUCTIONS_MAX:
        raise NotJudged


def compiled(pattern: str) -> Program:
    """The program of a pattern. Raises NotJudged."""
    groups, at = [Group()], 0
    while at < len(pattern):
        character, group = pattern[at], groups[-1]
        at += 1
        if character == "(":
            opening = GROUP.match(pattern, at - 1)
            if opening is None:
                raise NotJudged
            groups.append(Group())
            at = opening.end()
        elif character == ")" and len(groups) > 1:
            groups.pop()
            groups[-1].add(group.whole(), True)
        elif character == "|":
            group.next()
        elif character in "^$":
            group.add([(BEGIN if character == "^" else FINISH, None)], False)
        elif character == "[":
            codes, at = read_class(pattern, at)
            group.add([(TAKE, codes)], True)
        elif (counts := COUNTS.match(pattern, at - 1)) is not None:
            if not group.repeatable:
                raise NotJudged
            group.last, group.repeatable = repeated(group.last, counts), False
            check_size(len(group.program) + len(group.last))
            at = counts.end()
        elif character == "\\" and pattern[at:at + 1] in ("b", "B"):
            group.add([(BOUNDARY if pattern[at] == "b" else NO_BOUNDARY, None)], False)
            at += 1
        elif character in "*+?)":
            raise NotJudged
        else:
            codes, at = (ANY, at) if character == "." else read_character(pattern, at - 1)
            group.add([(TAKE, codes)], True)
    if len(groups) > 1:
        raise NotJudged
    return groups[0].whole()


def repeated(part: Program, counts: re.Match[str]) -> Program:
    """A part as often as a quantifier says."""
    if counts[1]:
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[counts[1]]
    else:
        low = int(counts[2])
        high = int(counts[4]) if counts[4] else None if counts[3] else low
    size = len(part) + 1
    check_size(size * max(low, high or 0, 1))
    if high is None:
        return [*part * low, (SPLIT, (1, size + 1)), *part, (SPLIT, (-size,))]
    if high < low:
        raise NotJudged
    made = part * low
    for left in range(high - low, 0, -1):
        made += [(SPLIT, (1, left * size)), *part]
    return made


def read_character(pattern: str, at: int) -> tuple[Codes, int]:
    """The set that a character or an escape stands for, and the place behind it."""
    if pattern[at] != "\\":
        code = ord(pattern[at])
        return (code, code + 1), at + 1
    found = ESCAPE.match(pattern, at)
    if found is None:
        raise NotJudged
    hexadecimal, letter = found[1] or found[2] or found[3], found[5]
    if letter in SETS:
        return SETS[letter], found.end()
    if hexadecimal:
        code = int(hexadecimal, 16)
    elif found[4]:
        code = ord(found[4]) % 32
    else:
        code = CONTROLS.get(letter, ord(letter))
    if code >= CODES or 0xd800 <= code < 0xe000:  # no half of a pair: names have characters
        raise NotJudged
    return (code, code + 1), found.end()


def read_class(pattern: str, at: int) -> tuple[Codes, int]:
    """The set that stands in brackets, and the place behind them. at: behind the opening one."""
    negated = pattern.startswith("^", at)
    at += negated
    sets: list[Codes] = []
    while at < len(pattern) and pattern[at] != "]":
        codes, at = read_character(pattern, at)
        if pattern.startswith("-", at) and pattern[at + 1:at + 2] not in ("", "]"):
            last, at = read_character(pattern, at + 1)
            if not codes[0] + 1 == codes[-1] <= last[-1] == last[0] + 1:
                raise NotJudged
            codes = (codes[0], last[-1])
        sets.append(codes)
    if at >= len(pattern):
        raise NotJudged
    codes = union(sets)
    return others(codes) if negated else codes, at + 1


def holds(assertion: int, name: str, at: int) -> bool:
    """Whether an assertion holds before character `at` of a name."""
    if assertion == BEGIN:
        return at == 0
    if assertion == FINISH:
        return at == len(name)
    before, after = (bisect_right(WORD, ord(one)) % 2 if one else 0
                     for one in (name[at - 1:at], name[at:at + 1]))
    return (before != after) == (assertion == BOUNDARY)


class Expressions:
    """Patterns of one response, each compiled once. left: steps that it still may take."""

    def __init__(self) -> None:
        self.left = STEPS_MAX
        self.programs: dict[str, Program | None] = {}

    def match(self, pattern: Any, name: str) -> bool | None:
        """Whether the pattern is found in the name; None where this cannot be judged: it is no
        pattern, has what is not known here or is too long, or STEPS_MAX are taken."""
        if not isinstance(pattern, str) or len(pattern) > PATTERN_MAX or self.left <= 0:
            return None
        if pattern not in self.programs:
            try:
                program: Program | None = compiled(pattern)
            except NotJudged:
                program = None
            self.programs[pattern] = program
            self.left -= max(len(pattern), len(program or ()))
        program = self.programs[pattern]
        return None if program is None else self.find(program, name)

    def find(self, program: Program, name: str) -> bool | None:
        """Whether the program matches at any place of the name."""
        places: list[int] = []
        for at in range(len(name) + 1):
            if self.left <= 0:
                return None
            seen: set[int] = set()
            waiting, places = [0, *places], []
            code = ord(name[at]) if at < len(name) else CODES
            while waiting:
                place = waiting.pop()
                if place == len(program):
                    return True
                if place in seen:
                    continue
                seen.add(place)
                kind, argument = program[place]
                if kind == TAKE:
                    if bisect_right(argument, code) % 2:
                        places.append(place + 1)
                elif kind == SPLIT:
                    waiting += [place + step for step in argument]
                elif holds(kind, name, at):
                    waiting.append(place + 1)
            self.left -= len(seen)
        return False

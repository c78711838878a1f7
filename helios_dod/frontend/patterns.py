"""Which regular expressions a tokenizer may split text by.

The `tokenizers` library runs them by backtracking (Oniguruma, Ruby's syntax) and cannot be stopped,
so one that tries exponentially many ways would hold a worker for minutes. Refused are repeated
groups that match one text in several ways, many varying parts one after another, and what would
hide either from a reader this small. Splitting by words and numbers needs none of it.
"""

import re
from dataclasses import dataclass, field

from helios_dod.errors import UserError

VARYING_MAX = 8  # quantified parts and alternations that one alternative tries in turn
UNBOUNDED_MAX = 3  # of them, those that repeat without a small limit
REPEATS_SMALL = 16
NO_LIMIT = 1 << 30
OPENING = re.compile(r"\((\?(?:[:=!>]|<[=!]|[im]*(?:-[im]+)?[:)]|<[A-Za-z_]\w*>))?")
BRACE = re.compile(r"\{(\d*)(,?)(\d*)\}")
ESCAPE = re.compile(r"\\(?:[pP]\{\^?\w+\}|x\{[0-9A-Fa-f]+\}|.)", re.S)
CATEGORY = re.compile(r"\\p\{[LMNPSZC]\}")  # general categories of one letter are disjoint


class PatternError(UserError):
    """A pattern that may take exponential time, or cannot be judged."""


@dataclass
class Group:
    """An open group, or the whole pattern. branch: atoms of the current alternative."""

    varying: int = 0  # parts of the current alternative that match in several ways
    unbounded: int = 0
    most: tuple[int, int] = (0, 0)  # varying and unbounded of the worst alternative so far
    branch: list[str] = field(default_factory=list)
    branches: list[list[str]] = field(default_factory=list)

    def close_branch(self) -> None:
        """The alternative ends."""
        if self.varying > VARYING_MAX or self.unbounded > UNBOUNDED_MAX:
            raise PatternError(
                f"at most {VARYING_MAX} quantified parts in an alternative, {UNBOUNDED_MAX} of "
                f"them without a limit, expected, got {self.varying} and {self.unbounded}")
        self.most = max(self.most[0], self.varying), max(self.most[1], self.unbounded)
        self.branches.append(self.branch)
        self.varying, self.unbounded, self.branch = 0, 0, []

    def add(self, varying: int, unbounded: int) -> None:
        """Counts what a part of the current alternative adds."""
        self.varying += varying
        self.unbounded += unbounded

    def clear_choice(self) -> bool:
        """Whether each text is matched by one alternative at most: all are one character each,
        or one category each, and none is given twice."""
        if len(self.branches) == 1:
            return True
        if any(len(branch) != 1 for branch in self.branches):
            return False
        atoms = [branch[0] for branch in self.branches]
        plain = all(len(atom) == 1 and atom.isascii() and atom != "." for atom in atoms)
        if not plain and not all(CATEGORY.fullmatch(atom) for atom in atoms):
            return False
        return len({atom if not plain else atom.lower() for atom in atoms}) == len(atoms)


def check_pattern(pattern: str) -> None:
    """Refuses a pattern that may try exponentially many ways. Raises PatternError."""
    open_groups, at = [Group()], 0
    while at < len(pattern):
        group, character = open_groups[-1], pattern[at]
        if character == "(":
            at = open_group(pattern, at, open_groups)
        elif character == "|":
            group.close_branch()
            at += 1
        elif character == ")" and len(open_groups) > 1:
            group.close_branch()
            open_groups.pop()
            varying = group.most[0] + (not group.clear_choice())
            at = quantified(pattern, at + 1, open_groups, varying, group.most[1])
            open_groups[-1].branch.append("()")
        else:
            end = atom_end(pattern, at)
            group.branch.append(pattern[at:end])
            at = quantified(pattern, end, open_groups, 0, 0)
    for group in open_groups:
        group.close_branch()


def open_group(pattern: str, at: int, open_groups: list[Group]) -> int:
    """Opens the group at a parenthesis, or passes over options; the place behind."""
    found = OPENING.match(pattern, at)
    assert found is not None
    if found[1] is None and pattern.startswith("?", found.end()):
        raise PatternError(f"groups of the kind {pattern[at:at + 4]!r} are not supported")
    if found[0].endswith(")"):
        open_groups[-1].branch.append(found[0])
    else:
        open_groups.append(Group())
    return found.end()


def atom_end(pattern: str, at: int) -> int:
    """The place behind a character, an escape or a class, which may hold others."""
    if pattern[at] == "\\":
        return escape_end(pattern, at)
    if pattern[at] != "[":
        return at + 1
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at = escape_end(pattern, at)
            continue
        if pattern[at] == "[":
            depth += 1
            at += pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at + 1)  # there it is a character
        elif pattern[at] == "]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at


def escape_end(pattern: str, at: int) -> int:
    """The place behind an escape."""
    if pattern[at + 1:at + 2] in ("g", "k", *"123456789"):
        raise PatternError("references to groups (recursion) are not supported")
    if pattern[at + 1:at + 2] in ("c", "C", "M"):
        raise PatternError("escapes of control characters are not supported")
    found = ESCAPE.match(pattern, at)
    return len(pattern) if found is None else found.end()


def quantified(pattern: str, at: int, open_groups: list[Group], varying: int,
               unbounded: int) -> int:
    """Counts a part with the quantifiers at `at` into its alternative; the place behind them.
    varying, unbounded: of what is inside it."""
    while (read := quantifier(pattern, at)) is not None:
        least, most, end = read
        last = len(open_groups) == 1 and pattern[end:end + 1] in ("", "|")
        chained = pattern[at - 1] == "}" and pattern[at] == "+"  # \p{N}{1,3}+ is meant possessive
        if most > 1 and varying and not (chained and last and varying == 1):
            raise PatternError("a repeated part with quantifiers or alternatives inside: it "
                               f"may match in exponentially many ways: {pattern[:end][-40:]!r}")
        if least != most:
            varying += 1
            unbounded += most > REPEATS_SMALL
        at = end
    open_groups[-1].add(varying, unbounded)
    return at


def quantifier(pattern: str, at: int) -> tuple[int, int, int] | None:
    """(least, most, place behind) of the quantifier there, its laziness included."""
    character = pattern[at:at + 1]
    if character and character in "?*+":
        end = at + 1
        end += pattern[end:end + 1] in ("?", "+")
        return int(character == "+"), 1 if character == "?" else NO_LIMIT, end
    found = BRACE.match(pattern, at)
    if found is None or not (found[1] or found[3]):
        return None
    least = int(found[1] or 0)
    most = (int(found[3]) if found[3] else NO_LIMIT) if found[2] else least
    return least, most, found.end()

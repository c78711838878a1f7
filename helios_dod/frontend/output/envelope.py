"""JSON as it comes: one value by its brackets, and one object with a tool's name and arguments."""

import json
import re
from collections.abc import Callable

from helios_dod.frontend.output.output import Output
from helios_dod.frontend.output.syntax import JsonSyntax
from helios_dod.frontend.output.terms import BLANKS, NAME_MAX
from helios_dod.frontend.output.values import ESCAPE, escape_cut

DEPTH_MAX = 512
DONE, BROKEN = 1, 2
IN_STRING = re.compile(r'["\\]').search
STRUCTURE = re.compile("[\"{}\\[\\]\u0100-\uffff]").search
SCALAR_END = re.compile("[,}\\] \t\r\n\u0100-\uffff]").search
NOT_PLAIN = re.compile(r'["\\{}\[\]]').search  # what may move a value's end
PARTNER = {"{": "}", "[": "]"}


class Value:
    """Finds the end of one JSON value. Strings may hold any symbol; outside them no token."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, opened: str = "") -> None:
        """A value begins. opened: a bracket of it that was taken already."""
        self.stack = [PARTNER[opened]] if opened else []
        self.in_string = self.in_scalar = False
        self.status = 0

    def is_inside(self) -> bool:
        """Whether text without brackets, quotes and escapes cannot end the value."""
        return bool(self.stack)

    def scan(self, buffer: str, at: int) -> int:
        """The position up to which the value goes in this buffer."""
        while at < len(buffer) and not self.status:
            if self.in_string:
                match = IN_STRING(buffer, at)
                if match is None:
                    return len(buffer)
                if match.group() == "\\":
                    if match.end() == len(buffer):
                        return match.start()
                    at = match.end() + 1
                    continue
                self.in_string = False
                at = match.end()
                self.status = 0 if self.stack else DONE
            elif self.stack:
                match = STRUCTURE(buffer, at)
                if match is None:
                    return len(buffer)
                at = self.structure(match.group(), match.start())
            else:
                at = self.first(buffer, at)
        return at

    def structure(self, char: str, at: int) -> int:
        """A quote or bracket at `at`."""
        if char == '"':
            self.in_string = True
        elif char in PARTNER and len(self.stack) < DEPTH_MAX:
            self.stack.append(PARTNER[char])
        elif self.stack and char == self.stack[-1]:
            self.stack.pop()
            self.status = 0 if self.stack else DONE
        else:
            self.status = BROKEN
            return at
        return at + 1

    def first(self, buffer: str, at: int) -> int:
        """Outside every bracket: the value's first symbol, or more of a number or word."""
        if not self.in_scalar and buffer[at] in '"{[':
            return self.structure(buffer[at], at)
        match = SCALAR_END(buffer, at)
        end = match.start() if match else len(buffer)
        if match:
            self.status = DONE if self.in_scalar or end > at else BROKEN
        self.in_scalar = True
        return end


START, FIRST_KEY, KEY, IN_KEY, COLON, VALUE, IN_VALUE, AFTER = range(8)
OTHER, NAME, ARGUMENTS = 0, 1, 2
OBJECT_FIRST = '{"n'  # how arguments begin: an object, one in a string, or null for none


class Envelope:
    """An object with a name and arguments in any order. The call begins once both are known."""

    def __init__(self, out: Output, syntax: JsonSyntax,
                 resolve: Callable[[str], str | None]) -> None:
        self.out, self.syntax, self.resolve = out, syntax, resolve
        self.value = Value()
        self.steps = (self.start, self.key, self.key, self.in_key, self.colon, self.choose,
                      self.in_value, self.after)
        self.begin()

    def begin(self, candidate: bool = False, exact: bool = False) -> None:
        """An object may begin. candidate: one that names no declared tool, or whose arguments are
        no object, is broken. exact: so is one that is more than a name and then arguments."""
        self.candidate, self.exact = candidate, exact
        self.place, self.status = START, 0
        self.name: str | None = None
        self.begun = False
        self.given = False  # whether the arguments were there
        self.early: list[str] | None = []  # arguments before the name
        self.parts: list[str] = []
        self.size = 0
        self.escape = ""

    def opened(self) -> None:
        """The object's brace was taken already."""
        self.place = FIRST_KEY

    def take(self, buffer: str, at: int) -> int:
        """Takes what it can; `status` says if the object is DONE or BROKEN."""
        while at < len(buffer) and not self.status:
            before = (at, self.place)
            if self.place not in (IN_KEY, IN_VALUE):
                while at < len(buffer) and buffer[at] in BLANKS:
                    at += 1
                if at == len(buffer):
                    break
            at = self.steps[self.place](buffer, at)
            if (at, self.place) == before:
                break
        return at

    def expect(self, found: str, wanted: str, place: int) -> int:
        """One symbol of structure; the symbols taken."""
        if found != wanted:
            self.status = BROKEN
            return 0
        self.place = place
        return 1

    def start(self, buffer: str, at: int) -> int:
        return at + self.expect(buffer[at], "{", FIRST_KEY)

    def key(self, buffer: str, at: int) -> int:
        if buffer[at] == "}" and self.place == FIRST_KEY:
            self.status = DONE
            return at + 1
        if buffer[at] != '"':
            self.status = BROKEN
            return at
        self.collect(IN_KEY)
        return at

    def collect(self, place: int) -> None:
        self.value.begin()
        self.parts.clear()
        self.size = 0
        self.place = place

    def in_key(self, buffer: str, at: int) -> int:
        end = self.value.scan(buffer, at)
        self.keep(buffer[at:end])
        if self.value.status == DONE:
            self.key_name = self.string()
            self.place = COLON
        return end

    def keep(self, symbols: str) -> None:
        """A part of a key or name, within NAME_MAX symbols."""
        self.parts.append(symbols)
        self.size += len(symbols)
        if self.size > NAME_MAX or self.value.status == BROKEN:
            self.status = BROKEN

    def string(self) -> str | None:
        """The kept string's value, or None if it is no JSON string."""
        try:
            value = json.loads(self.out.bound.text_of("".join(self.parts)), strict=False)
        except ValueError:
            return None
        return value if isinstance(value, str) else None

    def colon(self, buffer: str, at: int) -> int:
        return at + self.expect(buffer[at], ":", VALUE)

    def choose(self, buffer: str, at: int) -> int:
        """The role of the value that begins here."""
        self.collect(IN_VALUE)
        self.role, self.first = OTHER, buffer[at]
        if self.key_name in self.syntax.name_keys and self.name is None and self.first == '"':
            self.role = NAME
        elif self.key_name in self.syntax.argument_keys and not self.given and not (
                self.exact and self.name is None):
            self.role = ARGUMENTS
            if self.candidate and self.first not in OBJECT_FIRST:
                self.status = BROKEN
                return at
            self.given = True
            self.try_begin()
            return at + (self.first == '"' and self.skip_quote())
        elif self.exact:
            self.status = BROKEN
        return at

    def is_ready(self) -> bool:
        """Whether more text is arguments as it stands, if it cannot end them."""
        return (self.place == IN_VALUE and self.role == ARGUMENTS and self.early is None
                and self.first in "{[" and self.value.is_inside())

    def skip_quote(self) -> int:
        """Serialised arguments: the string's text is the arguments."""
        self.value.in_string = True
        return 1

    def in_value(self, buffer: str, at: int) -> int:
        end = self.value.scan(buffer, at)
        piece, done = buffer[at:end], self.value.status == DONE
        if self.role == NAME:
            self.keep(piece)
        elif self.role == ARGUMENTS:
            self.argument(piece[:-1] if done and self.first == '"' else piece, done)
        if self.value.status == BROKEN:
            self.status = BROKEN
        elif done:
            self.place = AFTER
            if self.role == NAME:
                self.name = self.string()
                if self.candidate and self.name not in self.out.tools and (
                        self.exact or len(self.out.tools)):
                    self.status = BROKEN
                else:
                    self.try_begin()
        return end

    def argument(self, piece: str, done: bool) -> None:
        """A part of the arguments."""
        if self.first == '"':
            text = self.escape + piece
            cut = len(text) if done else escape_cut(text)
            self.escape = text[cut:]
            self.emit(ESCAPE.sub(unescape, text[:cut]))
        elif self.first in "{[":
            self.emit(piece)
        else:
            self.keep(piece)
            if done:
                word = "".join(self.parts)
                self.emit("{}" if word == "null" else word)

    def emit(self, symbols: str) -> None:
        if self.early is not None:
            self.early.append(symbols)
        else:
            self.out.raw(symbols)

    def try_begin(self) -> None:
        """The call begins once its name is known and its arguments are there."""
        if self.begun or not self.name or not self.given:
            return
        resolved = self.resolve(self.name)
        if resolved is None:
            return
        self.begun = True
        self.out.begin(resolved)
        early, self.early = self.early, None
        for symbols in early or ():
            self.out.raw(symbols)

    def after(self, buffer: str, at: int) -> int:
        if buffer[at] == "}":
            self.status = DONE
            return at + 1
        return at + self.expect(buffer[at], ",", KEY)

    def finish(self) -> None:
        """The object is complete: the call is finished, if there is one."""
        if not self.begun and self.name and not self.given and not self.syntax.arguments_required:
            self.given = True
            self.early = ["{}"]
            self.try_begin()
        if self.begun:
            self.out.end_raw()
            self.out.end()


def unescape(match: re.Match[str]) -> str:
    """Symbols of what a JSON escape means; what means nothing stays."""
    try:
        text = json.loads(f'"{match.group()}"')
    except ValueError:
        return match.group()
    return text.encode("utf-8", "replace").decode("latin-1")

"""Kind 3: a stream of elements with typed attributes; reasoning and answer are channels of it."""

import re
from typing import TYPE_CHECKING

from helios_dod.frontend.output.arguments import STREAM, Arguments, RawText
from helios_dod.frontend.output.states import State
from helios_dod.frontend.output.syntax import ElementSyntax
from helios_dod.frontend.output.terms import (
    ARGUMENTS,
    CONTENT,
    HEADER_MAX,
    RAW,
    REASONING,
    Start,
    Typing,
)

if TYPE_CHECKING:
    from helios_dod.frontend.output.parser import Parser

OPEN, CLOSE, SEPARATOR = 1, 2, 3
ATTRIBUTE = re.compile(r'([A-Za-z_]+)="([^"]*)"').finditer
RAW_SLOW = r"\\|[ \t\r\n]\Z"


class ElementDocument:
    """The outermost part of a parser of an element stream."""

    def __init__(self, parser: "Parser", syntax: ElementSyntax, start: Start) -> None:
        self.parser, self.syntax = parser, syntax
        self.out = parser.out
        self.arguments = Arguments(parser.out, Typing.ATTRIBUTE)
        self.raw = RawText(parser.out)
        self.has_json = False  # the open call has an element with all arguments
        s, make, end = syntax, parser.bound.compiled, self.end
        marks = {s.open: OPEN, s.close: CLOSE, s.separator: SEPARATOR}
        plain = make("elements", marks)
        self.outside = State(plain, self.content_text, self.mark, kind=CONTENT)
        self.response = State(plain, self.content_text, self.mark, kind=CONTENT)
        self.thinking = State(plain, self.reasoning_text, self.mark, kind=REASONING)
        self.between = State(plain, self.ignore, self.mark, end)
        self.over = State(plain, self.ignore, self.mark, end)
        self.in_value = State(plain, self.value_text, self.mark, end)
        self.in_string = State(plain, self.value_text, self.mark, end, ARGUMENTS)
        self.in_json = State(make("elements.raw", marks, RAW_SLOW), self.raw.text, self.mark, end,
                             RAW, ready=self.raw.is_ready)
        self.in_tag = State(plain, self.tag_text, self.tag_mark, end)
        self.place = {Start.REASONING: self.thinking, Start.RESPONSE: self.response}.get(
            start, self.outside)
        parser.state = self.place
        self.tag: list[str] = []
        self.tag_size = 0
        self.closes = False
        self.bare = (s.think, s.response, s.tools)  # tags without attributes
        self.names = (*self.bare, s.message, s.call, s.argument, s.json)

    # text

    def content_text(self, symbols: str) -> None:
        self.out.text(CONTENT, symbols)

    def reasoning_text(self, symbols: str) -> None:
        self.out.text(REASONING, symbols)

    def ignore(self, symbols: str) -> None:
        """Text that is neither argument nor content."""

    def value_text(self, symbols: str) -> None:
        self.arguments.text(symbols)

    def is_idle(self, kind: int) -> bool:
        """Plain text needs no further look."""
        return True

    # tags

    def mark(self, meaning: int, word: str) -> None:
        """A tag begins; a separator alone is nothing."""
        if meaning == SEPARATOR:
            return
        self.out.settle_text()
        self.closes = meaning == CLOSE
        self.place = self.parser.state
        self.tag.clear()
        self.tag_size = 0
        self.parser.state = self.in_tag

    def tag_text(self, symbols: str) -> int | None:
        """Part of a tag; text where the tag's separator was lost, or where it is no tag."""
        if self.tag_size + len(symbols) > HEADER_MAX:
            self.parser.state = self.place
            return HEADER_MAX - self.tag_size
        decided = self.tag_size > LONGEST_NAME
        self.tag.append(symbols)
        self.tag_size += len(symbols)
        if decided:
            return None
        text = "".join(self.tag)
        for name in self.names:
            if not text.startswith(name):
                continue
            rest = text[len(name):]
            if not rest or (not self.closes and rest[0] == " "):
                return None
            if self.closes or name in self.bare:
                self.apply(name, "")
                return len(symbols) - len(rest)
        if any(name.startswith(text) for name in self.names):
            return None
        return self.no_tag(text, symbols)

    def no_tag(self, text: str, symbols: str) -> int:
        """What looked like a tag is text of the place where it came."""
        opener = self.syntax.close if self.closes else self.syntax.open
        self.parser.state = self.place
        if self.place.text is not None:
            self.place.text(self.parser.bound.encode(opener) + text[:len(text) - len(symbols)])
        return 0

    def tag_mark(self, meaning: int, word: str) -> None:
        """A tag ends at its separator, or where the next tag begins."""
        head = self.parser.bound.text_of("".join(self.tag))
        name, _, attributes = head.partition(" ")
        self.apply(name, attributes)
        if meaning != SEPARATOR:
            self.mark(meaning, word)

    def apply(self, name: str, text: str) -> None:
        """Acts on a complete tag."""
        s = self.syntax
        if self.place is self.over or name not in self.names:
            self.parser.state = self.place
        elif self.closes:
            self.close_element(name)
        elif name in (s.call, s.argument, s.json):
            attributes = {found[1]: self.unescape(found[2]) for found in ATTRIBUTE(text)}
            self.open_element(name, attributes)
        else:
            self.end_call()
            self.leave_reasoning()
            self.parser.state = {s.think: self.thinking, s.response: self.response,
                                 s.tools: self.between}.get(name, self.outside)

    def unescape(self, value: str) -> str:
        """An attribute's value."""
        for escape, char in self.syntax.escapes:
            value = value.replace(escape, char)
        return value

    def leave_reasoning(self) -> None:
        if self.place is self.thinking:
            self.out.await_content()

    def end_call(self) -> None:
        """Another channel began: a call that is open will not be finished."""
        self.out.incomplete()
        self.has_json = False

    # calls

    def open_element(self, name: str, attributes: dict[str, str]) -> None:
        s = self.syntax
        if name == s.call:
            self.end_call()
            self.leave_reasoning()
            self.parser.state = self.between
            tool = attributes.get(s.name_attribute, "")
            if tool:
                self.out.begin(tool)
                self.arguments.begin(tool)
            return
        self.end_value()
        self.parser.state = self.between
        if not self.out.open:
            return
        if self.has_json or (name == s.json and self.arguments.count):
            self.out.incomplete()  # arguments one by one and all at once: neither counts
        elif name == s.json:
            self.has_json = True
            self.raw.begin()
            self.parser.state = self.in_json
        else:
            kind = attributes.get(s.type_attribute, "")
            self.arguments.open(attributes.get(s.key_attribute, ""),
                                "true" if kind == s.string_type else "false")
            stream = self.arguments.how == STREAM
            self.parser.state = self.in_string if stream else self.in_value

    def end_value(self) -> None:
        """The value that is open is complete, if one is."""
        if self.place in (self.in_string, self.in_value):
            self.arguments.close()

    def close_element(self, name: str) -> None:
        s = self.syntax
        if name == s.message or (name == s.tools and self.place is not self.thinking):
            self.end_call()
            self.leave_reasoning()
            self.parser.state = self.over
        elif name in (s.think, s.response):
            self.end_call()
            self.leave_reasoning()
            self.parser.state = self.outside
        elif name == s.call and self.out.open:
            self.end_value()
            closed = self.has_json and self.place is not self.in_json
            if closed:
                self.raw.end()
            elif self.has_json:
                self.out.end_raw()
            else:
                self.arguments.end()
            self.out.end(as_written=closed)
            self.has_json = False
            self.parser.state = self.between
        elif self.out.open:
            self.end_value()
            self.parser.state = self.between
        else:
            self.parser.state = self.place

    def end(self, rest: str) -> None:
        """The output ended here: the beginning of a tag is framing."""

    def finish(self) -> None:
        """The output has ended."""


LONGEST_NAME = 64  # symbols by which a tag's name is decided

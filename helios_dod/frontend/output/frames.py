"""Kind 5: framed messages whose header has a recipient and a channel."""

import re
from typing import TYPE_CHECKING

from helios_dod.frontend.output.arguments import RawText
from helios_dod.frontend.output.states import State
from helios_dod.frontend.output.syntax import FrameSyntax
from helios_dod.frontend.output.tags import WRAPPER, TagCalls
from helios_dod.frontend.output.terms import (
    BLANK_MAX,
    BLANKS,
    CONTENT,
    HEADER_MAX,
    NAME_MAX,
    RAW,
    REASONING,
    Start,
    is_blank,
)
from helios_dod.frontend.output.values import document_of

if TYPE_CHECKING:
    from helios_dod.frontend.output.parser import Parser

START, MESSAGE, FRAME_END, CHANNEL, BARE = 1, 2, 3, 4, 5
MARKUP = 6  # a call's markup
CONSTRAIN = 7
NOT_RECIPIENT = re.compile(r"[^A-Za-z0-9_.*-]").search
RAW_SLOW = r"\\|[ \t\r\n]\Z"
JOIN = "\n"  # between messages of one kind


class FrameDocument:
    """The outermost part of a parser of framed messages."""

    def __init__(self, parser: "Parser", syntax: FrameSyntax, start: Start, opaque: bool) -> None:
        self.parser, self.syntax, self.opaque = parser, syntax, opaque
        self.out = parser.out
        self.raw = RawText(parser.out)
        self.head: list[str] = []
        self.head_size = 0
        self.framed = False  # the header has a token of its own, so it is no prose
        self.recipient = ""
        s = syntax
        self.controls = {s.start: START, s.message: MESSAGE, **dict.fromkeys(s.ends, FRAME_END)}
        if s.channel:
            self.controls[s.channel] = CHANNEL
        inside = {word: meaning for word, meaning in self.controls.items() if meaning != MESSAGE}
        self.calls = TagCalls(parser, s.body, self, inside) if s.body else None
        self.make_states()
        self.body = self.content  # where text goes if a header turns out to be none
        parser.state = {Start.CONTENT: self.content, Start.RESPONSE: self.content,
                        Start.REASONING: self.reasoning}.get(start, self.header)

    def make_states(self) -> None:
        s, make, controls = self.syntax, self.parser.bound.compiled, self.controls
        self.prefix = self.parser.bound.encode(s.recipient)
        self.role = self.parser.bound.encode(s.role)
        text = dict(controls)
        if s.bare_headers:
            text |= {blank + s.recipient.strip(): BARE for blank in BLANKS}
        marks = make("frames.text", text)
        self.content = State(marks, self.content_text, self.mark, kind=CONTENT)
        self.reasoning = State(marks, self.reasoning_text, self.mark, kind=REASONING)
        tokens = {word: meaning for word, meaning in controls.items()
                  if self.parser.bound.is_token(word)}
        self.document = State(make("frames.document", tokens), self.content_text, self.mark,
                              kind=CONTENT)
        plain = make("frames", controls)
        heads = make("frames.header", controls | ({s.constrain: CONSTRAIN} if s.constrain else {}))
        self.header = State(heads, self.header_text, self.header_mark, self.end_header)
        self.ignored = State(plain, self.ignore, self.mark)
        self.in_raw = State(make("frames.raw", controls, RAW_SLOW), self.raw.text, self.raw_mark,
                            self.end, RAW, ready=self.raw.is_ready)
        self.in_object = State(plain, self.keep_text, self.object_mark, self.end)
        self.bare = State(plain, self.bare_text, self.bare_mark, self.end_bare)
        markup = dict(controls)
        if s.body:
            markup |= {s.body.wrapper_open: MARKUP}
        after = make("frames.markup", markup)
        self.after_bare = State(after, self.after_bare_text, self.after_bare_mark, self.end_bare)
        self.markup = self.parser.bound.encode(s.body.wrapper_open if s.body else s.message)
        self.untagged = State(None, take=self.take_untagged, end=self.end_untagged)
        self.tool_body = State(after, self.tool_text, self.tool_mark, self.end)

    # text

    def content_text(self, symbols: str) -> None:
        self.out.text(CONTENT, symbols)
        if self.opaque and self.parser.state is self.content and not is_blank(symbols):
            self.parser.state = self.document

    def reasoning_text(self, symbols: str) -> None:
        self.out.text(REASONING, symbols)

    def keep_text(self, symbols: str) -> None:
        self.head.append(symbols)

    def ignore(self, symbols: str) -> None:
        """Text that no one is shown."""

    def is_idle(self, kind: int) -> bool:
        """Plain text needs no further look."""
        return True

    def end(self, rest: str) -> None:
        """The output ended here."""

    # headers

    def begin_header(self, framed: bool) -> None:
        self.head.clear()
        self.head_size = 0
        self.framed = framed
        self.parser.state = self.header

    def mark(self, meaning: int, word: str) -> None:
        """A control in a body. A message control without a header is nothing."""
        if meaning == BARE:
            self.out.text(self.parser.state.kind, word[0])
            self.body = self.parser.state
            self.head = [word[1:]]
            self.head_size = len(word)
            self.parser.state = self.bare
        elif meaning != MESSAGE:
            self.interrupt(meaning)

    def interrupt(self, meaning: int) -> None:
        """A control ends a body, whatever it was. Behind a call that is not finished, text without
        a header is the rest of it."""
        self.out.settle_text()
        unfinished, state = self.out.open, self.parser.state
        self.out.incomplete()
        bodies = (self.content, self.document, self.reasoning)
        self.body = state if state in bodies else self.ignored
        if meaning == FRAME_END and not unfinished:
            self.body = self.content
        self.begin_header(meaning in (START, CHANNEL))
        if meaning == CHANNEL:
            self.head.append(self.parser.bound.encode(self.syntax.channel))

    def header_text(self, symbols: str) -> int | None:
        """Part of a header; without a control before it, only while it may be one."""
        before = self.head_size
        self.head.append(symbols)
        self.head_size += len(symbols)
        if self.framed and self.syntax.channel and self.head_size <= HEADER_MAX:
            return None
        good = self.header_length("".join(self.head)[:HEADER_MAX])
        if good >= self.head_size:
            return None
        taken = max(good - before, 0)
        self.head[-1] = symbols[:taken]
        self.parser.state = self.body
        self.release("".join(self.head))
        return taken

    def header_length(self, head: str) -> int:
        """Length of the beginning that may be a header without controls."""
        at = 0
        role = common(head, self.role)
        if role:
            if role < len(self.role):
                return role
            at = role
        at = skip_blanks(head, at)
        prefix = self.prefix.strip(BLANKS)
        length = common(head[at:], prefix)
        if length < len(prefix):
            return at + length
        match = NOT_RECIPIENT(head, at + length)
        end = match.start() if match else len(head)
        if end > at + length:
            end = skip_blanks(head, end)
        return min(end, NAME_MAX)

    def release(self, symbols: str) -> None:
        """A header turned out to be none: its text is the body's."""
        if symbols and self.parser.state.text is not None:
            self.parser.state.text(symbols)

    def end_header(self, rest: str) -> None:
        """The output ended in a header: without a control it was text."""
        if not self.framed:
            self.parser.state = self.content if self.body is self.ignored else self.body
            self.release("".join(self.head) + rest)

    def header_mark(self, meaning: int, word: str) -> None:
        if meaning == MESSAGE:
            self.route(self.parser.bound.text_of("".join(self.head)))
        elif meaning in (CHANNEL, CONSTRAIN):
            self.framed = True
            self.head.append(word)
        elif meaning == START:
            self.drop_header()
            self.begin_header(True)
        elif meaning == FRAME_END:
            self.drop_header()
            self.begin_header(False)

    def drop_header(self) -> None:
        """A header without a message: prose is text, the rest is framing."""
        if not self.framed:
            head = "".join(self.head)
            if not is_blank(head):
                self.out.text(CONTENT, head)

    # bodies

    def route(self, header: str) -> None:
        """The body's kind, from the header's text."""
        s = self.syntax
        before, _, after = header.partition(s.channel) if s.channel else (header, "", "")
        words = after.replace(s.constrain or "\0", " ").split()
        channel = words[0] if words and not words[0].startswith(s.recipient.strip()) else ""
        match = re.search(rf"{re.escape(s.recipient.strip())}\s*([^\s<]+)", before + " " + after)
        self.recipient = match[1] if match else ""
        role = before.partition(s.recipient.strip())[0].strip()
        if role not in ("", s.role) and not role.startswith(s.role):
            self.parser.state = self.ignored
        elif self.is_tool(self.recipient):
            self.begin_tool()
        elif channel in s.reasoning_channels or self.recipient in s.reasoning_recipients:
            self.out.join(REASONING, JOIN)
            self.out.drop_blank()
            self.parser.state = self.reasoning
        elif self.recipient and self.recipient not in s.content_recipients:
            self.parser.state = self.ignored
        else:
            self.out.join(CONTENT, JOIN)
            untagged = self.calls is not None and not self.recipient and not self.opaque
            self.parser.state = self.untagged if untagged else self.content

    def is_tool(self, recipient: str) -> bool:
        s = self.syntax
        if s.tool_prefix:
            return recipient.startswith(s.tool_prefix)
        return bool(recipient) and recipient not in (
            *s.reasoning_recipients, *s.content_recipients)

    def begin_tool(self) -> None:
        if self.calls is not None:
            self.parser.state = self.tool_body
            return
        self.out.begin(self.recipient.removeprefix(self.syntax.tool_prefix))
        self.raw.begin()
        self.parser.state = self.in_raw

    def raw_mark(self, meaning: int, word: str) -> None:
        """A body of arguments ends at its frame's end only."""
        if meaning == MESSAGE:
            return
        if meaning == FRAME_END:
            self.raw.end()
            first = word == self.parser.bound.encode(self.syntax.ends[0])  # more frames follow it
            self.out.end(as_written=not first)
        self.interrupt(meaning)
        self.body = self.ignored  # text behind it that no frame of its own holds

    def resolve(self, name: str) -> str | None:
        """The tool that an invocation means, None if the frame is for another one."""
        name, wanted = self.undouble(name), self.undouble(self.recipient)
        if wanted in self.out.tools and name != wanted:
            return None
        return name

    def undouble(self, name: str) -> str:
        """f for f.f, if f is declared."""
        head, _, tail = name.partition(".")
        if self.syntax.doubled_names and head == tail and head in self.out.tools:
            return head
        return name

    def leave(self) -> None:
        """A block of calls is over; what follows it in its frame is nothing."""
        self.parser.state = self.ignored

    def take_untagged(self, buffer: str, at: int) -> int:
        """A body without a recipient is content unless it begins with a call's markup."""
        first = skip_blanks(buffer, at)
        head = buffer[first:first + len(self.markup)]
        if head == self.markup:
            assert self.calls is not None
            self.calls.opened(WRAPPER, head)
            return first + len(head)
        if first - at > BLANK_MAX or not self.markup.startswith(head):
            self.parser.state = self.content
        return at

    def end_untagged(self, rest: str) -> None:
        self.content_text(rest)

    def tool_text(self, symbols: str) -> int | None:
        """A tool's body: an object without markup is the arguments of the recipient."""
        bare = symbols.lstrip(BLANKS)
        if not bare:
            return None
        document = bare[0] == "{" and self.undouble(self.recipient) in self.out.tools
        self.head = []
        self.parser.state = self.in_object if document else self.ignored
        return len(symbols) - len(bare)

    def object_mark(self, meaning: int, word: str) -> None:
        """The object counts if it is complete and its frame ends."""
        document = document_of(self.parser.bound.text_of("".join(self.head)))
        if meaning == FRAME_END and document is not None:
            self.out.begin(self.undouble(self.recipient))
            self.out.arguments(document)
            self.out.end()
        if meaning != MESSAGE:
            self.interrupt(meaning)

    def tool_mark(self, meaning: int, word: str) -> None:
        if meaning == MARKUP:
            assert self.calls is not None
            self.calls.opened(WRAPPER, word)
        elif meaning != MESSAGE:
            self.interrupt(meaning)

    # headers without start

    def bare_text(self, symbols: str) -> int | None:
        match = NOT_RECIPIENT(symbols)
        taken = match.start() if match else len(symbols)
        self.head.append(symbols[:taken])
        self.head_size += taken
        if match is None and self.head_size <= NAME_MAX:
            return None
        self.not_bare()
        return taken

    def not_bare(self) -> None:
        """What looked like a header was the body's text."""
        self.parser.state = self.body
        self.release("".join(self.head))

    def bare_mark(self, meaning: int, word: str) -> None:
        name = self.parser.bound.text_of("".join(self.head))[len(self.syntax.recipient.strip()):]
        if meaning == MESSAGE and self.is_tool(name):
            self.recipient = name
            self.parser.state = self.after_bare
            return
        self.not_bare()
        self.mark(meaning, word)

    def after_bare_text(self, symbols: str) -> int:
        self.not_bare()
        return 0

    def after_bare_mark(self, meaning: int, word: str) -> None:
        if meaning == MARKUP:
            assert self.calls is not None
            self.out.settle_text()
            self.calls.opened(WRAPPER, word)
            return
        self.not_bare()
        self.mark(meaning, word)

    def end_bare(self, rest: str) -> None:
        self.not_bare()
        self.release(rest)

    def finish(self) -> None:
        """The output has ended."""


def common(text: str, word: str) -> int:
    """Length of the common beginning."""
    count = 0
    while count < min(len(text), len(word)) and text[count] == word[count]:
        count += 1
    return count


def skip_blanks(text: str, at: int) -> int:
    """The position after blanks."""
    while at < len(text) and text[at] in BLANKS:
        at += 1
    return at



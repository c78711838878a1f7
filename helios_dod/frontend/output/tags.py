"""Kind 1: calls as invocation tags with a tag for each parameter."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from helios_dod.frontend.output.arguments import STREAM, Arguments
from helios_dod.frontend.output.marks import with_lead
from helios_dod.frontend.output.states import Host, State
from helios_dod.frontend.output.syntax import TagSyntax
from helios_dod.frontend.output.terms import (
    ARGUMENTS,
    BLANKS,
    CONTENT,
    HEADER_MAX,
    Orphan,
    blank_count,
    is_blank,
)

if TYPE_CHECKING:
    from helios_dod.frontend.output.parser import Parser

WRAPPER, MISSPELLED, INVOKE, WRAPPER_CLOSE, INVOKE_CLOSE = 1, 2, 3, 4, 5
PARAMETER, PARAMETER_CLOSE, TAG_END, ABSORBED = 6, 7, 8, 9
HOST = 100  # the host's delimiters have meanings from here on
FIRST, AT_NAME, AT_END = 1, 2, 3  # when a candidate becomes a call
TAG_OVER = re.compile("[>\n<]").search
NOT_IN_HEAD = re.compile("[\n<\u0100-\uffff]").search
QUOTED = re.compile(r'([^"]*)"(.*)', re.S).fullmatch
ATTRIBUTE = re.compile(r'([A-Za-z_]+)\s*=\s*"([^"]*)"').finditer


class TagCalls:
    """The part of a parser that reads tag calls, from an opener until it leaves for the host."""

    def __init__(self, parser: "Parser", syntax: TagSyntax, host: Host,
                 host_marks: Mapping[str, int] | None = None) -> None:
        self.parser, self.syntax, self.host = parser, syntax, host
        self.out = parser.out
        self.arguments = Arguments(parser.out, syntax.typing, syntax.unions,
                                   syntax.python_literals, syntax.unwrap)
        self.candidate = 0
        self.wrapped = False  # whether the section has an opener of its own
        self.done = 0  # calls of this section
        self.strange = False  # whether a candidate section has text that belongs to no call
        self.head: list[str] = []
        self.head_size = 0
        self.body: list[str] = []
        self.closer: list[str] = []
        tokens = [symbol for word, symbol in parser.bound.atoms.items()
                  if word in syntax.wrapper_open and word != syntax.wrapper_open]
        self.tag_token = re.compile("|".join(tokens)).search if tokens else None
        self.make_states({word: HOST + meaning for word, meaning in (host_marks or {}).items()})

    def make_states(self, host: dict[str, int]) -> None:
        s, make = self.syntax, self.parser.bound.compiled
        end = self.end
        misspelled = [word.replace("<", "</", 1) for word in s.wrapper_misspelled]
        closers = dict.fromkeys((s.wrapper_close, *misspelled), WRAPPER_CLOSE)
        section = {s.wrapper_open: WRAPPER, **closers, s.invoke_open: INVOKE, **host}
        body = {**section, s.invoke_close: INVOKE_CLOSE, s.parameter_open: PARAMETER,
                s.parameter_close: PARAMETER_CLOSE}
        self.section = State(make("tags.section", section), self.section_text, self.mark, end)
        marks = make("tags.body", body)
        self.body_state = State(marks, self.body_text, self.mark, end)
        self.stray = State(marks, self.ignore, self.stray_mark, end)
        head = make("tags.head", {">": TAG_END, **host})
        self.invoke_head = State(head, self.head_text, self.invoke_mark, end)
        self.parameter_head = State(head, self.head_text, self.parameter_mark, end)
        ends = {s.parameter_close: PARAMETER_CLOSE, **host}
        if s.edge_newlines:
            ends["\n" + s.parameter_close] = PARAMETER_CLOSE
        if s.implicit_ends:
            for word, meaning in ((s.parameter_open, PARAMETER), (s.invoke_close, INVOKE_CLOSE)):
                ends |= {word: meaning, "\n" + word: meaning}
        marks = make("tags.value", ends)
        self.value = State(marks, self.value_text, self.value_mark, end)
        self.string = State(marks, self.value_text, self.value_mark, end, ARGUMENTS)
        self.value_start = State(None, end=end, take=self.take_newline)
        confirm = {s.parameter_open: PARAMETER, s.invoke_close: INVOKE_CLOSE, **host}
        self.confirm = State(make("tags.confirm", confirm), self.confirm_text, self.value_mark, end)
        close = make("tags.close", {s.invoke_close: INVOKE_CLOSE, **host})
        self.json = State(close, self.body.append, self.json_mark, end)
        over = make("tags.skip", {s.invoke_close: INVOKE_CLOSE, **closers, **host})
        self.skip = State(over, self.ignore, self.skip_mark, end)
        self.piece = State(None, end=end, take=self.take_piece)
        rest = make("tags.rest", {**closers, s.invoke_open: INVOKE, **host})
        self.verbatim = State(rest, self.verbatim_text, self.verbatim_mark)

    def openers(self) -> dict[str, int]:
        """What begins calls in content."""
        s = self.syntax
        words = dict.fromkeys(with_lead(s.wrapper_open, s.lead), WRAPPER)
        for word in s.wrapper_misspelled:
            words |= dict.fromkeys(with_lead(word, s.lead), MISSPELLED)
        if self.parser.bound.is_token(s.wrapper_close):
            words[s.wrapper_close] = ABSORBED
        if s.orphan != Orphan.TEXT:
            words |= dict.fromkeys(with_lead(s.invoke_open, s.lead), INVOKE)
        return words

    def strays(self) -> dict[str, int]:
        """What is text in content, and the rest of a call behind one that broke."""
        s = self.syntax
        words = {s.invoke_close: INVOKE_CLOSE, s.parameter_open: PARAMETER,
                 s.parameter_close: PARAMETER_CLOSE}
        if s.wrapper_close not in self.openers():
            words[s.wrapper_close] = WRAPPER_CLOSE
        if s.orphan == Orphan.TEXT:
            words[s.invoke_open] = PARAMETER
        return words

    def begins(self) -> dict[str, int]:
        """What may begin calls in reasoning, and so end it."""
        return {self.syntax.wrapper_open: WRAPPER}

    def opened(self, meaning: int, word: str) -> None:
        """The host met an opener, or what belongs to no call."""
        if meaning == PARAMETER:
            self.parser.state = self.stray
        if meaning not in (WRAPPER, MISSPELLED, INVOKE):
            return
        orphan = AT_NAME if self.syntax.orphan == Orphan.AT_NAME else AT_END
        self.done, self.wrapped = 0, meaning == WRAPPER
        if meaning == WRAPPER and self.syntax.malformed_is_text:
            self.begin_candidate(FIRST, word)
        elif meaning != WRAPPER:
            self.begin_candidate(orphan, word)
        if meaning == INVOKE:
            self.begin_head(self.invoke_head)
        else:
            self.parser.state = self.section

    # candidates

    def begin_candidate(self, commit: int, word: str) -> None:
        """What follows is a call only if it turns out well."""
        self.candidate = commit
        self.strange = False
        self.out.hold()
        self.parser.tape = [word]

    def commit(self, *when: int) -> None:
        if self.candidate in when:
            self.candidate = 0
            self.parser.tape = None
            self.out.release()

    def reject(self, last: str | None = None) -> None:
        """The candidate is no call: all of it is content, but behind a call that broke it is none.

        last: what of the text at hand was taken, where that is not all."""
        tape, self.parser.tape = self.parser.tape, None
        if tape and last is not None:
            tape[-1] = last
        first, self.candidate = self.candidate == FIRST, 0
        self.out.discard()
        if self.out.broken:
            if self.parser.state is self.section:
                self.host.leave()
            else:
                self.parser.state = self.skip
            return
        self.out.text(CONTENT, "".join(tape or ()))
        if first:
            self.parser.state = self.verbatim
        else:
            self.host.leave()

    def malformed(self, last: str | None = None) -> None:
        """The invocation makes no sense. last: as for `reject`."""
        if self.candidate:
            self.reject(last)
            return
        self.out.incomplete()
        self.parser.state = self.skip

    def end(self, rest: str) -> None:
        """The output ended here."""
        if not self.candidate:
            return
        orphan = self.candidate != FIRST
        tape, self.parser.tape, self.candidate = self.parser.tape or [], None, 0
        self.out.discard()
        if orphan and not self.out.broken:
            self.out.text(CONTENT, "".join((*tape, rest)))

    def leave_for(self, meaning: int) -> None:
        """The host's own delimiter came."""
        self.end("")
        self.host.interrupt(meaning - HOST)

    # between invocations

    def section_text(self, symbols: str) -> int | None:
        if is_blank(symbols):
            return None
        blanks = blank_count(symbols)
        if self.candidate == FIRST:
            self.strange = True
            return None
        if self.candidate:
            self.reject(symbols[:blanks])
            return blanks
        if not self.wrapped or (self.done and self.syntax.orphan == Orphan.AT_NAME):
            self.host.leave()
            return blanks
        return None

    def mark(self, meaning: int, word: str) -> None:
        """A delimiter between invocations or parameters."""
        if meaning >= HOST:
            self.leave_for(meaning)
        elif meaning == INVOKE:
            self.out.incomplete()
            if not self.candidate and self.syntax.malformed_is_text:
                self.begin_candidate(FIRST, word)
            self.begin_head(self.invoke_head)
        elif meaning == WRAPPER_CLOSE:
            if self.out.open and self.syntax.orphan == Orphan.AT_NAME:
                self.complete()
            self.leave_section()
        elif meaning == PARAMETER:
            self.begin_head(self.parameter_head)
        elif meaning == INVOKE_CLOSE:
            self.complete()

    def leave_section(self) -> None:
        if self.candidate == FIRST and not self.strange:
            self.candidate, self.parser.tape = 0, None
            self.out.discard()
        elif self.candidate:
            self.reject()
        self.out.incomplete()
        self.host.leave()

    def complete(self) -> None:
        """The invocation is finished."""
        self.arguments.end()
        self.out.end()
        self.commit(FIRST, AT_NAME, AT_END)
        self.done += 1
        self.parser.state = self.section

    # tags

    def begin_head(self, state: State) -> None:
        self.head.clear()
        self.head_size = 0
        self.parser.state = state

    def head_text(self, symbols: str) -> int | None:
        match = NOT_IN_HEAD(symbols)
        room = HEADER_MAX - self.head_size
        taken = min(match.start() if match else len(symbols), room)
        self.head.append(symbols[:taken])
        self.head_size += taken
        if taken == len(symbols):
            return None
        self.malformed(symbols[:taken])
        return taken

    def whole_head(self, meaning: int) -> str | None:
        """The tag's text once it is complete."""
        if meaning >= HOST:
            self.leave_for(meaning)
            return None
        head = self.parser.bound.text_of("".join(self.head))
        if self.syntax.quoted and not head.rstrip("/ \t").endswith('"'):
            self.head_text(">")
            return None
        return head

    def split_head(self, head: str) -> tuple[str, dict[str, str], bool]:
        """Name, attributes, and whether the tag closes itself."""
        if not self.syntax.quoted:
            return head.strip().strip("\"'"), {}, False
        match = QUOTED(head)
        assert match is not None
        attributes = {found[1]: found[2] for found in ATTRIBUTE(match[2])}
        return match[1].strip(), attributes, match[2].rstrip().endswith("/")

    def invoke_mark(self, meaning: int, word: str) -> None:
        head = self.whole_head(meaning)
        if head is None:
            return
        name, _, closed = self.split_head(head)
        tools, key = self.out.tools, None
        if name not in tools and self.syntax.confirm_close:
            name, key = tools.unglue(name) or (name, None)
        resolved = self.host.resolve(name)
        if not name or resolved is None or (
                self.candidate in (AT_NAME, AT_END) and resolved not in tools):
            self.malformed()
            return
        self.out.begin(resolved)
        self.arguments.begin(resolved)
        self.commit(AT_NAME)
        self.parser.state = self.body_state
        if closed:
            self.complete()
        elif key is not None:
            self.begin_value(key, None)

    def parameter_mark(self, meaning: int, word: str) -> None:
        head = self.whole_head(meaning)
        if head is None:
            return
        name, attributes, closed = self.split_head(head)
        self.commit(FIRST)
        self.begin_value(name, attributes.get(self.syntax.string_attribute))
        if closed:
            self.arguments.close()
            self.parser.state = self.body_state

    # bodies

    def body_text(self, symbols: str) -> int | None:
        bare = symbols.lstrip(BLANKS)
        if not bare:
            return None
        if bare[0] == "{" and self.syntax.json_body and not self.arguments.count:
            self.body.clear()
            self.parser.state = self.json
            return len(symbols) - len(bare)
        if self.candidate or self.syntax.malformed_is_text:
            blanks = len(symbols) - len(bare)
            self.malformed(symbols[:blanks])
            return blanks
        return None

    def json_mark(self, meaning: int, word: str) -> None:
        """A body that is one JSON object is complete."""
        if meaning >= HOST:
            self.leave_for(meaning)
            return
        document = self.arguments.whole(self.parser.bound.text_of("".join(self.body)))
        self.parser.state = self.section
        if document is None:
            self.malformed()
            if self.parser.state is self.skip:
                self.parser.state = self.section
            return
        self.out.arguments(document)
        self.out.end()
        self.commit(FIRST, AT_END)
        self.done += 1

    def ignore(self, symbols: str) -> None:
        """Text that is neither argument nor content."""

    def skip_mark(self, meaning: int, word: str) -> None:
        if meaning >= HOST:
            self.leave_for(meaning)
        elif meaning == WRAPPER_CLOSE:
            self.leave_section()
        else:
            self.parser.state = self.section

    def stray_mark(self, meaning: int, word: str) -> None:
        """A parameter without an invocation is over at any closer."""
        if meaning >= HOST:
            self.leave_for(meaning)
        elif meaning in (WRAPPER, INVOKE):
            self.opened(meaning, word)
        elif meaning != PARAMETER:
            self.host.leave()

    def piece_at(self, symbols: str) -> int:
        """Where a token that only tags have stands in content, or -1."""
        match = self.tag_token(symbols) if self.tag_token else None
        return match.start() if match else -1

    def take_piece(self, buffer: str, at: int) -> int:
        """The rest of a tag that is none of the syntax's: up to its end, its line's or a tag."""
        match = TAG_OVER(buffer, at)
        if match is None:
            return len(buffer)
        self.host.leave()
        return match.end() if match.group() == ">" else match.start()

    def verbatim_text(self, symbols: str) -> None:
        self.out.text(CONTENT, symbols)

    def verbatim_mark(self, meaning: int, word: str) -> None:
        """A block with a malformed invocation goes on: a sound one after it is a call."""
        if meaning == WRAPPER_CLOSE:
            self.out.text(CONTENT, word)
            self.host.leave()
        else:
            self.mark(meaning, word)

    # values

    def begin_value(self, key: str, attribute: str | None) -> None:
        self.arguments.open(key, attribute)
        self.parser.state = self.value_start if self.syntax.edge_newlines else self.value_state()

    def value_state(self) -> State:
        return self.string if self.arguments.how == STREAM else self.value

    def take_newline(self, buffer: str, at: int) -> int:
        self.parser.state = self.value_state()
        return at + 1 if buffer[at] == "\n" else at

    def value_text(self, symbols: str) -> None:
        self.arguments.text(symbols)
        if self.arguments.how == STREAM and self.parser.state is self.value:
            self.parser.state = self.string

    def value_mark(self, meaning: int, word: str) -> None:
        if meaning >= HOST:
            self.leave_for(meaning)
        elif meaning == PARAMETER_CLOSE and self.syntax.confirm_close:
            self.closer = [word]
            self.parser.state = self.confirm
        else:
            self.arguments.close()
            self.parser.state = self.body_state
            if meaning == PARAMETER:
                self.begin_head(self.parameter_head)
            elif meaning == INVOKE_CLOSE:
                self.complete()

    def confirm_text(self, symbols: str) -> int | None:
        """Text after a closer: if it is not blank, the closer was part of the value."""
        if is_blank(symbols):
            self.closer.append(symbols)
            return None
        self.parser.state = self.value_state()
        self.arguments.text("".join(self.closer))
        return 0

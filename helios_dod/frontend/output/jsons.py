"""Kind 4: calls as JSON between markers, or as bare JSON."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from helios_dod.frontend.output.arguments import RawText
from helios_dod.frontend.output.envelope import BROKEN, DONE, NOT_PLAIN, Envelope, Value
from helios_dod.frontend.output.marks import with_lead
from helios_dod.frontend.output.states import Host, State
from helios_dod.frontend.output.syntax import JsonSyntax
from helios_dod.frontend.output.terms import BLANKS, CONTENT, NAME_MAX, RAW, NamePlace, is_blank
from helios_dod.frontend.output.values import document_of, keys_of

if TYPE_CHECKING:
    from helios_dod.frontend.output.parser import Parser

OPEN, CLOSE, ITEM, ITEM_CLOSE, NAME_END, ID_OPEN, BRACE, ABSORBED = 1, 2, 3, 4, 5, 6, 7, 8
COUNTER = re.compile(r"(?:functions[.:_]?)?(?:call[_-]?)?[0-9]*|call_[A-Za-z0-9_-]+").fullmatch
NUMBERED = re.compile(r"(.*?)[:._-]?[0-9]*", re.S).fullmatch
RAW_SLOW = r"\\|[ \t\r\n]\Z"  # escapes, and blanks that may be the last


class JsonCalls:
    """The part of a parser that reads marked JSON, from an opener until it leaves for the host."""

    def __init__(self, parser: "Parser", syntax: JsonSyntax, host: Host,
                 exact: bool = False) -> None:
        self.parser, self.syntax, self.host = parser, syntax, host
        self.out = parser.out
        self.envelope = Envelope(parser.out, syntax, host.resolve)
        self.value = Value()
        self.raw = RawText(parser.out)
        self.name: list[str] = []
        self.size = 0
        self.awaits_object = False  # the name, and what ends it, are behind
        self.follows = False  # a candidate comes after a call
        self.tape: list[str] | None = None  # of a candidate
        self.exact = exact  # a candidate is held until all of it is one call and nothing else
        self.opening: list[str] | None = None  # what came after a tag, until it is a call
        self.unnamed: list[str] | None = None  # arguments of a call whose id names no tool
        self.after_item: Callable[[], None] = self.to_closing
        make, end, s = parser.bound.compiled, self.end, syntax
        self.in_envelope = State(None, take=self.take_envelope, end=end, kind=RAW,
                                 ready=self.envelope.is_ready, quick=NOT_PLAIN)
        self.in_array = State(None, take=self.take_array, end=end)
        self.tagged = State(None, take=self.take_tagged, end=end)
        self.in_value = State(None, take=self.take_value, end=end, kind=RAW,
                              ready=self.value.is_inside, quick=NOT_PLAIN)
        self.between = State(None, take=self.take_separators, end=end)
        self.over = State(None, take=lambda buffer, at: len(buffer), end=end)
        self.named = State(make("json.named", {s.open: OPEN}), self.ignore, self.named_mark, end)
        self.closing = State(make("json.closing", {s.close: CLOSE, s.open: OPEN}), self.ignore,
                             self.closing_mark, end)
        self.verbatim = State(make("json.closing", {s.close: CLOSE, s.open: OPEN}),
                              self.verbatim_text, self.verbatim_mark)
        head = {s.open: OPEN, s.name_end: NAME_END, s.id_open: ID_OPEN, "{": BRACE}
        self.in_head = State(make("json.head", head), self.head_text, self.head_mark, end)
        items = {s.open: OPEN, s.close: CLOSE, s.item_open: ITEM, s.item_close: ITEM_CLOSE,
                 s.name_end: NAME_END}
        self.section = State(make("json.section", items), self.ignore, self.section_mark, end)
        self.in_id = State(make("json.section", items), self.id_text, self.id_mark, end)
        self.in_raw = State(make("json.raw", items, RAW_SLOW), self.raw_text, self.raw_mark, end,
                            RAW, ready=self.raw.is_ready)

    def openers(self) -> dict[str, int]:
        """What begins a call in content, and what is absorbed there."""
        s = self.syntax
        words = dict.fromkeys(s.absorbed, ABSORBED)
        if not s.open:
            return words | {"{": BRACE}
        words |= dict.fromkeys(with_lead(s.open, s.lead), OPEN)
        if s.place == NamePlace.IDENTIFIER:
            words |= {s.item_open: ITEM, s.item_close: ABSORBED, s.name_end: ABSORBED}
        if s.close:
            words[s.close] = ABSORBED
        return words

    def begins(self) -> dict[str, int]:
        """What may begin a call in reasoning, and so end it."""
        if not self.syntax.open:
            return {"{": BRACE}
        words = {self.syntax.open: OPEN, self.syntax.item_open: ITEM}
        return {word: meaning for word, meaning in words.items() if word}

    def opened(self, meaning: int, word: str) -> None:
        """The host met an opener."""
        if meaning == ABSORBED:
            return
        if meaning == BRACE:
            self.begin_candidate([word], False)
        elif self.syntax.place == NamePlace.IDENTIFIER:
            self.section_mark(meaning, word)
        elif self.syntax.place == NamePlace.BEFORE:
            self.begin_head()
        else:
            self.begin_tagged(word)

    def begin_tagged(self, word: str) -> None:
        """An object between tags, or an array of them. Until the first has a name and arguments
        its text is kept."""
        self.opening = [word]
        self.parser.state = self.tagged

    def take_tagged(self, buffer: str, at: int) -> int:
        """What stands before the first object."""
        assert self.opening is not None
        start = at
        while at < len(buffer) and buffer[at] in BLANKS:
            at += 1
        if at < len(buffer):
            array = buffer[at] == "["
            at += array
            self.begin_envelope(self.to_array if array else self.to_closing)
        self.opening.append(buffer[start:at])
        return at

    def end(self, rest: str) -> None:
        """The output ended here."""
        if self.tape is None:
            return
        if self.envelope.begun:
            self.commit()
        elif self.follows:
            self.out.discard()
        else:
            self.reject(rest)

    def ignore(self, symbols: str) -> None:
        """Text that is neither argument nor content."""

    # objects with a name

    def begin_envelope(self, after: Callable[[], None]) -> None:
        self.envelope.begin(self.tape is not None, self.exact)
        self.after_item = after
        self.parser.state = self.in_envelope

    def take_envelope(self, buffer: str, at: int) -> int:
        end = self.envelope.take(buffer, at)
        status = self.envelope.status
        if self.tape is not None:
            self.tape.append(buffer[at:end])
            if status and (not self.envelope.begun or (self.exact and not self.is_call(status))):
                self.reject("")
                return end
            if self.envelope.begun and (status or not self.exact):
                self.commit()
        if self.opening is not None:
            self.opening.append(buffer[at:end])
        if status == DONE:
            self.envelope.finish()
        if self.envelope.begun:
            self.opening = None
        if status == DONE:
            self.after_item()
        elif status == BROKEN:
            self.out.incomplete()
            self.after_item()
        return end

    def to_closing(self) -> None:
        """The object is over; if it was no call's, all between the tags is content, but behind a
        call that broke it is the rest of it."""
        self.parser.state = self.closing
        if self.opening is not None and not self.out.broken:
            self.out.text(CONTENT, "".join(self.opening))
            self.parser.state = self.verbatim
        self.opening = None

    def closing_mark(self, meaning: int, word: str) -> None:
        if meaning == OPEN:
            self.begin_tagged(word)
        else:
            self.host.leave()

    def verbatim_text(self, symbols: str) -> None:
        self.out.text(CONTENT, symbols)

    def verbatim_mark(self, meaning: int, word: str) -> None:
        if meaning == OPEN:
            self.begin_tagged(word)
        else:
            self.out.text(CONTENT, word)
            self.host.leave()

    # objects without markers

    def begin_candidate(self, tape: list[str], follows: bool) -> None:
        """A brace in content: a call if it turns out to have a name and arguments. follows: behind
        a call, where one that is cut off is another call's beginning."""
        self.tape, self.follows = tape, follows
        self.out.hold()
        self.begin_envelope(self.to_separators)
        self.envelope.opened()

    def reject(self, rest: str) -> None:
        """The candidate is no call: all of it is content."""
        tape, self.tape = self.tape or [], None
        self.out.discard()
        self.out.text(CONTENT, "".join((*tape, rest)))
        self.host.leave()

    def is_call(self, status: int) -> bool:
        """Whether a held object that is over is one call and nothing else."""
        return status == DONE and self.out.is_complete()

    def commit(self) -> None:
        """The candidate is a call."""
        self.tape = None
        self.out.release()

    def to_separators(self) -> None:
        """The object of a call is over. What follows one that broke is none of the answer."""
        self.name.clear()
        self.parser.state = self.between if self.envelope.status == DONE else self.over

    def take_separators(self, buffer: str, at: int) -> int:
        """Blanks and semicolons between calls; with other text they are content. Brackets that
        closed nothing are none of it."""
        end = at
        while end < len(buffer) and buffer[end] in BLANKS + ";}]":
            end += 1
        if end > at:
            self.name.append(buffer[at:end].replace("}", "").replace("]", ""))
        if end < len(buffer):
            if buffer[end] == "{":
                self.begin_candidate([*self.name, "{"], True)
                return end + 1
            self.host.leave()
            self.out.text(CONTENT, "".join(self.name))
        return end

    # a name before the arguments

    def begin_head(self) -> None:
        self.name.clear()
        self.size = 0
        self.awaits_object = False
        self.parser.state = self.in_head

    def head_text(self, symbols: str) -> int | None:
        bare = symbols.lstrip(BLANKS)
        if bare[:1] == "[" and is_blank("".join(self.name)):
            self.parser.state = self.in_array
            return len(symbols) - len(bare) + 1
        if self.awaits_object and bare:
            self.parser.state = self.named
        self.size += len(symbols)
        if self.size > NAME_MAX:
            self.parser.state = self.over
        self.name.append(symbols)
        return None

    def head_mark(self, meaning: int, word: str) -> None:
        if meaning == OPEN:
            self.begin_head()
        elif meaning in (NAME_END, ID_OPEN):
            self.awaits_object = meaning == NAME_END
            self.name = ["".join(self.name).partition("\0")[0], "\0"]
        elif is_blank("".join(self.name)):
            self.begin_envelope(self.to_over)
            self.envelope.opened()
        else:
            name = self.parser.bound.text_of("".join(self.name).partition("\0")[0]).strip()
            resolved = self.host.resolve(name)
            if resolved is None:
                self.parser.state = self.over
                return
            self.out.begin(resolved)
            self.value.begin("{")
            self.out.raw("{")
            self.parser.state = self.in_value

    def take_value(self, buffer: str, at: int) -> int:
        """The arguments object."""
        end = self.value.scan(buffer, at)
        self.out.raw(buffer[at:end])
        if self.value.status == DONE:
            self.out.end_raw()
            self.out.end()
        elif self.value.status == BROKEN:
            self.out.incomplete()
        if self.value.status:
            self.parser.state = self.named
        return end

    def named_mark(self, meaning: int, word: str) -> None:
        """Behind the arguments, only another call counts."""
        self.begin_head()

    def take_array(self, buffer: str, at: int) -> int:
        """Between the objects of an array; behind it nothing counts."""
        while at < len(buffer) and buffer[at] in BLANKS + ",":
            at += 1
        if at < len(buffer):
            if buffer[at] == "{":
                self.begin_envelope(self.to_array)
            else:
                self.parser.state = self.closing if self.syntax.close else self.over
        return at

    def to_array(self) -> None:
        """The object of an array is over. One whose first is no call's is content."""
        if self.envelope.status == DONE and self.opening is None:
            self.parser.state = self.in_array
        elif self.syntax.close:
            self.to_closing()
        else:
            self.parser.state = self.over

    def to_over(self) -> None:
        self.parser.state = self.over

    # an identifier before the arguments

    def section_mark(self, meaning: int, word: str) -> None:
        self.out.incomplete()
        if meaning == ITEM:
            self.name.clear()
            self.size = 0
            self.parser.state = self.in_id
        elif meaning == CLOSE:
            self.host.leave()
        else:
            self.parser.state = self.section

    def id_text(self, symbols: str) -> None:
        self.size += len(symbols)
        if self.size > NAME_MAX:
            self.parser.state = self.section
        self.name.append(symbols)

    def id_mark(self, meaning: int, word: str) -> None:
        if meaning != NAME_END:
            self.section_mark(meaning, word)
            return
        self.id = self.parser.bound.text_of("".join(self.name)).strip()
        name = self.identify(self.id)
        self.raw.begin()
        self.parser.state = self.in_raw
        self.unnamed = [] if name is None else None
        if name is not None:
            self.out.begin(name, self.id)

    def identify(self, id: str) -> str | None:
        """The tool that an id names; one that is only a counter means the only tool, or None."""
        tools, prefix = self.out.tools, self.syntax.name_prefix
        base = id.removeprefix(prefix)
        head, colon, index = base.rpartition(":")
        name = head if colon and index.isdecimal() else base
        if name in tools:
            return name
        if not len(tools):
            return name or None
        bare = id.removeprefix(prefix.rstrip(".")).lstrip(".")
        for known in sorted(tools.tools, key=len, reverse=True):
            for form in (base, bare):
                match = NUMBERED(form[len(known):])
                if form.startswith(known) and match and not match[1]:
                    return known
        if COUNTER(id):
            return next(iter(tools.tools)) if len(tools) == 1 else None
        return name

    def raw_text(self, symbols: str) -> None:
        if self.unnamed is not None:
            self.unnamed.append(symbols)
        else:
            self.raw.text(symbols)

    def raw_mark(self, meaning: int, word: str) -> None:
        if meaning == ITEM_CLOSE:
            if self.unnamed is not None:
                self.begin_by_keys("".join(self.unnamed))
            if self.out.open:
                self.raw.end()
                self.out.end(as_written=True)
            self.parser.state = self.section
        elif meaning != NAME_END:
            self.section_mark(meaning, word)

    def begin_by_keys(self, symbols: str) -> None:
        """The call is of the one tool that its arguments fit, if there is just one."""
        self.unnamed = None
        tools = self.out.tools
        document = document_of(self.parser.bound.text_of(symbols))
        keys = keys_of(document) if document else None
        if keys is None:
            return
        fits = [name for name in tools.tools if tools.fits(name, keys)]
        if len(fits) == 1:
            self.out.begin(fits[0], self.id)
            self.raw.text(symbols)

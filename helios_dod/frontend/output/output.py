"""What a parser has to say: text and calls become events, in order and each once.

A hold keeps what is said in a candidate call until it is known to be one. Text becomes UTF-8 here,
and no character or JSON escape is cut. A call is finished if its arguments are a JSON object, or
whatever they are where the syntax passes them raw up to a delimiter of its own, and that came.
"""

from codecs import utf_8_decode
from hashlib import blake2b
from json.encoder import encode_basestring

from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.schemas import ToolSet
from helios_dod.frontend.output.terms import (
    ARGUMENTS,
    BEGIN,
    BLANK_MAX,
    CONTENT,
    END,
    INCOMPLETE,
    REASONING,
    CallIds,
    Event,
    Names,
)
from helios_dod.frontend.output.values import escape_cut, is_object

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LETTERS, SHORT_ID_LETTERS = 24, 9


def call_id(seed: int, index: int, short: bool) -> str:
    """An id of call `index` of the response `seed`: the same for the same two, else different."""
    count = SHORT_ID_LETTERS if short else ID_LETTERS
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=24).digest()
    value = int.from_bytes(digest, "big")
    letters = []
    for _ in range(count):
        value, digit = divmod(value, len(LETTERS))
        letters.append(LETTERS[digit])
    return ("" if short else "call_") + "".join(letters)


class Output:
    """Events of one response. text kinds are CONTENT, REASONING and ARGUMENTS."""

    def __init__(self, bound: Bound, tools: ToolSet, seed: int, calls_max: int) -> None:
        self.bound, self.tools, self.seed, self.calls_max = bound, tools, seed, calls_max
        self.events: list[Event] = []
        self.parts: list[str] = []  # text of kind `parts_kind` that is not an event yet
        self.parts_kind = 0
        self.partial = b""  # the beginning of a character, of kind `partial_kind`
        self.partial_kind = 0
        self.blank: list[str] | None = []  # blank content that may be no content
        self.said = {CONTENT: False, REASONING: False}
        self.joins = {CONTENT: "", REASONING: ""}  # goes before the next text
        self.queue: list[tuple[int, str, str]] | None = None  # what is held
        self.mark = 0  # calls begun when the hold began
        self.kept: list[str] | None = None  # blank content then
        self.calls = 0
        self.open = False
        self.muted = False
        self.broken = False  # whether a call that had begun was not finished
        self.begun = 0  # calls begun, muted ones too
        self.escape = ""  # the beginning of a JSON escape in raw arguments
        self.written: list[str] = []  # the open call's arguments

    # text

    def decode(self, kind: int, symbols: str) -> str:
        """Text that is complete with these symbols."""
        if self.partial_kind != kind and self.partial:
            self.flush_partial()
        if not self.partial and symbols.isascii():
            return symbols
        data = self.partial + self.bound.bytes_of(symbols)
        text, taken = utf_8_decode(data, "replace", False)
        self.partial, self.partial_kind = data[taken:], kind
        return text

    def flush_partial(self) -> None:
        """An unfinished character is a replacement character."""
        kind, self.partial, self.partial_kind = self.partial_kind, b"", 0
        if kind:
            self.say(kind, "\ufffd")

    def text(self, kind: int, symbols: str) -> None:
        """Content or reasoning."""
        text = self.decode(kind, symbols)
        if text:
            self.say(kind, text)

    def say(self, kind: int, text: str) -> None:
        if kind == ARGUMENTS:
            self.write(encode_basestring(text)[1:-1])
            return
        if kind == CONTENT and self.blank is not None:
            self.blank.append(text)
            if text.isspace() and sum(map(len, self.blank)) <= BLANK_MAX:
                return
            text, self.blank = "".join(self.blank), None
        if self.joins[kind]:
            text, self.joins[kind] = self.joins[kind] + text, ""
        self.said[kind] = True
        self.post(kind, text)

    def join(self, kind: int, text: str) -> None:
        """Another message of a kind begins: `text` parts it from what was said before."""
        if self.said[kind]:
            self.joins[kind] = text

    def drop_blank(self) -> None:
        """What follows shows that blank content is none."""
        self.settle_text()
        if self.blank is not None:
            self.blank.clear()

    def await_content(self) -> None:
        """Blank content from here on waits for what follows it."""
        self.settle_text()
        self.blank = []

    def settle_text(self) -> None:
        """Ends a text: nothing that follows completes its last character."""
        if self.partial:
            self.flush_partial()

    # events

    def post(self, kind: int, text: str, id: str = "") -> None:
        if self.queue is not None:
            self.queue.append((kind, text, id))
        elif kind in (CONTENT, REASONING, ARGUMENTS):
            if kind != self.parts_kind and self.parts:
                self.flush_parts()
            self.parts_kind = kind
            self.parts.append(text)
        else:
            self.flush_parts()
            if kind == BEGIN:
                self.calls += 1
            elif kind == INCOMPLETE:
                self.broken = True
            self.events.append(Event(kind, text, self.calls - 1, id))

    def flush_parts(self) -> None:
        if self.parts:
            index = self.calls - 1 if self.parts_kind == ARGUMENTS else -1
            self.events.append(Event(self.parts_kind, "".join(self.parts), index))
            self.parts.clear()

    def take(self) -> list[Event]:
        """The events since the last time."""
        self.flush_parts()
        events, self.events = self.events, []
        return events

    # holds

    def hold(self) -> None:
        """What is said from here on waits for release or discard."""
        assert self.queue is None
        self.settle_text()
        self.queue = []
        self.mark = self.begun
        self.kept = None if self.blank is None else list(self.blank)

    def release(self) -> None:
        """What was held is said."""
        queue, self.queue = self.queue, None
        for kind, text, id in queue or ():
            self.post(kind, text, id)

    def discard(self) -> None:
        """What was held is not said."""
        if self.queue is None:
            return
        self.partial, self.escape, self.queue = b"", "", None
        self.open = self.muted = False
        self.begun, self.blank = self.mark, self.kept

    # calls

    def begin(self, name: str, id: str = "") -> None:
        """A call begins; one of an undeclared tool, or past calls_max, is muted."""
        assert not self.open
        self.drop_blank()
        syntax = self.bound.syntax
        undeclared = len(self.tools) and name not in self.tools
        self.open = True
        self.muted = bool(undeclared and syntax.unknown_names == Names.DROP) or (
            self.begun >= self.calls_max)
        self.escape = ""
        self.written.clear()
        if self.muted:
            return
        if not id or syntax.call_ids != CallIds.GENERATED:
            id = call_id(self.seed, self.begun, syntax.call_ids == CallIds.SHORT)
        self.begun += 1
        self.post(BEGIN, name, id)

    def write(self, text: str) -> None:
        """More of the arguments of the open call, which is not muted."""
        self.written.append(text)
        self.post(ARGUMENTS, text)

    def arguments(self, text: str) -> None:
        """JSON text of the open call."""
        if text and not self.muted:
            self.write(text)

    def string(self, symbols: str) -> None:
        """More of a JSON string's text."""
        if not self.muted:
            text = self.decode(ARGUMENTS, symbols)
            if text:
                self.write(encode_basestring(text)[1:-1])

    def raw(self, symbols: str) -> None:
        """More of JSON text that passes as written."""
        if self.muted:
            return
        text = self.escape + self.bound.text_of(self.whole(symbols))
        cut = escape_cut(text) if "\\" in text else len(text)
        self.escape = text[cut:]
        if cut:
            self.write(text[:cut])

    def whole(self, symbols: str) -> str:
        """Symbols with no character cut at their end; the rest waits in `partial`."""
        if not self.partial and symbols.isascii():
            return symbols
        data = self.partial + self.bound.bytes_of(symbols)
        taken = utf_8_decode(data, "replace", False)[1]
        self.partial, self.partial_kind = data[taken:], 0
        return data[:taken].decode("latin-1")

    def end_raw(self) -> None:
        """Ends JSON text that passes as written."""
        rest = self.escape + ("\ufffd" if self.partial else "")
        self.partial, self.escape = b"", ""
        self.arguments(rest)

    def is_complete(self) -> bool:
        """Whether the open call's arguments are a JSON object."""
        return is_object("".join(self.written))

    def end(self, as_written: bool = False) -> None:
        """The open call has come to its end. It is finished if its arguments are a JSON object.

        as_written: whatever they are; the syntax's own delimiter has closed them."""
        if self.open and not self.muted:
            self.settle_text()
            good = as_written or self.is_complete()
            self.post(END if good else INCOMPLETE, "")
        self.close()

    def incomplete(self) -> None:
        """The open call will not be finished."""
        if self.muted and self.queue is None:
            self.broken = True
        if self.open and not self.muted:
            self.partial, self.escape = b"", ""
            self.post(INCOMPLETE, "")
        self.close()

    def close(self) -> None:
        if self.open:
            self.open = self.muted = False
            self.partial, self.escape = b"", ""
            self.await_content()

    def finish(self) -> None:
        """The output has ended: what waited is said, and an open call is incomplete."""
        self.incomplete()
        self.settle_text()
        if self.blank and not self.begun and not self.said[REASONING]:
            blank, self.blank = "".join(self.blank), None
            self.post(CONTENT, blank)

    def is_quick(self, kind: int) -> bool:
        """Whether complete text of this kind is an event as it stands."""
        if self.queue is not None or self.partial:
            return False
        if kind in (CONTENT, REASONING):
            return not self.joins[kind] and (kind == REASONING or self.blank is None)
        return not self.muted and not self.escape

"""The parser of one response: tokens in, events out, in one pass.

Whole and streamed outputs are the same calls of `feed`. A delimiter that the tokenizer has as one
token is recognised by id, every other by bytes; only what may still become a delimiter, a character
or an escape is held back.
"""

from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from helios_dod.frontend.output.elements import ElementDocument
from helios_dod.frontend.output.frames import FrameDocument
from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.output import Output
from helios_dod.frontend.output.schemas import ToolSet
from helios_dod.frontend.output.states import Flow
from helios_dod.frontend.output.syntax import ElementSyntax, FrameSyntax
from helios_dod.frontend.output.terms import ARGUMENTS, RAW, Event, Finish, Start
from helios_dod.frontend.output.thinking import ThinkDocument

CALLS_MAX = 1 << 16
NOTHING: Sequence[Event] = ()


class Parser(Flow):
    """Parses one response.

    bound: a syntax over a vocabulary (`Vocabulary.bind`). tools: name -> JSON schema of the
    parameters; empty: any name is called, without a schema. start: what the first token is part of
    (`start_state`). seed: of call ids, one a response. calls_max: later calls are left out. opaque:
    the answer is a constrained document in which delimiters are text."""

    def __init__(
        self, bound: Bound, tools: Mapping[str, Any] | None = None, start: Start = Start.CONTENT,
        *, seed: int = 0, calls_max: int = CALLS_MAX, opaque: bool = False,
        strip_leading_space: bool = False,
    ) -> None:
        super().__init__()
        self.bound = bound
        self.symbols = bound.symbols
        self.out = Output(bound, ToolSet(tools), seed, calls_max)
        self.strip = strip_leading_space
        self.quick: Callable[[str], Any] | None = None
        self.kind = 0
        tool = bound.syntax.tool
        self.document: ThinkDocument | ElementDocument | FrameDocument
        if isinstance(tool, ElementSyntax):
            self.document = ElementDocument(self, tool, start)
        elif isinstance(tool, FrameSyntax):
            self.document = FrameDocument(self, tool, start, opaque)
        else:
            self.document = ThinkDocument(self, start, opaque)
        self.settle()

    def feed(self, token: int, data: bytes) -> Sequence[Event]:
        """The events that one more token decides. data: the token's bytes."""
        symbols = self.symbols.get(token)
        if symbols is None:
            if self.quick is not None:
                text = data.decode("latin-1")
                if self.quick(text) is None:
                    if text.isascii():
                        return self.say(text)
                    text, taken = utf_8_decode(data, "replace", False)
                    if taken == len(data):
                        return self.say(text)
            symbols = data.decode("latin-1")
            if self.strip and symbols:
                self.strip = False
                symbols = symbols.removeprefix(" ")
        if not symbols:
            return NOTHING
        self.carry(symbols)
        self.settle()
        return self.out.take()

    def say(self, text: str) -> Sequence[Event]:
        """Plain text where nothing but text can be."""
        if not text:
            return NOTHING
        if self.kind == ARGUMENTS:
            if self.state.kind == ARGUMENTS:
                text = encode_basestring(text)[1:-1]
            self.out.written.append(text)
            return [Event(ARGUMENTS, text, self.out.calls - 1)]
        self.out.said[self.kind] = True
        return [Event(self.kind, text)]

    def settle(self) -> None:
        """Whether the next token may be plain text, after the flow has moved."""
        state = self.state
        kind = ARGUMENTS if state.kind == RAW else state.kind
        ready = (kind and not self.held and not self.strip and self.tape is None
                 and self.out.is_quick(kind) and self.document.is_idle(kind)
                 and (state.ready is None or state.ready()))
        self.quick, self.kind = (state.quick if ready else None), kind

    def feed_all(self, tokens: Iterable[int], table: Sequence[bytes]) -> list[Event]:
        """The events of several tokens."""
        events: list[Event] = []
        for token in tokens:
            events += self.feed(token, table[token])
        return events

    def finish(self, reason: Finish = Finish.STOP) -> Sequence[Event]:
        """The output has ended: what was held is decided, a call that is open is incomplete."""
        self.close()
        self.document.finish()
        self.out.finish()
        self.quick = None
        return self.out.take()

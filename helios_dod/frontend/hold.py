"""Text that waits until the engine says how much of it may be shown, before it is parsed."""

from collections import deque
from collections.abc import Sequence

from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.terms import Event
from helios_dod.frontend.text import TextStream
from helios_dod.terms import TEXT_ALL

TEXT = -1  # stands for the token of a piece that is only text


class Hold:
    """Tokens in, a parser's events out, as far as stop strings allow.

    stream: decodes text as the engine does. A token that the parser knows by its id is shown whole;
    where a stop begins inside one, what comes before it is text."""

    def __init__(self, parser: Parser, stream: TextStream) -> None:
        self.parser, self.stream = parser, stream
        self.pieces: deque[tuple[int, bytes]] = deque()
        self.fed = 0  # bytes of text that the parser has

    def pass_through(self, token: int, end: int) -> Sequence[Event] | None:
        """Events of a token whose text may be shown at once, up to byte `end`; None: take it."""
        if self.pieces or token in self.parser.symbols:
            return None
        text = self.stream.whole(token)
        if text is None or self.fed + len(text) > end:
            return None
        self.fed += len(text)
        return self.parser.feed(TEXT, text)

    def take(self, token: int) -> None:
        """One more token that may be shown, but for the stops in its text."""
        if token not in self.parser.symbols:
            text = self.stream.feed([token])
            if text:
                self.pieces.append((TEXT, text))
            return
        if self.stream.table.shows(token):
            unfinished = self.stream.feed([], last=True)
            if unfinished:
                self.pieces.append((TEXT, unfinished))
        self.pieces.append((token, self.stream.feed([token])))

    def release(self, end: int) -> list[Event]:
        """Events of the text up to byte `end`."""
        events: list[Event] = []
        while self.pieces:
            token, text = self.pieces[0]
            size = min(len(text), end - self.fed)
            if size == len(text):
                self.pieces.popleft()
            elif token == TEXT and size > 0:
                self.pieces[0] = (TEXT, text[size:])
            else:
                break
            events += self.parser.feed(token, text[:size])
            self.fed += size
        return events

    def finish(self, end: int) -> Sequence[Event]:
        """Events of what is left of the text up to byte `end`, where the output ends."""
        rest = b""
        if end == TEXT_ALL:
            rest = self.stream.feed([], last=True)
        elif self.pieces and end > self.fed:
            rest = self.pieces[0][1][: end - self.fed]
        self.pieces.clear()
        return self.parser.feed(TEXT, rest)

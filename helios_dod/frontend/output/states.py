"""States of a parser, and the loop that carries output through them.

A state has live delimiters and says what text between them is. `text` takes symbols that are in no
delimiter and returns how many it took, or None for all; `mark` takes a delimiter. A state without
delimiters has `take(buffer, at)`, which returns the position up to which it took, and leaves what
needs more symbols.
"""

from collections.abc import Callable
from typing import Protocol

from helios_dod.frontend.output.marks import Marks

SLICE = 512  # symbols carried at once, so that a state's end costs no long second look


class State:
    """What symbols mean here. kind: event kind of plain text that needs no handling while `ready`,
    or 0; quick finds what is not such text."""

    __slots__ = ("end", "kind", "mark", "quick", "ready", "scan", "take", "text", "words")

    def __init__(
        self, marks: Marks | None, text: Callable[[str], int | None] | None = None,
        mark: Callable[[int, str], None] | None = None,
        end: Callable[[str], None] | None = None, kind: int = 0,
        take: Callable[[str, int], int] | None = None,
        ready: Callable[[], bool] | None = None,
        quick: Callable[[str], object] | None = None,
    ) -> None:
        assert (marks is None) == (take is not None)
        self.scan = marks.scan if marks else None
        self.quick = marks.quick if marks else quick
        self.words = marks.words if marks else {}
        self.text, self.mark, self.end, self.kind, self.take = text, mark, end, kind, take
        self.ready = ready


class Host(Protocol):
    """What a machine for calls is part of."""

    def leave(self) -> None:
        """A call or section of calls is over."""

    def interrupt(self, meaning: int) -> None:
        """One of the host's own delimiters came inside a call."""

    def resolve(self, name: str) -> str | None:
        """The tool that a name means, or None if it may not be called here."""


class Flow:
    """Carries symbols through states. `held` is the beginning of a delimiter or escape."""

    def __init__(self) -> None:
        self.state: State = State(None, take=lambda buffer, at: len(buffer))
        self.held = ""
        self.tape: list[str] | None = None  # what was taken since a candidate began

    def carry(self, symbols: str) -> None:
        """Takes the next symbols."""
        if len(symbols) <= SLICE:
            self.step(self.held + symbols if self.held else symbols)
            return
        for i in range(0, len(symbols), SLICE):
            self.step(self.held + symbols[i:i + SLICE])

    def step(self, buffer: str) -> None:
        at, size = 0, len(buffer)
        while at < size:
            state = self.state
            if state.take is not None:
                end = state.take(buffer, at)
                if end == at and self.state is state:
                    break
                at = end
                continue
            assert state.scan is not None and state.mark is not None
            match = state.scan(buffer, at)
            start = match.start() if match else size
            if start > at:
                used = self.give(state, buffer[at:start])
                at += used
                if used < start - (at - used) or self.state is not state:
                    continue
            if match is None:
                break
            word = match.group()
            meaning = state.words.get(word)
            if meaning is None:
                break
            at = match.end()
            if self.tape is not None:
                self.tape.append(word)
            state.mark(meaning, word)
        self.held = buffer[at:]

    def give(self, state: State, chunk: str) -> int:
        """Gives text to a state; the symbols it took."""
        assert state.text is not None
        tape = self.tape
        if tape is not None:
            tape.append(chunk)
        used = state.text(chunk)
        if used is None:
            return len(chunk)
        if tape is not None and self.tape is tape:
            tape[-1] = chunk[:used]
        return used

    def close(self) -> None:
        """The output has ended: what is held is text, or whatever its state makes of it."""
        for _ in range(len(self.held) + 4):  # each round takes a symbol or changes the state
            rest, state = self.held, self.state
            if state.end is not None:
                self.held = ""
                state.end(rest)
                return
            if not rest or state.take is not None:
                return
            used = self.give(state, rest)
            self.held = rest[used:]

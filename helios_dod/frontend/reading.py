"""One choice's output through its parser: tokens in, events out.

Special tokens that the syntax does not name are no text. A token or text that may end the output
waits until the engine says that it may be shown."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from helios_dod.errors import UserError
from helios_dod.frontend.hold import Hold
from helios_dod.frontend.output.marks import Bound, Vocabulary
from helios_dod.frontend.output.parser import CALLS_MAX, NOTHING, Parser
from helios_dod.frontend.output.start import start_state
from helios_dod.frontend.output.syntax import OutputSyntax
from helios_dod.frontend.output.terms import END, REASONING, Event, Finish
from helios_dod.frontend.output.wire import check
from helios_dod.frontend.syntaxes import carries_reasoning, without_tools
from helios_dod.frontend.text import ByteTable, TextStream
from helios_dod.limits import DELIMITERS_MAX
from helios_dod.terms import (
    FINISH_EOS,
    FINISH_LIMIT,
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    TEXT_ALL,
)

STOPPED = (FINISH_EOS, FINISH_STOP_TOKEN, FINISH_STOP_SEQUENCE, FINISH_STOP_STRING)


class Reading:
    """Reads one choice. hold: where text may be a stop string."""

    __slots__ = ("calls_finished", "fed", "hold", "parser", "reasoning", "table", "waiting")

    def __init__(self, parser: Parser, table: Sequence[bytes], reasoning: bool,
                 hold: Hold | None = None) -> None:
        self.parser, self.table, self.reasoning, self.hold = parser, table, reasoning, hold
        self.waiting: deque[int] = deque()
        self.fed = 0
        self.calls_finished = 0

    def token(self, token: int, shown: int, text: int = TEXT_ALL) -> Sequence[Event]:
        """What one more token decides. shown: how many tokens may be shown by now; text: and how
        many bytes of their text."""
        if not self.waiting and self.fed < shown:
            said = self.feed(token) if self.hold is None else self.hold.pass_through(token, text)
            if said is not None:
                self.fed += 1
                return self.kept(said)
        self.waiting.append(token)
        return self.kept(self.advance(shown, text))

    def feed(self, token: int) -> Sequence[Event]:
        """The parser's events."""
        data = self.table[token] if 0 <= token < len(self.table) else b""
        return self.parser.feed(token, data)

    def advance(self, shown: int, text: int) -> list[Event]:
        """Events of what may be shown by now."""
        events: list[Event] = []
        while self.waiting and self.fed < shown:
            token = self.waiting.popleft()
            self.fed += 1
            if self.hold is None:
                events += self.feed(token)
            else:
                self.hold.take(token)
        if self.hold is not None:
            events += self.hold.release(text)
        return events

    def finish(self, reason: int, shown: int, text: int = TEXT_ALL) -> Sequence[Event]:
        """What the end of the output decides. reason: a FINISH_ term.

        An EOS that is a delimiter ends what it delimits; a stop token is not presented."""
        events = self.advance(shown, text)
        if self.hold is not None:
            events += self.hold.finish(text)
        if reason == FINISH_EOS and self.waiting and self.waiting[0] in self.parser.symbols:
            events += self.feed(self.waiting[0])
        self.waiting.clear()
        cause = Finish.LENGTH if reason == FINISH_LIMIT else (
            Finish.STOP if reason in STOPPED else Finish.CANCELLED)
        events += self.parser.finish(cause)
        return self.kept(events)

    def kept(self, events: Sequence[Event]) -> Sequence[Event]:
        """Counts finished calls; leaves out reasoning that the request does not want."""
        if not events:
            return NOTHING
        for event in events:
            self.calls_finished += event.kind == END
        if self.reasoning:
            return events
        return [event for event in events if event.kind != REASONING]


class Readers:
    """Makes the readings of one core's output. table: token bytes. Raises UserError where the
    syntax makes no parser over these tokens, or reads too many special ones."""

    def __init__(self, syntax: OutputSyntax, table: ByteTable, strip_leading_space: bool) -> None:
        data, offsets = table.data.tobytes(), table.offsets.tolist()
        tokens = [data[offsets[i]:offsets[i + 1]] for i in range(len(table))]
        vocabulary = Vocabulary(tokens)
        self.strip, self.tokens, self.bytes = strip_leading_space, tokens, table
        self.texts = [b"" if special else text
                      for text, special in zip(tokens, table.special.tolist(), strict=True)]
        plain = without_tools(syntax)
        for part in (syntax, plain):
            if part is not None:
                check(part, vocabulary)
        self.with_tools = vocabulary.bind(syntax)
        self.plain = None if plain is None else vocabulary.bind(plain)
        self.stop_tables = {tools: self.spelled(tools) for tools in (False, True)}

    def bound(self, tools: bool) -> Bound | None:
        """The syntax of a request with or without tools; None: all output is text."""
        return self.with_tools if tools else self.plain

    def delimiters(self, tools: bool) -> tuple[int, ...]:
        """Special tokens that are part of the text that stop strings are looked for in: those that
        the syntax reads."""
        bound = self.bound(tools)
        found = () if bound is None else tuple(
            token for token, symbols in bound.symbols.items()
            if symbols and self.bytes.special[token])
        if len(found) > DELIMITERS_MAX:
            raise UserError(f"output syntax: {len(found)} special tokens, at most {DELIMITERS_MAX} "
                            "possible")
        return found

    def spelled(self, tools: bool) -> ByteTable:
        """The byte table in which the delimiters are text."""
        special = self.bytes.special.copy()
        special[list(self.delimiters(tools))] = 0
        return replace(self.bytes, special=special)

    def readings(self, prompt: Sequence[int], tools: dict[str, Any],
                 seeds: Sequence[int], calls_max: int = CALLS_MAX, reasoning: bool = True,
                 strings: bool = False, opaque: bool = False) -> list[Reading]:
        """A reading for each choice; none: all output is text. prompt: token ids.

        tools: name -> JSON schema of the parameters. seeds: of each choice's call ids.
        strings: there are stop strings. opaque: the answer is a constrained document."""
        bound = self.bound(bool(tools))
        if bound is None:
            return []
        if not tools and carries_reasoning(bound.syntax):
            calls_max = 0
        start = start_state(bound, prompt, self.tokens)
        table = self.stop_tables[bool(tools)] if strings else None
        readings = []
        for seed in seeds:
            parser = Parser(bound, tools, start, seed=seed, calls_max=calls_max, opaque=opaque,
                            strip_leading_space=self.strip and not strings)
            hold = Hold(parser, TextStream(table, self.strip)) if table is not None else None
            readings.append(Reading(parser, self.texts, reasoning, hold))
        return readings

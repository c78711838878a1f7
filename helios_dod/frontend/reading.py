"""One choice's output through its parser: tokens in, events out, end tokens withheld.

Special tokens that the syntax does not name are no text. A token that may end the output waits for
the next event, which says whether it did."""

from collections.abc import Sequence
from typing import Any

from helios_dod.frontend.output.marks import Bound, Vocabulary
from helios_dod.frontend.output.parser import CALLS_MAX, NOTHING, Parser
from helios_dod.frontend.output.start import start_state
from helios_dod.frontend.output.syntax import OutputSyntax
from helios_dod.frontend.output.terms import END, REASONING, Event, Finish
from helios_dod.frontend.output.wire import check
from helios_dod.frontend.syntaxes import carries_reasoning, without_tools
from helios_dod.frontend.text import ByteTable
from helios_dod.terms import FINISH_EOS, FINISH_LIMIT, FINISH_STOP_TOKEN


class Reading:
    """Reads one choice. ends: EOS and stop token ids."""

    __slots__ = ("calls_finished", "ends", "parser", "pending", "reasoning", "table")

    def __init__(self, parser: Parser, table: Sequence[bytes], ends: frozenset[int],
                 reasoning: bool) -> None:
        self.parser, self.table, self.ends, self.reasoning = parser, table, ends, reasoning
        self.pending = -1
        self.calls_finished = 0

    def token(self, token: int) -> Sequence[Event]:
        """What one more token decides."""
        if self.pending < 0 and token not in self.ends:
            return self.kept(self.feed(token))
        events: list[Event] = []
        if self.pending >= 0:
            events += self.feed(self.pending)
            self.pending = -1
        if token in self.ends:
            self.pending = token
        else:
            events += self.feed(token)
        return self.kept(events)

    def feed(self, token: int) -> Sequence[Event]:
        """The parser's events."""
        data = self.table[token] if 0 <= token < len(self.table) else b""
        return self.parser.feed(token, data)

    def finish(self, reason: int) -> Sequence[Event]:
        """What the end of the output decides. reason: a FINISH_ term.

        An EOS that is a delimiter ends what it delimits; a stop token is not presented."""
        events: list[Event] = []
        ended = reason in (FINISH_EOS, FINISH_STOP_TOKEN)
        delimits = reason == FINISH_EOS and self.pending in self.parser.symbols
        if self.pending >= 0 and (not ended or delimits):
            events += self.feed(self.pending)
        self.pending = -1
        cause = Finish.LENGTH if reason == FINISH_LIMIT else (
            Finish.STOP if ended else Finish.CANCELLED)
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
    syntax makes no parser over these tokens."""

    def __init__(self, syntax: OutputSyntax, table: ByteTable, strip_leading_space: bool) -> None:
        data, offsets = table.data.tobytes(), table.offsets.tolist()
        tokens = [data[offsets[i]:offsets[i + 1]] for i in range(len(table))]
        vocabulary = Vocabulary(tokens)
        self.strip, self.tokens = strip_leading_space, tokens
        self.texts = [b"" if special else text
                      for text, special in zip(tokens, table.special.tolist(), strict=True)]
        plain = without_tools(syntax)
        for part in (syntax, plain):
            if part is not None:
                check(part, vocabulary)
        self.with_tools = vocabulary.bind(syntax)
        self.plain = None if plain is None else vocabulary.bind(plain)

    def bound(self, tools: bool) -> Bound | None:
        """The syntax of a request with or without tools; None: all output is text."""
        return self.with_tools if tools else self.plain

    def readings(self, prompt: Sequence[int], tools: dict[str, Any], ends: Sequence[int],
                 seeds: Sequence[int], calls_max: int = CALLS_MAX,
                 reasoning: bool = True) -> list[Reading]:
        """A reading for each choice; none: all output is text. prompt: token ids.

        tools: name -> JSON schema of the parameters. seeds: of each choice's call ids."""
        bound = self.bound(bool(tools))
        if bound is None:
            return []
        if not tools and carries_reasoning(bound.syntax):
            calls_max = 0
        start = start_state(bound, prompt, self.tokens)
        return [
            Reading(Parser(bound, tools, start, seed=seed, calls_max=calls_max,
                           strip_leading_space=self.strip),
                    self.texts, frozenset(ends), reasoning)
            for seed in seeds]

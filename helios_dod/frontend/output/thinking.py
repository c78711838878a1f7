"""Content and reasoning between think tags, with a tool syntax beside it."""

import re
from typing import TYPE_CHECKING

from helios_dod.frontend.output.fences import Fences
from helios_dod.frontend.output.jsons import JsonCalls
from helios_dod.frontend.output.marks import with_lead
from helios_dod.frontend.output.pairs import PairCalls
from helios_dod.frontend.output.states import State
from helios_dod.frontend.output.syntax import JsonSyntax, PairSyntax, TagSyntax, ThinkSyntax
from helios_dod.frontend.output.tags import TagCalls
from helios_dod.frontend.output.terms import CONTENT, REASONING, Start

if TYPE_CHECKING:
    from helios_dod.frontend.output.parser import Parser

TAG_BEGUN = re.compile(r"</?\Z")
THINK, THINK_CLOSE = 1001, 1002  # other meanings are the tool syntax's


class ThinkDocument:
    """The outermost part of a parser whose reasoning, if any, is between tags."""

    def __init__(self, parser: "Parser", start: Start, opaque: bool) -> None:
        self.parser, self.out = parser, parser.out
        syntax = parser.bound.syntax
        self.think, self.opaque = syntax.think, opaque
        self.fences: dict[int, Fences] = {}
        if isinstance(syntax.tool, TagSyntax) and syntax.tool.fences:
            self.fences = {CONTENT: Fences(), REASONING: Fences()}
        self.tool = self.make_tool(syntax.tool)
        self.make_states()
        self.await_newlines("")
        parser.state = self.reasoning if start == Start.REASONING else self.content

    def make_tool(self, tool: object) -> TagCalls | PairCalls | JsonCalls | None:
        if isinstance(tool, TagSyntax):
            return TagCalls(self.parser, tool, self)
        if isinstance(tool, PairSyntax):
            return PairCalls(self.parser, tool, self)
        if isinstance(tool, JsonSyntax):
            return JsonCalls(self.parser, tool, self, self.opaque and not tool.open)
        assert tool is None, tool
        return None

    def make_states(self) -> None:
        make, bound = self.parser.bound.compiled, self.parser.bound
        openers, terminals, tags, strays = {}, {}, {}, {}
        begins = self.tool.begins() if self.tool else {}
        if self.tool:  # before a document, only what its grammar writes instead of it is a call
            openers = begins if self.opaque else self.tool.openers()
            if not self.opaque and not isinstance(self.tool, JsonCalls):
                strays = self.tool.strays()
        think, extra = self.think, "\\n" if self.fences else ""
        if think:
            tags = {think.open: THINK, think.close: THINK_CLOSE}
            terminals = {word: begins[word] for word in think.terminals.markers if self.tool}
            terminals |= dict.fromkeys(with_lead(think.close, think.close_newlines), THINK_CLOSE)
            terminals |= {think.open: THINK}
        name = "opaque." if self.opaque else ""
        self.content = State(make(name + "content", openers | strays | tags, extra),
                             self.content_text, self.mark, kind=CONTENT)
        self.strays = set(strays.values())
        self.answered = self.content  # behind reasoning
        if self.opaque:  # where a document's text may begin with a tag's
            tags = {tag: meaning for tag, meaning in tags.items() if bound.is_token(tag)}
            self.answered = State(make("opaque.answered", openers | tags, extra),
                                  self.content_text, self.mark, kind=CONTENT)
        self.reasoning = State(make("reasoning", terminals, extra), self.reasoning_text, self.mark,
                               kind=REASONING)
        self.answer = State(make("answer", {}), self.content_text, self.mark, kind=CONTENT)
        self.newlines = State(None, take=self.take_newlines, end=self.end_newlines)

    # newlines that the template writes around reasoning

    def await_newlines(self, newlines: str) -> None:
        self.wanted = newlines

    def take_newlines(self, buffer: str, at: int) -> int:
        """Drops the wrapping newlines, one by one, while they come."""
        if self.wanted and buffer[at] == self.wanted[0]:
            self.wanted = self.wanted[1:]
            at += 1
        else:
            self.wanted = ""
        if not self.wanted:
            self.parser.state = self.after
        return at

    def end_newlines(self, rest: str) -> None:
        """Nothing followed them."""

    def wrap(self, newlines: str, after: State) -> None:
        """Goes to a state past wrapping newlines."""
        self.wanted, self.after = newlines, after
        self.parser.state = self.newlines if newlines else after

    # text

    def content_text(self, symbols: str) -> int | None:
        """Behind a call that broke, pieces of tags are the rest of it."""
        if self.out.broken and isinstance(self.tool, TagCalls) and not self.opaque:
            at = self.tool.piece_at(symbols)
            if at >= 0:
                self.out.text(CONTENT, TAG_BEGUN.sub("", symbols[:at]))
                self.parser.state = self.tool.piece
                return at
        self.out.text(CONTENT, symbols)
        self.follow(CONTENT, symbols)
        if self.opaque and self.out.blank is None:
            self.parser.state = self.answer
        return None

    def reasoning_text(self, symbols: str) -> None:
        self.out.text(REASONING, symbols)
        self.follow(REASONING, symbols)

    def follow(self, kind: int, symbols: str) -> None:
        if self.fences:
            self.fences[kind].read(symbols)

    def is_idle(self, kind: int) -> bool:
        """Whether plain text of a kind needs no look at fences."""
        return kind not in self.fences or self.fences[kind].idle

    # delimiters

    def mark(self, meaning: int, word: str) -> None:
        inside = REASONING if self.parser.state is self.reasoning else CONTENT
        if meaning in (THINK, THINK_CLOSE):
            assert self.think is not None
            self.think_mark(meaning, word, self.think)
        elif self.is_fenced(inside, word) or (meaning in self.strays and not self.out.broken):
            self.out.text(inside, word)
            self.follow(inside, word.lstrip("\n"))
        else:
            assert self.tool is not None
            if inside == REASONING:
                self.end_reasoning()
            self.tool.opened(meaning, word)

    def is_fenced(self, kind: int, word: str) -> bool:
        """Whether a delimiter, after its leading newlines, is inside a fence."""
        if not self.fences:
            return False
        fences = self.fences[kind]
        fences.read(word[:len(word) - len(word.lstrip("\n"))])
        return fences.inside

    def think_mark(self, meaning: int, word: str, think: ThinkSyntax) -> None:
        """An opener opens, a closer closes; others of them are absorbed.

        Spelled in plain text they count only where a turn's reasoning can be."""
        in_reasoning = self.parser.state is self.reasoning
        if in_reasoning:
            if meaning == THINK_CLOSE:
                self.end_reasoning()
                self.wrap(think.answer_newlines, self.answered)
            return
        is_token = self.parser.bound.is_token(think.open if meaning == THINK else think.close)
        if meaning == THINK and (is_token or self.out.blank is not None):
            self.out.drop_blank()
            self.wrap(think.open_newlines, self.reasoning)
        elif not is_token and not (meaning == THINK_CLOSE and self.out.said[REASONING]):
            self.content_text(word)

    def end_reasoning(self) -> None:
        self.out.settle_text()
        self.out.await_content()

    # what the tool machine asks

    def leave(self) -> None:
        """A call, or section of calls, is over: content goes on."""
        begun = self.opaque and self.out.blank is None
        self.parser.state = self.answer if begun else self.answered

    def interrupt(self, meaning: int) -> None:
        raise AssertionError("this document has no delimiters inside calls")

    def resolve(self, name: str) -> str | None:
        """Every name means itself."""
        return name

    def finish(self) -> None:
        """The output has ended."""

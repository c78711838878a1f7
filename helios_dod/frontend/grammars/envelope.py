"""One grammar of a whole output: reasoning, then tool calls or the answer.

A delimiter that is a token of its own stands in the grammar as that token, and the same text
spelled otherwise is text: a literal tag inside a structured answer stays part of the answer."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from helios_dod.frontend.grammars.calls import Calls, Writer
from helios_dod.frontend.grammars.elements import channels, element_calls
from helios_dod.frontend.grammars.spelling import literal
from helios_dod.frontend.grammars.structured import Answer
from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.syntax import ElementSyntax, FrameSyntax, ThinkSyntax
from helios_dod.frontend.output.terms import Start
from helios_dod.grammars.library import Text, encode

ANY_TEXT = "/(.|\\n)+/"


@dataclass(frozen=True)
class Demand:
    """What the output has to be. calls: None allows none of a form that matters."""

    answer: Answer | None = None
    calls: Calls | None = None
    calls_required: bool = False
    thinking_budget: int | None = None  # tokens of reasoning


@dataclass
class Envelope:
    """Writes the grammar of one request. bound: the core's syntax, None: all output is text.

    start: what the first token is part of. closed: reasoning is over in the prompt already.
    specials: ids of special tokens that are not the end, where they may stand in free text."""

    bound: Bound | None
    start: Start
    closed: bool
    strip_leading_space: bool
    specials: tuple[int, ...] = ()
    rules: list[str] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)

    def text(self, demand: Demand) -> bytes:
        """The bytes for `Submission.grammar`."""
        syntax = None if self.bound is None else self.bound.syntax
        if syntax is not None and isinstance(syntax.tool, ElementSyntax):
            start = self.elements(syntax.tool, demand)
        elif syntax is not None and isinstance(syntax.tool, FrameSyntax):
            start = self.framed(syntax.tool, demand)
        else:
            reasoning = self.thinking(syntax.think if syntax else None, demand)
            start = f"{reasoning} {self.body(demand)}"
        lark = "\n".join([f"start: {start}", *self.rules, f"ANYTEXT: {ANY_TEXT}"])
        grammars = [{"name": "output", "lark_grammar": lark}, *self.others]
        delimiters = () if self.bound is None else tuple(self.bound.atoms)
        return encode(Text(msgspec.json.encode({"grammars": grammars}).decode(), delimiters))

    # what is common

    def literal(self, text: str) -> str:
        """Text in Lark, its delimiters as tokens."""
        if self.bound is None:
            return json.dumps(text, ensure_ascii=False) if text else ""
        return literal(self.bound, text)

    def until(self, name: str, text: str, options: str = "") -> str:
        """A rule of any text up to a delimiter, and it; its name."""
        assert self.bound is not None
        if self.bound.is_token(text):
            self.rules += [f"{name}: {name}_text? {self.literal(text)}",
                           f"{name}_text{options}: {ANY_TEXT}"]
        elif options:  # text that may be cut off cannot hold what begins the delimiter
            self.rules += [f"{name}: {name}_text? {self.literal(text)}",
                           f"{name}_text{options}: /[^{re.escape(text[0])}]+/"]
        else:
            self.rules.append(f"{name}[lazy]: /(.|\\n)*/ {self.literal(text)}")
        return name

    # reasoning

    def thinking(self, think: ThinkSyntax | None, demand: Demand) -> str:
        """Reasoning that comes first: what is open, or may be opened."""
        if think is None or (self.closed and self.start != Start.REASONING):
            return ""
        budget = demand.thinking_budget
        options = "" if budget is None else f"[max_tokens={budget}]"
        if budget == 0:
            rest = self.literal(think.close)
        else:
            rest = self.until("reasoning", think.close, options)
        newlines = f"{self.literal(think.answer_newlines)}?" if think.answer_newlines else ""
        if self.start == Start.REASONING:
            return f"{rest} {newlines}"
        self.rules.append(f"thinking: {self.literal(think.open)} {rest} {newlines}")
        return "thinking?"

    # what follows

    def body(self, demand: Demand) -> str:
        """The answer, calls, or either of them."""
        options = []
        if demand.answer is not None and not demand.calls_required:
            options.append(self.answer(demand.answer))
        if demand.calls is not None:
            assert self.bound is not None
            made = demand.calls.write(self.bound, self.rules, self.others)
            if demand.calls_required or demand.answer is not None:
                lead = getattr(self.bound.syntax.tool, "lead", "")  # as templates write it
                options.append(f"{self.literal(lead)}? {made}" if lead else made)
            else:  # a free answer, in which calls are checked
                options.append(f"({self.free()} | {made})*")
        if not options:
            options.append(f"{self.free()}*")
        self.rules.append("body: " + " | ".join(options))
        return "body"

    def free(self) -> str:
        """A piece of an answer that nothing constrains."""
        calls = set() if self.bound is None else set(self.bound.symbols)
        tokens = [i for i in self.specials if i not in calls]
        if not tokens:
            return "ANYTEXT"
        return f"(ANYTEXT | <[{','.join(map(str, tokens))}]>)"

    def answer(self, answer: Answer) -> str:
        """The constrained answer, a grammar of its own so that its names are too."""
        first, *rest = answer.grammars
        self.others += [{"name": "answer", **first}, *rest]
        return '" "? @answer' if self.strip_leading_space else "@answer"

    # an element stream

    def elements(self, syntax: ElementSyntax, demand: Demand) -> str:
        """Its channels: reasoning, the answer, calls."""
        assert self.bound is not None
        answer = calls = ""
        if demand.answer is not None and not demand.calls_required:
            answer = self.answer(demand.answer)
        if demand.calls is not None:
            calls = element_calls(Writer(self.bound, self.rules, self.others, demand.calls), syntax)
        return channels(self.bound, syntax, self.start, self.rules, answer, calls,
                        demand.calls_required, demand.thinking_budget)

    # messages to recipients

    def framed(self, syntax: FrameSyntax, demand: Demand) -> str:
        """Frames: reasoning ones, then one with the answer, calls in frames of their own."""
        assert self.bound is not None
        reasoning, content = frame_heads(syntax)
        more = self.literal(f"{syntax.start}{syntax.role}")
        end, budget = self.literal(syntax.ends[0]), demand.thinking_budget
        options = "" if budget is None else f"[max_tokens={budget}]"
        thought = end if budget == 0 else self.until("thought", syntax.ends[0], options)
        self.rules += [
            f"frame_end: {end}",
            "reasoning_head: " + " | ".join(map(self.literal, reasoning)),
            "content_head: " + " | ".join(map(self.literal, content)),
            f"reasoning_frame: reasoning_head {thought} {more}"]
        calls, answer = "", f"{self.free()}*"
        if demand.calls is not None:
            calls = demand.calls.write(self.bound, self.rules, self.others)
        if demand.answer is not None and not demand.calls_required:
            answer = self.answer(demand.answer)
        if not calls:
            last, opened = f"content_head {answer}", answer
        elif demand.calls_required:
            last, opened = calls, f"frame_end {more} {calls}"
        elif demand.answer is not None:
            last = f"(content_head {answer} | {calls})"
            opened = f"({answer} | frame_end {more} {calls})"
        else:
            opened = f"{answer} (frame_end {more} {calls})?"
            last = f"(content_head {opened} | {calls})"
        frames = {None: "reasoning_frame*", 0: ""}.get(budget, "reasoning_frame?")
        if self.start == Start.REASONING:
            again = "reasoning_frame*" if budget is None else ""
            return f"{thought} {more} {again} {last}"
        return f"{frames} {last}" if self.start == Start.HEADER else opened


def frame_heads(syntax: FrameSyntax) -> tuple[list[str], list[str]]:
    """What stands between a role and a body, of reasoning and of content."""
    reasoning = [f"{syntax.recipient}{name}{syntax.message}"
                 for name in syntax.reasoning_recipients]
    content = [f"{syntax.recipient}{name}{syntax.message}" for name in syntax.content_recipients]
    if syntax.channel:
        reasoning += [f"{syntax.channel}{name}{syntax.message}"
                      for name in syntax.reasoning_channels]
        content += [f"{syntax.channel}{name}{syntax.message}"
                    for name in syntax.content_channels[:1]]
    return reasoning, content[:1]

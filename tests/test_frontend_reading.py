"""A choice's output from token ids to events: end and special tokens, requests without tools."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helios_dod.frontend.output.cases import Result, gather
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.reading import Readers
from helios_dod.frontend.text import ByteTable
from helios_dod.terms import FINISH_EOS, FINISH_LIMIT, FINISH_STOP_STRING, FINISH_STOP_TOKEN

TOOLS: dict[str, Any] = {"f": {"type": "object", "properties": {"x": {"type": "string"}}}}


class Words:
    """Bytes as tokens, then the words of a syntax, then special tokens that it does not name."""

    def __init__(self, name: str) -> None:
        syntax = CATALOG[name]
        self.words = [*dict.fromkeys((*syntax.tokens, *syntax.dropped, "<|end|>")), "<|pad|>"]
        pieces = [bytes([i]) for i in range(256)] + [word.encode() for word in self.words]
        offsets = np.cumsum([0, *map(len, pieces)])
        special = bytes(256) + bytes([1]) * len(self.words)
        self.readers = Readers(syntax, ByteTable.of(b"".join(pieces), offsets, special), False)

    def ids(self, *parts: str) -> list[int]:
        """Each part is a word of the syntax, or ordinary text."""
        ids: list[int] = []
        for part in parts:
            ids += [256 + self.words.index(part)] if part in self.words else list(part.encode())
        return ids

    def read(self, parts: Sequence[str], tools: dict[str, Any] = TOOLS, ends: tuple[str, ...] = (),
             reason: int = FINISH_EOS, prompt: Sequence[str] = ("x",), **options: Any) -> Result:
        """What the parts come to, and how many calls the reading counts as finished.

        A token of `ends` is withheld until the next, and for good where the reason says so."""
        reading = self.readers.readings(self.ids(*prompt), tools, [1], **options)[0]
        tokens, events = self.ids(*parts), []
        for i, token in enumerate(tokens):
            events += reading.token(token, i if token in self.ids(*ends) else i + 1)
        ended = reason != FINISH_LIMIT and tokens[-1] in self.ids(*ends)
        events += reading.finish(reason, len(tokens) - ended)
        result = gather(events)
        assert reading.calls_finished == len(result.calls)
        return result


@pytest.fixture(scope="module")
def frames() -> Words:
    return Words("channel_frames")


@pytest.fixture(scope="module")
def tagged() -> Words:
    return Words("tagged_json")


PROMPT = ("<|start|>", "assistant")
CALL = ("<|channel|>", "commentary to=functions.f ", "<|message|>", '{"x": "a"}', "<|call|>")


def test_an_end_token_that_is_a_delimiter_ends_the_call(frames: Words) -> None:
    read = frames.read(CALL, ends=("<|call|>", "<|return|>"), prompt=PROMPT)
    assert [(call.name, call.arguments) for call in read.calls] == [("f", '{"x": "a"}')]
    assert read.content == "" and not read.incomplete


def test_without_tools_frames_still_part_reasoning(frames: Words) -> None:
    parts = ("<|channel|>", "analysis", "<|message|>", "why", "<|end|>", "<|start|>", "assistant",
             "<|channel|>", "final", "<|message|>", "so", "<|return|>")
    read = frames.read(parts, tools={}, ends=("<|return|>",), prompt=PROMPT)
    assert (read.reasoning, read.content, read.calls) == ("why", "so", [])
    silent = frames.read(parts, ends=("<|return|>",), prompt=PROMPT, reasoning=False)
    assert (silent.reasoning, silent.content) == ("", "so")
    assert frames.read(CALL, tools={}, ends=("<|call|>",), prompt=PROMPT).calls == []


def test_special_tokens_are_no_text(tagged: Words) -> None:
    for tools in (TOOLS, {}):
        read = tagged.read(("a", "<|pad|>", "b", "<|im_end|>", "c", "<|end|>"), tools)
        assert read.content == "abc"


def test_a_withheld_token_returns_when_the_output_goes_on(tagged: Words) -> None:
    going_on = tagged.read(("a", "b", "c"), ends=("b",), reason=FINISH_LIMIT)
    assert going_on.content == "abc"
    assert tagged.read(("a", "b"), ends=("b",), reason=FINISH_STOP_TOKEN).content == "a"
    assert tagged.read(("a", "b"), ends=("b",), reason=FINISH_LIMIT).content == "ab"
    assert tagged.read(("a", "b", "b"), ends=("b",), reason=FINISH_EOS).content == "ab"


def test_a_stop_token_is_not_presented(tagged: Words) -> None:
    parts = ("<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>")
    assert len(tagged.read(parts, ends=("</tool_call>",)).calls) == 1
    one = tagged.read((*parts, *parts), calls_max=1)
    assert len(one.calls) == 1


def test_tool_tags_are_text_without_tools(tagged: Words) -> None:
    read = tagged.read(("<think>", "w", "</think>", '{"name": "f"}'), tools={})
    assert (read.reasoning, read.content) == ("w", '{"name": "f"}')


def test_tokens_outside_the_table_are_nothing(tagged: Words) -> None:
    reading = tagged.readers.readings([1], TOOLS, [1])[0]
    assert not reading.token(100_000, 1) and not reading.token(-1, 2)


def cut(words: Words, parts: Sequence[str], stop: str, **options: Any) -> Result:
    """What is read when the parts end with the first token that completes `stop` in their text."""
    reading = words.readers.readings(words.ids("x"), TOOLS, [1], strings=True, **options)[0]
    tokens, events, text = words.ids(*parts), [], ""
    delimiters = words.readers.delimiters(True)
    for i, token in enumerate(tokens):
        data = words.readers.tokens[token]
        text += "" if token >= 256 and token not in delimiters else data.decode()
        begin = text.find(stop)
        if begin >= 0:
            bound = len(text[:begin].encode())
            events += reading.token(token, i + 1, bound)
            events += reading.finish(FINISH_STOP_STRING, i + 1, bound)
            return gather(events)
        held = max(size for size in range(len(stop)) if text.endswith(stop[:size]))
        events += reading.token(token, i + 1, len(text) - held)
    events += reading.finish(FINISH_LIMIT, len(tokens))
    return gather(events)


def test_a_stop_string_is_found_in_the_envelope(tagged: Words) -> None:
    parts = ("<think>", "why", "</think>", "so ", "it is", "<|pad|>", "!")
    assert cut(tagged, parts, "never").content == "so it is!"
    thought = cut(tagged, parts, "hy</th")
    assert (thought.reasoning, thought.content) == ("w", "")
    inside = cut(tagged, parts, "ink>so")  # "</th" is no delimiter once it is cut
    assert (inside.reasoning, inside.content) == ("why</th", "")
    assert cut(tagged, parts, "is!").content == "so it "  # the pad token is no text
    answered = cut(tagged, parts, "o it")
    assert (answered.reasoning, answered.content) == ("why", "s")


def test_a_stop_string_after_a_call_keeps_the_call(tagged: Words) -> None:
    call = ("<tool_call>", '{"name": "f", "arguments": {"x": "1"}}', "</tool_call>")
    read = cut(tagged, (*call, "and ", "more"), "and")
    assert [call.name for call in read.calls] == ["f"] and read.content == ""
    again = cut(tagged, (*call, *call), '</tool_call><tool_call>{"na')
    assert [call.name for call in again.calls] == ["f"] and not again.incomplete
    unfinished = cut(tagged, call, '"1"')
    assert unfinished.calls == [] and unfinished.incomplete

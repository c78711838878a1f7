"""Cases as data: a model's output and what must come of it, run whole and in every split.

The tokenizer is byte-level: token b is byte b, and the syntax's single-token delimiters follow. All
other text is cut into tokens as a split says, so a token's id does not matter there.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from helios_dod.errors import UserError
from helios_dod.frontend.output.case_names import CASE_SYNTAXES
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.marks import Vocabulary
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.start import start_state
from helios_dod.frontend.output.syntax import OutputSyntax, with_terminals
from helios_dod.frontend.output.terms import (
    ARGUMENTS,
    BEGIN,
    CONTENT,
    END,
    INCOMPLETE,
    REASONING,
    Event,
    Start,
)

TEXT_TOKEN = 0  # the id of every token of ordinary text
RANDOM_SPLITS = 200
WORD = re.compile(r"\s?\w+|\s?[^\w\s]+|\s+")
STARTS = {"content": Start.CONTENT, "reasoning": Start.REASONING, "response": Start.RESPONSE,
          "header": Start.HEADER}

Token = tuple[int, bytes]


class ExpectedCall(TypedDict):
    """A finished call; its arguments as a JSON value, or as the text they are."""

    name: str
    arguments: NotRequired[Any]
    arguments_text: NotRequired[str]


class ExpectedIncomplete(TypedDict):
    """What may have been shown of a call that is not finished."""

    name: str
    args_prefix: str


class CaseFields(TypedDict):
    """The fields of a case that are read."""

    syntax: str
    model_output: str
    id: NotRequired[str]
    uses: NotRequired[str | None]
    start: NotRequired[str]
    prompt_tail: NotRequired[str | None]
    tools: NotRequired[dict[str, Any] | None]
    expected_content: NotRequired[str | None]
    expected_reasoning: NotRequired[str | None]
    expected_calls: NotRequired[list[ExpectedCall] | None]
    expected_call_ids: NotRequired[list[str] | None]
    expected_incomplete: NotRequired[ExpectedIncomplete | None]
    whitespace: NotRequired[str | None]
    content_unspecified: NotRequired[bool | None]
    reasoning_parser: NotRequired[bool | None]


@dataclass
class Call:
    """What events say of one call."""

    name: str
    id: str
    arguments: str = ""
    finished: bool = False


@dataclass
class Result:
    """What events say of a response."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    incomplete: list[Call] = field(default_factory=list)


def gather(events: Iterable[Event]) -> Result:
    """The whole that events are parts of. Raises ValueError where they contradict each other."""
    content, reasoning = [], []
    calls: list[Call] = []
    arguments: list[list[str]] = []
    ended: dict[int, int] = {}
    for event in events:
        if event.kind == CONTENT:
            content.append(event.text)
        elif event.kind == REASONING:
            reasoning.append(event.text)
        elif event.kind == BEGIN:
            if event.index != len(calls):
                raise ValueError(f"call {event.index} begins as number {len(calls)}")
            calls.append(Call(event.text, event.id))
            arguments.append([])
        else:
            if event.index != len(calls) - 1 or event.index in ended:
                raise ValueError(f"call {event.index} goes on after its end")
            if event.kind == ARGUMENTS:
                arguments[event.index].append(event.text)
            else:
                ended[event.index] = event.kind
    result = Result("".join(content), "".join(reasoning))
    for i, call in enumerate(calls):
        call.arguments = "".join(arguments[i])
        call.finished = ended.get(i) == END
        if not call.finished and ended.get(i) != INCOMPLETE:
            raise ValueError(f"call {i} neither ends nor is incomplete")
        (result.calls if call.finished else result.incomplete).append(call)
    return result


def syntax_of(case: Mapping[str, Any]) -> OutputSyntax:
    """The syntax that a case is written in."""
    name, used = case["syntax"], case.get("uses")
    for word in (name, used):
        if word is not None and word not in CASE_SYNTAXES:
            raise UserError(f"case {case.get('id')}: syntax {word!r} is none of "
                            f"{', '.join(CASE_SYNTAXES)}")
    syntax = CATALOG[CASE_SYNTAXES[name]]
    if used:
        other = CATALOG[CASE_SYNTAXES[used]]
        tool = syntax.tool or other.tool
        ids = syntax if syntax.tool else other
        syntax = with_terminals(replace(
            syntax, tool=tool, think=syntax.think or other.think, call_ids=ids.call_ids,
            tokens=tuple(dict.fromkeys((*syntax.tokens, *other.tokens))),
            dropped=tuple(dict.fromkeys((*syntax.dropped, *other.dropped))),
            unknown_names=ids.unknown_names))
    if case.get("reasoning_parser") is False:
        syntax = replace(syntax, think=None)
    return syntax


class CaseTokenizer:
    """Bytes, and the delimiters of a syntax as single tokens."""

    def __init__(self, syntax: OutputSyntax) -> None:
        self.markers = (*syntax.tokens, *syntax.dropped)
        self.table = [bytes([i]) for i in range(256)] + [m.encode() for m in self.markers]
        self.ids = {marker: 256 + i for i, marker in enumerate(self.markers)}
        self.find = re.compile("|".join(
            re.escape(marker) for marker in sorted(self.markers, key=len, reverse=True)) or "(?!)")
        self.bound = Vocabulary(self.table).bind(syntax)

    def pieces(self, text: str) -> list[tuple[int | None, str]]:
        """Delimiters with their ids, and the text between them with None."""
        found: list[tuple[int | None, str]] = []
        at = 0
        for match in self.find.finditer(text):
            found += [(None, text[at:match.start()]), (self.ids[match.group()], match.group())]
            at = match.end()
        found.append((None, text[at:]))
        return [(token, part) for token, part in found if part]

    def ids_of(self, text: str) -> list[int]:
        """Token ids, a byte of ordinary text each."""
        ids: list[int] = []
        for token, part in self.pieces(text):
            ids += list(part.encode()) if token is None else [token]
        return ids

    def split(self, text: str, how: str, seed: int = 0) -> list[Token]:
        """Tokens. how: whole (ordinary text as long as it goes), words, bytes, random."""
        choose = random.Random(seed)
        tokens: list[Token] = []
        for token, part in self.pieces(text):
            data = part.encode()
            if token is not None:
                tokens.append((token, data))
            elif how == "words":
                tokens += [(TEXT_TOKEN, word.group().encode()) for word in WORD.finditer(part)]
            else:
                at = 0
                while at < len(data):
                    size = {"whole": len(data), "bytes": 1}.get(how) or choose.choice(
                        (1, 1, 2, 3, 4, 5, 7, 13, 40))
                    tokens.append((TEXT_TOKEN, data[at:at + size]))
                    at += size
        return tokens


def splits(tokenizer: CaseTokenizer, text: str) -> Iterator[tuple[str, list[Token]]]:
    """The name of each way to cut the text, and its tokens."""
    whole = tokenizer.split(text, "whole")
    yield "whole", whole
    yield "words", tokenizer.split(text, "words")
    yield "bytes", tokenizer.split(text, "bytes")
    for i, (token, data) in enumerate(whole):
        if token == TEXT_TOKEN:  # this text is cut in two at every byte
            for at in range(1, len(data)):
                yield f"text {i} cut at byte {at}", [
                    *whole[:i], (TEXT_TOKEN, data[:at]), (TEXT_TOKEN, data[at:]), *whole[i + 1:]]
    for seed in range(RANDOM_SPLITS):
        yield f"random {seed}", tokenizer.split(text, "random", seed)


def parse(case: Mapping[str, Any], tokenizer: CaseTokenizer, tokens: list[Token]) -> Result:
    """Runs a parser over tokens. Raises ValueError where its events contradict each other."""
    start = STARTS[case.get("start", "content")]
    if case.get("prompt_tail") is not None:
        prompt = tokenizer.ids_of(case["prompt_tail"])
        start = start_state(tokenizer.bound, prompt, tokenizer.table)
    parser = Parser(tokenizer.bound, case.get("tools") or {}, start)
    events: list[Event] = []
    for token, data in tokens:
        events += parser.feed(token, data)
    events += parser.finish()
    return gather(events)


def complaints(case: Mapping[str, Any], result: Result) -> list[str]:
    """What differs from what is expected."""
    trim = case.get("whitespace") == "edges_lenient"
    found = []

    def compare(what: str, expected: Any, got: Any) -> None:
        if expected != got:
            found.append(f"{what}: expected {expected!r}, got {got!r}")

    def text(value: str | None) -> str:
        return ((value or "").strip() if trim else value or "")

    if not case.get("content_unspecified"):
        compare("content", text(case.get("expected_content")), text(result.content))
    compare("reasoning", text(case.get("expected_reasoning")), text(result.reasoning))
    calls = case.get("expected_calls") or []
    compare("names", [call["name"] for call in calls], [call.name for call in result.calls])
    for expected, call in zip(calls, result.calls, strict=False):
        if "arguments_text" in expected:
            compare("arguments", expected["arguments_text"], call.arguments)
        elif not means(call.arguments, expected["arguments"]):
            compare("arguments", json.dumps(expected["arguments"], ensure_ascii=False),
                    call.arguments)
    ids = case.get("expected_call_ids")
    if ids is not None:
        compare("ids", ids, [call.id for call in result.calls])
    compare_incomplete(case.get("expected_incomplete"), result.incomplete, found)
    return found


def means(text: str, expected: Any) -> bool:
    """Whether JSON text has a value: numbers by their value, objects in any order."""
    try:
        got = json.loads(text)
    except ValueError:
        return False
    waiting = [(got, expected)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            waiting += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            waiting += zip(one, other, strict=True)
        elif isinstance(one, dict | list) or one != other or (
                isinstance(one, bool) != isinstance(other, bool)):
            return False
    return True


def compare_incomplete(expected: Mapping[str, str] | None, got: list[Call],
                       found: list[str]) -> None:
    """An unfinished call may have shown at most the name and the expected prefix."""
    for i, call in enumerate(got):
        if expected is None or i or call.name != expected["name"] or (
                not expected["args_prefix"].startswith(call.arguments)):
            found.append(f"incomplete: expected at most {expected!r}, got {call!r}")


def check(case: Mapping[str, Any]) -> list[str]:
    """Runs a case in every split. The complaints; none if it passes."""
    tokenizer = CaseTokenizer(syntax_of(case))
    first: Result | None = None
    for name, tokens in splits(tokenizer, case["model_output"]):
        try:
            result = parse(case, tokenizer, tokens)
        except Exception as error:  # a parser must take any output: report it, go on
            return [f"{name}: {type(error).__name__}: {error}"]
        if first is None:
            first = result
            found = complaints(case, result)
            if found:
                return [f"{name}: {line}" for line in found]
        elif result != first:
            return [f"{name}: differs from whole: expected {first!r}, got {result!r}"]
    return []


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Cases of a file. Raises UserError naming the line that is no case."""
    cases = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8: {error}") from None
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            cases.append(read_case(line))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{i}: {error}") from None
    if not cases:
        raise UserError(f"{path}: has no cases")
    return cases


def read_case(line: str) -> dict[str, Any]:
    """A case of one line. Raises ValueError or RecursionError saying why it is none."""
    case = json.loads(line)
    msgspec.convert(case, CaseFields)
    assert isinstance(case, dict)
    for i, call in enumerate(case.get("expected_calls") or ()):
        if "arguments" not in call and "arguments_text" not in call:
            raise ValueError(f"expected_calls[{i}] has neither arguments nor arguments_text")
    if case.get("start", "content") not in STARTS:
        raise ValueError(f"start {case['start']!r} is none of {', '.join(STARTS)}")
    json.dumps(case, ensure_ascii=False).encode()  # half a surrogate pair is no text
    syntax_of(case)
    return case

"""The two forms of an answer: a stream of server-sent events, and one JSON object.

What they say is a dialect's: a Script makes the bytes of a stream, a function the whole body."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, END, REASONING, Event
from helios_dod.frontend.preparation import Prepared
from helios_dod.server.choices import Choice, Stopped
from helios_dod.server.chunks import Score, call_json, escaped
from helios_dod.server.errors import ApiError
from helios_dod.server.http import Headers, Send

EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"))
TAKEN: set[type] = set()  # what `send` hands back when it has taken the bytes
EVENTS_SPARE = 8  # beyond tokens: the head, ends, usage, one error


class Message:
    """A choice's message as its parser's events tell it. Calls that never finished are left out."""

    def __init__(self) -> None:
        self.reasoning: list[bytes] = []
        self.calls: list[tuple[str, str, bytes]] = []  # name, id, escaped arguments
        self.name, self.id = "", ""
        self.arguments: list[bytes] = []

    def take(self, event: Event) -> None:
        """Anything but content."""
        if event.kind == REASONING:
            self.reasoning.append(escaped(event.text))
        elif event.kind == BEGIN:
            self.name, self.id, self.arguments = event.text, event.id, []
        elif event.kind == ARGUMENTS:
            self.arguments.append(escaped(event.text))
        elif event.kind == END:
            self.calls.append((self.name, self.id, b"".join(self.arguments)))

    def call_fields(self) -> list[bytes]:
        """OpenAI's fields of every finished call."""
        return [call_json(*call) for call in self.calls]


@dataclass
class Collected:
    """All that one choice said. texts, entries: escaped JSON."""

    texts: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    message: Message = field(default_factory=Message)
    tokens: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    prompt_scores: Sequence[Score] = ()
    reason: str = ""
    stopped: Stopped = None


class Answer:
    """What both forms count. `done` resolves when the answer is complete or has failed.

    times: when the request came in and when it was queued, nanoseconds from the origin."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.prompt_count = prepared.prompt_count
        self.remaining, self.generated = len(prepared.submissions), 0
        self.cached_by = [0] * len(prepared.prompts)
        self.ingress_ns = self.enqueue_ns = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed, of all prompts."""
        return sum(self.cached_by)

    def ended(self, choice: Choice) -> bool:
        """Counts a finished choice; True for the last one."""
        row = choice.index * len(self.cached_by) // len(self.prepared.submissions)
        self.cached_by[row] = max(self.cached_by[row], choice.cached)
        self.generated += choice.generated
        self.remaining -= 1
        return self.remaining == 0

    def close(self) -> None:
        """Resolves `done`."""
        if not self.done.done():
            self.done.set_result(None)


class Whole(Answer):
    """Collects a request's choices. render: the body of the complete answer."""

    def __init__(self, prepared: Prepared, render: Callable[["Whole"], bytes]) -> None:
        super().__init__(prepared)
        self.choices = [Collected() for _ in prepared.submissions]
        self.render = render
        self.error: ApiError | None = None

    def token(self, choice: Choice, text: bytes, entry: bytes) -> None:
        """Appends."""
        collected = self.choices[choice.index]
        collected.texts.append(text)
        if entry:
            collected.entries.append(entry)

    def said(self, choice: Choice, events: Sequence[Event], entry: bytes) -> None:
        """Appends."""
        collected = self.choices[choice.index]
        for event in events:
            if event.kind == CONTENT:
                collected.texts.append(escaped(event.text))
            else:
                collected.message.take(event)
        if entry:
            collected.entries.append(entry)

    def observed(self, choice: Choice, token: int, completed_ns: int) -> None:
        """Appends."""
        collected = self.choices[choice.index]
        collected.tokens.append(token)
        collected.times.append(completed_ns)

    def prompt_scored(self, choice: Choice, scores: Sequence[Score]) -> None:
        """Keeps."""
        self.choices[choice.index].prompt_scores = scores

    def finished(self, choice: Choice, text: bytes, entry: bytes, reason: str) -> None:
        """Counts down."""
        self.token(choice, text, entry)
        self.choices[choice.index].reason = reason
        self.choices[choice.index].stopped = choice.stopped
        if self.ended(choice):
            self.close()

    def failed(self, error: ApiError) -> None:
        """The first error stands for the request."""
        self.error = self.error or error
        self.close()


class Script(Protocol):
    """A dialect's words for one streamed answer. Texts and entries are escaped JSON."""

    def begin(self) -> bytes:
        """The stream's first events."""

    def text(self, index: int, text: bytes) -> bytes:
        """A piece of content."""

    def scored(self, index: int, text: bytes, entries: bytes) -> bytes:
        """A piece of content with log-probability entries."""

    def said(self, index: int, event: Event) -> bytes:
        """One event of a parser; empty if it needs no words."""

    def observed(self, index: int, token: int, completed_ns: int) -> bytes:
        """One generated token."""

    def prompt_scored(self, index: int, scores: Sequence[Score]) -> bytes:
        """The scores of the choice's prompt."""

    def finish(self, index: int, reason: str, stopped: Stopped, answer: Answer | None) -> bytes:
        """The choice's end. answer: with the totals, after the last choice."""

    def close(self, answer: Answer) -> bytes:
        """What follows the last choice's end."""

    def error(self, error: ApiError) -> bytes:
        """The terminal event of a stream that failed."""


class Stream(Answer):
    """Sends events as they come. `send` is called without awaiting: it queues the bytes at once and
    hands back a future only while the connection's queue is full; until that resolves, later events
    wait here and go out joined, in order. Their number is bounded by the request's own budget."""

    def __init__(self, send: Send, prepared: Prepared, script: Script,
                 event_capacity: int = 0) -> None:
        super().__init__(prepared)
        self.send, self.script, self.say = send, script, script.text
        self.budget = max(event_capacity, event_budget(prepared))
        self.waiting: list[bytes] = []
        self.blocked = self.ending = False

    def begin(self, headers: Headers = ()) -> None:
        """Sends the head and the first events."""
        self.send({"type": "http.response.start", "status": 200,
                   "headers": (*EVENT_STREAM, *headers)})
        first = self.script.begin()
        if first:
            self.write(first)

    def write(self, chunk: bytes) -> None:
        """Queues bytes for the client; never waits. Nothing follows the end."""
        if self.blocked or self.ending:
            if not self.ending:
                self._put(chunk)
            return
        awaitable: Any = self.send(
            {"type": "http.response.body", "body": chunk, "more_body": True})
        if type(awaitable) not in TAKEN:
            self._sent(awaitable)

    def _put(self, chunk: bytes) -> None:
        if self.blocked:
            self.waiting.append(chunk)
            assert len(self.waiting) <= self.budget, "answer: more events than its budget"
            return
        self._sent(self.send(
            {"type": "http.response.body", "body": chunk, "more_body": not self.ending}))

    def _sent(self, awaitable: Any) -> None:
        """Waits, by a callback, where the connection's queue is full."""
        pending = getattr(awaitable, "add_done_callback", None)
        if pending is not None:
            self.blocked = True
            pending(self._unblocked)
            return
        TAKEN.add(type(awaitable))
        if self.ending:
            self.close()

    def _unblocked(self, _future: Any) -> None:
        self.blocked = False
        if self.waiting:
            joined = b"".join(self.waiting)
            self.waiting.clear()
            try:
                self._put(joined)
            except RuntimeError:  # closed, which ended that wait: nobody reads, nothing follows
                self.ending = True
        elif self.ending:
            self.close()

    def end(self, chunk: bytes) -> None:
        """Queues the last bytes."""
        if not self.ending:
            self.ending = True
            self._put(chunk)

    def token(self, choice: Choice, text: bytes, entry: bytes) -> None:
        """One event."""
        if entry:
            chunk = self.script.scored(choice.index, text, entry)
        else:
            chunk = self.say(choice.index, text)
        if chunk:
            self.write(chunk)

    def said(self, choice: Choice, events: Sequence[Event], entry: bytes) -> None:
        """What each event needs, sent at once. An entry goes with the first if it is content."""
        index, script = choice.index, self.script
        chunks = b""
        if entry:
            text = b""
            if events and events[0].kind == CONTENT:
                text, events = escaped(events[0].text), events[1:]
            chunks = script.scored(index, text, entry)
        for event in events:
            chunks += script.said(index, event)
        if chunks:
            self.write(chunks)

    def observed(self, choice: Choice, token: int, completed_ns: int) -> None:
        """One event without text."""
        chunk = self.script.observed(choice.index, token, completed_ns)
        if chunk:
            self.write(chunk)

    def prompt_scored(self, choice: Choice, scores: Sequence[Score]) -> None:
        """One event without text."""
        chunk = self.script.prompt_scored(choice.index, scores)
        if chunk:
            self.write(chunk)

    def finished(self, choice: Choice, text: bytes, entry: bytes, reason: str) -> None:
        """The choice's last events, and after the last choice the stream's."""
        if text or entry:
            self.token(choice, text, entry)
        if self.ended(choice):
            last = self.script.finish(choice.index, reason, choice.stopped, self)
            self.end(last + self.script.close(self))
        else:
            self.write(self.script.finish(choice.index, reason, choice.stopped, None))

    def failed(self, error: ApiError) -> None:
        """One terminal error event, without [DONE]."""
        self.end(self.script.error(error))


def event_budget(prepared: Prepared) -> int:
    """Events that an answer can have: presentation and observation of every token that may be
    generated, prompt scores and terminal events."""
    each = 2 if prepared.observed else 1
    return sum(each * (s.output_limit + 1) + s.scored + EVENTS_SPARE for s in prepared.submissions)

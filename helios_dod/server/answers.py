"""The two forms of an answer: a stream of server-sent events, and one JSON object."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, END, REASONING, Event
from helios_dod.server.bridge import Choice
from helios_dod.server.chunks import (
    DONE,
    ChunkForm,
    call_json,
    choice_json,
    completion_json,
    error_event,
    escaped,
    message_json,
    usage_chunk,
    usage_json,
)
from helios_dod.server.errors import ApiError

Send = Callable[[dict[str, Any]], Awaitable[None]]
EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"))


class Message:
    """A choice's message as its parser's events tell it. Calls that never finished are left out."""

    def __init__(self) -> None:
        self.reasoning: list[bytes] = []
        self.calls: list[bytes] = []
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
            self.calls.append(call_json(self.name, self.id, b"".join(self.arguments)))


class Whole:
    """Collects a request's choices; `done` resolves when the answer is complete or has failed."""

    def __init__(self, head: bytes, prompt_count: int, choice_count: int, scored: bool) -> None:
        self.head, self.prompt_count = head, prompt_count
        self.texts: list[list[bytes]] = [[] for _ in range(choice_count)]
        self.entries: list[list[bytes]] = [[] for _ in range(choice_count)]
        self.messages = [Message() for _ in range(choice_count)]
        self.scored = scored
        self.reasons = [""] * choice_count
        self.remaining, self.generated, self.cached = choice_count, 0, 0
        self.error: ApiError | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def token(self, choice: Choice, text: bytes, entry: bytes) -> None:
        """Appends."""
        self.texts[choice.index].append(text)
        if entry:
            self.entries[choice.index].append(entry)

    def said(self, choice: Choice, events: Sequence[Event], entry: bytes) -> None:
        """Appends."""
        message = self.messages[choice.index]
        for event in events:
            if event.kind == CONTENT:
                self.texts[choice.index].append(escaped(event.text))
            else:
                message.take(event)
        if entry:
            self.entries[choice.index].append(entry)

    def finished(self, choice: Choice, text: bytes, entry: bytes, reason: str) -> None:
        """Counts down."""
        self.token(choice, text, entry)
        self.reasons[choice.index] = reason
        self.generated += choice.generated
        self.cached = max(self.cached, choice.cached)
        self.remaining -= 1
        if self.remaining == 0 and not self.done.done():
            self.done.set_result(None)

    def failed(self, error: ApiError) -> None:
        """The first error stands for the request."""
        self.error = self.error or error
        if not self.done.done():
            self.done.set_result(None)

    def body(self) -> bytes:
        """The completed JSON."""
        choices = [
            choice_json(index, message_json(b"".join(self.texts[index]),
                                            b"".join(self.messages[index].reasoning),
                                            self.messages[index].calls),
                        b",".join(self.entries[index]) if self.scored else None, reason)
            for index, reason in enumerate(self.reasons)]
        usage = usage_json(self.prompt_count, self.generated, self.cached)
        return completion_json(self.head, choices, usage)


class Stream:
    """Sends chunks as they come. `send` is called without awaiting: it queues the bytes at once and
    hands back a future only while the connection's queue is full; until that resolves, later bytes
    wait here and go out joined, in order."""

    def __init__(self, send: Send, head: bytes, prompt_count: int, choice_count: int,
                 usage: bool) -> None:
        self.send, self.head, self.prompt_count = send, head, prompt_count
        self.forms = [ChunkForm(head, index, usage) for index in range(choice_count)]
        self.usage = usage
        self.remaining, self.generated, self.cached = choice_count, 0, 0
        self.waiting: list[bytes] = []
        self.blocked = self.ending = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Sends the head and every choice's first chunk."""
        self.send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        self.write(b"".join(form.role() for form in self.forms))

    def write(self, chunk: bytes) -> None:
        """Queues bytes for the client; never waits."""
        if self.blocked:
            self.waiting.append(chunk)
            return
        awaitable: Any = self.send(
            {"type": "http.response.body", "body": chunk, "more_body": not self.ending})
        pending = getattr(awaitable, "add_done_callback", None)
        if pending is not None:
            self.blocked = True
            pending(self._unblocked)
        elif self.ending:
            self._close()

    def _unblocked(self, _future: Any) -> None:
        self.blocked = False
        if self.waiting:
            joined = b"".join(self.waiting)
            self.waiting.clear()
            self.write(joined)
        elif self.ending:
            self._close()

    def _close(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def end(self, chunk: bytes) -> None:
        """Queues the last bytes."""
        if not self.ending:
            self.ending = True
            self.write(chunk)

    def token(self, choice: Choice, text: bytes, entry: bytes) -> None:
        """One chunk."""
        form = self.forms[choice.index]
        if entry:
            self.write(form.scored(text, entry))
        else:
            self.write(form.text + text + form.after_text)

    def said(self, choice: Choice, events: Sequence[Event], entry: bytes) -> None:
        """A chunk for each event, sent at once. An entry goes with the first if that is content."""
        form = self.forms[choice.index]
        if entry:
            text = b""
            if events and events[0].kind == CONTENT:
                text, events = escaped(events[0].text), events[1:]
            chunks = form.scored(text, entry) + b"".join(map(form.said, events))
        else:
            chunks = b"".join(map(form.said, events))
        if chunks:
            self.write(chunks)

    def finished(self, choice: Choice, text: bytes, entry: bytes, reason: str) -> None:
        """The choice's last chunks, and after the last choice the stream's."""
        if text or entry:
            self.token(choice, text, entry)
        self.generated += choice.generated
        self.cached = max(self.cached, choice.cached)
        self.remaining -= 1
        last = self.forms[choice.index].finish(reason)
        if self.remaining > 0:
            self.write(last)
            return
        if self.usage:
            last += usage_chunk(
                self.head, usage_json(self.prompt_count, self.generated, self.cached))
        self.end(last + DONE)

    def failed(self, error: ApiError) -> None:
        """One terminal error event, without [DONE]."""
        self.end(error_event(error.body()))

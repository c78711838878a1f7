"""The dialect of POST /v1/messages: content blocks and their events, as Anthropic's API reference
has them ("Messages", "Streaming messages").

The input of a tool_use block is an object, whole or streamed: arguments that are none stand in one
as text, as those of a call cut off do in a stream (a whole answer leaves it out). Clients parse a
streamed call's arguments as they come and fail on text that is no JSON, so they are sent when the
call has ended; until then each piece is an empty delta."""

from collections.abc import Sequence
from typing import Any

import msgspec

from helios_dod.frontend.anthropic import (
    CHAT_NAMES,
    MessageRequest,
    decode_message,
    places,
)
from helios_dod.frontend.messages import THINKING_SWITCHES
from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, REASONING, Event
from helios_dod.frontend.preparation import Prepared, Preparer
from helios_dod.frontend.requests import ChatRequest, RequestError
from helios_dod.server.answers import Answer, Whole
from helios_dod.server.choices import Stopped
from helios_dod.server.chunks import Score, as_json, escaped, named_event
from helios_dod.server.errors import ApiError
from helios_dod.server.responses import inside

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Asked(msgspec.Struct):
    """A message request beside the chat request that it amounts to."""

    message: MessageRequest
    chat: ChatRequest

    @property
    def model(self) -> str:
        """The model asked for."""
        return self.chat.model

    @property
    def deadline_ms(self) -> int | None:
        """The request's own time."""
        return self.chat.deadline_ms


def usage_of(prompt: int, cached: int, generated: int) -> dict[str, int]:
    """Usage; cached tokens are counted apart from the input's."""
    return {"input_tokens": prompt - cached, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached, "output_tokens": generated}


def reason_of(reason: str, stopped: Stopped) -> str:
    """The stop reason."""
    return "stop_sequence" if isinstance(stopped, str) else STOP_REASONS[reason]


def input_json(arguments: str) -> bytes:
    """The JSON object of a call's input: the arguments as written; {} of none; and of what is no
    JSON object, or has a number out of range, {"INVALID_JSON": the text as written}."""
    if not arguments.strip():
        return b"{}"
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return arguments.encode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # models write anything: the text is the answer
    return as_json({"INVALID_JSON": arguments})


def message_object(id: str, model: str, content: list[dict[str, Any]], reason: str | None,
                   stopped: Stopped, usage: dict[str, int]) -> dict[str, Any]:
    """A message. stopped: the stop sequence that ended it."""
    return {"id": id, "type": "message", "role": "assistant", "model": model, "content": content,
            "stop_reason": reason, "stop_sequence": stopped, "usage": usage}


class MessageScript:
    """The events of one streamed message. One content block is open at a time."""

    def __init__(self, id: str, model: str, prepared: Prepared) -> None:
        self.id, self.model, self.prompt_count = id, model, prepared.prompt_count
        self.index, self.open = 0, 0  # the open block's kind of event, or 0
        self.reason = ""
        self.stopped: Stopped = None
        self.before = self.after = b""
        self.arguments: list[str] = []  # of the open call

    def begin(self) -> bytes:
        """The message before any content; what was cached is told at the end."""
        return named_event("message_start", {"message": message_object(
            self.id, self.model, [], None, None, usage_of(self.prompt_count, 0, 0))})

    def start(self, kind: int, block: dict[str, Any], delta: str, field: str) -> bytes:
        """Opens a block, after closing another. delta, field: of its pieces."""
        chunks = self.end()
        self.open = kind
        self.before = (b'event: content_block_delta\ndata: {"type":"content_block_delta",'
                       b'"index":%d,"delta":{"type":"%b","%b":"'
                       % (self.index, delta.encode(), field.encode()))
        self.after = b'"}}\n\n'
        return chunks + named_event("content_block_start", {
            "index": self.index, "content_block": block})

    def end(self) -> bytes:
        """Closes the open block, if there is one."""
        if self.open == 0:
            return b""
        last = b""
        if self.open == BEGIN:
            written = input_json("".join(self.arguments)).decode()
            last = self.before + escaped(written) + self.after
            self.arguments.clear()
        self.open, self.index = 0, self.index + 1
        return last + named_event("content_block_stop", {"index": self.index - 1})

    def text(self, index: int, text: bytes) -> bytes:
        """A piece of text."""
        first = b"" if self.open == CONTENT else self.start(
            CONTENT, {"type": "text", "text": ""}, "text_delta", "text")
        return first + self.before + text + self.after

    def scored(self, index: int, text: bytes, entries: bytes) -> bytes:
        """The text alone: messages carry no log-probabilities."""
        return self.text(index, text) if text else b""

    def said(self, index: int, event: Event) -> bytes:
        """One event of the parser."""
        if event.kind == CONTENT:
            return self.text(index, escaped(event.text))
        if event.kind == REASONING:
            first = b"" if self.open == REASONING else self.start(
                REASONING, {"type": "thinking", "thinking": "", "signature": ""},
                "thinking_delta", "thinking")
            return first + self.before + escaped(event.text) + self.after
        if event.kind == BEGIN:
            return self.start(BEGIN, {"type": "tool_use", "id": event.id, "name": event.text,
                                      "input": {}}, "input_json_delta", "partial_json")
        if event.kind == ARGUMENTS:
            self.arguments.append(event.text)
            return self.before + self.after
        return self.end()

    def observed(self, index: int, token: int, completed_ns: int) -> bytes:
        """Nothing: messages are not observed."""
        return b""

    def prompt_scored(self, index: int, scores: Sequence[Score]) -> bytes:
        """Nothing: messages are not scored."""
        return b""

    def finish(self, index: int, reason: str, stopped: Stopped, answer: Answer | None) -> bytes:
        """Closes what is open."""
        self.reason, self.stopped = reason_of(reason, stopped), stopped
        return self.end()

    def close(self, answer: Answer) -> bytes:
        """Why it ended, and usage."""
        return named_event("message_delta", {
            "delta": {"stop_reason": self.reason, "stop_sequence": self.stopped},
            "usage": usage_of(answer.prompt_count, answer.cached, answer.generated),
        }) + named_event("message_stop", {})

    def error(self, error: ApiError) -> bytes:
        """The terminal event of a stream that failed."""
        return b"event: error\ndata: %b\n\n" % error.anthropic()


class MessageEndpoint:
    """POST /v1/messages."""

    path, prefix = "/v1/messages", "msg_"

    def __init__(self, preparer: Preparer) -> None:
        self.preparer, self.model = preparer, preparer.assets.served_id

    def decode(self, body: bytes) -> Asked:
        """Raises RequestError."""
        return Asked(*decode_message(body))

    def decode_count(self, body: bytes) -> Asked:
        """The same for count_tokens. Raises RequestError."""
        return Asked(*decode_message(body, counting=True))

    def settled(self, request: Asked) -> ChatRequest:
        """The chat request, with thinking as this model's template can have it."""
        thinking, template = request.message.thinking, self.preparer.template
        if thinking is not None and template is not None:
            switches = template.variables & set(THINKING_SWITCHES)
            if switches:
                request.chat.chat_template_kwargs = dict.fromkeys(
                    switches, thinking.type != "disabled")
        return request.chat

    def prepare(self, request: Asked, context: int) -> Prepared:
        """Raises RequestError."""
        try:
            return self.preparer.prepare(self.settled(request), context)
        except RequestError as error:
            raise error.renamed(CHAT_NAMES | places(request.message)) from None

    def count(self, request: Asked) -> bytes:
        """The body of a count_tokens answer. Raises RequestError."""
        try:
            tokens = self.preparer.prompt_tokens(self.settled(request))
        except RequestError as error:
            raise error.renamed(CHAT_NAMES | places(request.message)) from None
        return as_json({"input_tokens": len(tokens)})

    def script(self, request: Asked, id: str, created: int, prepared: Prepared) -> MessageScript:
        """The words of a streamed answer."""
        return MessageScript(id, self.model, prepared)

    def whole(self, request: Asked, id: str, created: int, answer: Whole) -> bytes:
        """A complete answer."""
        collected = answer.choices[0]
        message = collected.message
        content: list[dict[str, Any]] = []
        if message.reasoning:
            content.append({"type": "thinking", "thinking": inside(b"".join(message.reasoning)),
                            "signature": ""})
        text = inside(b"".join(collected.texts))
        if text:
            content.append({"type": "text", "text": text})
        for name, call, arguments in message.calls:
            content.append({"type": "tool_use", "id": call, "name": name,
                            "input": msgspec.Raw(input_json(inside(arguments)))})
        return as_json(message_object(
            id, self.model, content, reason_of(collected.reason, collected.stopped),
            collected.stopped, usage_of(answer.prompt_count, answer.cached, answer.generated)))

"""The dialect of POST /v1/responses: output items, named events, nothing stored.

Event names and fields are those of OpenAI's API reference ("Responses", streaming events)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, END, REASONING, Event
from helios_dod.frontend.preparation import Prepared, Preparer
from helios_dod.frontend.requests import ChatRequest, RequestError
from helios_dod.frontend.responses import ResponseRequest, decode_response, names_of
from helios_dod.server.answers import Answer, Collected, Whole
from helios_dod.server.choices import Stopped
from helios_dod.server.chunks import Score, as_json, named_event
from helios_dod.server.errors import ApiError


class Asked(msgspec.Struct):
    """A response request beside the chat request that it amounts to."""

    response: ResponseRequest
    chat: ChatRequest

    @property
    def model(self) -> str:
        """The model asked for."""
        return self.chat.model

    @property
    def deadline_ms(self) -> int | None:
        """The request's own time."""
        return self.chat.deadline_ms


def message_item(id: str, text: str, status: str, logprobs: list[Any] | None) -> dict[str, Any]:
    """An output message."""
    return {"id": id, "type": "message", "role": "assistant", "status": status,
            "content": [text_part(text, logprobs)]}


def text_part(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    """An output message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_item(id: str, text: str) -> dict[str, Any]:
    """An output item of reasoning."""
    return {"id": id, "type": "reasoning", "summary": [],
            "content": [{"type": "reasoning_text", "text": text}]}


def call_item(id: str, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    """An output item of a function call."""
    return {"id": id, "type": "function_call", "call_id": call_id, "name": name,
            "arguments": arguments, "status": status}


def inside(text: bytes) -> str:
    """The text of a JSON string's inside."""
    return str(msgspec.json.decode(b'"%b"' % text))


class Head:
    """What every response object of one answer repeats."""

    def __init__(self, asked: Asked, id: str, created: int, model: str, prepared: Prepared) -> None:
        request, chat = asked.response, asked.chat
        first = prepared.submissions[0]
        self.id, self.word = id, id.rpartition("_")[2]
        self.fields: dict[str, Any] = {
            "id": id, "object": "response", "created_at": created, "model": model,
            "instructions": request.instructions, "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {}, "previous_response_id": None, "store": False,
            "background": False, "truncation": "disabled", "user": request.user,
            "parallel_tool_calls": chat.parallel_tool_calls is not False,
            "reasoning": {"effort": chat.reasoning_effort, "summary": None},
            "temperature": first.temperature, "top_p": first.top_p,
            "text": {"format": (request.text and request.text.format) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": [msgspec.to_builtins(tool) for tool in request.tools or ()],
            "top_logprobs": request.top_logprobs or 0}

    def response(self, status: str, output: list[dict[str, Any]],
                 usage: dict[str, Any] | None = None) -> dict[str, Any]:
        """A response object. status: completed, incomplete or in_progress."""
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {**self.fields, "status": status, "output": output, "error": None,
                "incomplete_details": reason, "usage": usage}

    def item_id(self, kind: str, index: int) -> str:
        """The id of an output item."""
        return f"{kind}_{self.word}{index:04x}"


def usage_of(answer: Answer, reasoning: int) -> dict[str, Any]:
    """Usage. reasoning: tokens that gave reasoning text."""
    return {"input_tokens": answer.prompt_count,
            "input_tokens_details": {"cached_tokens": answer.cached},
            "output_tokens": answer.generated,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": answer.prompt_count + answer.generated}


def status_of(reason: str) -> str:
    """A response's status by chat's finish reason."""
    return "incomplete" if reason == "length" else "completed"


class ResponseScript:
    """The events of one streamed response. One output item is open at a time."""

    def __init__(self, head: Head) -> None:
        self.head, self.number = head, 0
        self.output: list[dict[str, Any]] = []
        self.open = 0  # kind of the open item: CONTENT, REASONING, BEGIN (a call) or 0
        self.pieces: list[str] = []
        self.logprobs: list[Any] = []
        self.call = Event(BEGIN)
        self.reasoning = 0
        self.status = "completed"

    def event(self, name: str, /, **fields: Any) -> bytes:
        """One event, numbered."""
        self.number += 1
        return named_event(name, {"sequence_number": self.number - 1, **fields})

    def item_event(self, name: str, /, **fields: Any) -> bytes:
        """One event of the open item."""
        prefix = {CONTENT: "msg", REASONING: "rs", BEGIN: "fc"}[self.open]
        at = len(self.output)
        return self.event(name, item_id=self.head.item_id(prefix, at), output_index=at, **fields)

    def begin(self) -> bytes:
        """The response as it stands before any output."""
        response = self.head.response("in_progress", [])
        return (self.event("response.created", response=response)
                + self.event("response.in_progress", response=response))

    def item(self, status: str) -> dict[str, Any]:
        """The open item as it stands."""
        text, at = "".join(self.pieces), len(self.output)
        if self.open == CONTENT:
            return message_item(self.head.item_id("msg", at), text, status, self.logprobs)
        if self.open == REASONING:
            return reasoning_item(self.head.item_id("rs", at), text)
        return call_item(self.head.item_id("fc", at), self.call.id, self.call.text, text, status)

    def start(self, kind: int) -> bytes:
        """Opens an item, after closing another."""
        chunks = self.end("completed")
        self.open, self.pieces, self.logprobs = kind, [], []
        item = self.item("in_progress")
        if kind == BEGIN:
            return chunks + self.event("response.output_item.added",
                                       output_index=len(self.output), item=item)
        part = item["content"][0]
        chunks += self.event("response.output_item.added", output_index=len(self.output),
                             item={**item, "content": []})
        return chunks + self.item_event("response.content_part.added", content_index=0, part=part)

    def end(self, status: str) -> bytes:
        """Closes the open item, if there is one."""
        if self.open == 0:
            return b""
        item, text = self.item(status), "".join(self.pieces)
        if self.open == BEGIN:
            chunks = self.item_event("response.function_call_arguments.done", arguments=text,
                                     name=self.call.text)
        elif self.open == REASONING:
            chunks = self.item_event("response.reasoning_text.done", content_index=0, text=text)
        else:
            chunks = self.item_event("response.output_text.done", content_index=0, text=text,
                                     logprobs=self.logprobs)
        if self.open != BEGIN:
            chunks += self.item_event("response.content_part.done", content_index=0,
                                      part=item["content"][0])
        chunks += self.event("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self.open = 0
        return chunks

    def delta(self, kind: int, text: str, logprobs: list[Any]) -> bytes:
        """A piece of text or reasoning."""
        chunks = b"" if self.open == kind else self.start(kind)
        self.pieces.append(text)
        if kind == REASONING:
            self.reasoning += 1
            return chunks + self.item_event("response.reasoning_text.delta", content_index=0,
                                            delta=text)
        self.logprobs += logprobs
        return chunks + self.item_event("response.output_text.delta", content_index=0, delta=text,
                                        logprobs=logprobs)

    def text(self, index: int, text: bytes) -> bytes:
        """A piece of text."""
        return self.delta(CONTENT, inside(text), [])

    def scored(self, index: int, text: bytes, entries: bytes) -> bytes:
        """A piece of text with log-probabilities."""
        return self.delta(CONTENT, inside(text), msgspec.json.decode(b"[" + entries + b"]"))

    def said(self, index: int, event: Event) -> bytes:
        """One event of the parser."""
        if event.kind in (CONTENT, REASONING):
            return self.delta(event.kind, event.text, [])
        if event.kind == BEGIN:
            self.call = event
            return self.start(BEGIN)
        if event.kind == ARGUMENTS:
            self.pieces.append(event.text)
            return self.item_event("response.function_call_arguments.delta", delta=event.text)
        return self.end("completed" if event.kind == END else "incomplete")

    def observed(self, index: int, token: int, completed_ns: int) -> bytes:
        """Nothing: responses are not observed."""
        return b""

    def prompt_scored(self, index: int, scores: Sequence[Score]) -> bytes:
        """Nothing: responses are not scored."""
        return b""

    def finish(self, index: int, reason: str, stopped: Stopped, answer: Answer | None) -> bytes:
        """Closes what is open."""
        self.status = status_of(reason)
        chunks = b"" if self.open or self.output else self.start(CONTENT)
        return chunks + self.end(self.status)

    def close(self, answer: Answer) -> bytes:
        """The complete response."""
        response = self.head.response(self.status, self.output, usage_of(answer, self.reasoning))
        return self.event(f"response.{self.status}", response=response)

    def error(self, error: ApiError) -> bytes:
        """The terminal event of a stream that failed."""
        return self.event("error", code=error.code, message=error.message, param=error.param)


def output_of(head: Head, collected: Collected) -> list[dict[str, Any]]:
    """The output items of a whole answer."""
    output: list[dict[str, Any]] = []
    status, message = status_of(collected.reason), collected.message
    text = inside(b"".join(collected.texts))
    if message.reasoning:
        output.append(reasoning_item(head.item_id("rs", 0), inside(b"".join(message.reasoning))))
    if text or not message.calls:
        logprobs = msgspec.json.decode(b"[" + b",".join(collected.entries) + b"]")
        output.append(message_item(head.item_id("msg", len(output)), text, status, logprobs))
    for name, id, arguments in message.calls:
        output.append(call_item(head.item_id("fc", len(output)), id, name, inside(arguments),
                                "completed"))
    return output


class ResponseEndpoint:
    """POST /v1/responses."""

    path, prefix = "/v1/responses", "resp_"

    def __init__(self, preparer: Preparer) -> None:
        self.preparer = preparer

    def decode(self, body: bytes) -> Asked:
        """Raises RequestError."""
        return Asked(*decode_response(body))

    def prepare(self, request: Asked, context: int) -> Prepared:
        """Raises RequestError."""
        try:
            return self.preparer.prepare(request.chat, context)
        except RequestError as error:
            raise error.renamed(names_of(request.response)) from None

    def head(self, request: Asked, id: str, created: int, prepared: Prepared) -> Head:
        """What the answer's objects repeat."""
        return Head(request, id, created, self.preparer.assets.served_id, prepared)

    def script(self, request: Asked, id: str, created: int, prepared: Prepared) -> ResponseScript:
        """The words of a streamed answer."""
        return ResponseScript(self.head(request, id, created, prepared))

    def whole(self, request: Asked, id: str, created: int, answer: Whole) -> bytes:
        """A complete answer."""
        head = self.head(request, id, created, answer.prepared)
        collected = answer.choices[0]
        return as_json(head.response(
            status_of(collected.reason), output_of(head, collected),
            usage_of(answer, len(collected.message.reasoning))))


def cancelled(id: str, model: str, created: int) -> bytes:
    """The response object of a response that was cancelled; its output was not kept."""
    return as_json({
        "id": id, "object": "response", "created_at": created, "model": model,
        "status": "cancelled", "output": [], "error": None, "incomplete_details": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "store": False,
        "temperature": None, "tool_choice": "auto", "tools": [], "top_p": None, "usage": None})

"""POST /v1/chat/completions."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from helios_dod.frontend.preparation import PreparedChat, Preparer
from helios_dod.frontend.requests import BODY_BYTES_MAX, RequestError, decode_chat
from helios_dod.server.answers import Send, Stream, Whole
from helios_dod.server.bridge import Bridge, Choice
from helios_dod.server.chunks import as_json
from helios_dod.server.errors import ApiError, InvalidRequest, NotFound, too_many

Receive = Callable[[], Awaitable[dict[str, Any]]]
INLINE_BYTES = 16_384  # larger bodies are prepared on a thread, so that streams keep flowing


class Disconnected(Exception):
    """The client went away before its request was read."""


async def read_body(receive: Receive) -> bytes:
    """The request body. Raises InvalidRequest past the limit, Disconnected."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise InvalidRequest(
                f"The request body has more than {BODY_BYTES_MAX} bytes.", code="request_too_large")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def prepare_body(preparer: Preparer, body: bytes, context: int) -> PreparedChat:
    """Decodes, checks and tokenises. Raises RequestError, NotFound."""
    request = decode_chat(body)
    if request.model not in preparer.names:
        raise NotFound(
            f"The model `{request.model}` does not exist; this server has "
            f"`{preparer.assets.served_id}`.", "model", "model_not_found")
    return preparer.prepare(request, context)


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone (or the response is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ChatHandler:
    """Serves chat completions of one worker. context: tokens of prompt and output at most."""

    def __init__(self, bridge: Bridge, preparer: Preparer, context: int, capacity: int) -> None:
        self.bridge, self.preparer = bridge, preparer
        self.context, self.capacity = context, capacity

    async def prepare(self, body: bytes) -> PreparedChat:
        """A prepared request. Raises ApiError."""
        try:
            if len(body) <= INLINE_BYTES:
                return prepare_body(self.preparer, body, self.context)
            return await asyncio.get_running_loop().run_in_executor(
                None, prepare_body, self.preparer, body, self.context)
        except RequestError as error:
            raise InvalidRequest.of(error) from None

    def head(self) -> bytes:
        """The fields that every object of one answer repeats."""
        return b'"id":"chatcmpl-%b","created":%d,"model":%b' % (
            secrets.token_hex(12).encode(), int(time.time()),
            as_json(self.preparer.assets.served_id))

    async def handle(self, receive: Receive, send: Send) -> int:
        """Answers one request; the status sent, or 0 if the client went away. Raises ApiError
        before anything was sent."""
        body = await read_body(receive)
        permits = self.claim(1)
        try:
            prepared = await self.prepare(body)
            count = len(prepared.submissions)
            if count > self.capacity:
                raise InvalidRequest(f"'n' is {count}, more than the server's capacity of "
                                     f"{self.capacity} requests.", "n", "invalid_value")
            permits += self.claim(count - 1)
            answer = self.answer_for(prepared, send)
        except BaseException:
            self.bridge.release(permits)
            raise
        choices = self.bridge.submit(
            permits, prepared.submissions, answer, prepared.readings)
        if isinstance(answer, Stream):
            self.bridge.memory.control[0]["workers"]["streams"][self.bridge.worker] += 1
            answer.begin()
        return await self.respond(answer, choices, receive, send)

    def claim(self, count: int) -> list[int]:
        """Permits. Raises TooManyRequests when fewer are free."""
        permits = self.bridge.claim(count)
        if permits is None:
            raise too_many(count, self.capacity)
        return permits

    def answer_for(self, prepared: PreparedChat, send: Send) -> Stream | Whole:
        """What will collect or stream the request's events."""
        count, prompt_count = len(prepared.submissions), len(prepared.prompt)
        if prepared.stream:
            return Stream(send, self.head(), prompt_count, count, prepared.include_usage)
        return Whole(self.head(), prompt_count, count, prepared.logprobs)

    async def respond(self, answer: Stream | Whole, choices: list[Choice], receive: Receive,
                      send: Send) -> int:
        """Waits for the answer or the client's leaving; frees everything at the end."""
        gone = asyncio.ensure_future(until_disconnect(receive))
        try:
            await asyncio.wait({gone, answer.done}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done.done():
                return 0
            if isinstance(answer, Stream):
                return 200
            return await self.send_whole(answer, send)
        finally:
            self.bridge.drop(choices)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def send_whole(self, answer: Whole, send: Send) -> int:
        """Sends a JSON answer. Raises its error."""
        if answer.error is not None:
            raise answer.error
        await send_json(send, 200, answer.body())
        return 200


async def send_json(send: Send, status: int, body: bytes,
                    headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """One response with a JSON body."""
    await send({"type": "http.response.start", "status": status, "headers": (
        (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(send: Send, error: ApiError) -> None:
    """One error response."""
    await send_json(send, error.status, error.body(), error.headers)

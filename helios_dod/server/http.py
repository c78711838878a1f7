"""What every endpoint needs of ASGI: reading a body, sending JSON, noticing that a client left."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from helios_dod.server.errors import ApiError, InvalidRequest, RequestTimeout
from helios_dod.server.marks import Marks

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
BODY_SECONDS = 30  # for the next part of a request body
JSON = (b"content-type", b"application/json")


@dataclass
class Exchange:
    """One request and the way to answer it. extra: headers that every answer to it carries."""

    scope: dict[str, Any]
    receive: Receive
    send: Send
    extra: Headers = ()
    body_bytes_max: int = 0
    notes: dict[str, Any] = field(default_factory=dict)  # what the log says about it
    traced: bool = False
    marks: Marks | None = None  # of a traced request

    @property
    def path(self) -> str:
        """The path asked for."""
        return str(self.scope["path"])

    @property
    def method(self) -> str:
        """The method asked for."""
        return str(self.scope["method"])

    def header(self, name: bytes) -> bytes | None:
        """A request header by its lower-case name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    async def body(self) -> bytes:
        """The request body. Raises InvalidRequest past the limit or where it breaks off."""
        limit, parts, size = self.body_bytes_max, [], 0
        told = self.header(b"content-length")
        if told is not None and told.isdigit() and int(told) > limit:
            raise too_large(limit)
        while True:
            try:
                message = await asyncio.wait_for(self.receive(), BODY_SECONDS)
            except TimeoutError:
                raise RequestTimeout(
                    f"No part of the request body came for {BODY_SECONDS} s.",
                    code="body_timeout", headers=((b"connection", b"close"),)) from None
            if message["type"] == "http.disconnect":
                raise broken_off(told, size)
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def until_disconnect(self) -> None:
        """Returns when the client has gone (or the response is complete)."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def send_bytes(self, status: int, body: bytes, headers: Headers) -> int:
        """One whole response; its status."""
        await self.send({"type": "http.response.start", "status": status, "headers": (
            (b"content-length", b"%d" % len(body)), *headers, *self.extra)})
        await self.send({"type": "http.response.body", "more_body": False,
                         "body": b"" if self.method == "HEAD" else body})
        return status

    async def send_json(self, body: bytes, status: int = 200, headers: Headers = ()) -> int:
        """One whole JSON response; its status."""
        return await self.send_bytes(status, body, (JSON, *headers))

    async def send_error(self, error: ApiError) -> int:
        """One error response in the words of the path's API; its status."""
        body = error.anthropic() if self.path.startswith("/v1/messages") else error.body()
        return await self.send_json(body, error.status, error.headers)


def too_large(limit: int) -> InvalidRequest:
    """A body over the limit."""
    return InvalidRequest(f"The request body has more than {limit} bytes.",
                          code="request_too_large", headers=((b"connection", b"close"),))


def broken_off(told: bytes | None, size: int) -> InvalidRequest:
    """A body whose framing is wrong, or whose client went away: then nobody reads this."""
    expected = "chunks" if told is None else f"{told.decode('latin-1')} bytes"
    return InvalidRequest(f"The request body is malformed or breaks off: expected {expected}, got "
                          f"{size} bytes.", code="malformed_body",
                          headers=((b"connection", b"close"),))

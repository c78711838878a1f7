"""What every endpoint needs of ASGI: reading a body, sending JSON, noticing that a client left."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from helios_dod.server import bodies
from helios_dod.server.errors import ApiError
from helios_dod.server.marks import Marks

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
JSON = (b"content-type", b"application/json")


@dataclass
class Exchange:
    """One request and the way to answer it. holding: what the worker holds of bodies, and held:
    of them this one's bytes. extra: headers that every answer to it carries."""

    scope: dict[str, Any]
    receive: Receive
    send: Send
    holding: bodies.Holding
    held: int = 0
    extra: Headers = ()
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

    def body_told(self) -> int | None:
        """The length that the body is said to have; None: that is open."""
        told = self.header(b"content-length")
        return int(told) if told is not None and told.isdigit() else None

    async def body(self) -> bytes:
        """The request body, held until `let_go`. Raises InvalidRequest past the limit or where it
        breaks off, UnsupportedMedia, RequestTimeout, TooManyRequests."""
        bodies.check_media(self.header(b"content-type"), self.header(b"content-encoding"),
                           from_page=self.header(b"origin") is not None)
        told, parts = self.body_told(), list[bytes]()
        if told is not None and told > self.holding.body_bytes_max:
            raise bodies.too_large(self.holding.body_bytes_max, f"{told}")
        try:
            async with asyncio.timeout(bodies.BODY_SECONDS):
                while await self.part(parts):
                    pass
        except TimeoutError:
            raise bodies.too_slow(self.held) from None
        return b"".join(parts)

    async def part(self, parts: list[bytes]) -> bool:
        """Takes the body's next part; False: it was the last."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise bodies.broken_off(self.header(b"content-length"), self.held)
        part = message.get("body", b"")
        if self.held + len(part) > self.holding.body_bytes_max:
            raise bodies.too_large(self.holding.body_bytes_max, f"{self.held + len(part)} or more")
        self.holding.take(len(part))
        self.held += len(part)
        parts.append(part)
        return bool(message.get("more_body"))

    def let_go(self) -> None:
        """The body is admitted, or the request is over: its bytes make room for others."""
        self.holding.give(self.held)
        self.held = 0

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

"""A client for load: streamed chat completions of any OpenAI-compatible server, timed to the chunk.

HTTP/1.1 over asyncio streams and nothing else, so that the client costs little beside the server.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from helios_dod.errors import UserError

HEADER_BYTES_MAX = 65_536
CHUNK_LINE_MAX = 1 << 20


@dataclass(frozen=True)
class Target:
    """Where requests go. key: sent as a bearer token. timeout_s: of one request, to its end."""

    url: str
    model: str = ""
    key: str = ""
    timeout_s: float = 600

    def address(self) -> tuple[str, int, bool, str]:
        """(host, port, TLS, path prefix). Raises UserError."""
        parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"--url: expected http://HOST:PORT, got {self.url!r}")
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return parts.hostname, parts.port or (443 if secure else 80), secure, path


@dataclass
class Answer:
    """What one request saw. Times are monotonic nanoseconds; 0: it did not come so far."""

    sent_ns: int
    first_ns: int = 0
    last_ns: int = 0
    chunk_ns: list[int] = field(default_factory=list)  # arrival of each chunk with output
    prompt_tokens: int = 0
    output_tokens: int = 0
    by_chunks: bool = False  # the server reports no usage, so output_tokens counts chunks
    status: int = 0
    error: str = ""
    finish: str = ""


class Connection:
    """One request over one connection."""

    def __init__(self, target: Target) -> None:
        self.host, self.port, self.secure, self.prefix = target.address()
        self.key = target.key

    async def open(self, method: str, path: str, body: bytes) -> int:
        """Sends a request and reads the head; the status. Raises OSError, ValueError."""
        context = ssl.create_default_context() if self.secure else None
        self.reader, self.writer = await asyncio.open_connection(
            self.host, self.port, ssl=context, limit=CHUNK_LINE_MAX)
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        self.writer.write((
            f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{key}"
            "Connection: close\r\n\r\n").encode() + body)
        await self.writer.drain()
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if len(head) > HEADER_BYTES_MAX:
            raise ValueError("the answer's head is too long")
        lines = head.split("\r\n")
        self.chunked = any(
            line.lower().replace(" ", "") == "transfer-encoding:chunked" for line in lines)
        return int(lines[0].split()[1])

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        if not self.chunked:
            while piece := await self.reader.read(65_536):
                yield piece
            return
        while size := int((await self.reader.readline()).split(b";")[0] or b"0", 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)

    async def body(self) -> bytes:
        """The rest of the answer."""
        return b"".join([piece async for piece in self.pieces()])

    def close(self) -> None:
        """Drops the connection."""
        if hasattr(self, "writer"):
            self.writer.close()


async def model_of(target: Target) -> str:
    """The first model that the server names. Raises UserError."""
    connection = Connection(target)
    try:
        async with asyncio.timeout(target.timeout_s):
            status = await connection.open("GET", "/v1/models", b"")
            body = await connection.body()
        if status != 200:
            raise UserError(f"{target.url}: GET /v1/models answered {status}")
        return str(json.loads(body)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError, asyncio.IncompleteReadError,
            asyncio.LimitOverrunError) as error:
        told = str(error) or type(error).__name__
        raise UserError(f"{target.url}: GET /v1/models: {told}") from None
    finally:
        connection.close()


async def ask(target: Target, messages: list[dict[str, str]], output_tokens: int,
              extra: dict[str, Any]) -> Answer:
    """One streamed chat completion. Never raises for what the server does: `error` says it."""
    body = json.dumps({
        "model": target.model, "messages": messages, "max_tokens": output_tokens, "stream": True,
        "stream_options": {"include_usage": True}, **extra}).encode()
    answer = Answer(time.monotonic_ns())
    connection = Connection(target)
    try:
        async with asyncio.timeout(target.timeout_s):
            await stream(connection, body, answer)
    except TimeoutError:
        answer.error = f"no end within {target.timeout_s:g} s"
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    if not answer.error and not answer.finish:
        answer.error = "the stream ended without a finish reason"
    if not answer.output_tokens:
        answer.output_tokens, answer.by_chunks = len(answer.chunk_ns), bool(answer.chunk_ns)
    return answer


async def stream(connection: Connection, body: bytes, answer: Answer) -> None:
    """Sends a request and notes every event of its answer. Raises OSError, ValueError and what
    reading a stream does."""
    answer.status = await connection.open("POST", "/v1/chat/completions", body)
    if answer.status != 200:
        answer.error = (await connection.body()).decode(errors="replace")[:300]
        return
    left = b""
    async for piece in connection.pieces():
        now = time.monotonic_ns()
        lines = (left + piece).split(b"\n")
        left = lines.pop()
        for line in lines:
            if line.startswith(b"data: ") and line.rstrip() != b"data: [DONE]":
                event = json.loads(line[6:])
                try:
                    note(answer, event, now)
                except (AttributeError, LookupError, TypeError):
                    raise ValueError(f"no event of a chat completion: {line[6:120]!r}") from None


def note(answer: Answer, event: dict[str, Any], now: int) -> None:
    """Adds one event of a stream. Raises AttributeError, LookupError, TypeError and ValueError for
    what is none."""
    if "error" in event:
        answer.error = str(event["error"])[:300]
        return
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = int(usage["prompt_tokens"])
        answer.output_tokens = int(usage["completion_tokens"])
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls")):
            answer.first_ns = answer.first_ns or now
            answer.last_ns = now
            answer.chunk_ns.append(now)
        answer.finish = choice.get("finish_reason") or answer.finish

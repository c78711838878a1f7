"""How request bodies are received: their deadline, their budget, and when they are not read."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import server_harness
import text_tables
from server_harness import PATIENCE_S, Server, open_stream, serving, wait_until

from helios_dod.server import bodies
from helios_dod.server.bodies import Holding
from helios_dod.server.errors import ApiError
from helios_dod.server.http import Exchange

BODY_BYTES = 8 << 20
MEMORY_SPARE = 64 << 20  # beside the budget: what the kernel and the HTTP library hold


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with serving(core, "max_active=1", "queue_capacity=1") as running:
        yield running


def head(length: int, path: str = "/v1/chat/completions") -> bytes:
    return (f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {length}\r\n\r\n").encode()


def connect(server: Server, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    with contextlib.suppress(OSError):  # refused before all of it was sent
        connection.sendall(data)
    return connection


def private_bytes(server: Server) -> int:
    """Resident bytes of the worker that no other process shares."""
    fields = Path(f"/proc/{server.children()[1]}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


def refused(server: Server) -> float:
    return server.metric('helios_http_responses_total{status="429"}')


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_bodies_being_received_have_a_budget(server: Server, path: str) -> None:
    held, before, private = [], refused(server), private_bytes(server)
    block = head(BODY_BYTES, path) + b" " * (BODY_BYTES - 100_000)
    try:
        for _ in range(40):
            held.append(connect(server, block))
        wait_until(lambda: refused(server) >= before + 40 - bodies.BODIES_HELD - 1,
                   "all above the budget are refused")
        assert private_bytes(server) - private < Holding(BODY_BYTES).capacity + MEMORY_SPARE
        assert server.metric("helios_permits_used") == 0
    finally:
        for connection in held:
            connection.close()
    # Room comes back with those who left.
    wait_until(lambda: server.post(max_tokens=2).status_code == 200, "others are served")
    whole = json.dumps(server_harness.body(max_tokens=2)).encode().ljust(BODY_BYTES)
    for _ in range(bodies.BODIES_HELD + 2):  # and with those who were answered
        with connect(server, head(len(whole)) + whole) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize",
         "/v1/messages/count_tokens", "/detokenize", "/v1/abort")


@pytest.mark.parametrize(("headers", "status", "said"), [
    ({}, 200, ""), ({"content-type": "application/json"}, 200, ""),
    ({"content-type": "Application/JSON; charset=utf-8", "origin": "http://a"}, 200, ""),
    ({"content-type": "application/vnd.api+json"}, 200, ""),
    ({"content-encoding": "identity"}, 200, ""),
    ({"content-type": "text/plain"}, 415, "expected application/json, got 'text/plain'"),
    ({"content-type": "application/x-www-form-urlencoded"}, 415, "urlencoded"),
    ({"content-type": "text/plain;application/json"}, 415, "Content-Type"),
    ({"content-type": ""}, 415, "got ''"),
    ({"origin": "http://a"}, 415, "expected application/json, got none"),
    ({"content-encoding": "gzip"}, 415, "Content-Encoding: expected identity or none, got 'gzip'"),
])
def test_kinds_of_bodies(server: Server, headers: dict[str, str], status: int, said: str) -> None:
    content = json.dumps(server_harness.body(max_tokens=1))
    answer = httpx.post(server.url + POSTS[0], content=content, headers=headers)
    assert answer.status_code == status, answer.text
    for path in POSTS if status == 415 else ():
        answer = httpx.post(server.url + path, content=content, headers=headers)
        assert answer.status_code == 415 and said in answer.json()["error"]["message"]
        assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")


def test_the_document_tells_of_kinds(server: Server) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert all("415" in paths[path]["post"]["responses"] for path in POSTS)


def test_a_long_body_is_not_read_while_no_permit_is_free(server: Server) -> None:
    streams = [open_stream(server, max_tokens=4000, ignore_eos=True) for _ in range(2)]
    wait_until(lambda: server.metric("helios_permits_used") == 2, "two permits")
    full = server.metric("helios_permits_full_total")
    with connect(server, head(BODY_BYTES)) as connection:  # of which nothing comes
        answer = connection.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 429") and "retry-after: " in answer
    assert "ingress_full" in answer and "connection: close" in answer
    assert server.metric("helios_permits_full_total") == full + 1
    for stream in streams:
        stream.close()
    server.idle()
    assert server.post(max_tokens=2).status_code == 200


def exchange_of(holding: Holding, *parts: Any) -> Exchange:
    """A request whose body comes in these parts; a number is a pause in seconds."""
    waiting = list(parts)

    async def receive() -> dict[str, Any]:
        while waiting and isinstance(waiting[0], float):
            await asyncio.sleep(waiting.pop(0))
        if not waiting:
            return {"type": "http.disconnect"}
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message: dict[str, Any]) -> None:
        raise AssertionError(message)

    return Exchange({"headers": [], "path": "/", "method": "POST"}, receive, send, holding)


def error_of(exchange: Exchange) -> ApiError:
    with pytest.raises(ApiError) as caught:
        asyncio.run(exchange.body())
    return caught.value


def test_a_whole_body_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 1)
    holding = Holding(1000)
    exchange = exchange_of(holding, *[0.3, b"x"] * 20)  # no part takes long
    error = error_of(exchange)
    assert error.status == 408 and error.code == "body_timeout" and "1 s" in error.message
    exchange.let_go()
    assert holding.used == 0


def test_the_readme_says_how_much_is_received() -> None:
    text = " ".join((Path(__file__).parent.parent / "README.md").read_text().split())
    assert f"A body has {bodies.BODY_SECONDS} s to arrive" in text
    assert bodies.BODIES_HELD == 8 and "holds eight of the largest size" in text
    assert f"({bodies.HELD_BYTES_MIN >> 20} MiB at least)" in text


def test_bytes_come_back_however_it_ends() -> None:
    holding = Holding(bodies.HELD_BYTES_MIN // bodies.BODIES_HELD)
    block = bytes(holding.body_bytes_max)
    whole = exchange_of(holding, block[:10], block[10:])
    assert asyncio.run(whole.body()) == block and holding.used == len(block)
    long = exchange_of(holding, block, b"x")
    error = error_of(long)
    assert error.code == "request_too_large"
    assert f"at most {len(block)} bytes, got {len(block) + 1}" in error.message
    cut = exchange_of(holding, b"x" * 7, b"")
    cut.scope["headers"] = [(b"content-length", b"500")]
    assert asyncio.run(cut.body()) == b"x" * 7
    others = [exchange_of(holding, block) for _ in range(bodies.BODIES_HELD - 3)]
    for other in others:
        asyncio.run(other.body())
    late = exchange_of(holding, block)
    error = error_of(late)
    assert error.status == 429 and error.code == "bodies_full"
    assert (b"retry-after", b"1") in error.headers and str(holding.capacity) in error.message
    for exchange in (whole, long, cut, late, *others):
        exchange.let_go()
        exchange.let_go()
    assert holding.used == 0

"""Clients that misbehave: nothing hangs, nothing leaks. Descriptors, permits, slots, pages, private
and shared memory of the processes are counted before and after. Over the engine's test double;
HELIOS_TEST_SERVER=host or simulated runs them over a real server, and HELIOS_TEST_PAUSE_S lets
paused readers pause so long."""

import contextlib
import json
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import server_harness
import text_tables
from server_harness import PATIENCE_S, Server, open_stream, serving_any, wait_until

MEMORY_SPARE = 48 << 20
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
PAUSE_S = float(os.environ.get("HELIOS_TEST_PAUSE_S", "0"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with serving_any(core, workers=2) as running:
        for _ in range(8):
            running.post(max_tokens=2)
        yield running


def descriptors(server: Server) -> list[int]:
    """Open descriptors of engine and workers."""
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in server.children()]


def memory(server: Server) -> list[int]:
    """Private resident bytes of the workers."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split() for pid in server.children()[1:]]
    return [(int(fields[1]) - int(fields[2])) * 4096 for fields in pages]


def shared(server: Server) -> list[list[str]]:
    """Shared mappings of engine and workers: where they begin and end, and of what."""
    found = []
    for pid in server.children():
        lines = map(str.split, Path(f"/proc/{pid}/maps").read_text().splitlines())
        found.append(sorted(f"{line[0]} {line[-1]}" for line in lines if line[1].endswith("s")))
    return found


def held(server: Server) -> list[float]:
    """What running requests hold of the engine's tables."""
    return [server.metric(f"helios_{name}") for name in
            ("requests_running", "requests_waiting", "slots_used", "pages_used")]


def settled(server: Server) -> list[int]:
    """Descriptors once connections that were just closed are gone."""
    known: list[int] = []
    while known != (now := descriptors(server)):
        known = now
        time.sleep(0.3)
    return known


@pytest.fixture
def level(server: Server) -> Iterator[None]:
    """After the test, everything is as it was before."""
    processes, before, private = server.children(), settled(server), memory(server)
    maps = shared(server)
    yield
    server.idle()
    wait_until(lambda: not any(held(server)), "nothing runs")
    assert shared(server) == maps
    wait_until(lambda: all(now <= then for now, then in zip(
        descriptors(server), before, strict=True)), f"descriptors: {before}")
    assert server.children() == processes  # nobody died
    for now, then in zip(memory(server), private, strict=True):
        assert now - then < MEMORY_SPARE
    answer = server.post(max_tokens=3, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 3


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def reset(connection: socket.socket) -> None:
    """Closes with RST, as a client that crashed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def request(**fields: Any) -> bytes:
    """A whole request."""
    body = json.dumps(server_harness.body(**fields)).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


STAGES = ("connected", "half a head", "head", "half a body", "asked", "first bytes", "much")


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("stage", range(len(STAGES)), ids=STAGES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves(server: Server, stage: int, stream: bool) -> None:
    data = request(stream=stream, **LONG)
    cut = (0, len(HEAD) // 2, data.index(b"{"), data.index(b"{") + 20)
    for turn in range(12):
        connection = connect(server)
        connection.sendall(data[: cut[stage]] if stage < len(cut) else data)
        if stream and stage >= 5:
            wanted = 1 if stage == 5 else 20_000
            got = 0
            while got < wanted:
                got += len(connection.recv(65536))
        (reset if turn % 2 else socket.socket.close)(connection)


@pytest.mark.usefixtures("level")
def test_a_client_that_stops_sending_but_reads_on(server: Server) -> None:
    """A half-closed connection still gets its answer, or is freed."""
    for _ in range(8):
        with connect(server) as connection:
            connection.sendall(request(max_tokens=5, ignore_eos=True))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


@pytest.mark.usefixtures("level")
def test_a_peer_that_vanishes_is_asked_for(server: Server) -> None:
    """A half-open connection: without a keepalive timer it would stay for ever."""
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        ends = [f":{server.port:04X}", f":{connection.getsockname()[1]:04X}"]
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # Timers by proc(5): 02 is keepalive.
        (timer,) = [row[5][:2] for row in rows if [row[1][-5:], row[2][-5:]] == ends]
        assert timer == "02"


@pytest.mark.usefixtures("level")
def test_slow_heads_and_bodies_do_not_keep_others_waiting(server: Server) -> None:
    slow = [connect(server) for _ in range(100)]
    for i, connection in enumerate(slow):
        connection.sendall(HEAD if i % 2 else HEAD + b"content-length: 500\r\n\r\n{")
    for _ in range(3):
        for connection in slow:
            connection.sendall(b"x: y\r\n" if slow.index(connection) % 2 else b" ")
        assert server.post(max_tokens=2).status_code == 200
    assert server.metric("helios_permits_used") == 0  # a permit is not held by what may never come
    for connection in slow:
        connection.close()


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("told", [True, False], ids=["length", "chunked"])
def test_a_body_of_100_megabytes(server: Server, told: bool) -> None:
    size, block = 100 << 20, b" " * (1 << 20)
    for _ in range(3):
        with connect(server) as connection:
            kind = b"content-length: %d" % size if told else b"transfer-encoding: chunked"
            connection.sendall(HEAD + kind + b"\r\n\r\n")
            sent = 0
            try:
                while sent < size:
                    connection.sendall(block if told else b"%x\r\n%b\r\n" % (len(block), block))
                    sent += len(block)
            except OSError:
                pass  # it was refused before all of it was sent
            assert sent < size // 2
            try:
                answer = connection.recv(65536)
            except ConnectionError:
                answer = b""  # a reset may overtake the answer
            assert not answer or answer.startswith(b"HTTP/1.1 400")


@pytest.mark.usefixtures("level")
def test_a_flood_of_headers(server: Server) -> None:
    for flood in (b"x-a: " + b"y" * (1 << 20) + b"\r\n",
                  b"".join(b"x-%d: y\r\n" % i for i in range(50_000))):
        with connect(server) as connection:
            try:
                connection.sendall(HEAD + flood + b"content-length: 0\r\n\r\n")
                answer = connection.recv(65536)
            except OSError:
                answer = b""
            assert not answer or answer.split()[1] in (b"431", b"400")


@pytest.mark.usefixtures("level")
def test_paused_readers_hold_their_permits_and_lose_nothing(server: Server) -> None:
    # Megabytes an answer, more than the sockets on its way hold: it cannot end before it is read.
    paused = [open_stream(server, **LONG, temperature=0, logprobs=True, top_logprobs=20)
              for _ in range(12)]
    wait_until(lambda: server.metric("helios_permits_used") == 12, "permits")
    generated = "helios_answers_total{reason=\"limit\"}"

    def finished() -> float:
        for line in server.get("/metrics").text.splitlines():
            if line.startswith(generated):
                return float(line.split()[-1])
        raise AssertionError(generated)

    before = finished()
    assert server.post(max_tokens=20, ignore_eos=True).status_code == 200
    wait_until(lambda: finished() >= before + 1, "the others go on")
    time.sleep(PAUSE_S)
    assert server.metric("helios_permits_used") == 12
    for connection in paused[6:]:
        connection.close()
    texts = set()
    for connection in paused[:6]:
        text = b""
        while part := connection.recv(1 << 16):
            text += part
        assert b"data: [DONE]" in text
        events = [json.loads(line.strip()[6:]) for line in text.decode().split("\n")
                  if line.startswith("data: {")]
        texts.add("".join(e["choices"][0]["delta"].get("content", "") for e in events))
    assert len(texts) == 1 and len(texts.pop()) > 4000


@pytest.mark.usefixtures("level")
def test_two_thousand_idle_connections(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    idle = []
    try:
        for _ in range(2000):
            idle.append(connect(server))
            if len(idle) % 4 == 0:  # some have already been served once
                idle[-1].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200")
        streams = [open_stream(server, max_tokens=50, ignore_eos=True) for _ in range(64)]
        for stream in streams:
            text = b""
            while part := stream.recv(65536):
                text += part
            assert b"data: [DONE]" in text
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("level")
def test_nonsense(server: Server) -> None:
    for data in (b"\0" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\1" * 200,
                 b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
                 b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked"
                 b"\r\n\r\nzz\r\n"):
        with connect(server) as connection, contextlib.suppress(OSError):  # closed at once
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


BROKEN = {
    "no size": b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "longer than stated": b"transfer-encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
    "cut chunk": b"transfer-encoding: chunked\r\n\r\n50\r\n{",
    "cut": b"content-length: 500\r\n\r\n{}",
}


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize",
                                  "/v1/messages/count_tokens", "/v1/abort"])
@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_body_with_broken_framing_is_refused(server: Server, path: str, data: bytes) -> None:
    before = server.metric('helios_http_responses_total{status="4xx"}')
    with connect(server) as connection:
        connection.sendall(HEAD.replace(b"/v1/chat/completions", path.encode()) + data)
        connection.shutdown(socket.SHUT_WR)
        text = b""
        while part := connection.recv(65536):
            text += part
    head, _, body = text.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"application/json" in head, text
    answer = json.loads(body)
    assert "body is malformed or breaks off" in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert (answer.get("type") == "error") == path.startswith("/v1/messages")
    assert server.metric('helios_http_responses_total{status="4xx"}') == before + 1

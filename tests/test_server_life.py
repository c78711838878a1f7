"""Admission, disconnects, slow readers, faults and shutdown, over the engine's test double."""

import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import server_harness
import text_tables
from server_harness import Server, alive, open_stream, serving, wait_until

from helios_dod.server.launch import reserve_port
from helios_dod.server.supervisor import Wake

LONG = 4000  # tokens; at FAKE_TICK_MS=1 more than four seconds


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("core") / "tokenizer.json"
    path.write_text(text_tables.byte_level().tokenizer.to_str())
    return path


@pytest.fixture(scope="module")
def server(core: Path) -> Iterator[Server]:
    """Two running and two queued requests at most."""
    with serving(core, "max_active=2", "queue_capacity=2") as running:
        yield running


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def refuses(port: int) -> bool:
    """True if nothing listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return True
    return False


def first_chunk(connection: socket.socket) -> bytes:
    """Reads until some content has come."""
    data = b""
    while b'"content":"' not in data.replace(b'"content":""', b""):
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


def test_full_is_429_with_retry_after(server: Server) -> None:
    streams = [open_stream(server, max_tokens=LONG, ignore_eos=True) for _ in range(3)]
    wait_until(lambda: server.metric("helios_permits_used") == 3, "three permits")
    assert server.post(n=2).status_code == 429  # n costs n permits, one is free
    streams.append(open_stream(server, max_tokens=LONG, ignore_eos=True))
    wait_until(lambda: server.metric("helios_permits_used") == 4, "four permits")
    refused = server.post()
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert server.post(n=5).status_code in (400, 429)
    for stream in streams:
        stream.close()
    server.idle()
    assert server.post(max_tokens=2).status_code == 200
    too_wide = server.post(n=5)
    assert too_wide.status_code == 400 and "4" in too_wide.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"n": 2}])
def test_disconnect_cancels_every_choice(server: Server, fields: dict[str, Any]) -> None:
    before = server.metric("helios_cancelled_total")
    stream = open_stream(server, max_tokens=LONG, ignore_eos=True, **fields)
    first_chunk(stream)
    stream.close()
    server.idle()
    count = fields.get("n", 1)
    wait_until(lambda: server.metric("helios_cancelled_total") == before + count, "cancelled")


def test_disconnect_of_a_whole_answer_cancels(server: Server) -> None:
    before = server.metric("helios_cancelled_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/v1/chat/completions", timeout=0.3,
                   json=server_harness.body(max_tokens=LONG, ignore_eos=True))
    wait_until(lambda: server.metric("helios_cancelled_total") == before + 1, "cancelled")
    server.idle()


def test_paused_reader_loses_nothing_and_blocks_nobody(core: Path) -> None:
    with serving(core, env={"FAKE_TICK_MS": "0"}) as server:
        asked: dict[str, Any] = {"max_tokens": LONG, "ignore_eos": True, "temperature": 0,
                                 "logprobs": True, "top_logprobs": 20}
        paused = open_stream(server, **asked)
        paused.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        generated = "helios_generated_tokens_total"
        wait_until(lambda: server.metric(generated) >= LONG, "the engine went on")
        assert server.post(max_tokens=50).status_code == 200
        assert server.metric("helios_permits_used") == 1  # the reader still holds its own
        text = read_all(paused).decode()
        server.idle()
    chunks = [json.loads(line.strip()[6:]) for line in text.split("\n")
              if line.startswith("data: {")]
    entries = [e["bytes"] for c in chunks if c["choices"] and c["choices"][0]["logprobs"]
               for e in c["choices"][0]["logprobs"]["content"]]
    content = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert len(entries) == LONG
    assert b"".join(map(bytes, entries)).decode("utf-8", "replace") == content
    assert "data: [DONE]" in text


def test_engine_killed(core: Path) -> None:
    with serving(core, "workers=2") as server:
        stream = open_stream(server, max_tokens=LONG, ignore_eos=True)
        first_chunk(stream)
        os.kill(server.children()[0], signal.SIGKILL)
        text = read_all(stream).decode()
        assert '"code":"engine_failed"' in text and "[DONE]" not in text
        wait_until(lambda: all(server.get("/health").status_code == 503 for _ in range(8)),
                   "both workers noticed")
        assert "SIGKILL" in server.get("/health").json()["error"]["message"]
        assert server.metric("helios_engine_ready") == 0
        wait_until(lambda: "requests are answered 503" in server.output, server.output)
        assert server.post().status_code == 503
        assert server.get("/metrics").status_code == 200
        assert server.metric("helios_permits_used") == 0
        assert server.stop() == 0


def test_engine_failure_at_start_ends_the_server_with_the_cause(core: Path) -> None:
    server = Server(server_harness.fake_command(core), {"FAKE_FAIL": "no such pages"})
    assert server.process.wait(server_harness.PATIENCE_S) == 2
    wait_until(lambda: "error: no such pages" in server.output, server.output)
    assert "requests are answered 503" not in server.output  # nothing ever was: it is said once


def test_assets_that_cannot_be_loaded_end_the_server_with_the_cause(core: Path) -> None:
    server = Server(server_harness.fake_command(core), {"FAKE_ASSETS_FAIL": "no such template"})
    assert server.process.wait(server_harness.PATIENCE_S) == 2
    wait_until(lambda: "ValueError: no such template" in server.output.split("error: ")[-1],
               server.output)


def test_engine_killed_at_start_ends_the_server(core: Path) -> None:
    with serving(core, env={"FAKE_START_S": "60"}, ready=False) as server:
        os.kill(server.children()[0], signal.SIGKILL)
        assert server.process.wait(server_harness.PATIENCE_S) == 2
        wait_until(lambda: "SIGKILL" in server.output, server.output)


def test_a_signal_may_interrupt_the_wait_anywhere() -> None:
    """Its handler sets what is waited for: a lock there would be taken twice by one thread, and
    the server would never end. Tracing stands for signals: one before each line of the wait."""
    wake, turns = Wake(), []

    def interrupt(*_: Any) -> Any:
        wake.set()
        return interrupt

    def turn() -> None:
        sys.settrace(interrupt)
        wake.wait()
        wake.clear()
        wake.wait()
        turns.append(1)

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    thread.join(10)
    assert turns == [1]


TGKILL = 234  # of x86_64; libc has no name for it


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of a system call")
def test_a_signal_ends_the_server_whichever_thread_takes_it(core: Path) -> None:
    """The main thread waits without a timeout, and handlers run there only."""
    with serving(core) as server:
        pid = server.process.pid
        other = next(int(t) for t in os.listdir(f"/proc/{pid}/task") if int(t) != pid)
        assert ctypes.CDLL(None).syscall(TGKILL, pid, other, signal.SIGTERM) == 0
        assert server.process.wait(server_harness.PATIENCE_S) == 0


def test_a_signal_of_a_stopped_server_ends_it(core: Path) -> None:
    with serving(core) as server:
        server.process.send_signal(signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        assert server.process.wait(server_harness.PATIENCE_S) == 0


def test_starting_is_503(core: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.touch()
    with serving(core, env={"FAKE_STARTS_WHILE": str(starts)}, ready=False) as server:
        answer = server.post()
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "starting"
        assert server.get("/health").json()["status"] == "starting"
        starts.unlink()
        server.ready()
        assert server.post(max_tokens=2).status_code == 200


def test_killed_worker_returns_its_permits_and_cancels(core: Path) -> None:
    with serving(core, "max_active=2", "queue_capacity=2") as server:
        stream = open_stream(server, max_tokens=LONG, ignore_eos=True)
        first_chunk(stream)
        worker = server.children()[1]
        os.kill(worker, signal.SIGKILL)

        def replaced() -> bool:
            try:
                return server.get("/ready").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(replaced, "another worker")
        server.idle()
        assert not alive(worker)
        assert server.post(max_tokens=3, ignore_eos=True).json()["usage"]["completion_tokens"] == 3


def test_taken_port_is_refused(core: Path, server: Server) -> None:
    result = subprocess.run(
        [sys.executable, *server_harness.fake_command(core, server.port)],
        capture_output=True, text=True, timeout=server_harness.PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(server_harness.HERE.parent)})
    assert result.returncode == 2
    assert str(server.port) in result.stderr and "in use" in result.stderr
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("keyboard", [False, True])
def test_a_signal_drains_and_leaves_nothing(core: Path, keyboard: bool) -> None:
    with serving(core, "workers=2", env={"FAKE_TICK_MS": "2"}) as server:
        children = server.children()
        assert len(children) == 3
        stream = open_stream(server, max_tokens=300, ignore_eos=True)
        first_chunk(stream)
        if keyboard:
            os.killpg(server.pid, signal.SIGINT)
        else:
            server.process.send_signal(signal.SIGTERM)
        text = read_all(stream).decode()
        assert "data: [DONE]" in text and '"finish_reason":"length"' in text
        assert server.process.wait(server_harness.PATIENCE_S) == 0
        assert not any(alive(pid) for pid in children)
    reserve_port("127.0.0.1", server.port).close()  # it is free again


def test_a_second_signal_does_not_wait(core: Path) -> None:
    with serving(core, env={"FAKE_TICK_MS": "50"}) as server:
        children = server.children()
        first_chunk(open_stream(server, max_tokens=LONG, ignore_eos=True))
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: refuses(server.port), "no new connections")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(server_harness.PATIENCE_S) == 0
        assert not any(alive(pid) for pid in children)


def test_drain_ends_after_its_time(core: Path) -> None:
    with serving(core, "drain_seconds=0", env={"FAKE_TICK_MS": "50"}) as server:
        children = server.children()
        stream = open_stream(server, max_tokens=LONG, ignore_eos=True)
        first_chunk(stream)
        assert server.stop() == 0
        assert "[DONE]" not in read_all(stream).decode()
        assert not any(alive(pid) for pid in children)


def test_killed_parent_ends_everything(core: Path) -> None:
    with serving(core, "workers=2") as server:
        children = server.children()
        assert len(children) == 3 and all(alive(pid) for pid in children)
        server.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in children), "children ended")


def test_options_are_checked(core: Path) -> None:
    from helios_dod.runtime.options import EngineOptions
    from helios_dod.server.options import ServeOptions

    def options(**fields: Any) -> ServeOptions:
        return ServeOptions(core=core, load_assets=lambda path: None,  # type: ignore[arg-type]
                            run_engine=lambda: None, **{"engine": EngineOptions(), **fields})

    assert options().permits == 256 and options().max_active == 64
    for fields, name in (({"workers": 5}, "--workers"), ({"port": 70000}, "--port"),
                         ({"limits_name": "VAST"}, "--limits"),
                         ({"queue_capacity": 1000}, "--queue-capacity"),
                         ({"engine": EngineOptions(max_active=65)}, "--max-active")):
        with pytest.raises(ValueError, match=name):
            options(**fields)

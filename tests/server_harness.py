"""Starts servers on loopback: the real one, or the real one over the engine's test double."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from helios_dod.server.processes import die_with_parent

HERE = Path(__file__).parent
PATIENCE_S = 120
START_S = 400  # cold caches compile first
# What the tests of faults are run over: the engine's test double, or `helios serve` on the demo
# core, on its own device or the simulated one.
SERVED = os.environ.get("HELIOS_TEST_SERVER", "double")


def wait_until(condition: Callable[[], Any], what: str, patience: float = PATIENCE_S) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"timed out: {what}")


class Server:
    """One server process and its output."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.lines: list[str] = []
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "PYTHONPATH": path, **env}, start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()))
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        """What was printed so far."""
        return "\n".join(self.lines)

    def listening(self) -> "Server":
        """Waits for the line that names the port."""
        def found() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output
            return re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.output)

        self.port = int(wait_until(found, "listening", START_S)[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def ready(self) -> "Server":
        """Waits until requests are served."""
        wait_until(lambda: self.get("/ready").status_code == 200, "ready", START_S)
        return self

    def get(self, path: str) -> httpx.Response:
        """One GET."""
        return httpx.get(self.url + path, timeout=PATIENCE_S)

    def post(self, **fields: Any) -> httpx.Response:
        """One chat completion request; model and messages have defaults."""
        return httpx.post(self.url + "/v1/chat/completions", timeout=PATIENCE_S,
                          content=json.dumps(body(**fields)))

    def metric(self, name: str) -> float:
        """A sample of /metrics."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def children(self) -> list[int]:
        """Process ids of engine and workers, the engine first."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def idle(self) -> None:
        """Waits until every permit is free."""
        wait_until(lambda: self.metric("helios_permits_used") == 0, "permits free")

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status


def body(**fields: Any) -> dict[str, Any]:
    """A request body with defaults."""
    return {"model": "default", "messages": [{"role": "user", "content": "Hello"}], **fields}


def fake_command(core: Path, port: int = 0, *settings: str) -> list[str]:
    """The server over the engine's test double. core: a `tokenizers` JSON file."""
    return [str(HERE / "serve_fake.py"), str(core), str(port), *settings]


@contextmanager
def running(command: list[str], env: dict[str, str] | None = None,
            ready: bool = True) -> Iterator[Server]:
    """A server, ended at the end however the test went."""
    server = Server(command, env or {})
    try:
        server.listening()
        yield server.ready() if ready else server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(PATIENCE_S)


@contextmanager
def serving(core: Path, *settings: str, port: int = 0, env: dict[str, str] | None = None,
            ready: bool = True) -> Iterator[Server]:
    """A server over the engine's test double."""
    with running(fake_command(core, port, *settings), env, ready) as server:
        yield server


@contextmanager
def serving_any(core: Path, workers: int) -> Iterator[Server]:
    """What SERVED names. core: of the double."""
    if SERVED == "double":
        with serving(core, f"workers={workers}") as server:
            yield server
        return
    words = ["-m", "helios_dod", "serve", "--port", "0", "--workers", str(workers),
             "--context", "5000", "--cache-memory", "1G"]
    simulated = ["--executor", "simulated", "--pace", "real", "--step-ms", "2"]
    with running([*words, *({"host": [], "simulated": simulated}[SERVED])]) as server:
        yield server


def open_stream(server: Server, **fields: Any) -> socket.socket:
    """A raw connection that has sent a streaming request and read nothing."""
    content = json.dumps(body(stream=True, **fields)).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # the kernel reads little
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
    return connection


def alive(pid: int) -> bool:
    """True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

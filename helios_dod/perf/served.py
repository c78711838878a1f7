"""A `helios serve` process of its own, for measurements of it."""

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from helios_dod.errors import UserError

TICKS = os.sysconf("SC_CLK_TCK")
START_S = 600  # a cold code cache compiles first
ENDED = "\0"  # no line of a server


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


class Served:
    """A server process; its port, engine and workers. core: None: the demo's. Raises UserError
    with its output where it does not start."""

    def __init__(self, core: str | Path | None, words: list[str],
                 python: str = sys.executable) -> None:
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []  # seconds since then, and what was printed
        self.told = threading.Condition()
        self.process = subprocess.Popen(
            [python, "-m", "helios_dod", "serve", *([str(core)] if core else []), *words,
             "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        try:
            self.listening_s, line = self.line("listening on ")
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            assert found, line
            self.port = int(found[1])
            self.ready_s, _ = self.line("ready")
        except BaseException:  # an interrupt too: nobody else knows of the server yet
            self.process.kill()
            raise
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.engine, *self.workers = map(int, path.read_text().split())

    def read(self) -> None:
        """Keeps the server's output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.told:
                self.lines.append((time.monotonic() - self.began, line.rstrip()))
                self.told.notify_all()
        with self.told:
            self.lines.append((time.monotonic() - self.began, ENDED))
            self.told.notify_all()

    def line(self, start: str) -> tuple[float, str]:
        """The first line that begins so, and when it came."""
        def found() -> tuple[float, str] | None:
            return next((one for one in self.lines if one[1].startswith((start, ENDED))), None)

        with self.told:
            self.told.wait_for(found, START_S)
            one = found()
        if one is None or one[1] == ENDED:
            raise UserError("the server did not start: "
                            + "; ".join(text for _, text in self.lines[-5:] if text != ENDED))
        return one

    def metrics(self) -> dict[str, float]:
        """Samples without labels."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            text = b""
            while part := connection.recv(65536):
                text += part
        found = re.findall(r"^(\w+) ([0-9.e+]+)$", text.decode(), re.M)
        return {name: float(value) for name, value in found}

    def open(self, **fields: object) -> socket.socket:
        """A stream that has been asked for."""
        body = json.dumps({"model": "default", "stream": True, "ignore_eos": True,
                           "messages": [{"role": "user", "content": "Count."}], **fields}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        return connection

    def stop(self) -> None:
        """Ends it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def drain(streams: list[socket.socket], seconds: float) -> tuple[int, int]:
    """Reads everything for some time: bytes and chunks."""
    selector = selectors.DefaultSelector()
    for stream in streams:
        stream.setblocking(False)
        selector.register(stream, selectors.EVENT_READ)
    count = chunks = 0
    end = time.monotonic() + seconds
    buffer = bytearray(1 << 18)
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            source = key.fileobj
            assert isinstance(source, socket.socket)
            size = source.recv_into(buffer)
            count += size
            chunks += buffer.count(b"data: ", 0, size)
    selector.close()
    return count, chunks

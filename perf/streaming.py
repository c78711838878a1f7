"""What a streamed token costs the HTTP workers: their CPU time over the tokens that they sent.

    python perf/streaming.py [CORE] --streams 256 --step-ms 20 --seconds 20

Serves a core (default: the demo core) on the simulated executor at real pace, opens the streams,
and reads them all in one loop. The figure is user and system time of the workers (from /proc) over
tokens, between the first token of the last stream and the end of the measured time."""

import argparse
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

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


class Served:
    """A server process; its port, engine and workers. core: None: the demo's."""

    def __init__(self, core: str | None, words: list[str], python: str = sys.executable) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [python, "-m", "helios_dod", "serve", *([core] if core else []), *words, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        while not any(line.startswith("ready") for line in self.lines):
            if self.process.poll() is not None:
                raise SystemExit("\n".join(self.lines))
            time.sleep(0.05)
        text = "\n".join(self.lines)
        self.port = int(re.search(r"listening on http://127\.0\.0\.1:(\d+)", text)[1])
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.engine, *self.workers = map(int, path.read_text().split())

    def read(self) -> None:
        """Keeps the server's output."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

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
            size = key.fileobj.recv_into(buffer)
            count += size
            chunks += buffer.count(b"data: ", 0, size)
    selector.close()
    return count, chunks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", nargs="?")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--observed", action="store_true", help="ask for token ids and times")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    server = Served(args.core, [
        "--executor", "simulated", "--step-ms", str(args.step_ms), "--workers", str(args.workers),
        "--max-active", str(args.streams), "--context", "4096", "--cache-memory", "2G"])
    fields: dict[str, object] = {"max_tokens": 3900}
    if args.observed:
        fields |= {"return_token_ids": True, "return_token_timestamps": True}
    try:
        streams = [server.open(**fields) for _ in range(args.streams)]
        drain(streams, 3 + args.streams / 100)
        before, first = server.metrics(), [cpu_seconds(pid) for pid in server.workers]
        engine = cpu_seconds(server.engine)
        count, chunks = drain(streams, args.seconds)
        last, after = [cpu_seconds(pid) for pid in server.workers], server.metrics()
        engine_after = cpu_seconds(server.engine)
        tokens = after["helios_generated_tokens_total"] - before["helios_generated_tokens_total"]
        user = sum(b[0] - a[0] for a, b in zip(first, last, strict=True))
        system = sum(b[1] - a[1] for a, b in zip(first, last, strict=True))
        print(json.dumps({
            "streams": args.streams, "workers": args.workers, "observed": args.observed,
            "tokens": int(tokens), "tokens_per_second": round(tokens / args.seconds),
            "chunks": chunks, "bytes_per_chunk": round(count / max(chunks, 1)),
            "user_us_per_token": round(user / tokens * 1e6, 2),
            "system_us_per_token": round(system / tokens * 1e6, 2),
            "us_per_token": round((user + system) / tokens * 1e6, 2),
            "engine_us_per_token": round(
                (sum(engine_after) - sum(engine)) / tokens * 1e6, 2)}))
    finally:
        server.stop()


if __name__ == "__main__":
    main()

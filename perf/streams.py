"""Hundreds of active streams beside thousands of idle connections, without loss.

    python perf/streams.py [CORE] --active 512 --waiting 2000 --idle 2000 --tokens 60 --rounds 3

Serves a core (default: the demo core) on the simulated executor at real pace. Opens `idle`
connections that have been served once and are kept alive, then `active` streams, and behind them
`waiting` streams that are admitted and wait for a slot. All are read in one loop.
Every stream must say, to the byte, what a JSON answer with its seed says, and end with [DONE].
Reported: what was lost (the command fails if anything was), tokens a second while all active ones
run against what the pace allows, and private memory, descriptors, permits and pages before,
during and after."""

import argparse
import json
import resource
import selectors
import socket
import sys
import time

from overload import descriptors, resident

from helios_dod.perf.served import Served

SEEDS = 8
PREFIX = b'"content":"'


class Reader:
    """One stream: its bytes, until its end."""

    def __init__(self, connection: socket.socket, seed: int) -> None:
        self.connection, self.seed = connection, seed
        self.data = bytearray()
        self.ended = False

    def read(self) -> None:
        """Takes what is there."""
        part = self.connection.recv(1 << 18)
        self.data += part
        if not part or self.data.endswith(b"0\r\n\r\n"):
            self.ended = True

    def text(self) -> str:
        """The content of all chunks, or what came instead of an answer."""
        if b"data: [DONE]" not in self.data:
            return f"without end: {bytes(self.data[-300:])!r}"
        lines = self.data.split(b"data: {")[1:]
        chunks = [json.loads(b"{" + line[: line.rindex(b"}") + 1]) for line in lines]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def whole(connection: socket.socket) -> str:
    """The text of a JSON answer that has been asked for."""
    with connection:
        data = b""
        while not data.endswith(b"}"):
            part = connection.recv(1 << 18)
            assert part, data
            data += part
    return json.loads(data[data.index(b"\r\n\r\n"):])["choices"][0]["message"]["content"]


def idle_connection(server: Served) -> socket.socket:
    """One that was served and stays."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    return connection


def level(server: Served) -> dict[str, object]:
    """What the server holds."""
    seen = server.metrics()
    processes = {"engine": server.engine, "worker": server.workers[0]}
    return {"permits": int(seen["helios_permits_used"]), "pages": int(seen["helios_pages_used"]),
            "private_mb": {name: round(resident(pid) / 1e6, 1) for name, pid in processes.items()},
            "descriptors": {name: descriptors(pid) for name, pid in processes.items()}}


def read_all(server: Served, readers: list[Reader], active: int) -> tuple[dict, float]:
    """Reads every stream to its end: what the server held with all open, and the tokens a second
    between two looks while nothing but the active ones could run."""
    selector = selectors.DefaultSelector()
    for reader in readers:
        reader.connection.setblocking(False)
        selector.register(reader.connection, selectors.EVENT_READ, reader)
    left, looks, during = len(readers), [], {}
    next_look = time.monotonic()
    while left:
        for key, _ in selector.select(1):
            key.data.read()
            if key.data.ended:
                selector.unregister(key.fileobj)
                left -= 1
        now = time.monotonic()
        if now >= next_look:
            next_look = now + 1
            seen = server.metrics()
            if seen["helios_slots_used"] == active:
                looks.append((now, seen["helios_generated_tokens_total"]))
                during = during or level(server)
    selector.close()
    (first, before), (last, after) = looks[0], looks[-1]
    return during, (after - before) / max(last - first, 1e-9)


def serve_round(server: Served, args: argparse.Namespace, expected: list[str]) -> dict[str, object]:
    """Opens everything, reads it to its end and closes it; what was seen."""
    idle = [idle_connection(server) for _ in range(args.idle)]
    seeds = [i % SEEDS for i in range(args.active + args.waiting)]
    readers = [Reader(server.open(**asked(args), seed=seed), seed) for seed in seeds]
    during, rate = read_all(server, readers, args.active)
    lost = [reader.text() for reader in readers if reader.text() != expected[reader.seed]]
    for connection in [*idle, *(reader.connection for reader in readers)]:
        connection.close()
    for text in lost[:3]:
        print(text[:500], file=sys.stderr)
    time.sleep(3)
    return {"streams_that_differ": len(lost), "bytes": sum(len(reader.data) for reader in readers),
            "tokens_per_second": round(rate), "during": during, "after": level(server)}


def asked(args: argparse.Namespace) -> dict[str, object]:
    """What every request says, but for its seed."""
    return {"max_tokens": args.tokens, "temperature": 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", nargs="?")
    parser.add_argument("--active", type=int, default=512)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Served(args.core, [
        "--executor", "simulated", "--step-ms", str(args.step_ms), "--max-active", str(args.active),
        "--queue-capacity", str(args.waiting + 1), "--context", "1024", "--cache-memory", "6G"])
    try:
        asking = [server.open(**asked(args), seed=seed, stream=False) for seed in range(SEEDS)]
        expected = [whole(connection) for connection in asking]
        before = level(server)
        rounds = [serve_round(server, args, expected) for _ in range(args.rounds)]
        print(json.dumps({
            "active": args.active, "waiting": args.waiting, "idle": args.idle,
            "tokens": args.tokens * (args.active + args.waiting),
            "pace_allows": round(args.active / args.step_ms * 1e3),
            "before": before, "rounds": rounds}, indent=1))
        return int(any(seen["streams_that_differ"] for seen in rounds))
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())

"""Ten times the load that the server can take, on the simulated executor at real pace.

    python perf/overload.py [CORE] --seconds 60 --factor 10

The engine is pinned to one core, workers and clients to the others. First requests are offered at
0.8 of the rate that the server can finish, then at `factor` times it. Reported:
answers by status, the most permits that were ever taken, what unloaded and loaded gaps between
accepted tokens are (the engine's own stamps), how late a token is read by its client after its
stamp, and memory and descriptors before and after."""

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

from helios_dod.perf.served import Served

TOKENS = 60
SHARE = 0.8  # of what the server can finish, without pressure


def resident(pid: int) -> int:
    """Private resident bytes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


def descriptors(pid: int) -> int:
    """Open descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))


class Load:
    """Requests, and what became of them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.statuses: Counter[str] = Counter()
        self.gaps: list[float] = []  # milliseconds between stamps of one answer
        self.late: list[float] = []  # from stamp to reading, less the smallest seen
        self.retry: list[int] = []
        body = json.dumps({"model": "default", "stream": True, "ignore_eos": True,
                           "max_tokens": TOKENS, "return_token_ids": True,
                           "return_token_timestamps": True,
                           "messages": [{"role": "user", "content": "Count."}]}).encode()
        self.data = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                     b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                     + body)

    async def ask(self) -> None:
        """One request on a connection of its own."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        except OSError as error:
            self.statuses[type(error).__name__] += 1
            return
        try:
            writer.write(self.data)
            status = (await reader.readline()).split()[1].decode()
            if status != "200":
                self.statuses[status] += 1
                while line := (await reader.readline()).strip():
                    if line.lower().startswith(b"retry-after:"):
                        self.retry.append(int(line.split()[1]))
                return
            ended = await self.read(reader)
            self.statuses["200" if ended else "200 without end"] += 1
        except (OSError, IndexError, ValueError) as error:
            self.statuses[type(error).__name__] += 1
        finally:
            writer.close()

    async def read(self, reader: asyncio.StreamReader) -> bool:
        """A stream to its end."""
        last = None
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                return True
            at = line.find(b'"token_timestamps_ns":[')
            if at < 0:
                continue
            stamp = int(line[at + 23: line.index(b"]", at)])
            self.late.append((time.monotonic_ns() - stamp) / 1e6)
            if last is not None:
                self.gaps.append((stamp - last) / 1e6)
            last = stamp
        return False

    def summary(self) -> dict[str, object]:
        """Figures; lateness is relative to the promptest token."""
        gaps, late = np.array(self.gaps), np.array(self.late) - min(self.late)
        return {"answers": dict(self.statuses), "tokens": len(late),
                "gap_ms": {f"p{q}": round(float(np.percentile(gaps, q)), 2) for q in (50, 95, 99)},
                "read_late_ms": {f"p{q}": round(float(np.percentile(late, q)), 2)
                                 for q in (50, 95, 99)},
                "retry_after_s": dict(Counter(self.retry))}


async def offer(load: Load, rate: float, seconds: float, server: Served) -> int:
    """Requests at a rate; the most permits that were seen taken."""
    tasks, most = set(), 0
    began = time.monotonic()
    sent = 0
    next_look = 0.0
    while (now := time.monotonic() - began) < seconds:
        while sent < now * rate:
            sent += 1
            task = asyncio.create_task(load.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if now >= next_look:
            next_look = now + 1
            seen = await asyncio.to_thread(server.metrics)
            most = max(most, int(seen["helios_permits_used"]))
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", nargs="?")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--factor", type=float, default=10)
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--queue", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=20)
    args = parser.parse_args()
    server = Served(args.core, [
        "--executor", "simulated", "--step-ms", str(args.step_ms), "--max-active", str(args.active),
        "--queue-capacity", str(args.queue), "--context", "1024", "--cache-memory", "400M"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(server.engine, {cores[0]})
    for pid in (*server.workers, 0):
        os.sched_setaffinity(pid, set(cores[1:]) or {cores[0]})
    try:
        capacity = args.active / (TOKENS * args.step_ms / 1e3)
        asyncio.run(offer(Load(server.port), SHARE * capacity, 3, server))
        plain, loaded = Load(server.port), Load(server.port)
        asyncio.run(offer(plain, SHARE * capacity, args.seconds / 2, server))
        processes = {"engine": server.engine, "worker": server.workers[0]}
        before = {name: (resident(pid), descriptors(pid)) for name, pid in processes.items()}
        rate = args.factor * capacity
        most = asyncio.run(offer(loaded, rate, args.seconds, server))
        time.sleep(3)
        after = {name: (resident(pid), descriptors(pid)) for name, pid in processes.items()}
        first, second = plain.summary(), loaded.summary()
        print(json.dumps({
            "offered_per_second": round(rate), "permits": args.active + args.queue,
            "most_permits_used": most, "unloaded": first, "loaded": second,
            "gap_ratio": {q: round(second["gap_ms"][q] / first["gap_ms"][q], 3)
                          for q in ("p50", "p95", "p99")},
            "read_late_ratio": {q: round(second["read_late_ms"][q] / first["read_late_ms"][q], 3)
                                for q in ("p50", "p95", "p99")},
            "private_bytes_and_descriptors": {"before": before, "after": after}}, indent=1))
    finally:
        server.stop()


if __name__ == "__main__":
    main()

"""`python -m helios_dod.perf streaming`: what a streamed token costs the HTTP workers.

Serves a core on the simulated executor at real pace, opens the streams, and reads them all in one
loop. The figure is user and system time of the workers (from /proc) over tokens, while all stream.
"""

import argparse
import json
from pathlib import Path
from socket import socket
from typing import Any

from helios_dod.arguments import amount, positive
from helios_dod.errors import UserError
from helios_dod.perf.machine import conditions, middle
from helios_dod.perf.served import Served, cpu_seconds, drain

PROMPT_TOKENS = 196  # at most, with the chat template's
WARM_UP = 1  # stretches of all streams that are read before those that count
TOKENS = "helios_generated_tokens_total"
PER_TOKEN = ("user_us_per_token", "system_us_per_token", "us_per_token", "engine_us_per_token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `streaming`."""
    add = parser.add_argument
    add("core", nargs="?", type=Path, help="a prepared core (default: the demo's)")
    add("--streams", type=positive, default=256, help="(default %(default)s)")
    add("--step-ms", type=amount, default=20.0, help="between tokens (default %(default)s)")
    add("--seconds", type=amount, default=6.0, help="of a repeat (default %(default)s)")
    add("--repeats", type=positive, default=3, help="that count (default %(default)s)")
    add("--output-tokens", type=positive, default=3900,
        help="of an answer, more than are measured (default %(default)s)")
    add("--observed", action="store_true", help="ask for token ids and times")
    add("--workers", type=positive, default=1, help="frontend processes (default %(default)s)")
    add("--json", action="store_true", help="one JSON object on standard output")


def spent(pids: list[int]) -> tuple[float, float]:
    """User and system time of processes."""
    times = [cpu_seconds(pid) for pid in pids]
    return sum(user for user, _ in times), sum(system for _, system in times)


def window(server: Served, streams: list[socket], seconds: float) -> dict[str, float]:
    """One repeat: what all streams together brought, and what of it a token cost."""
    before, workers, engine = server.metrics(), spent(server.workers), spent([server.engine])
    count, chunks = drain(streams, seconds)
    user, system = (late - soon for soon, late in zip(
        workers, spent(server.workers), strict=True))
    engine_s = sum(spent([server.engine])) - sum(engine)
    tokens = server.metrics()[TOKENS] - before[TOKENS]
    times = (user, system, user + system, engine_s)
    return {"bytes": count, "chunks": chunks, "tokens": tokens, **{
        name: own / max(tokens, 1) * 1e6 for name, own in zip(PER_TOKEN, times, strict=True)}}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians and extremes of the repeats, one behind the other. Raises UserError."""
    if not options.seconds:
        raise UserError("--seconds: expected more than 0, got 0")
    server = Served(options.core, [
        "--executor", "simulated", "--step-ms", str(options.step_ms),
        "--workers", str(options.workers), "--max-active", str(options.streams),
        "--context", str(PROMPT_TOKENS + options.output_tokens), "--cache-memory", "2G"])
    fields: dict[str, object] = {"max_tokens": options.output_tokens}
    if options.observed:
        fields |= {"return_token_ids": True, "return_token_timestamps": True}
    try:
        streams = [server.open(**fields) for _ in range(options.streams)]
        drain(streams, 3 + options.streams / 100)
        windows = [window(server, streams, options.seconds) for _ in range(options.repeats)]
    finally:
        server.stop()
    spreads = {name: middle([one[name] for one in windows], 2) for name in PER_TOKEN}
    tokens, count, chunks = (int(sum(one[name] for one in windows))
                             for name in ("tokens", "bytes", "chunks"))
    return {
        **conditions(None, WARM_UP, options.repeats),
        "streams": options.streams, "workers": options.workers, "observed": options.observed,
        "tokens": tokens, "tokens_per_second": round(tokens / options.seconds / options.repeats),
        "chunks": chunks, "bytes_per_chunk": round(count / max(chunks, 1)),
        **{name: part["median"] for name, part in spreads.items()}, "spread": spreads}


def run(options: argparse.Namespace) -> int:
    """Prints the cost of a token."""
    result = measure(options)
    if options.json:
        print(json.dumps(result))
    else:
        part = result["spread"]["us_per_token"]
        print(f"{result['us_per_token']} us of the workers a token ({part['lowest']} to "
              f"{part['highest']} in {options.repeats} repeats; {result['user_us_per_token']} "
              f"user, {result['system_us_per_token']} system), {result['engine_us_per_token']} us "
              f"of the engine; {result['tokens_per_second']} tokens/s over {result['streams']} "
              "streams")
    return 0

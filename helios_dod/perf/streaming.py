"""`python -m helios_dod.perf streaming`: what a streamed token costs the HTTP workers.

Serves a core on the simulated executor at real pace, opens the streams, and reads them all in one
loop. The figure is user and system time of the workers (from /proc) over tokens, while all stream.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from helios_dod.arguments import amount, positive
from helios_dod.errors import UserError
from helios_dod.perf.machine import machine
from helios_dod.perf.served import Served, cpu_seconds, drain

PROMPT_TOKENS = 196  # at most, with the chat template's


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `streaming`."""
    add = parser.add_argument
    add("core", nargs="?", type=Path, help="a prepared core (default: the demo's)")
    add("--streams", type=positive, default=256, help="(default %(default)s)")
    add("--step-ms", type=amount, default=20.0, help="between tokens (default %(default)s)")
    add("--seconds", type=amount, default=20.0, help="that count (default %(default)s)")
    add("--output-tokens", type=positive, default=3900,
        help="of an answer, more than are measured (default %(default)s)")
    add("--observed", action="store_true", help="ask for token ids and times")
    add("--workers", type=positive, default=1, help="frontend processes (default %(default)s)")
    add("--json", action="store_true", help="one JSON object on standard output")


def spent(pids: list[int]) -> tuple[float, float]:
    """User and system time of processes."""
    times = [cpu_seconds(pid) for pid in pids]
    return sum(user for user, _ in times), sum(system for _, system in times)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One run. Raises UserError."""
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
        before, workers, engine = server.metrics(), spent(server.workers), spent([server.engine])
        count, chunks = drain(streams, options.seconds)
        user, system = (late - soon for soon, late in zip(
            workers, spent(server.workers), strict=True))
        engine_s = sum(spent([server.engine])) - sum(engine)
        name = "helios_generated_tokens_total"
        tokens = int(server.metrics()[name] - before[name])
    finally:
        server.stop()

    def us(seconds: float) -> float:
        return round(seconds / max(tokens, 1) * 1e6, 2)

    return {
        "streams": options.streams, "workers": options.workers, "observed": options.observed,
        "tokens": tokens, "tokens_per_second": round(tokens / options.seconds), "chunks": chunks,
        "bytes_per_chunk": round(count / max(chunks, 1)), "user_us_per_token": us(user),
        "system_us_per_token": us(system), "us_per_token": us(user + system),
        "engine_us_per_token": us(engine_s)}


def run(options: argparse.Namespace) -> int:
    """Prints the cost of a token."""
    result = measure(options)
    if options.json:
        print(json.dumps({"machine": machine(), **result}))
    else:
        print(f"{result['us_per_token']} us of the workers a token ({result['user_us_per_token']} "
              f"user, {result['system_us_per_token']} system), {result['engine_us_per_token']} us "
              f"of the engine; {result['tokens_per_second']} tokens/s over {result['streams']} "
              "streams")
    return 0

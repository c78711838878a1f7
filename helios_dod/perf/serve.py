"""`python -m helios_dod.perf serve`: load on any OpenAI-compatible server, as its users see it."""

import argparse
import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.arguments import amount, positive, seed, whole_number
from helios_dod.errors import UserError
from helios_dod.perf.client import Answer, Target, ask, model_of
from helios_dod.perf.compare import figures
from helios_dod.perf.conversations import TOKEN_LETTERS, Turn, drawn_turns, read_turns, words
from helios_dod.perf.machine import conditions, middle
from helios_dod.perf.simulate import spread
from helios_dod.progress import Progress
from helios_dod.simulation.traces import ALONE, SHAPES, Trace, drawn_trace, make_trace, read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `serve`."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    add("--model", default="", help="the model's id (default: the first that the server names)")
    add("--key", default="", help="an API key")
    add("--concurrency", type=whole_number, default=0,
        help="closed loop: so many requests at a time (default: open loop, by --rate or --trace)")
    add("--rate", type=amount, default=1.0, help="requests a second (default %(default)s)")
    add("--burstiness", type=amount, default=1.0,
        help="coefficient of variation of the gaps between arrivals (default: Poisson, 1)")
    add("--requests", type=positive, default=100, help="(default %(default)s)")
    add("--prompt-tokens", type=positive, default=128,
        help="about; the server's own count is reported")
    add("--output-tokens", type=positive, default=64, help="(default %(default)s)")
    add("--shared-tokens", type=whole_number, default=0,
        help="with which every prompt begins (default 0)")
    add("--turns", type=positive, default=1,
        help="of a conversation; each is a request with those before it (default %(default)s)")
    add("--conversations", type=Path,
        help="texts of such a file as ShareGPT's dumps are instead: a JSON list")
    add("--shape", choices=SHAPES, help="lengths of that shape instead")
    add("--trace", type=Path, help="arrivals and lengths of a trace instead")
    add("--timeout-s", type=amount, default=600.0,
        help="of one request, to its end (default %(default)s)")
    add("--warm-up", type=whole_number, default=8,
        help="requests before those that count (default 8)")
    add("--repeats", type=positive, default=1, help="of the whole load (default %(default)s)")
    add("--ttft-ms", type=amount, help="goodput: the most that a first token may take")
    add("--between-ms", type=amount, help="goodput: the most that the mean gap may be")
    add("--ignore-eos", action="store_true",
        help="ask for answers of full length, where the server knows the field")
    add("--seed", type=seed, default=1)
    add("--json", action="store_true", help="one JSON object on standard output")


def trace_of(options: argparse.Namespace) -> Trace:
    """The load. Raises UserError."""
    if options.trace is not None:
        return read_trace(options.trace)
    if options.shape is not None:
        return drawn_trace(options.shape, options.requests, options.rate, options.seed,
                           options.burstiness, options.shared_tokens)
    lengths = make_trace(np.zeros(options.requests), np.full(options.requests,
                                                             options.prompt_tokens),
                         np.full(options.requests, options.output_tokens))
    drawn = drawn_trace("code", options.requests, options.rate, options.seed, options.burstiness)
    shared = min(options.shared_tokens, options.prompt_tokens)
    return replace(lengths, arrival_ns=drawn.arrival_ns,
                   prefix=np.full(len(drawn), 0 if shared else ALONE, np.int64),
                   prefix_tokens=np.full(len(drawn), shared, np.int64))


def prompt_of(trace: Trace, index: int, seed: int) -> list[dict[str, str]]:
    """A request's messages."""
    count, shared = int(trace.prompt_tokens[index]), int(trace.prefix_tokens[index])
    text = (words(f"{seed} shared {trace.prefix[index]}", shared)
            + words(f"{seed} own {index}", count - shared))
    return [{"role": "user", "content": " ".join(text)}]


def turns_of(options: argparse.Namespace) -> list[Turn]:
    """Conversations that were asked for; none: prompts of a trace are. Raises UserError."""
    if options.conversations is None and options.turns == 1:
        return []
    others = {"--trace": options.trace, "--shape": options.shape,
              "--shared-tokens": options.shared_tokens or None,
              "--turns": options.turns if options.conversations and options.turns > 1 else None}
    for name, value in others.items():
        if value is not None:
            raise UserError(f"{name}: not together with "
                            f"{'--conversations' if options.conversations else '--turns'}")
    if options.conversations is not None:
        return read_turns(options.conversations, options.requests)
    return drawn_turns(options.requests, options.turns, options.prompt_tokens,
                       options.output_tokens, options.seed)


def trace_of_turns(turns: list[Turn], options: argparse.Namespace) -> Trace:
    """When they come, and about how long they are."""
    drawn = drawn_trace("code", len(turns), options.rate, options.seed, options.burstiness)
    letters = [sum(len(one["content"]) for one in turn.messages) for turn in turns]
    return make_trace(drawn.arrival_ns, np.maximum(np.array(letters) // TOKEN_LETTERS, 1),
                      np.array([turn.output_tokens for turn in turns]))


class Load:
    """One trace against one target. turns: the texts of its requests; none: words are drawn."""

    def __init__(self, target: Target, trace: Trace, concurrency: int, seed: int,
                 extra: dict[str, Any], turns: list[Turn]) -> None:
        self.target, self.trace, self.concurrency = target, trace, concurrency
        self.seed, self.extra, self.turns = seed, extra, turns

    async def one(self, index: int) -> Answer:
        """A request of the trace."""
        messages = self.turns[index].salted(self.seed) if self.turns else prompt_of(
            self.trace, index, self.seed)
        return await ask(self.target, messages, int(self.trace.output_tokens[index]), self.extra)

    async def run(self, progress: Progress) -> tuple[list[Answer], float]:
        """Every answer, and the seconds that all took."""
        began = time.monotonic_ns()
        answers: list[Answer | None] = [None] * len(self.trace)

        async def send(index: int) -> None:
            answers[index] = await self.one(index)
            progress(1)

        if self.concurrency:
            waiting = iter(range(len(self.trace)))

            async def user() -> None:
                for index in waiting:
                    await send(index)

            await asyncio.gather(*(user() for _ in range(self.concurrency)))
        else:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self.trace)):
                    due = began + int(self.trace.arrival_ns[index])
                    await asyncio.sleep(max(due - time.monotonic_ns(), 0) / 1e9)
                    group.create_task(send(index))
        return ([answer for answer in answers if answer is not None],
                (time.monotonic_ns() - began) / 1e9)


def gaps_of(answer: Answer) -> list[int]:
    """Times between chunks."""
    return [late - soon for soon, late in zip(answer.chunk_ns, answer.chunk_ns[1:], strict=False)]


def mean_gap_ns(answer: Answer) -> float:
    """Between tokens, by the server's own count of them where it reports one."""
    return (answer.last_ns - answer.first_ns) / max(answer.output_tokens - 1, 1)


def summary(answers: list[Answer], seconds: float, ttft_ms: float | None,
            between_ms: float | None) -> dict[str, Any]:
    """Figures of one load."""
    good = [a for a in answers if not a.error]
    told = [a for a in good if a.first_ns]
    errors: dict[str, int] = {}
    for answer in answers:
        if answer.error:
            name = f"{answer.status} {answer.error[:120]}"
            errors[name] = errors.get(name, 0) + 1
    met = [a for a in told
           if (ttft_ms is None or a.first_ns - a.sent_ns <= ttft_ms * 1e6)
           and (between_ms is None or mean_gap_ns(a) <= between_ms * 1e6)]
    result = {
        "requests": len(answers), "failed": len(answers) - len(good), "errors": errors,
        "seconds": round(seconds, 3), "requests_per_s": round(len(good) / seconds, 3),
        "prompt_tokens": sum(a.prompt_tokens for a in good),
        "output_tokens": sum(a.output_tokens for a in good),
        "counted_by_chunks": sum(a.by_chunks for a in good),
        "output_tokens_per_s": round(sum(a.output_tokens for a in good) / seconds, 2),
        "ttft_ms": spread(np.array([a.first_ns - a.sent_ns for a in told])),
        "between_tokens_ms": spread(np.array([mean_gap_ns(a) for a in told
                                              if a.output_tokens > 1])),
        "between_chunks_ms": spread(np.array([gap for a in told for gap in gaps_of(a)])),
        "latency_ms": spread(np.array([a.last_ns - a.sent_ns for a in told])),
    }
    if ttft_ms is not None or between_ms is not None:
        result["goodput_per_s"] = round(len(met) / seconds, 3)
        result["met"] = round(len(met) / max(len(answers), 1), 4)
    return result


def over(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and extremes over repeats of each rate, and of each percentile that all have."""
    named = [dict(figures({name: value for name, value in run.items()
                           if name.endswith(("_ms", "_per_s"))})) for run in runs]
    return {name: middle([one[name] for one in named], 3) for name in named[0]
            if all(name in one for one in named)}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Warm-up, then every repetition."""
    target = Target(options.url, options.model, options.key, options.timeout_s)
    if not target.model:
        target = replace(target, model=await model_of(target))
    turns = turns_of(options)
    trace = trace_of_turns(turns, options) if turns else trace_of(options)
    if len(trace) == 0:
        raise UserError("the trace holds no request")
    extra = {"ignore_eos": True} if options.ignore_eos else {}
    load = Load(target, trace, options.concurrency, options.seed, extra, turns)
    await asyncio.gather(*(load.one(index % len(trace)) for index in range(options.warm_up)))
    runs = []
    for repeat in range(options.repeats):
        load.seed = options.seed + repeat  # else a prefix cache answers the repetition
        with Progress(f"load {repeat + 1} of {options.repeats}", len(trace), "requests") as done:
            answers, seconds = await load.run(done)
        runs.append(summary(answers, seconds, options.ttft_ms, options.between_ms))
    span_s = int(trace.arrival_ns[-1]) / 1e9
    offered = None if options.concurrency or span_s == 0 else round((len(trace) - 1) / span_s, 4)
    return {**conditions(options.seed, options.warm_up, options.repeats),
            "url": options.url, "model": target.model, "runs": runs, "over_runs": over(runs),
            "offered": {"requests_per_s": offered, "concurrency": options.concurrency or None}}


def lines(run: dict[str, Any]) -> list[str]:
    """One load, for people."""
    def told(part: dict[str, float]) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in part.items())

    shown = [
        f"{run['requests']} requests in {run['seconds']:g} s, {run['failed']} failed: "
        f"{run['output_tokens_per_s']:g} tokens/s, {run['requests_per_s']:g} requests/s",
        f"time to first token, ms: {told(run['ttft_ms'])}",
        f"between tokens, ms: {told(run['between_tokens_ms'])}",
        f"between chunks, ms: {told(run['between_chunks_ms'])}",
        f"sent to last token, ms: {told(run['latency_ms'])}"]
    if run["counted_by_chunks"]:
        shown.append(f"{run['counted_by_chunks']} answers without usage: a chunk counts as a token")
    if "goodput_per_s" in run:
        shown.append(f"goodput: {run['goodput_per_s']:g} requests/s, {run['met']:.1%} of all")
    return shown + [f"{count} x {error}" for error, count in run["errors"].items()]


def run(options: argparse.Namespace) -> int:
    """0 if every request was answered."""
    result = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(result))
    else:
        print("\n\n".join("\n".join(lines(part)) for part in result["runs"]))
    return int(any(part["failed"] for part in result["runs"]))

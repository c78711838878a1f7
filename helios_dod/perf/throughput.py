"""Offline throughput of a core on the host executor, in this process: decode at several numbers of
streams, and prefill. Greedy, EOS ignored; sampling, stops and event delivery are included."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from helios_dod.edges import Edge, Submission
from helios_dod.engine import Engine
from helios_dod.perf.machine import conditions, middle
from helios_dod.runtime.load import load_host
from helios_dod.runtime.selection import Options
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN

WARM_TOKENS = 8  # of each stream, before the clock starts
WARM_UP = 1  # prompts before anything that counts


@dataclass(frozen=True)
class Load:
    """What is measured: streams of `prompt` tokens that decode `steps` tokens; prompts of
    `prefill` tokens, one at a time."""

    streams: tuple[int, ...] = (1, 8, 32)
    steps: int = 64
    prompt: int = 50
    prefill: int = 400
    repeats: int = 3
    seed: int = 7  # of the prompts


class Driver:
    """An embedded engine and the reader of its events."""

    def __init__(self, engine: Engine, vocabulary: int, seed: int) -> None:
        self.engine, self.vocabulary = engine, vocabulary
        self.edge = Edge(engine.world, 0)
        self.rng = np.random.default_rng(seed)
        self.tag = 0
        self.counts: dict[int, int] = {}  # tag -> generated tokens
        self.live: set[int] = set()

    def submit(self, prompt: int, output: int) -> int:
        """A request of random tokens; its tag."""
        self.tag += 1
        tokens = self.rng.integers(0, self.vocabulary, prompt, dtype=np.int32)
        if not self.edge.submit(Submission(self.tag, tokens, output)):
            raise RuntimeError(f"ingress: no room for request {self.tag}")
        self.counts[self.tag] = 0
        self.live.add(self.tag)
        return self.tag

    def read(self) -> int:
        """Takes the waiting events; tokens among them."""
        tokens = 0
        for event in self.edge.events():
            if event["kind"] == EGRESS_TOKEN:
                self.counts[int(event["tag"])] += 1
                tokens += 1
            elif event["kind"] == EGRESS_FINISHED:
                self.live.discard(int(event["tag"]))
            else:
                raise RuntimeError(f"request {event['tag']} rejected, reason {event['reason']}")
        return tokens

    def run_until(self, done: Callable[[], bool]) -> None:
        """Runs the engine's own loop until done() is true; events are read as they come."""
        def stop() -> bool:
            self.read()
            return done()

        self.engine.run(stop)


def decode(driver: Driver, streams: int, load: Load) -> dict[str, Any]:
    """Tokens per second over all streams, all of them decoding all the time."""
    limit = WARM_TOKENS + load.steps + 8
    tags = [driver.submit(load.prompt, limit) for _ in range(streams)]
    driver.run_until(lambda: min(driver.counts[tag] for tag in tags) >= WARM_TOKENS)
    before, start = sum(driver.counts[tag] for tag in tags), time.perf_counter()
    goal = before + load.steps * streams
    driver.run_until(lambda: sum(driver.counts[tag] for tag in tags) >= goal)
    elapsed = time.perf_counter() - start
    tokens = sum(driver.counts[tag] for tag in tags) - before
    driver.run_until(lambda: not driver.live)
    return {"streams": streams, "tokens_per_second": tokens / elapsed,
            "step_ms": elapsed * 1e3 * streams / tokens}


def prefill(driver: Driver, load: Load) -> dict[str, Any]:
    """Prompt tokens per second of one prompt alone, its first token included."""
    start = time.perf_counter()
    tag = driver.submit(load.prefill, 1)
    driver.run_until(lambda: driver.counts[tag] >= 1)
    elapsed = time.perf_counter() - start
    driver.run_until(lambda: not driver.live)
    return {"tokens": load.prefill, "tokens_per_second": load.prefill / elapsed,
            "milliseconds": elapsed * 1e3}


def spread(results: list[dict[str, Any]], span: str) -> dict[str, Any]:
    """One result of repeats: the rate's median and extremes, and the median of their time."""
    rate = middle([result["tokens_per_second"] for result in results], 1)
    return {**results[0], span: median(result[span] for result in results),
            "tokens_per_second": rate["median"], "lowest": rate["lowest"],
            "highest": rate["highest"]}


def run(core: Path, load: Load, threads: int = 0) -> dict[str, Any]:
    """Medians and spread over the repeats."""
    options = Options(concurrency=max(load.streams))
    plan, engine = load_host(core, options, threads)
    driver = Driver(engine, plan.contract.vocabulary, load.seed)
    try:
        for _ in range(WARM_UP):
            prefill(driver, load)
        rounds = [[decode(driver, streams, load) for streams in load.streams]
                  for _ in range(load.repeats)]
        prefills = [prefill(driver, load) for _ in range(load.repeats)]
    finally:
        engine.executor.close()

    return {**conditions(load.seed, WARM_UP, load.repeats), "core": plan.contract.served_id,
            "decode": [spread(list(turns), "step_ms") for turns in zip(*rounds, strict=True)],
            "prefill": spread(prefills, "milliseconds")}

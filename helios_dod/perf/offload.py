"""Time to the first token of a prompt that is computed, in the cache, in host memory, or on disk.

Two prompts are asked in turn of an engine whose cache holds one of them, so that each ask finds its
pages where the other drove them, and drives the other's out while it restores its own.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from helios_dod.edges import Edge, Submission
from helios_dod.engine import Engine
from helios_dod.perf.machine import conditions, middle
from helios_dod.runtime.load import load_host
from helios_dod.runtime.native_model import plan
from helios_dod.runtime.selection import Options
from helios_dod.terms import TIER_DISK, TIER_MEMORY

SPARE_PAGES = 8  # of the cache beyond one prompt
MEMORY_PAGES = 8  # of host memory, where the disk is measured
WARM_UP = 2  # asks of a prompt in each place before those that count


@dataclass(frozen=True)
class Load:
    """A prompt of `prompt` tokens, asked `repeats` times in each place."""

    prompt: int = 1000
    repeats: int = 7
    seed: int = 9  # of the prompts


class Asker:
    """An embedded engine that is asked one prompt at a time for one token."""

    def __init__(self, engine: Engine, vocabulary: int, load: Load) -> None:
        self.engine, self.edge, self.tag = engine, Edge(engine.world, 0), 0
        rng = np.random.default_rng(load.seed)
        self.prompts = [rng.integers(0, vocabulary, load.prompt, dtype=np.int32)
                        for _ in range(2)]

    def ask(self, which: int, salt: int = 0) -> tuple[float, int]:
        """(milliseconds to the token, restored pages) of a prompt. salt: not shared with others."""
        self.tag += 1
        before = self.restored()
        began = time.perf_counter()
        self.edge.submit(Submission(self.tag, self.prompts[which], 1, salt=salt))
        ended: list[float] = []

        def stop() -> bool:
            if len(self.edge.events()) and not ended:
                ended.append(time.perf_counter())
            return bool(ended) and self.engine.idle()

        self.engine.run(stop)
        return 1e3 * (ended[0] - began), self.restored() - before

    def restored(self) -> int:
        """Pages that came back from any tier."""
        counters = self.engine.world[0]["counters"]
        return int(counters["pages_restored_memory"] + counters["pages_restored_disk"])

    def alternate(self, repeats: int) -> dict[str, Any]:
        """Median over asks in turn, once both prompts were driven out."""
        for which in (0, 1) * WARM_UP:
            self.ask(which)
        asked = [self.ask(i % 2) for i in range(2 * repeats)]
        return {**figures([ms for ms, _ in asked]),
                "pages_restored": int(median(pages for _, pages in asked))}

    def cost(self, tier: int) -> float:
        """Microseconds that the engine has observed for a restored page."""
        tiers = self.engine.world[0]["tiers"]
        count = int(tiers["restored_count"][tier])
        return round(int(tiers["restored_ns"][tier]) / count / 1e3, 1) if count else 0.0


def figures(spent: list[float]) -> dict[str, float]:
    """Milliseconds of asks in one place."""
    found = middle(spent, 2)
    return {"ms": found["median"], "lowest_ms": found["lowest"], "highest_ms": found["highest"]}


def run(core: Path, load: Load, threads: int) -> dict[str, Any]:
    """Each place, on an engine of its own."""
    made = plan(core, Options(concurrency=1))
    page_bytes, page_tokens = made.selection.page_bytes, made.contract.cache.page_tokens
    pages = -(-load.prompt // page_tokens)
    result: dict[str, Any] = {**conditions(load.seed, WARM_UP, load.repeats),
                              "prompt": load.prompt, "pages": pages, "page_bytes": page_bytes}

    def asker(cache: int, **options: Any) -> Asker:
        chosen = Options(concurrency=1, context_tokens=load.prompt + page_tokens,
                         cache_bytes=cache * page_bytes, **options)
        _, engine = load_host(core, chosen, threads, trust_weights=True)
        return Asker(engine, made.contract.input_vocabulary, load)

    one = asker(pages + SPARE_PAGES)
    asks = WARM_UP + load.repeats
    result["computed"] = figures([one.ask(0, salt=1 + i)[0] for i in range(asks)][WARM_UP:])
    result["resident"] = figures([one.ask(0)[0] for _ in range(asks)][WARM_UP:])
    one.engine.executor.close()
    memory = asker(pages + SPARE_PAGES, offload_bytes=3 * pages * page_bytes)
    result["memory"] = memory.alternate(load.repeats)
    result["memory"]["us_a_page"] = memory.cost(TIER_MEMORY)
    memory.engine.executor.close()
    with tempfile.TemporaryDirectory() as folder:
        disk = asker(pages + SPARE_PAGES, offload_bytes=MEMORY_PAGES * page_bytes,
                     disk_bytes=3 * pages * page_bytes, disk_folder=Path(folder))
        result["disk"] = disk.alternate(load.repeats)
        result["disk"]["us_a_page"] = disk.cost(TIER_DISK)
        disk.engine.executor.close()
    return result

"""Host cost of a tick under a mixed load: requests come and go, prompts are chunked, prefixes hit.

A closed loop of requests: prompts of 512 tokens that share 256 with one in eight others, answers of
128, as many running as nearly fill the lanes. Device and clients run between ticks, untimed.
"""

import time
from typing import Any

import numpy as np

from helios_dod.perf.simulate import MIXED_SHARE, mixed_trace
from helios_dod.perf.tick import summary
from helios_dod.schedule import TICK, tick
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.study import Study
from helios_dod.world import digest

WARM_TICKS = 600  # until requests end and begin at every tick


def measure(study: Study, ticks: int, walked: bool) -> np.ndarray:
    """Nanoseconds of each tick: shape [ticks], or [ticks, systems] when walked."""
    steps = [step.run for step in TICK] if walked else [tick]
    spent = np.zeros((ticks, len(steps)), np.int64)
    for row in range(-WARM_TICKS, ticks):
        study.arrive()
        study.engine.begin()
        for column, step in enumerate(steps):
            start = time.perf_counter_ns()
            step(study.world)
            if row >= 0:
                spent[row, column] = time.perf_counter_ns() - start
        launched = study.engine.launch()
        study.read()
        study.advance(launched)
    return spent if walked else spent[:, 0]


def run(lanes: int, ticks: int, seed: int) -> dict[str, Any]:
    """Fused and walked cost of the load; both must leave the same world."""
    running = max(1, round(lanes * MIXED_SHARE))
    trace = mixed_trace(running * ((WARM_TICKS + ticks) // 128 + 3))
    fused, walked = (Study(Machine(lanes=lanes), trace, running, seed) for _ in range(2))
    whole = measure(fused, ticks, walked=False)
    parts = measure(walked, ticks, walked=True)
    assert digest(fused.world) == digest(walked.world), "fused and walked ticks differ"
    counters = fused.world[0]["counters"]
    return {
        "lanes": lanes, "running": running, "ticks": ticks, "mixed": True,
        "tick": {**summary(whole), "mean_us": round(float(whole.mean()) / 1e3, 2)},
        "admitted": int(counters["admitted"]),
        "prompt_tokens_cached": int(counters["prompt_tokens_cached"]),
        "systems": {step.name: summary(parts[:, i]) for i, step in enumerate(TICK)},
    }

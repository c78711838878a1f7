"""Host cost of a tick: the whole fused tick, and every system of it, with all lanes decoding.

The simulated executor runs between ticks and is not timed. Egress is drained every tick. A share of
the lanes has stop strings that begin often and never end.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.contract.decode import decode
from helios_dod.edges import Edge, Submission
from helios_dod.engine import Engine
from helios_dod.executors.costs import FixedCost
from helios_dod.executors.simulated import SimulatedExecutor, VirtualClock
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.selection import Options, choose
from helios_dod.schedule import TICK, tick
from helios_dod.simulation.programs import simulated_core
from helios_dod.tables.pieces import install_pieces
from helios_dod.world import boot, digest

PAGE_TOKENS = 16
VOCABULARY = 131_072
WARM_TICKS = 50
UNREACHED = b"\x7f"  # ends every stop string, and no token has it
STOPS = tuple(text + UNREACHED for text in (b"\nUser:", b" the end", b"e</answer>", b"observation"))


@dataclass(frozen=True)
class Load:
    """What every lane does: a prompt of `prompt` tokens, then decoding without end."""

    lanes: int
    prompt: int = 1050
    ticks: int = 500
    stops: float = 0.25  # share of lanes with stop strings

    @property
    def stop_lanes(self) -> int:
        """Lanes with stop strings."""
        return round(self.lanes * self.stops)


def random_pieces() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A byte table (data, offsets, special) of 1 to 8 letters, spaces and signs a token."""
    rng = np.random.default_rng(2)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk etaoinshr  \n<>/:.,", np.uint8)
    lengths = rng.integers(1, 9, VOCABULARY)
    data = letters[rng.integers(0, len(letters), int(lengths.sum()))]
    return data, np.concatenate([[0], np.cumsum(lengths)]), np.zeros(VOCABULARY, np.uint8)


class Bench:
    """An engine whose lanes all decode."""

    def __init__(self, load: Load) -> None:
        packed = max(512, load.lanes)
        context = -(-(load.prompt + load.ticks + WARM_TICKS + 64) // 256) * 256
        manifest, serving = simulated_core(VOCABULARY, context, PAGE_TOKENS, load.lanes, packed)
        contract = decode(serving, manifest)
        page_bytes = PAGE_TOKENS * 8
        selection = choose(
            contract, page_bytes, lambda geometry: staging_layout(contract, geometry)[1], Options())
        self.world = boot(selection.limits)
        first = bind(self.world, contract, selection)
        install_pieces(self.world, *random_pieces(), strip=False)
        self.clock = VirtualClock(1)
        self.executor = SimulatedExecutor(contract, self.clock, FixedCost(1000, 0))
        self.executor.load(manifest, selection.geometry, {}, first, self.world)
        self.engine = Engine(self.world, self.executor, self.clock)
        self.edge = Edge(self.world, 0, batch=4 * load.lanes)
        self.size = selection.limits.name
        self.start(load, context)

    def start(self, load: Load, context: int) -> None:
        """Submits one request a lane and ticks until all decode."""
        rng = np.random.default_rng(1)
        waiting = load.lanes
        generated: set[int] = set()
        while len(generated) < load.lanes:
            while waiting and self.edge.submit(Submission(
                    tag=waiting, prompt=rng.integers(0, VOCABULARY, load.prompt, dtype=np.int32),
                    output_limit=context - load.prompt,
                    stop_strings=STOPS if waiting <= load.stop_lanes else ())):
                waiting -= 1
            self.engine.step()
            self.pass_time()
            generated.update(self.edge.events()["tag"].tolist())

    def pass_time(self) -> None:
        """Moves to the last fence, so that each tick has every lane: those with stops wait for
        theirs."""
        self.executor.drain()

    def measure(self, ticks: int, walked: bool) -> np.ndarray:
        """Nanoseconds of each tick: shape [ticks], or [ticks, systems] when walked."""
        steps = [step.run for step in TICK] if walked else [tick]
        spent = np.zeros((ticks, len(steps)), np.int64)
        for row in range(-WARM_TICKS, ticks):
            self.engine.begin()
            for column, step in enumerate(steps):
                start = time.perf_counter_ns()
                step(self.world)
                if row >= 0:
                    spent[row, column] = time.perf_counter_ns() - start
            self.engine.launch()
            self.pass_time()
            self.edge.events()
        return spent if walked else spent[:, 0]


def summary(spent: np.ndarray) -> dict[str, float]:
    """Median and 99th percentile, microseconds."""
    return {"median_us": round(float(np.median(spent)) / 1e3, 2),
            "p99_us": round(float(np.percentile(spent, 99)) / 1e3, 2)}


def run(load: Load) -> dict[str, Any]:
    """Fused and walked cost of one load; both must leave the same world."""
    fused, walked = Bench(load), Bench(load)
    whole = fused.measure(load.ticks, walked=False)
    parts = walked.measure(load.ticks, walked=True)
    assert digest(fused.world) == digest(walked.world), "fused and walked ticks differ"
    return {
        "lanes": load.lanes, "stop_lanes": load.stop_lanes, "context": load.prompt,
        "ticks": load.ticks, "size": fused.size,
        "tick": summary(whole),
        "systems": {step.name: summary(parts[:, i]) for i, step in enumerate(TICK)},
    }

"""Host cost of a tick: the whole fused tick, and every system of it, with all lanes decoding.

The simulated executor runs between ticks and is not timed. Egress is drained every tick: here, or
by another process as a server's worker does it, which counts events and is scraped for its metrics
while ticks run. A share of the lanes has stop strings that begin often and never end.
"""

import os
import signal
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
from helios_dod.server.control import SharedMemory
from helios_dod.server.metrics import Exporter
from helios_dod.server.processes import die_with_parent
from helios_dod.simulation.programs import simulated_core
from helios_dod.tables.durations import note_events
from helios_dod.tables.pieces import install_pieces
from helios_dod.world import boot, digest

PAGE_TOKENS = 16
VOCABULARY = 131_072
WARM_TICKS = 50
SCRAPE_TICKS = 50  # between two readings of all metrics
UNREACHED = b"\x7f"  # ends every stop string, and no token has it
STOPS = tuple(text + UNREACHED for text in (b"\nUser:", b" the end", b"e</answer>", b"observation"))


@dataclass(frozen=True)
class Load:
    """What every lane does: a prompt of `prompt` tokens, then decoding without end."""

    lanes: int
    prompt: int = 1050
    ticks: int = 500
    stops: float = 0.25  # share of lanes with stop strings
    shared: bool = False  # the world lies in shared memory, and a worker process drains it
    seed: int = 1  # of the prompts

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


class Worker:
    """A process that does to a tick's tables what a server's HTTP worker does."""

    def __init__(self, memory: SharedMemory, edge: Edge) -> None:
        self.wake = os.eventfd(0)
        rows = memory.limits.requests_max
        tags, times = np.arange(rows), [np.zeros(rows, np.int64) for _ in range(3)]
        exporter = Exporter(memory)

        def take() -> None:
            events = edge.events()
            columns = [np.ascontiguousarray(events[name])
                       for name in ("kind", "reason", "tag", "completed_ns")]
            note_events(memory.control, 0, tags, *times, rows - 1, *columns, time.monotonic_ns())

        take()  # compiles before the fork
        exporter.text()
        self.pid = os.fork()
        if self.pid == 0:
            die_with_parent(os.getppid())
            for count in range(1 << 62):
                os.eventfd_read(self.wake)
                take()
                if count % SCRAPE_TICKS == 0:
                    exporter.text()

    def end(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.wake)


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
        self.memory = SharedMemory(selection.limits) if load.shared else None
        self.world = boot(selection.limits, self.memory.world if self.memory else None)
        first = bind(self.world, contract, selection)
        install_pieces(self.world, *random_pieces(), strip=False)
        self.clock = VirtualClock(1)
        self.executor = SimulatedExecutor(contract, self.clock, FixedCost(1000, 0))
        self.executor.load(manifest, selection.geometry, {}, first, self.world)
        self.engine = Engine(self.world, self.executor, self.clock)
        self.edge = Edge(self.world, 0, batch=4 * load.lanes)
        self.size = selection.limits.name
        self.start(load, context)
        self.worker = Worker(self.memory, self.edge) if self.memory else None

    def start(self, load: Load, context: int) -> None:
        """Submits one request a lane and ticks until all decode."""
        rng = np.random.default_rng(load.seed)
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

    def drain(self) -> None:
        """Takes the events of a tick, or waits until the worker has."""
        if self.worker is None:
            self.edge.events()
            return
        os.eventfd_write(self.worker.wake, 1)
        ring = self.world[0]["egress"]
        while ring["first"][0, 0] != ring["end"][0, 0]:
            time.sleep(0)

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
            self.drain()
        if self.worker:
            self.worker.end()
        return spent if walked else spent[:, 0]


def summary(spent: np.ndarray) -> dict[str, float]:
    """Median, lowest and 99th percentile, microseconds."""
    return {"median_us": round(float(np.median(spent)) / 1e3, 2),
            "lowest_us": round(float(np.min(spent)) / 1e3, 2),
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

"""Start-up tuning: the graphs of a core's tuning catalog that the loaded programs depend on are run
in turn while there is time, and what they selected is kept for the next start of the same core on
the same device.

What an entry is good for is its name: the device and all that was timed. An entry that is damaged,
or whose outputs are not those of the catalog, is ignored and told, and written anew."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios_dod.executors.base import DeviceError
from helios_dod.folders import cache_home
from helios_dod.kept import keep, kept

LIMIT_NS = 2_000_000_000  # of all runs together
ROUNDS_MAX = 7  # runs of one graph: the shortest span of each candidate counts
ENTRIES_MAX = 64


@dataclass(frozen=True)
class Tuned:
    """What tuning took at a start."""

    graphs: int  # of the catalog that were needed
    runs: int  # of all of them; 0: the last start's selections were there
    spent_ns: int

    def __str__(self) -> str:
        if not self.runs:
            return f"{self.graphs} tuned before"
        return f"{self.graphs} tuned in {self.spent_ns / 1e9:.2f} s, {self.runs} runs"


@dataclass(frozen=True)
class Bench:
    """A device that tuning graphs run on. run: one graph of the catalog, to its end. read, write:
    the bytes of a buffer."""

    device: str  # what makes timings comparable
    run: Callable[[int], None]
    read: Callable[[int], bytes]
    write: Callable[[int, bytes], None]


def required(manifest: Any, programs: Iterable[int]) -> list[int]:
    """Numbers of the producers that these programs depend on, in the catalog's order."""
    named = {bound.producer for index in programs for bound in manifest.programs[index].tuned}
    return [number for number, graph in enumerate(manifest.tuning) if graph.name in named]


def entry_of(manifest: Any, producers: list[int], device: str) -> Path:
    """Where the selections of these producers on such a device are kept."""
    digest = hashlib.sha256(device.encode())
    modules: set[int] = set()
    for number in producers:
        graph = manifest.tuning[number]
        cuda = graph.WhichOneof("code") == "cuda_body"
        body = manifest.cuda_bodies[graph.cuda_body] if cuda else manifest.host_bodies[graph.body]
        digest.update(graph.SerializeToString(deterministic=True))
        digest.update(body.SerializeToString(deterministic=True))
        modules |= {node.kernel.module for node in body.nodes
                    if node.HasField("kernel")} if cuda else set()
    for module in sorted(modules):
        digest.update(hashlib.sha256(manifest.modules[module].cubin).digest())
    for buffer in manifest.buffers:
        digest.update(buffer.SerializeToString(deterministic=True))
    return cache_home() / "tuning" / digest.hexdigest()


def tune(manifest: Any, programs: Iterable[int], bench: Bench, limit_ns: int = LIMIT_NS,
         now: Callable[[], int] = time.monotonic_ns) -> Tuned | None:
    """Fills the outputs of every producer that the programs need; None where there are none.

    A graph is not started where the longest run so far would pass the limit: outputs of one that
    had no run stay zero, which selects what would run without tuning. Raises DeviceError, naming
    the graph that failed; nothing is kept then."""
    producers = required(manifest, programs)
    if not producers:
        return None
    begun = now()
    entry = entry_of(manifest, producers, bench.device)
    outputs = {manifest.buffers[index].name: index
               for number in producers for index in manifest.tuning[number].outputs}
    sizes = {name: len(bench.read(index)) for name, index in outputs.items()}
    found = _read(entry, sizes)
    if found is not None:
        for name, data in found.items():
            bench.write(outputs[name], data)
        return Tuned(len(producers), 0, now() - begun)
    runs = _run(manifest, producers, bench, begun + limit_ns, now)
    spent = now() - begun
    if runs:
        made = {name: bench.read(index).hex() for name, index in outputs.items()}
        keep(entry, json.dumps(made).encode(), ENTRIES_MAX)
    return Tuned(len(producers), runs, spent)


def _run(manifest: Any, producers: list[int], bench: Bench, deadline: int,
         now: Callable[[], int]) -> int:
    """Runs every graph once, then again, until ROUNDS_MAX or the deadline; how many runs."""
    longest = runs = 0
    for _ in range(ROUNDS_MAX):
        for number in producers:
            started = now()
            if started + longest > deadline:
                return runs
            try:
                bench.run(number)
            except DeviceError as error:
                name = manifest.tuning[number].name
                raise DeviceError(f"tuning graph {name!r}: {error}") from error
            longest, runs = max(longest, now() - started), runs + 1
    return runs


def _read(entry: Path, sizes: dict[str, int]) -> dict[str, bytes] | None:
    """The outputs that an entry holds, by name; None where there is none that is good."""
    if not entry.exists():
        return None
    data = kept(entry)
    try:
        found = {} if data is None else {
            name: bytes.fromhex(text) for name, text in json.loads(data).items()}
    except (ValueError, AttributeError, TypeError):
        found = {}
    if {name: len(value) for name, value in found.items()} == sizes:
        return found
    print(f"tuning: {entry} is damaged and ignored; candidates are timed again", file=sys.stderr)
    return None

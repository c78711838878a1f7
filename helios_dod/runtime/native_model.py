"""NativeModel: a core's ranks, loaded and backed; what it exposes is the resulting geometry."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.contract.drafting import require_history
from helios_dod.contract.errors import ContractError
from helios_dod.contract.prepared import PreparedContract
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.reader import Core, open_core
from helios_dod.engine import Engine
from helios_dod.executors.base import Executor, Geometry
from helios_dod.grammars.library import Source
from helios_dod.grammars.worker import LibraryWorker
from helios_dod.progress import format_bytes
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.disk_tier import map_file
from helios_dod.runtime.selection import Options, Selection, SelectionError, choose
from helios_dod.runtime.served import require_served
from helios_dod.runtime.validated import validated
from helios_dod.tables.pieces import install_pieces
from helios_dod.world import boot


class RankPeers(Enum):
    """Where the other ranks of a tensor-parallel model run."""

    Threads = "threads"  # of the serving host
    Processes = "processes"  # of other hosts, which connect


@dataclass(frozen=True)
class RankManifest:
    """What one rank has loaded."""

    rank: int
    geometry: Geometry
    programs: tuple[str, ...]
    page_bytes: int
    cache_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class Opened:
    """An accepted core, read and validated. Processes that are forked from then on share it."""

    core: Core
    manifest: object  # ExecutionManifest, which only the executor reads
    contract: PreparedContract


@dataclass(frozen=True)
class Plan(Opened):
    """A core and what was chosen for it, before anything large is allocated."""

    selection: Selection


def open_accepted(path: str | Path, namespace: str | None = None) -> Opened:
    """Opens and validates a core. namespace: accept this publisher now. Raises CoreError,
    ContractError."""
    core = open_core(path)
    authorize(core, namespace)
    return Opened(core, *validated(core))


def plan(path: str | Path, options: Options, opened: Opened | None = None) -> Plan:
    """Chooses capacities of a core that is opened, or opens and validates it first. Raises
    CoreError, ContractError, SelectionError."""
    opened = opened or open_accepted(path)
    contract = opened.contract
    selection = choose(
        contract, contract.cache.page_bytes,
        lambda geometry: staging_layout(contract, geometry)[1], options)
    return Plan(opened.core, opened.manifest, contract, selection)


def rank_weights(made: Plan, loaded: dict[str, np.ndarray], rank: int) -> dict[str, np.ndarray]:
    """The weight resources that a rank loads."""
    if not made.contract.ranks:
        return loaded
    names = made.contract.ranks[rank].weights
    for name in names:
        if name not in loaded:
            raise ContractError(f"manifest.ranks[{rank}].weights", "a weight resource of the core",
                                name)
    return {name: loaded[name] for name in names}


def back_tiers(executor: Executor, selection: Selection, windowed_page_bytes: int) -> None:
    """Makes room behind the device for the selected pages. Raises SelectionError."""
    if selection.memory_pages == 0:
        return
    disk = None
    if selection.disk_pages:
        assert selection.disk_folder is not None
        disk = map_file(selection.disk_folder, selection.disk_pages * selection.page_bytes
                        + selection.window_stored * windowed_page_bytes)
    executor.back(selection.memory_pages, disk, selection.window_places, selection.window_stored)


def mask_worker(core: Core, world: np.ndarray) -> LibraryWorker | None:
    """What computes grammar masks, where the programs take them."""
    if not world[0]["settings"]["masked"]:
        return None
    texts = core.token_texts()
    return LibraryWorker(world, Source(texts.tokenizer_json, texts.vocabulary, texts.eos),
                         texts.delimiters)


@dataclass
class NativeModel:
    """A loaded core. One rank is served; everything of ranks is a list."""

    plan: Plan
    engine: Engine
    weights: list[dict[str, np.ndarray]]  # by rank
    peers: RankPeers = RankPeers.Threads
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each part of the load

    @classmethod
    def load(
        cls, path: str | Path, options: Options, executor: Executor,
        memory: memoryview | None = None, *, trust_weights: bool = False,
        peers: RankPeers = RankPeers.Threads,
        progress: Callable[[int], None] | None = None,
    ) -> "NativeModel":
        """Opens, validates, chooses capacities, loads each rank and backs the cache.

        memory: of the world, if it is shared. trust_weights: weights are not compared with their
        signed digests. Raises CoreError, ContractError, SelectionError, DeviceError."""
        began = time.perf_counter()
        made = plan(path, options)
        phases = {"contract": time.perf_counter() - began}
        return cls.of(made, executor, memory, trust_weights=trust_weights, phases=phases,
                      peers=peers, progress=progress)

    @classmethod
    def of(
        cls, made: Plan, executor: Executor, memory: memoryview | None = None, *,
        trust_weights: bool = False, peers: RankPeers = RankPeers.Threads,
        phases: dict[str, float] | None = None, progress: Callable[[int], None] | None = None,
    ) -> "NativeModel":
        """The same for a plan that is made."""
        phases = {} if phases is None else phases
        ranks = max(1, len(made.contract.ranks))
        if ranks > 1:
            raise SelectionError("ranks", ranks, "one can be served")
        if peers is RankPeers.Processes:
            raise SelectionError("peers", peers.name, "one rank can be served, on this host")
        require_served(made.contract, made.selection.programs, executor.name)
        if made.selection.history_drafting:
            learned = bool(made.selection.speculative_widths)
            require_history(made.contract, made.selection.programs, learned)
        mark = time.perf_counter()
        world = boot(made.selection.limits, memory)
        first = bind(world, made.contract, made.selection)
        table = made.core.token_bytes()
        install_pieces(world, table.data, table.offsets, table.special, table.strip)
        worker = mask_worker(made.core, world)
        phases["world"] = time.perf_counter() - mark
        mark = time.perf_counter()
        loaded: dict[str, np.ndarray] = {}
        if executor.reads_weights:
            manifest: Any = made.manifest
            loaded = made.core.weights(trust_weights, progress, manifest)
        weights = [rank_weights(made, loaded, rank) for rank in range(ranks)]
        phases["weights"] = time.perf_counter() - mark
        mark = time.perf_counter()
        executor.load(made.manifest, made.selection.geometry, weights[0], first, world)
        back_tiers(executor, made.selection, made.contract.cache.windowed_page_bytes)
        phases["executor"] = time.perf_counter() - mark
        return cls(made, Engine(world, executor, grammars=worker), weights, peers, phases)

    def manifests(self) -> list[RankManifest]:
        """The resulting execution geometry, one a rank."""
        selection, geometry = self.plan.selection, self.plan.selection.geometry
        return [RankManifest(
            rank=rank, geometry=geometry,
            programs=tuple(self.plan.contract.programs[i].name for i in selection.programs),
            page_bytes=selection.page_bytes, cache_bytes=geometry.pages * selection.page_bytes,
            weight_bytes=sum(data.size for data in weights.values()))
            for rank, weights in enumerate(self.weights)]

    def report(self) -> str:
        """One line for the person who starts a server."""
        rank = self.manifests()[0]
        geometry, tuned = rank.geometry, getattr(self.engine.executor, "tuned", None)
        weights = (f"weights {format_bytes(rank.weight_bytes)} in {self.phases['weights']:.2f} s"
                   if self.engine.executor.reads_weights else
                   f"{self.engine.executor.name} executor: no model is computed")
        snapshots = f", {geometry.snapshots} snapshots" if geometry.snapshots else ""
        return (f"{weights}; cache {format_bytes(rank.cache_bytes)}: {geometry.pages} pages of "
                f"{geometry.page_tokens} tokens{snapshots}, {geometry.slots} requests of "
                f"{self.plan.selection.context_tokens} tokens at once{self._behind()}"
                + (f"; kernels: {tuned}" if tuned else ""))

    def _behind(self) -> str:
        """What the report says of the tiers."""
        selection = self.plan.selection
        parts = [f"{pages} pages in {where} ({format_bytes(pages * selection.page_bytes)})"
                 for pages, where in ((selection.memory_pages, "host memory"),
                                      (selection.disk_pages, "a file")) if pages]
        size = self.plan.contract.cache.windowed_page_bytes
        parts += [f"{pages} pages of windowed histories in {where} ({format_bytes(pages * size)})"
                  for pages, where in ((selection.window_places, "host memory"),
                                       (selection.window_stored, "the file")) if pages]
        return "; behind it " + " and ".join(parts) if parts else ""

    def close(self) -> None:
        """Drains and frees the device."""
        self.engine.close()


def note_weights(trusted: bool) -> None:
    """Says at start when weights go unverified."""
    if trusted:
        print("weights are trusted: they are not compared with what was signed", file=sys.stderr)

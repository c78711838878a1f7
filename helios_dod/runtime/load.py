"""From a core on disk to an engine: contract, selection, world, executor."""

from dataclasses import dataclass
from pathlib import Path

from helios_dod.contract.prepared import PreparedContract
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.reader import Core, open_core
from helios_dod.engine import Engine
from helios_dod.executors.base import Executor
from helios_dod.limits import Limits
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.selection import Options, Selection, choose
from helios_dod.world import boot


@dataclass(frozen=True)
class Plan:
    """A core and what was chosen for it, before anything large is allocated."""

    core: Core
    manifest: object  # ExecutionManifest, which only the executor reads
    contract: PreparedContract
    selection: Selection


def plan(path: str | Path, options: Options) -> Plan:
    """Opens and validates a core and chooses capacities. Raises CoreError, ContractError,
    SelectionError."""
    core = open_core(path)
    authorize(core)
    manifest = core.manifest()
    contract = core.prepared(manifest)
    selection = choose(
        contract, contract.cache.page_bytes,
        lambda geometry: staging_layout(contract, geometry)[1], options)
    return Plan(core, manifest, contract, selection)


def load(made: Plan, executor: Executor, memory: memoryview | None = None,
         trust_weights: bool = True) -> Engine:
    """Boots the world (in `memory`, if given), loads the executor and returns a ready engine.

    trust_weights: weights are not hashed again; preparation checked the core's own digests."""
    world = boot(made.selection.limits, memory)
    first = bind(world, made.contract, made.selection)
    weights = made.core.weights(trust=trust_weights)
    executor.load(made.manifest, made.selection.geometry, weights, first, world)
    return Engine(world, executor)


def load_host(path: str | Path, options: Options | None = None, threads: int = 0,
              limits: Limits | None = None) -> tuple[Plan, Engine]:
    """A core on the host executor, in this process: the way to embed an engine."""
    from helios_dod.executors.host.executor import HostExecutor

    made = plan(path, options or Options(size=limits.name if limits else None))
    return made, load(made, HostExecutor(threads))


"""A simulated machine: the shipped scheduler over a virtual device, for any capacities."""

from dataclasses import dataclass, field

from helios_dod.bounds import INT32_MAX, shown, whole
from helios_dod.contract.decode import decode
from helios_dod.engine import Engine
from helios_dod.errors import UserError
from helios_dod.executors.costs import Costs, FixedCost
from helios_dod.executors.simulated import SimulatedExecutor, VirtualClock
from helios_dod.limits import FRAMES_MAX
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.selection import PAGE_TOKENS as PAGE_SIZES
from helios_dod.runtime.selection import Options, SelectionError, choose
from helios_dod.simulation.programs import simulated_core
from helios_dod.world import boot

PREFILL_TOKENS = 2048
PAGE_TOKENS = 16
RECORD_BYTES = 8  # of the shadow cache, one a token


@dataclass(frozen=True)
class Machine:
    """What is simulated. pages 0: as many as the lanes can fill."""

    lanes: int = 256
    prefill_tokens: int = PREFILL_TOKENS
    pages: int = 0
    vocabulary: int = 131_072
    context_tokens: int = 0  # 0: as the trace needs, or 4096
    page_tokens: int = PAGE_TOKENS
    frames: int = 2
    caching: bool = True
    cost: Costs | FixedCost = field(default_factory=FixedCost)

    def __post_init__(self) -> None:
        """Raises UserError; what its parts cannot be together is said when an engine is made."""
        for name in ("lanes", "prefill_tokens", "vocabulary"):
            whole(name, getattr(self, name), 1, INT32_MAX)
        for name in ("pages", "context_tokens"):
            whole(name, getattr(self, name), 0, INT32_MAX)
        whole("frames", self.frames, 1, FRAMES_MAX)
        if self.page_tokens not in PAGE_SIZES:
            raise SelectionError("page_tokens", shown(self.page_tokens),
                                 f"one of {PAGE_SIZES} possible")
        if not isinstance(self.cost, Costs | FixedCost):
            raise UserError(f"cost: expected Costs or FixedCost, got {shown(self.cost)}")


def simulated_engine(machine: Machine, context_tokens: int, clock: VirtualClock,
                     device: type[SimulatedExecutor] = SimulatedExecutor) -> Engine:
    """An engine of the machine, for requests of so many tokens. Raises SelectionError."""
    manifest, serving = simulated_core(
        machine.vocabulary, context_tokens, machine.page_tokens, machine.lanes,
        max(machine.prefill_tokens, machine.lanes))
    contract, page_bytes = decode(serving, manifest), machine.page_tokens * RECORD_BYTES
    options = Options(frames=machine.frames, caching=machine.caching,
                      cache_bytes=machine.pages * page_bytes or None)
    selection = choose(contract, page_bytes,
                       lambda geometry: staging_layout(contract, geometry)[1], options)
    world = boot(selection.limits)
    first = bind(world, contract, selection)
    executor = device(contract, clock, machine.cost)
    executor.load(manifest, selection.geometry, {}, first, world)
    return Engine(world, executor, clock)

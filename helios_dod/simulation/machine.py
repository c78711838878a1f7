"""A simulated machine: the shipped scheduler over a virtual device, for any capacities."""

from dataclasses import dataclass, field

from helios_dod.bounds import INT32_MAX, shown, whole
from helios_dod.contract.decode import decode
from helios_dod.engine import Engine
from helios_dod.errors import UserError
from helios_dod.executors.acceptance import Acceptance
from helios_dod.executors.costs import Costs, FixedCost
from helios_dod.executors.simulated import SimulatedExecutor, VirtualClock
from helios_dod.limits import FRAMES_MAX
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.selection import PAGE_TOKENS as PAGE_SIZES
from helios_dod.runtime.selection import Options, SelectionError, choose
from helios_dod.simulation.programs import Round, simulated_core
from helios_dod.world import boot

PREFILL_TOKENS = 2048
PAGE_TOKENS = 16
RECORD_BYTES = 8  # of the shadow cache, one a token
DRAFTS_MAX = 7  # the widest rounds that every size of world holds


@dataclass(frozen=True)
class Machine:
    """What is simulated. pages 0: as many as the lanes can fill. drafts: of the widest
    rounds, which need a model of acceptance; 0: no speculation."""

    lanes: int = 256
    prefill_tokens: int = PREFILL_TOKENS
    pages: int = 0
    vocabulary: int = 131_072
    context_tokens: int = 0  # 0: as the trace needs, or 4096
    page_tokens: int = PAGE_TOKENS
    frames: int = 2
    caching: bool = True
    cost: Costs | FixedCost = field(default_factory=FixedCost)
    drafts: int = 0
    acceptance: Acceptance | None = None

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
        whole("drafts", self.drafts, 0, DRAFTS_MAX)
        if not isinstance(self.acceptance, Acceptance | None):
            raise UserError(f"acceptance: expected Acceptance, got {shown(self.acceptance)}")
        if self.drafts > 0 and self.acceptance is None:
            raise UserError(f"acceptance: needed for drafts, of which {self.drafts} were asked")
        if not isinstance(self.cost, Costs | FixedCost):
            raise UserError(f"cost: expected Costs or FixedCost, got {shown(self.cost)}")


def rounds_of(machine: Machine) -> tuple[Round, ...]:
    """Width one, then twice as many drafts each, up to the most; a device whose confidence tells
    drafts apart also allocates half as many rows by it."""
    if machine.drafts == 0 or machine.acceptance is None:
        return ()
    lanes, most = machine.lanes, machine.drafts
    widths = sorted({min(1 << shift, most) for shift in range(most.bit_length() + 1)})
    rounds = [Round(0, 1, lanes)] + [Round(drafts, drafts + 1, lanes * (drafts + 1))
                                     for drafts in widths]
    if machine.acceptance.spread > 0:
        rounds.append(Round(most, most + 1, lanes + max(lanes * most // 2, 1), prefix=True,
                            confidence=True))
    return tuple(rounds)


def simulated_engine(machine: Machine, context_tokens: int, clock: VirtualClock,
                     device: type[SimulatedExecutor] = SimulatedExecutor) -> Engine:
    """An engine of the machine, for requests of so many tokens. Raises SelectionError."""
    manifest, serving = simulated_core(
        machine.vocabulary, context_tokens, machine.page_tokens, machine.lanes,
        max(machine.prefill_tokens, machine.lanes), rounds_of(machine))
    contract, page_bytes = decode(serving, manifest), machine.page_tokens * RECORD_BYTES
    options = Options(frames=machine.frames, caching=machine.caching,
                      cache_bytes=machine.pages * page_bytes or None)
    selection = choose(contract, page_bytes,
                       lambda geometry: staging_layout(contract, geometry)[1], options)
    world = boot(selection.limits)
    first = bind(world, contract, selection)
    executor = device(contract, clock, machine.cost, acceptance=machine.acceptance)
    executor.load(manifest, selection.geometry, {}, first, world)
    return Engine(world, executor, clock)

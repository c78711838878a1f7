"""`helios serve --executor simulated`: a core's text side over programs that compute nothing.

The simulated device captures its own programs, for any concurrency, so that the scheduler and the
HTTP edge can be loaded far beyond what this machine could compute.
"""

from dataclasses import dataclass
from pathlib import Path

from helios_dod.contract.decode import decode
from helios_dod.executors.base import Executor
from helios_dod.executors.costs import Costs, FixedCost
from helios_dod.executors.paced import PacedExecutor
from helios_dod.runtime.binding import staging_layout
from helios_dod.runtime.native_model import Opened, Plan, open_accepted
from helios_dod.runtime.selection import Options, choose
from helios_dod.simulation.programs import simulated_core

CONCURRENCY = 256  # where nothing is asked
PREFILL_TOKENS = 2048  # of one program
RECORD_BYTES = 8  # of the shadow cache, one a token


@dataclass(frozen=True)
class Planner:
    """Makes the plan and executor of a simulated device. cost: of its programs."""

    cost: Costs | FixedCost

    def __call__(self, path: Path, options: Options, threads: int, opened: Opened | None = None
                 ) -> tuple[Plan, Executor]:
        """threads: not used, the device is none. Raises CoreError, ContractError, SelectionError.
        """
        plan = self.plan(path, options, opened)
        return plan, PacedExecutor(plan.contract, self.cost)

    def plan(self, path: Path, options: Options, opened: Opened | None = None) -> Plan:
        """The same, without a device."""
        opened = opened or open_accepted(path)
        own = opened.contract
        lanes = options.concurrency or CONCURRENCY
        page_tokens = own.cache.page_tokens
        manifest, serving = simulated_core(
            own.vocabulary, own.context_tokens, page_tokens, lanes, max(PREFILL_TOKENS, lanes))
        contract = decode(serving, manifest)
        selection = choose(contract, page_tokens * RECORD_BYTES,
                           lambda geometry: staging_layout(contract, geometry)[1], options)
        return Plan(opened.core, manifest, contract, selection)

"""A core on the host executor, in this process: the way to embed an engine."""

from pathlib import Path

from helios_dod.engine import Engine
from helios_dod.limits import Limits
from helios_dod.runtime.native_model import NativeModel, Plan
from helios_dod.runtime.selection import Options


def load_host(path: str | Path, options: Options | None = None, threads: int = 0,
              limits: Limits | None = None, trust_weights: bool = False) -> tuple[Plan, Engine]:
    """Raises CoreError, ContractError, SelectionError."""
    from helios_dod.executors.host.executor import HostExecutor

    chosen = options or Options(size=limits.name if limits else None)
    model = NativeModel.load(path, chosen, HostExecutor(threads), trust_weights=trust_weights)
    return model.plan, model.engine

"""Which executor runs a core, and what its memory leaves for the cache: the programs say it."""

from dataclasses import replace
from pathlib import Path

from helios_dod.contract.prepared import PreparedContract
from helios_dod.errors import UserError
from helios_dod.executors.base import Executor
from helios_dod.runtime.native_model import Plan, plan
from helios_dod.runtime.selection import Options


class TargetError(UserError):
    """The programs of a core are not for one device."""


def on_device(contract: PreparedContract, programs: tuple[int, ...]) -> bool:
    """Whether the programs are CUDA bodies. Raises TargetError where they mix targets."""
    targets = {contract.programs[index].device_body for index in programs}
    if len(targets) != 1:
        raise TargetError("programs: some have host bodies and some device bodies")
    return targets == {True}


def plan_for_device(path: Path, options: Options, threads: int,
                    random_weights: bool = False) -> tuple[Plan, Executor]:
    """A core's plan and its executor. Where nothing says how large the cache shall be, it is what
    the executor's device has left. threads: of the host executor, 0 for its default.
    random_weights: the device makes its own matrices.

    Raises CoreError, ContractError, SelectionError, TargetError, DeviceError."""
    made = plan(path, options)
    if not on_device(made.contract, made.selection.programs):
        if random_weights:
            raise TargetError("random weights: the core's programs are for the host, which reads "
                              "weights where they lie")
        from helios_dod.executors.host.executor import HostExecutor

        return made, HostExecutor(threads)
    from helios_dod.executors.cuda.executor import CudaExecutor

    executor = CudaExecutor(programs=made.selection.programs, random_weights=random_weights)
    if options.cache_bytes is None:
        weights = sum(weight.nbytes for weight in made.core.body.weights)
        made = plan(path, replace(options, cache_bytes=executor.cache_budget(weights)))
    return made, executor

"""Which executor runs a core, and what its memory leaves for the cache: the programs say it."""

from dataclasses import replace
from pathlib import Path

from helios_dod.contract.prepared import PreparedContract
from helios_dod.errors import UserError
from helios_dod.executors.base import Executor
from helios_dod.runtime.native_model import Opened, Plan, open_accepted, plan
from helios_dod.runtime.selection import Options

ROOM_UNKNOWN = 1 << 62


class TargetError(UserError):
    """The programs of a core are not for one device."""


def needs_device(contract: PreparedContract) -> bool:
    """Whether a device runs any program."""
    return any(program.device_body for program in contract.programs)


def on_device(contract: PreparedContract, programs: tuple[int, ...]) -> bool:
    """Whether the programs are CUDA bodies. Raises TargetError where they mix targets."""
    targets = {contract.programs[index].device_body for index in programs}
    if len(targets) != 1:
        raise TargetError("programs: some have host bodies and some device bodies")
    return targets == {True}


def plan_anywhere(path: Path, options: Options, opened: Opened | None = None) -> Plan:
    """A core's plan before its device is there, which may leave the cache less room.

    Raises CoreError, ContractError, SelectionError, TargetError."""
    opened = opened or open_accepted(path)
    if needs_device(opened.contract):
        options = replace(options, cache_room=ROOM_UNKNOWN)
    made = plan(path, options, opened)
    on_device(made.contract, made.selection.programs)
    return made


def plan_for_device(path: Path, options: Options, threads: int, random_weights: bool = False,
                    opened: Opened | None = None) -> tuple[Plan, Executor]:
    """A core's plan and its executor, whose device holds the cache. threads: of the host executor,
    0 for its default. random_weights: the device makes its own matrices. opened: the core at that
    path, if it is there already.

    Raises CoreError, ContractError, SelectionError, TargetError, DeviceError."""
    made = plan_anywhere(path, options, opened)
    if not on_device(made.contract, made.selection.programs):
        if random_weights:
            raise TargetError("random weights: the core's programs are for the host, which reads "
                              "weights where they lie")
        from helios_dod.executors.host.executor import HostExecutor

        return made, HostExecutor(threads)
    from helios_dod.executors.cuda.executor import CudaExecutor

    executor = CudaExecutor(programs=made.selection.programs, random_weights=random_weights)
    weights = sum(weight.nbytes for weight in made.core.body.weights)
    room = executor.cache_budget(weights)
    return plan(path, replace(options, cache_room=room), made), executor

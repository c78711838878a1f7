"""Which executor runs a core: its programs say it."""

from helios_dod.contract.prepared import PreparedContract
from helios_dod.errors import UserError
from helios_dod.executors.base import Executor


class TargetError(UserError):
    """The programs of a core are not for one device."""


def executor_for(contract: PreparedContract, programs: tuple[int, ...], threads: int) -> Executor:
    """The executor of the selected programs. threads: of the host executor, 0 for its default.

    Raises TargetError where they mix targets, DeviceError where there is no such device."""
    targets = {contract.programs[index].device_body for index in programs}
    if len(targets) != 1:
        raise TargetError("programs: some have host bodies and some device bodies")
    if targets == {True}:
        from helios_dod.executors.cuda.executor import CudaExecutor

        return CudaExecutor(programs=programs)
    from helios_dod.executors.host.executor import HostExecutor

    return HostExecutor(threads)

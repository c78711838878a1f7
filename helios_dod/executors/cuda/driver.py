"""Calls of the CUDA driver, with errors that name the call, its arguments and the answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from helios_dod.executors.base import DeviceError

try:
    from cuda.bindings import driver
except ImportError as error:  # pragma: no cover - depends on the machine
    raise DeviceError(f"cuda-python is not usable here: {error}") from error

__all__ = ["Device", "call", "driver", "naming"]


def call(name: str, *arguments: Any) -> Any:
    """The result of driver function `name`: nothing, one value, or a tuple of them."""
    answer, *values = getattr(driver, name)(*arguments)
    if answer != driver.CUresult.CUDA_SUCCESS:
        shown = ", ".join(str(argument)[:80] for argument in arguments)
        _, text = driver.cuGetErrorString(answer)
        detail = text.decode() if text else "unknown"
        raise DeviceError(f"{name}({shown}): {answer.name}, {detail}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


NAME_BYTES = 256


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Device errors from here say what they are of."""
    try:
        yield
    except DeviceError as error:
        raise DeviceError(f"{what}: {error}") from error


class Device:
    """The primary context of one device, current in the thread that makes it."""

    def __init__(self, ordinal: int = 0) -> None:
        try:
            call("cuInit", 0)
        except (ImportError, OSError, RuntimeError) as error:
            raise DeviceError(f"no usable NVIDIA driver: {error}") from error
        self.handle = call("cuDeviceGet", ordinal)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        self.enter()
        attribute = driver.CUdevice_attribute
        self.architecture = 10 * call(
            "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            self.handle) + call(
            "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            self.handle)

    def enter(self) -> None:
        """Makes the context current in this thread."""
        call("cuCtxSetCurrent", self.context)

    def name(self) -> str:
        """The device's model and the driver's version: what timings depend on."""
        model = call("cuDeviceGetName", NAME_BYTES, self.handle).split(b"\0")[0].decode()
        return f"{model}, driver {call('cuDriverGetVersion')}"

    def free_bytes(self) -> int:
        """Device memory that is free now."""
        return int(call("cuMemGetInfo")[0])

    def close(self) -> None:
        """Gives the context back."""
        call("cuDevicePrimaryCtxRelease", self.handle)

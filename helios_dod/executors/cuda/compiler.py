"""CUDA C++ to machine code by NVRTC, at preparation; it needs neither a GPU nor its driver."""

from collections.abc import Sequence
from typing import Any

from helios_dod.executors.base import DeviceError


def cubin_of(name: str, text: bytes, headers: dict[str, bytes], options: Sequence[str]) -> bytes:
    """The cubin of a source. Raises DeviceError with the compiler's log."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"NVRTC is not usable here: {error}; "
                          "pip install 'helios-dod[prepare-cuda]'") from error
    program: Any = None

    def call(function: str, *arguments: Any) -> Any:
        answer, *values = getattr(nvrtc, function)(*arguments)
        if answer != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise DeviceError(f"{function}({name}): {answer.name}{log(nvrtc, program)}")
        return values[0] if values else None

    program = call("nvrtcCreateProgram", text, name.encode(), len(headers),
                   list(headers.values()), [one.encode() for one in headers])
    try:
        call("nvrtcCompileProgram", program, len(options), [one.encode() for one in options])
        cubin = b" " * call("nvrtcGetCUBINSize", program)
        call("nvrtcGetCUBIN", program, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin


def log(nvrtc: Any, program: Any) -> str:
    """What the compiler said of a program, on lines of its own."""
    if program is None:
        return ""
    text = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, text)
    return "\n" + text.decode(errors="replace").rstrip("\0")

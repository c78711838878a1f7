"""What a measurement depends on."""

import platform

from helios_dod import __version__


def machine() -> dict[str, str]:
    """Versions and the processor's name."""
    import numba
    import numpy

    return {"python": platform.python_version(), "numba": numba.__version__,
            "numpy": numpy.__version__, "helios": __version__, "processor": processor()}


def processor() -> str:
    """The processor's own name."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file
                        if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()

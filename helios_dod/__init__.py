"""Helios DOD: an LLM serving engine whose scheduler is tables and jitted systems.

As a library: `Engine`, a scheduler with its device and clock; `Submission`, a request; `Options`,
what to choose of a core; `Machine`, what to simulate. They load at their first use.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {"Engine": "embedding", "Machine": "simulation.machine", "Options": "runtime.selection",
          "Submission": "edges"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""What a measurement depends on."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from helios_dod import __version__
from helios_dod.executors.base import processor_name

PACKAGE = Path(__file__).resolve().parent.parent
CAME_ABOUT = ("machine", "seed", "warm_up", "repeats")  # of every result, beside its figures


def machine() -> dict[str, str]:
    """Versions, the commit, and the processor's name and number."""
    import numba
    import numpy

    return {"python": platform.python_version(), "numba": numba.__version__,
            "numpy": numpy.__version__, "helios": __version__, "commit": own_commit(),
            "processor": processor_name(), "processors": str(len(os.sched_getaffinity(0)))}


def conditions(seed: int | None, warm_up: int, repeats: int) -> dict[str, Any]:
    """How a result came about: the machine, the seed of what was drawn (None: nothing was), what
    ran before that which counts, and what counts: rounds, or what the command repeats instead."""
    return dict(zip(CAME_ABOUT, (machine(), seed, warm_up, repeats), strict=True))


def middle(values: Sequence[float], digits: int) -> dict[str, float]:
    """Median and extremes of repeats."""
    return {name: round(take(values), digits) for name, take in (
        ("median", statistics.median), ("lowest", min), ("highest", max))}


@cache
def own_commit() -> str:
    """Of what runs: asked first when it starts, since a checkout may move on in the meantime."""
    return commit()


def commit(package: Path = PACKAGE) -> str:
    """Of the checkout that the package is the top folder of, with a mark if its sources differ from
    it; "unknown" elsewhere."""
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True,
                              check=True).stdout.strip()

    try:
        top, found = git("rev-parse", "--show-toplevel", "HEAD").split("\n")
        if Path(top) != package.parent:
            return "unknown"  # installed inside another project
        return found[:12] + (" changed" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, ValueError, subprocess.CalledProcessError):
        return "unknown"

"""The host executor on a processor without AVX-512: the same tests, with vectors of eight."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FEATURES = (
    "+64bit +avx +avx2 +bmi +bmi2 +cmov +cx16 +cx8 +f16c +fma +fxsr +lzcnt +mmx +movbe "
    "+popcnt +sahf +sse +sse2 +sse3 +sse4.1 +sse4.2 +ssse3 +xsave"
)
CHOSEN = [
    "test_host_products.py::test_product",
    "test_host_attention.py",
    "test_host_sampling.py",
    "test_host_products.py::test_rows_do_not_depend_on_the_batch",
]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86-64 processor")
def test_vectors_of_eight() -> None:
    environment = os.environ | {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": FEATURES.replace(" ", ","),
    }
    lanes = [
        sys.executable,
        "-c",
        "from helios_dod.executors.host.vectors import LANES; print(LANES)",
    ]
    found = subprocess.run(lanes, env=environment, cwd=HERE.parent, capture_output=True, check=True)
    assert found.stdout.split()[-1] == b"8"
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN]
    result = subprocess.run(tests, env=environment, cwd=HERE, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:]

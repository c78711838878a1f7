"""Compiled code is reused exactly while nothing that it was made from has changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import helios_dod

PACKAGE = Path(helios_dod.__file__).parent
MODULES = {
    "numbers.py": "STEP = 3\n",
    "callee.py": "from helios_dod.numbers import STEP\nfrom helios_dod.system import kernel\n\n\n"
                 "@kernel\ndef advance(x):\n    return x + STEP\n",
    "caller.py": "from helios_dod.callee import advance\nfrom helios_dod.system import kernel\n\n\n"
                 "@kernel\ndef twice(x):\n    return advance(advance(x))\n",
    "stranger.py": "from helios_dod.system import kernel\n\n\n"
                   "@kernel\ndef alone(x):\n    return x * 5\n",
}
SHOW = """
from numba.core import event
from helios_dod.caller import twice
from helios_dod.stranger import alone
class Count(event.Listener):
    made = 0
    def on_start(self, event): self.made += 1
    def on_end(self, event): pass
count = Count()
with event.install_listener("numba:compile", count):
    print(twice(1), alone(1), count.made)
"""


@pytest.fixture
def checkout(tmp_path):
    """Makes a checkout of a package of four modules; the cache folder is shared by all."""
    def make(name: str) -> Path:
        package = tmp_path / name / "helios_dod"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        for file in ("system.py", "code_cache.py", "folders.py"):
            shutil.copy(PACKAGE / file, package / file)
        for file, text in MODULES.items():
            (package / file).write_text(text)
        return package
    return make


def show(package: Path) -> tuple[int, int, int]:
    """twice(1), alone(1), and how many functions were compiled for it."""
    home = package.parents[1] / "cache"
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "HELIOS_CACHE": str(home)}
    out = subprocess.run([sys.executable, "-c", SHOW], env=environment, cwd=package.parent,
                         check=True, capture_output=True, text=True)
    first, second, made = out.stdout.split()
    return int(first), int(second), int(made)


def test_code_is_kept_and_shared_between_checkouts(checkout):
    package = checkout("one")
    assert show(package) == (7, 5, 3)
    assert show(package) == (7, 5, 0)
    assert show(checkout("two")) == (7, 5, 0)


def test_a_constant_in_another_file_is_never_stale(checkout):
    package = checkout("one")
    show(package)
    (package / "numbers.py").write_text("STEP = 10\n")
    assert show(package) == (21, 5, 2), "the two that import it, not the third"
    (package / "numbers.py").write_text("STEP = 3\n")
    assert show(package) == (7, 5, 0)


def test_a_damaged_entry_is_made_again(checkout):
    package = checkout("one")
    show(package)
    for entry in (package.parents[1] / "cache").rglob("*.code"):
        entry.write_bytes(entry.read_bytes()[:40])
    assert show(package) == (7, 5, 3)
    assert show(package) == (7, 5, 0)

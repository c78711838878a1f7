"""What the README says can be done as it says it."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from ignition_fixtures import TINY

from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_embedding_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    make_core(TINY / "smollm2", tmp_path / "my.core", Options(lanes=8, packed=(64, 128)),
              namespace="test")
    _, _, after = README.partition("**Embed.**")
    code = textwrap.dedent("\n".join(
        line for line in after.split("\n\n`")[0].splitlines()[1:] if line[:4].strip() == ""))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert len([int(line) for line in done.stdout.split()]) == 32

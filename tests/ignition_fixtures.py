"""Checkpoints under tests/fixtures/tiny and what others computed with them."""

from functools import cache
from pathlib import Path

import numpy as np

from helios_dod.ignition.checkpoints import open_checkpoint
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.prepared import Prepared
from helios_dod.ignition.recipes import prepare

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TINY = FIXTURES / "tiny"
FOLDERS = sorted(path.name for path in TINY.iterdir() if (path / "config.json").exists())
FILES = sorted(path.name for path in TINY.glob("*.gguf") if path.stem != "spm_vocabulary")
EVERY = [*FOLDERS, *FILES]


@cache
def opened(name: str) -> Checkpoint:
    """A tiny checkpoint by the name of its folder or file."""
    return open_checkpoint(TINY / name)


@cache
def prepared(name: str, cache_type: str = "f32", lanes: int = 16) -> Prepared:
    """A tiny checkpoint prepared with small programs."""
    return prepare(opened(name), Options(cache=cache_type, lanes=lanes, packed=(64, 128)))


def expected(name: str) -> dict[str, np.ndarray]:
    """Prompts, logits and greedy tokens by transformers."""
    stem = name.removesuffix(".gguf")
    own = TINY / f"{stem}.expected.npz"
    return dict(np.load(own if own.exists() else TINY / stem / "expected.npz"))

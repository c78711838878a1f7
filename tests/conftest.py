"""Shared fixtures: the real small model, fetched once into the user's cache folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_harness import Server

from helios_dod.cores.demo import demo_checkpoint


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The demo's checkpoint file, its digest verified."""
    return demo_checkpoint()


def prepare_core(checkpoint: Path, folder: Path, cache: str) -> Path:
    """A core of the demo checkpoint with that cache element type, signed and accepted."""
    from helios_dod.cli import main

    target = folder / f"{cache}.core"
    code = main(["prepare", "--recipe", "decoder", "--checkpoint", str(checkpoint), "--out",
                 str(target), "--cache-dtype", cache])
    assert code == 0
    return target


@pytest.fixture(scope="session")
def f32_core(checkpoint, tmp_path_factory) -> Path:
    """The demo model with a float32 cache, where equality is tested."""
    return prepare_core(checkpoint, tmp_path_factory.mktemp("core"), "f32")


@pytest.fixture(scope="module")
def smollm2_core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A core of random weights with the demo's tokenizer, accepted by a user of its own."""
    from test_server_real import make

    folder = tmp_path_factory.mktemp("smollm2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOS_CONFIG", str(folder / "config"))
        yield make(folder, "smollm2")


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server over the engine's test double, saying the texts of tests/scripted.py."""
    from scripted import serving_scripts

    with serving_scripts(tmp_path_factory.mktemp("scripted")) as server:
        yield server

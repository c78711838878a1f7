"""Cores that were made once load for ever: every contract version in every carrier.

tests/golden.py made them, and says why four of them are refused. Those named `whole` have every
part that a server starts with, and are run: tokenizer, template, byte table and output syntax."""

import hashlib
import json
import shutil

import pytest

from helios_dod.contract.errors import ContractError
from helios_dod.cores.reader import open_core
from helios_dod.server.verification import verify
from tests.golden import FOLDER, SECRET, at_version, name_of, whole

NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def describe(path):
    """What a golden core says, as JSON values."""
    core = open_core(path)
    manifest = core.manifest()
    prepared = core.prepared(manifest)
    weights = core.weights(manifest=manifest)
    table = core.token_bytes()
    return {
        "carrier": core.carrier, "namespace": core.namespace, "version": prepared.version,
        "served_id": prepared.served_id, "snapshots": prepared.snapshots,
        "programs": [[p.name, p.operation, p.batch, p.drafts, p.width, p.packed,
                      p.confidence_width, len(p.bindings), p.host_pending, p.lane_limit]
                     for p in prepared.programs],
        "vision": prepared.vision is not None, "tuning": [g.name for g in prepared.tuning],
        "regions": [r.kind for r in prepared.cache.regions],
        "tokenizer": core.tokenizer().decode(), "template": core.chat_template(),
        "tokens": table.data.tobytes().hex(),
        "weights": {name: hashlib.sha256(data).hexdigest() for name, data in weights.items()},
    }


REFUSED = [name for name, part in EXPECTED.items() if "refused" in part]


@pytest.fixture(autouse=True)
def with_secret(monkeypatch, tmp_path):
    monkeypatch.setenv("HELIOS_CORE_KEY", SECRET.hex())
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_golden_core(name):
    assert describe(FOLDER / name) == EXPECTED[name]
    if name.startswith("whole"):
        assert verify(open_core(FOLDER / name)).prompt_count == 10


@pytest.mark.parametrize("name", REFUSED)
def test_golden_core_that_broke_the_contract(name):
    """Its files are read and verified; what its graphs leave out is named."""
    core = open_core(FOLDER / name)
    manifest = core.manifest()
    with pytest.raises(ContractError) as caught:
        core.prepared(manifest)
    assert str(caught.value) == EXPECTED[name]["refused"]
    assert not any(graph.states for graph in core.serving.model.graphs)


def test_every_version_and_carrier_is_there():
    wanted = {(version, carrier) for version in (1, 2, 3)
              for carrier in ("payload", "logical-6", "logical-4")}
    found = {(part["version"], part["carrier"]) for name, part in EXPECTED.items()
             if name not in REFUSED}
    assert wanted == found and set(EXPECTED) == set(NAMES)
    assert {f"whole-{version}-{carrier}" for version, carrier in wanted} <= set(NAMES)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("make", [at_version, whole])
def test_todays_writer_still_makes_them(make, version, tmp_path):
    """The same contents today: the golden cores are no accident of an old writer."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from helios_dod.cores.writer import Publisher, write_core

    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    target = tmp_path / "made"
    write_core(make(version), target, Publisher(key, "golden"))
    name = name_of(version) if make is at_version else f"whole-{version}"
    assert describe(target) == EXPECTED[f"{name}-payload"]
    shutil.rmtree(target)

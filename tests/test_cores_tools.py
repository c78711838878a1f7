"""helios verify, keygen, sign, export, import and diff."""

import json
import shutil

import pytest

from helios_dod.cli import main
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.errors import AcceptanceError
from helios_dod.cores.keys import load_key, public_bytes, user_key
from helios_dod.cores.reader import open_core
from helios_dod.cores.writer import Publisher, write_core
from tests.tiny_core import make_prepared

SECRET = bytes(range(32)).hex()


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HELIOS_CORE_KEY", raising=False)
    monkeypatch.delenv("HELIOS_CORE_KEY_FILE", raising=False)


@pytest.fixture
def core(tmp_path):
    target = tmp_path / "tiny.core"
    write_core(make_prepared(), target, Publisher(user_key(), "tests"), accept=True)
    return target


def run(capsys, *words):
    """(status, standard output, standard error) of a command."""
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_verify_says_what_it_checked(capsys, core):
    status, out, err = run(capsys, "verify", core)
    assert status == 0 and "payload core of tests, contract version 3" in out
    assert "verifying tiny.core: 4.1 kB" in err
    status, out, _ = run(capsys, "verify", core, "--json")
    report = json.loads(out)
    assert (report["carrier"], report["weight_bytes"], report["accepted"]) == (
        "payload", 4096, True)


@pytest.mark.parametrize("name", [
    "core.pb", "weights.bin", "resources/tokenizer.zst", "resources/chat_template.zst",
    "resources/token_bytes.zst", "resources/execution_manifest.zst"])
def test_verify_fails_by_name(capsys, core, name):
    data = bytearray((core / name).read_bytes())
    data[len(data) // 2] ^= 1
    (core / name).write_bytes(data)
    status, _, err = run(capsys, "verify", core)
    assert status == 1 and err.splitlines()[-1].startswith("helios verify: ")
    assert name.split("/")[-1].split(".")[0] in err


@pytest.mark.parametrize("carrier", ["logical-6", "logical-4"])
def test_export_and_import_keep_everything(capsys, core, tmp_path, carrier):
    if carrier == "logical-4":
        status, _, err = run(capsys, "export", core, "--out", tmp_path / "x", "--carrier", carrier)
        assert status == 1 and "needs its key: set HELIOS_CORE_KEY" in err
        assert run(capsys, "keygen", "--sealing")[0] == 0
    made, back = tmp_path / "made.core", tmp_path / "back.core"
    status, out, _ = run(capsys, "export", core, "--out", made, "--carrier", carrier)
    assert status == 0 and f"a {carrier} core" in out
    assert open_core(made).carrier == carrier
    assert run(capsys, "verify", made)[0] == 0
    assert f"{carrier} core" in run(capsys, "inspect", made)[1]
    assert run(capsys, "diff", core, made)[1] == f"carrier: payload | {carrier}\n"
    assert run(capsys, "import", made, "--out", back)[0] == 0
    assert run(capsys, "diff", core, back) == (0, "the same\n", "")
    assert run(capsys, "export", core, "--out", made)[0] == 1


def test_nothing_is_converted_that_was_not_accepted(capsys, core, tmp_path):
    (core / "acceptance.json").unlink()
    status, _, err = run(capsys, "export", core, "--out", tmp_path / "made.core")
    assert status == 1 and "--accept tests" in err
    assert run(capsys, "export", core, "--out", tmp_path / "made.core", "--accept", "other")[0] == 1
    assert not (tmp_path / "made.core").exists()
    assert run(capsys, "export", core, "--out", tmp_path / "made.core", "--accept", "tests")[0] == 0


def test_keygen_replaces_nothing(capsys, tmp_path):
    path = tmp_path / "a.key"
    status, out, _ = run(capsys, "keygen", "--out", path)
    assert status == 0 and public_bytes(load_key(path)).hex() in out
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert run(capsys, "keygen", "--out", path)[0] == 1 and path.read_bytes() == before
    sealing = tmp_path / "seal.key"
    status, out, _ = run(capsys, "keygen", "--sealing", "--out", sealing)
    assert status == 0 and sealing.read_text().strip() not in out
    assert sealing.stat().st_mode & 0o777 == 0o600
    assert run(capsys, "keygen", "--sealing", "--out", sealing)[0] == 1


@pytest.mark.parametrize("carrier", ["payload", "logical-6"])
def test_sign_again(capsys, core, tmp_path, carrier):
    if carrier != "payload":
        made = tmp_path / "made.core"
        assert run(capsys, "export", core, "--out", made)[0] == 0
        core = made
    key = tmp_path / "publisher.key"
    assert run(capsys, "keygen", "--out", key)[0] == 0
    assert run(capsys, "sign", core, "--key", key, "--namespace", "new.name")[0] == 0
    signed = open_core(core)
    assert (signed.namespace, signed.public_key) == ("new.name", public_bytes(load_key(key)))
    authorize(signed)
    data = bytearray((core / "weights.bin").read_bytes())
    data[0] ^= 1
    (core / "weights.bin").write_bytes(data)
    assert run(capsys, "sign", core, "--key", key)[0] == 1  # nothing unverified is signed


@pytest.mark.parametrize("namespace", ["", "x" * 201, "a\nb"])
def test_a_bad_namespace_leaves_the_core_as_it_was(capsys, core, namespace):
    before = (core / "core.pb").read_bytes()
    status, _, err = run(capsys, "sign", core, "--namespace", namespace)
    assert status == 1 and "publisher_namespace: expected 1 to 200" in err
    assert (core / "core.pb").read_bytes() == before


def test_another_key_needs_another_acceptance(capsys, core, tmp_path):
    copy = shutil.copytree(core, tmp_path / "copy.core")
    assert run(capsys, "keygen", "--out", tmp_path / "k")[0] == 0
    assert run(capsys, "sign", core, "--key", tmp_path / "k")[0] == 0
    shutil.copy(copy / "acceptance.json", core / "acceptance.json")
    with pytest.raises(AcceptanceError, match="another public key"):
        authorize(open_core(core))


def test_diff_names_fields(capsys, core, tmp_path):
    prepared = make_prepared()
    prepared.contract.concurrency = 2
    prepared.contract.aliases.append("more")
    prepared.contract.model.frontend.template_tokens["bos_token"] = "<s>"
    prepared.manifest.programs[4].name = "decode"
    prepared.manifest.buffers[4].name = "row"
    weights = prepared.weights.parts[0].produce()
    weights[0] ^= 1
    other = tmp_path / "other.core"
    write_core(prepared, other, Publisher(user_key(), "tests"))
    status, out, _ = run(capsys, "diff", core, other)
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert status == 1 and lines["contract.concurrency"] == "4 | 2"
    assert lines["contract.aliases[1]"] == "none | more"
    assert lines["manifest.buffers[4].name"] == "slot | row"
    assert lines["weights.weights.bytes"] == "other bytes | other bytes"
    assert "contract.model.frontend.template_tokens" in lines
    status, out, _ = run(capsys, "diff", core, other, "--json")
    assert json.loads(out)["contract.concurrency"] == {"a": "4", "b": "2"}

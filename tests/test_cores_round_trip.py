"""A core that was written reads back as it was, is accepted as it should be, and appears whole."""

import hashlib
import json
import os
import stat
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.cli import main
from helios_dod.contract.wire import core_pb2
from helios_dod.cores import files, writer
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.errors import AcceptanceError, CoreError
from helios_dod.cores.files import locked
from helios_dod.cores.keys import load_key, make_key, user_key, user_key_path
from helios_dod.cores.layout import CHUNK_NBYTES
from helios_dod.cores.reader import open_core
from helios_dod.cores.writer import Publisher, write_core
from tests.tiny_core import make_prepared


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Keys and caches of the tests are not the developer's."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def publisher():
    return Publisher(user_key(), "tests.example")


def write(tmp_path, publisher, **options):
    target = tmp_path / "tiny.core"
    write_core(make_prepared(2 * CHUNK_NBYTES + 5000), target, publisher, **options)
    return target


def test_round_trip(tmp_path, publisher):
    prepared = make_prepared(2 * CHUNK_NBYTES + 5000)
    seen = []
    write_core(prepared, tmp_path / "tiny.core", publisher, progress=seen.append)
    core = open_core(tmp_path / "tiny.core")
    assert core.namespace == "tests.example"
    assert core.license_text == prepared.license_text
    assert core.serving == prepared.contract
    assert core.manifest() == prepared.manifest
    assert core.tokenizer() == prepared.tokenizer_json
    assert core.chat_template() == prepared.chat_template
    table = core.token_bytes()
    assert table.data.tobytes() == prepared.token_bytes.data
    assert table.offsets.tolist() == list(prepared.token_bytes.offsets)
    checked = []
    weights = core.weights(progress=checked.append)["weights"]
    whole = prepared.weights.assemble()
    assert np.array_equal(weights[: whole.size], whole)
    assert not weights[whole.size :].any() and weights.size % 4096 == 0
    assert sum(seen) == sum(checked) == weights.size
    assert not weights.flags.writeable
    assert len(core.body.weights[0].chunk_sha256) == 3
    assert core.prepared(core.manifest()).served_id == "tiny"


def test_empty_template(tmp_path, publisher):
    prepared = make_prepared()
    object.__setattr__(prepared, "chat_template", "")
    write_core(prepared, tmp_path / "tiny.core", publisher)
    assert open_core(tmp_path / "tiny.core").chat_template() == ""


def test_acceptance_is_the_exact_namespace(tmp_path, publisher):
    core = open_core(write(tmp_path, publisher))
    with pytest.raises(AcceptanceError, match=r"(?s)has not been accepted.*Use it as you like"):
        authorize(core)
    for wrong in ("", "tests", "tests.example ", "Tests.example", "tests.example.more"):
        with pytest.raises(AcceptanceError, match="does not equal"):
            authorize(core, accept=wrong)
        with pytest.raises(AcceptanceError):
            authorize(core)
    authorize(core, accept="tests.example")
    authorize(core)
    (record,) = json.loads((core.path / "acceptance.json").read_text())["users"]
    digest = hashlib.sha256(core.license_text.encode()).hexdigest()
    assert record["accepted"]["license_sha256"] == digest
    license_file = core.path / f"license-{digest[:16]}.txt"
    assert license_file.read_text() == core.license_text
    assert record["accepted"]["namespace"] == "tests.example"
    (core.path / "acceptance.json").write_text(json.dumps(record))  # as it was written first
    authorize(core)


def test_acceptances_of_several_users_stand_beside_each_other(tmp_path, publisher, monkeypatch):
    core = open_core(write(tmp_path, publisher))
    homes = [str(tmp_path / name) for name in ("one", "other", "third")]
    for home in homes[:2]:
        monkeypatch.setenv("HELIOS_CONFIG", home)
        with pytest.raises(AcceptanceError):
            authorize(core)
        authorize(core, accept="tests.example")
    for home in homes[:2]:
        monkeypatch.setenv("HELIOS_CONFIG", home)
        authorize(core)
        authorize(core, accept="tests.example")  # again: nothing new
    assert len(json.loads((core.path / "acceptance.json").read_text())["users"]) == 2
    monkeypatch.setenv("HELIOS_CONFIG", homes[2])
    make_key(user_key_path())
    with pytest.raises(AcceptanceError, match="not given by this user"):
        authorize(core)


def test_the_longest_licence_can_be_accepted_again_and_again(tmp_path, publisher, monkeypatch):
    """Records stay readable, however long what was accepted is, and however many users accept."""
    long = "\x01" * (1 << 20)
    write_core(make_prepared(license_text=long), tmp_path / "long.core", publisher)
    core = open_core(tmp_path / "long.core")
    for home in range(70):
        monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / f"home-{home}"))
        authorize(core, accept="tests.example")
        authorize(core)
    path = core.path / "acceptance.json"
    assert len(json.loads(path.read_text())["users"]) == 64
    with pytest.raises(CoreError, match="license_text: 1048577 bytes; at most 1048576"):
        write_core(make_prepared(license_text=long + "x"), tmp_path / "more.core", publisher)


def test_records_that_fill_the_file_make_room(tmp_path, publisher, monkeypatch):
    """Earlier records hold the licence text themselves."""
    core = open_core(write(tmp_path, publisher, accept=True))
    path, key = core.path / "acceptance.json", Ed25519PrivateKey.generate()
    (mine,) = json.loads(path.read_text())["users"]
    accepted = mine["accepted"] | {"license_text": "x" * 400_000}
    encoded = json.dumps(accepted, sort_keys=True, separators=(",", ":")).encode()
    other = {"accepted": accepted, "signature": key.sign(encoded).hex()}
    path.write_text(json.dumps({"users": [other, other, mine]}))
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "third"))
    monkeypatch.setattr("helios_dod.cores.acceptance.RECORD_NBYTES_MAX",
                        path.stat().st_size + 100)
    authorize(core, accept="tests.example")
    authorize(core)
    assert [len(part["accepted"]) for part in json.loads(path.read_text())["users"]] == [5, 4, 4]


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path, publisher):
    core = open_core(write(tmp_path, publisher, accept=True))
    path, outside = core.path / "acceptance.json", tmp_path / "outside"
    os.rename(path, outside)
    path.symlink_to(outside)
    with pytest.raises(AcceptanceError, match="cannot be read or is not this user's"):
        authorize(core)
    before = outside.read_bytes()
    authorize(core, accept="tests.example")
    assert not path.is_symlink() and outside.read_bytes() == before


def test_users_that_accept_at_once_wait_for_each_other(tmp_path, publisher, monkeypatch, capsys):
    monkeypatch.setattr(files, "LOCK_TOLD_S", (0.0, 3600.0))
    core = open_core(write(tmp_path, publisher))
    with locked(core.path / "acceptance.json"):
        thread = threading.Thread(target=authorize, args=(core, "tests.example"))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not (core.path / "acceptance.json").exists()
    thread.join()
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"{core.path / 'acceptance.json'}: another process is writing there; ")
    assert told.endswith(" 0 s")
    authorize(core)


def test_a_refusal_shows_the_licence(tmp_path, publisher, capsys):
    for size, shown in ((16_000, ""), (20_000, "16384 of 20006 characters; helios inspect")):
        target = tmp_path / f"{size}.core"
        write_core(make_prepared(license_text="x" * size + " y end"), target, publisher)
        with pytest.raises(AcceptanceError) as caught:
            authorize(open_core(target))
        assert shown in str(caught.value) and str(caught.value).endswith(
            "shows all of them)" if shown else "x y end")
        assert main(["inspect", str(target), "--license"]) == 0
        assert capsys.readouterr().out == "x" * size + " y end\n"


def test_acceptance_given_while_writing(tmp_path, publisher):
    authorize(open_core(write(tmp_path, publisher, accept=True)))


def test_acceptance_of_another_user_does_not_count(tmp_path, publisher, monkeypatch):
    core = open_core(write(tmp_path, publisher, accept=True))
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "someone_else"))
    with pytest.raises(AcceptanceError, match="not this user's"):
        authorize(core)
    make_key(user_key_path())
    with pytest.raises(AcceptanceError, match="not given by this user"):
        authorize(core)
    user_key_path().chmod(0o644)  # says what is wrong with the key, not with the acceptance
    with pytest.raises(AcceptanceError, match=r"cannot be told: .* others may read"):
        authorize(core)


def test_acceptance_does_not_carry_over_to_another_key(tmp_path, publisher):
    core = open_core(write(tmp_path, publisher, accept=True))
    record = (core.path / "acceptance.json").read_bytes()
    other = Publisher(Ed25519PrivateKey.generate(), publisher.namespace)
    core = open_core(write(tmp_path, other, overwrite=True))
    (core.path / "acceptance.json").write_bytes(record)
    with pytest.raises(AcceptanceError, match="another public key"):
        authorize(core)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"accepted": 1, "signature": "zz"}',
                                  b'{"accepted": {}, "signature": "00"}', b"\xff",
                                  b'{"users": 3}', b'{"users": [{}, 1]}', b'{"users": []}',
                                  b"[" * 100_000, b" " * (2 << 20)])
def test_malformed_acceptance_is_refused(tmp_path, publisher, text):
    core = open_core(write(tmp_path, publisher))
    (core.path / "acceptance.json").write_bytes(text)
    with pytest.raises(AcceptanceError):
        authorize(core)


def test_acceptance_is_a_regular_file(tmp_path, publisher):
    """A pipe that nobody writes would be read for ever."""
    core = open_core(write(tmp_path, publisher))
    os.mkfifo(core.path / "acceptance.json")
    with pytest.raises(AcceptanceError, match="cannot be read"):
        authorize(core)


def test_key_is_private_and_kept(tmp_path):
    key = user_key()
    path = user_key_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert user_key().private_bytes_raw() == key.private_bytes_raw()
    assert make_key(path).private_bytes_raw() == key.private_bytes_raw()
    path.chmod(0o644)
    with pytest.raises(CoreError, match="chmod 600"):
        load_key(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(CoreError, match="PEM"):
        load_key(path)


def test_existing_core_is_kept_unless_told(tmp_path, publisher):
    target = write(tmp_path, publisher)
    before = (target / "core.pb").read_bytes()
    with pytest.raises(CoreError, match="exists already"):
        write(tmp_path, publisher)
    assert (target / "core.pb").read_bytes() == before
    write_core(make_prepared(license_text="Other."), target, publisher, overwrite=True)
    assert open_core(target).license_text == "Other."
    assert sorted(os.listdir(tmp_path)) == ["config", "tiny.core"]


def test_failed_write_leaves_nothing(tmp_path, publisher):
    prepared = make_prepared(CHUNK_NBYTES)

    def fail(_):
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_core(prepared, tmp_path / "tiny.core", publisher, progress=fail)
    assert os.listdir(tmp_path) == ["config"]


def test_index_comes_last(tmp_path, publisher, monkeypatch):
    """Whatever is on disk before the last file is no core."""
    written = []
    plain = writer.write_file

    def watch(path, data):
        written.append(path.name)
        with pytest.raises(CoreError):
            open_core(path.parent if path.name == "core.pb" else path.parent.parent)
        plain(path, data)

    monkeypatch.setattr(writer, "write_file", watch)
    write(tmp_path, publisher)
    assert written[-1] == "core.pb" and len(written) == 6


def test_full_disk_is_said(tmp_path, publisher, monkeypatch):
    class Full:
        free = 1000

    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: Full)
    with pytest.raises(CoreError, match=r"out of disk space: needs .* 1000 are free"):
        write(tmp_path, publisher)
    assert os.listdir(tmp_path) == ["config"]


def test_disk_that_fills_up_is_said(tmp_path, publisher, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_write_weights", fail)
    with pytest.raises(CoreError, match="out of disk space"):
        write(tmp_path, publisher)
    assert os.listdir(tmp_path) == ["config"]


def test_format_version_is_independent_of_others(tmp_path, publisher):
    """An unknown execution ABI label does not gate loading."""
    prepared = make_prepared()
    prepared.manifest.abi_version = 99
    write_core(prepared, tmp_path / "tiny.core", publisher)
    core = open_core(tmp_path / "tiny.core")
    assert core.prepared(core.manifest()).version == 3
    assert core.body.format_version == 2
    assert {part.kind for part in core.body.executables} == {
        core_pb2.EXECUTION_MANIFEST, core_pb2.TOKENIZER, core_pb2.CHAT_TEMPLATE,
        core_pb2.TOKEN_BYTES}

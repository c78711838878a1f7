"""The flight recorder: what it keeps runs again to the same bytes, and says why requests waited."""

import os
import random
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import numpy as np
import pytest
import zstandard
from server_harness import running, wait_until
from test_server_real import command, make

from helios_dod.cli import main
from helios_dod.edges import Submission
from helios_dod.errors import UserError
from helios_dod.executors.base import DeviceError
from helios_dod.ledger import ADVANCING, DECISIONS, FIRST, Ledger
from helios_dod.recording import (
    EARLIER,
    Crash,
    Divergence,
    Recorder,
    check_target,
    crash_text,
    edgeless_digest,
    load,
    replay,
    salvage,
)
from helios_dod.server.names import name_of
from helios_dod.simulation.simulator import Simulator, Workload
from helios_dod.terms import FINISH_DEVICE_ERROR

SEEDS = range(40, 52)


def recorded(tmp_path, seed, run=400, **limits):
    """A simulator that was recorded, and the file."""
    simulator = Simulator(seed, walked=False)
    recorder = simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN", **limits)
    simulator.run(run)
    path = tmp_path / "file"
    recorder.save(path, "stopped")
    return recorder, path


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recording_runs_again(tmp_path, seed):
    recorder, path = recorded(tmp_path, seed, ticks=150)
    assert not recorder.broken
    file = load(path)
    assert len(file.entries) == 150, "older ticks moved to the tail"
    assert sum(1 for _ in replay(file)) == 150


def test_memory_is_bounded(tmp_path):
    recorder, path = recorded(tmp_path, 3, memory_bytes=20_000)
    assert recorder.ledger.nbytes <= 20_000 and not recorder.broken
    assert 0 < len(load(path).entries) < 400
    assert list(replay(load(path)))


@pytest.mark.parametrize("change", ["time", "row", "token", "world"])
def test_other_inputs_are_noticed(tmp_path, change):
    file = load(recorded(tmp_path, 5)[1])
    for entry in file.entries:
        if change == "time":
            entry.finished_sequence = 0
        elif change == "row":
            entry.rows.clear()
        elif change == "token":
            for done in entry.finished:
                done.columns = [bytes(len(column)) for column in done.columns]
    if change == "world":
        file.digest = "0" * 64
    with pytest.raises((Divergence, Crash)):
        list(replay(file))


def crashed(tmp_path, column):
    """The recording of an engine that failed in a tick, by a number that no frontend writes."""
    simulator = Simulator(5, walked=False)
    recorder = simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN")
    for _ in range(30):
        simulator.tick()
    ring = simulator.world[0]["ingress"]
    while not simulator.edge.submit(Submission(
            tag=999, prompt=np.arange(5, dtype=np.int32), output_limit=2)):
        simulator.tick()
    row = 0 if column == "end" else int(ring["end"][0, 0] - 1) % ring["kind"].shape[1]
    ring[column][0, row] += 10_000
    with pytest.raises((IndexError, AssertionError)) as caught:
        for _ in range(400):
            simulator.tick()
    path = tmp_path / "file"
    recorder.save(path, crash_text(caught.value))
    return path


@pytest.mark.parametrize(("column", "error"), [
    ("bias_count", "IndexError"), ("end", "AssertionError")])
def test_a_crash_happens_again(tmp_path, capsys, column, error):
    path = crashed(tmp_path, column)
    last = len(load(path).entries)
    with pytest.raises(Crash, match=error):
        list(replay(load(path)))
    assert main(["replay", str(path)]) == 1
    shown = capsys.readouterr().out
    assert f"recording ended: {error}: " in shown
    assert f"tick {last} raised the same again" in shown


@pytest.mark.parametrize("call", ["poll", "submit", "copy", "copied"])
def test_a_failed_device_s_recordings_run_again(tmp_path, capsys, call):
    """Its device fails with frames and copies in flight, and that of the engine started after it:
    two recordings, each to its own digest, that say what each request did until then."""
    path, digests, failed = tmp_path / "file", [], []
    for seed in (11, 12):
        simulator = Simulator(seed, walked=False, pages=12, workload=Workload(
            arrival=1.0, cancel=0.0, deadline=0.0, ignore_eos=1.0, memory_pages=4, disk_pages=4,
            prompt_max=40, output_max=80))
        recorder = simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN")
        copies, frames = simulator.world[0]["copies"], simulator.world[0]["frames"]
        for _ in range(400):
            simulator.tick()
            if (copies["first"] != copies["end"]).any() and frames["state"].any():
                break
        else:
            raise AssertionError("no copy beside a frame")
        ended = []

        def judge(live, reason, *_, ended=ended):
            ended.append((live.submission.tag, reason))

        def broken(*_):
            raise DeviceError(f"{call}: injected")

        simulator.judge = judge
        setattr(simulator.executor, call, broken)
        simulator.executor.next_end = lambda: None
        simulator.run(10)
        recorder.save(path, crash_text(simulator.engine.failure))
        digests.append(edgeless_digest(simulator.world))
        failed.append([tag for tag, reason in ended if reason == FINISH_DEVICE_ERROR])
    for name, digest, tags in zip((tmp_path / "file.1", path), digests, failed, strict=True):
        shown = timeline(name, capsys, "--request", str(tags[0]))
        assert f"recording ended: DeviceError: {call}: injected" in shown
        assert "advances (" in shown and shown.endswith(f"digest {digest}\n")


def test_another_crash_is_told(tmp_path, capsys):
    path = crashed(tmp_path, "bias_count")
    file = load(path)
    file.ended = "stopped"
    path.write_bytes(zstandard.compress(msgspec.msgpack.encode(file)))
    assert main(["replay", str(path)]) == 1
    assert f"tick {len(file.entries)} raised IndexError: " in capsys.readouterr().out


def test_earlier_recordings_stay(tmp_path):
    simulator = Simulator(3, walked=False)
    recorder = Recorder(simulator.world, "TEST_MIN")
    path = tmp_path / "file"
    for number in range(EARLIER + 3):
        recorder.save(path, f"number {number}")
    names = [path, *(tmp_path / f"file.{number}" for number in range(1, EARLIER + 1))]
    assert sorted(tmp_path.iterdir()) == sorted(names)
    assert [load(name).ended for name in names] == [
        f"number {EARLIER + 2 - at}" for at in range(EARLIER + 1)]


@pytest.mark.parametrize("name", ["missing/file", ".", "file/file", "a" * 300, "a\0b", "pipe"])
def test_what_cannot_be_written_is_refused_at_start(tmp_path, capsys, name):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"expected a file.*, got "):
        check_target(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]
    assert (tmp_path / "pipe").is_fifo()
    check_target(tmp_path / "file")
    assert main(["serve", "core", "--record", str(tmp_path / name)]) == 1
    assert "helios serve: --record: expected a file" in capsys.readouterr().err


def test_a_broken_recording_does_not_stop_the_engine(tmp_path, capsys):
    simulator = Simulator(5, walked=False)
    recorder = simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN", ticks=20)
    for _ in range(60):
        simulator.tick()
    recorder.ledger.words[recorder.ledger.header[FIRST] + DECISIONS] ^= 1
    simulator.run(50)
    assert "decided otherwise than recorded" in capsys.readouterr().err
    with pytest.raises(UserError, match="not written, recording stopped"):
        recorder.save(tmp_path / "file", "stopped")


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_against_a_naive_twin(seed):
    """Entries of any length, dropped where there is no room: they come back as they were."""
    rng, twin = random.Random(seed), deque()
    words = rng.randint(8, 80)
    ledger = Ledger(24, 8 * words)
    ledger.begin()
    for number in range(400):
        data = rng.randbytes(rng.choice((0, 1, 7, 8, 9, rng.randint(0, 8 * words))))
        if not ledger.fits(data):
            assert ledger.oldest() == twin[0] if twin else len(data) > 8 * (words - 3)
        while not ledger.fits(data) and twin:
            ledger.drop()
            twin.popleft()
        if ledger.fits(data):
            ledger.append(data)
            twin.append((data, 0, -1))
            if rng.random() < 0.8:
                ledger.finish(number, 2 * number)
                twin[-1] = (data, number, 2 * number)
        assert list(ledger.entries()) == list(twin) and ledger.count == len(twin)
        assert ledger.nbytes <= 8 * words and not any(ledger.tail)


def test_inputs_larger_than_the_memory_end_the_recording(tmp_path, capsys):
    simulator = Simulator(5, walked=False)
    recorder = simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN", memory_bytes=64)
    simulator.run(20)
    assert "which 64 do not hold" in capsys.readouterr().err
    with pytest.raises(UserError, match="not written, recording stopped"):
        recorder.save(tmp_path / "file", "stopped")


@pytest.mark.parametrize("moment", ["between", "begun", "within", "advancing"])
def test_a_killed_engine_s_recording_is_there(tmp_path, capsys, moment):
    """Whoever shares its memory writes it, at whatever moment the engine was killed."""
    simulator, path = Simulator(7, walked=False), tmp_path / "file"
    ledger = Ledger(simulator.world.nbytes)
    engine = simulator.engine
    engine.recorder = Recorder(simulator.world, "TEST_MIN", ticks=50, ledger=ledger)
    for _ in range(80):
        simulator.tick()
    if moment in ("begun", "within"):
        engine.begin()
    if moment == "within":
        engine.recorder.begin()
        engine._first(simulator.world)
    memory = simulator.world.view(np.uint8).data
    if moment == "advancing":
        ledger.state = ADVANCING
        with pytest.raises(UserError, match="not written, the engine ended while"):
            salvage(ledger, memory, "TEST_MIN", path, "killed")
        assert not path.exists()
        return
    salvage(ledger, memory, "TEST_MIN", path, "killed")
    shown = timeline(path, capsys)
    count = 51 if moment == "within" else 50
    assert f"recording ended: killed\n{count} ticks ran again to the same decisions" in shown
    assert ("the last had not ended" in shown) == (moment == "within")
    assert ("\ndigest " in shown) == (moment == "between")
    salvage(ledger, memory, "TEST_MIN", tmp_path / "again", "killed")
    assert not (tmp_path / "again").exists(), "a recording is written once"


def timeline(path, capsys, *arguments):
    assert main(["replay", str(path), *arguments]) == 0
    return capsys.readouterr().out


def ended(simulator, folder):
    """The recording of a simulator that has no more to do."""
    for _ in range(400):
        simulator.clock.now_ns = simulator.executor.next_end() or simulator.clock.now_ns + 1
        simulator.engine.step()
        simulator.edge.events()
    simulator.engine.recorder.save(folder / "file", "stopped")
    return folder / "file"


def test_why_a_request_waited(tmp_path, capsys):
    """Six requests for four slots, then one for more pages than are left."""
    simulator = Simulator(1, walked=False)
    simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN")
    for tag in range(1, 7):
        assert simulator.edge.submit(Submission(
            tag=tag, prompt=np.arange(40 if tag == 2 else 5, dtype=np.int32), output_limit=20))
        simulator.engine.step()
        simulator.edge.events()
    path = ended(simulator, tmp_path)
    everything = timeline(path, capsys)
    assert all(f"--request {tag}:" in everything for tag in range(1, 7))
    first, last = (timeline(path, capsys, "--request", tag) for tag in "16")
    assert "waits for a slot" not in first
    assert "advances (decode)" in first or "advances (speculative)" in first
    assert "waits for a frame: all are in flight" in first
    assert "waits for a slot: all 3 are held" in last or "waits behind" in last
    assert last.index("waits") < last.index("advances")


@pytest.mark.parametrize(("request_", "message"), [
    ("999999", "--request 999999: not seen in frontend 0"),
    ("chatcmpl-{other}", "--request 7: not seen in frontend 255"),
    ("chatcmpl-12", "--request: expected an answer's id or a tag, got 'chatcmpl-12'"),
    ("9" * 20, "expected an answer's id or a tag")])
def test_an_unknown_request_is_named(tmp_path, capsys, request_, message):
    path, asked = recorded(tmp_path, 2)[1], request_.format(other=name_of(255, 7))
    assert main(["replay", str(path), "--request", asked]) == 1
    assert message in capsys.readouterr().err


def test_why_a_request_waited_in_its_ring(tmp_path, capsys):
    """Six rows of requests are taken: the seventh and eighth are not received before two end."""
    simulator = Simulator(1, walked=False)
    simulator.engine.recorder = Recorder(simulator.world, "TEST_MIN")
    for tag in range(1, 9):
        assert simulator.edge.submit(Submission(
            tag=tag, prompt=np.arange(5, dtype=np.int32), output_limit=20))
        simulator.engine.step()
    path = ended(simulator, tmp_path)
    seventh, eighth = (timeline(path, capsys, "--request", f"cmpl-{name_of(0, tag)}")
                       for tag in (7, 8))
    assert "waits in its worker's ring for room: " in seventh
    assert "0 request rows" in seventh and "waits in its worker's ring behind 1 rows" in eighth
    assert all("advances (" in shown for shown in (seventh, eighth))


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x28\xb5\x2f\xfd"])
def test_what_is_no_recording_is_refused(tmp_path, data, capsys):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert main(["replay", str(path)]) == 1
    assert "not a recording" in capsys.readouterr().err


def test_a_recording_of_other_code_is_refused(tmp_path):
    path = recorded(tmp_path, 2)[1]
    file = load(path)
    file.sources = "0" * 64
    path.write_bytes(zstandard.compress(msgspec.msgpack.encode(file)))
    with pytest.raises(UserError, match="sources: expected"):
        load(path)


def test_a_served_engine_is_recorded(tmp_path, monkeypatch):
    """The rings of other processes are inputs, too."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    core, path = make(tmp_path, "smollm2"), tmp_path / "record"
    path.write_text("what an earlier engine left")
    with running(command(core, "--record", str(path))) as server:
        for stream in (False, True):
            answer = httpx.post(server.url + "/v1/chat/completions", timeout=60, json={
                "model": "default", "max_tokens": 6, "stream": stream, "logprobs": True,
                "messages": [{"role": "user", "content": "Hello"}]})
            assert answer.status_code == 200
        os.kill(server.process.pid, signal.SIGTERM)
        server.process.wait(60)
    shown = subprocess.run([sys.executable, "-m", "helios_dod", "replay", str(path)],
                           capture_output=True, text=True, check=True).stdout
    assert "recording ended: stopped" in shown and "ran again to the same decisions" in shown
    assert shown.count("--request") == 2
    assert (tmp_path / "record.1").read_text() == "what an earlier engine left"


def test_an_answer_s_id_is_explained(tmp_path, monkeypatch):
    """Ids as the API shows them, of three endpoints that share one lane."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    core, path = make(tmp_path, "smollm2"), tmp_path / "record"
    messages = [{"role": "user", "content": "Hello"}]
    bodies = {"chat/completions": {"messages": messages, "max_tokens": 12},
              "messages": {"messages": messages, "max_tokens": 12},
              "responses": {"input": "Hello", "max_output_tokens": 16}}
    arguments = ("--executor", "simulated", "--step-ms", "20", "--max-active", "1")

    def ask(name):
        answer = httpx.post(f"{server.url}/v1/{name}", timeout=60, json={
            "model": "default", **bodies[name]})
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    with running(command(core, *arguments, "--record", str(path))) as server:
        with ThreadPoolExecutor(3) as pool:
            ids = list(pool.map(ask, bodies))
        server.stop()
    shown = [subprocess.run([sys.executable, "-m", "helios_dod", "replay", str(path), "--request",
                             id], capture_output=True, text=True, check=True).stdout for id in ids]
    assert all("advances (decode)" in text for text in shown)
    assert sum("waits for a slot: all 1 are held" in text for text in shown) == 2
    assert all("ran again to the same decisions\ndigest" in text for text in shown)


def test_a_killed_engine_is_recorded(tmp_path, monkeypatch):
    """The parent writes what the engine could not; the engine after it, its own recording."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    core, path = make(tmp_path, "smollm2"), tmp_path / "record"
    arguments = ["--executor", "simulated", "--record", str(path), "--restart-engine", "1"]

    def ask(server, user):
        return httpx.post(server.url + "/v1/chat/completions", timeout=60, json={
            "model": "default", "max_tokens": 6,
            "messages": [{"role": "user", "content": user}]}).status_code

    with running(command(core, *arguments)) as server:
        assert [ask(server, text) for text in "ab"] == [200, 200]
        killed = server.children()[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: "simulated executor" in server.output.partition("again")[2], "restart")
        server.ready()
        assert ask(server, "c") == 200
        server.stop()
    shown = [subprocess.run([sys.executable, "-m", "helios_dod", "replay", str(name)],
                            capture_output=True, text=True, check=True).stdout
             for name in (tmp_path / "record.1", path)]
    assert "recording ended: the engine process was killed by SIGKILL" in shown[0]
    assert "recording ended: stopped" in shown[1]
    assert [text.count("--request") for text in shown] == [2, 1]
    assert all("ran again to the same decisions\ndigest" in text for text in shown)

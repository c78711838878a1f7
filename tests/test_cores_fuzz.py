"""A bounded part of tests/fuzz_cores.py: mutants of every carrier are refused by name or valid."""

import ctypes
import gc
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.reader import open_core
from helios_dod.server.verification import verify
from tests import fuzz_cores, fuzz_runs
from tests.tiny_core import add_buffer


@pytest.mark.parametrize("seed", [11, 12])
def test_mutants(seed, monkeypatch):
    monkeypatch.setenv("HELIOS_CORE_KEY", fuzz_cores.SECRET.hex())
    counts, failures, _ = fuzz_cores.fuzz(900, seed)
    assert not failures, "\n".join(failures)
    signed = sum(n for (_, kind, _), n in counts.items() if kind == "signed")
    assert signed >= 450
    for carrier in fuzz_cores.CARRIERS:
        assert counts[carrier, "signed", "valid"] and counts[carrier, "signed", "refused"]
        assert counts[carrier, "unsigned", "refused"]


class Heap(ctypes.Structure):
    """mallinfo2 of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


def taken():
    """Bytes that this process has asked for and not given back."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    heap = mallinfo()
    return heap.uordblks + heap.hblkhd


def test_a_verified_core_leaves_nothing_behind(tmp_path, monkeypatch):
    """The tokenizer library keeps the words of a BPE model that is gone."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    core = open_core(fuzz_cores.Honest("payload", tmp_path).path)
    for _ in range(3):
        verify(core)
    before = taken()
    for _ in range(12):
        verify(core)
    assert taken() - before < 12 * 8192  # 60 KiB each, when its words were kept


def wait():
    time.sleep(0.6)


def work():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass


@pytest.mark.parametrize("slow", [wait, work])
def test_a_hang_would_be_seen(monkeypatch, slow):
    """Waiting and working both; a process that is stopped and goes on later does neither."""
    calls = itertools.count()

    def load(path):
        if next(calls) >= 2 * len(fuzz_cores.CARRIERS):  # each honest core is loaded twice
            slow()

    monkeypatch.setattr(fuzz_cores, "HANG_S", 0.25)
    monkeypatch.setattr(fuzz_cores, "WAIT_S", 0.25)
    monkeypatch.setattr(fuzz_cores, "load", load)
    _, failures, _ = fuzz_cores.fuzz(1, 1)
    assert any("of processor" in failure for failure in failures)


def test_a_lenient_reader_would_be_seen(monkeypatch):
    """The fuzzer can fail: without signatures, changed bytes load."""
    monkeypatch.setattr("helios_dod.cores.index.is_signed", lambda *arguments: True)
    _, failures, _ = fuzz_cores.fuzz(300, 3)
    assert any("loads without a signature" in failure for failure in failures)


def test_mutants_that_are_run(monkeypatch):
    """What the contract does not refuse is loaded and run: it touches nothing outside."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    counts, failures = fuzz_runs.fuzz(60, 21)
    assert not failures, "\n".join(failures)
    assert counts["ran"] >= 8 and counts["refused"] >= 20


def test_operands_that_nobody_checks_would_be_seen(monkeypatch, tmp_path):
    """Rows selected into one column: without the check they reach what lies behind it."""
    core = fuzz_runs.honest_cores(tmp_path)[0]
    manifest, serving, weights = core.manifest(), core.serving, core.weights()
    narrow = add_buffer(manifest, "narrow", wire.SCRATCH, wire.F32, (wire.LANES, 1), 1)
    for body in manifest.host_bodies:
        for operation in body.operations:
            if operation.WhichOneof("operation") == "select_rows":
                operation.select_rows.output.buffer = narrow
    assert fuzz_runs.attempt(core, serving, manifest, weights) == ("refused", None)
    monkeypatch.setattr("helios_dod.contract.decode.check_bodies", lambda *arguments: None)
    assert fuzz_runs.attempt(core, serving, manifest, weights) == (
        "crash", "wrote outside of a buffer")


@pytest.mark.parametrize(("does", "ends"), [
    ("time.sleep(600)", True), ("while True: pass", True), ("pass", False)])
def test_a_child_that_hangs_is_ended(monkeypatch, does, ends):
    monkeypatch.setattr(fuzz_runs, "HANG_S", 0.3)
    monkeypatch.setattr(fuzz_runs, "LOOK_S", 0.01)
    monkeypatch.setattr(fuzz_runs, "LOOKS_MAX", 30)
    script = f"import time\nprint('begin 1 x', flush=True)\n{does}"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert list(fuzz_runs.watched(process)) == ["begin 1 x"]
    assert process.returncode == (-signal.SIGKILL if ends else 0)


def test_a_stopped_child_has_not_hung(monkeypatch):
    """It is let run again after more looks than one that sleeps may take."""
    monkeypatch.setattr(fuzz_runs, "LOOK_S", 0.01)
    monkeypatch.setattr(fuzz_runs, "LOOKS_MAX", 20)
    looks, asleep = itertools.count(), fuzz_runs.asleep
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('end', flush=True)"

    def look(pid):
        found = asleep(pid)
        if next(looks) == 100:
            os.kill(pid, signal.SIGCONT)
        return found

    monkeypatch.setattr(fuzz_runs, "asleep", look)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert list(fuzz_runs.watched(process)) == ["end"]
    assert process.returncode == 0


def test_memory_around_a_buffer_is_guarded():
    guarded = fuzz_runs.Guarded()
    memory = guarded.zeros(100)
    memory[:] = 1
    assert not guarded.changed()
    ctypes.memset(memory.ctypes.data + 100, 0, 1)
    assert guarded.changed()

"""A bounded part of tests/fuzz_cores.py: mutants of every carrier are refused by name or valid."""

import itertools
import time

import pytest

from tests import fuzz_cores


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
    monkeypatch.setattr(fuzz_cores, "load", load)
    _, failures, _ = fuzz_cores.fuzz(1, 1)
    assert any("of processor" in failure for failure in failures)


def test_a_lenient_reader_would_be_seen(monkeypatch):
    """The fuzzer can fail: without signatures, changed bytes load."""
    monkeypatch.setattr("helios_dod.cores.reader.is_signed", lambda *arguments: True)
    _, failures, _ = fuzz_cores.fuzz(300, 3)
    assert any("loads without a signature" in failure for failure in failures)

"""Swarms of seeds: what breaks is told with its command, and every rare branch is taken."""

import subprocess
import sys

import pytest

from helios_dod.simulation import swarm
from helios_dod.simulation.__main__ import main


def test_a_violation_is_told_with_its_command(monkeypatch, capsys):
    def broken(*arguments, **options):
        raise AssertionError("pages.free_count is -1")

    monkeypatch.setattr(swarm.Simulator, "run", broken)
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "7-8", "--ticks", "10", "--fused"])
    assert main() == 1
    told = capsys.readouterr().out
    assert "seed 7: AssertionError: pages.free_count is -1" in told
    assert "python -m helios_dod.simulation --seed 8 --ticks 10 --fused" in told
    assert "2 violations" in told


@pytest.mark.parametrize("mode", [(), ("--fused",), ("--oracle",)],
                         ids=["walked", "fused", "oracle"])
def test_a_seed_prints_its_digest_last(mode):
    """Two processes, one digest; the walked tick leaves the bytes of the fused one."""
    command = [sys.executable, "-m", "helios_dod.simulation", "--seed", "11", "--ticks", "60"]
    lines = subprocess.run([*command, *mode], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    assert lines[-1] == swarm.run_seed(11, 60, swarm.FUSED).digest


# Few seeds that take every rare branch together: tiers with failures, snapshots and windows, rounds
# with drafts of both sources, some under masks, and small vocabularies, in which a text repeats
# itself.
CORPUS = (4, 5, 9, 16, 18, 33, 69, 88, 312, 529, 542, 564, 1650, 2852, 6907, 20548, 24090, 25142)


@pytest.mark.parametrize("seed", [200028, 200579, 201169])
def test_seeds_that_broke_a_rule(seed):
    """Of a swarm of a million walked ticks: a request whose copy failed, sent back with its
    grammar; a snapshot of the same text that ends inside another request's span."""
    assert not swarm.run_seed(seed, 500, swarm.WALKED).violation


def test_prompts_pass_one_that_waits_for_its_mask():
    """Of a swarm of ten million: those behind it took windowed pages that were counted as its."""
    assert not swarm.run_seed(862808, 1000, swarm.FUSED).violation


def test_prompts_with_scores_pass_those_without():
    """Of another: the frame of their chunks took windowed pages that were counted as theirs."""
    assert not swarm.run_seed(861797, 1000, swarm.FUSED).violation


def test_every_counter_moves():
    """Counters are the marks of rare branches: over the corpus none of them stays at zero."""
    tally = swarm.Tally()
    for seed in CORPUS:
        tally.add(swarm.run_seed(seed, 400, swarm.FUSED))
    assert not tally.violations
    assert tally.counters and not tally.untaken


def test_liveness_goes_on_behind_a_copy_that_an_idle_engine_begins():
    """The tick that ends the last copy looks at TRIES pages of a full disk and finds none to drop;
    the one after finds one, and begins a copy to its place."""
    assert not swarm.run_seed(861272, 1000, swarm.FUSED).violation

"""What has a budget, rooflines and their plots: the commands run and say what they should. Nothing
here asserts a time."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from helios_dod.contract.decode import decode
from helios_dod.cores.reader import open_core
from helios_dod.executors.costs import FEATURES, OPERATIONS, read_costs
from helios_dod.perf import bench, cancel
from helios_dod.perf.__main__ import main, parser
from helios_dod.perf.report import roofline_chart
from helios_dod.simulation.observed import Steps
from helios_dod.simulation.roofline import Device, Work, work_of


def perf(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["perf", *map(str, arguments)])
    return main()


@pytest.mark.parametrize("budget", bench.BUDGETS, ids=lambda budget: budget.name)
def test_every_budget_names_a_command(budget):
    options = parser().parse_args([*budget.command, "--json"])
    assert options.json and options.command == budget.command[0]


def test_figures_stand_beside_their_budgets(monkeypatch, capsys, tmp_path):
    results = {bench.TICK: {"results": [{"tick": {"median_us": 49.0}},
                                        {"tick": {"median_us": 201.0}}]},
               bench.SIMULATE: {"steady": {"times_real_time": 150.0},
                                "mixed": {"times_real_time": 79.9}}}
    asked = []
    monkeypatch.setattr(bench, "measure", lambda command: asked.append(command) or results[command])
    baseline = tmp_path / "before.json"
    assert perf(monkeypatch, "bench", "--only", "tick, ", "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["figures"] == {"tick, 256 lanes": 49.0, "tick, 1,024 lanes": 201.0}
    assert asked == [bench.TICK], "once for both"
    baseline.write_text(json.dumps({"figures": {"tick, 256 lanes": 98.0}}))
    assert perf(monkeypatch, "bench", "--only", "256", "--baseline", baseline) == 0
    assert "<= 50 met; 0.50 of the baseline's 98" in capsys.readouterr().out
    assert perf(monkeypatch, "bench", "--only", "real time") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(">= 150 met") and second.endswith(">= 80 MISSED")
    assert perf(monkeypatch, "bench", "--only", "weather") == 1
    assert "there are: tick, 256 lanes" in capsys.readouterr().err


def test_a_measurement_that_fails_is_named(monkeypatch, capsys, tmp_path):
    absent = bench.Budget("absent", ("load", str(tmp_path / "absent")), (), "us", 1)
    monkeypatch.setattr(bench, "BUDGETS", (absent,))
    assert perf(monkeypatch, "bench") == 1
    assert f"perf load {tmp_path / 'absent'}: ended with 1" in capsys.readouterr().err


def test_a_cancelled_request_leaves_in_the_tick_of_its_last_fence_or_the_next():
    result = cancel.measure(2 * cancel.STAGES)
    assert result["ticks_most"] <= 1 <= result["in_flight"]


def test_a_server_is_started_and_its_streams_are_counted(smollm2_core, monkeypatch, capsys):
    assert perf(monkeypatch, "start", smollm2_core, "--repeats", 1, "--cache-memory", "8M",
                "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["listening_s"]["median"] <= result["ready_s"]["median"]
    assert perf(monkeypatch, "streaming", smollm2_core, "--streams", 4, "--seconds", 0.5,
                "--step-ms", 20, "--output-tokens", 250, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["tokens"] <= 4 * 250 and result["chunks"] > 0
    assert perf(monkeypatch, "start", smollm2_core.parent / "absent") == 1
    assert "the server did not start" in capsys.readouterr().err


def test_a_roofline_of_a_core_is_a_file_of_costs(smollm2_core, monkeypatch, tmp_path):
    out = tmp_path / "costs.json"
    assert perf(monkeypatch, "roofline", smollm2_core, "--bandwidth-gb", 2, "--teraflops", 1,
                "--out", out) == 0
    opened = open_core(smollm2_core)
    manifest = opened.manifest()
    work = work_of(manifest, decode(opened.serving, manifest))
    decoding = read_costs(out).table[OPERATIONS["decode"]]
    assert decoding[0, FEATURES.index("program")] == work.weight_bytes * 500, "picoseconds"
    assert decoding[1, FEATURES.index("packed")] == work.packed_operations
    assert perf(monkeypatch, "simulate", "--costs", out, "--shape", "code", "--requests", 5,
                "--lanes", 4, "--json") == 0


def test_programs_are_drawn_under_their_roof():
    """Two programs at the roof, one that took twice as long, one that the device waited for."""
    work = Work(1_000_000, 4_000_000, 0, 0, 0)
    packed = np.array([1, 1000, 1, 1])
    features = np.zeros((4, len(FEATURES)), np.int64)
    features[:, 0], features[:, FEATURES.index("packed")] = 1, packed
    durations = np.array([1_000_000, 4_000_000, 2_000_000, 9])
    decoding = OPERATIONS["decode"]
    steps = Steps(np.full(4, decoding), features, durations, np.array([False, False, False, True]))
    drawn = roofline_chart(steps, work, Device(1e9, 1e12))
    assert drawn.count("<circle") == 3 + 3, "programs, and the roof's three corners"
    assert "the machine" in drawn and "decode" in drawn
    nothing = roofline_chart(Steps(steps.operation, features, durations, np.ones(4, bool)), work,
                             Device(1e9, 1e12))
    assert "No program ran" in nothing


def test_a_page_needs_core_and_machine_together(smollm2_core, monkeypatch, tmp_path, capsys):
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"offered": {"requests_per_s": 1.0}, "runs": []}))
    arguments = ("report", "--results", results, "--out", tmp_path / "page.html")
    assert perf(monkeypatch, *arguments, "--core", smollm2_core) == 1
    assert "got none of --bandwidth-gb, --teraflops" in capsys.readouterr().err
    assert Path(tmp_path / "page.html").exists() is False

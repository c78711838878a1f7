"""What has a budget, rooflines and their plots: the commands run and say what they should. Nothing
here asserts a time."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helios_dod.contract.decode import decode
from helios_dod.cores.reader import open_core
from helios_dod.executors.costs import FEATURES, OPERATIONS, read_costs
from helios_dod.perf import bench, cancel, streaming
from helios_dod.perf.__main__ import main, parser
from helios_dod.perf.machine import commit, conditions, machine
from helios_dod.perf.report import roofline_chart
from helios_dod.schedule import TICK
from helios_dod.simulation.observed import Steps
from helios_dod.simulation.roofline import Device, Work, work_of


def perf(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["perf", *map(str, arguments)])
    return main()


@pytest.mark.parametrize("budget", [budget for budget in bench.BUDGETS if budget.command],
                         ids=lambda budget: budget.name)
def test_every_budget_names_a_command(budget):
    options = parser().parse_args([*budget.command, "--json"])
    assert options.json and options.command == budget.command[0]


def test_figures_stand_beside_their_budgets(monkeypatch, capsys, tmp_path):
    results = {bench.TICK: {"results": [{"tick": {"median_us": 49.0}},
                                        {"tick": {"median_us": 201.0}}]},
               bench.SIMULATE: {"steady": {"times_real_time": 150.0},
                                "mixed": {"times_real_time": 79.9}}}
    asked = []
    monkeypatch.setattr(bench, "measure",
                        lambda command, limit_s: asked.append(command) or results[command])
    baseline = tmp_path / "before.json"
    assert perf(monkeypatch, "bench", "--only", "tick, ", "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["figures"] == {"tick, 256 lanes": 49.0, "tick, 1,024 lanes": 201.0}
    assert asked == [bench.TICK], "once for both"
    baseline.write_text(json.dumps({"figures": {"tick, 256 lanes": 98.0}}))
    assert perf(monkeypatch, "bench", "--only", "256", "--baseline", baseline) == 0
    assert "<= 50 met; 0.50 of the baseline's 98" in capsys.readouterr().out
    baseline.write_text(json.dumps({"figures": {"tick, 256 lanes": 0.0}}))
    assert perf(monkeypatch, "bench", "--only", "256", "--baseline", baseline) == 0
    assert capsys.readouterr().out.endswith("<= 50 met; no ratio, the baseline's is 0\n")
    assert perf(monkeypatch, "bench", "--only", "real time") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(">= 150 met") and second.endswith(">= 80 MISSED")
    assert perf(monkeypatch, "bench", "--only", "weather") == 1
    assert "there are: tick, 256 lanes" in capsys.readouterr().err


def test_a_measurement_that_fails_is_named_and_the_others_go_on(monkeypatch, capsys, tmp_path):
    """So do those that need a GPU, which miss nothing here."""
    absent = bench.Budget("absent", ("load", str(tmp_path / "absent")), (), "us", 1)
    slow = bench.Budget("slow", ("streaming", "--seconds", "60"), ("us_per_token",), "us", 12)
    device = bench.Budget("device", (), (), "s", 1)
    monkeypatch.setattr(bench, "demo_core", lambda: tmp_path / "absent")
    monkeypatch.setattr(bench, "BUDGETS", (absent, slow, device))
    assert perf(monkeypatch, "bench", "--limit-s", 1) == 1
    told = capsys.readouterr()
    assert f"1 of 2: perf load {tmp_path / 'absent'}" in told.err
    first, second, third = told.out.splitlines()
    assert "not measured" in first and "not measured: did not end in 1 s" in second
    assert "needs an H200" in third
    monkeypatch.setattr(bench, "BUDGETS", (device,))
    assert perf(monkeypatch, "bench") == 0


def test_what_a_command_started_ends_with_it(tmp_path):
    child = tmp_path / "child.py"
    child.write_text("import subprocess, sys, time\n"
                     "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\ntime.sleep(60)\n")
    with bench.process([sys.executable, str(child)]) as running:
        started = Path(f"/proc/{int(running.stdout.readline())}/stat")
        assert started.exists()
    deadline = time.monotonic() + 10
    while started.exists() and started.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the command's own process is still there"
        time.sleep(0.01)
    assert running.returncode == -signal.SIGKILL


def test_a_result_names_the_commit_of_its_own_checkout(tmp_path):
    assert machine()["commit"] and int(machine()["processors"]) >= 1
    package = tmp_path / "package"
    package.mkdir()
    assert commit(package) == "unknown"
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    (package / "a.py").write_text("1")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        subprocess.run([*git, *words], check=True)
    assert re.fullmatch("[0-9a-f]{12}", commit(package))
    (package / "a.py").write_text("2")
    assert commit(package).endswith(" changed")
    (package / "deeper").mkdir()
    assert commit(package / "deeper") == "unknown", "installed inside another project"


def test_a_result_names_the_commit_of_its_start(monkeypatch):
    begun = machine()["commit"]
    monkeypatch.setattr("helios_dod.perf.machine.commit", lambda: "another")
    assert machine()["commit"] == begun


@pytest.mark.parametrize("words", [
    ("simulate", "--step-ms", "nan"), ("simulate", "--lanes", "0"), ("simulate", "--repeats", "0"),
    ("simulate", "--shape", "code", "--concurrency", "-1"),
    ("simulate", "--shape", "code", "--seed", "99999999999999999999"),
    ("simulate", "--shape", "code", "--rate", "inf"), ("tick", "--lanes", "-1"),
    ("tick", "--ticks", "0"), ("tick", "--stops", "2"), ("masks", "--streams", "0"),
    ("serve", "--requests", "0"), ("serve", "--rate", "nan"), ("load", "x", "--repeats", "x")])
def test_numbers_are_refused_by_option(monkeypatch, capsys, words):
    with pytest.raises(SystemExit) as raised:
        perf(monkeypatch, *words)
    assert raised.value.code == 2 and f"argument {words[-2]}: " in capsys.readouterr().err


def test_an_interrupt_is_no_error(monkeypatch):
    def interrupted(requests, seed):
        raise KeyboardInterrupt

    monkeypatch.setattr(cancel, "measure", interrupted)
    assert perf(monkeypatch, "cancel") == 130


def test_a_cancelled_request_leaves_in_the_tick_of_its_last_fence_or_the_next():
    result = cancel.measure(2 * cancel.STAGES, seed=1)
    assert result["ticks_most"] <= 1 <= result["in_flight"]


def test_a_server_is_started_and_its_streams_are_counted(smollm2_core, monkeypatch, capsys):
    assert perf(monkeypatch, "start", smollm2_core, "--repeats", 1, "--cache-memory", "8M",
                "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result.items() >= conditions(None, 1, 1).items()
    assert 0 < result["listening_s"]["median"] <= result["ready_s"]["median"]
    assert result["ready_s"] == dict.fromkeys(("median", "lowest", "highest"),
                                              result["ready_s"]["median"]), "one start"
    assert perf(monkeypatch, "streaming", smollm2_core, "--streams", 4, "--seconds", 0.5,
                "--repeats", 2, "--step-ms", 20, "--output-tokens", 250, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result.items() >= conditions(None, 1, 2).items()
    assert result["spread"].keys() == set(streaming.PER_TOKEN)
    assert all(part["lowest"] <= part["median"] == result[name] <= part["highest"]
               for name, part in result["spread"].items())
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


def bars_of(drawn):
    """(left, width, told) of each bar of a timeline, in its order."""
    return [(float(left), float(width), told) for left, width, told in re.findall(
        r'<rect x="([0-9.]+)" [^>]*?width="([0-9.]+)"[^>]*><title>([^<]*)', drawn)]


def test_systems_are_drawn_in_the_time_of_a_tick(monkeypatch, tmp_path, capsys):
    """Each behind the one before it, as long as it took, and the fused tick from the start."""
    result, page = tmp_path / "tick.json", tmp_path / "page.html"
    assert perf(monkeypatch, "tick", "--lanes", "2,3", "--context", 20, "--ticks", 4, "--json") == 0
    result.write_text(capsys.readouterr().out)
    parts = json.loads(result.read_text())["results"]
    assert perf(monkeypatch, "report", "--ticks", result, "--out", page) == 0
    bars = bars_of(page.read_text())
    assert len(bars) == 2 * (len(TICK) + 1)
    for part, shown in zip(parts, (bars[:len(TICK) + 1], bars[len(TICK) + 1:]), strict=True):
        assert [told.split(":")[0] for *_, told in shown] == [*(s.name for s in TICK), "tick"]
        spent = [part["systems"][system.name]["median_us"] for system in TICK]
        scale = (shown[len(TICK) - 1][0] - shown[0][0]) / sum(spent[:-1])
        for index, (left, width, told) in enumerate(shown[:-1]):
            assert left - shown[0][0] == pytest.approx(scale * sum(spent[:index]), abs=0.05)
            assert width == pytest.approx(max(scale * spent[index] - 0.4, 0.4), abs=0.05)
            assert f"{spent[index]:g} us" in told
        assert shown[-1][0] == shown[0][0], "the fused tick begins where the walk does"
    for broken in ("{}", '{"results": [{"lanes": 1}]}', '{"results": 3}',
                   '{"results": [{"lanes": 1, "tick": {}, "systems": []}]}'):
        result.write_text(broken)
        assert perf(monkeypatch, "report", "--ticks", result, "--out", page) == 1
        assert f"{result}: expected what `perf tick --json` printed" in capsys.readouterr().err


def test_a_page_needs_core_and_machine_together(smollm2_core, monkeypatch, tmp_path, capsys):
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"offered": {"requests_per_s": 1.0}, "runs": []}))
    arguments = ("report", "--results", results, "--out", tmp_path / "page.html")
    assert perf(monkeypatch, *arguments, "--core", smollm2_core) == 1
    assert "got none of --bandwidth-gb, --teraflops" in capsys.readouterr().err
    assert Path(tmp_path / "page.html").exists() is False

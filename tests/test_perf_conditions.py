"""Every result of `perf` says how it came about: the smallest form of each command but those that
start a server, which test_perf_bench runs. Nothing here asserts a time."""

import contextlib
import io
import json
import sys

import pytest
import text_tables
from server_harness import serving

from helios_dod.perf import bench
from helios_dod.perf.__main__ import main
from helios_dod.perf.machine import conditions, machine, middle
from helios_dod.simulation.traces import make_trace, write_trace

SPREAD = {"median", "lowest", "highest"}


def perf(capsys, monkeypatch, *arguments, statuses=(0,)):
    """What a command prints as JSON."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["perf", *map(str, arguments), "--json"])
    assert main() in statuses
    return json.loads(capsys.readouterr().out)


def check(result, seed, warm_up, repeats):
    assert result.items() >= conditions(seed, warm_up, repeats).items()
    assert result["machine"].keys() >= {"python", "numba", "numpy", "helios", "commit", "processor"}


def spreads(part):
    """Every median with its extremes, however deep."""
    if isinstance(part, dict):
        if part.keys() == SPREAD:
            yield part
        for inner in part.values():
            yield from spreads(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from spreads(inner)


@pytest.fixture(scope="module")
def recorded(smollm2_core, tmp_path_factory):
    """(recording, the result of `record`, costs, the result of `fit`), of the host executor."""
    folder = tmp_path_factory.mktemp("recorded")
    write_trace(make_trace([0] * 12, [20 + i for i in range(12)], [60] * 12), folder / "t.jsonl")
    results = []
    with pytest.MonkeyPatch.context() as patch:
        for words in (("record", smollm2_core, "--trace", folder / "t.jsonl", "--concurrency", 2,
                       "--warm-up", 2, "--seed", 5, "--max-active", 2, "--out", folder / "one"),
                      ("fit", folder / "one", "--out", folder / "costs")):
            patch.setattr(sys, "argv", ["perf", *map(str, words), "--json"])
            with contextlib.redirect_stdout(io.StringIO()) as told:
                assert main() == 0
            results.append(json.loads(told.getvalue()))
    return folder / "one", results[0], folder / "costs", results[1]


def test_a_middle_is_a_median_with_its_extremes():
    assert middle([3, 1, 8.126], 2) == {"median": 3, "lowest": 1, "highest": 8.13}


@pytest.mark.parametrize(("words", "wanted"), [
    (("tick", "--lanes", 2, "--context", 20, "--ticks", 4, "--seed", 5), (5, 50, 4)),
    (("tick", "--mixed", "--lanes", 4, "--ticks", 4, "--seed", 5), (5, 600, 4)),
    (("masks", "--streams", 1, "--repeats", 2, "--seed", 5), (5, 1, 2)),
    (("prefix", "--pages", 64, "--prompt", 1024, "--repeats", 2, "--seed", 5), (5, 1, 2)),
    (("cancel", "--requests", 3, "--seed", 5), (5, 32, 3)),
    (("simulate", "--shape", "code", "--requests", 4, "--lanes", 2, "--seed", 5), (5, 0, 1)),
    (("simulate", "--lanes", 2, "--repeats", 2, "--seed", 5), (5, 200, 2)),
], ids=["tick", "mixed", "masks", "prefix", "cancel", "trace", "simulate"])
def test_results_of_tables_say_how_they_came_about(monkeypatch, capsys, words, wanted):
    result = perf(capsys, monkeypatch, *words)
    check(result, *wanted)
    for part in (result, *result.get("results", ())):
        for one in (part, part.get("tick", {}), part.get("cold", {})):
            if "median_us" in one:
                assert one["lowest_us"] <= one["median_us"] <= one["p99_us"]


@pytest.mark.parametrize(("words", "wanted", "count"), [
    (("throughput", "--streams", "1,2", "--steps", 2, "--prompt", 9, "--prefill", 9, "--repeats", 2,
      "--seed", 5), (5, 1, 2), 0),
    (("offload", "--prompt", 70, "--repeats", 2, "--seed", 5), (5, 2, 2), 0),
    (("load", "--repeats", 2), (None, 1, 2), 14),
], ids=["throughput", "offload", "load"])
def test_results_of_a_core_say_how_they_came_about(smollm2_core, monkeypatch, capsys, words, wanted,
                                                   count):
    result = perf(capsys, monkeypatch, words[0], smollm2_core, *words[1:])
    check(result, *wanted)
    found = list(spreads(result))
    assert len(found) == count
    assert all(one["lowest"] <= one["median"] <= one["highest"] for one in found)
    for part in (*result.get("decode", ()), *([result["prefill"]] if "prefill" in result else ())):
        assert part["lowest"] <= part["tokens_per_second"] <= part["highest"]
    for name in ("computed", "resident", "memory", "disk"):
        if name in result:
            assert result[name]["lowest_ms"] <= result[name]["ms"] <= result[name]["highest_ms"]


def test_recordings_and_what_is_made_of_them_say_it_too(recorded, smollm2_core, monkeypatch, capsys,
                                                        tmp_path):
    recording, record, costs, fit = recorded
    check(record, 5, 2, 1)
    check(fit, None, 0, 1)
    check(json.loads(costs.read_text()), None, 0, 1)
    result = perf(capsys, monkeypatch, "kernels", smollm2_core, recording, "--bandwidth-gb", 20,
                  "--teraflops", 1)
    check(result, None, 0, 1)
    for part in (*result["programs"], *fit["operations"].values()):
        assert part["lowest_ms"] <= part["median_ms"] <= part["highest_ms"]
    result = perf(capsys, monkeypatch, "validate", recording, recording, "--costs", costs,
                  statuses=(0, 1))
    check(result, 1, 0, 2)
    assert all(row["real_lowest"] <= row["real_median"] <= row["real_highest"]
               for row in result["figures"])
    page, other = tmp_path / "page.html", tmp_path / "other.json"
    other.write_text(json.dumps({**conditions(77, 3, 2), "runs": [], "offered": {}}))
    monkeypatch.setattr(sys, "argv", ["perf", "report", str(recording), "--results", str(other),
                                      "--out", str(page)])
    assert main() == 0
    text = page.read_text()
    assert all(f"{name} {value}" in text for name, value in machine().items())
    assert "recordings 1, warm-up 0, seed none" in text
    for value in (machine()["commit"], "77", "3", "2"):
        assert f"<td>{value}</td>" in text


def test_a_served_load_says_it_of_every_repeat(monkeypatch, capsys, tmp_path):
    core = tmp_path / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with serving(core) as server:
        result = perf(capsys, monkeypatch, "serve", "--url", server.url, "--requests", 3,
                      "--output-tokens", 4, "--concurrency", 1, "--warm-up", 2, "--repeats", 3,
                      "--seed", 5)
    check(result, 5, 2, 3)
    rates = sorted(run["requests_per_s"] for run in result["runs"])
    assert result["over_runs"]["requests_per_s"] == {
        "median": rates[1], "lowest": rates[0], "highest": rates[2]}
    assert "ttft_ms.p50" in result["over_runs"]


def test_a_comparison_says_it_of_both(monkeypatch, capsys, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text(json.dumps({**conditions(1, 2, 3), "rate": 2.0, "inner": conditions(1, 2, 3)}))
    b.write_text(json.dumps({**conditions(9, 2, 3), "rate": 3.0, "inner": conditions(9, 2, 3)}))
    result = perf(capsys, monkeypatch, "compare", a, b)
    assert result["conditions"] == {"a": conditions(1, 2, 3), "b": conditions(9, 2, 3)}
    assert result["figures"].keys() == {"rate"}
    monkeypatch.setattr(sys, "argv", ["perf", "compare", str(a), str(b)])
    assert main() == 0
    assert "not the same seed: 1 / 9" in capsys.readouterr().out


def test_figures_beside_budgets_keep_what_their_commands_printed(monkeypatch, capsys):
    printed = {**conditions(1, 32, 100), "ticks_most": 1}
    monkeypatch.setattr(bench, "measure", lambda command, limit_s: printed)
    result = perf(capsys, monkeypatch, "bench", "--only", "cancel")
    check(result, None, 0, 1)
    assert result["figures"].keys() == {"cancel to pages free, after its fence"}
    assert result["results"] == {"cancel": printed}

"""What a core's programs move and do, plans of capacity, and the pages that show them."""

import json
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from ignition_fixtures import TINY, prepared

from helios_dod.cli import main
from helios_dod.contract.decode import decode
from helios_dod.errors import UserError
from helios_dod.executors.costs import FEATURES, OPERATIONS, FixedCost
from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options
from helios_dod.simulation import charts
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.planning import Planner, Targets, part_of
from helios_dod.simulation.roofline import Device, Work, roofline, work_of
from helios_dod.simulation.traces import drawn_trace, make_trace, write_trace

MACHINE = Machine(lanes=8, prefill_tokens=256, pages=8 * 24, vocabulary=997, context_tokens=384,
                  cost=FixedCost(5_000_000, 50_000))


def load(rate, count=80):
    """Short prompts at a rate."""
    rng = np.random.default_rng(4)
    return make_trace(np.cumsum(rng.exponential(1e9 / rate, count)), rng.integers(50, 300, count),
                      rng.integers(5, 60, count))


def test_the_work_of_a_core_is_its_shapes():
    """Two layers, hidden 96, three heads of 32 over one of keys, 72 wide, vocabulary 300, tied;
    behind the last attention only rows that sample go on."""
    made = prepared("smollm2")
    into, behind = 96 * 96 + 2 * 32 * 96, 96 * 96 + 3 * 72 * 96
    work = work_of(made.manifest, decode(made.contract, made.manifest))
    assert work.packed_operations == 2 * (2 * into + behind)
    assert work.sampled_operations == 2 * (behind + 300 * 96)
    assert work.pair_operations == 2 * 4 * 3 * 32
    assert work.history_bytes == 2 * 2 * 32 * 4
    assert work.weight_bytes >= 4 * (2 * (into + behind) + 300 * 96)


def test_a_roofline_takes_the_longer_side():
    costs = roofline(Work(8_000_000, 4_000_000, 1_000_000, 512, 64),
                     Device(1e9, 1e12, overhead_ns=5_000, efficiency=0.5))
    row = dict(zip(FEATURES, costs.table[OPERATIONS["decode"], 0].tolist(), strict=True))
    assert row["program"] == 16_000_000_000 + 5_000_000, "8 MB at half of 1 GB/s, and 5 us"
    assert row["history"] == 1_024_000 and row["packed"] == 0
    side = dict(zip(FEATURES, costs.table[OPERATIONS["decode"], 1].tolist(), strict=True))
    assert side["packed"] == 8_000_000 and side["pairs"] == 128
    assert costs.table[OPERATIONS["initialize"], 0].sum() == 5_000_000


@pytest.mark.parametrize("values", [(0, 1), (1, -1), (1, 1, -1), (1, 1, 0, 1.5), (1, 1, 0, 0)])
def test_impossible_devices_are_refused(values):
    with pytest.raises(UserError, match="device"):
        Device(*values)


def test_parts_are_all_of_a_trace():
    trace = drawn_trace("code", 50, 10.0, shared_tokens=16, groups=5)
    parts = [part_of(trace, 3, number) for number in range(3)]
    assert sum(map(len, parts)) == 50
    owners = {int(text): number for number, part in enumerate(parts) for text in part.prefix}
    assert len(owners) == 5, "a shared text has one owner"


def test_a_plan_is_the_least_that_meets_its_targets():
    targets = Targets(400.0, 30.0, 0.9)
    with Planner(MACHINE, load(60.0), targets) as planner:
        plan = planner.plan(16)
        again = planner.tries([(plan.chosen.replicas, MACHINE)])[0]
    assert plan.chosen.met >= 0.9 and again.met >= 0.9
    fewer = [p for p in plan.points if p.replicas < plan.chosen.replicas]
    assert plan.chosen.replicas > 1 and fewer and all(p.met < 0.9 for p in fewer)
    assert plan.chosen.lanes <= 8 and plan.chosen.pages <= MACHINE.pages
    with Planner(MACHINE, load(5.0), targets) as planner:
        assert planner.plan(16).chosen.replicas == 1


def test_what_cannot_be_met_has_no_plan():
    with Planner(MACHINE, load(20.0, 20), Targets(400.0, 0.001)) as planner:
        plan = planner.plan(2)
    assert plan.chosen is None and [p.replicas for p in plan.points] == [1, 2]


class Page(HTMLParser):
    """What a page refers to and shows."""

    def __init__(self, text):
        super().__init__()
        self.outside, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.outside += [value for name, value in attributes if name in ("src", "href")]


def test_the_command_plans_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    make_core(TINY / "smollm2", tmp_path / "my.core", Options(lanes=8, packed=(64, 128)),
              namespace="test")
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(
        {"arrival_ns": i * 10**8, "prompt_tokens": 60, "output_tokens": 8}) + "\n"
        for i in range(12)))
    page = tmp_path / "plan.html"
    arguments = ["plan", "--core", str(tmp_path / "my.core"), "--trace", str(trace), "--ttft-ms",
                 "100", "--between-ms", "50", "--bandwidth-gb", "1", "--teraflops", "1", "--jobs",
                 "1", "--html", str(page)]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["chosen"]["replicas"] == 1 and result["chosen"]["met"] >= 0.95
    shown = Page(page.read_text())
    assert shown.tags.count("svg") >= 2 and shown.outside == [], "one file, with plots"
    assert "needed: 1 replicas" not in page.read_text()
    assert main(arguments) == 0
    assert re.search(r"^needed: 1 replicas, \d+ requests at once", capsys.readouterr().out,
                     re.MULTILINE)


@pytest.mark.parametrize("change,words", [
    (("--concurrency", "999"), "--concurrency: 999 asked, 1 to 8 possible"),
    (("--cache-gb", "0.0000001"), "--cache-gb"), (("--met", "2"), "--met"),
    (("--rate", "1"), "this core"), ((), "--costs, or --bandwidth-gb"),
])
def test_bad_plans_are_refused(tmp_path, capsys, monkeypatch, change, words):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    make_core(TINY / "smollm2", tmp_path / "my.core", Options(lanes=8, packed=(64, 128)),
              namespace="test")
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_ns": 0, "prompt_tokens": 60, "output_tokens": 8}\n')
    load = ("--shape", "conversation") if "--rate" in change else ("--trace", str(trace))
    device = () if not change else ("--bandwidth-gb", "1", "--teraflops", "1")
    assert main(["plan", "--core", str(tmp_path / "my.core"), *load, "--ttft-ms", "1",
                 "--between-ms", "1", "--jobs", "1", *device, *change]) == 1
    assert words in capsys.readouterr().err


def test_axes_hold_what_they_show():
    for log in (False, True):
        made = charts.axis("ms", [np.array([3.0, 870.0, np.nan])], log=log)
        places = made.place(np.array([3.0, 870.0]))
        assert (places >= 0).all() and (places <= 1).all() and places[0] < places[1]
        ticks = made.ticks()
        assert len(ticks) >= 2 and all(made.low <= tick <= made.high for tick in ticks)
    assert charts.axis("none", []).ticks()


def test_text_of_a_page_is_text():
    shown = charts.page("<b>", "&", [("<i>", charts.table(("<u>",), [["<s>", 3.0]]))])
    assert not {"b", "i", "u", "s"} & set(Page(shown).tags)
    assert charts.number(1234567.0) == "1.2e6" and charts.number(0.5) == "0.5"


def test_a_plan_may_speculate(tmp_path, capsys, monkeypatch):
    """Steps that cost the same for every row: right drafts serve what plain decode cannot."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    core, costs = tmp_path / "my.core", tmp_path / "costs.json"
    make_core(TINY / "smollm2", core, Options(lanes=8, packed=(64, 128)), namespace="test")
    costs.write_text(json.dumps({"format": 1, "host_ns": 0, "operations": {
        name: {"bytes": {"program": 10_000_000_000}} for name in OPERATIONS}}))
    words = ["plan", "--core", str(core), "--trace", str(tmp_path / "t.jsonl"), "--ttft-ms", "900",
             "--between-ms", "7", "--costs", str(costs), "--jobs", "1", "--json",
             "--replicas-max", "2"]
    write_trace(make_trace(np.zeros(4), np.full(4, 20), np.full(4, 60)), tmp_path / "t.jsonl")
    assert main(words) == 1, "10 ms a token"
    capsys.readouterr()
    assert main([*words, "--drafts", "3", "--accept", "0.9", "--output-limit", "70"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["between_p99_ms"] < 7


def test_an_interrupt_is_told_in_a_line(tmp_path, monkeypatch):
    """The whole process group, as a terminal does: no traceback, of workers neither."""
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    make_core(TINY / "smollm2", tmp_path / "my.core", Options(lanes=8, packed=(64, 128)),
              namespace="test")
    write_trace(load(1000, 40_000), tmp_path / "trace.jsonl")
    with subprocess.Popen(
            [sys.executable, "-m", "helios_dod", "plan", "--core", str(tmp_path / "my.core"),
             "--trace", str(tmp_path / "trace.jsonl"), "--ttft-ms", "1", "--between-ms", "1",
             "--bandwidth-gb", "0.01", "--teraflops", "0.01", "--jobs", "2"],
            start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=dict(os.environ)) as plan:
        assert "1 x 8 requests" in plan.stdout.readline(), "other choices run now"
        os.killpg(plan.pid, signal.SIGINT)
        told = plan.communicate()[1]
    assert plan.returncode == 130, told
    assert "Traceback" not in told
    assert re.search(r"^interrupted: \d+ choices tried, 0 of them meet the targets; .*none$", told,
                     re.MULTILINE)

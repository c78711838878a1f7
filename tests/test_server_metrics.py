"""/metrics, /live and the dashboard, over the engine's test double."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import server_harness
import text_tables
from prometheus_client.parser import text_string_to_metric_families
from server_harness import Server, serving

from helios_dod.limits import TEST_MIN
from helios_dod.server.control import SharedMemory
from helios_dod.server.metrics import Exporter
from helios_dod.tables.durations import BOUNDS_MS, note_events
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN, FINISH_LIMIT, OP_DECODE

DASHBOARD = Path(__file__).parent.parent / "perf" / "grafana.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with serving(core, "workers=2", "vllm_metrics=1") as running:
        yield running


def samples(text: str) -> dict[str, float]:
    """Sample with its labels -> value."""
    found = [sample for family in text_string_to_metric_families(text)
             for sample in family.samples]
    return {s.name + "".join(f"|{key}={value}" for key, value in sorted(s.labels.items())): s.value
            for s in found}


def test_answers_are_counted(server: Server) -> None:
    before = samples(server.get("/metrics").text)
    server.post(max_tokens=7, ignore_eos=True)
    server.post(max_tokens=5, ignore_eos=True, n=2, stream=True)
    after = samples(server.get("/metrics").text)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("helios_generated_tokens_total") == 17
    assert grown("helios_answers_total|reason=limit") == 3
    assert grown("helios_time_to_first_token_seconds_count") == 3
    assert grown("helios_time_between_tokens_seconds_count") == 14
    assert grown("helios_request_duration_seconds_count") == 3
    assert grown("helios_request_duration_seconds_sum") > 0
    assert grown("helios_http_streams_total") == 1
    assert after["helios_workers_ready"] == 2 and after["helios_permits_used"] == 0
    model = "model_name=fake-model"
    assert after[f"vllm:generation_tokens_total|{model}"] == after["helios_generated_tokens_total"]
    assert grown(f"vllm:request_success_total|finished_reason=length|{model}") == 3
    assert after[f"vllm:inter_token_latency_seconds_bucket|le=+Inf|{model}"] == after[
        "helios_time_between_tokens_seconds_count"]


def test_contract_names_and_launches() -> None:
    memory = SharedMemory(TEST_MIN)
    exporter = Exporter(memory)
    world = exporter.collector.tables.world[0]
    found = samples(exporter.text().decode())
    assert found["flare_mixed_grammar_decode_steps_total"] == 0
    assert found["flare_constrained_max_inflight"] == 0
    world["counters"]["mixed_grammar_submitted"] = 4
    world["counters"]["constrained_in_flight_max"] = 1
    world["programs"]["program_count"] = 3
    for row, launches in enumerate((5, 6, 7)):  # two of them differ only in what they bind
        world["programs"]["operation"][row] = OP_DECODE
        world["programs"]["batch"][row] = world["programs"]["packed"][row] = 8 if row else 4
        world["programs"]["launches"][row] = launches
    text = exporter.text().decode()
    found = samples(text)
    assert found["flare_mixed_grammar_decode_steps_total"] == 4
    assert found["flare_constrained_max_inflight"] == 1
    assert found["helios_launches_total|batch=8|operation=decode|packed=8"] == 13
    assert found["helios_constrained_in_flight_max"] == 1 and "vllm:" not in text
    assert found["helios_waits_total|reason=permit"] == 0


def test_no_series_occurs_twice() -> None:
    memory = SharedMemory(TEST_MIN)
    exporter = Exporter(memory, lambda: "a model")
    programs = exporter.collector.tables.world[0]["programs"]
    programs["program_count"] = 4
    for row, (launches, cost_ns) in enumerate(((30, 1_000), (10, 5_000), (8, 0), (2, 7_000))):
        programs["operation"][row] = OP_DECODE
        programs["batch"][row] = programs["packed"][row] = 4 if row < 3 else 8
        programs["launches"][row] = launches
        programs["observed_count"][row][0], programs["cost_ns"][row][0] = bool(cost_ns), cost_ns
    text = exporter.text().decode()
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#")
    assert len(series) > 100 and set(series.values()) == {1}, series.most_common(3)
    found = samples(text)
    # Of 40 timed launches, 30 took 1 us and 10 took 5.
    assert found["helios_program_seconds|batch=4|operation=decode|packed=4"] == 2e-6
    assert found["helios_program_seconds|batch=8|operation=decode|packed=8"] == 7e-6
    assert found["helios_launches_total|batch=4|operation=decode|packed=4"] == 48


def test_histograms_count_each_choice_once() -> None:
    control = SharedMemory(TEST_MIN).control
    tags, began = np.array([65536, 131073], np.int64), np.array([100, 0], np.int64)
    first, last = np.zeros(2, np.int64), np.zeros(2, np.int64)

    def note(now: int, *events: tuple[int, int]) -> None:
        kind = np.array([e[0] for e in events], np.uint8)
        note_events(control, 1, tags, began, first, last, 0xFFFF, kind,
                    np.full(len(events), FINISH_LIMIT, np.uint8),
                    np.array([e[1] for e in events], np.int64),
                    np.full(len(events), 1_000_100, np.int64), now)

    note(2_000_100, (EGRESS_TOKEN, 65536), (EGRESS_TOKEN, 7 << 16))  # the second is nobody's
    note(5_000_100, (EGRESS_TOKEN, 65536), (EGRESS_TOKEN, 131073), (EGRESS_FINISHED, 65536))
    table = control[0]["durations"]
    assert table["first_token"][1].sum() == 2 and table["first_token_ns"][1] == 7_000_100
    assert table["first_token"][1, 1] == 1  # 2 ms, up to 2.5
    assert table["gap"][1].tolist().index(1) == BOUNDS_MS.index(5) and table["gap"][1].sum() == 1
    assert table["whole_ns"][1] == 5_000_000 and table["finishes"][1, FINISH_LIMIT] == 1
    assert table["queue_ns"][1] == 1_000_000 and table["queue"][1, 0] == 1
    assert first.tolist() == [2_000_100, 5_000_100]
    assert not table["first_token"][0].any()
    note(10**12, (EGRESS_TOKEN, 65536))
    assert table["gap"][1, -1] == 1


def test_live_view(server: Server) -> None:
    stream = server_harness.open_stream(server, max_tokens=4000, ignore_eos=True)
    while b"content" not in stream.recv(65536):
        pass
    live = server.get("/live").json()
    stream.close()
    assert live["gauges"]["permits_used"] == 1 and live["counters"]["generated_tokens"] > 0
    assert len(live["frames"]) == 2 and live["requests"] == []  # the double fills no such table
    server.idle()


def test_the_dashboard_asks_for_metrics_that_exist(server: Server) -> None:
    server.post(max_tokens=2)
    known = {line.split("{")[0].split(" ")[0] for line in server.get("/metrics").text.splitlines()
             if not line.startswith("#")}
    known |= {"helios_program_seconds", "helios_launches_total"}  # of programs, which it has none
    asked = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            asked |= set(re.findall(r"(?:helios|flare)_\w+", target["expr"]))
    assert len(asked) > 15 and asked <= known, asked - known

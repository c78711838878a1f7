"""GET /metrics: Prometheus text from the world's counters and the control block.

Labels never carry request ids, content or token ids. All processes see one memory, so any worker
answers for the whole server.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from helios_dod import terms
from helios_dod.server.control import ENGINE_READY, SharedMemory
from helios_dod.tables.durations import BOUNDS_MS
from helios_dod.tables.service import STATUS_CLASSES, permits_used
from helios_dod.terms import FREE, RUNNING, TIER_DISK, TIER_MEMORY
from helios_dod.world import attach

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

COUNTERS = {  # counters column -> what it counts
    "received": "Requests that the engine took from its frontends",
    "rejected": "Requests that the scheduler refused",
    "admitted": "Requests that got a slot on the device",
    "finished": "Requests that ended by EOS, a stop token or a limit",
    "cancelled": "Requests that were cancelled",
    "failed": "Requests that ended by an execution error",
    "prompt_tokens": "Prompt tokens of admitted requests",
    "generated_tokens": "Tokens generated",
    "frames_submitted": "Programs launched",
    "frames_finished": "Programs finished",
    "lanes_submitted": "Lanes of launched programs",
    "packed_submitted": "Packed tokens of launched programs",
    "ticks_idle": "Ticks that launched nothing",
    "egress_full": "Times that an event waited for room in an egress ring",
    "pages_full": "Times that a request waited for pages",
    "slots_full": "Times that a request waited for a slot",
    "pages_published": "Pages whose content became reusable",
    "pages_evicted": "Pages whose content was dropped for others",
    "pages_offloaded": "Pages copied from the device to host memory",
    "pages_stored": "Pages copied from host memory to disk",
    "pages_restored_memory": "Pages copied from host memory back to the device",
    "pages_restored_disk": "Pages copied from disk back to the device",
    "pages_dropped_memory": "Pages in host memory whose content was dropped for others",
    "pages_dropped_disk": "Pages on disk whose content was dropped for others",
    "window_pages_offloaded": "Pages of windowed histories copied from the device to host memory",
    "window_pages_restored": "Pages of windowed histories copied from host memory to the device",
    "window_pages_stored": "Pages of windowed histories copied from host memory to disk",
    "window_pages_fetched": "Pages of windowed histories copied from disk to the device",
    "window_restores_refused": "Matches for which computing was cheaper than pages of a window",
    "copies_failed": "Copies of pages that failed, so that their content was dropped",
    "prompt_tokens_cached": "Prompt tokens that were found in the cache",
    "preempted": "Times that a running request was sent back for want of pages",
    "snapshots_published": "Snapshots of state that became reusable",
    "snapshots_dropped": "Snapshots of state that were written and given up",
    "snapshots_evicted": "Snapshots of state that were dropped for others",
    "snapshot_hits": "Requests whose state began with a snapshot",
    "snapshot_hits_away": "Requests of them whose pages were not all on the device",
    "state_rollbacks": "Lanes whose state was committed before drafts that were refused",
    "barrier_grammar": "Frames not composed because a constrained lane waits",
    "constrained_submitted": "Programs launched with a constrained lane",
    "mixed_grammar_submitted": "Decode programs launched with constrained and other lanes",
    "drafts_offered": "Drafts that speculative programs verified",
    "drafts_accepted": "Drafts that equal the token that the model drew",
    "drafts_copied_offered": "Drafts copied from a request's own text",
    "drafts_copied_accepted": "Copied drafts that equal the token that the model drew",
    "drafts_constrained_offered": "Copied drafts that were verified under grammar masks",
    "drafts_constrained_accepted": "Of them, those that equal the token that the model drew",
    "drafts_grammar_refused": "Copied drafts that a grammar does not allow",
    "draft_masks_full": "Times that a constrained request had no room for masks of its drafts",
    "cohorts_refused": "Speculative programs that a rank refused",
    "rounds_speculative": "Speculative programs launched that are wider than one token",
    "barrier_host_pending": "Times that a slot waited for its token to reach the host",
    "barrier_stops": "Times that a slot waited because the host looks for its stops",
    "barrier_history": "Times that a slot waited because its next drafts are copies",
    "barrier_cost": "Times that a slot waited for the cost of a program to be observed",
    "barrier_phase": "Times that a slot waited because the operation changes",
    "barrier_endpoint": "Times that a slot waited because a program is given its endpoint",
    "constrained_in_flight_max": "Most programs outstanding after a constrained launch",
}
WAITS = {  # counters column -> why something waited
    "pages_full": "pages", "slots_full": "slots", "egress_full": "reader",
    "barrier_grammar": "grammar", "barrier_stops": "stops", "barrier_history": "history",
    "barrier_phase": "phase", "barrier_cost": "cost", "barrier_host_pending": "pending token",
    "barrier_endpoint": "endpoint",
}
NAMED = ("OP_", "FINISH_")  # terms whose numbers become labels


def names_of(prefix: str) -> dict[int, str]:
    """Number -> lower-case name of the terms with a prefix."""
    return {value: name.removeprefix(prefix).lower() for name, value in vars(terms).items()
            if name.startswith(prefix)}


OPERATIONS, FINISHES = map(names_of, NAMED)


def mean_cost(programs: Any, row: int) -> int:
    """Mean nanoseconds of a program, whether or not lanes draw; 0 before any was observed."""
    counts, costs = programs["observed_count"][row], programs["cost_ns"][row]
    return int((counts * costs).sum() // max(int(counts.sum()), 1))


@dataclass(frozen=True)
class Tables:
    """The shared tables that metrics are read from."""

    memory: SharedMemory
    world: np.ndarray

    @property
    def counters(self) -> Any:
        """The engine's counters."""
        return self.world[0]["counters"]

    @property
    def workers(self) -> Any:
        """The workers' table."""
        return self.memory.control[0]["workers"]

    def counter(self, name: str) -> int:
        """One counter; 0 where this engine has none of that name."""
        return int(self.counters[name]) if name in self.counters.dtype.names else 0

    def programs(self) -> Iterator[tuple[str, int, int, int, int]]:
        """(operation, batch, packed tokens, launches, mean nanoseconds) of loaded programs."""
        programs = self.world[0]["programs"]
        for row in range(int(programs["program_count"])):
            operation = OPERATIONS.get(int(programs["operation"][row]), "unknown")
            yield (operation, int(programs["batch"][row]), int(programs["packed"][row]),
                   int(programs["launches"][row]), mean_cost(programs, row))

    def gauges(self) -> dict[str, tuple[str, int]]:
        """Name -> help and value of what is so now."""
        world, service = self.world[0], self.memory.service
        requests, slots, pages = world["requests"], world["slots"], world["pages"]
        used = int(pages["page_count"] - pages["free_count"] - pages["idle_count"])
        tiers, windows = world["tiers"], world["windows"]
        placed = tiers["place_count"] - tiers["free_count"]
        return {
            "engine_ready": ("1 while the engine serves",
                             int(service["engine_state"] == ENGINE_READY)),
            "engine_restarts": ("Times that a failed engine was started again",
                                int(service["engine_restarts"])),
            "draining": ("1 while the server takes no new requests", int(service["draining"])),
            "workers_ready": ("Frontend workers that serve",
                              int(np.count_nonzero(self.workers["ready"]))),
            "permits": ("Requests that may be in the server", int(service["permit_count"])),
            "permits_used": ("Requests in the server", permits_used(self.memory.control)),
            "requests_waiting": ("Accepted requests without a slot",
                                 int(requests["waiting_count"])),
            "requests_running": ("Requests on the device",
                                 int(np.count_nonzero(requests["state"] == RUNNING))),
            "slots": ("Requests that the device can hold", int(world["settings"]["slot_count"])),
            "slots_used": ("Slots in use", int(np.count_nonzero(slots["state"] != FREE))),
            "pages": ("Cache pages", int(pages["page_count"])),
            "pages_used": ("Cache pages that running requests hold", used),
            "pages_cached": ("Cache pages that hold reusable content and nothing else holds",
                             int(pages["idle_count"])),
            "pages_memory": ("Pages that host memory can hold for the device",
                             int(tiers["place_count"][TIER_MEMORY])),
            "pages_memory_used": ("Pages that host memory holds for the device",
                                  int(placed[TIER_MEMORY])),
            "window_pages_memory": ("Pages of windowed histories that host memory can hold",
                                    int(windows["place_count"])),
            "window_pages_memory_used": ("Pages of windowed histories that host memory holds",
                                         int(windows["place_count"] - windows["place_free_count"])),
            "pages_disk": ("Pages that the disk can hold for the device",
                           int(tiers["place_count"][TIER_DISK])),
            "pages_disk_used": ("Pages that the disk holds for the device",
                                int(placed[TIER_DISK])),
            "window_pages_disk": ("Pages of windowed histories that the disk can hold",
                                  int(windows["stored_count"])),
            "window_pages_disk_used": ("Pages of windowed histories that the disk holds",
                                       int(windows["stored_count"] - windows["stored_free_count"])),
            "page_tokens": ("Tokens of a cache page", int(world["settings"]["page_tokens"])),
            "token_blocks_free": ("Free blocks of the token arena",
                                  int(world["tokens"]["free_count"])),
            "ticks": ("Ticks of the engine", int(world["clock"]["tick"])),
        }

    def histogram(self, name: str) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets, bounds in seconds, and the sum of one of the durations."""
        durations = self.memory.control[0]["durations"]
        counts = np.cumsum(durations[name].sum(axis=0)).tolist()
        bounds = [*(f"{bound / 1e3:g}" for bound in BOUNDS_MS), "+Inf"]
        return (list(zip(bounds, counts, strict=True)),
                int(durations[f"{name}_ns"].sum()) / 1e9)

    def finishes(self) -> dict[str, int]:
        """Finish reason -> choices that ended so."""
        counts = self.memory.control[0]["durations"]["finishes"].sum(axis=0).tolist()
        return {name: counts[number] for number, name in FINISHES.items()}


def histogram_of(tables: Tables, name: str, metric: str, help_text: str) -> Metric:
    """One histogram family."""
    buckets, total = tables.histogram(name)
    return HistogramMetricFamily(metric, help_text, buckets=buckets, sum_value=total)


def own(tables: Tables) -> Iterator[Metric]:
    """The helios_ families."""
    for name in tables.counters.dtype.names:
        help_text = COUNTERS.get(name, name.replace("_", " ").capitalize())
        family = GaugeMetricFamily if name.endswith("_max") else CounterMetricFamily
        yield family(f"helios_{name}", help_text, value=int(tables.counters[name]))
    for name, (help_text, value) in tables.gauges().items():
        yield GaugeMetricFamily(f"helios_{name}", help_text, value=value)
    yield from launched(tables)
    waits = CounterMetricFamily("helios_waits", "Times that something waited", labels=["reason"])
    for name, reason in WAITS.items():
        if name in tables.counters.dtype.names:
            waits.add_metric([reason], tables.counter(name))
    waits.add_metric(["permit"], int(tables.workers["permits_full"].sum()))
    yield waits
    yield from edge(tables)


def launched(tables: Tables) -> Iterator[Metric]:
    """What programs did. Programs that differ only in what they bind are one series: their
    launches summed, their times averaged by launches."""
    names = ["operation", "batch", "packed"]
    launches = CounterMetricFamily("helios_launches", "Launches by program", labels=names)
    cost = GaugeMetricFamily("helios_program_seconds", "Mean time of late launches", labels=names)
    summed: dict[tuple[str, str, str], list[int]] = {}  # launches, those timed, their time
    for operation, batch, packed, count, nanoseconds in tables.programs():
        sums = summed.setdefault((operation, str(batch), str(packed)), [0, 0, 0])
        sums[0] += count
        if nanoseconds:
            sums[1] += count
            sums[2] += count * nanoseconds
    for labels, (count, timed, nanoseconds) in summed.items():
        launches.add_metric(labels, count)
        if timed:
            cost.add_metric(labels, nanoseconds / timed / 1e9)
    yield launches
    yield cost


def edge(tables: Tables) -> Iterator[Metric]:
    """What the HTTP workers count."""
    responses = CounterMetricFamily(
        "helios_http_responses", "Responses by status class", labels=["status"])
    counts = tables.workers["responses"].sum(axis=0)
    for status, count in zip(STATUS_CLASSES, counts, strict=True):
        responses.add_metric([status], int(count))
    yield responses
    yield CounterMetricFamily("helios_http_streams", "Streamed responses begun",
                              value=int(tables.workers["streams"].sum()))
    yield CounterMetricFamily("helios_permits_full", "Requests refused for want of a permit",
                              value=int(tables.workers["permits_full"].sum()))
    answers = CounterMetricFamily("helios_answers", "Answers by how they ended", labels=["reason"])
    for name, count in tables.finishes().items():
        answers.add_metric([name], count)
    yield answers
    for name, metric, help_text in (
            ("queue", "queue", "From submission to a slot of the engine"),
            ("first_token", "time_to_first_token", "From submission to the first token"),
            ("gap", "time_between_tokens", "Between two tokens of one answer"),
            ("whole", "request_duration", "From submission to the end of the answer")):
        yield histogram_of(tables, name, f"helios_{metric}_seconds", help_text)


def contract(tables: Tables) -> Iterator[Metric]:
    """The names that the model contract gives, over the life of the engine."""
    yield CounterMetricFamily(
        "flare_mixed_grammar_decode_steps",
        "Decode submissions whose lanes include both constrained and unconstrained requests",
        value=tables.counter("mixed_grammar_submitted"))
    yield GaugeMetricFamily(
        "flare_constrained_max_inflight",
        "Most executor frames outstanding immediately after a constrained submission",
        value=tables.counter("constrained_in_flight_max"))


def vllm(tables: Tables, model: Callable[[], str]) -> Iterator[Metric]:
    """The names that existing dashboards know."""
    name, gauges = model(), tables.gauges()
    pages = max(gauges["pages"][1], 1)
    for metric, value in (
            ("num_requests_running", gauges["requests_running"][1]),
            ("num_requests_waiting", gauges["requests_waiting"][1]),
            ("kv_cache_usage_perc", gauges["pages_used"][1] / pages)):
        family = GaugeMetricFamily(f"vllm:{metric}", metric, labels=["model_name"])
        family.add_metric([name], value)
        yield family
    cached = tables.counter("prompt_tokens_cached")
    for metric, count in (
            ("prompt_tokens", tables.counter("prompt_tokens")),
            ("generation_tokens", tables.counter("generated_tokens")),
            ("num_preemptions", tables.counter("preempted")),
            ("prefix_cache_queries", tables.counter("prompt_tokens")),
            ("prefix_cache_hits", cached)):
        counter = CounterMetricFamily(f"vllm:{metric}", metric, labels=["model_name"])
        counter.add_metric([name], count)
        yield counter
    finishes = tables.finishes()
    success = CounterMetricFamily("vllm:request_success", "request_success",
                                  labels=["model_name", "finished_reason"])
    stopped = sum(count for reason, count in finishes.items()
                  if reason == "eos" or reason.startswith("stop"))
    for reason, count in (("stop", stopped), ("length", finishes["limit"]),
                          ("abort", finishes["cancelled"])):
        success.add_metric([name, reason], count)
    yield success
    for column, metric in (("queue", "request_queue_time_seconds"),
                           ("first_token", "time_to_first_token_seconds"),
                           ("gap", "inter_token_latency_seconds"),
                           ("gap", "time_per_output_token_seconds"),
                           ("whole", "e2e_request_latency_seconds")):
        buckets, total = tables.histogram(column)
        histogram = HistogramMetricFamily(f"vllm:{metric}", metric, labels=["model_name"])
        histogram.add_metric([name], buckets, total)
        yield histogram


class Collector:
    """Reads the shared tables at each scrape. model: the served id, for vllm: names; else None."""

    def __init__(self, memory: SharedMemory, model: Callable[[], str] | None) -> None:
        self.tables, self.model = Tables(memory, attach(memory.limits, memory.world)), model

    def collect(self) -> Iterator[Metric]:
        """The metric families."""
        yield from own(self.tables)
        yield from contract(self.tables)
        if self.model is not None:
            yield from vllm(self.tables, self.model)


class Exporter:
    """The text of one server's metrics."""

    def __init__(self, memory: SharedMemory, model: Callable[[], str] | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.collector = Collector(memory, model)
        self.registry.register(self.collector)

    def text(self) -> bytes:
        """Prometheus exposition format."""
        return generate_latest(self.registry)

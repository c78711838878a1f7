"""GET /metrics: Prometheus text from the world's counters and the control block.

Labels never carry request ids, content or token ids. All processes see one memory, so any worker
answers for the whole server.
"""

from collections.abc import Iterator

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from helios_dod.server.control import ENGINE_READY, SharedMemory
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
    "copies_failed": "Copies of pages that failed, so that their content was dropped",
    "prompt_tokens_cached": "Prompt tokens that were found in the cache",
    "preempted": "Times that a running request was sent back for want of pages",
}


class Collector:
    """Reads the shared tables at each scrape."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory, self.world = memory, attach(memory.limits, memory.world)

    def collect(self) -> Iterator[Metric]:
        """The metric families."""
        counters = self.world[0]["counters"]
        for name in counters.dtype.names:
            help_text = COUNTERS.get(name, name.replace("_", " ").capitalize())
            yield CounterMetricFamily(f"helios_{name}", help_text, value=int(counters[name]))
        yield from self._gauges()
        workers = self.memory.control[0]["workers"]
        responses = CounterMetricFamily(
            "helios_http_responses", "Responses by status class", labels=["status"])
        for status, count in zip(STATUS_CLASSES, workers["responses"].sum(axis=0), strict=True):
            responses.add_metric([status], int(count))
        yield responses
        yield CounterMetricFamily("helios_http_streams", "Streamed responses begun",
                                  value=int(workers["streams"].sum()))
        yield CounterMetricFamily("helios_permits_full", "Requests refused for want of a permit",
                                  value=int(workers["permits_full"].sum()))

    def _gauges(self) -> Iterator[Metric]:
        service, requests = self.memory.service, self.world[0]["requests"]
        slots, pages = self.world[0]["slots"], self.world[0]["pages"]
        tiers = self.world[0]["tiers"]
        used = tiers["place_count"] - tiers["free_count"]
        values = {
            "engine_ready": ("1 while the engine serves",
                             int(service["engine_state"] == ENGINE_READY)),
            "draining": ("1 while the server takes no new requests", int(service["draining"])),
            "permits": ("Requests that may be in the server", int(service["permit_count"])),
            "permits_used": ("Requests in the server", permits_used(self.memory.control)),
            "requests_waiting": ("Accepted requests without a slot",
                                 int(requests["waiting_count"])),
            "requests_running": ("Requests on the device",
                                 int(np.count_nonzero(requests["state"] == RUNNING))),
            "slots_used": ("Slots in use", int(np.count_nonzero(slots["state"] != FREE))),
            "pages": ("Cache pages", int(pages["page_count"])),
            "pages_used": ("Cache pages that running requests hold",
                           int(pages["page_count"] - pages["free_count"] - pages["idle_count"])),
            "pages_cached": ("Cache pages that hold reusable content and nothing else holds",
                             int(pages["idle_count"])),
            "pages_memory": ("Pages that host memory can hold for the device",
                             int(tiers["place_count"][TIER_MEMORY])),
            "pages_memory_used": ("Pages that host memory holds for the device",
                                  int(used[TIER_MEMORY])),
            "pages_disk": ("Pages that the disk can hold for the device",
                           int(tiers["place_count"][TIER_DISK])),
            "pages_disk_used": ("Pages that the disk holds for the device",
                                int(used[TIER_DISK])),
            "ticks": ("Ticks of the engine", int(self.world[0]["clock"]["tick"])),
        }
        for name, (help_text, value) in values.items():
            yield GaugeMetricFamily(f"helios_{name}", help_text, value=value)


class Exporter:
    """The text of one server's metrics."""

    def __init__(self, memory: SharedMemory) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(Collector(memory))

    def text(self) -> bytes:
        """Prometheus exposition format."""
        return generate_latest(self.registry)

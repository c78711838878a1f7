"""OTLP traces of requests, by OpenTelemetry's own library, which is imported only where traces are
asked for. Attributes carry ids, counts and times, never content.

Names of attributes are OpenTelemetry's semantic conventions for HTTP and generative AI, and vLLM's
for latencies."""

import importlib.util
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from helios_dod import __version__
from helios_dod.errors import UserError
from helios_dod.server.http import Exchange
from helios_dod.server.marks import Marks

PATH = "/v1/traces"  # OTLP/HTTP's default, where the URL has none
EXPORT_SECONDS = 5  # for one batch, and for the last ones when a worker ends
LIBRARY = "opentelemetry.exporter.otlp.proto.http"


def endpoint_of(url: str) -> str:
    """Where traces are posted. Raises UserError for what is no address, or without the library."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--otlp: expected a URL such as http://127.0.0.1:4318, got {url!r}")
    try:
        found = importlib.util.find_spec(LIBRARY)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UserError(f"--otlp: {LIBRARY} is not installed; the extra `otlp` of this package "
                        "brings it: pip install 'helios-dod[otlp]'")
    return url if parts.path not in ("", "/") else url.rstrip("/") + PATH


class Tracer:
    """Spans of one worker's requests, sent in batches by a thread of the library."""

    def __init__(self, endpoint: str, worker: int) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = TracerProvider(shutdown_on_exit=False, resource=Resource.create({
            "service.name": "helios", "service.version": __version__,
            "service.instance.id": str(worker)}))
        self.provider.add_span_processor(BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)))
        self.tracer = self.provider.get_tracer("helios_dod", __version__)
        self.propagator = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Sends what is left, if a collector takes it in time."""
        last = threading.Thread(target=self.provider.shutdown, daemon=True)
        last.start()
        last.join(EXPORT_SECONDS)

    def record(self, exchange: Exchange, id: str, status: int, began_ns: int) -> None:
        """The spans of a request that is over. status: sent, 0 if the client left before."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        now_ns = time.monotonic_ns()
        wall_ns = time.time_ns() - now_ns
        carrier = {name.decode(): value.decode("latin-1")
                   for name, value in exchange.scope["headers"] if name.startswith(b"trace")}
        root = self.tracer.start_span(
            f"{exchange.method} {exchange.path}", self.propagator.extract(carrier),
            SpanKind.SERVER, attributes_of(exchange, id, status), start_time=wall_ns + began_ns)
        if status == 0 or status >= 500:
            root.set_status(StatusCode.ERROR)
        context = set_span_in_context(root)
        for name, first, last, attributes in parts_of(exchange.marks, now_ns):
            span = self.tracer.start_span(
                name, context, attributes=attributes, start_time=wall_ns + first)
            span.end(wall_ns + last)
        root.end(wall_ns + now_ns)


def attributes_of(exchange: Exchange, id: str, status: int) -> dict[str, Any]:
    """What the request's own span says."""
    notes, marks = exchange.notes, exchange.marks
    known = {
        "http.request.method": exchange.method, "url.path": exchange.path,
        "http.response.status_code": status or None, "helios.request.id": id,
        "gen_ai.response.id": notes.get("id"),
        "gen_ai.usage.input_tokens": notes.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": notes.get("generated_tokens")}
    if marks is not None:
        known["helios.usage.cached_tokens"] = marks.cached
        firsts = [c.first_ns for c in marks.choices if c.first_ns]
        if firsts:
            known["gen_ai.latency.time_to_first_token"] = (min(firsts) - marks.ingress_ns) / 1e9
    return {name: value for name, value in known.items() if value is not None}


def parts_of(marks: Marks | None, now_ns: int) -> list[tuple[str, int, int, dict[str, Any]]]:
    """(name, first, last, attributes) of each stage of a request; one that never came is left out,
    one that was cut off ends now."""
    if marks is None:
        return []
    parts: list[tuple[str, int, int, dict[str, Any]]] = [
        ("prepare", marks.ingress_ns, marks.enqueue_ns, {})]
    for index, choice in enumerate(marks.choices):
        said = {"helios.choice": index}
        first = choice.first_ns or now_ns
        admitted = choice.admitted_ns or first
        parts.append(("queue", choice.queued_ns, admitted, said))
        if choice.admitted_ns:
            parts.append(("prefill", admitted, first, said))
        if choice.first_ns:
            parts.append(("decode", first, choice.last_ns,
                          said | {"gen_ai.usage.output_tokens": choice.generated}))
    return parts

"""Traces of a live server, received by a loopback collector through OpenTelemetry's protocol."""

import importlib.util
import itertools
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import server_harness
import text_tables
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from server_harness import PATIENCE_S, open_stream, serving, wait_until

from helios_dod.errors import UserError
from helios_dod.server.tracing import endpoint_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "platypus"


class Collected:
    """What a collector was sent."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.raw = b""
        self.traces: dict[str, list[Span]] = defaultdict(list)

    def take(self, path: str, data: bytes) -> None:
        self.paths.add(path)
        self.raw += data
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.traces[span.trace_id.hex()].append(span)

    def of(self, request_id: str) -> tuple[Span, dict[str, list[Span]]]:
        """A request's own span, and those of its stages by name."""
        for spans in self.traces.values():
            root = next(span for span in spans if span.kind == Span.SPAN_KIND_SERVER)
            if said(root)["helios.request.id"] == request_id:
                parts: dict[str, list[Span]] = defaultdict(list)
                for span in spans:
                    if span is not root:
                        assert span.parent_span_id == root.span_id
                        assert root.start_time_unix_nano <= span.start_time_unix_nano
                        assert (span.start_time_unix_nano <= span.end_time_unix_nano
                                <= root.end_time_unix_nano)
                        parts[span.name].append(span)
                return root, parts
        raise AssertionError(f"no trace of {request_id}")


def said(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collected]:
    """The spans of four requests to one server, which has ended since."""
    found = Collected()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    endpoint = endpoint_of(f"http://127.0.0.1:{collector.server_port}")
    with serving(core, f"otlp={endpoint}", env={"OTEL_BSP_SCHEDULE_DELAY": "600000"}) as server:
        def ask(request_id: str, **fields: Any) -> httpx.Response:
            return httpx.post(server.url + "/v1/chat/completions", timeout=PATIENCE_S, headers={
                "x-request-id": request_id, "traceparent": f"00-{TRACE}-{PARENT}-01"}
                if request_id == "streamed" else {"x-request-id": request_id},
                json=server_harness.body(
                    messages=[{"role": "user", "content": SECRET}], ignore_eos=True, **fields))

        assert "[DONE]" in ask("streamed", max_tokens=9, stream=True).text
        assert len(ask("whole", max_tokens=5, n=2).json()["choices"]) == 2
        assert ask("refused", temperature=9).status_code == 400
        left = open_stream(server, max_tokens=4000, ignore_eos=True)
        while b"content" not in left.recv(65536):
            pass
        left.close()
        server.idle()
        wait_until(lambda: server.metric("helios_cancelled_total") == 1, "cancelled")
        assert not found.raw  # nothing is sent on the request's path
        assert server.stop() == 0
    collector.shutdown()
    yield found


def test_stages_of_a_stream(collected: Collected) -> None:
    root, parts = collected.of("streamed")
    assert collected.paths == {"/v1/traces"}
    assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == PARENT
    assert root.name == "POST /v1/chat/completions"
    assert {name: len(spans) for name, spans in parts.items()} == {
        "prepare": 1, "queue": 1, "prefill": 1, "decode": 1}
    order = [parts[name][0] for name in ("prepare", "queue", "prefill", "decode")]
    for before, after in itertools.pairwise(order[1:]):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    told = said(root)
    assert told["http.response.status_code"] == 200 and told["gen_ai.usage.output_tokens"] == 9
    assert told["gen_ai.response.id"].startswith("chatcmpl-")
    assert told["gen_ai.usage.input_tokens"] > 0
    first_s = (parts["decode"][0].start_time_unix_nano
               - parts["prepare"][0].start_time_unix_nano) / 1e9
    assert told["gen_ai.latency.time_to_first_token"] == pytest.approx(first_s, abs=1e-6)
    assert said(parts["decode"][0])["gen_ai.usage.output_tokens"] == 9


def test_each_choice_has_its_stages(collected: Collected) -> None:
    root, parts = collected.of("whole")
    assert [said(span)["helios.choice"] for span in parts["decode"]] == [0, 1]
    assert len(parts["queue"]) == 2 and said(root)["gen_ai.usage.output_tokens"] == 10


def test_a_refusal_has_no_stages(collected: Collected) -> None:
    root, parts = collected.of("refused")
    assert said(root)["http.response.status_code"] == 400 and not parts


def test_a_client_that_leaves_is_an_error(collected: Collected) -> None:
    roots = [span for spans in collected.traces.values() for span in spans
             if span.status.code == Status.STATUS_CODE_ERROR]
    (root,) = roots
    assert "http.response.status_code" not in said(root)
    assert len(collected.traces) == 4


def test_no_content_is_sent(collected: Collected) -> None:
    assert SECRET.encode() not in collected.raw and b"quick" not in collected.raw


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="--otlp: expected a URL"):
        endpoint_of(url)
    assert endpoint_of("http://x:1/other/path") == "http://x:1/other/path"


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(UserError, match=r"helios-dod\[otlp\]"):
        endpoint_of("http://127.0.0.1:4318")


def test_the_library_is_not_imported_unless_it_is_asked_for() -> None:
    script = "import sys, helios_dod.server.app, helios_dod.server.launch\n" \
             "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])

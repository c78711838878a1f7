"""Keys, origins, request ids, logs, limits, sockets, TLS and restarts of a live server."""

import datetime
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import server_harness
import text_tables
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from server_harness import PATIENCE_S, Server, open_stream, serving, wait_until

from helios_dod.server.access import log_request
from helios_dod.server.bodies import Holding
from helios_dod.server.http import Exchange

KEYS = ("first-key", "second-key")
ORIGIN = "http://localhost:3000"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("core") / "tokenizer.json"
    path.write_text(text_tables.byte_level().tokenizer.to_str())
    return path


@pytest.fixture(scope="module")
def guarded(core: Path) -> Iterator[Server]:
    with serving(core, f"key_digests={','.join(KEYS)}", f"cors_origins={ORIGIN}", "log=json",
                 "body_bytes_max=2000") as running:
        yield running


@pytest.fixture(scope="module")
def open_server(core: Path) -> Iterator[Server]:
    with serving(core) as running:
        yield running


def ask(server: Server, headers: dict[str, str], method: str = "POST",
        path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    return httpx.request(method, server.url + path, headers=headers, timeout=PATIENCE_S,
                         json=server_harness.body(max_tokens=2, **fields))


def test_keys(guarded: Server) -> None:
    for headers in ({"authorization": f"Bearer {KEYS[0]}"}, {"x-api-key": KEYS[1]},
                    {"authorization": f"bearer  {KEYS[1]}"}):
        assert ask(guarded, headers).status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ""},
                    {"authorization": f"Basic {KEYS[0]}"}, {"x-api-key": KEYS[0] + "x"}):
        refused = ask(guarded, headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert ask(guarded, {}, path="/v1/messages").json()["error"]["type"] == "authentication_error"
    assert guarded.get("/v1/models").status_code == 401
    for path in ("/health", "/ready", "/version", "/metrics"):
        assert guarded.get(path).status_code == 200


def test_origins(guarded: Server, open_server: Server) -> None:
    key = {"x-api-key": KEYS[0]}
    allowed = ask(guarded, {**key, "origin": ORIGIN})
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in ask(guarded, {**key, "origin": "http://a"}).headers
    flight = ask(guarded, {"origin": ORIGIN}, "OPTIONS")
    assert flight.status_code == 204 and flight.content == b""
    assert flight.headers["access-control-allow-methods"] == "POST"
    assert ask(guarded, {"origin": "http://a"}, "OPTIONS").status_code == 401
    assert ask(open_server, {"origin": ORIGIN}, "OPTIONS").status_code == 405
    assert "access-control-allow-origin" not in ask(open_server, {"origin": ORIGIN}).headers
    streamed = ask(guarded, {**key, "origin": ORIGIN}, stream=True)
    assert streamed.headers["access-control-allow-origin"] == ORIGIN


def test_request_ids_and_logs(guarded: Server) -> None:
    answer = ask(guarded, {"x-api-key": KEYS[0], "x-request-id": "mine-1"},
                 messages=[{"role": "user", "content": "Zebra"}])
    assert answer.headers["x-request-id"] == "mine-1"
    made = ask(guarded, {"x-api-key": KEYS[0], "x-request-id": "not a word"}, stream=True)
    assert len(made.headers["x-request-id"]) == 24
    refused = ask(guarded, {"x-request-id": "mine-2"})
    assert refused.headers["x-request-id"] == "mine-2"

    def lines() -> dict[str, Any]:
        entries = [json.loads(line) for line in guarded.lines if line.startswith("{")]
        return {entry["request_id"]: entry for entry in entries}

    wait_until(lambda: "mine-2" in lines(), "the log line")
    entry = lines()["mine-1"]
    assert entry["status"] == 200 and entry["path"] == "/v1/chat/completions"
    assert entry["id"] == answer.json()["id"] and entry["generated_tokens"] == 2
    assert entry["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert lines()["mine-2"]["status"] == 401
    assert "Zebra" not in guarded.output and KEYS[0] not in guarded.output


def test_no_request_writes_another_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def never() -> Any:
        raise AssertionError

    def logged(path: str, **notes: Any) -> str:
        exchange = Exchange({"method": "GET", "path": path, "headers": []}, never, never,
                            Holding(1), notes=notes)
        log_request(exchange, "text", b"id-1", 404, 0)
        return capsys.readouterr().err

    for path in ("/a\nevent=request status=200", "/\r\x1b[2J", "/\u2028\x85\x7f", "/ b",
                 '/"', "/a=b", "/\udcff", "/\\", ""):
        line = logged(path, prompt_tokens=3)
        assert line.endswith(" prompt_tokens=3\n") and line[:-1].isascii()
        assert line[:-1].isprintable()
        said = line.split(" path=")[1].rpartition(" status=404 ms=")[0]
        assert json.loads(said) == path
    assert " path=/v1/models?x,y status=404 " in logged("/v1/models?x,y")


def test_body_limit(guarded: Server) -> None:
    key = {"x-api-key": KEYS[0]}
    big = ask(guarded, key, user="x" * 2000)
    assert big.status_code == 400 and "2000 bytes" in big.json()["error"]["message"]

    def parts() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100

    chunked = httpx.post(guarded.url + "/v1/chat/completions", headers=key, content=parts())
    assert chunked.status_code == 400
    assert chunked.json()["error"]["code"] == "request_too_large"


def test_head_has_no_body(open_server: Server) -> None:
    answer = httpx.head(open_server.url + "/v1/models")
    assert answer.status_code == 200 and answer.content == b""
    assert int(answer.headers["content-length"]) == len(open_server.get("/v1/models").content)


def test_unix_socket(core: Path, tmp_path: Path) -> None:
    path = tmp_path / "helios.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # left behind by somebody who crashed
    server = Server(server_harness.fake_command(core, 0, f"uds={path}"), {})
    try:
        wait_until(lambda: "ready: try" in server.output, server.output)
        assert f"listening on http+unix://{path}" in server.output
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            answer = client.post("http://x/v1/chat/completions", json=server_harness.body(
                max_tokens=3, ignore_eos=True), timeout=PATIENCE_S)
        assert answer.json()["usage"]["completion_tokens"] == 3
        second = Server(server_harness.fake_command(core, 0, f"uds={path}"), {})
        assert second.process.wait(PATIENCE_S) == 2
        wait_until(lambda: "in use" in second.output, second.output)
        assert server.stop() == 0 and not path.exists()
    finally:
        server.process.kill()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name)
            .public_key(key.public_key()).serial_number(1).not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
            .sign(key, hashes.SHA256()))
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()))
    return files


def test_tls(core: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    server = Server(server_harness.fake_command(core, 0, f"tls={cert},{key}"), {})
    try:
        wait_until(lambda: "ready: try" in server.output, server.output)
        port = server.output.split("listening on https://127.0.0.1:")[1].split(";")[0]
        context = ssl.create_default_context(cafile=str(cert))
        answer = httpx.post(f"https://localhost:{port}/v1/chat/completions", verify=context,
                            json=server_harness.body(max_tokens=3, stream=True))
        assert answer.text.rstrip().endswith("data: [DONE]")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/health")
        assert server.stop() == 0
    finally:
        server.process.kill()


def test_a_failed_engine_starts_again_as_often_as_allowed(core: Path) -> None:
    with serving(core, "workers=2", "restarts=1") as server:
        stream = open_stream(server, max_tokens=4000, ignore_eos=True)
        engine = server.children()[0]
        while b"content" not in stream.recv(65536):
            pass
        os.kill(engine, signal.SIGKILL)
        text = b""
        while part := stream.recv(65536):
            text += part
        assert b'"code":"engine_failed"' in text and b"[DONE]" not in text
        wait_until(lambda: "starting the engine again (1 of 1)" in server.output, server.output)
        wait_until(lambda: server.get("/ready").status_code == 200, "ready again")
        for _ in range(6):
            answer = server.post(max_tokens=3, ignore_eos=True)
            assert answer.json()["usage"]["completion_tokens"] == 3, answer.text
        assert server.get("/health").status_code == 200
        assert engine not in server.children()
        second = max(server.children())
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: all(server.get("/health").status_code == 503 for _ in range(6)),
                   "the cause is told")
        assert "SIGKILL" in server.get("/health").json()["error"]["message"]
        assert server.stop() == 0

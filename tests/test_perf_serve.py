"""The load client against a live server over the engine's test double, and against none."""

import http.server
import json
import socket
import sys
import threading

import httpx
import pytest
import text_tables
from server_harness import serving

from helios_dod.errors import UserError
from helios_dod.perf.__main__ import main
from helios_dod.perf.conversations import drawn_turns, read_turns


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with serving(core) as started:
        yield started


def perf(capsys, monkeypatch, *arguments):
    """(status, result) of the command."""
    monkeypatch.setattr(sys, "argv", ["perf", *map(str, arguments), "--json"])
    status = main()
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [("--concurrency", 4), ("--rate", 200)],
                         ids=["closed", "open"])
def test_a_load_is_measured(server, capsys, monkeypatch, arguments):
    status, result = perf(
        capsys, monkeypatch, "serve", "--url", server.url, "--requests", 24, "--prompt-tokens", 30,
        "--output-tokens", 12, "--ignore-eos", "--warm-up", 2, "--repeats", 2,
        "--ttft-ms", 60_000, *arguments)
    assert status == 0
    assert result["model"] == httpx.get(server.url + "/v1/models").json()["data"][0]["id"]
    for part in result["runs"]:
        assert part["requests"] == 24 and part["failed"] == 0
        assert part["output_tokens"] == 24 * 12, "as the server counts them"
        assert part["counted_by_chunks"] == 0
        assert part["prompt_tokens"] > 24 * 30
        assert 0 < part["ttft_ms"]["p50"] <= part["latency_ms"]["p50"]
        assert part["met"] == 1


def test_every_turn_holds_those_before_it(server, capsys, monkeypatch):
    status, result = perf(
        capsys, monkeypatch, "serve", "--url", server.url, "--requests", 6, "--turns", 3,
        "--prompt-tokens", 9, "--output-tokens", 5, "--ignore-eos", "--warm-up", 0, "--concurrency",
        2)
    (part,) = result["runs"]
    assert status == 0 and part["failed"] == 0 and part["output_tokens"] == 30
    turns = drawn_turns(6, 3, 9, 5, 1)
    assert [len(turn.messages) for turn in turns] == [1, 1, 3, 3, 5, 5]
    assert turns[4].messages[:3] == turns[2].messages and turns[4].messages[0] != turns[
        5].messages[0]
    assert turns[2].salted(7)[0]["content"] == "7 " + turns[0].messages[0]["content"]


def test_conversations_of_a_file_are_asked(server, tmp_path, capsys, monkeypatch):
    path = tmp_path / "shared.json"
    path.write_text(json.dumps([
        {"id": "a", "conversations": [
            {"from": "human", "value": "one"}, {"from": "gpt", "value": "x" * 20},
            {"from": "human", "value": "two"}, {"from": "gpt", "value": "y" * 8},
            {"from": "human", "value": "never answered"}]},
        {"conversations": []},
        {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "three"},
                      {"role": "assistant", "content": ""}]}]))
    turns = read_turns(path, 10)
    assert [turn.output_tokens for turn in turns] == [5, 1, 2]
    assert [[one["role"][0] for one in turn.messages] for turn in turns] == [
        ["u"], ["s", "u"], ["u", "a", "u"]]
    status, result = perf(capsys, monkeypatch, "serve", "--url", server.url, "--conversations",
                          path, "--ignore-eos", "--warm-up", 0, "--rate", 1000)
    assert status == 0 and result["runs"][0]["output_tokens"] == 8


@pytest.mark.parametrize("text,words", [
    ("{", "not JSON"), ("{}", "a list"), ("[5]", "[0]: expected an object"),
    ('[{"conversations": [5]}]', "[0][0]"), ("[]", "got none"),
    ('[{"conversations": [{"from": "bard", "value": "x"}]}]', "got 'bard'"),
    ('[{"conversations": [{"from": "human", "value": 5}]}]', "and 5")])
def test_bad_conversations_are_named(tmp_path, text, words):
    path = tmp_path / "shared.json"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_turns(path, 10)
    assert words in str(raised.value)


class Plain(http.server.BaseHTTPRequestHandler):
    """A server that streams three pieces and reports no usage."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for delta in ({"role": "assistant"}, {"content": "a"}, {"content": "b"}, {"content": "c"}):
            self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})

    def send(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, *words):
        """Nothing."""


def test_chunks_count_where_a_server_reports_no_usage(capsys, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain) as plain:
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        status, result = perf(
            capsys, monkeypatch, "serve", "--url", f"http://127.0.0.1:{plain.server_port}",
            "--model", "any", "--requests", 4, "--concurrency", 2, "--warm-up", 0)
        plain.shutdown()
    (part,) = result["runs"]
    assert status == 0 and part["counted_by_chunks"] == 4 and part["output_tokens"] == 12


class Odd(Plain):
    """Sends one event that is none of a chat completion, or nothing at all."""

    event = None

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.event is None:
            self.server.ended.wait(30)
            return
        self.send_response(200)
        self.end_headers()
        self.send(self.event)


@pytest.mark.parametrize("event,words", [
    ([1], "no event of a chat completion"), ({"choices": [5]}, "no event of a chat completion"),
    ({"choices": [], "usage": {"prompt_tokens": None}}, "no event of a chat completion"),
    ({"choices": None}, "without a finish reason"), ({"choices": [{"delta": None}]}, "without a"),
    (None, "no end within 0.5 s")], ids=str)
def test_a_server_that_answers_oddly_fails_only_its_requests(capsys, monkeypatch, event, words):
    monkeypatch.setattr(Odd, "event", event)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as odd:
        odd.ended = threading.Event()
        threading.Thread(target=odd.serve_forever, daemon=True).start()
        status, result = perf(
            capsys, monkeypatch, "serve", "--url", f"http://127.0.0.1:{odd.server_port}",
            "--model", "any", "--requests", 3, "--concurrency", 3, "--warm-up", 0,
            *(("--timeout-s", 0.5) if event is None else ()))
        odd.ended.set()
        odd.shutdown()
    (part,) = result["runs"]
    assert status == 1 and part["failed"] == 3
    assert all(words in name for name in part["errors"])


def test_failures_are_counted_and_named(server, capsys, monkeypatch):
    status, result = perf(
        capsys, monkeypatch, "serve", "--url", server.url, "--requests", 5, "--model", "nobody",
        "--warm-up", 0, "--rate", 1000)
    assert status == 1
    (part,) = result["runs"]
    assert part["failed"] == 5 and sum(part["errors"].values()) == 5
    assert all(name.startswith("404") for name in part["errors"])


def test_an_absent_server_is_named(capsys, monkeypatch):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setattr(sys, "argv", ["perf", "serve", "--url", url])
        assert main() == 1
    assert url in capsys.readouterr().err


def test_results_are_compared(tmp_path, capsys, monkeypatch):
    for name, rate, machine in (("a", 10.0, "x"), ("b", 25.0, "y")):
        (tmp_path / name).write_text(json.dumps(
            {"machine": {"processor": machine}, "runs": [{"output_tokens_per_s": rate}]}))
    _, result = perf(capsys, monkeypatch, "compare", tmp_path / "a", tmp_path / "b")
    assert result["figures"]["runs[0].output_tokens_per_s"]["ratio"] == 2.5
    assert result["machines_differ"] == {"processor": ["x", "y"]}
    monkeypatch.setattr(sys, "argv", ["perf", "compare", str(tmp_path / "a"), str(tmp_path / "c")])
    assert main() == 1
    assert "No such file" in capsys.readouterr().err

"""The contract's section "Token and timing observation", sentence by sentence, against a server.

    python perf/observation.py [CORE] [--executor simulated]

Serves the core (default: the demo core) with two running and two queued requests at most, asks it
over plain sockets, and prints each sentence with what was seen; the first that does not hold ends
the command. What no client can see (the order within a tick, that no graph changes) or provoke
here (the scheduler's own refusals) is tested in tests/test_server_*.py and tests/test_engine_*.py.
"""

import argparse
import json
import os
import signal
import socket
import sys
import time
from typing import Any

from helios_dod.perf.served import Served

HEAD = "POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
OBSERVED = {"return_token_ids": True}
TIMED = {**OBSERVED, "return_token_timestamps": True}
PAUSED = 4500  # tokens with twenty alternatives: 7 MB, more than the sockets on the way hold
USAGE = {"stream_options": {"include_usage": True}}


class Client:
    """Asks one server; every request is a conversation of its own unless it brings one."""

    def __init__(self, server: Served) -> None:
        self.server = server

    def open(self, path: str = "/v1/chat/completions", small: bool = False,
             **fields: Any) -> socket.socket:
        """A connection that has asked."""
        body = json.dumps({"model": "default", "temperature": 0, "max_tokens": 12, "messages": [
            {"role": "user", "content": "Say hello to the four winds."}], **fields}).encode()
        connection = socket.socket()
        if small:  # a reader that pauses holds little
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(120)
        connection.connect(("127.0.0.1", self.server.port))
        connection.sendall((HEAD % path).encode() + b"content-length: %d\r\n\r\n" % len(body)
                           + body)
        return connection

    def finish(self, connection: socket.socket) -> tuple[int, bytes]:
        """Status and body, all of it."""
        data = b""
        while part := connection.recv(1 << 18):
            data += part
        connection.close()
        head, _, body = data.partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            joined = b""
            while body:
                size, _, rest = body.partition(b"\r\n")
                joined, body = joined + rest[: int(size, 16)], rest[int(size, 16) + 2:]
            body = joined
        return int(head.split()[1]), body

    def whole(self, **fields: Any) -> dict[str, Any]:
        """A JSON answer."""
        status, body = self.finish(self.open(**fields))
        assert status == 200, (status, body)
        return json.loads(body)

    def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed answer that ends well."""
        status, body = self.finish(self.open(stream=True, **fields))
        events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
        assert status == 200 and events.pop() == b"[DONE]", body[-500:]
        return [json.loads(event) for event in events]

    def refusal(self, **fields: Any) -> tuple[int, str | None]:
        """Status and field of a refusal."""
        status, body = self.finish(self.open(**fields))
        return status, json.loads(body)["error"].get("param")

    def metric(self, name: str) -> int:
        """A sample of /metrics."""
        return int(self.server.metrics()[name])

    def names(self) -> set[str]:
        """Metrics, with labels or not."""
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=120)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        lines = self.finish(connection)[1].decode().splitlines()
        return {line.split()[0].split("{")[0] for line in lines if line and line[0] != "#"}

    def wait(self, name: str, value: int) -> None:
        """Until a sample has that value."""
        deadline = time.monotonic() + 1800
        while self.metric(name) != value:
            assert time.monotonic() < deadline, (name, self.metric(name), value)
            time.sleep(0.02)


def ids_of(chunks: list[dict[str, Any]]) -> list[int]:
    """Generated ids of a stream."""
    return [token for chunk in chunks for choice in chunk["choices"]
            for token in choice.get("token_ids", [])]


def text_of(chunks: list[dict[str, Any]]) -> str:
    """Content of a stream."""
    return "".join(choice["delta"].get("content", "") for chunk in chunks
                   for choice in chunk["choices"])


def token_ids(client: Client) -> None:
    """The first paragraph."""
    plain, seen = client.whole(), client.whole(**OBSERVED)
    choice, usage = seen["choices"][0], seen["usage"]
    assert len(seen["prompt_token_ids"]) == usage["prompt_tokens"]
    assert len(choice["token_ids"]) == usage["completion_tokens"]
    say("JSON has prompt_token_ids at the top and raw ids in choices[0].token_ids", usage)
    chunks = client.stream(**OBSERVED)
    assert chunks[0]["prompt_token_ids"] == seen["prompt_token_ids"]
    told = [c["choices"][0] for c in chunks if "token_ids" in c["choices"][0]]
    assert all(c["delta"] == {} and len(c["token_ids"]) == 1 for c in told)
    assert ids_of(chunks) == choice["token_ids"]
    say("SSE has prompt ids in its first chunk and a metadata-only chunk an id", len(told))
    assert not any("token_ids" in c["choices"][0] for c in chunks if c["choices"][0]["delta"])
    say("deltas carry no duplicate ids", len(chunks) - len(told))
    for seed in range(20):
        short = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 100,
                 "temperature": 1, "seed": seed}
        ended = client.whole(**short, **OBSERVED)
        if ended["choices"][0]["finish_reason"] == "stop":
            shown = client.whole(**short, logprobs=True)["choices"][0]["logprobs"]["content"]
            observed = ended["choices"][0]["token_ids"]
            assert len(observed) == ended["usage"]["completion_tokens"] == len(shown) + 1
            say("observations include EOS", f"{len(shown)} shown, {len(observed)} observed")
            break
    assert choice["message"] == plain["choices"][0]["message"]
    assert choice["finish_reason"] == plain["choices"][0]["finish_reason"]
    assert usage["completion_tokens"] == plain["usage"]["completion_tokens"]
    say("they retain ends, prefix lookup and limits", seen["reused_prompt_tokens"])


def timestamps(client: Client) -> None:
    """The second and third paragraphs."""
    assert client.refusal(return_token_timestamps=True)[0] == 400
    began = time.monotonic_ns()
    seen = client.whole(**TIMED)
    spent = time.monotonic_ns() - began
    choice, times = seen["choices"][0], seen["choices"][0]["token_timestamps_ns"]
    assert len(times) == len(choice["token_ids"]) and times == sorted(times)
    say("return_token_timestamps requires return_token_ids and is aligned", len(times))
    performance = seen["performance"]
    assert set(performance) == {"ingress_ns", "enqueue_ns", "reused_prompt_tokens"}
    assert 0 < performance["ingress_ns"] <= performance["enqueue_ns"] <= times[0]
    assert times[-1] - performance["ingress_ns"] < spent
    say("ingress, enqueue and tokens count from one origin, in order", performance)
    assert performance["reused_prompt_tokens"] == seen["reused_prompt_tokens"]
    assert seen["usage"]["prompt_tokens_details"]["cached_tokens"] == seen["reused_prompt_tokens"]
    chunks = client.stream(**TIMED)
    last = chunks[-1]
    assert last["performance"].keys() == performance.keys() and last["usage"]
    assert not any("performance" in c or "usage" in c for c in chunks[:-1])
    say("terminal responses have reused_prompt_tokens, usage and one performance object",
        last["reused_prompt_tokens"])
    bare = json.dumps([client.whole(), *client.stream()])
    assert not any(n in bare for n in ("token_ids", "timestamps", "performance", "reused"))
    say("unobserved requests carry none of it", len(bare))


def usage_and_flags(client: Client) -> None:
    """The fourth paragraph."""
    for fields in ({}, TIMED):
        chunks = client.stream(**USAGE, **fields)
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    say("include_usage: a usage-only chunk before [DONE], usage null before it",
        chunks[-1]["usage"])
    for name, more in (("return_token_ids", {}), ("return_token_timestamps", OBSERVED)):
        for value in (1, "true", [], 0.0):
            assert client.refusal(**{**more, name: value}) == (400, name)
        assert "token_timestamps_ns" not in client.whole(**{**more, name: None})["choices"][0]
    assert client.refusal(stream=True, stream_options={"include_usage": 1})[0] == 400
    client.stream(stream_options={"include_usage": None})
    say("flags accept booleans or null only", "null is false")


def stops(client: Client) -> None:
    """The fifth paragraph."""
    plain = client.whole(max_tokens=30, ignore_eos=True, **OBSERVED)["choices"][0]
    ids = plain["token_ids"]
    pair = ids[10:12]
    at = next(i for i in range(len(ids)) if ids[i : i + 2] == pair)
    cut = client.whole(max_tokens=30, ignore_eos=True, stop_token_sequences=[pair], **OBSERVED)
    choice = cut["choices"][0]
    assert choice["token_ids"] == ids[: at + 2] and choice["finish_reason"] == "stop"
    assert plain["message"]["content"].startswith(choice["message"]["content"])
    assert choice["stop_reason"] == pair
    chunks = client.stream(max_tokens=30, ignore_eos=True, stop_token_sequences=[pair], **OBSERVED)
    assert text_of(chunks) == choice["message"]["content"] and ids_of(chunks) == ids[: at + 2]
    first = client.whole(max_tokens=30, stop_token_ids=[ids[0]], **OBSERVED)["choices"][0]
    assert first["token_ids"] == ids[:1] and first["message"]["content"] == ""
    say("matching tokens are observed and not shown, pending prefixes wait", pair)
    assert client.refusal(stop_token_sequences=[[1]] * 17) == (400, "stop_token_sequences")
    assert client.refusal(stop_token_sequences=[[1] * 65])[0] == 400
    client.whole(stop_token_sequences=[[1] * 64] * 16)
    say("at most 16 sequences of at most 64 tokens", "17 and 65 are refused")


def admission(client: Client) -> None:
    """The sixth and seventh paragraphs. The server has 2 + 2 permits."""
    long = {"stream": True, "max_tokens": 300, "ignore_eos": True}
    held = [client.open(**long) for _ in range(4)]
    client.wait("helios_permits_used", 4)
    assert client.refusal()[0] == 429
    say("full is 429, at exactly queue_capacity + max_active", client.metric("helios_permits_used"))
    cancelled = client.metric("helios_cancelled_total")
    for connection in held[2:]:
        connection.close()
    client.wait("helios_cancelled_total", cancelled + 2)
    client.wait("helios_permits_used", 2)
    say("a dropped response cancels its request", client.metric("helios_cancelled_total"))
    for connection in held[:2]:
        status, body = client.finish(connection)
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
    client.wait("helios_permits_used", 0)
    # Far more bytes than its sockets hold: many alternatives a token.
    paused = client.open(small=True, **{
        **long, "max_tokens": PAUSED, "logprobs": True, "top_logprobs": 20})
    client.whole()
    client.wait("helios_slots_used", 0)
    assert client.metric("helios_permits_used") == 1 and client.metric("helios_pages_used") == 0
    say("a paused reader blocks nobody; finished, it holds its permit, no slot, no page", 1)
    status, body = client.finish(paused)
    assert body.count(b'"top_logprobs":[{') == PAUSED and body.endswith(b"data: [DONE]\n\n")
    client.wait("helios_permits_used", 0)
    say("it resumes without losing output", f"{len(body)} bytes")
    assert client.refusal(messages=[])[0] == 400
    assert client.refusal(messages=[{"role": "user", "content": "x y " * 9000}])[0] == 400
    say("invalid preparation is 400", "an empty conversation, a prompt beyond the context")


def metrics(client: Client) -> None:
    """The last paragraph."""
    seen = client.server.metrics()
    assert seen["flare_mixed_grammar_decode_steps_total"] == 0
    assert seen["flare_constrained_max_inflight"] == 0
    grammar = {"structured_outputs": {"regex": "[ab]{40}"}, "max_tokens": 60}
    free = client.open(stream=True, max_tokens=400, ignore_eos=True)
    client.wait("helios_slots_used", 1)
    status, body = client.finish(client.open(**grammar))
    client.finish(free)
    if status != 200:
        say("grammars are refused here", body)
        return
    seen = client.server.metrics()
    assert seen["flare_mixed_grammar_decode_steps_total"] > 0
    assert seen["flare_constrained_max_inflight"] == 1
    say("flare_ names count mixed steps and stay at one frame in flight",
        int(seen["flare_mixed_grammar_decode_steps_total"]))
    for prefix in ("helios_launches", "helios_prompt_tokens_cached", "helios_snapshots",
                   "helios_pages", "helios_slots", "helios_admitted", "helios_finished"):
        assert any(name.startswith(prefix) for name in client.names()), prefix
    say("lifecycle, launches, prefix reuse, snapshots and capacity are there", len(client.names()))


def failure(client: Client) -> None:
    """The seventh paragraph's failures; the engine is killed, so this part is the last."""
    long = {"max_tokens": 4000, "ignore_eos": True}
    whole, streamed = client.open(**long), client.open(stream=True, **long)
    client.wait("helios_slots_used", 2)
    data = streamed.recv(1 << 16)
    while b"data: " not in data:
        data += streamed.recv(1 << 16)
    os.kill(client.server.engine, signal.SIGKILL)
    status, body = client.finish(whole)
    assert status == 500, (status, body)
    say("an execution failure is 500", json.loads(body)["error"]["message"])
    while part := streamed.recv(1 << 16):
        data += part
    streamed.close()
    assert data.startswith(b"HTTP/1.1 200"), data[:500]
    assert data.count(b'"error":') == 1 and b"[DONE]" not in data, data[-500:]
    say("behind SSE headers it is one terminal error event, without [DONE]", len(data))
    status, body = client.finish(client.open())
    assert status == 503, (status, body)
    say("what comes later is refused", status)


def say(sentence: str, seen: Any) -> None:
    """A sentence that holds, and what shows it."""
    print(f"holds: {sentence}: {seen}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", nargs="?")
    parser.add_argument("--executor", default="core", choices=["core", "simulated"])
    args = parser.parse_args()
    server = Served(args.core, [
        "--executor", args.executor, "--max-active", "2", "--queue-capacity", "2",
        "--context", "8192", "--cache-memory", "400M"])
    client = Client(server)
    try:
        for part in (token_ids, timestamps, usage_and_flags, stops, admission, metrics, failure):
            part(client)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

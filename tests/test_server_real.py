"""`helios serve` over tiny cores of random weights: the real engine on the host executor."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import server_harness
from ignition_fixtures import TINY
from server_harness import PATIENCE_S, Server, open_stream, running

from helios_dod.cli import main
from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]
TEXT_KINDS = {"byte_level": "smollm2", "byte_fallback": "spm.gguf"}
one_kind = pytest.mark.parametrize("core", ["smollm2"], indirect=True)  # text does not matter


def make(folder: Path, checkpoint: str) -> Path:
    core = folder / "core"
    make_core(TINY / checkpoint, core, Options(cache="f32", lanes=8, packed=(64, 128)),
              namespace="test")
    return core


def command(core: Path, *arguments: str) -> list[str]:
    return ["-m", "helios_dod", "serve", str(core), "--port", "0", "--cache-memory", "8M",
            "--accept", "test", *arguments]


@pytest.fixture(scope="module", params=TEXT_KINDS.values(), ids=TEXT_KINDS.keys())
def core(request: pytest.FixtureRequest,
         tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOS_CONFIG", str(folder / "config"))  # the user's key is made here
        yield make(folder, request.param)


@pytest.fixture(scope="module")
def server(core: Path) -> Iterator[Server]:
    with running(command(core, "--model-name", "tiny")) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, **fields)


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_greedy_answers_repeat(client: openai.OpenAI) -> None:
    first = chat(client, temperature=0, max_tokens=40)
    assert text_of(first) == text_of(chat(client, temperature=0, max_tokens=40))
    assert first.usage.completion_tokens <= 40
    length = first.choices[0].finish_reason == "length"
    assert length == (first.usage.completion_tokens == 40) or not length


def test_stream_equals_whole(client: openai.OpenAI) -> None:
    for seed in range(4):
        whole = chat(client, seed=seed, temperature=1.5, max_tokens=80)
        chunks = list(chat(client, seed=seed, temperature=1.5, max_tokens=80, stream=True,
                           stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == text_of(whole)
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_logprobs_are_probabilities(client: openai.OpenAI) -> None:
    answer = chat(client, temperature=0, max_tokens=10, logprobs=True, top_logprobs=5)
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 5 and entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == pytest.approx(values[0], abs=1e-5)  # greedy takes the likeliest


def test_limits_and_bias(client: openai.OpenAI) -> None:
    plain = chat(client, temperature=0, max_tokens=5, logprobs=True, top_logprobs=1)
    banned = plain.choices[0].logprobs.content[0]
    other = chat(client, temperature=0, max_tokens=5, logprobs=True, top_logprobs=1,
                 extra_body={"ignore_eos": True, "min_tokens": 5})
    assert other.usage.completion_tokens == 5
    every = {str(token): -100 for token in range(300) if token != 42}
    forced = chat(client, max_tokens=3, logit_bias=every, extra_body={"ignore_eos": True})
    assert forced.usage.completion_tokens == 3
    stopped = chat(client, max_tokens=3, logit_bias=every, extra_body={"stop_token_ids": [42]})
    assert text_of(stopped) == "" and stopped.choices[0].finish_reason == "stop"
    assert banned.logprob <= 0


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[str, list[str], str]:
    """Text, the pieces that it came in, and the finish reason of a streamed answer."""
    chunks = list(chat(client, stream=True, **fields))
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    return "".join(pieces), pieces, chunks[-1].choices[0].finish_reason


def test_a_stop_string_cuts_the_text(client: openai.OpenAI) -> None:
    cuts = 0
    for seed in range(6):
        asked: dict[str, Any] = {"seed": seed, "temperature": 1.5, "max_tokens": 80}
        whole = text_of(chat(client, **asked))
        for begin, size in ((0, 1), (3, 2), (10, 7), (len(whole) // 2, 20), (len(whole) - 1, 1)):
            stop = whole[begin : begin + size]
            if not stop:
                continue
            answer = chat(client, stop=[stop, "no such text"], logprobs=True, **asked)
            choice = answer.choices[0]
            cut = whole[: whole.index(stop)]
            assert (choice.message.content, choice.finish_reason) == (cut, "stop"), (stop, whole)
            assert choice.stop_reason == stop
            text, pieces, reason = streamed(client, stop=stop, **asked)
            assert (text, reason) == (cut, "stop")
            assert len(choice.logprobs.content) == answer.usage.completion_tokens
            kept = chat(client, stop=stop, extra_body={"include_stop_str_in_output": True}, **asked)
            assert text_of(kept) == cut + stop
            cuts += len(pieces) > 3
        missed, _, reason = streamed(client, stop=whole[-9:] + "x", **asked)
        assert missed == whole and reason != ""
    assert cuts > 3


def test_other_surfaces_have_stop_strings(server: Server, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 60, "temperature": 1}
    plain = client.completions.create(prompt="Once", seed=5, **asked).choices[0].text
    stop = plain[8:11]
    cut = client.completions.create(prompt="Once", seed=5, stop=stop, **asked).choices[0]
    assert (cut.text, cut.finish_reason) == (plain[: plain.index(stop)], "stop")
    assert cut.stop_reason == stop  # type: ignore[attr-defined]
    letters = [chr(code) for code in range(ord("a"), ord("e"))]
    body = {**asked, "messages": MESSAGES, "stop_sequences": letters}
    for _ in range(20):
        said = httpx.post(server.url + "/v1/messages", json=body, timeout=PATIENCE_S).json()
        text = "".join(block["text"] for block in said["content"])
        assert not set(text) & set(letters)
        if said["stop_reason"] == "stop_sequence":
            assert said["stop_sequence"] in letters
            return
    raise AssertionError("no letter in twenty answers")


def test_stop_token_sequences_are_omitted(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"seed": 3, "temperature": 1.5, "max_tokens": 40, "logprobs": True}
    scored = {"logit_bias": {str(t): -100 for t in range(300) if t not in (40, 41, 42, 43)}}
    body = {"ignore_eos": True}
    plain = chat(client, extra_body=body, **asked, **scored).choices[0]
    letters = [entry.token for entry in plain.logprobs.content]
    ids = dict(zip(sorted(set(letters)), range(40, 44), strict=False))
    assert len(ids) > 1, "the seed draws one letter only"
    found = 0
    for first in range(40, 44):
        for second in range(40, 44):
            body["stop_token_sequences"] = [[first, second], [first, second, first, second]]
            answer = chat(client, extra_body=body, **asked, **scored)
            choice, count = answer.choices[0], answer.usage.completion_tokens
            whole = chat(client, extra_body=body, stream=True, **asked, **scored)
            text = "".join(c.choices[0].delta.content or "" for c in whole if c.choices)
            assert text == choice.message.content
            if choice.finish_reason == "stop":
                found += 1
                assert choice.stop_reason == [first, second]
                assert [e.token for e in choice.logprobs.content] == letters[: count - 2]
                assert choice.message.content == "".join(letters[: count - 2])
            else:
                assert choice.message.content == plain.message.content
    assert found > 2


def test_alone_equals_in_a_crowd(client: openai.OpenAI) -> None:
    asked = [{"seed": seed, "temperature": 1, "max_tokens": 40} for seed in range(12)]
    alone = [text_of(chat(client, **fields)) for fields in asked]
    with ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(lambda fields: text_of(chat(client, **fields)), asked))
    assert crowd == alone


def test_anthropic_stop_sequence(server: Server) -> None:
    asked: dict[str, Any] = {
        "model": "tiny", "max_tokens": 60, "temperature": 0,
        "messages": [{"role": "user", "content": "Hello"}]}

    def ask(**fields: Any) -> httpx.Response:
        return httpx.post(server.url + "/v1/messages", timeout=PATIENCE_S, json=asked | fields)

    plain = ask().json()
    text = plain["content"][0]["text"]
    assert plain["stop_reason"] in ("max_tokens", "end_turn")
    stop = text[3:6]
    answer = ask(stop_sequences=[stop]).json()
    assert answer["stop_reason"] == "stop_sequence" and answer["stop_sequence"] == stop
    assert answer["content"][0]["text"] == text[: text.index(stop)]
    streamed = ask(stop_sequences=[stop], stream=True).text
    assert '"stop_reason":"stop_sequence"' in streamed
    live = httpx.get(server.url + "/live", timeout=PATIENCE_S).json()
    assert live["gauges"]["pages"] > 0 and any(p["launches"] for p in live["programs"])


def test_disconnect_frees_everything(server: Server) -> None:
    before = server.metric("helios_cancelled_total")
    for _ in range(3):
        stream = open_stream(server, model="tiny", ignore_eos=True, n=2)
        stream.recv(100)
        stream.close()
    server.idle()
    wait = server_harness.wait_until
    wait(lambda: server.metric("helios_slots_used") == 0, "slots free")
    assert server.metric("helios_pages_used") == 0
    assert server.metric("helios_cancelled_total") >= before


def test_context_is_refused_by_number(server: Server) -> None:
    answer = httpx.post(server.url + "/v1/chat/completions", timeout=PATIENCE_S, json={
        "model": "tiny", "messages": [{"role": "user", "content": "x y z " * 600}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "512" in answer.json()["error"]["message"]


@one_kind
def test_errors_a_person_can_act_on(core: Path, tmp_path: Path,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    """All of them before any process is started."""
    def failing(*arguments: str) -> str:
        assert main(["serve", *arguments]) == 1
        return capsys.readouterr().err

    assert "no such core" in failing(str(tmp_path / "none"))
    port = ["--port", "0", "--accept", "test"]
    assert "--max-active: 60 asked, 1 to 8 possible" in failing(
        str(core), "--max-active", "60", *port)
    assert "--cache-memory: 1 asked" in failing(str(core), "--cache-memory", "1", *port)
    assert "--offload-memory: 1 asked" in failing(str(core), "--offload-memory", "1", *port)
    assert "--offload-disk-size: 1048576 asked" in failing(
        str(core), "--offload-disk-size", "1M", *port)
    assert "--offload-disk: expected a folder" in failing(
        str(core), "--offload-memory", "1M", "--offload-disk", str(tmp_path / "none"),
        "--offload-disk-size", "1M", *port)
    assert "--context: 4096 asked, 1 to 512 possible" in failing(
        str(core), "--context", "4096", *port)
    assert "--context: 300 asked" in failing(
        str(core), "--context", "300", "--cache-memory", "20K", *port)


@one_kind
def test_small_cache_shortens_the_context(core: Path) -> None:
    """A request that gives no limit gets what the cache can hold, not a refusal."""
    with running(command(core, "--cache-memory", "60K")) as server:
        context = httpx.get(server.url + "/v1/models").json()["data"][0]["max_model_len"]
        assert 64 <= context < 512
        answer = httpx.post(server.url + "/v1/chat/completions", timeout=PATIENCE_S, json={
            "model": "default", "messages": MESSAGES, "ignore_eos": True}).json()
        assert answer["usage"]["total_tokens"] == context


def stories(client: openai.OpenAI) -> list[str]:
    """Answers to four prompts of many pages, three times each."""
    prompts = [f"{start} " + "tell me a story " * 12 for start in ("one", "two", "three", "four")]
    return [text_of(client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": prompt}], max_tokens=20, temperature=0,
        extra_body={"ignore_eos": True})) for prompt in prompts * 3]


@one_kind
def test_another_server_with_pages_behind_its_cache_answers_the_same(
        client: openai.OpenAI, core: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"n": 4, "seed": 11, "temperature": 1, "max_tokens": 30}
    texts = [c.message.content for c in chat(client, **asked).choices]
    assert len(set(texts)) > 1
    tiers = ("--offload-memory", "64K", "--offload-disk", str(tmp_path),
             "--offload-disk-size", "1M")
    with running(command(core, "--cache-memory", "200K", "--model-name", "tiny",
                         "--context", "400", *tiers)) as server:
        other = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        assert [c.message.content for c in chat(other, **asked).choices] == texts
        assert stories(other) == stories(client)
        assert server.metric("helios_pages_offloaded_total") > 0
        assert server.metric("helios_pages_stored_total") > 0
        restored = [server.metric(f"helios_pages_restored_{tier}_total")
                    for tier in ("memory", "disk")]
        assert sum(restored) > 0
        assert 0 < server.metric("helios_pages_memory_used") <= server.metric("helios_pages_memory")
        assert 0 < server.metric("helios_pages_disk_used") <= server.metric("helios_pages_disk")
        assert os.listdir(tmp_path) == []
        assert server.stop() == 0

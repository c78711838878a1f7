"""`helios serve --executor simulated`: the shipped scheduler over a device that computes none."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from server_harness import Server, running
from test_server_real import command

from helios_dod.cli import main

STEP_MS = 20
STREAMS = 24


@pytest.fixture(scope="module")
def server(smollm2_core: Path):
    arguments = ["--executor", "simulated", "--step-ms", str(STEP_MS), "--max-active", "64"]
    with running(command(smollm2_core, *arguments)) as started:
        yield started


def test_its_id_says_so(server: Server):
    (model,) = httpx.get(server.url + "/v1/models").json()["data"]
    assert model["id"].endswith("-simulated")


def test_many_streams_advance_at_the_pace_of_the_device(server: Server):
    """More streams than the core's own programs hold; each token is a step of the clock."""
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    tokens = 12

    def ask(index: int) -> tuple[str, int]:
        answer = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": f"Hello {index}"}],
            max_tokens=tokens, seed=index, extra_body={"ignore_eos": True})
        return answer.choices[0].finish_reason, answer.usage.completion_tokens

    began = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(ask, range(STREAMS)))
    assert answers == [("length", tokens)] * STREAMS
    assert time.monotonic() - began >= tokens * STEP_MS / 1e3, "no step is shorter than its cost"


def test_deadlines_end_what_decodes_and_what_waits_for_a_slot(server: Server):
    """More than there are slots; every permit comes back."""
    def ask(index: int) -> tuple[int, str]:
        answer = httpx.post(server.url + "/v1/chat/completions", timeout=60, json={
            "model": "default", "messages": [{"role": "user", "content": f"Hello {index}"}],
            "max_tokens": 200, "ignore_eos": True, "deadline_ms": 40 * STEP_MS})
        return answer.status_code, answer.json()["error"]["code"]

    with ThreadPoolExecutor(70) as pool:
        answers = list(pool.map(ask, range(70)))
    assert answers == [(504, "deadline_passed")] * 70
    server.idle()


def test_the_same_seed_gives_the_same_tokens(server: Server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    texts = {client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Hello"}], max_tokens=8, seed=3,
        ).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1


def test_pages_are_shared_by_requests_of_one_cache_salt(server: Server):
    def cached(path: str, salt: str | None, **fields) -> int:
        given = {} if salt is None else {"cache_salt": salt}
        answer = httpx.post(server.url + path, timeout=60, json={
            "model": "default", "max_tokens": 1} | fields | given)
        usage = answer.raise_for_status().json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    text = " ".join(f"word{i}" for i in range(60))
    prompt = {"prompt": text}
    assert cached("/v1/completions", None, **prompt) == 0
    full = cached("/v1/completions", None, **prompt)
    assert full >= 64
    assert [cached("/v1/completions", salt, **prompt) for salt in ("a", "a", "b", "b", "a")] == [
        0, full, 0, full, full]
    chat = {"messages": [{"role": "user", "content": text}]}
    assert cached("/v1/chat/completions", "a", **chat) < cached("/v1/chat/completions", "a", **chat)
    assert cached("/v1/chat/completions", "c", **chat) == 0
    for path, fields in (("/v1/chat/completions", chat), ("/v1/responses", {"input": text}),
                         ("/v1/messages", chat | {"max_tokens": 1})):
        refused, accepted = (httpx.post(server.url + path, timeout=60, json={
            "model": "default", "cache_salt": salt} | fields) for salt in ("", "d"))
        assert refused.status_code == 400 and "cache_salt" in refused.json()["error"]["message"]
        assert accepted.status_code == 200


@pytest.mark.parametrize("flag,value", [("--step-ms", "-1"), ("--token-us", "1e9")])
def test_a_cost_out_of_bounds_is_named(smollm2_core: Path, flag: str, value: str, capsys):
    assert main(["serve", str(smollm2_core), "--executor", "simulated", flag, value]) == 1
    assert f"{flag}: must be between 0 and" in capsys.readouterr().err


@pytest.mark.parametrize("value,arguments,words", [
    ('{"format": 1, "operations": {"dance": {}}}', [], "operations: expected one of"),
    ("{", [], "not JSON"),
    ('{"format": 1, "operations": {}}', ["--pace", "none"], "--costs: goes with --pace real"),
    ('{"format": 1, "operations": {}}', ["--executor", "core"],
     "--costs: goes with --executor simulated"),
])
def test_costs_that_cannot_be_used_are_named(smollm2_core: Path, value: str, arguments: list[str],
                                             words: str, tmp_path: Path, capsys):
    path = tmp_path / "costs.json"
    path.write_text(value)
    assert main(["serve", str(smollm2_core), "--executor", "simulated", "--costs", str(path),
                 *arguments]) == 1
    assert words in capsys.readouterr().err


def test_programs_take_what_a_file_of_costs_says(smollm2_core: Path, tmp_path: Path):
    """Prompts cost nothing here, tokens much: an answer takes its tokens' time."""
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"format": 1, "operations": {
        "decode": {"bytes": {"program": 60_000_000_000, "lanes": 15_000_000_000}}}}))
    arguments = ["--executor", "simulated", "--costs", str(path), "--max-active", "4"]
    with running(command(smollm2_core, *arguments)) as started:
        client = openai.OpenAI(base_url=started.url + "/v1", api_key="none", max_retries=0)
        began = time.monotonic()
        answer = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Hello"}], max_tokens=5,
            extra_body={"ignore_eos": True})
        assert answer.usage.completion_tokens == 5
        assert time.monotonic() - began >= 4 * 0.075, "the first token is the prompt's"

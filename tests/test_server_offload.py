"""`helios serve` with pages behind the cache: the same answers, and its metrics."""

import os
from pathlib import Path

import openai
from server_harness import running
from test_server_real import command, core  # noqa: F401

PROMPTS = [[{"role": "user", "content": f"{start} " + "tell me a story " * 12}]
           for start in ("one", "two", "three", "four")]


def answers(url: str) -> list[str]:
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    return [client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=20, temperature=0,
        extra_body={"ignore_eos": True}).choices[0].message.content
        for messages in PROMPTS * 3]


def test_offloaded_equals_resident(core: Path, tmp_path: Path) -> None:  # noqa: F811
    named = ("--model-name", "tiny", "--max-active", "1", "--context", "400")
    with running(command(core, *named)) as server:
        expected = answers(server.url)
    tiers = ("--offload-memory", "64K", "--offload-disk", str(tmp_path),
             "--offload-disk-size", "1M")
    with running(command(core, "--cache-memory", "200K", *named, *tiers)) as server:
        assert answers(server.url) == expected
        assert server.metric("helios_pages_offloaded_total") > 0
        assert server.metric("helios_pages_stored_total") > 0
        restored = [server.metric(f"helios_pages_restored_{tier}_total")
                    for tier in ("memory", "disk")]
        assert sum(restored) > 0
        assert 0 < server.metric("helios_pages_memory_used") <= server.metric("helios_pages_memory")
        assert 0 < server.metric("helios_pages_disk_used") <= server.metric("helios_pages_disk")
        assert os.listdir(tmp_path) == []
        assert server.stop() == 0

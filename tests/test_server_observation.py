"""Token ids, times, prompt scores and usage: their exact places in JSON and in streams."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import server_harness
import text_tables
from server_harness import Server

OBSERVED: dict[str, Any] = {"return_token_ids": True}
TIMED: dict[str, Any] = {**OBSERVED, "return_token_timestamps": True}
FIELDS: dict[str, Any] = {"max_tokens": 9, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with server_harness.serving(core) as running:
        yield running


def whole(server: Server, **fields: Any) -> dict[str, Any]:
    answer = server.post(**{**FIELDS, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def chunks(server: Server, **fields: Any) -> list[dict[str, Any]]:
    text = server.post(stream=True, **{**FIELDS, **fields}).text
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_unobserved_answers_carry_nothing(server: Server) -> None:
    for fields in ({}, {"return_token_ids": False, "return_token_timestamps": None}):
        for answer in [whole(server, **fields), *chunks(server, **fields)]:
            text = json.dumps(answer)
            for name in ("token_ids", "timestamps", "reused", "performance", "prompt_logprobs"):
                assert name not in text


def test_json_places(server: Server) -> None:
    plain, answer = whole(server), whole(server, **OBSERVED)
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert len(answer["choices"][0]["token_ids"]) == 9 and answer["reused_prompt_tokens"] == 1
    assert "token_timestamps_ns" not in answer["choices"][0] and "performance" not in answer
    assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
    timed = whole(server, **TIMED)
    stamps = timed["choices"][0]["token_timestamps_ns"]
    assert len(stamps) == 9 and stamps == sorted(stamps)
    performance = timed["performance"]
    assert set(performance) == {"ingress_ns", "enqueue_ns", "reused_prompt_tokens"}
    assert 0 < performance["ingress_ns"] <= performance["enqueue_ns"] <= stamps[0]
    assert performance["reused_prompt_tokens"] == timed["reused_prompt_tokens"] == 1


def test_stream_places(server: Server) -> None:
    answer, streamed = whole(server, **TIMED), chunks(server, **TIMED)
    assert streamed[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in streamed[1:])
    told = [chunk["choices"][0] for chunk in streamed if "token_ids" in chunk["choices"][0]]
    assert [choice["token_ids"] for choice in told] == [
        [token] for token in answer["choices"][0]["token_ids"]]
    for choice in told:
        assert choice["delta"] == {} and len(choice["token_timestamps_ns"]) == 1
    texts = [chunk for chunk in streamed if chunk["choices"][0]["delta"].get("content")]
    assert texts and all("token_ids" not in chunk["choices"][0] for chunk in texts)
    last = streamed[-1]
    assert last["choices"][0]["finish_reason"] == "length" and last["usage"] == answer["usage"]
    assert last["reused_prompt_tokens"] == 1
    assert last["performance"]["ingress_ns"] <= last["performance"]["enqueue_ns"]
    for chunk in streamed[:-1]:
        assert not {"usage", "reused_prompt_tokens", "performance"} & set(chunk)


def test_stream_with_usage_has_it_alone_at_the_end(server: Server) -> None:
    streamed = chunks(server, stream_options={"include_usage": True}, **TIMED)
    assert streamed[-1]["choices"] == [] and streamed[-1]["usage"]["completion_tokens"] == 9
    assert all(chunk["usage"] is None for chunk in streamed[:-1])
    assert "performance" in streamed[-2] and "performance" not in streamed[-1]


@pytest.mark.parametrize("more", [{}, OBSERVED], ids=["plain", "observed"])
def test_usage_so_far_on_every_chunk(server: Server, more: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = chunks(server, stream_options=options, **more)
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] == 9
    assert len({chunk["usage"]["prompt_tokens"] for chunk in streamed}) == 1
    assert streamed[-1]["choices"] == [] and len(set(counts)) > 4
    assert any("token_ids" in c["choices"][0] for c in streamed[:-1]) == bool(more)
    refused = server.post(stream=True, stream_options={"continuous_usage_stats": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options.continuous_usage_stats"


def test_tokens_that_are_not_shown_are_observed(server: Server) -> None:
    """EOS and stop tokens have no text, and an id."""
    for seed in range(30):
        fields = {"seed": seed, "temperature": 1, "ignore_eos": False, "max_tokens": 40}
        answer = whole(server, **OBSERVED, **fields)
        if answer["choices"][0]["finish_reason"] == "stop":
            break
    else:
        raise AssertionError("no seed reached EOS")
    tokens = answer["choices"][0]["token_ids"]
    eos = text_tables.byte_level().tokenizer.token_to_id("<|im_end|>")
    assert tokens[-1] == eos and len(tokens) == answer["usage"]["completion_tokens"]
    streamed = chunks(server, **OBSERVED, **fields)
    assert [t for c in streamed for t in c["choices"][0].get("token_ids", [])] == tokens
    stopped = whole(server, **OBSERVED, stop_token_ids=[tokens[0]], seed=seed, temperature=1)
    assert stopped["choices"][0]["token_ids"] == [tokens[0]]
    assert stopped["choices"][0]["message"]["content"] == ""


def test_choices_are_observed_each(server: Server) -> None:
    answer = whole(server, n=2, seed=1, temperature=1, **OBSERVED)
    parts: list[list[int]] = [[], []]
    for chunk in chunks(server, n=2, seed=1, temperature=1, **OBSERVED):
        choice = chunk["choices"][0]
        parts[choice["index"]] += choice.get("token_ids", [])
    assert parts == [choice["token_ids"] for choice in answer["choices"]]


@pytest.mark.parametrize(("fields", "param"), [
    ({"return_token_timestamps": True}, "return_token_timestamps"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"return_token_ids": "true"}, "return_token_ids"),
    ({"return_token_ids": True, "return_token_timestamps": 0}, "return_token_timestamps"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"prompt_logprobs": 2}, "prompt_logprobs"), ({"deadline_ms": 0}, "deadline_ms"),
])
def test_refusals(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post(**fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_prompt_scores(server: Server) -> None:
    answer = whole(server, prompt_logprobs=0, **OBSERVED)
    scores, ids = answer["prompt_logprobs"], answer["prompt_token_ids"]
    assert scores[0] is None and len(scores) == len(ids)
    for position, (token, entry) in enumerate(zip(ids[1:], scores[1:], strict=True), 1):
        assert list(entry) == [str(token)] and entry[str(token)]["logprob"] == -position / 4
    streamed = chunks(server, prompt_logprobs=0)
    told = [chunk["prompt_logprobs"] for chunk in streamed if "prompt_logprobs" in chunk]
    assert told == [scores]


def test_deadline(server: Server) -> None:
    late = server.post(max_tokens=4000, ignore_eos=True, deadline_ms=30)
    assert late.status_code == 504 and late.json()["error"]["code"] == "deadline_passed"
    streamed = server.post(max_tokens=4000, ignore_eos=True, deadline_ms=30, stream=True)
    assert streamed.status_code == 200 and "[DONE]" not in streamed.text
    last = json.loads(streamed.text.strip().rsplit("data: ", 1)[1])
    assert last["error"]["code"] == "deadline_passed"
    assert server.post(max_tokens=2, deadline_ms=60_000).status_code == 200
    server.idle()

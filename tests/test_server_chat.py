"""The HTTP surface through the real `openai` package and httpx, over the engine's test double."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import server_harness
import text_tables
from server_harness import Server

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with server_harness.serving(core) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="fake-model", messages=MESSAGES, **fields)


def streamed_text(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_chat(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=12, temperature=0)
    assert answer.object == "chat.completion" and answer.model == "fake-model"
    choice = answer.choices[0]
    assert choice.finish_reason == "length" and choice.message.role == "assistant"
    assert choice.message.content.startswith(" The quick")
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == 12 + answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


def test_stream_equals_whole(client: openai.OpenAI) -> None:
    for temperature in (0, 1):
        whole = chat(client, max_tokens=60, seed=3, temperature=temperature)
        chunks = list(chat(client, max_tokens=60, seed=3, temperature=temperature, stream=True))
        assert streamed_text(chunks) == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert all(c.usage is None for c in chunks)
        assert len({c.id for c in chunks}) == 1


def test_stream_with_usage(client: openai.OpenAI) -> None:
    chunks = list(chat(client, max_tokens=9, seed=0, stream=True,
                       stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 9
    assert all(c.usage is None for c in chunks[:-1])


def test_unicode_pieces_are_whole_characters(client: openai.OpenAI) -> None:
    text = streamed_text(chat(client, max_tokens=60, temperature=0, stream=True))
    assert "“hello”" in text and "漢字" in text and "🙂" in text and "�" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool) -> None:
    answer = chat(client, max_tokens=30, seed=0, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        chunks = list(answer)
        entries = [e for c in chunks if c.choices[0].logprobs
                   for e in c.choices[0].logprobs.content]
        text = streamed_text(chunks)
    else:
        entries, text = answer.choices[0].logprobs.content, answer.choices[0].message.content
    assert len(entries) == 30
    assert bytes(b for e in entries for b in e.bytes).decode("utf-8", "replace") == text
    assert all(len(e.top_logprobs) == 3 for e in entries)
    assert entries[0].logprob == pytest.approx(-0.25)
    assert [t.logprob for t in entries[0].top_logprobs] == pytest.approx([-0.25, -1.25, -2.25])
    assert entries[0].token == bytes(entries[0].bytes).decode("utf-8", "replace")


def test_eos_has_no_text_and_no_logprob(client: openai.OpenAI) -> None:
    ended = [chat(client, max_tokens=40, seed=s, logprobs=True) for s in range(12)]
    stopped = [a for a in ended if a.choices[0].finish_reason == "stop"]
    assert stopped, "no seed reached EOS"
    for answer in stopped:
        assert "im_end" not in answer.choices[0].message.content
        assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens - 1
    ignoring = chat(client, max_tokens=40, seed=1, extra_body={"ignore_eos": True})
    assert ignoring.usage.completion_tokens == 40


def test_stop_token_is_omitted(client: openai.OpenAI) -> None:
    first = chat(client, max_tokens=1, temperature=0, logprobs=True).choices[0].logprobs.content[0]
    ids = text_tables.byte_level().tokenizer.encode(
        first.token, add_special_tokens=False).ids
    answer = chat(client, max_tokens=9, temperature=0, extra_body={"stop_token_ids": ids})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "" and answer.usage.completion_tokens == 1


def test_four_choices_with_one_seed(client: openai.OpenAI) -> None:
    first = chat(client, max_tokens=20, n=4, seed=5)
    again = chat(client, max_tokens=20, n=4, seed=5)
    texts = [c.message.content for c in first.choices]
    assert texts == [c.message.content for c in again.choices]
    assert [c.index for c in first.choices] == [0, 1, 2, 3] and len(set(texts)) > 1
    assert texts[0] == chat(client, max_tokens=20, seed=5).choices[0].message.content
    parts = [""] * 4
    for chunk in chat(client, max_tokens=20, n=4, seed=5, stream=True):
        parts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert parts == texts


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [m.id for m in models] == ["fake-model", "fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_wrong_model(client: openai.OpenAI) -> None:
    client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=1)
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


REFUSED = [
    ({"foo": 1}, "foo", "foo"), ({"max_tokens": "5"}, "max_tokens", "`int"),
    ({"temperature": 2.5}, "temperature", "2.5"), ({"temperature": True}, "temperature", "bool"),
    ({"n": 0}, "n", "128"), ({"top_p": 0}, "top_p", "0"),
    ({"messages": []}, "messages", "message"), ({"functions": []}, "functions", "functions"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", "robot"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].image_url.url", "url"),
    ({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]},
     "messages[0].content[0].image_url", "takes no images"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
     "messages[0].content[0].type", "input_audio"),
    ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight", "weight"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
    ({"logit_bias": {"3": 101}}, "logit_bias", "101"),
    ({"logit_bias": {"70000": 1}}, "logit_bias", "70000"),
    ({"logit_bias": {str(i): 1 for i in range(513)}}, "logit_bias", "512"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"stop_token_ids": list(range(17))}, "stop_token_ids", "16"),
    ({"stop": ""}, "stop", "empty"), ({"stop": ["a", ""]}, "stop", "empty"),
    ({"stop": list("abcde")}, "stop", "4"), ({"stop": "é" * 2049}, "stop", "4096"),
    ({"stop": 5}, "stop", "int"), ({"stop": ["a", 5]}, "stop[1]", "int"),
    ({"stop": "a", "stop_token_ids": [1]}, "stop", "stop_token_ids"),
    ({"stop": ["a"], "stop_token_sequences": [[1]]}, "stop", "stop_token_sequences"),
    ({"stop_token_sequences": [[1]] * 17}, "stop_token_sequences", "16"),
    ({"stop_token_sequences": [[]]}, "stop_token_sequences", "64"),
    ({"stop_token_sequences": [[1] * 65]}, "stop_token_sequences", "64"),
    ({"stop_token_sequences": [[70000]]}, "stop_token_sequences", "70000"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "-1"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "6"),
    ({"max_tokens": 5000}, "max_tokens", "4096"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "6"),
    ({"response_format": {"type": "json_object"}}, "response_format", "masks"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "function"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "integer"}}}]}, "tools[0].function.parameters.type", "integer"),
    ({"store": True}, "store", "store"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"stream_options": {"include": True}, "stream": True}, "stream_options.include", "include"),
    ({"n": 100, "messages": [{"role": "user", "content": "a " * 6000}]}, "messages", "4096"),
]


@pytest.mark.parametrize(
    ("fields", "param", "word"), REFUSED, ids=[str(fields)[:40] for fields, _, _ in REFUSED])
def test_refusals_name_the_field(server: Server, fields: dict[str, Any], param: str,
                                 word: str) -> None:
    answer = server.post(**fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["param"] == param, error
    assert word in error["message"] and param.rsplit(".", 1)[-1] in error["message"], error


ACCEPTED: list[dict[str, Any]] = [
    {"stop": None}, {"stop": []}, {"stop": "a"}, {"stop": ["é" * 1024, "a", "b" * 2047]},
    {"stop": [], "stop_token_ids": [1], "stop_token_sequences": [[1, 2], [3] * 64]},
    {"include_stop_str_in_output": True},
    {"tools": []}, {"response_format": {"type": "text"}},
    {"store": False}, {"user": "u"}, {"metadata": {"a": "b"}}, {"audio": None}, {"top_k": -1},
    {"logit_bias": {"3": -100}}, {"seed": -5}, {"seed": 2**64 - 1}, {"priority": -1},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]},
                  {"role": "user", "content": "b", "name": "n"},
                  {"role": "assistant", "content": None}, {"role": "user", "content": ""}]},
    {"min_p": 0.1, "top_k": 5, "repetition_penalty": 1.1, "presence_penalty": -2,
     "frequency_penalty": 2, "min_tokens": 1},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=[str(f)[:40] for f in ACCEPTED])
def test_accepted_fields(server: Server, fields: dict[str, Any]) -> None:
    answer = server.post(max_tokens=2, **fields)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model": "\xff"}', b"[" * 100_000,
    b'{"model":"fake-model","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"fake-model","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
    b'{"model":"fake-model","messages":[{"role":"user","content":"x"}],"stop":' + b"[" * 50_000,
])
def test_malformed_bodies(server: Server, content: bytes) -> None:
    answer = httpx.post(server.url + "/v1/chat/completions", content=content)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("name", "value", "limit"), [
    ("temperature", "1e999", "between 0 and 2"), ("top_p", "-1e999", "between 0 and 1"),
    ("seed", "1" * 5000, "between -9223372036854775808 and 18446744073709551615"),
    ("seed", "9" * 30, f"and 18446744073709551615, got {'9' * 30}"), ("n", "1e400", "between 1"),
])
def test_numbers_that_cannot_be_read_have_a_limit_too(server: Server, name: str, value: str,
                                                      limit: str) -> None:
    content = json.dumps(server_harness.body())[:-1] + f', "{name}": {value}}}'
    answer = httpx.post(server.url + "/v1/chat/completions", content=content)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == name, error
    assert error["message"].startswith(f"'{name}' must be ") and limit in error["message"]


def test_large_body(server: Server) -> None:
    answer = server.post(user="x" * (9 << 20))
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "request_too_large"


def test_paths_and_methods(server: Server) -> None:
    assert server.get("/nothing").status_code == 404
    wrong = server.get("/v1/chat/completions")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_supported"
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").status_code == 200


def test_rejection_and_failure_statuses(server: Server) -> None:
    for trigger, status, code in (("<reject>", 503, "engine_capacity"),
                                  ("<nonfinite>", 500, "execution_failed")):
        messages = [{"role": "user", "content": f"a{trigger}"}]
        answer = server.post(messages=messages, n=2)
        assert answer.status_code == status and answer.json()["error"]["code"] == code
        streamed = server.post(messages=messages, stream=True)
        assert streamed.status_code == 200
        events = [line for line in streamed.text.split("\n\n") if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == code
        assert "[DONE]" not in streamed.text
    server.idle()


def test_metrics_count(server: Server) -> None:
    before = server.metric("helios_generated_tokens_total")
    server.post(max_tokens=7, ignore_eos=True)
    assert server.metric("helios_generated_tokens_total") == before + 7
    assert server.metric("helios_engine_ready") == 1
    assert "fake" not in server.get("/metrics").text  # nothing of a request or model in labels

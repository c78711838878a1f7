"""/v1/completions, /tokenize, /detokenize and abort by id, over the engine's test double."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import server_harness
import text_tables
from server_harness import PATIENCE_S, Server, open_stream, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with server_harness.serving(core, "workers=2") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"prompt": "Hello there", "max_tokens": 12, "temperature": 0, **fields}
    return client.completions.create(model="fake-model", **given)


def post(server: Server, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=fields, timeout=PATIENCE_S)


def test_completion(client: openai.OpenAI) -> None:
    answer = complete(client)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text.startswith(" The quick") and answer.choices[0].logprobs is None
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 12
    assert len(complete(client, max_tokens=None, seed=0).choices[0].text) > 0
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == answer.choices[0].text
    assert chunks[-1].usage == answer.usage and chunks[-2].choices[0].finish_reason == "length"


def test_usage_so_far_on_every_chunk(client: openai.OpenAI) -> None:
    chunks = list(complete(client, stream=True, stream_options={
        "include_usage": True, "continuous_usage_stats": True}))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 12 and len(set(counts)) > 6


def test_echo_and_batches(client: openai.OpenAI) -> None:
    plain = complete(client).choices[0].text
    echoed = complete(client, echo=True).choices[0].text
    assert echoed == "Hello there" + plain
    ids = text_tables.byte_level().tokenizer.encode("Hello there", add_special_tokens=False).ids
    assert complete(client, prompt=ids, echo=True).choices[0].text == echoed
    batch = complete(client, prompt=["Hello there", "Bye"], n=2, echo=True)
    assert [c.index for c in batch.choices] == [0, 1, 2, 3]
    assert [c.text.split(" The")[0] for c in batch.choices] == ["Hello there"] * 2 + ["Bye"] * 2
    lists = complete(client, prompt=[ids, ids[:1]], echo=True)
    assert lists.choices[0].text == echoed and lists.usage.prompt_tokens == len(ids) + 1
    parts = [""] * 4
    for chunk in complete(client, prompt=["Hello there", "Bye"], n=2, echo=True, stream=True):
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert parts == [c.text for c in batch.choices]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool, echo: bool) -> None:
    answer = complete(client, logprobs=2, echo=echo, stream=stream)
    chunks = list(answer) if stream else [answer]
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    scores = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
    tokens = [token for s in scores for token in s.tokens]
    values = [value for s in scores for value in s.token_logprobs]
    offsets = [offset for s in scores for offset in s.text_offset]
    assert len(tokens) == len(values) == len(offsets)
    prompt = len(tokens) - 12
    assert (prompt > 0) == echo and values[prompt:] == [-0.25] * 12
    assert values[:prompt] == [None, *(-i / 4 for i in range(1, prompt))][:prompt]
    assert offsets == sorted(offsets) and offsets[0] == 0
    for token, offset in zip(tokens, offsets, strict=True):
        if "�" not in token:
            assert text[offset:offset + len(token)] == token
            break
    tops = [top for s in scores for top in s.top_logprobs]
    assert tops[:prompt] == [None] * prompt and all(len(top) == 2 for top in tops[prompt:])


def test_scoring_alone(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=0, echo=True, logprobs=0)
    assert answer.choices[0].text == "Hello there" and answer.usage.completion_tokens == 0
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.prompt_tokens
    chunks = list(complete(client, max_tokens=0, echo=True, logprobs=0, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == "Hello there"


REFUSED = [
    ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"), ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": {}}, "prompt"),
    ({"prompt": [70_000_000]}, "prompt"), ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"), ({"messages": []}, "messages"), ({"n": 0}, "n"),
    ({"prompt": "a " * 6000}, "prompt"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(f)[:30] for f, _ in REFUSED])
def test_refusals(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = post(server, "/v1/completions", **{
        "model": "fake-model", "prompt": "x", **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_a_part_without_a_type_is_refused(server: Server) -> None:
    answer = server.post(messages=[{"role": "user", "content": [{"text": "x"}]}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].type"


def test_tokenize_and_back(server: Server) -> None:
    text = "Hello “there” 漢字"
    answer = post(server, "/tokenize", prompt=text, return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert post(server, "/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}
    messages = [{"role": "user", "content": "Hello"}]
    chat = post(server, "/tokenize", messages=messages).json()
    assert chat["count"] == server.post(max_tokens=1).json()["usage"]["prompt_tokens"]
    for path, fields, param in (
            ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
            ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
            ("/tokenize", {"messages": []}, "messages"),
            ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {}, "tokens")):
        refused = post(server, path, **fields)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param, path
    assert post(server, "/tokenize", prompt="a", model="other").status_code == 404


def test_abort_by_id_reaches_any_worker(server: Server) -> None:
    """Streams end with an error event, JSON answers with 409, whoever is asked."""
    seen = set()
    for _ in range(12):
        stream = open_stream(server, max_tokens=4000, ignore_eos=True)
        data = b""
        while b'"id":"chatcmpl-' not in data:
            data += stream.recv(65536)
        name = data.split(b'"id":"')[1].split(b'"')[0].decode()
        seen.add(name.split("-")[1][:2])
        assert post(server, "/v1/abort", id=name).json() == {"id": name, "aborted": True}
        while part := stream.recv(65536):
            data += part
        assert b'"code":"request_aborted"' in data and b"[DONE]" not in data
        again = post(server, "/v1/abort", id=name)
        if again.status_code == 200:  # its row was still being freed
            wait_until(lambda name=name: post(server, "/v1/abort", id=name).status_code == 404,
                       "the aborted request is gone")
    assert seen == {"00", "01"}
    for wrong in ("", "chatcmpl-", "chatcmpl-" + "0" * 24, "chatcmpl-" + "f" * 24):
        assert post(server, "/v1/abort", id=wrong).status_code == 404
    server.idle()


def test_version_and_unknown(server: Server) -> None:
    from helios_dod import __version__

    assert server.get("/version").json() == {"version": __version__}
    assert server.get("/v1/embeddings").status_code == 404
    assert json.loads(server.get("/v1/models/fake").text)["id"] == "fake"


def test_errors_repeat_no_more_than_a_little(server: Server) -> None:
    long = "x" * 5000
    for answer in (server.get("/v1/models/" + long), server.get("/" + long),
                   post(server, f"/v1/responses/{long}/cancel"),
                   httpx.request("DELETE", f"{server.url}/v1/models/{long}"),
                   post(server, "/v1/abort", id=long), server.post(model=long),
                   post(server, "/v1/completions", model=long, prompt="x"),
                   post(server, "/tokenize", model=long, prompt="x")):
        message = answer.json()["error"]["message"]
        assert answer.status_code in (404, 405) and "x" * 150 in message, message
        assert "characters)" in message and len(answer.content) < 600


def test_openapi_document_is_true(server: Server) -> None:
    """Every documented path and method is there, every other answers 405 or 404."""
    document = server.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        url = server.url + path.replace("{model}", "fake-model").replace("{response_id}", "resp_1")
        for method in ("GET", "POST", "DELETE", "PUT"):
            answer = httpx.request(method, url, timeout=PATIENCE_S)
            documented = methods.get(method.lower())
            if documented is None:
                assert answer.status_code == 405, (method, path)
            else:
                assert str(answer.status_code) in documented["responses"], (method, path)
                kind = answer.headers["content-type"].split(";")[0]
                assert kind in documented["responses"][str(answer.status_code)]["content"]
    stored = document["paths"]["/v1/responses/{response_id}"]
    assert set(stored["get"]["responses"]) == set(stored["delete"]["responses"]) == {"401", "404"}
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["additionalProperties"] is False and chat["required"] == ["model", "messages"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in chat["properties"]["temperature"][
        "anyOf"]

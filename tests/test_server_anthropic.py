"""/v1/messages, over the engine's test double. Expected shapes are those of Anthropic's reference;
its client is run by perf/clients.py."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import SCRIPTS, WRITTEN, priority, serving_scripts
from server_harness import PATIENCE_S, Server

from helios_dod.server.anthropic import input_json

TOOLS: list[Any] = [{"name": "weather", "description": "d", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]
BOTH = [*TOOLS, {"name": "now"}]


@pytest.fixture(scope="module")
def server(scripted_server: Server) -> Server:
    return scripted_server


def post(server: Server, script: str = "text", path: str = "/v1/messages",
         **fields: Any) -> httpx.Response:
    given = {"model": "fake-model", "max_tokens": 200, "priority": priority(script),
             "messages": [{"role": "user", "content": "Hello"}], **fields}
    return httpx.post(server.url + path, timeout=PATIENCE_S, json={
        name: value for name, value in given.items() if value is not None})


def events_of(text: str) -> list[dict[str, Any]]:
    """Data of a stream's events, each under the name that its type says."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_text(server: Server) -> None:
    answer = post(server, system=[{"type": "text", "text": "Be brief."}]).json()
    assert answer["type"] == "message" and answer["id"].startswith("msg_")
    assert answer["content"] == [{"type": "text", "text": SCRIPTS["text"]}]
    assert answer["stop_reason"] == "end_turn" and answer["stop_sequence"] is None
    usage = answer["usage"]
    assert usage["cache_read_input_tokens"] == 1 and usage["output_tokens"] > 1
    assert post(server, max_tokens=3).json()["stop_reason"] == "max_tokens"


def test_reasoning_and_calls(server: Server) -> None:
    answer = post(server, "thought_twice", tools=TOOLS).json()
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert answer["content"][0]["thinking"] == "why" and answer["stop_reason"] == "tool_use"
    assert answer["content"][2]["input"] == {"city": 'Zürich "x"', "days": 3}
    assert answer["content"][2]["id"] != answer["content"][3]["id"]


@pytest.mark.parametrize("script", ["text", "thought", "thought_twice"])
def test_stream_says_what_the_whole_says(server: Server, script: str) -> None:
    whole = post(server, script, tools=TOOLS).json()
    events = events_of(post(server, script, tools=TOOLS, stream=True).text)
    assert events[0]["type"] == "message_start" and events[0]["message"]["content"] == []
    assert events[-1] == {"type": "message_stop"}
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert events[-2]["usage"] == whole["usage"]
    blocks: list[Any] = []
    for event in events[1:-2]:
        assert event["index"] == len(blocks) - (event["type"] != "content_block_start")
        if event["type"] == "content_block_start":
            blocks.append([event["content_block"]["type"], event["content_block"], ""])
        elif event["type"] == "content_block_delta":
            blocks[-1][2] += next(v for k, v in event["delta"].items() if k != "type")
    assert [kind for kind, _, _ in blocks] == [block["type"] for block in whole["content"]]
    for (kind, start, text), block in zip(blocks, whole["content"], strict=True):
        if kind == "tool_use":
            assert json.loads(text) == block["input"] and start["name"] == block["name"]
        else:
            assert text == block["text" if kind == "text" else "thinking"]


def inputs_sent(server: Server, script: str) -> list[Any]:
    """The inputs of a streamed answer's calls."""
    events = events_of(post(server, script, tools=BOTH, max_tokens=3000, stream=True).text)
    starts = [event["index"] for event in events if event["type"] == "content_block_start"
              and event["content_block"]["type"] == "tool_use"]
    return [json.loads("".join(event["delta"]["partial_json"] for event in events
                               if event["type"] == "content_block_delta"
                               and event["index"] == start)) for start in starts]


def is_call(written: str) -> bool:
    """Whether a model's text finishes a call: an object, one in a string, or null for none."""
    try:
        value = json.loads(written)
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return (value is None or isinstance(value, dict)) and "NaN" not in written


@pytest.mark.parametrize("at", range(len(WRITTEN)), ids=[text[:20] for text in WRITTEN])
def test_the_input_of_a_call_is_an_object_whatever_is_written(server: Server, at: int) -> None:
    answer = post(server, f"written_{at}", tools=BOTH, max_tokens=3000)
    assert answer.status_code == 200, answer.text
    sent = inputs_sent(server, f"written_{at}")
    if not is_call(WRITTEN[at]):  # no call was finished; a stream has shown one
        assert answer.json()["content"] == [] and answer.json()["stop_reason"] == "end_turn"
        assert [list(given) for given in sent] == [["INVALID_JSON"]]
        return
    (block,) = answer.json()["content"]
    assert answer.json()["stop_reason"] == "tool_use" and type(block["input"]) is dict
    assert ("INVALID_JSON" in block["input"]) == (at >= 4)
    assert sent == [block["input"]]


def test_a_raw_body_that_is_no_object_stands_in_one(tmp_path: Path) -> None:
    """Where a delimiter closes the arguments they are a call's, as written, to chat completions."""
    call = "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    scripts = [f"<|tool_calls_section_begin|>{call}{written}" for written in (
        '{"city": oops<|tool_call_end|>', "<|tool_call_end|>", '{"city": "Z')]
    wanted = [{"INVALID_JSON": '{"city": oops'}, {}]
    with serving_scripts(tmp_path, "identified_json none", scripts) as raw:
        def ask(at: int, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
            return post(raw, path=path, priority=at + 1, **fields)

        for at, made in enumerate(wanted):
            answer = ask(at, tools=TOOLS).json()
            assert [block["input"] for block in answer["content"]] == [made]
            assert answer["stop_reason"] == "tool_use"
            events = events_of(ask(at, tools=TOOLS, stream=True).text)
            assert json.loads("".join(event["delta"]["partial_json"] for event in events
                                      if event["type"] == "content_block_delta")) == made
        assert ask(2, tools=TOOLS).json()["content"] == []
        functions = [{"type": "function", "function": {
            "name": "weather", "parameters": TOOLS[0]["input_schema"]}}]
        for at, text in enumerate(['{"city": oops', "{}"]):
            (choice,) = ask(at, "/v1/chat/completions", tools=functions).json()["choices"]
            (made_call,) = choice["message"]["tool_calls"]
            assert made_call["function"]["arguments"] == text
            assert choice["finish_reason"] == "tool_calls"


def test_arguments_nested_too_deeply_are_text() -> None:
    text = '{"a": ' * 5000 + "1" + "}" * 5000
    assert json.loads(input_json(text)) == {"INVALID_JSON": text}


def test_a_call_cut_off_stands_in_a_stream_as_text_in_an_object(server: Server) -> None:
    assert inputs_sent(server, "unfinished") == [
        {"INVALID_JSON": '{"city": "Zürich \\"x\\"", "days":'}]


def test_results_of_tools(server: Server) -> None:
    first = post(server, "thought_twice", tools=TOOLS).json()["content"]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "rain"}
               for block in first if block["type"] == "tool_use"]
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first},
                {"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]}]
    answer = post(server, tools=TOOLS, messages=messages)
    assert answer.json()["content"][0]["text"] == SCRIPTS["text"], answer.text
    counted = post(server, path="/v1/messages/count_tokens", tools=TOOLS, messages=messages,
                   max_tokens=None).json()
    usage = answer.json()["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_thinking_is_the_template_s_switch(server: Server) -> None:
    counts = [post(server, path="/v1/messages/count_tokens", thinking=thinking).json()
              for thinking in ({"type": "adaptive"}, {"type": "disabled"}, None)]
    assert counts[0]["input_tokens"] > counts[1]["input_tokens"] == counts[2]["input_tokens"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"), ({"messages": [], "system": "x"}, "'messages' must hold at"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
     "messages[0].content[0].source"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {
        "type": "url", "url": "https://example.com/a.png"}}]}]},
     "'messages[0].content[0].source'"),
    ({"system": "Look.", "messages": [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "see", "input": {}}]},
        {"role": "user", "content": [
            {"type": "text", "text": "Here."}, {"type": "tool_result", "tool_use_id": "a",
             "content": [{"type": "text", "text": "seen"}, {"type": "image", "source": {
                 "type": "url", "url": "https://example.com/a.png"}}]}]}]},
     "'messages[2].content[1].content[1].source'"),
    ({"system": "x", "messages": [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "see", "input": {}}] * 1025}]},
     "'messages[1].content' has 1025 entries; at most 1024"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "type"),
    ({"tools": [{"type": "bash_20250124", "name": "x"}]}, "tools[0].type"),
    ({"tools": [*TOOLS, {"name": "f", "input_schema": {"type": "string"}}]},
     "'tools[1].input_schema.type' must be 'object'"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "'tools[0].name'"),
    ({"thinking": {"type": "enabled", "budget_tokens": "9"}}, "thinking.budget_tokens"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    ({"temperature": 9}, "temperature"), ({"foo": 1}, "foo"),
]


@pytest.mark.parametrize(("fields", "word"), REFUSED, ids=[str(f)[:30] for f, _ in REFUSED])
def test_refusals(server: Server, fields: dict[str, Any], word: str) -> None:
    answer = post(server, **fields)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert set(body) == {"type", "error"} and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert word in body["error"]["message"], body


@pytest.mark.parametrize("schema", [None, {}, {"properties": {}}, {"type": ["null", "object"]}])
def test_schemas_of_objects(server: Server, schema: Any) -> None:
    answer = post(server, tools=[{"name": "f", "input_schema": schema}])
    assert answer.status_code == 200, answer.text


def test_what_no_count_is_made_of(server: Server) -> None:
    answer = post(server, path="/v1/messages/count_tokens", messages=[], system="x")
    assert answer.status_code == 400 and "'messages' must hold" in answer.json()["error"]["message"]


def test_errors_in_anthropic_s_words(server: Server) -> None:
    wrong = post(server, model="other")
    assert wrong.status_code == 404 and wrong.json()["error"]["type"] == "not_found_error"
    failed = post(server, messages=[{"role": "user", "content": "a<nonfinite>"}], priority=0)
    assert failed.status_code == 500 and failed.json()["error"]["type"] == "api_error"
    streamed = post(server, messages=[{"role": "user", "content": "a<reject>"}], priority=0,
                    stream=True)
    events = events_of(streamed.text)
    assert events[-1]["error"]["type"] == "overloaded_error" and streamed.status_code == 200
    server.idle()

"""/v1/responses through the real `openai` package, over the engine's test double."""

import json
from typing import Any

import httpx
import openai
import pytest
from scripted import SCRIPTS, priority
from server_harness import PATIENCE_S, Server

TOOLS: list[Any] = [{"type": "function", "name": "weather", "strict": None, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]


@pytest.fixture(scope="module")
def server(scripted_server: Server) -> Server:
    return scripted_server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, script: str = "text", **fields: Any) -> Any:
    extra = {"priority": priority(script)}
    return client.responses.create(**{
        "model": "fake-model", "input": "Hello", "extra_body": extra, **fields})


def test_text(client: openai.OpenAI) -> None:
    answer = ask(client, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert answer.object == "response" and answer.status == "completed" and answer.store is False
    assert answer.output_text == SCRIPTS["text"] and answer.id.startswith("resp_")
    assert answer.instructions == "Be brief." and answer.temperature == 0.5
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


def test_limit(client: openai.OpenAI) -> None:
    answer = ask(client, max_output_tokens=3)
    assert answer.status == "incomplete" and answer.usage.output_tokens == 3
    assert answer.incomplete_details.reason == "max_output_tokens"
    last = list(ask(client, max_output_tokens=3, stream=True))[-1]
    assert last.type == "response.incomplete" and last.response.output[0].status == "incomplete"
    assert last.response.output_text == answer.output_text


def test_reasoning_and_calls(client: openai.OpenAI) -> None:
    thought = ask(client, "thought")
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert thought.output[0].content[0].text == "First “this”."
    assert thought.output_text == "Then that."
    assert thought.usage.output_tokens_details.reasoning_tokens > 0
    answer = ask(client, "thought_twice", tools=TOOLS)
    assert [item.type for item in answer.output] == [
        "reasoning", "message", "function_call", "function_call"]
    call = answer.output[2]
    assert call.name == "weather" and json.loads(call.arguments) == {
        "city": 'Zürich "x"', "days": 3}
    ids = {call.call_id for call in answer.output[2:]} | {item.id for item in answer.output}
    assert len(ids) == 6


@pytest.mark.parametrize("script", ["text", "thought", "thought_twice"])
def test_stream_says_what_the_whole_says(client: openai.OpenAI, script: str) -> None:
    whole = ask(client, script, tools=TOOLS)
    events = list(ask(client, script, tools=TOOLS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    final = events[-1].response
    assert [plain(item) for item in final.output] == [plain(item) for item in whole.output]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == final.output
    for index, item in enumerate(final.output):
        told = [event for event in events if getattr(event, "output_index", None) == index]
        assert told[0].type == "response.output_item.added" and told[-1].item == item
        deltas = "".join(event.delta for event in told if event.type.endswith(".delta"))
        expected = item.arguments if item.type == "function_call" else item.content[0].text
        assert deltas == expected
    with client.responses.stream(model="fake-model", input="Hello",
                                 extra_body={"priority": 1}) as stream:
        assert stream.get_final_response().output_text == SCRIPTS["text"]


def plain(item: Any) -> tuple[Any, ...]:
    """An item without its ids."""
    if item.type == "function_call":
        return (item.type, item.name, item.arguments, item.status)
    return (item.type, item.content[0].text)


def test_a_turn_with_results_goes_on(client: openai.OpenAI, server: Server) -> None:
    first = ask(client, "thought_twice", tools=TOOLS)
    turn: list[Any] = [{"role": "user", "content": "Hello"}, *first.output, *(
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        for call in first.output if call.type == "function_call")]
    answer = ask(client, tools=TOOLS, input=turn)
    assert answer.output_text == SCRIPTS["text"]
    messages = [{"role": "user", "content": "Hello"}, {
        "role": "assistant", "content": "Let me look.\n", "reasoning_content": "why",
        "tool_calls": [{"id": c.call_id, "type": "function", "function": {
            "name": c.name, "arguments": c.arguments}} for c in first.output[2:]]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "rain"}]
    chat = server.post(messages=messages, max_tokens=1, tools=[
        {"type": "function", "function": {k: v for k, v in TOOLS[0].items() if k != "type"}}])
    assert chat.json()["usage"]["prompt_tokens"] == answer.usage.input_tokens, chat.text


def test_logprobs(client: openai.OpenAI) -> None:
    answer = ask(client, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = answer.output[0].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == SCRIPTS["text"]
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert ask(client, top_logprobs=0).output[0].content[0].text == SCRIPTS["text"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "x"}, "previous_response_id"), ({"store": True}, "store"),
    ({"background": True}, "background"), ({"conversation": "x"}, "conversation"),
    ({"input": None}, "input"), ({"input": [{"type": "item_reference"}]}, "input[0].type"),
    ({"input": [{"role": "user"}]}, "input[0].content"), ({"input": []}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
    ({"tools": [*TOOLS, {"type": "function", "name": "f", "parameters": {"type": "array"}}]},
     "tools[1].parameters.type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"temperature": 3}, "temperature"),
    ({"include": ["file_search_call.results"]}, "include"), ({"max_output_tokens": 0},
                                                            "max_output_tokens"),
    ({"input": "a " * 6000}, "input"), ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"top_logprobs": 2}, "top_logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(f)[:30] for f, _ in REFUSED])
def test_refusals(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = httpx.post(server.url + "/v1/responses", timeout=PATIENCE_S, json={
        "model": "fake-model", "input": "x", **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_nothing_is_stored(client: openai.OpenAI, server: Server) -> None:
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            call("resp_" + "0" * 24)
    stream = ask(client, extra_body={"priority": 0}, max_output_tokens=4000, stream=True)
    first = next(iter(stream))
    answer = client.responses.cancel(first.response.id)
    assert answer.status == "cancelled" and answer.id == first.response.id
    last = list(stream)[-1]
    assert last.type == "error" and last.code == "request_aborted"
    server.idle()

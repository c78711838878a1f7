"""Tool calls and reasoning through the real `openai` package, over the engine's test double."""

import json
from typing import Any

import openai
import pytest
import text_tables
from scripted import SCRIPTS, priority
from server_harness import Server

from helios_dod.server.chat_command import pieces

TOOLS: list[Any] = [{"type": "function", "function": {
    "name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (
        ("weather", {"city": {"type": "string"}, "days": {"type": "integer"}}), ("now", {}))]
MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(scripted_server: Server) -> Server:
    return scripted_server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, script: str, **fields: Any) -> Any:
    extra = {"priority": priority(script), **fields.pop("extra_body", {})}
    values = {"messages": MESSAGES, "tools": TOOLS, **fields}
    return client.chat.completions.create(
        model="fake-model", extra_body=extra,
        **{name: value for name, value in values.items() if value is not None})


def streamed(chunks: list[Any]) -> dict[str, Any]:
    """What a stream says in all; each call's id and name must come once, before its arguments."""
    told: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "reason": None}
    for chunk in chunks:
        choice = chunk.choices[0]
        assert told["reason"] is None
        told["reason"] = choice.finish_reason
        told["content"] += choice.delta.content or ""
        told["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert call.index == len(told["calls"]) and call.type == "function"
                told["calls"].append([call.id, call.function.name, ""])
            else:
                assert call.function.name is None and call.index == len(told["calls"]) - 1
            told["calls"][call.index][2] += call.function.arguments
    return told


def whole(answer: Any) -> dict[str, Any]:
    message = answer.choices[0].message
    return {"content": message.content or "",
            "reasoning": getattr(message, "reasoning_content", None) or "",
            "calls": [[call.id, call.function.name, call.function.arguments]
                      for call in message.tool_calls or []],
            "reason": answer.choices[0].finish_reason}


def without_ids(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "calls": [call[1:] for call in told["calls"]]}


def both(client: openai.OpenAI, script: str, **fields: Any) -> dict[str, Any]:
    """The whole answer, which the streamed one must equal."""
    told = whole(ask(client, script, **fields))
    assert without_ids(streamed(list(ask(client, script, stream=True, **fields)))) == (
        without_ids(told))
    return told


def test_a_call(client: openai.OpenAI) -> None:
    answer = ask(client, "call")
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and message.content is None
    call = message.tool_calls[0]
    assert call.id.startswith("call_") and call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": 'Zürich "x"', "days": 3}
    both(client, "call")


def test_arguments_stream_as_they_come(client: openai.OpenAI) -> None:
    chunks = list(ask(client, "call", stream=True))
    fragments = [call.function.arguments for chunk in chunks
                 for call in chunk.choices[0].delta.tool_calls or []]
    assert len(fragments) > 5
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_reasoning_content_and_calls(client: openai.OpenAI) -> None:
    told = both(client, "thought_call")
    assert told["reasoning"] == "why" and told["content"].strip() == "Let me look."
    assert [call[1] for call in told["calls"]] == ["weather", "now"]
    assert told["calls"][1][2] == "{}" and told["calls"][0][0] != told["calls"][1][0]
    single = both(client, "thought_call", parallel_tool_calls=False)
    assert [call[1] for call in single["calls"]] == ["weather"]


def test_text_passes(client: openai.OpenAI) -> None:
    for tools in (TOOLS, None):
        told = both(client, "text", tools=tools)
        assert told == {"content": SCRIPTS["text"], "reasoning": "", "calls": [], "reason": "stop"}


def test_reasoning_with_and_without_tools(client: openai.OpenAI) -> None:
    for fields in ({}, {"tools": None}, {"tool_choice": "none"}):
        told = both(client, "thought", **fields)
        assert told == {"content": "Then that.", "reasoning": "First “this”.", "calls": [],
                        "reason": "stop"}
    told = both(client, "thought", extra_body={"include_reasoning": False})
    assert told["content"] == "Then that." and told["reasoning"] == ""


def test_reasoning_that_the_prompt_opened(client: openai.OpenAI) -> None:
    told = both(client, "open_thought",
                extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert told["reasoning"] == "so it is" and told["content"] == "yes"
    assert both(client, "open_thought")["reasoning"] == ""


def test_calls_are_text_where_no_tools_are(client: openai.OpenAI) -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        told = both(client, "call", **fields)
        assert told["content"] == SCRIPTS["call"] and told["reason"] == "stop"
        assert told["calls"] == []


def test_unknown_names_are_kept_out(client: openai.OpenAI) -> None:
    told = both(client, "unknown")
    assert told["calls"] == [] and told["reason"] == "stop"


def test_unfinished_calls_are_never_finished(client: openai.OpenAI) -> None:
    for fields, reason in (({}, "stop"), ({"max_tokens": 30}, "length")):
        told = whole(ask(client, "unfinished", **fields))
        assert told["calls"] == [] and told["reason"] == reason and not told["content"]
        shown = streamed(list(ask(client, "unfinished", stream=True, **fields)))
        assert shown["reason"] == reason
        with pytest.raises(ValueError):
            json.loads(shown["calls"][0][2])
    told = both(client, "one_unfinished")
    assert [call[1] for call in told["calls"]] == ["weather"]


@pytest.mark.parametrize("script", ["thought_call", "thought", "text"])
def test_logprobs_cover_every_token(client: openai.OpenAI, script: str) -> None:
    answer = ask(client, script, logprobs=True, top_logprobs=1)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens - 1  # all but EOS
    assert "".join(e.token for e in entries if "\ufffd" not in e.token)
    chunks = list(ask(client, script, logprobs=True, top_logprobs=1, stream=True))
    sent = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.token for e in sent] == [e.token for e in entries]
    assert without_ids(streamed(chunks)) == without_ids(whole(answer))


def test_several_choices(client: openai.OpenAI) -> None:
    answer = ask(client, "call", n=3)
    ids = {choice.message.tool_calls[0].id for choice in answer.choices}
    assert len(ids) == 3
    assert {choice.finish_reason for choice in answer.choices} == {"tool_calls"}


def test_a_conversation_with_its_tool_result(client: openai.OpenAI) -> None:
    answer = ask(client, "call")
    message = answer.choices[0].message
    history = [*MESSAGES, message.model_dump(exclude_none=True), {
        "role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}]
    told = both(client, "text", messages=history)
    assert told["content"] == SCRIPTS["text"]


def test_a_stop_token_ends_with_stop(client: openai.OpenAI) -> None:
    close = text_tables.tagged().tokenizer.token_to_id("</think>")
    told = both(client, "thought_call", extra_body={"stop_token_ids": [close]})
    assert told == {"content": "", "reasoning": "why", "calls": [], "reason": "stop"}


def test_the_terminal_client_parts_reasoning_from_the_answer() -> None:
    data = json.dumps({"choices": [{"delta": {"reasoning_content": "w", "content": "a"}}]})
    assert list(pieces(data.encode())) == [("reasoning_content", "w"), ("content", "a")]

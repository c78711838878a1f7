"""Runs the real server over the engine's test double: python tests/serve_fake.py CORE PORT [k=v...]

CORE is a `tokenizers` JSON file; options after it are fields of ServeOptions or EngineOptions."""

import sys
from pathlib import Path

import fake_engine
import text_tables

from helios_dod.frontend.assets import Assets, Sampling
from helios_dod.runtime.options import EngineOptions
from helios_dod.server.launch import LaunchError, serve
from helios_dod.server.options import ServeOptions

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def load_assets(core: Path) -> Assets:
    """The frontend's assets from a tokenizer alone."""
    text = core.read_text()
    sample = text_tables.sample_of(core.name, text)
    return Assets(
        served_id="fake-model", aliases=("fake",), tokenizer_json=text.encode(),
        chat_template=TEMPLATE, byte_table=sample.table, strip_leading_space=sample.strip,
        eos=(sample.tokenizer.token_to_id("<|im_end|>"),), bos=0, add_bos=False,
        vocabulary=len(sample.table), input_vocabulary=len(sample.table), context_tokens=8192,
        sampling=Sampling(temperature=0.7))


def main(core: str, port: str, *settings: str) -> int:
    """Serves until a signal."""
    given = dict(setting.split("=", 1) for setting in settings)
    engine = {name: int(given.pop(name)) for name in ("max_active", "context_tokens")
              if name in given}
    rest = {name: value if name == "limits_name" else int(value) for name, value in given.items()}
    try:
        return serve(ServeOptions(
            core=Path(core), load_assets=load_assets, run_engine=fake_engine.run,
            engine=EngineOptions(**engine), port=int(port), **rest))  # type: ignore[arg-type]
    except (LaunchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

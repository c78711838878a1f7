"""What the engine's test double says when it is asked for a script by name: texts, reasoning and
tool calls of one syntax. `scripted_server` (conftest) serves them to several modules of tests."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import text_tables
from server_harness import Server, serving

CALL = ('<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich \\"x\\"", "days": 3}}'
        '\n</tool_call>')
OTHER = '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRITTEN = (  # by a model as the arguments of a call; the first four make an object
    '{"a": 12345678901234567890123, "b": [1.50]}', " {} ", '"{\\"a\\": 1}"', "null",
    "now", '"now"', "[1]", "7", "{'a': 1}", '{"a": NaN}', '{"a": 1,}', '{"a": 1e400}',
    '{"a": "one\ntwo"}', '{"a": "\\ud800 and more"}', '{"a": "\\udc00 and more"}',
    '{"\\ud800\\u0041": 1}', '"{"')
SCRIPTS = {
    "text": "Plain “text” with 漢字 and 🙂.",
    "thought": "<think>\nFirst “this”.\n</think>\n\nThen that.",
    "call": CALL,
    "thought_call": "<think>why</think>Let me look.\n" + CALL + OTHER,
    "thought_twice": "<think>why</think>Let me look.\n" + CALL + CALL,
    "unknown": '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
    "unfinished": CALL.removesuffix(' 3}}\n</tool_call>'),
    "one_unfinished": CALL + '<tool_call>\n{"name": "now", "arg',
    "open_thought": "so it is</think>yes",
} | {f"written_{i}": OTHER.replace("{}", written) for i, written in enumerate(WRITTEN)}


def priority(script: str) -> int:
    """The priority that asks for a script."""
    return 1 + list(SCRIPTS).index(script)


@contextmanager
def serving_scripts(folder: Path, syntax: str = "tagged_json think_tag_lines",
                    scripts: Iterable[str] = SCRIPTS.values()) -> Iterator[Server]:
    """A server of them; the folder is for its tokenizer."""
    core = folder / "tokenizer.json"
    core.write_text(text_tables.tagged().tokenizer.to_str())
    env = {"FAKE_SYNTAX": syntax, "FAKE_SCRIPTS": json.dumps(list(scripts))}
    with serving(core, env=env) as running:
        yield running

"""Compares our output parsers with those of vLLM and SGLang on generated outputs.

    python tests/oracles/output_differential.py PEERS [--count 10000] [--site FOLDER]

PEERS: a folder with the unpacked wheels' `vllm` and `sglang` packages (pip download --no-deps, then
unzip). Their parsers are pure Python; whatever else they import is replaced by names that do
nothing. --site: a site-packages folder with their few needs (pydantic, regex, torch, transformers).
An output is written as the format's template writes it from a message, so the message is the truth
that all three are compared with. Differences are counted by kind, the six most common are printed.
"""

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import random
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

from helios_dod.frontend.output.cases import CaseTokenizer, gather, means
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.terms import Start

STRINGS = ["", "Ann", "two words", "  padded  ", "line\nline", "\nedge\n", 'say "hi"',
           "back\\slash", "<b>&amp;</b>", "日本語 😀", "null", "true", "007", "12",
           "{\"a\": 1}", "[1, 2]", "</p>", "a < b > c", "tab\there", "None", "'single'",
           "x" * 200, "&quot;", "<|x|>", "```\ncode\n```"]
VALUES: dict[str, list[Any]] = {
    "string": STRINGS, "integer": [0, -3, 42, 12345678901234567890123],
    "number": [0.5, -1.25, 3, 1e-7], "boolean": [True, False],
    "array": [[], [1, "a", None], [{"k": [True]}]], "object": [{}, {"a": {"b": [1]}}, {"é": "ü"}],
    "null": [None],
}
TOOLS = {
    "plan": {"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"},
        "flag": {"type": "boolean"}, "items": {"type": "array"}, "meta": {"type": "object"},
        "limit": {"type": ["integer", "null"]}}},
    "ping": {"type": "object", "properties": {}},
}
CONTENTS = ["", "", "Sure.", "Two\n\nparagraphs.", "a < b, {c}", "Über 日本 😀"]
REASONINGS = ["", "Hm.", "First\nsecond <b>"]
MARK = "｜DSML｜"


def as_text(value: Any) -> str:
    """A value as templates write it outside JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def message(choose: random.Random, thinks: bool) -> dict[str, Any]:
    """A random message."""
    calls = []
    for _ in range(choose.choice((0, 1, 1, 1, 2, 3))):
        name = choose.choice(("plan", "plan", "plan", "ping"))
        arguments = {}
        keys = list(TOOLS[name]["properties"])
        for key in choose.sample(keys, choose.randrange(len(keys) + 1)):
            kinds = TOOLS[name]["properties"][key]["type"]
            kind = choose.choice(kinds) if isinstance(kinds, list) else kinds
            arguments[key] = choose.choice(VALUES[kind])
        calls.append((name, arguments))
    content = choose.choice(CONTENTS)
    if not calls and not content:
        content = "Ok."
    return {"content": content, "reasoning": choose.choice(REASONINGS) if thinks else "",
            "calls": calls}


def function_tags(m: dict[str, Any]) -> str:
    text = m["content"]
    for i, (name, arguments) in enumerate(m["calls"]):
        text += "\n\n" if i == 0 and m["content"] else "\n" if i else ""
        text += f"<tool_call>\n<function={name}>\n"
        for key, value in arguments.items():
            text += f"<parameter={key}>\n{as_text(value)}\n</parameter>\n"
        text += "</function>\n</tool_call>"
    return text


def argument_tags(m: dict[str, Any]) -> str:
    text = m["content"]
    for name, arguments in m["calls"]:
        text += f"<tool_call>{name}"
        for key, value in arguments.items():
            text += f"<arg_key>{key}</arg_key><arg_value>{as_text(value)}</arg_value>"
        text += "</tool_call>"
    return text


def dsml(wrapper: str, invoke: str, parameter: str) -> Any:
    def write(m: dict[str, Any]) -> str:
        if not m["calls"]:
            return m["content"]
        parts = []
        for name, arguments in m["calls"]:
            body = "".join(
                f'<{MARK}{parameter} name="{key}" '
                f'string="{"true" if isinstance(value, str) else "false"}">{as_text(value)}'
                f"</{MARK}{parameter}>\n" for key, value in arguments.items())
            parts.append(f'<{MARK}{invoke} name="{name}">\n{body}</{MARK}{invoke}>')
        return (f"{m['content']}\n\n<{MARK}{wrapper}>\n" + "\n".join(parts)
                + f"\n</{MARK}{wrapper}>")
    return write


def xtml(m: dict[str, Any]) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "array",
             dict: "object", type(None): "null"}
    text = m["content"] + "<|close|>response<|sep|>"
    if m["calls"]:
        text += "<|open|>tools<|sep|>"
        for i, (name, arguments) in enumerate(m["calls"], 1):
            text += f'<|open|>call tool="{name}" index="{i}"<|sep|>'
            for key, value in arguments.items():
                text += (f'<|open|>argument key="{key}" type="{names[type(value)]}"<|sep|>'
                         f"{as_text(value)}<|close|>argument<|sep|>")
            text += "<|close|>call<|sep|>"
        text += "<|close|>tools<|sep|>"
    return text + "<|close|>message<|sep|>"


def recipient_frames(m: dict[str, Any]) -> str:
    frames = [f" to=self<|message|>{m['reasoning']}"] if m["reasoning"] else []
    if m["content"]:
        frames.append(f" to=user<|message|>{m['content']}")
    for name, arguments in m["calls"]:
        body = "".join(f'<atem:parameter name="{key}">{as_text(value)}</atem:parameter>\n'
                       for key, value in arguments.items())
        frames.append(f" to={name}<|message|><atem:function_calls>\n<atem:invoke name=\"{name}\">\n"
                      f"{body}</atem:invoke>\n</atem:function_calls>")
    return "<|eom|><|start|>assistant".join(frames) + "<|eot|>"


def tagged_json(m: dict[str, Any]) -> str:
    text = m["content"]
    for i, (name, arguments) in enumerate(m["calls"]):
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        text += ("\n" if i or m["content"] else "") + f"<tool_call>\n{call}\n</tool_call>"
    return text


def bare_json(m: dict[str, Any]) -> str:
    calls = "; ".join(json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
                      for name, arguments in m["calls"])
    return calls or m["content"]


def named_json(m: dict[str, Any]) -> str:
    return m["content"] + "".join(
        f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"
        for name, arguments in m["calls"])


def identified_json(m: dict[str, Any]) -> str:
    if not m["calls"]:
        return m["content"]
    return m["content"] + "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>"
        f"{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(m["calls"])) + "<|tool_calls_section_end|>"


# Syntax -> writer, start state, SGLang's detector, vLLM's parser (module, class).
SG, VL = "sglang.srt.function_call.", "vllm."
SYNTAXES: dict[str, tuple[Any, Start, tuple[str, str], tuple[str, str]]] = {
    "function_tags": (function_tags, Start.CONTENT,
                      (SG + "qwen3_coder_detector", "Qwen3CoderDetector"),
                      (VL + "parser.qwen3", "Qwen3Parser")),
    "argument_tags": (argument_tags, Start.CONTENT,
                      (SG + "glm47_moe_detector", "Glm47MoeDetector"),
                      (VL + "parser.glm47_moe", "Glm47MoeParser")),
    "dsml_function_calls": (dsml("function_calls", "invoke", "parameter"), Start.CONTENT,
                            (SG + "deepseekv32_detector", "DeepSeekV32Detector"),
                            (VL + "parser.deepseek_v32", "DeepSeekV32Parser")),
    "dsml_tool_calls": (dsml("tool_calls", "invoke", "parameter"), Start.CONTENT,
                        (SG + "deepseekv4_detector", "DeepSeekV4Detector"),
                        (VL + "parser.deepseek_v4", "DeepSeekV4Parser")),
    "dsml_spaced": (dsml(" calls", " invoke", " parameter"), Start.CONTENT,
                    (SG + "deepseekv41_detector", "DeepSeekV41Detector"),
                    (VL + "parser.deepseek_v41", "DeepSeekV41Parser")),
    "xtml": (xtml, Start.RESPONSE, (SG + "kimik3_detector", "KimiK3Detector"),
             (VL + "tool_parsers.kimi_k3_tool_parser", "KimiK3ToolParser")),
    "recipient_frames": (recipient_frames, Start.HEADER,
                         (SG + "muse_glimmer_detector", "MuseGlimmerDetector"),
                         (VL + "tool_parsers.muse_glimmer_tool_parser", "MuseGlimmerToolParser")),
    "tagged_json": (tagged_json, Start.CONTENT, (SG + "hermes_detector", "HermesDetector"),
                    (VL + "tool_parsers.hermes_tool_parser", "Hermes2ProToolParser")),
    "bare_json": (bare_json, Start.CONTENT, (SG + "llama32_detector", "Llama32Detector"),
                  (VL + "tool_parsers.llama_tool_parser", "Llama3JsonToolParser")),
    "named_json": (named_json, Start.CONTENT, (SG + "mistral_detector", "MistralDetector"),
                   ("", "")),
    "identified_json": (identified_json, Start.CONTENT, (SG + "kimik2_detector", "KimiK2Detector"),
                        (VL + "parser.kimi_k2", "KimiK2Parser")),
}


class Anything:
    """Stands for any class or function of a missing module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(self) -> Any:
        return iter(())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return importlib.import_module("pydantic_core.core_schema").any_schema()


class Stub(types.ModuleType):
    """A module that has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Anything,), {})
        setattr(self, name, value)
        return value


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nothing else finds, below these names."""

    ROOTS = ("sglang", "vllm", "openai_harmony", "xgrammar", "fastapi", "orjson",
             "partial_json_parser", "mistral_common", "outlines_core", "zmq", "cachetools",
             "starlette", "openai", "transformers", "tiktoken", "psutil", "triton")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in self.ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def package(name: str, folder: Path) -> None:
    """A package whose own __init__ is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def module_of(name: str, **names: Any) -> None:
    """A module with these names, and every other one as a stub."""
    module = Stub(name)
    for key, value in names.items():
        setattr(module, key, value)
    sys.modules[name] = module


class Quiet(logging.Logger):
    """A logger with the peers' extra methods."""

    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        pass

    info_once = debug_once = warning_once


def prepare(peers: Path) -> None:
    """Makes the peers' parsers importable."""
    sys.meta_path.append(Missing())
    sys.path.insert(0, str(peers))
    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai",
                 "sglang.srt.parser", "vllm", "vllm.tool_parsers", "vllm.reasoning", "vllm.parser",
                 "vllm.entrypoints", "vllm.entrypoints.openai"):
        package(name, peers / name.replace(".", "/"))
    pydantic = importlib.import_module("pydantic")

    class Function(pydantic.BaseModel):
        description: str | None = None
        name: str | None = None
        parameters: Any = None
        strict: bool = False

    class Tool(pydantic.BaseModel):
        type: str = "function"
        function: Function

    module_of("sglang.srt.entrypoints.openai.protocol", Function=Function, Tool=Tool)
    module_of("vllm.logger", init_logger=Quiet)
    module_of("vllm.renderers.chat_utils", make_tool_call_id=lambda *a, **k: "call",
              get_tool_call_id_type=lambda *a: "random")
    logging.disable(logging.CRITICAL)


class PeerTokenizer:
    """Delimiters as single tokens, every other character one."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        self.vocabulary = {marker: 2_000_000 + i for i, marker in enumerate(markers)}
        self.markers = {number: marker for marker, number in self.vocabulary.items()}
        self.all_special_tokens, self.all_special_ids = list(markers), list(self.markers)

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.vocabulary.get(token)

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        return "".join(self.markers.get(number) or chr(number) for number in ids)


Parsed = tuple[str, list[tuple[str, str]]]  # content, calls


def ours(name: str, tokenizer: CaseTokenizer, text: str, start: Start) -> Parsed:
    parser = Parser(tokenizer.bound, TOOLS, start)
    events = []
    for token, data in tokenizer.split(text, "words"):
        events += parser.feed(token, data)
    result = gather([*events, *parser.finish()])
    return result.content, [(call.name, call.arguments) for call in result.calls]


def make_sglang(place: tuple[str, str]) -> Any:
    detector = getattr(importlib.import_module(place[0]), place[1])
    protocol = sys.modules["sglang.srt.entrypoints.openai.protocol"]
    tools = [protocol.Tool(function=protocol.Function(name=name, parameters=schema))
             for name, schema in TOOLS.items()]

    def run(text: str) -> Parsed:
        one = detector()
        if not one.has_tool_call(text):
            return text, []
        result = one.detect_and_parse(text, tools)
        return result.normal_text, [(call.name, call.parameters) for call in result.calls]
    return run


def vllm_tools() -> list[Any]:
    """The tools as vLLM's requests have them."""
    tools = []
    tool = importlib.import_module("vllm.tool_parsers.utils").ChatCompletionToolsParam
    for name, schema in TOOLS.items():
        one = tool.__new__(tool)  # whether it is a model of pydantic or a stub
        object.__setattr__(one, "__dict__", {
            "type": "function",
            "function": types.SimpleNamespace(name=name, parameters=schema)})
        tools.append(one)
    return tools


def make_vllm(place: tuple[str, str], markers: tuple[str, ...]) -> Any:
    cls = getattr(importlib.import_module(place[0]), place[1])
    tools = vllm_tools()
    request = types.SimpleNamespace(
        tool_choice="auto", tools=tools, include_reasoning=True, messages=[],
        chat_template_kwargs={"thinking": False, "enable_thinking": False})

    def run(text: str) -> Parsed:
        options: dict[str, Any] = {}
        if "parser." in place[0] and "tool_parsers" not in place[0]:
            options["chat_template_kwargs"] = {"thinking": False, "enable_thinking": False}
        try:
            one = cls(PeerTokenizer(markers), tools, **options)
        except TypeError:
            one = cls(PeerTokenizer(markers), tools)
        result = one.extract_tool_calls(text, request)
        return result.content or "", [
            (call.function.name, call.function.arguments) for call in result.tool_calls]
    return run


def verdict(m: dict[str, Any], got: Parsed | Exception, expected: str | None) -> str:
    """What is wrong with a result; empty if nothing is. expected: content, None for any."""
    if isinstance(got, Exception):
        return f"raises {type(got).__name__}"
    content, calls = got
    if [name for name, _ in calls] != [name for name, _ in m["calls"]]:
        return "calls"
    for (_, text), (_, arguments) in zip(calls, m["calls"], strict=True):
        if not means(text or "{}", arguments):
            return "arguments: " + difference(text, arguments)
    if expected is None:
        return ""
    return "" if (content or "").strip() == expected.strip() else "content"


def difference(text: str, arguments: dict[str, Any]) -> str:
    """The first argument that is not as written."""
    try:
        got = json.loads(text)
    except ValueError:
        return "no JSON"
    for key, value in arguments.items():
        if key not in got:
            return f"{key} is missing"
        if not means(json.dumps(got[key]), value):
            return f"{key} is {as_text(got[key])[:40]!r}, written {as_text(value)[:40]!r}"
    return "other keys"


def compare(name: str, count: int) -> None:
    """Prints agreement and classes of difference of one syntax."""
    write, start, sglang, vllm = SYNTAXES[name]
    tokenizer = CaseTokenizer(CATALOG[name])
    peers: dict[str, Any] = {"ours": lambda text: ours(name, tokenizer, text, start)}
    for label, place in (("sglang", sglang), ("vllm", vllm)):
        try:
            if place[0]:
                peers[label] = (make_sglang(place) if label == "sglang"
                                else make_vllm(place, tokenizer.markers))
        except Exception as error:
            print(f"{name}: {label} cannot be imported: {type(error).__name__}: {error}")
    wrong: dict[str, Counter[str]] = {label: Counter() for label in peers}
    examples: dict[tuple[str, str], str] = {}
    choose = random.Random(name)
    for _ in range(count):
        m = message(choose, name == "recipient_frames")
        text = write(m)
        for label, run in peers.items():
            try:
                got: Parsed | Exception = run(text)
            except Exception as error:  # what a peer does is what is measured
                got = error
            expected = "" if name == "bare_json" and m["calls"] else m["content"]
            framed = label == "sglang" and name in ("xtml", "recipient_frames")
            found = verdict(m, got, None if framed else expected)  # its other parser's part
            if found:
                wrong[label][found] += 1
                shortest = examples.setdefault((label, found), text)
                if len(text) < len(shortest):
                    examples[label, found] = text
    for label, counts in wrong.items():
        print(f"{name:20} {label:7} {count - counts.total():6} of {count} as written", flush=True)
        for kind, times in counts.most_common(6):
            print(f"    {times:6} {kind}")
            if not kind.startswith("arguments"):
                print(f"           such as {examples[label, kind][:300]!r}")


def main() -> None:
    """Compares every syntax."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--syntax", choices=sorted(SYNTAXES))
    args = parser.parse_args()
    if args.site:
        sys.path.append(str(args.site))
    prepare(args.peers.resolve())
    for name in [args.syntax] if args.syntax else SYNTAXES:
        compare(name, args.count)


if __name__ == "__main__":
    main()

"""Compares reasoning, content and calls with what SGLang and vLLM make of whole generated outputs.

    python tests/oracles/reasoning_differential.py PEERS [--count 10000] [--site FOLDER]
        [--encodings FOLDER] [--syntax NAME]

Options as for output_differential.py, which compares calls alone. Here each output begins with
reasoning: closed, never closed, or ended by a call's opener where the format has that. Channel
frames are read by `openai_harmony`, as vLLM does, which needs FOLDER/o200k_base.tiktoken: the
vocabulary of the format's tokenizer.json, one line a token of base64 and number, in their order.
"""

import argparse
import importlib
import json
import os
import random
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from helios_dod.frontend.output.cases import CaseTokenizer, gather
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.terms import Start
from tests.oracles import output_differential as calls_alone
from tests.oracles.output_differential import SG, SYNTAXES, TOOLS, PeerTokenizer, verdict

REASONINGS = ["Hm.", "First\nsecond <b>", "a </thin b", "{\"name\": \"plan\"}", "```\ncode\n```",
              "Über 日本 😀", "to=user, then <function=", "[1, 2] < 3 &amp; more", "x" * 300,
              "say <| and </ and [", "one\n\ntwo\n\nthree"]
Parsed = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, calls
SEPARATED = {  # syntax -> how reasoning is opened and closed, and where the output starts
    "function_tags": ("", "\n</think>\n\n", Start.REASONING),
    "argument_tags": ("<think>", "</think>", Start.CONTENT),
    "dsml_tool_calls": ("", "</think>", Start.REASONING),
    "tagged_json": ("<think>\n", "\n</think>\n\n", Start.CONTENT),
    "identified_json": ("<think>", "</think>", Start.CONTENT),
    "named_json": ("[THINK]", "[/THINK]", Start.CONTENT),
    "xtml": ("", "<|close|>think<|sep|><|open|>response<|sep|>", Start.REASONING),
}
ENDED_BY_CALLS = ("function_tags", "argument_tags", "identified_json")
FRAMES = ("recipient_frames", "channel_frames")
SGLANG = {"function_tags": "qwen3-thinking", "argument_tags": "glm45", "tagged_json": "qwen3",
          "dsml_tool_calls": "deepseek-v4", "identified_json": "kimi_k2", "named_json": "mistral",
          "xtml": "kimi_k3", "recipient_frames": "muse", "channel_frames": "gpt-oss"}
THINKING = {"thinking": True, "enable_thinking": True}


def channel_frames(m: dict[str, Any]) -> str:
    """As the format's guide writes a message."""
    frames = [f"<|channel|>analysis<|message|>{m['reasoning']}<|end|>"] if m["reasoning"] else []
    if m["content"]:
        channel, end = ("commentary", "<|end|>") if m["calls"] else ("final", "<|return|>")
        frames.append(f"<|channel|>{channel}<|message|>{m['content']}{end}")
    frames += [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
               f"{json.dumps(arguments, ensure_ascii=False)}<|call|>"
               for name, arguments in m["calls"]]
    return "<|start|>assistant".join(frames)


def written(name: str, choose: random.Random) -> tuple[dict[str, Any], str]:
    """A message, and the output that says it."""
    m = calls_alone.message(choose, False)
    m["reasoning"] = choose.choice(REASONINGS)
    if name in FRAMES:
        write = channel_frames if name == "channel_frames" else SYNTAXES[name][0]
        return m, write(m)
    opener, closer, _ = SEPARATED[name]
    kind = choose.randrange(10)
    if kind == 0:  # never closed
        m |= {"content": "", "calls": []}
        return m, opener + m["reasoning"]
    if kind == 1 and m["calls"] and name in ENDED_BY_CALLS:
        m["content"] = ""
        return m, opener + m["reasoning"] + "\n" + SYNTAXES[name][0](m)
    return m, opener + m["reasoning"] + closer + SYNTAXES[name][0](m)


def ours(name: str) -> Callable[[str], Parsed]:
    tokenizer = CaseTokenizer(CATALOG[name])
    start = Start.HEADER if name in FRAMES else SEPARATED[name][2]

    def run(text: str) -> Parsed:
        parser = Parser(tokenizer.bound, TOOLS, start)
        events = []
        for token, data in tokenizer.split(text, "words"):
            events += parser.feed(token, data)
        result = gather([*events, *parser.finish()])
        return result.reasoning, result.content, [
            (call.name, call.arguments) for call in result.calls]
    return run


def sglang(name: str) -> Callable[[str], Parsed]:
    module = importlib.import_module("sglang.srt.parser.reasoning_parser")
    detector = module.ReasoningParser.DetectorMap[SGLANG[name]]
    options = {}
    if name in ("function_tags", "dsml_tool_calls"):
        options["force_reasoning"] = True
    if name == "recipient_frames":
        options["tool_call_parser_active"] = True
    place = SYNTAXES[name][2] if name in SYNTAXES else (SG + "gpt_oss_detector", "GptOssDetector")
    tools = calls_alone.make_sglang(place)

    def run(text: str) -> Parsed:
        found = detector(**options).detect_and_parse(text)
        content, calls = tools(found.normal_text or "")
        return found.reasoning_text or "", content or "", calls
    return run


def vllm(name: str) -> Callable[[str], Parsed]:
    markers = CaseTokenizer(CATALOG[name]).markers
    request = types.SimpleNamespace(
        tool_choice="auto", tools=calls_alone.vllm_tools(), include_reasoning=True, messages=[],
        chat_template_kwargs=THINKING)
    if name == "channel_frames":
        return harmony(request)
    place = SYNTAXES[name][3]
    if ".tool_parsers." not in place[0]:
        cls = getattr(importlib.import_module(place[0]), place[1])

        def whole(text: str) -> Parsed:
            parser = cls(PeerTokenizer(markers), request.tools, chat_template_kwargs=THINKING)
            reasoning, content, calls = parser.parse(text, request)
            return reasoning or "", content or "", [
                (call.name, call.arguments) for call in calls or ()]
        return whole
    extract = calls_alone.make_vllm(place, markers)
    if name == "tagged_json":
        adapters = importlib.import_module("vllm.parser.engine.adapters").make_adapters
        reader, _ = adapters(importlib.import_module("vllm.parser.qwen3").Qwen3Parser)
    else:
        module, kind = {"xtml": ("kimi_k3", "KimiK3"),
                        "recipient_frames": ("muse_glimmer", "MuseGlimmer")}[name]
        reader = getattr(importlib.import_module(f"vllm.reasoning.{module}_reasoning_parser"),
                         f"{kind}ReasoningParser")

    def parts(text: str) -> Parsed:
        tokenizer = PeerTokenizer((*markers, "<think>", "</think>"))
        reasoning, rest = reader(tokenizer, chat_template_kwargs=THINKING).extract_reasoning(
            text, request)
        content, calls = extract(rest) if rest else ("", [])
        return reasoning or "", content, calls
    return parts


def harmony(request: Any) -> Callable[[str], Parsed]:
    """vLLM's reader of channel frames, over the format's own library and tokens."""
    library = importlib.import_module("openai_harmony")
    encoding = library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
    cls = importlib.import_module("vllm.parser.harmony").HarmonyParser

    def run(text: str) -> Parsed:
        parser = cls(None)
        parser._reasoning_parser = parser._tool_parser = object()
        tokens = encoding.encode(text, allowed_special="all")
        reasoning, content, calls = parser.parse(text, request, model_output_token_ids=tokens)
        return reasoning or "", content or "", [
            (call.name, call.arguments) for call in calls or ()]
    return run


def judged(m: dict[str, Any], got: Parsed | Exception) -> str:
    """What is wrong with a result; empty if nothing is. Edges of text may differ in blanks."""
    if isinstance(got, Exception):
        return f"raises {type(got).__name__}: {got}"[:200]
    reasoning, content, calls = got
    if reasoning.strip() != m["reasoning"].strip():
        return "reasoning"
    return verdict(m, (content, calls), m["content"])


def compare(name: str, count: int) -> None:
    """Prints agreement and classes of difference of one syntax."""
    readers: dict[str, Callable[[str], Parsed]] = {"ours": ours(name), "sglang": sglang(name)}
    if name != "named_json":  # vLLM's needs mistral_common
        readers["vllm"] = vllm(name)
    wrong: dict[str, Counter[str]] = {label: Counter() for label in readers}
    examples: dict[tuple[str, str], tuple[str, Any]] = {}
    choose = random.Random(name)
    for _ in range(count):
        m, text = written(name, choose)
        for label, read in readers.items():
            try:
                got: Parsed | Exception = read(text)
            except Exception as error:  # what a peer does is what is measured
                got = error
            found = judged(m, got)
            if found:
                wrong[label][found] += 1
                before = examples.get((label, found))
                if before is None or len(text) < len(before[0]):
                    examples[label, found] = text, got
    for label, counts in wrong.items():
        print(f"{name:20} {label:7} {count - counts.total():6} of {count} as written", flush=True)
        for kind, times in counts.most_common(8):
            text, got = examples[label, kind]
            print(f"    {times:6} {kind}\n           {text[:300]!r}\n           {got!r}"[:900])


def main() -> None:
    """Compares every syntax that has reasoning."""
    names = (*SEPARATED, *FRAMES)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--encodings", type=Path)
    parser.add_argument("--syntax", choices=names)
    args = parser.parse_args()
    if args.encodings:
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(args.encodings.resolve())
    if args.site:
        sys.path.append(str(args.site))
    calls_alone.prepare(args.peers.resolve())
    parents = importlib.import_module("vllm.reasoning.abs_reasoning_parsers")
    vars(sys.modules["vllm.reasoning"])["ReasoningParser"] = parents.ReasoningParser
    for name in [args.syntax] if args.syntax else names:
        compare(name, args.count)


if __name__ == "__main__":
    main()

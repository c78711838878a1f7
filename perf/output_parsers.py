"""Cost of output parsing: time a token in each place, and time for 1 MiB against 64 KiB.

    python perf/output_parsers.py           microseconds a token, decoding included, on one core
    python perf/output_parsers.py served    the same from a worker's events on: the demo model's
                                            tokens, through what gates and reads them
    python perf/output_parsers.py linear    1 MiB / (16 times 64 KiB) for patterns that are held
                                            back, of all syntaxes or of those named behind it

Times are of the process (other load does not count). Median: of single calls, clock included.
"""

import json
import re
import statistics
import sys
import time

from helios_dod.cores.demo import demo_core
from helios_dod.frontend.output.cases import CaseTokenizer
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.terms import Start
from helios_dod.frontend.prompt import PromptEncoder
from helios_dod.frontend.reading import Readers
from helios_dod.frontend.syntaxes import compose
from helios_dod.server.bootstrap import load_assets
from helios_dod.terms import TEXT_ALL

TOOLS = {"f": {"type": "object", "properties": {"x": {"type": "string"}}}}
PROSE = ("The quick brown fox jumps over the lazy dog, and then reads a long report about the "
         "weather in Paris. ") * 40
DOCUMENT = json.dumps([{"key": i, "text": "some words here"} for i in range(60)])
WORDS = [word.encode() for word in re.findall(r"\s?\w+|[^\w\s]+|\s+", PROSE)]
PARTS = [word.encode() for word in re.findall(r"\s?\w+|[^\w\s]+|\s+", DOCUMENT)]
CHINESE = ["你好".encode(), "世界".encode()] * 400
TOOL_FRAME = ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'

PLACES = [  # place, syntax, start, text before, tokens
    ("content", "function_tags", Start.CONTENT, "Hello", WORDS),
    ("content", "recipient_frames", Start.CONTENT, "Hello", WORDS),
    ("content", "bare_json", Start.CONTENT, "Hello", WORDS),
    ("content, Chinese", "function_tags", Start.CONTENT, "Hello", CHINESE),
    ("reasoning", "function_tags", Start.REASONING, "Hello", WORDS),
    ("reasoning", "xtml", Start.REASONING, "Hello", WORDS),
    ("argument", "function_tags", Start.CONTENT,
     "<tool_call>\n<function=f>\n<parameter=x>\nA", WORDS),
    ("argument", "argument_tags", Start.CONTENT,
     "<tool_call>f<arg_key>x</arg_key><arg_value>A", WORDS),
    ("argument", "dsml_tool_calls", Start.CONTENT,
     '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">A',
     WORDS),
    ("argument", "xtml", Start.RESPONSE,
     '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" '
     'type="string"<|sep|>A', WORDS),
    ("argument", "recipient_frames", Start.HEADER,
     TOOL_FRAME + '<atem:parameter name="x">A', WORDS),
    ("arguments", "tagged_json", Start.CONTENT, '<tool_call>\n{"name": "f", "arguments": {"x": ',
     PARTS),
    ("arguments", "bare_json", Start.CONTENT, '{"name": "f", "parameters": {"x": ', PARTS),
    ("arguments", "named_json", Start.CONTENT, '[TOOL_CALLS]f{"x": ', PARTS),
    ("arguments", "identified_json", Start.CONTENT,
     '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": ', PARTS),
    ("arguments", "channel_frames", Start.HEADER,
     '<|channel|>commentary to=functions.f<|message|>{"x": ', PARTS),
]
PATTERNS = [  # syntax, start, text before, what is repeated
    ("function_tags", Start.CONTENT, "", "a"),
    ("function_tags", Start.CONTENT, "", "\n"),
    ("function_tags", Start.CONTENT, "", "<functio"),
    ("function_tags", Start.CONTENT, "", "<function=f\n"),
    ("function_tags", Start.CONTENT, "", "```\n"),
    ("bare_json", Start.CONTENT, "", '{"name": "f", '),
    ("bare_json", Start.CONTENT, "", "{"),
    ("dsml_tool_calls", Start.CONTENT, "", '<｜DSML｜invoke name="f">\n'),
    ("recipient_frames", Start.CONTENT, "", " to=f"),
    ("recipient_frames", Start.HEADER, "<|message|>", " "),
    ("recipient_frames", Start.HEADER, TOOL_FRAME + '<atem:parameter name="x">',
     "</atem:parameter>\n"),
    ("tagged_json", Start.CONTENT, '<tool_call>{"name": "f", "arguments": ', "["),
    ("tagged_json", Start.CONTENT, '<tool_call>{"name": "f", "arguments": {"a": "', "\\ud83d"),
    ("tagged_json", Start.CONTENT, '<tool_call>{"name": "f", "arguments": "', "\\\\"),
    ("identified_json", Start.CONTENT, "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{", " "),
    ("xtml", Start.CONTENT, "", "<|open|>respons"),
    ("argument_tags", Start.CONTENT, "<tool_call>f\n<arg_key>y</arg_key><arg_value>", "1"),
]


def times(name: str, start: Start, before: str, tokens: list[bytes]) -> tuple[float, float]:
    """Median and mean microseconds of feeding one token."""
    tokenizer = CaseTokenizer(CATALOG[name])
    medians, means = [], []
    for _ in range(7):
        parser = Parser(tokenizer.bound, TOOLS, start)
        for token, data in tokenizer.split(before, "words"):
            parser.feed(token, data)
        single = []
        for data in tokens:
            begin = time.perf_counter_ns()
            parser.feed(0, data)
            single.append(time.perf_counter_ns() - begin)
        medians.append(statistics.median(single))
        means.append(statistics.fmean(single))
    return min(medians) / 1e3, min(means) / 1e3


def served(stops: bool) -> None:
    """Median and mean of one call of `Reading.token`, over published text tokens. stops: with stop
    strings, when the text that may be shown is counted in bytes."""
    assets = load_assets(demo_core())
    readers = Readers(compose("function_tags", "think_tags"), assets.byte_table, False)
    encode = PromptEncoder(assets.tokenizer_json).encode
    table = assets.byte_table
    for place, before in (("content", "Hello"), ("reasoning", "<think>Hello"),
                          ("argument", "<tool_call>\n<function=f>\n<parameter=x>\nA")):
        medians, means, tokens = [], [], encode(PROSE)
        for _ in range(7):
            (reading,) = readers.readings([], TOOLS, [1], strings=stops)
            count = size = 0
            single = []
            for token in encode(before) + tokens:
                count, size = count + 1, size + len(table.token(token))
                shown = size if stops else TEXT_ALL
                begin = time.perf_counter_ns()
                reading.token(token, count, shown)
                single.append(time.perf_counter_ns() - begin)
            medians.append(statistics.median(single[-len(tokens):]))
            means.append(statistics.fmean(single[-len(tokens):]))
        print(f"{place:10} {'with stop strings' if stops else '':18}"
              f"median {min(medians) / 1e3:5.2f} us   mean {min(means) / 1e3:5.2f} us")


def feed(parser: Parser, tokens: list[tuple[int, bytes]], last: bool) -> float:
    """Process time of feeding tokens."""
    begin = time.process_time()
    for token, data in tokens:
        parser.feed(token, data)
    if last:
        parser.finish()
    return time.process_time() - begin


def grown(name: str, start: Start, before: str, unit: str) -> tuple[float, float]:
    """Seconds for 1 MiB of a repeated pattern, one byte a token, and for 16 times 64 KiB of it.

    Each sixteenth of the long output is followed by a short one, so that both meet the machine at
    the same speeds."""
    tokenizer = CaseTokenizer(CATALOG[name])
    length = len(unit.encode())
    short, long = (tokenizer.split(before + unit * (size // length), "bytes")
                   for size in (1 << 16, 1 << 20))
    parser = Parser(tokenizer.bound, TOOLS, start)
    spent = baseline = 0.0
    for i in range(16):
        part = long[len(long) * i // 16:len(long) * (i + 1) // 16]
        spent += feed(parser, part, i == 15)
        baseline += feed(Parser(tokenizer.bound, TOOLS, start), short, True)
    return spent, baseline


def main() -> None:
    """Prints a table."""
    if "linear" in sys.argv[1:]:
        named = sys.argv[2:]
        for name, start, before, unit in PATTERNS:
            if named and name not in named:
                continue
            large, small = grown(name, start, before, unit)
            print(f"{name:18} {unit!r:32} {large / small:5.2f}   "
                  f"{large / (1 << 20) * 1e6:5.2f} us a byte", flush=True)
        return
    if "served" in sys.argv[1:]:
        served(False)
        served(True)
        return
    for place, name, start, before, tokens in PLACES:
        median, mean = times(name, start, before, tokens)
        print(f"{place:18} {name:18} median {median:5.2f} us   mean {mean:5.2f} us")


if __name__ == "__main__":
    main()

"""Mutations of a core's frontend parts: tokenizer data, chat template, byte table."""

import base64
import copy
import json

import numpy as np

from helios_dod.contract.wire import core_pb2


def charsmap(changes):
    """A table that replaces a by b, with other units or another count of them (-1)."""
    units = np.zeros(512, "<u4")
    units[0], units[353], units[352] = 256 << 10, 0x61 | 1 << 8 | 1 << 10, 1 << 31
    count = changes.get(-1, units.nbytes)
    for place, unit in changes.items():
        if place >= 0:
            units[place] = unit
    return base64.b64encode(count.to_bytes(4, "little") + units.tobytes() + b"b\0").decode()


TEXT = ("", "a", "ab", "##", "\u2581", "é", "\ufdfa", "\0", "x" * 300, "<t>", "\ud83d\ude42",
        "BPE")
NUMBERS = (-1, 0, 1, 2, 15, 16, 17, 255, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30, 0.5, 1e308)
PATTERNS = ("(a+)+$", "((a{1,1000}){1,1000}){1,1000}", "[", "(?<=a+)b", "", "\\p{L}+| ?\\s",
            "(" * 300 + "a" + ")" * 300, "(?i)" + "ß" * 50, "\\k<1>", "(?<a>\\g<a>)", "a" * 5000)
NORMALIZERS = (
    {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "Nmt"}, {"type": "StripAccents"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Prepend", "prepend": "\u2581"}, {"type": "ByteLevel"},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
     "strip_accents": None, "lowercase": True},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8AAAA="},
    {"type": "Precompiled", "precompiled_charsmap": charsmap({})},
    {"type": "Precompiled", "precompiled_charsmap": charsmap({352: 2})},
    {"type": "Precompiled", "precompiled_charsmap": charsmap({353: 0x61 | 1 << 8 | 1 << 20})},
    {"type": "Precompiled", "precompiled_charsmap": None})
SPLITTERS = (
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
    {"type": "Whitespace"}, {"type": "UnicodeScripts"}, {"type": "FixedLength", "length": 0},
    {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Removed"},
    {"type": "CharDelimiterSplit", "delimiter": "a"}, {"type": "BertPreTokenizer"})
LETTERS = {chr(97 + i): i for i in range(15)}
MODELS = (
    {"type": "Unigram", "unk_id": 0, "vocab": [[text, -1.0] for text in LETTERS]},
    {"type": "Unigram", "unk_id": None, "vocab": []},
    {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
     "max_input_chars_per_word": 100, "vocab": LETTERS},
    {"type": "WordLevel", "unk_token": "zz", "vocab": LETTERS}, {"vocab": LETTERS, "merges": []},
    {"type": "BPE", "vocab": LETTERS | {"ab": 15}, "merges": ["a b"]},
    {"type": "BPE", "vocab": LETTERS, "merges": [["a", "b"]], "continuing_subword_prefix": "ab"},
    {"type": "BPE", "vocab": LETTERS, "merges": [], "byte_fallback": True, "unk_token": "zz"})
NESTING = ("{% set ns = namespace(a=('x',), b=('x',)) %}{% for i in range(60) %}"
           "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}")
HUGE = "{% set a = ['x' * 4000000] * 400000 %}{% set b = ['x' * 4000000] * 400000 %}"
COMPARISONS = (  # of values that few operations make, and that could never be gone through
    "{{ ns.a == ns.b }}", "{{ ns.a in [ns.b] }}", "{{ [ns.a, ns.b] | sort }}", "{{ {ns.a: 1} }}",
    "{{ [ns.a, ns.b] | max }}", "{{ [ns.a] | select('eq', ns.b) | list }}", "{{ {}[ns.a] }}",
    "{{ [ns.a].index(ns.b) }}", "{{ [ns.a] | unique | list }}", "{{ dict([(ns.a, 1)]) }}",
    "{{ [{'k': ns.a}, {'k': ns.b}] | groupby('k') }}", "{{ {}.get(ns.a) }}", "{{ ns.a is filter }}",
    "{% for i in range(9999) if ns.a == ns.b %}{% endfor %}", "{{ ns.a | tojson }}",
    "{{ {'a': ns.a}.items() == {'a': ns.b}.items() }}", "{{ loop.changed(ns.a) }}")
PIECES = (
    "{{ messages }}", "{% for m in messages %}", "{% endfor %}", "{{ 'x' * 10 ** 10 }}", "{% if a",
    "{% set ns = namespace(x='x') %}", "{% set ns.x = [ns.x, ns.x] %}" * 30, "{{ ns.x | string }}",
    "{% set ns.x = ns.x ~ ns.x %}" * 30, "{{ 10 ** 10 ** 9 }}",
    "{{ 'x' | center(10 ** 10) }}", "{{ '%999999999d' % 1 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}",
    "{{ f() }}", "{{ ''.__class__.__mro__ }}", "{% include 'x' %}", "{% extends 'y' %}", "{#", "{{",
    "{{ messages[0].content }}", "{{ raise_exception('no') }}", "{{ range(10 ** 9) | list }}",
    "{{ " + "a + " * 200 + "1 }}", "{{ " + "[" * 300 + "]" * 300 + " }}",
    "{{ " + "9" * 5000 + " }}",
    "{% autoescape 'x' | center(10 ** 9) %}{% endautoescape %}", "{% generation %}", "\0", "\udc80",
    "{% for a in messages %}" * 25 + "{% endfor %}" * 25, "{{ x.y.z() }}" * 200,
    "{{ lipsum(10**9) }}", "{{ 1 | round(10 ** 9, 'floor') }}",
    HUGE + "{{ a == b }}", HUGE + "{{ a | sort }}", HUGE + "{{ a | unique | list }}",
    HUGE + "{{ a | select('ne', b[0]) | first }}", HUGE + "{{ a is in b }}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    *(NESTING + use for use in COMPARISONS))


def places(value):
    """(container, key) of every value inside a JSON value."""
    found, waiting = [], [value]
    while waiting:
        part = waiting.pop()
        keys = list(part) if isinstance(part, dict) else (
            range(len(part)) if isinstance(part, list) else ())
        for key in keys:
            found.append((part, key))
            waiting.append(part[key])
    return found


def deep(value, rng):
    """A value inside many sequences, or lists."""
    for _ in range(rng.choice((3, 70, 300))):
        value = [value] if rng.random() < 0.5 else {"type": "Sequence", "normalizers": [value]}
    return value


def any_value(rng):
    """A JSON value that does not belong where it will be put."""
    return rng.choice((None, True, rng.choice(TEXT), rng.choice(NUMBERS), [], {}, [[]] * 50,
                       {"String": rng.choice(TEXT)}, {"Regex": rng.choice(PATTERNS)}))


def one_of(parts, rng):
    """A part, to be changed by itself."""
    return copy.deepcopy(rng.choice(parts))


def change_tokenizer(document, rng):
    """One structural change of a tokenizer's JSON value."""
    kind = rng.randrange(7)
    if kind == 0:
        parts = [one_of(NORMALIZERS, rng) for _ in range(rng.choice((1, 2, 12, 70)))]
        document["normalizer"] = {"type": "Sequence", "normalizers": parts}
    elif kind == 1:
        part = {"type": "Split", "pattern": {rng.choice(("Regex", "String")): rng.choice(PATTERNS)},
                "behavior": rng.choice(("Isolated", "Removed", "MergedWithNext")), "invert": False}
        document["pre_tokenizer"] = one_of((*SPLITTERS, part, part, part), rng)
    elif kind == 2:
        document["model"] = one_of(MODELS, rng)
    elif kind == 3:
        document["added_tokens"] = [
            {"id": rng.choice(NUMBERS[:7]), "content": rng.choice(TEXT), "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": rng.random() < 0.5,
             "special": rng.random() < 0.5} for _ in range(rng.choice((1, 3, 30)))]
    elif kind == 4:
        document["normalizer"] = deep(one_of(NORMALIZERS, rng), rng)
    elif kind == 5:
        container, key = rng.choice(places(document))
        container[key] = any_value(rng)
    else:
        container, key = rng.choice(places(document))
        if isinstance(container, dict):
            container[rng.choice(TEXT)] = container.pop(key)


def mutate_tokenizer(data, rng):
    """Other tokenizer data: small changes, and now and then very much of something."""
    if rng.random() < 0.01:
        return rng.choice((
            b'{"version":"1.0","model":' + b"[" * 100_000, b'{"a":"' + b"x" * (1 << 20) + b'"}',
            b'{"model":{"type":"BPE","vocab":{},"merges":[' + b'"a b",' * 150_000 + b'"a b"]}}',
            b'{"added_tokens":[' + b"{}," * 300_000 + b"{}]}", b'{"model":' + b"[]," * 300_000))
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        change_tokenizer(document, rng)
    return json.dumps(document).encode()


def mutate_template(data, rng):
    """Other template sources: fragments before, inside and after the one that was there."""
    text = data.decode()
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at:]
    if rng.random() < 0.01:
        text = rng.choice(("{{ a }}" * 300_000, "x" * (4 << 20), "{% if a %}{% endif %}" * 3_000))
    return text.encode("utf-8", "surrogatepass")


def mutate_table(data, rng):
    """A byte table of other counts, lengths and bytes."""
    table = core_pb2.TokenBytes.FromString(data)
    kind, count = rng.randrange(5), rng.choice((0, 1, 2, 15, 16, 17, 18, 300))
    if kind < 2:  # a table of its own, sometimes of tokens without bytes
        length = rng.choice((0, 1, 1, 40_000 if count < 20 else 2))
        table.data = bytes(count * length)
        table.offsets[:] = [i * length for i in range(count + 1)]
        table.special = table.fallback = bytes(count)
    elif kind == 2:
        table.offsets[rng.randrange(len(table.offsets))] = rng.choice((0, 1, 17, 2**32 - 1))
    elif kind == 3:
        table.special = table.special[: rng.randrange(17)] + b"\xff" * rng.randrange(3)
    else:
        table.data = rng.randbytes(len(table.data))
    return table.SerializeToString()

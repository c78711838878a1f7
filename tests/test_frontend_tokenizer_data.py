"""Tokenizer data: what is no tokenizer is refused by name, whatever the library would make of it.
"""

import copy
import gc
import json
import time
from dataclasses import replace as replace_fields
from pathlib import Path

import pytest
from test_frontend_preparation import assets_of
from text_tables import byte_fallback, byte_level, tagged
from tokenizers import Tokenizer

from helios_dod.frontend import preparation, prompt
from helios_dod.frontend.completions import decode_completion
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.prompt import PromptEncoder, named_characters
from helios_dod.frontend.requests import RequestError, decode_chat
from helios_dod.frontend.tokenizer_data import TokenizerError, read_tokenizer
from tests.fuzz_frontend import LETTERS, MODELS, NORMALIZERS, SPLITTERS, charsmap
from tests.tiny_core import TOKENIZER

FIXTURES = Path(__file__).parent / "fixtures" / "tiny"
HONEST = json.loads(TOKENIZER)
ADDED = HONEST["added_tokens"][0]


def changed(**parts):
    """The tiny tokenizer with other parts; `model__x` is a field of the model."""
    document = copy.deepcopy(HONEST)
    for name, value in parts.items():
        owner, _, field = name.rpartition("__")
        (document[owner] if owner else document)[field] = value
    return document


def encoder_of(document):
    return PromptEncoder(json.dumps(document).encode(), (), 16)


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def sequence(part, depth):
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


@pytest.mark.parametrize("data, problem", [
    (b"", "truncated"), (b"{", "truncated"), (b"[]", "expected an object"), (b"\xff", "."),
    (b'{"model":' + b"[" * 100_000, "."), (b'{"version": "1.0"}', "missing required field `model`"),
])
def test_what_is_no_tokenizer_at_all(data, problem):
    with pytest.raises(TokenizerError, match=f"tokenizer: .*{problem}"):
        read_tokenizer(data, 16)


@pytest.mark.parametrize("parts, problem", [
    ({"more": 1}, "unknown field `more`"),
    ({"model": None}, r"\$\.model"), ({"model": {"type": "LSTM"}}, "LSTM"),
    ({"model__vocab": []}, r"\$\.model\.vocab"), ({"model__vocab": {"a": -1}}, ">= 0"),
    ({"model__vocab": {"a": 2**63}}, r"\$\.model\.vocab"), ({"model__more": 1}, "`more`"),
    ({"model__vocab": {"a": 0, "b": 0}}, "given to two tokens"),
    ({"model__vocab": {"a": 16}}, "below the input vocabulary, 16, expected, got 16"),
    ({"model__dropout": 2.0}, r"\$\.model\.dropout"), ({"model__merges": ["a z"]}, "vocabulary"),
    ({"model__merges": [["a"]]}, r"\$\.model\.merges"),
    ({"model__continuing_subword_prefix": "ab", "model__merges": ["a b"]}, r"merges\[0\]"),
    ({"model": {"type": "Unigram", "unk_id": 2, "vocab": [["a", 0.0]]}}, "unk_id: at most 0"),
    ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 1e300]]}}, r"\$\.model\.vocab"),
    ({"added_tokens": [{}]}, r"\$\.added_tokens\[0\]"), ({"added_tokens": {}}, "added_tokens"),
    ({"added_tokens": [ADDED | {"id": 16}]}, "got 16"),
    ({"added_tokens": [ADDED | {"content": "x" * 257}]}, r"added_tokens\[0\].content: at most 256"),
    ({"added_tokens": [ADDED | {"content": t, "special": False} for t in "xy"]}, "got 1[67]"),
    ({"normalizer": {"type": "Upper"}}, "Upper"), ({"normalizer": 3}, "."),
    ({"normalizer": {"type": "NFC", "more": 1}}, "`more`"),
    ({"normalizer": sequence({"type": "NFC"}, 65)}, "normalizer: more than 64 parts"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 64}}, "64 parts"),
    ({"normalizer": {"type": "Sequence"}}, "a Sequence of normalizers"),
    ({"normalizer": replace({"String": ""}, "x")}, "one String or Regex"),
    ({"normalizer": replace({}, "x")}, "one String or Regex"),
    ({"normalizer": replace({"String": "a"}, "x" * 257)}, r"\$\.content"),
    ({"normalizer": {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 9}},
     "more than 256"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": None}}, "precompiled_charsmap"),
    *(({"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}}, problem)
      for text, problem in (
          ("AAAA", "whole units"), ("é", "not base 64"), ("BAAAAP////8AAAA=", "leads out"),
          (charsmap({-1: 2**32 - 4}), "at most 2050 bytes of them, got 4294967292"),
          (charsmap({-1: 2047}), "whole units"), (charsmap({-1: 0}), "whole units"),
          (charsmap({352: 1 << 31 | 3}), "no character of the 2 bytes"),
          (charsmap({0: 512 << 10}), "unit 0 leads out of the 512 units"),
          (charsmap({400: 1 << 30}), "unit 400 leads out"))),
    ({"pre_tokenizer": split({"Regex": "["})}, "premature end of char-class"),
    ({"pre_tokenizer": split({"Regex": "a" * 4097})}, r"\$\.pattern"),
    ({"pre_tokenizer": split({"Regex": "(?<a>\\g<a>)"})}, "recursion"),
    ({"pre_tokenizer": split({"Regex": "(a|aa)+z"})}, "pre_tokenizer.pattern: a repeated part"),
    ({"normalizer": replace({"Regex": "(a*)*z"}, "x")}, "normalizer.pattern: a repeated part"),
    ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, ">= 1"),
    ({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}}, r"\$\.replacement"),
])
def test_tokenizers_that_are_refused(parts, problem):
    with pytest.raises(TokenizerError, match=f"tokenizer: .*{problem}"):
        encoder_of(changed(**parts))


@pytest.mark.parametrize("parts", [
    {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
                    "stride": 5}},
    {"padding": {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    {"post_processor": {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "q", "type_id": 0}}], "pair": [], "special_tokens": {}}},
    {"decoder": {"type": "Nothing"}},
])
def test_what_prompts_do_not_use_changes_nothing(parts):
    """A prompt is neither cut nor filled up, and what only decodes is not read."""
    assert encoder_of(changed(**parts)).encode("abcabc") == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("part", [*(n for n in NORMALIZERS if n["type"] != "Precompiled"),
                                  *(s for s in SPLITTERS if s["type"] != "FixedLength"), *MODELS])
def test_every_kind_of_part_is_read(part):
    """By us and by the library alike; a text that it gives up on is an error by name."""
    name = ("model" if "vocab" in part else "normalizer" if part in NORMALIZERS
            else "pre_tokenizer")
    if part.get("continuing_subword_prefix") == "ab":
        return
    encoder = encoder_of(changed(**{name: part}, added_tokens=[]))
    library = Tokenizer.from_str(json.dumps(changed(**{name: part}, added_tokens=[])))
    for text in ("abc", "a b\u2581c", "", "ab" * 50, "zzz é ﷺ"):
        try:
            expected = library.encode(text, add_special_tokens=False).ids
        except Exception as error:
            with pytest.raises(TokenizerError, match="tokenizer: ") as caught:
                encoder.encode(text)
            assert str(error) in str(caught.value)
        else:
            assert encoder.encode(text) == expected


def test_control_tokens_that_begin_with_each_other(monkeypatch):
    nested = changed(added_tokens=[ADDED | {"content": "p" * i} for i in range(1, 257)])
    assert encoder_of(nested).encode("ap") == [0, 15]
    monkeypatch.setattr(prompt, "TEXT_MAX", 2000)
    monkeypatch.setattr(prompt, "CONTROLS_MAX", 2000**2)
    nested = changed(added_tokens=[ADDED | {"content": "p" * i} for i in range(1, 2000)])
    with pytest.raises(TokenizerError, match="too many deep"):
        encoder_of(nested)


def test_control_tokens_that_are_too_long_to_look_for():
    """A delimiter, or a token that no text may become, is looked for as a special one is."""
    plain = [ADDED | {"content": "p" * 257, "special": False}]
    document = json.dumps(changed(added_tokens=plain)).encode()
    PromptEncoder(document)
    for delimiters, reserved in ((["p" * 257], ()), ((), [ADDED["id"]])):
        with pytest.raises(TokenizerError, match=r"added_tokens\[0\].content: at most 256 charact"):
            PromptEncoder(document, delimiters, 16, reserved)
    many = [ADDED | {"content": f"{i:0>256}"} for i in range(1025)]
    with pytest.raises(TokenizerError, match="at most 262144 characters together expected, got "
                                             "262400"):
        encoder_of(changed(added_tokens=many))


def test_what_ends_like_a_control_token_is_guarded():
    encoder = encoder_of(changed(added_tokens=[
        ADDED | {"content": text} for text in ("<|a|>", "<|ab", "<|abc|>", "z")]))
    for text, guarded in (("<", "<M"), ("x<|", "x<M|"), ("<|ab", "<M|ab"), ("<|abc|", "<M|abc|"),
                          ("<|b", "<|b"), ("<<", "<<M"), ("|>", "|>"), ("", "")):
        assert encoder.guard(text).replace(prompt.MARK, "M") == guarded


def test_a_table_of_replacements_is_read():
    document = changed(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap({})})
    assert encoder_of(document).encode("abcc") == [1, 1, 2, 2]


def test_a_tokenizer_of_ids_with_gaps_is_read():
    document = changed(model__vocab={"a": 3, "b": 15}, added_tokens=[])
    assert encoder_of(document).encode("ab") == [3, 15]


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/tokenizer.json")),
                         ids=lambda path: path.parent.name)
def test_real_files_are_read(path):
    data = path.read_bytes()
    encoder, library = PromptEncoder(data), Tokenizer.from_str(data.decode())
    for text in ("Hello, world!", "naïve — 中文 🙂", "  a\n\n b"):
        assert encoder.encode(text) == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("sample", [byte_level, byte_fallback, tagged])
def test_trained_ones_are_read(sample):
    text = sample().tokenizer.to_str()
    read = read_tokenizer(text.encode(), 10**6)
    assert read["model"] == json.loads(text)["model"] and read["decoder"] is None


def test_a_file_older_than_model_types():
    old = {"vocab": LETTERS, "merges": []}
    assert read_tokenizer(json.dumps(changed(model=old)).encode(), 16)["model"]["type"] == "BPE"


def test_a_text_that_the_tokenizer_gives_up_on_is_refused_to_its_request():
    words = changed(model={"type": "WordLevel", "unk_token": "zz", "vocab": LETTERS})
    assets = assets_of(byte_level(), "{{ messages[0].content }}")
    preparer = Preparer(replace_fields(assets, tokenizer_json=json.dumps(words).encode()))
    assert preparer.encoded("a", "messages") == [0]
    with pytest.raises(RequestError, match="The tokenizer refused 'prompt': tokenizer: ") as caught:
        preparer.plain_tokens("a b", False)
    assert caught.value.param == "prompt"
    body = b'{"model": "default", "messages": [{"role": "user", "content": "a b"}]}'
    with pytest.raises(RequestError, match="The tokenizer refused 'messages'"):
        preparer.prepare(decode_chat(body), 100)


def test_many_prompts_share_one_time(monkeypatch):
    preparer = Preparer(assets_of(byte_level(), "{{ messages }}"))
    request = decode_completion(b'{"model": "default", "prompt": ["a", "b", "c"]}')
    assert len(preparer.complete(request, 100).prompts) == 3
    monkeypatch.setattr(preparation, "seconds_for", lambda nbytes: 0.02)
    monkeypatch.setattr(preparer, "plain_tokens", lambda *given: time.sleep(0.3))
    with pytest.raises(RequestError, match="1 of 3 texts took the time that all 3 bytes may take"):
        preparer.complete(request, 100)


@pytest.mark.parametrize("pattern, kind", [("a*a*a*z", "'a'"), ("\\s*\\s*\\s*z", "' '")])
def test_a_pattern_that_is_tried_too_often_is_seen(pattern, kind):
    slow = encoder_of(changed(pre_tokenizer=split({"Regex": pattern})))
    with pytest.raises(TokenizerError, match=f"times {kind} took .* at most 0.25 s expected"):
        slow.check_speed()
    encoder_of(HONEST).check_speed()


@pytest.mark.parametrize("end", ["z", "[y-z]"])
def test_a_pattern_that_ends_in_any_letter_is_seen(end):
    """Beside the parts of a real tokenizer; the end may be written as a number or a range."""
    document = json.loads(byte_level().tokenizer.to_str())
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        split({"Regex": f"a*a*a*{end}"}), document["pre_tokenizer"]]}
    with pytest.raises(TokenizerError, match=r"times 'a' took .* at most 0.25 s expected"):
        PromptEncoder(json.dumps(document).encode()).check_speed()


def test_characters_that_a_tokenizer_names():
    parts = [sequence(replace({"String": "ba"}, "c"), 2), split({"Regex": "a+d"}), None,
             {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]
    assert "".join(named_characters(parts)) == "cba+d_"


def test_giving_up_loads_no_symbols(monkeypatch, capfd):
    """Whatever the environment says: the backtrace of a panic takes 50 MiB and more."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    slow = encoder_of(changed(pre_tokenizer=split({"Regex": ".{0,16}" * 8 + "(?!.)(?=.)"})))
    with pytest.raises(TokenizerError, match="does not give up on 32 times 'a' expected"):
        slow.check_speed()
    written = capfd.readouterr().err
    assert written.count("panicked") == 1 and "stack backtrace" not in written


@pytest.mark.parametrize("parts", [".{0,16}" * 8, ".{0,16}" * 5 + ".{0,5}", ".{0,16}" * 3])
def test_patterns_that_are_slow_over_every_text_are_seen(parts):
    """The library gives up on a match of too many ways, which takes it a while each time; just
    before it does, one text takes it half a minute; one of few ways takes long over all texts."""
    slow = encoder_of(changed(pre_tokenizer=split({"Regex": parts + "(?!.)(?=.)"})))
    began = time.thread_time()
    with pytest.raises(TokenizerError, match="expected"):
        slow.check_speed()
    assert time.thread_time() - began < 8


def test_collection_goes_on_after_a_load():
    assets = assets_of(byte_level(), "{{ messages }}")
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            Preparer(assets)
            with pytest.raises(TokenizerError):
                Preparer(replace_fields(assets, tokenizer_json=b"no JSON"))
            assert gc.isenabled() == enabled
        finally:
            gc.enable()

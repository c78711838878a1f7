"""Converted tokenizers equal llama.cpp's; the byte table equals the library's decoder."""

import json
import random
from functools import cache
from pathlib import Path

import gguf
import pytest
from ignition_fixtures import EVERY, FIXTURES, TINY, opened
from tokenizers import Tokenizer

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.ignition.checkpoints.gguf_tokenizer import merges_of, text_data
from helios_dod.ignition.checkpoints.splitting import RULES
from helios_dod.ignition.prepared import PreparationError
from helios_dod.ignition.tokenizer import text_rule, token_bytes


def texts(name: str, key: str = "texts") -> list[dict]:
    """Recorded strings with llama.cpp's token ids."""
    return json.loads((FIXTURES / name).read_text())[key]


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_str(opened(name).text.tokenizer_json.decode())


def encoded(of: Tokenizer, text: str) -> list[int]:
    return of.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["all_types", "llama31", "spm"])
def test_tokens_equal_llama_cpp(name):
    ours = tokenizer(f"{name}.gguf")
    for entry in texts(f"tiny/{name}.tokens.json"):
        assert encoded(ours, entry["text"]) == entry["token_ids"], entry["text"]


def test_composing_rule_differs_from_llama_cpp_only_where_text_is_not_composed():
    """The published tokenizer composes (NFC) before splitting; llama.cpp leaves that out."""
    ours, theirs = tokenizer("qwen2.gguf"), tokenizer("qwen2")
    differing = 0
    for entry in texts("tiny/qwen2.tokens.json"):
        ids = encoded(ours, entry["text"])
        assert ids == encoded(theirs, entry["text"]), entry["text"]
        differing += ids != entry["token_ids"]
        if ours.normalizer.normalize_str(entry["text"]) == entry["text"]:
            assert ids == entry["token_ids"], entry["text"]
    assert 0 < differing < 10


def test_sentence_piece_with_real_scores():
    reader = gguf.GGUFReader(TINY / "spm_vocabulary.gguf")

    def get(key, default=None):
        found = reader.get_field(key)
        return default if found is None else found.contents()

    text = text_data(Path("spm_vocabulary.gguf"), get)
    ours = Tokenizer.from_str(text.tokenizer_json.decode())
    for entry in texts("tiny/spm_vocabulary.tokens.json"):
        assert encoded(ours, entry["text"]) == entry["token_ids"], entry["text"]
    assert (text.bos, text.add_bos) == (1, True)
    assert ours.encode("a").ids[0] == 1


def test_merges_are_ordered_by_score_then_ids():
    vocabulary = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aab": 4, "aa": 5}
    scores = [0.0, 0.0, -3.0, -1.0, -3.0, -3.0]
    assert merges_of(vocabulary, scores) == [
        ("b", "a"), ("a", "b"), ("a", "ab"), ("aa", "b"), ("a", "a")]


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_splitting_rule_loses_no_text(name):
    document = json.loads(opened("llama31.gguf").text.tokenizer_json)
    steps = document["pre_tokenizer"]["pretokenizers"]
    document["pre_tokenizer"]["pretokenizers"] = [*RULES[name].splits(), steps[-1]]
    ours = Tokenizer.from_str(json.dumps(document))
    for text in ("It's 12345 o'clock,\r\n\n  naïve 東京 has 한국어; HTTPServer == x_1!  ", "\n\t "):
        assert ours.decode(encoded(ours, text)) == text


def test_rules_split_words_and_digits_as_published():
    def pieces(name: str, text: str) -> list[str]:
        document = json.loads(opened("llama31.gguf").text.tokenizer_json)
        document["pre_tokenizer"]["pretokenizers"] = RULES[name].splits()
        ours = Tokenizer.from_str(json.dumps(document))
        return [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str(text)]

    assert pieces("gpt-2", "I'VE 1234 a") == ["I", "'", "VE", " 1234", " a"]
    assert pieces("smollm", "ab 1234") == ["ab", " ", "1", "2", "3", "4"]
    assert pieces("llama-bpe", "I'VE 1234") == ["I", "'VE", " ", "123", "4"]
    assert pieces("qwen2", "I'VE 1234") == ["I", "'VE", " ", "1", "2", "3", "4"]
    assert pieces("tekken", "myHTTPServer 12") == ["my", "HTTPServer", " ", "1", "2"]
    assert pieces("deepseek-llm", "Ab東京 x。") == ["Ab", "東京", " x", "。"]


def table_text(table, ids: list[int], strip: bool, skip: bool) -> str:
    """Text of ids by the byte table, as the serving contract says."""
    raw = b"".join(table.data[table.offsets[i] : table.offsets[i + 1]] for i in ids
                   if not (skip and table.special[i]))
    text = raw.decode("utf-8", "replace")
    return text[1:] if strip and text.startswith(" ") else text


@pytest.mark.parametrize("name", EVERY)
def test_byte_table_decodes_as_the_library(name):
    checkpoint, ours = opened(name), tokenizer(name)
    table = token_bytes(checkpoint.text.tokenizer_json, checkpoint.config.vocabulary)
    rule = text_rule(checkpoint.text.tokenizer_json)
    generator = random.Random(7)
    whole_bytes = [i for i, flag in enumerate(table.fallback) if not flag]
    for turn in range(300):
        ids = [generator.choice(whole_bytes) for _ in range(generator.randrange(1, 12))]
        skip = turn % 2 == 0
        assert table_text(table, ids, rule.strip_leading_space, skip) == ours.decode(
            ids, skip_special_tokens=skip)
    for text in ("Héllo  wörld", " 漢字 👩‍👩‍👧", "a\u0301\n\t"):
        ids = encoded(ours, text)
        assert table_text(table, ids, rule.strip_leading_space, True) == ours.decode(ids)


def test_byte_tables_say_what_tokens_are():
    level, fallback = opened("llama31"), opened("llama2")
    table = token_bytes(fallback.text.tokenizer_json, 300)
    assert sum(table.fallback) == 256
    assert table.data[table.offsets[3] : table.offsets[5]] == b"\x00\x01"
    assert list(table.special[:4]) == [1, 1, 1, 0]
    rule = text_rule(fallback.text.tokenizer_json)
    assert (rule.decoding, rule.strip_leading_space) == (contract.BYTE_FALLBACK, True)
    rule = text_rule(level.text.tokenizer_json)
    assert (rule.decoding, rule.strip_leading_space) == (contract.BYTE_LEVEL, False)
    padded = token_bytes(level.text.tokenizer_json, 320)
    assert len(padded.offsets) == 321
    assert padded.offsets[300] == padded.offsets[320]


def test_bad_tokenizers_are_refused():
    source = opened("llama31").text.tokenizer_json
    with pytest.raises(PreparationError, match="below 299"):
        token_bytes(source, 299)
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    document = json.loads(source) | {"decoder": decoder}
    with pytest.raises(PreparationError, match="WordPiece"):
        text_rule(json.dumps(document).encode())

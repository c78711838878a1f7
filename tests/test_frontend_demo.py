"""The demo core's text against what others computed (tests/oracles/smollm2_text.py says who).

The demo core is prepared where it is missing, as `helios serve` does."""

import json
import random

import pytest
import text_tables
from server_harness import HERE
from tokenizers import Tokenizer

from helios_dod.cores.demo import demo_core
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.text import TextStream
from helios_dod.server.bootstrap import load_assets


@pytest.fixture(scope="module")
def preparer() -> Preparer:
    return Preparer(load_assets(demo_core()))


@pytest.fixture(scope="module")
def library(preparer: Preparer) -> Tokenizer:
    """The same data without our seals, decoder included."""
    return Tokenizer.from_str(preparer.assets.tokenizer_json.decode())


def fixture(name: str) -> dict:
    return json.loads((HERE / "fixtures" / name).read_text())


def test_chats_equal_the_reference(preparer: Preparer) -> None:
    assert preparer.template is not None
    for chat in fixture("smollm2_chat.json")["chats"]:
        text = preparer.template.render(chat["messages"], chat["add_generation_prompt"])
        assert text == chat["text"]
        if chat["add_generation_prompt"]:
            assert preparer.encoder.encode(text) == chat["token_ids"]


def test_texts_round_trip(preparer: Preparer, library: Tokenizer) -> None:
    for case in fixture("smollm2_tokenize.json")["texts"]:
        ids = preparer.encoder.encode(case["text"])
        assert ids == case["token_ids"], case["text"]
        stream = TextStream(preparer.assets.byte_table, preparer.assets.strip_leading_space)
        pieces = [stream.feed([token]) for token in ids] + [stream.feed([], last=True)]
        assert b"".join(pieces).decode() == library.decode(
            ids, skip_special_tokens=True)


def test_random_strings_equal_the_library(preparer: Preparer, library: Tokenizer) -> None:
    draw, table = random.Random(3), preparer.assets.byte_table
    for _ in range(10_000):
        ids = [draw.randrange(len(table)) for _ in range(draw.randrange(1, 16))]
        stream = TextStream(table, preparer.assets.strip_leading_space)
        pieces = [stream.feed([token]) for token in ids] + [stream.feed([], last=True)]
        assert b"".join(pieces).decode() == library.decode(
            ids, skip_special_tokens=True), ids


def test_byte_table_is_the_tokenizer_s(preparer: Preparer) -> None:
    other = text_tables.sample_of("demo", preparer.assets.tokenizer_json.decode()).table
    table = preparer.assets.byte_table
    assert len(table) == len(other)
    for token in range(len(table)):
        assert table.token(token) == other.token(token), token
        assert table.special[token] == other.special[token], token

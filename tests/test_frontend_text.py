"""Token-by-token text against the `tokenizers` library.

HELIOS_TOKENIZERS may list more `tokenizers` JSON files (separated by ':') to test the same way."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import text_tables
from text_tables import Sample

from helios_dod.edges import EVENT
from helios_dod.frontend.text import ROW_BITS, ByteTable, Detokeniser, TextStream
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN, TEXT_ALL

STRINGS = 10_000
EXTRA = [path for path in os.environ.get("HELIOS_TOKENIZERS", "").split(":") if path]


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback", *EXTRA])
def sample(request: pytest.FixtureRequest) -> Sample:
    if request.param in EXTRA:
        return text_tables.sample_of(request.param, Path(request.param).read_text())
    return getattr(text_tables, request.param)()


def expected(sample: Sample, tokens: list[int]) -> str:
    """What the library decodes, except that an invalid run of raw bytes is lossy UTF-8."""
    kept = [token for token in tokens if token not in sample.special]
    runs, valid = [b""], True
    for token in kept:
        if token in sample.fallback:
            runs[-1] += sample.table.token(token)
        else:
            runs += [sample.table.token(token), b""]
    if sample.fallback:
        for run in runs[::2]:
            try:
                run.decode()
            except UnicodeDecodeError:
                valid = False
    if valid:
        return sample.tokenizer.decode(tokens, skip_special_tokens=True)
    text = "".join(run.decode("utf-8", "replace") for run in runs)
    return text[1:] if sample.strip and text.startswith(" ") else text


def random_tokens(sample: Sample, draw: random.Random) -> list[int]:
    """One of five kinds: real text, any ids, raw bytes, special tokens, cut text."""
    count = len(sample.table)
    kind = draw.randrange(5)
    text = "".join(draw.choice(text_tables.TEXTS) for _ in range(2))
    real = sample.tokenizer.encode(text, add_special_tokens=False).ids
    if kind == 0:
        return real
    if kind == 1:
        return [draw.randrange(count) for _ in range(12)]
    if kind == 2:
        pool = sorted(sample.fallback) or range(count)
        characters = [draw.choice(["你", "é", "🙂", "x"]).encode() for _ in range(4)]
        raw = b"".join(c[: draw.choice([1, 2, 3, 4, 4])] for c in characters)
        if sample.fallback:
            return [pool[byte] for byte in raw]
        return [draw.choice(pool) for _ in range(6)]
    if kind == 3:
        specials = sorted(sample.special)
        return [draw.choice(specials) if draw.random() < 0.3 else t for t in real[:30]]
    start = draw.randrange(len(real))
    return real[start : start + draw.randrange(1, 40)]


def test_token_by_token_equals_the_library(sample: Sample) -> None:
    draw = random.Random(7)
    for _ in range(STRINGS):
        tokens = random_tokens(sample, draw)
        stream = TextStream(sample.table, sample.strip)
        pieces = [stream.feed([token]) for token in tokens] + [stream.feed([], last=True)]
        whole = expected(sample, tokens)
        assert "".join(piece.decode() for piece in pieces) == whole, tokens
        shown = ""
        for piece in pieces:
            shown += piece.decode()  # each piece alone is whole characters
            assert whole.startswith(shown), tokens


@pytest.mark.parametrize("text", text_tables.TEXTS)
def test_real_text_round_trips(sample: Sample, text: str) -> None:
    tokens = sample.tokenizer.encode(text, add_special_tokens=False).ids
    stream = TextStream(sample.table, sample.strip)
    got = b"".join(stream.feed([token]) for token in tokens) + stream.feed([], last=True)
    assert got.decode() == sample.tokenizer.decode(tokens, skip_special_tokens=True)


def test_escapes_as_json() -> None:
    text = "".join(map(chr, range(128))) + "é漢🙂"
    raw = text.encode()
    table = ByteTable.of(raw, range(len(raw) + 1), bytes(len(raw)))
    escaped = TextStream(table, False).feed(range(len(raw)), last=True, escape=True)
    import msgspec

    assert msgspec.json.decode(b'"' + escaped + b'"') == text


def test_unknown_token_ids_have_no_text() -> None:
    table = ByteTable.of(b"ab", [0, 1, 2], bytes(2))
    assert TextStream(table, False).feed([0, 2, -1, 2**31 - 1, 1], last=True) == b"ab"


def test_byte_table_refuses_wrong_offsets() -> None:
    for offsets in ([0, 1], [0, 2, 1], [1, 1, 2], [0, 1, 3]):
        with pytest.raises(ValueError, match=r"token_bytes\.offsets"):
            ByteTable.of(b"ab", offsets, bytes(2))


def events_of(rows: list[tuple]) -> np.ndarray:
    """(kind, tag, token, index, shown, text) rows as events; without a text: TEXT_ALL."""
    events = np.zeros(len(rows), EVENT)
    for i, row in enumerate(rows):
        for name, value in zip(("kind", "tag", "token", "index", "shown", "text"),
                               (*row, TEXT_ALL)[:6], strict=True):
            events[i][name] = value
    return events


def feed_all(detokeniser: Detokeniser, rows: list[tuple]) -> list[bytes]:
    """The text of each event, feeding as often as the output buffer needs."""
    events, taken, texts = events_of(rows), 0, []
    ends = np.zeros(len(rows), np.int64)
    for _ in range(len(rows)):
        count = detokeniser.feed(events, taken, ends)
        assert count > 0
        begin = 0
        for end in ends[:count].tolist():
            texts.append(detokeniser.out[begin:end].tobytes())
            begin = end
        taken += count
        if taken == len(rows):
            break
    return texts


def letters() -> ByteTable:
    """Token i is letter i; 25 tokens, then three byte tokens of U+20AC."""
    data = bytes(range(97, 122)) + "€".encode()
    return ByteTable.of(data, range(len(data) + 1), bytes(len(data)))


TOKEN, END = EGRESS_TOKEN, EGRESS_FINISHED


def test_events_of_interleaved_choices() -> None:
    detokeniser = Detokeniser(letters(), rows=4, strip_leading_space=False)
    one, two = (5 << ROW_BITS) | 1, (6 << ROW_BITS) | 2
    stale = (4 << ROW_BITS) | 1
    detokeniser.open(one)
    detokeniser.open(two)
    got = feed_all(detokeniser, [
        (TOKEN, one, 0, 0, 1), (TOKEN, two, 25, 0, 1), (TOKEN, stale, 1, 0, 1),
        (TOKEN, one, 3, 1, 1), (TOKEN, two, 26, 1, 2), (TOKEN, one, 2, 2, 3),
        (TOKEN, one, 3, 3, 3), (TOKEN, two, 0, 2, 3), (END, one, 0, 4, 3),
        (TOKEN, two, 25, 3, 4), (END, two, 0, 4, 4)])
    # The first token 3 did not end its choice, so it shows with the next; the second one did.
    assert got == [b"a", b"", b"", b"", b"", b"dc", b"", "\ufffda".encode(), b"", b"",
                   "\ufffd".encode()]
    detokeniser.close(one)
    assert feed_all(detokeniser, [(TOKEN, one, 0, 4, 5)]) == [b""]


def test_text_that_may_become_a_stop_waits() -> None:
    detokeniser = Detokeniser(letters(), rows=1, strip_leading_space=False)
    detokeniser.open(0)
    # "abcab" with the stop string "cabx", a text that goes on, and what the limit releases.
    assert feed_all(detokeniser, [
        (TOKEN, 0, 0, 0, 1, 1), (TOKEN, 0, 1, 1, 2, 2), (TOKEN, 0, 2, 2, 3, 2),
        (TOKEN, 0, 0, 3, 4, 2), (TOKEN, 0, 1, 4, 5, 2), (TOKEN, 0, 2, 5, 6, 5),
        (TOKEN, 0, 25, 6, 7, 5), (TOKEN, 0, 0, 7, 8), (END, 0, 0, 8, 8)]) == [
        b"a", b"b", b"", b"", b"", b"cab", b"", "c\ufffda".encode(), b""]


def test_a_stop_string_and_what_follows_it_are_not_text() -> None:
    detokeniser = Detokeniser(letters(), rows=1, strip_leading_space=False)
    for end in (0, 1, 2):
        detokeniser.open(0)
        got = feed_all(detokeniser, [
            (TOKEN, 0, 0, 0, 1, 0), (TOKEN, 0, 1, 1, 2, end), (TOKEN, 0, 25, 2, 3, end),
            (END, 0, 0, 3, 3, end)])
        assert b"".join(got) == b"ab"[:end]


def test_full_output_buffer_loses_nothing() -> None:
    detokeniser = Detokeniser(letters(), rows=1, strip_leading_space=False)
    detokeniser.open(0)
    detokeniser.out = np.zeros(detokeniser.reserve + 3, np.uint8)
    got = feed_all(detokeniser, [(TOKEN, 0, i % 25, i, i + 1) for i in range(100)])
    assert b"".join(got) == bytes(97 + i % 25 for i in range(100))

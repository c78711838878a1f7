"""What stops must make of an answer, found the naive way: every prefix is searched anew."""

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.edges import Submission
from helios_dod.terms import (
    FINISH_EOS,
    FINISH_GRAMMAR,
    FINISH_LIMIT,
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    TEXT_ALL,
)

# Letters that overlap, characters cut over tokens, bytes that no text has, and two special tokens.
PIECES = tuple(text.encode("latin-1") for text in (
    "<s>", "</s>", "a", "b", "ab", "ba", "aab", "bab", "abba", " ", " a", "\n", "\n\n",
    "\xc3", "\xa9", "\xc3\xa9", "\xe2", "\x82", "\xac", "\xe2\x82", "\x82\xac", "\xe2\x82\xac",
    "\xf0", "\x9f", "\x99", "\x82a", "\xf0\x9f", "\x99\x82", "\xff", "a\xc3", "\xa9b", "aaaa", ""))
SPECIAL = 2  # the first pieces are special
STRINGS = ("a", "b", "aab", "abab", "aaaaaaab", "\n\n", " a", "é", "€b", "🙂", "a\ufffd", "ba\n",
           "abbaabba", "éé", "bbbbbbbbbbbbbb")


@dataclass(frozen=True)
class Ending:
    """How an answer ends. shown: tokens that are presented; text: bytes of text, or TEXT_ALL;
    which: the stop that ended it, of those of its kind, or -1."""

    tokens: list[int]
    reason: int
    shown: int
    text: int
    which: int = -1


def piece_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(data, offsets, special) of PIECES."""
    offsets = np.cumsum([0, *map(len, PIECES)])
    special = np.arange(len(PIECES)) < SPECIAL
    return np.frombuffer(b"".join(PIECES), np.uint8), offsets, special.astype(np.uint8)


def text_of(tokens: Sequence[int], pieces: Sequence[bytes], omitted: Sequence[int] | range,
            strip: bool) -> bytes:
    """Decoded text, in UTF-8; an unfinished character at its end is none yet."""
    raw = b"".join(pieces[t] for t in tokens if 0 <= t < len(pieces) and t not in omitted)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
    return (text.removeprefix(" ") if strip else text).encode()


def first_stop(text: bytes, seen: int, strings: Sequence[bytes]) -> tuple[int, int, int] | None:
    """(begin, end, which) of the first string completed after `seen` bytes, of several the
    longest."""
    for end in range(seen + 1, len(text) + 1):
        found = [string for string in strings if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), end, strings.index(longest)
    return None


def ending(s: Submission, drawn: Sequence[int], pieces: Sequence[bytes],
           omitted: Sequence[int] | range, strip: bool, broken: bool = False) -> Ending:
    """Where an answer of the tokens `drawn` ends; they go on until EOS or the limit.

    broken: the request's grammar fails behind them."""
    seen = 0
    for count in range(1, len(drawn) + 1):
        tokens, last = list(drawn[:count]), drawn[count - 1]
        counts = count > s.output_minimum
        if counts and last in s.eos:
            return Ending(tokens, FINISH_EOS, count - 1, TEXT_ALL)
        ends = [q for q in s.stop_sequences if tuple(tokens[-len(q):]) == q]
        if counts and ends:
            longest = max(ends, key=len)
            return Ending(tokens, FINISH_STOP_SEQUENCE,
                          count if s.keep_stop else count - len(longest), TEXT_ALL,
                          s.stop_sequences.index(longest))
        if counts and last in s.stop_ids:
            return Ending(tokens, FINISH_STOP_TOKEN, count - (not s.keep_stop), TEXT_ALL,
                          s.stop_ids.index(last))
        if s.stop_strings:
            text = text_of(tokens, pieces, omitted, strip)
            found = first_stop(text, seen, s.stop_strings)
            if counts and found:
                return Ending(tokens, FINISH_STOP_STRING, count, found[s.keep_stop], found[2])
            seen = len(text)
        if count >= s.output_limit:
            return Ending(tokens, FINISH_LIMIT, count, TEXT_ALL)
    if broken:
        return Ending(list(drawn), FINISH_GRAMMAR, len(drawn), TEXT_ALL)
    raise AssertionError(f"tag {s.tag}: {len(drawn)} tokens drawn, and the answer goes on")


def undecided(text: bytes, strings: Sequence[bytes]) -> int:
    """Bytes at the end of a text that may still become a stop string."""
    return max((size for string in strings for size in range(len(string))
                if text.endswith(string[:size])), default=0)


def random_stops(rng: random.Random, vocabulary: int, share: float) -> dict[str, Any]:
    """Fields of a Submission: no stops, or stops of one of the kinds."""
    if rng.random() >= share:
        return {}
    kind = rng.randrange(4)
    if kind == 0:
        strings = rng.sample(STRINGS, rng.randint(1, 4))
        return {"stop_strings": tuple(text.encode() for text in strings),
                "keep_stop": rng.random() < 0.2}
    if kind == 1:
        return {"stop_ids": (2, 3)}
    pool = [rng.randrange(vocabulary) for _ in range(4)]
    sequences = tuple(tuple(rng.choices(pool, k=rng.randint(1, 3))) for _ in range(8))
    ids = (rng.randrange(vocabulary),) if kind == 3 else ()
    return {"stop_sequences": sequences, "stop_ids": ids, "keep_stop": rng.random() < 0.2}

"""Token ids to text: a byte table and jitted loops over bytes.

The visible text of a token sequence is the lossy UTF-8 reading of its tokens' bytes, special
tokens left out (`tokenizers` decoders ByteLevel, and ByteFallback except that a run of byte tokens
which is invalid as UTF-8 is repaired as a whole, not byte by byte). A partial character is held
until it is complete or certainly invalid, so no replacement character appears that the whole text
does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from helios_dod.decoding import NEED, STARTED, put_replacement, put_text, put_token
from helios_dod.limits import (
    DECODED_MAX,
    DECODING_WORDS,
    STOP_SEQUENCE_TOKENS_MAX,
    STOP_STRING_BYTES_MAX,
)
from helios_dod.system import kernel
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN, TEXT_ALL

ROW_BITS = 16  # a tag's low bits name its row of the detokeniser
ESCAPE_MAX = 6  # JSON bytes of one text byte at most: \u001f
OUT_BYTES = 1 << 18
HELD_TOKENS = STOP_SEQUENCE_TOKENS_MAX  # tokens of one request that may become a stop, at most

# Words of a row's counts: tokens decoded, bytes of text released, bytes of it in the tail.
READ, RELEASED, WAITING = 0, 1, 2
COUNT_WORDS = 3


@dataclass(frozen=True)
class ByteTable:
    """Token i is data[offsets[i]:offsets[i + 1]]; special[i] is 1 where text omits it."""

    data: np.ndarray  # uint8
    offsets: np.ndarray  # int64 [tokens + 1]
    special: np.ndarray  # uint8 [tokens]

    @classmethod
    def of(cls, data: bytes, offsets: Sequence[int] | np.ndarray,
           special: bytes) -> "ByteTable":
        """From the fields of a core's TokenBytes. Raises ValueError where they disagree."""
        ends = np.array(offsets, dtype=np.int64)
        if len(ends) != len(special) + 1:
            raise ValueError(f"token_bytes.offsets: {len(special) + 1} expected, got {len(ends)}")
        if ends[0] != 0 or ends[-1] != len(data) or (np.diff(ends) < 0).any():
            raise ValueError(f"token_bytes.offsets: not increasing from 0 to {len(data)}")
        return cls(np.frombuffer(data or b"\0", np.uint8).copy(), ends,
                   np.frombuffer(special, np.uint8).copy())

    def __len__(self) -> int:
        return len(self.special)

    def token(self, index: int) -> bytes:
        """A token's bytes, special or not; empty outside the table."""
        if not 0 <= index < len(self):
            return b""
        return self.data[self.offsets[index]:self.offsets[index + 1]].tobytes()

    def shows(self, index: int) -> bool:
        """Whether text has anything of a token."""
        return 0 <= index < len(self) and not self.special[index] and (
            bool(self.offsets[index] < self.offsets[index + 1]))

    @cached_property
    def seen(self) -> dict[int, bytes | None]:
        """What `whole` has found so far."""
        return {}

    def whole(self, index: int) -> bytes | None:
        """A token's text where it is whole characters; None where there is none, or where the
        tokens around it decide too."""
        if index not in self.seen:
            data = self.token(index) if self.shows(index) else None
            try:
                if data is not None:
                    data.decode()
            except UnicodeDecodeError:
                data = None
            self.seen[index] = data
        return self.seen[index]

    @cached_property
    def token_bytes_max(self) -> int:
        """Bytes of the longest token."""
        return int(np.diff(self.offsets).max(initial=0))


@kernel
def put_tokens(data, offsets, special, out, state, tokens, last, escape, strip):
    """Writes the text of tokens; last: also what is still held. The bytes written."""
    at = 0
    for i in range(tokens.shape[0]):
        at = put_token(data, offsets, special, out, at, state, tokens[i], escape, strip)
    if last and state[NEED] > 0:
        at = put_replacement(out, at, state)
    return at


@kernel
def release(out, at, tail, counts, row, text):
    """Writes what of a row's tail lies before byte `text` of its text; the position after it."""
    waiting, begin = counts[row, WAITING], counts[row, RELEASED]
    ready = min(text - begin, waiting)
    if ready <= 0:
        return at
    for i in range(ready):
        at = put_text(out, at, np.int32(tail[row, i]), True)
    for i in range(ready, waiting):
        tail[row, i - ready] = tail[row, i]
    counts[row, WAITING] = waiting - ready
    counts[row, RELEASED] = begin + ready
    return at


@kernel
def put_shown(data, offsets, special, out, at, state, held, tail, counts, row, shown, text, strip):
    """Text of a row's tokens up to `shown`, and of it up to byte `text`; the position after it."""
    if text == TEXT_ALL:
        at = release(out, at, tail, counts, row, text)
    for index in range(counts[row, READ], shown):
        token = held[row, index % HELD_TOKENS]
        if text == TEXT_ALL:
            at = put_token(data, offsets, special, out, at, state, token, True, strip)
        else:
            counts[row, WAITING] = put_token(
                data, offsets, special, tail[row], counts[row, WAITING], state, token, False, strip)
    counts[row, READ] = max(counts[row, READ], shown)
    return release(out, at, tail, counts, row, text)


@kernel
def put_events(data, offsets, special, tags, states, held, tail, counts, kind, tag, token, index,
               shown, text, out, ends, reserve, strip):
    """Escaped text of a batch of events: event i's is out[ends[i - 1]:ends[i]].

    The engine says with each event how many tokens may be shown (`shown`) and how much of their
    text (`text`): the rest waits in `held` and `tail`. Returns the events taken: fewer than all
    when `out` has no `reserve` bytes left."""
    at = 0
    for i in range(kind.shape[0]):
        if at + reserve > out.shape[0]:
            return i
        ends[i] = at
        row = tag[i] & ((1 << ROW_BITS) - 1)
        if row >= tags.shape[0] or tags[row] != tag[i]:
            continue
        state = states[row]
        if kind[i] == EGRESS_TOKEN:
            assert index[i] - counts[row, READ] < HELD_TOKENS
            held[row, index[i] % HELD_TOKENS] = token[i]
            at = put_shown(data, offsets, special, out, at, state, held, tail, counts, row,
                           min(shown[i], index[i] + 1), text[i], strip)
        elif kind[i] == EGRESS_FINISHED:
            at = put_shown(data, offsets, special, out, at, state, held, tail, counts, row,
                           shown[i], text[i], strip)
            if text[i] == TEXT_ALL and state[NEED] > 0:
                at = put_replacement(out, at, state)
        ends[i] = at
    return kind.shape[0]


class Detokeniser:
    """The text states of a frontend's choices: one row each, at most 2**ROW_BITS.

    A choice's tag names its row in the low ROW_BITS bits; events whose tag is not the row's are
    ignored, so late events of a dropped request do no harm. A row's tail is the decoded text that
    may not be shown yet: less than a stop string, and when one was found it and its token's rest.
    """

    def __init__(self, table: ByteTable, rows: int, strip_leading_space: bool) -> None:
        assert 0 < rows <= 1 << ROW_BITS, rows
        self.table, self.strip = table, strip_leading_space
        self.tags = np.full(rows, -1, np.int64)
        self.states = np.zeros((rows, DECODING_WORDS), np.int32)
        self.held = np.zeros((rows, HELD_TOKENS), np.int32)
        widest = DECODED_MAX * (table.token_bytes_max + 4)  # text of a token at most
        self.tail = np.zeros((rows, STOP_STRING_BYTES_MAX + widest), np.uint8)
        self.counts = np.zeros((rows, COUNT_WORDS), np.int32)
        self.reserve = ESCAPE_MAX * max(
            (HELD_TOKENS + 1) * (table.token_bytes_max + 4), self.tail.shape[1] + widest)
        self.out = np.zeros(max(OUT_BYTES, 2 * self.reserve), np.uint8)

    def open(self, tag: int) -> None:
        """Begins a text."""
        row = tag & ((1 << ROW_BITS) - 1)
        self.tags[row] = tag
        self.states[row] = 0
        self.counts[row] = 0

    def close(self, tag: int) -> None:
        """Ends a text: its later events are ignored."""
        row = tag & ((1 << ROW_BITS) - 1)
        if self.tags[row] == tag:
            self.tags[row] = -1

    def feed(self, events: np.ndarray, first: int, ends: np.ndarray) -> int:
        """Text of events[first:] into `self.out` (see put_events); the number of events taken."""
        table, batch = self.table, events[first:]
        # A strided column of one row counts as contiguous: another type, hence another compile.
        columns = [np.ascontiguousarray(batch[name])
                   for name in ("kind", "tag", "token", "index", "shown", "text")]
        return int(put_events(
            table.data, table.offsets, table.special,
            self.tags, self.states, self.held, self.tail, self.counts, *columns,
            self.out, ends, self.reserve, self.strip))


class TextStream:
    """One text, token by token, by the same rule as Detokeniser."""

    def __init__(self, table: ByteTable, strip_leading_space: bool) -> None:
        self.table, self.strip = table, strip_leading_space
        self.state = np.zeros(DECODING_WORDS, np.int32)

    def whole(self, token: int) -> bytes | None:
        """What a token adds, if it is whole characters and nothing waits for it; None: feed it."""
        if self.state[NEED] or not self.state[STARTED]:
            return None
        return self.table.whole(token)

    def feed(self, tokens: Sequence[int], last: bool = False, escape: bool = False) -> bytes:
        """UTF-8 that these tokens decide; last: and all that was held."""
        ids = np.array(tokens, dtype=np.int32)
        room = (len(ids) * self.table.token_bytes_max + 8) * ESCAPE_MAX
        out = np.zeros(room, np.uint8)
        table = self.table
        count = put_tokens(table.data, table.offsets, table.special, out, self.state, ids, last,
                           escape, self.strip)
        return out[:count].tobytes()

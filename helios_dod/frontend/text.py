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

from helios_dod.decoding import NEED, put_replacement, put_token
from helios_dod.limits import DECODING_WORDS
from helios_dod.system import kernel
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN, FINISH_EOS, FINISH_STOP_TOKEN

ROW_BITS = 16  # a tag's low bits name its row of the detokeniser
STOPS_MAX = 24  # EOS and stop token ids of one request
ESCAPE_MAX = 6  # JSON bytes of one text byte at most: \u001f
OUT_BYTES = 1 << 18


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
def put_events(data, offsets, special, tags, states, stops, pending, kind, reason, tag, token,
               out, ends, shown, reserve, strip):
    """Escaped text of a batch of events: event i's is out[ends[i - 1]:ends[i]].

    A token that may end its request (EOS, stop id) is withheld until the next event says whether it
    did; shown[i] is 0 for it. Returns the events taken: fewer than all when `out` has no `reserve`
    bytes left."""
    at = 0
    for i in range(kind.shape[0]):
        if at + reserve > out.shape[0]:
            return i
        row = tag[i] & ((1 << ROW_BITS) - 1)
        shown[i] = 1
        ends[i] = at
        if row >= tags.shape[0] or tags[row] != tag[i]:
            continue
        state = states[row]
        if pending[row] >= 0:
            ended = kind[i] == EGRESS_FINISHED and (
                reason[i] == FINISH_EOS or reason[i] == FINISH_STOP_TOKEN)
            if not ended:
                at = put_token(data, offsets, special, out, at, state, pending[row], True, strip)
            pending[row] = -1
        if kind[i] == EGRESS_TOKEN:
            for k in range(STOPS_MAX):
                if stops[row, k] == token[i]:
                    shown[i] = 0
            if shown[i] == 0:
                pending[row] = token[i]
            else:
                at = put_token(data, offsets, special, out, at, state, token[i], True, strip)
        elif kind[i] == EGRESS_FINISHED and state[NEED] > 0:
            at = put_replacement(out, at, state)
        ends[i] = at
    return kind.shape[0]


class Detokeniser:
    """The text states of a frontend's choices: one row each, at most 2**ROW_BITS.

    A choice's tag names its row in the low ROW_BITS bits; events whose tag is not the row's are
    ignored, so late events of a dropped request do no harm."""

    def __init__(self, table: ByteTable, rows: int, strip_leading_space: bool) -> None:
        assert 0 < rows <= 1 << ROW_BITS, rows
        self.table, self.strip = table, strip_leading_space
        self.tags = np.full(rows, -1, np.int64)
        self.states = np.zeros((rows, DECODING_WORDS), np.int32)
        self.stops = np.full((rows, STOPS_MAX), -1, np.int32)
        self.pending = np.full(rows, -1, np.int32)
        self.reserve = ESCAPE_MAX * 2 * (table.token_bytes_max + 4)
        self.out = np.zeros(max(OUT_BYTES, 4 * self.reserve), np.uint8)

    def open(self, tag: int, stops: Sequence[int]) -> None:
        """Begins a text. stops: token ids that end it, at most STOPS_MAX."""
        row = tag & ((1 << ROW_BITS) - 1)
        self.tags[row] = tag
        self.states[row] = 0
        self.pending[row] = -1
        self.stops[row] = -1
        self.stops[row, : len(stops)] = stops

    def close(self, tag: int) -> None:
        """Ends a text: its later events are ignored."""
        row = tag & ((1 << ROW_BITS) - 1)
        if self.tags[row] == tag:
            self.tags[row] = -1

    def feed(self, events: np.ndarray, first: int, ends: np.ndarray, shown: np.ndarray) -> int:
        """Text of events[first:] into `self.out` (see put_events); the number of events taken."""
        table, batch = self.table, events[first:]
        # A strided column of one row counts as contiguous: another type, hence another compile.
        columns = [np.ascontiguousarray(batch[name]) for name in ("kind", "reason", "tag", "token")]
        return int(put_events(
            table.data, table.offsets, table.special,
            self.tags, self.states, self.stops, self.pending, *columns,
            self.out, ends, shown, self.reserve, self.strip))


class TextStream:
    """One text, token by token, by the same rule as Detokeniser."""

    def __init__(self, table: ByteTable, strip_leading_space: bool) -> None:
        self.table, self.strip = table, strip_leading_space
        self.state = np.zeros(DECODING_WORDS, np.int32)

    def feed(self, tokens: Sequence[int], last: bool = False, escape: bool = False) -> bytes:
        """UTF-8 that these tokens decide; last: and all that was held."""
        ids = np.array(tokens, dtype=np.int32)
        room = (len(ids) * self.table.token_bytes_max + 8) * ESCAPE_MAX
        out = np.zeros(room, np.uint8)
        table = self.table
        count = put_tokens(table.data, table.offsets, table.special, out, self.state, ids, last,
                           escape, self.strip)
        return out[:count].tobytes()

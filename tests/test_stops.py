"""Host stops against a naive scanner: random text, token boundaries and stops, as streamed."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import text_tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from text_tables import Sample

from helios_dod.edges import EVENT, Edge, Submission, stop_block
from helios_dod.errors import UserError
from helios_dod.frontend.text import Detokeniser
from helios_dod.limits import SMALL, TEST_MIN, TOKEN_BLOCK
from helios_dod.simulation.stop_oracle import Ending, ending, text_of, undecided
from helios_dod.systems import stop
from helios_dod.tables.pieces import install_pieces
from helios_dod.tables.stops import load_stops, rewind_stops
from helios_dod.tables.tokens import append_token, take_blocks
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_TOKEN,
    FINISH_LIMIT,
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    FLAG_KEEP_STOP,
    TEXT_ALL,
)
from helios_dod.world import boot

ROW = 3
TOKENS_MAX = 80
STOPPED = (FINISH_STOP_STRING, FINISH_STOP_TOKEN, FINISH_STOP_SEQUENCE)
PARTS = ("a", "b", "ab", "aab", "abab", " ", "\n\n", "é", "漢字", "🙂", "🙃", "the ", "</s",
         "\ufffd", "aaaaaaaa", "User:", "Us")
RAW = (b"\xf0\x9f", b"\x99\x82", b"\xe6\xbc", b"\xff", b"\xc3")  # no text, or the half of one
STOPS = ("a", "b", "aab", "ababab", "abaabab", "\n\n", " a", "é", "字", "漢", "🙂", "🙂a",
         "a\ufffd", "User: ", "aaaaaaaab", "the the", "\ufffd\ufffd", "éé🙃")


class Machine:
    """The engine's stops of one request over a sample's byte table."""

    def __init__(self, sample: Sample) -> None:
        table = sample.table
        self.sample, self.world = sample, boot(SMALL)
        self.pieces = [table.token(i) for i in range(len(table))]
        self.by_first: dict[int, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if piece and token not in sample.special:
                self.by_first.setdefault(piece[0], []).append(token)
        install_pieces(self.world, table.data, table.offsets, table.special, sample.strip)
        take_blocks(self.world, ROW, 1)

    def split(self, raw: bytes, rng: random.Random) -> list[int]:
        """Tokens whose bytes are `raw`, at random boundaries; sometimes a special one between."""
        tokens, at = [], 0
        while at < len(raw):
            fits = [t for t in self.by_first[raw[at]] if raw.startswith(self.pieces[t], at)]
            tokens.append(rng.choice(fits))
            at += len(self.pieces[tokens[-1]])
            if rng.random() < 0.05:
                tokens.append(rng.choice(sorted(self.sample.special)))
        return tokens[:TOKENS_MAX]

    def begin(self, asked: Submission) -> None:
        """Puts a request before its first generated token."""
        requests, block = self.world[0]["requests"], stop_block(asked)
        requests["prompt_count"][ROW] = requests["token_count"][ROW] = 1
        requests["output_limit"][ROW] = asked.output_limit
        requests["output_minimum"][ROW] = asked.output_minimum
        requests["flags"][ROW] = FLAG_KEEP_STOP if asked.keep_stop else 0
        requests["eos"][ROW] = -1
        requests["eos"][ROW, : len(asked.eos)] = asked.eos
        words = np.concatenate([np.zeros(3, np.int32), block])
        load_stops(self.world, ROW, words, 3, len(block))

    def take(self, token: int) -> tuple[int, int, int]:
        """(reason or 0, tokens that may be shown, bytes of text that may) after a token."""
        append_token(self.world, ROW, token)
        requests = self.world[0]["requests"]
        generated = int(requests["token_count"][ROW]) - 1
        reason = stop.ending(self.world, ROW, token, generated)
        return reason, generated - int(requests["withheld"][ROW]), int(requests["text_end"][ROW])


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    assert TOKENS_MAX < TOKEN_BLOCK
    yield Machine(getattr(text_tables, request.param)())


def random_text(rng: random.Random, strings: list[str]) -> bytes:
    """Text in which stops begin, overlap and end."""
    parts: list[bytes] = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.4 and strings:
            text = rng.choice(strings)
            parts.append(text[: rng.randint(0, len(text))].encode())
        elif kind < 0.5:
            parts.append(rng.choice(RAW))
        else:
            parts.append(rng.choice(PARTS).encode())
    return b"".join(parts)


def run(machine: Machine, asked: Submission, tokens: list[int], rng: random.Random,
        late: float = 0.0) -> tuple[Ending, bytes]:
    """What the engine makes of the tokens, and the text that its frontend shows. late: how often an
    event is written together with later ones, as a full ring has it."""
    machine.begin(asked)
    detokeniser = Detokeniser(machine.sample.table, 1, machine.sample.strip)
    detokeniser.open(0)
    texts: list[bytes] = []
    waiting: list[tuple[int, int]] = []
    reason, taken = 0, 0
    for token in tokens:
        reason, shown, text = machine.take(token)
        waiting.append((token, taken))
        taken += 1
        if reason == 0 and rng.random() < late:
            continue
        for each, index in waiting:
            texts.append(feed(detokeniser, EGRESS_TOKEN, each, index, shown, text))
        waiting.clear()
        if reason == 0 and asked.stop_strings and not late:
            decided = text_of(tokens[:taken], machine.pieces, machine.sample.special,
                              machine.sample.strip)
            held = undecided(decided, asked.stop_strings)
            assert b"".join(texts) == decided[: len(decided) - held], "held: more or less than may"
        if reason:
            break
    assert reason, "the limit ends it at the latest"
    texts.append(feed(detokeniser, EGRESS_FINISHED, 0, taken, shown, text))
    which = int(machine.world[0]["stops"]["found"][ROW]) if reason in STOPPED else -1
    return Ending(tokens[:taken], reason, shown, text, which), b"".join(texts)


def feed(detokeniser: Detokeniser, kind: int, token: int, index: int, shown: int,
         text: int) -> bytes:
    """The text that one event shows."""
    events, ends = np.zeros(1, EVENT), np.zeros(1, np.int64)
    for name, value in (("kind", kind), ("token", token), ("index", index), ("shown", shown),
                        ("text", text)):
        events[name] = value
    assert detokeniser.feed(events, 0, ends) == 1
    escaped = detokeniser.out[: ends[0]].tobytes()
    return msgspec.json.decode(b'"' + escaped + b'"', type=str).encode()


def visible(machine: Machine, end: Ending) -> bytes:
    """The text of an answer, from its tokens alone."""
    sample = machine.sample
    raw = b"".join(machine.pieces[t] for t in end.tokens[: end.shown] if t not in sample.special)
    text = raw.decode("utf-8", "replace")
    whole = (text.removeprefix(" ") if sample.strip else text).encode()
    return whole if end.text == TEXT_ALL else whole[: end.text]


def judge(machine: Machine, asked: Submission, tokens: list[int], rng: random.Random,
          late: float) -> Ending:
    """Engine and frontend against the naive scanner; how the answer ends."""
    expected = ending(asked, tokens, machine.pieces, machine.sample.special, machine.sample.strip)
    got, text = run(machine, asked, tokens, rng, late)
    assert got == expected
    assert text == visible(machine, expected)
    return expected


PATIENT = settings(deadline=None, max_examples=300,
                   suppress_health_check=[HealthCheck.function_scoped_fixture])


@PATIENT
@given(rng=some.randoms(use_true_random=False), late=some.sampled_from((0.0, 0.0, 0.6)))
def test_stop_strings_equal_a_naive_scan(machine: Machine, rng: random.Random,
                                         late: float) -> None:
    strings = rng.sample(STOPS, rng.randint(1, 4))
    tokens = machine.split(random_text(rng, strings), rng) or [0]
    asked = Submission(
        1, np.zeros(1, np.int32), rng.randint(1, len(tokens)),
        output_minimum=rng.choice((0, 0, 0, 1, 5)), keep_stop=rng.random() < 0.2,
        eos=rng.choice(((), (rng.choice(tokens),))),
        stop_strings=tuple(text.encode() for text in strings))
    judge(machine, asked, tokens, rng, late)


@PATIENT
@given(rng=some.randoms(use_true_random=False), late=some.sampled_from((0.0, 0.6)))
def test_stop_tokens_equal_a_naive_scan(machine: Machine, rng: random.Random, late: float) -> None:
    pool = rng.sample(range(len(machine.pieces)), 4)
    tokens = [rng.choice(pool) for _ in range(rng.randint(1, 40))]
    sequences = {tuple(rng.choices(pool, k=rng.randint(1, 6))) for _ in range(rng.randint(0, 16))}
    asked = Submission(
        1, np.zeros(1, np.int32), rng.randint(1, len(tokens)),
        output_minimum=rng.choice((0, 0, 3)), keep_stop=rng.random() < 0.2,
        eos=rng.choice(((), (rng.choice(pool),))), stop_sequences=tuple(sorted(sequences)),
        stop_ids=rng.choice(((), (rng.choice(pool),))))
    judge(machine, asked, tokens, rng, late)


def ends_at(machine: Machine, text: str, *strings: str, **fields: Any) -> tuple[int, str]:
    """Reason and visible text of `text` in random tokens, the same in every cut of ten."""
    seen = set()
    for seed in range(10):
        rng = random.Random(seed)
        tokens = machine.split(text.encode(), rng)
        asked = Submission(1, np.zeros(1, np.int32), len(tokens),
                           stop_strings=tuple(s.encode() for s in strings), **fields)
        end = judge(machine, asked, tokens, rng, 0.0)
        seen.add((end.reason, visible(machine, end).decode()))
    assert len(seen) == 1, seen
    return seen.pop()


def test_the_first_completed_string_wins(machine: Machine) -> None:
    cut = FINISH_STOP_STRING
    assert ends_at(machine, "xabcd", "abcd", "bc") == (cut, "xa")  # completed earlier
    assert ends_at(machine, "xabcd", "c", "abc") == (cut, "x")  # at once: the longer one
    assert ends_at(machine, "xaaab", "aab") == (cut, "xa")
    assert ends_at(machine, "abababac", "ababac") == (cut, "ab")
    assert ends_at(machine, "é漢🙂x", "漢🙂") == (cut, "é")
    assert ends_at(machine, "a b b", "b", keep_stop=True) == (cut, "a b")
    assert ends_at(machine, "x" + "a" * 63, "a" * 64) == (FINISH_LIMIT, "x" + "a" * 63)


def test_the_largest_stops_fit(machine: Machine) -> None:
    """4,096 bytes in four strings and sixteen sequences of 64 tokens; one more is refused."""
    edge = Edge(machine.world, 0)
    strings = ("a" * 1024, "b" * 1023 + "a", "é" * 512, "漢" * 341 + "x")
    assert sum(len(text.encode()) for text in strings) == 4096
    asked = Submission(1, np.zeros(1, np.int32), 60,
                       stop_strings=tuple(text.encode() for text in strings))
    assert edge.submit(asked)
    tokens = machine.split(b"a" * 400, random.Random(1))
    asked.output_limit = len(tokens)
    end = judge(machine, asked, tokens, random.Random(1), 0.0)
    assert end.reason == FINISH_LIMIT and end.text == TEXT_ALL
    pool = list(range(5, 69))
    many = tuple((*pool[:63], 100 + i) for i in range(16))
    asked = Submission(2, np.zeros(1, np.int32), 70, stop_sequences=many)
    assert edge.submit(asked)
    end = judge(machine, asked, [*pool[:5], *pool[:63], 115, 7], random.Random(1), 0.0)
    assert (end.reason, end.shown) == (FINISH_STOP_SEQUENCE, 5)
    for fields, name in (({"stop_strings": (b"a" * 4097,)}, "stop_strings"),
                         ({"stop_strings": (b"a",) * 5}, "stop_strings"),
                         ({"stop_strings": (b"",)}, "empty"),
                         ({"stop_strings": (b"a",), "stop_ids": (1,)}, "together"),
                         ({"stop_sequences": ((1,),) * 17}, "stop_sequences"),
                         ({"stop_sequences": ((1,) * 65,)}, "stop_sequences")):
        with pytest.raises(UserError, match=name):
            edge.submit(Submission(1, np.zeros(1, np.int32), 1, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["strings", "sequences"])
def test_rewound_stops_go_on_the_same(machine: Machine, kind: str) -> None:
    """Tokens that are dropped and drawn again leave the same state as if they were drawn once."""
    rng = random.Random(4)
    tokens = machine.split(b"aabaabaabaab", rng)
    stops: dict[str, Any] = {"stop_strings": (b"aabaabx",)}
    if kind == "sequences":
        stops = {"stop_sequences": ((*tokens, 1), (*tokens[1:3], 2))}
    asked = Submission(1, np.zeros(1, np.int32), 100, **stops)
    machine.begin(asked)
    once = [machine.take(token) for token in tokens]
    requests = machine.world[0]["requests"]
    for keep in range(len(tokens)):
        requests["token_count"][ROW] = 1 + keep
        rewind_stops(machine.world, ROW)
        assert [machine.take(token) for token in tokens[keep:]] == once[keep:]


def test_a_byte_table_that_does_not_fit_is_refused() -> None:
    world = boot(TEST_MIN)
    for count, size in ((65, 65), (2, 513)):
        offsets = np.linspace(0, size, count + 1).astype(np.int64)
        with pytest.raises(UserError, match="token_bytes"):
            install_pieces(world, np.zeros(size, np.uint8), offsets, np.zeros(count, np.uint8),
                           False)

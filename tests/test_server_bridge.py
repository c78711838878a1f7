"""The worker's bridge and the stream's queue, in process: full rings, late events, slow readers."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import text_tables

from helios_dod import edges
from helios_dod.edges import Submission
from helios_dod.frontend import text
from helios_dod.frontend.preparation import Prepared
from helios_dod.frontend.requests import RequestError
from helios_dod.frontend.text import Detokeniser
from helios_dod.limits import TEST_MIN
from helios_dod.server.answers import Stream, Whole
from helios_dod.server.bridge import Bridge
from helios_dod.server.control import SharedMemory
from helios_dod.server.errors import ApiError, InvalidRequest
from helios_dod.server.generation import INLINE_BYTES, Generator
from helios_dod.tables import service
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_TOKEN,
    FINISH_LIMIT,
    INGRESS_CANCEL,
    TEXT_ALL,
    WAITING,
)
from helios_dod.world import boot

PERMITS = 6


class Recorder:
    """An answer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def token(self, choice: Any, piece: bytes, entry: bytes) -> None:
        self.told.append((choice.index, piece, entry))

    def finished(self, choice: Any, piece: bytes, entry: bytes, reason: str) -> None:
        self.told.append((choice.index, piece, entry, reason))

    def failed(self, error: ApiError) -> None:
        self.told.append((error.status,))


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    memory = SharedMemory(TEST_MIN)
    boot(TEST_MIN, memory.world)
    memory.service["permit_count"] = PERMITS
    wakes = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    sample = text_tables.byte_level()
    made = Bridge(memory, 0, *wakes, Detokeniser(sample.table, TEST_MIN.requests_max, False))
    made.warm()
    yield made
    for wake in wakes:
        os.close(wake)


def submission() -> Submission:
    return Submission(0, np.array([1, 2], np.int32), 5)


def take_ingress(bridge: Bridge) -> list[tuple[int, int]]:
    """(kind, tag) of every row in the ingress ring, which is emptied."""
    ring = bridge.world[0]["ingress"]
    first, end = int(ring["first"][0, 0]), int(ring["end"][0, 0])
    rows = [position % TEST_MIN.ingress_rows_max for position in range(first, end)]
    if rows:
        ring["words_first"][0, 0] = ring["payload_end"][0, rows[-1]]
    ring["first"][0, 0] = end
    return [(int(ring["kind"][0, row]), int(ring["tag"][0, row])) for row in rows]


def put_event(bridge: Bridge, **columns: Any) -> None:
    ring = bridge.world[0]["egress"]
    row = int(ring["end"][0, 0]) % TEST_MIN.egress_rows_max
    for name, value in {"top_count": -1, "shown": 1, "text": TEXT_ALL, **columns}.items():
        ring[name][0, row] = value
    ring["end"][0, 0] += 1


def token_of(letter: str) -> int:
    return int(text_tables.byte_level().tokenizer.token_to_id(letter))


def in_loop(body: Callable[[], Any]) -> Any:
    async def run() -> Any:
        result = body()
        return await result if asyncio.iscoroutine(result) else result

    return asyncio.run(run())


def test_serving_compiles_nothing_after_warm(bridge: Bridge) -> None:
    kernels = (edges.put_submission, edges.put_cancel, edges.take_events, text.put_events,
               service.claim_permits, service.release_permits)
    before = [len(kernel.signatures) for kernel in kernels]
    permits = bridge.claim(1)
    assert permits is not None
    choices = bridge.submit(permits, [submission()], Recorder())
    for count in (1, 3, 0):
        for _ in range(count):
            put_event(bridge, kind=EGRESS_TOKEN, tag=choices[0].tag, token=token_of("a"))
        bridge.on_wake()
    bridge.drop(choices)
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_a_parser_s_fault_fails_its_request_alone(bridge: Bridge) -> None:
    class Broken:
        calls_finished = 0

        def token(self, token: int, shown: int, text: int) -> Any:
            raise ValueError(token, shown, text)

    def body() -> None:
        first, second = bridge.claim(1), bridge.claim(1)
        assert first and second
        broken, sound = Recorder(), Recorder()
        choices = bridge.submit(
            first, [submission()], broken, [Broken()])  # type: ignore[list-item]
        choices += bridge.submit(second, [submission()], sound)
        for choice in choices:
            put_event(bridge, kind=EGRESS_TOKEN, tag=choice.tag, token=token_of("a"))
        bridge.on_wake()
        assert broken.told == [(500,)] and sound.told == [(0, b"a", b"")]
        assert take_ingress(bridge)[-1] == (INGRESS_CANCEL, choices[0].tag)
        bridge.drop(choices)

    in_loop(body)


def test_permits_are_exact(bridge: Bridge) -> None:
    first, second = bridge.claim(4), bridge.claim(2)
    assert first is not None and second is not None
    assert sorted(first + second) == list(range(PERMITS))
    assert bridge.claim(1) is None
    bridge.release(first)
    assert bridge.claim(5) is None and len(bridge.claim(3) or []) == 3
    other = Bridge(bridge.memory, 1, bridge.wake_engine, bridge.wake_self, bridge.detokeniser)
    assert other.claim(2) is None and other.claim(1) is not None
    assert bridge.claim(1) is None and other.adopt() == 1  # only its own come back
    assert bridge.claim(2) is None and bridge.claim(1) is not None


def test_full_ingress_ring_loses_nothing(bridge: Bridge) -> None:
    """Six submissions and two cancels through a ring of four rows, in order."""
    async def body() -> list[tuple[int, int]]:
        permits = bridge.claim(PERMITS)
        assert permits is not None
        choices = bridge.submit(permits, [submission() for _ in range(PERMITS)], Recorder())
        bridge.cancel(choices[:2])
        seen = []
        for _ in range(200):
            seen += take_ingress(bridge)
            if len(seen) == PERMITS + 2:
                break
            await asyncio.sleep(0.002)
        assert [tag for _, tag in seen] == [c.tag for c in choices + choices[:2]]
        return seen

    seen = in_loop(body)
    assert [kind for kind, _ in seen[-2:]] == [INGRESS_CANCEL] * 2


def test_late_events_of_a_dropped_request_are_ignored(bridge: Bridge) -> None:
    recorder = Recorder()
    permits = bridge.claim(1)
    assert permits is not None
    old = bridge.submit(permits, [submission()], recorder)
    bridge.drop(old)
    permits = bridge.claim(1)
    assert permits is not None
    new = bridge.submit(permits, [submission()], recorder)  # the same row under another tag
    assert new[0].tag != old[0].tag
    for letter, choice in (("a", old[0]), ("b", new[0])):
        put_event(bridge, kind=EGRESS_TOKEN, tag=choice.tag, token=token_of(letter))
    put_event(bridge, kind=EGRESS_FINISHED, tag=old[0].tag, reason=FINISH_LIMIT)
    put_event(bridge, kind=EGRESS_FINISHED, tag=new[0].tag, reason=FINISH_LIMIT, index=1)
    bridge.on_wake()
    assert recorder.told == [(0, b"b", b""), (0, b"", b"", "length")]


def test_adopting_a_dead_worker_s_row(bridge: Bridge) -> None:
    requests = bridge.world[0]["requests"]
    assert bridge.claim(3) is not None
    for row, (tag, frontend) in enumerate(((70, 0), (71, 1))):
        requests["state"][row], requests["tag"][row] = WAITING, tag
        requests["frontend"][row] = frontend
    assert bridge.adopt() == 3
    assert take_ingress(bridge) == [(INGRESS_CANCEL, 70)]
    assert len(bridge.claim(PERMITS) or []) == PERMITS


def test_retry_after_follows_the_pace_of_late(bridge: Bridge) -> None:
    control, second = bridge.memory.control, 1_000_000_000
    bridge.memory.service["worker_count"] = 2
    rows = np.zeros(1, np.int64)

    def give_back(worker: int, at_ns: int) -> None:
        assert service.claim_permits(control, worker + 1, rows)
        service.release_permits(control, worker, rows, at_ns)

    assert service.seconds_to_permits(control, 3, 0) == 1  # nothing is known yet
    for turn in range(1, 60):
        give_back(0, turn * 4 * second)
    now = 59 * 4 * second
    assert service.seconds_to_permits(control, 1, now) == 4
    assert service.seconds_to_permits(control, 5, now) == 20
    for turn in range(1, 60):
        give_back(1, turn * 4 * second)
    assert service.seconds_to_permits(control, 5, now) == 10  # two workers return them
    assert service.seconds_to_permits(control, 1, now + 40 * second) == 20  # it has slowed down
    assert service.seconds_to_permits(control, 9999, now) == service.RETRY_SECONDS_MAX


def test_an_answer_s_budget_holds_all_its_events(bridge: Bridge) -> None:
    """A paused reader of an observed and scored answer: what waits never exceeds the budget."""
    def body() -> None:
        made = prepared(1)
        made.observed = made.scored = made.submissions[0].scored = True
        client = SlowClient()
        stream = Stream(client, made, Script())  # type: ignore[arg-type]
        client.full = True
        limit = made.submissions[0].output_limit
        for _ in range(2 * limit + 1 + 2):
            stream.write(b"x")
        assert len(stream.waiting) == 2 * limit + 2 <= stream.budget
        assert Stream(client, made, Script(), 10**6).budget == 10**6  # type: ignore[arg-type]

    in_loop(body)


def test_engine_death_fails_live_requests_once(bridge: Bridge) -> None:
    recorder = Recorder()
    permits = bridge.claim(2)
    assert permits is not None
    bridge.submit(permits, [submission(), submission()], recorder)
    for _ in range(2):
        bridge.fail_all(ApiError("gone"))
    assert recorder.told == [(500,), (500,)]


def prepared(choices: int) -> Prepared:
    """Of one prompt."""
    return Prepared([np.array([1, 2], np.int32)], [submission() for _ in range(choices)], False,
                    True, False, False, False, False)


class Script:
    """Says nothing by itself."""

    def begin(self) -> bytes:
        return b""

    def text(self, index: int, text: bytes) -> bytes:
        return text


class SlowClient:
    """An ASGI `send` whose queue fills: it then hands back something to wait for."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.more: list[bool] = []
        self.full = self.gone = False
        self.resume: Callable[[Any], None] | None = None

    def __call__(self, message: dict[str, Any]) -> Any:
        if self.gone:
            raise RuntimeError("ASGI flow error: Transport not initialized or closed")
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])
            self.more.append(message["more_body"])
        return self if self.full else object()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.resume = callback

    def drain(self) -> None:
        """The client read: what waited may go on."""
        self.full = False
        assert self.resume is not None
        self.resume(self)


def test_stream_to_a_slow_client_keeps_order() -> None:
    async def body() -> None:
        client = SlowClient()
        stream = Stream(client, prepared(1), Script())  # type: ignore[arg-type]
        stream.begin()
        client.full = True
        for i in range(5):
            stream.write(b"%d" % i)
        assert client.sent == [b"0"]  # the first found the queue full; the others wait
        client.drain()
        assert client.sent == [b"0", b"1234"] and all(client.more)
        client.full = True
        stream.write(b"5")
        stream.end(b"6")
        stream.end(b"7")  # a stream ends once
        stream.write(b"8")  # and nothing follows
        assert not stream.done.done()
        client.drain()
        assert client.sent[2:] == [b"5", b"6"] and client.more[2:] == [True, False]
        assert stream.done.done()

    in_loop(body)


def test_a_client_that_leaves_while_its_queue_is_full_ends_the_stream() -> None:
    """The connection's end resolves what was waited for; what waits behind it goes nowhere."""
    async def body() -> None:
        client = SlowClient()
        stream = Stream(client, prepared(1), Script())  # type: ignore[arg-type]
        stream.begin()
        client.full = True
        stream.write(b"0")
        stream.write(b"1")
        client.gone = True
        client.drain()
        stream.write(b"2")
        stream.end(b"3")
        assert client.sent == [b"0"] and not stream.waiting
        assert not stream.done.done(), "the disconnect ends the request, not an answer"

    in_loop(body)


def test_whole_answer_fails_with_its_first_error() -> None:
    async def body() -> None:
        answer = Whole(prepared(2), lambda answer: b"")
        answer.failed(ApiError("first"))
        answer.failed(ApiError("second"))
        assert answer.done.done() and str(answer.error) == "first"

    in_loop(body)


def test_preparation_slots_are_waited_for(bridge: Bridge) -> None:
    """Of five requests two are prepared at a time; the others wait, and hold a permit each."""
    together, most, waiting = 0, 0, threading.Lock()

    class Endpoint:
        prefix = "x-"

        def decode(self, body: bytes) -> Any:
            return SimpleNamespace(model="m", deadline_ms=None)

        def prepare(self, request: Any, context: int) -> Prepared:
            nonlocal together, most
            with waiting:
                together += 1
                most = max(most, together)
            time.sleep(0.05)
            with waiting:
                together -= 1
            raise RequestError("refused", "x")

    class Asked:
        notes: dict[str, Any] = {}  # noqa: RUF012

        def body_told(self) -> int:
            return INLINE_BYTES + 1

        async def body(self) -> bytes:
            return b" " * self.body_told()

        def let_go(self) -> None:
            pass

    async def body() -> None:
        preparer = SimpleNamespace(names={"m"})
        endpoint: Any = Endpoint()
        asked_of: Any = Asked()
        generator = Generator(bridge, preparer, 100, PERMITS, slots=2)  # type: ignore[arg-type]
        asked = [asyncio.create_task(generator.handle(endpoint, asked_of)) for _ in range(5)]
        await asyncio.sleep(0.02)
        assert service.permits_used(bridge.memory.control) == 5
        for task in asked:
            with pytest.raises(InvalidRequest):
                await task
        assert service.permits_used(bridge.memory.control) == 0

    in_loop(body)
    assert most == 2

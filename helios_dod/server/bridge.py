"""A worker's side of the engine: permits, submissions, and one callback that fans events out.

`on_wake` runs when the engine wrote this worker's eventfd. It calls answers directly, awaiting
nothing, so a paused reader cannot hold up another.
"""

import asyncio
import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from helios_dod.edges import Edge, Submission
from helios_dod.frontend.reading import Reading
from helios_dod.frontend.text import ROW_BITS, Detokeniser
from helios_dod.limits import Limits
from helios_dod.server.choices import (
    FINISH_REASONS,
    Answer,
    Choice,
    failure_of,
    rejection_of,
    stopped_by,
)
from helios_dod.server.chunks import LogprobEntries
from helios_dod.server.control import SharedMemory
from helios_dod.server.errors import Aborted, ApiError, ExecutionFailed
from helios_dod.server.marks import ChoiceMarks
from helios_dod.server.names import name_of, read_id
from helios_dod.tables.durations import note_events
from helios_dod.tables.service import (
    ask_abort,
    claim_permits,
    permits_used,
    reclaim_permits,
    release_permits,
    seconds_to_permits,
)
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_REJECTED,
    EGRESS_SCORE,
    EGRESS_TOKEN,
    FINISH_EOS,
    FREE,
)
from helios_dod.world import attach

ROW_MASK = (1 << ROW_BITS) - 1  # of a tag: its permit
READ = (EGRESS_TOKEN, EGRESS_FINISHED)  # events that a parser takes
BATCH = 1024  # events taken at once
BATCHES_PER_WAKE = 64
RETRY_S = 0.002  # a full ingress ring is tried again after this


@dataclass
class Bridge:
    """Owner of one frontend row of the world."""

    memory: SharedMemory
    worker: int
    wake_engine: int  # eventfd
    wake_self: int  # eventfd
    detokeniser: Detokeniser
    choices: dict[int, Choice] = field(default_factory=dict)
    outbox: deque[Submission | int] = field(default_factory=deque)  # an int is a tag to cancel

    def __post_init__(self) -> None:
        self.limits: Limits = self.memory.limits
        self.world = attach(self.limits, self.memory.world)
        self.edge = Edge(self.world, self.worker, BATCH)
        self.entries = LogprobEntries(self.detokeniser.table)
        self._ends = np.zeros(BATCH, np.int64)
        rows = self.limits.requests_max
        self._tags, self._began = np.full(rows, -1, np.int64), np.zeros(rows, np.int64)
        self._first, self._last = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._retrying = False
        self._aborts = int(self.memory.control[0]["workers"]["aborts"][self.worker])

    def warm(self) -> None:
        """Compiles what serving calls, on a world of the same type that nobody reads."""
        edge = Edge(np.zeros(1, self.world.dtype), self.worker, BATCH)
        edge.submit(Submission(0, np.zeros(1, np.int32), 1))
        edge.cancel(0)
        rows = np.zeros(0, np.int64)
        claim_permits(self.memory.control, self.worker + 1, rows)
        release_permits(self.memory.control, self.worker, rows, 0)
        seconds_to_permits(self.memory.control, 1, 0)
        permits_used(self.memory.control)
        ask_abort(self.memory.control, 0, 0, -1)
        self.detokeniser.feed(edge.events(), 0, self._ends)
        self._note(edge.events())

    def adopt(self) -> int:
        """Takes over the row of a worker that died: cancels its requests, returns its permits."""
        requests = self.world[0]["requests"]
        theirs = (requests["state"] != FREE) & (requests["frontend"] == self.worker)
        for tag in requests["tag"][theirs].tolist():
            self.outbox.append(tag)
        self.flush()
        return int(reclaim_permits(self.memory.control, self.worker + 1))

    def claim(self, count: int) -> list[int] | None:
        """Permits for a request's choices, or None when the server is full."""
        rows = np.zeros(count, np.int64)
        if claim_permits(self.memory.control, self.worker + 1, rows):
            return rows.tolist()
        self.memory.control[0]["workers"]["permits_full"][self.worker] += 1
        return None

    def full(self) -> bool:
        """True, and counted, where no permit is free."""
        control = self.memory.control
        if permits_used(control) < self.memory.service["permit_count"]:
            return False
        control[0]["workers"]["permits_full"][self.worker] += 1
        return True

    def release(self, permits: list[int]) -> None:
        """Returns permits."""
        release_permits(self.memory.control, self.worker, np.array(permits, np.int64),
                        time.monotonic_ns())

    def retry_after(self, count: int) -> int:
        """Seconds until so many permits are expected to be free."""
        return int(seconds_to_permits(self.memory.control, count, time.monotonic_ns()))

    def next_name(self, permit: int) -> str:
        """What names the request whose first choice gets this permit next."""
        serial = int(self.memory.control[0]["workers"]["serial"][self.worker]) + 1
        return name_of(self.worker, serial << ROW_BITS | permit)

    def submit(self, permits: list[int], submissions: list[Submission],
               answer: Answer, readings: Sequence[Reading] = (),
               observed: bool = False) -> list[Choice]:
        """Queues a request's choices; permits become theirs, until `drop`. readings: how each
        choice's output is read; none: all of it is text. observed: the answer wants every token."""
        serial = self.memory.control[0]["workers"]["serial"]
        tags, now_ns = self.memory.control[0]["permits"]["tag"], time.monotonic_ns()
        choices = []
        for index, (permit, submission) in enumerate(zip(permits, submissions, strict=True)):
            serial[self.worker] += 1
            submission.tag = int(serial[self.worker]) << ROW_BITS | permit
            choice = Choice(submission.tag, index, answer, observed=observed, submission=submission,
                            prompt_count=len(submission.prompt))
            tags[permit] = self._tags[permit] = submission.tag
            self._began[permit], self._last[permit] = now_ns, 0
            self._first[permit] = 0
            self.choices[submission.tag] = choice
            if readings:  # its row of the detokeniser stays closed
                choice.reading = readings[index]
            else:
                self.detokeniser.open(submission.tag)
            self.outbox.append(submission)
            choices.append(choice)
        self.flush()
        return choices

    def cancel(self, choices: list[Choice]) -> None:
        """Asks the engine to end what is still live; no further events are delivered."""
        for choice in choices:
            if choice.live:
                choice.live = False
                self.outbox.append(choice.tag)
        self.flush()

    def marks_of(self, choice: Choice) -> ChoiceMarks:
        """When the choice was where, before it is dropped."""
        row = choice.tag & ROW_MASK
        return ChoiceMarks(int(self._began[row]), choice.admitted_ns, int(self._first[row]),
                           int(self._last[row]), choice.generated)

    def drop(self, choices: list[Choice]) -> None:
        """The response is over, sent or not: cancels what lives and returns the permits."""
        self.cancel(choices)
        for choice in choices:
            self.choices.pop(choice.tag, None)
            self._tags[choice.tag & ROW_MASK] = -1
            self.detokeniser.close(choice.tag)
        self.release([choice.tag & ROW_MASK for choice in choices])

    def flush(self) -> None:
        """Moves the outbox into the ingress ring as far as it has room, in order."""
        moved = False
        while self.outbox:
            first = self.outbox[0]
            done = self.edge.cancel(first) if isinstance(first, int) else self.edge.submit(first)
            if not done:
                break
            self.outbox.popleft()
            moved = True
        if moved:
            os.eventfd_write(self.wake_engine, 1)
        if self.outbox and not self._retrying:
            self._retrying = True
            asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self.flush()

    def on_wake(self) -> None:
        """Delivers every waiting event."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_self)
        if self.outbox:
            self.flush()
        asked = int(self.memory.control[0]["workers"]["aborts"][self.worker])
        if asked != self._aborts:
            self._aborts = asked
            self._abort()
        for _ in range(BATCHES_PER_WAKE):
            events = self.edge.events()
            self._note(events)
            self.deliver(events)
            if len(events) < BATCH:
                return
        os.eventfd_write(self.wake_self, 1)  # let other callbacks run, then go on

    def _note(self, events: np.ndarray) -> None:
        """Counts a batch in the worker's histograms."""
        columns = [np.ascontiguousarray(events[name])
                   for name in ("kind", "reason", "tag", "completed_ns")]
        note_events(self.memory.control, self.worker, self._tags, self._began, self._first,
                    self._last, ROW_MASK, *columns, time.monotonic_ns())

    def deliver(self, events: np.ndarray) -> None:
        """Fans a batch out to the answers."""
        first = 0
        while first < len(events):
            count = self.detokeniser.feed(events, first, self._ends)
            assert count > 0, "an event's text is larger than the output buffer"
            self._fan_out(events[first : first + count], self._ends[:count].tolist())
            first += count

    def _fan_out(self, events: np.ndarray, ends: list[int]) -> None:
        text = self.detokeniser.out[: ends[-1]].tobytes()
        kinds, tags = events["kind"].tolist(), events["tag"].tolist()
        scored, tokens = events["top_count"].tolist(), events["token"].tolist()
        begin = 0
        for i, end in enumerate(ends):
            piece, begin = text[begin:end], end
            choice = self.choices.get(tags[i])
            if choice is None or not choice.live:
                continue
            if choice.reading is not None and kinds[i] in READ:
                self._read(choice, choice.reading, events[i], kinds[i], tokens[i], scored[i] >= 0)
            elif kinds[i] == EGRESS_SCORE:
                self._prompt_scored(choice, tokens[i], float(events[i]["logprob"]))
            elif kinds[i] == EGRESS_TOKEN:
                if choice.observed:
                    self._observed(choice, events[i])
                if scored[i] >= 0:
                    self._scored(choice, piece, events[i])
                elif piece:
                    choice.answer.token(choice, piece, b"")
            elif kinds[i] == EGRESS_FINISHED:
                self._finish(choice, piece, events[i])
            elif kinds[i] == EGRESS_REJECTED:
                self._reject(choice, events[i])

    def _observed(self, choice: Choice, event: np.void) -> None:
        stamp = int(event["completed_ns"])
        if stamp:
            stamp -= int(self.memory.service["origin_ns"])
        choice.answer.observed(choice, int(event["token"]), stamp)

    def _prompt_scored(self, choice: Choice, token: int, logprob: float) -> None:
        choice.scores.append((token, logprob))
        if len(choice.scores) == choice.prompt_count - 1:
            choice.answer.prompt_scored(choice, choice.scores)

    def _scored(self, choice: Choice, piece: bytes, event: np.void) -> None:
        choice.entries.append(self.entries.entry(event))
        entry = self._shown_entries(choice, event)
        if entry or piece:
            choice.answer.token(choice, piece, entry)

    def _shown_entries(self, choice: Choice, event: np.void) -> bytes:
        """Entries to deliver with this event: of tokens that may be shown by now."""
        ready = min(int(event["shown"]) - choice.entry_count, len(choice.entries))
        if ready <= 0:
            return b""
        choice.entry_count += ready
        return b",".join([choice.entries.popleft() for _ in range(ready)])

    def _read(self, choice: Choice, reading: Reading, event: np.void, kind: int, token: int,
              scored: bool) -> None:
        """One event of a choice whose output is parsed."""
        if kind == EGRESS_TOKEN and choice.observed:
            self._observed(choice, event)
        try:
            if kind == EGRESS_TOKEN:
                said = reading.token(token, int(event["shown"]), int(event["text"]))
            else:
                said = reading.finish(int(event["reason"]), int(event["shown"]), int(event["text"]))
        except Exception:  # a parser takes any output: report it, fail this request alone
            traceback.print_exc()
            self.cancel([choice])
            choice.answer.failed(ExecutionFailed(
                "The model's output could not be parsed.", code="execution_failed"))
            return
        if kind == EGRESS_TOKEN:
            entry = b""
            if scored:
                choice.entries.append(self.entries.entry(event))
                entry = self._shown_entries(choice, event)
            if said or entry:
                choice.answer.said(choice, said, entry)
            return
        if int(event["reason"]) in FINISH_REASONS and said:
            choice.answer.said(choice, said, b"")
        self._finish(choice, b"", event)

    def _finish(self, choice: Choice, piece: bytes, event: np.void) -> None:
        choice.live = False
        reason = int(event["reason"])
        choice.generated, choice.cached = int(event["index"]), int(event["value"])
        choice.admitted_ns = int(event["completed_ns"])
        ended = FINISH_REASONS.get(reason)
        if ended is None:
            choice.answer.failed(failure_of(reason, int(event["token"])))
            return
        entry = self._shown_entries(choice, event)
        choice.stopped = stopped_by(choice.submission, reason, int(event["token"]))
        called = choice.reading is not None and choice.reading.calls_finished
        if called and reason == FINISH_EOS:
            ended = "tool_calls"
        choice.answer.finished(choice, piece, entry, ended)

    def _reject(self, choice: Choice, event: np.void) -> None:
        choice.live = False
        choice.answer.failed(rejection_of(
            int(event["reason"]), int(event["value"]), int(event["limit"])))

    def abort(self, id: str) -> int | None:
        """Asks for the end of the request whose answer has that id, whichever worker has it: that
        worker, to be woken, or None if no such request lives."""
        named = read_id(id)
        if named is None:
            return None
        worker, tag = named
        found = ask_abort(self.memory.control, worker, tag & ROW_MASK, tag)
        return worker if found else None

    def _abort(self) -> None:
        """Ends the requests that someone asked to abort."""
        permits = self.memory.control[0]["permits"]
        for choice in list(self.choices.values()):
            row = choice.tag & ROW_MASK
            if permits["abort_tag"][row] == choice.tag:
                self.cancel([c for c in self.choices.values() if c.answer is choice.answer])
                choice.answer.failed(Aborted("The request was aborted by its id.",
                                             code="request_aborted"))

    def fail_all(self, error: ApiError) -> None:
        """The engine is gone: every live request fails."""
        for choice in list(self.choices.values()):
            if choice.live:
                choice.live = False
                choice.answer.failed(error)
        self.outbox.clear()

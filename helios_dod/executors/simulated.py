"""The simulated executor: a virtual device over shadow contents. It computes no model.

Every cache record holds a hash of the token at its position and of the record before it, read
through the page table as a kernel would read it; a token is drawn from the last record. So a wrong
page, a stale table entry or a skipped write changes the tokens. `expected_tokens` computes the same
from the token list alone.
"""

import mmap
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from helios_dod.contract.prepared import PreparedContract
from helios_dod.executors.acceptance import NO_MODEL, Acceptance
from helios_dod.executors.base import Geometry
from helios_dod.executors.costs import FEATURES, Costs, FixedCost
from helios_dod.executors.histories import Histories
from helios_dod.executors.simulated_device import (
    EMPTY_HISTORY,
    NONE,
    SOURCES,
    draw,
    initialize,
    mix,
    record,
    run_program,
    score_of,
)
from helios_dod.executors.simulated_flight import (
    COUNT,
    ENTRY,
    FINISHED,
    FIRST,
    FLIGHT_WORDS,
    land,
    take_off,
)
from helios_dod.executors.simulated_rounds import propose_round, verify_round
from helios_dod.limits import COPY_QUEUES, EOS_MAX, FRAMES_MAX
from helios_dod.terms import (
    COPY_FETCH,
    COPY_OFFLOAD,
    COPY_RESTORE,
    COPY_SINK,
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
    OP_INITIALIZE,
    OP_RESTORE,
    OP_SPECULATIVE,
    SOURCE_RESTORE_SOURCE,
    SOURCE_SNAPSHOT_DESTINATION,
    STATUS_NON_FINITE,
)


@dataclass
class VirtualClock:
    """Nanoseconds that pass only when told to."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass(frozen=True)
class CopyCost:
    """Nanoseconds of a page's copy, by queue."""

    memory_ns: int = 2_000
    disk_ns: int = 10_000

    def __call__(self, queue: int) -> int:
        return self.disk_ns if queue else self.memory_ns


@dataclass(frozen=True)
class SavedDevice:
    """What a simulated device holds at one time; see the fields of SimulatedExecutor."""

    now_ns: int
    contents: tuple[np.ndarray, ...]
    copies: list[list[tuple[int, int, bool]]]
    copied: list[int]
    refusals: int


def sound() -> tuple[bool, int]:
    """The default of SimulatedExecutor.fault: no copy fails or is late."""
    return False, 0


class SimulatedExecutor:
    """Executor of virtual time: a program's results appear when the clock reaches its end."""

    name = "simulated"
    reads_weights = False

    def __init__(self, contract: PreparedContract, clock: VirtualClock,
                 cost: Costs | FixedCost, accept: int = 60,
                 acceptance: Acceptance | None = None) -> None:
        """accept: per cent of the drafts that equal what the target draws; a model of acceptance
        counts instead."""
        self.model = NO_MODEL if acceptance is None else acceptance.model
        self.contract, self.clock, self.cost, self.accept = contract, clock, cost, accept
        self.refusals = 0  # speculative programs to come that a rank rejects
        self.copy_cost = CopyCost()
        self.fault = sound  # of the next copy: (it fails, nanoseconds that it is late)
        self.memory = self.disk = self.windows = self.stored = np.zeros((0, 0), np.uint64)
        # Of each queue (end, number, failed), oldest first.
        self._copies: list[deque[tuple[int, int, bool]]] = [deque() for _ in range(COPY_QUEUES)]
        self._copied = [0] * COPY_QUEUES
        self.flight = np.zeros(FLIGHT_WORDS, np.int64)  # see simulated_flight.py
        self.features = np.zeros(len(FEATURES), np.int64)
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def load(self, manifest: object, geometry: Geometry, weights: Mapping[str, np.ndarray],
             staging_first: Mapping[int, int], world: np.ndarray) -> None:
        """Makes the shadow contents; weights are not used."""
        self.world, self.page_tokens = world, geometry.page_tokens
        slots = geometry.slots
        self.table = np.zeros((slots, geometry.pages_per_request), np.int32)
        self.cache = np.zeros((geometry.pages, geometry.page_tokens), np.uint64)
        self.pending, self.endpoint = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        self.seeds = np.zeros(slots, np.uint64)
        self.limits, self.minimums = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        self.stops = np.zeros((slots, EOS_MAX), np.int32)
        self.generated, self.status = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        drafts = max((program.drafts for program in self.contract.programs), default=0)
        self.drafts = np.zeros((geometry.lanes, drafts), np.int32)
        self.lengths = np.zeros(geometry.lanes, np.int32)
        self.survivals = np.zeros(geometry.lanes)  # with the heap: what an allocation works in
        self.heap = np.zeros(geometry.lanes, np.int32)
        # proposal_confidence: by frame, then submitted row
        self.confidence = np.zeros((FRAMES_MAX, slots, drafts), np.float32)
        self.differ = np.zeros(geometry.lanes, np.uint64)
        self.differs = np.zeros((geometry.lanes, 1 + drafts), np.uint64)
        others = self.contract.cache.stateful or self.contract.cache.view_pages > 0
        self.histories = Histories(self.contract, geometry, staging_first) if others else None
        self.at = np.full((len(self.contract.programs), SOURCES), NONE, np.int64)
        self.operations = np.array([program.operation for program in self.contract.programs])
        for row, program in enumerate(self.contract.programs):
            for binding in program.bindings:
                if binding.table == 0:
                    self.at[row, binding.source] = staging_first[binding.buffer]

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Queues a program behind the one before it."""
        self._take_off(frame, program, sequence)

    def _take_off(self, frame: int, program: int, sequence: int) -> int:
        """When the program ends."""
        return int(take_off(
            self.world, self.flight, self.clock(), self.cost.host_ns, frame, program, sequence,
            self.operations[program], self.cost.arrays, self.features))

    def back(self, memory_pages: int, disk: mmap.mmap | None, window_places: int = 0,
             window_stored: int = 0) -> None:
        """Shadow contents of the tiers."""
        self.memory = np.zeros((memory_pages, self.page_words), np.uint64)
        self.windows = np.zeros((window_places, self.page_tokens + 1), np.uint64)
        if disk is not None:
            words, stored = np.frombuffer(disk, np.uint64), window_stored * (self.page_tokens + 1)
            self.disk = words[: len(words) - stored].reshape(-1, self.page_words)
            self.stored = words[len(words) - stored :].reshape(
                window_stored, self.page_tokens + 1)

    @property
    def page_words(self) -> int:
        """64-bit words of a page's records, over all histories of page group 0."""
        if self.histories is None:
            return self.page_tokens
        return len(self.histories.load_page(self.cache, 0))

    def copy(self, queue: int, first: int, end: int) -> None:
        """Queues copies behind those before them. What is copied shows at its end; before, the
        place that it goes to holds nothing of use."""
        queued = self._copies[queue]
        for number in range(first, end):
            self._fill(*self._ends_of(queue, number)[1], np.uint64(mix(np.uint64(number))))
            failed, late_ns = self.fault()
            began = max(queued[-1][0] if queued else 0, self.clock())
            queued.append((began + self.copy_cost(queue) + late_ns, number, failed))

    def _ends_of(self, queue: int, number: int) -> tuple[tuple[np.ndarray, int], ...]:
        """(contents, place) that a command copies from, and to."""
        copies = self.world[0]["copies"]
        k = number % copies["kind"].shape[1]
        windowed = self.cache if self.histories is None else self.histories.windowed
        source, target = {
            COPY_WINDOW_OFFLOAD: (windowed, self.windows),
            COPY_WINDOW_RESTORE: (self.windows, windowed),
            COPY_WINDOW_SINK: (self.windows, self.stored),
            COPY_WINDOW_FETCH: (self.stored, windowed),
            COPY_OFFLOAD: (self.cache, self.memory), COPY_RESTORE: (self.memory, self.cache),
            COPY_SINK: (self.memory, self.disk), COPY_FETCH: (self.disk, self.cache),
        }[int(copies["kind"][queue, k])]
        return ((source, int(copies["source"][queue, k])),
                (target, int(copies["target"][queue, k])))

    def copied(self, queue: int) -> int:
        """Ends every copy whose end has come."""
        queued, copies = self._copies[queue], self.world[0]["copies"]
        while queued and queued[0][0] <= self.clock():
            _, number, failed = queued.popleft()
            if failed:
                copies["failed"][queue, number % copies["kind"].shape[1]] = 1
            else:
                self._move(*self._ends_of(queue, number))
            self._copied[queue] = number + 1
        return self._copied[queue]

    def _move(self, source: tuple[np.ndarray, int], target: tuple[np.ndarray, int]) -> None:
        contents, place = source
        if self.histories is not None and contents is self.cache:
            self._fill(*target, self.histories.load_page(contents, place))
        elif self.histories is not None and contents is self.histories.windowed:
            self._fill(*target, self.histories.load_window(place))
        else:
            self._fill(*target, contents[place])

    def _fill(self, contents: np.ndarray, place: int, words: np.ndarray | np.uint64) -> None:
        if self.histories is not None and contents is self.cache:
            self.histories.store_page(contents, place, words)
        elif self.histories is not None and contents is self.histories.windowed:
            self.histories.store_window(place, words)
        else:
            contents[place] = words

    def in_flight(self) -> list[list[int]]:
        """[end, sequence, frame, program] of each program, oldest first."""
        entries = self.flight[FIRST:FIRST + ENTRY * self.flight[COUNT]]
        return entries.reshape(-1, ENTRY).tolist()

    def next_end(self) -> int | None:
        """When the next program or copy in flight ends, or None."""
        ends = [queued[0][0] for queued in self._copies if queued]
        if self.flight[COUNT]:
            ends.append(int(self.flight[FIRST]))
        return min(ends, default=None)

    def poll(self) -> int:
        """Runs every program whose end has come."""
        flight = self.flight
        while flight[COUNT] and flight[FIRST] <= self.clock():
            _, _, frame, program = flight[FIRST:FIRST + ENTRY].tolist()
            self._run(frame, program)
            land(flight)
        return int(flight[FINISHED])

    def _run(self, frame: int, program: int) -> None:
        at, operation = self.at[program], self.contract.programs[program].operation
        others = self.histories
        if operation == OP_INITIALIZE:
            initialize(self.world[0]["staging"]["words"][frame], at, self.seeds, self.limits,
                       self.minimums, self.stops, self.generated, self.status)
            if others is not None:
                others.clear(self.world, frame, at)
            return
        if operation == OP_SPECULATIVE:
            self._run_round(frame, program)
            return
        if others is not None and operation != OP_RESTORE:
            others.follow(self.world, frame, at, program, self.table, self.cache, self.pending,
                          self.differ)
        elif others is not None:
            others.restore(self.world, frame, at, program, self.table, self.cache)
        run_program(self.world, frame, at, self.page_tokens, self.contract.vocabulary, *self.plain)
        if others is not None:
            for source in (SOURCE_RESTORE_SOURCE, SOURCE_SNAPSHOT_DESTINATION):
                others.copy(self.world, frame, at, source, self.table, self.cache)

    def _run_round(self, frame: int, program: int) -> None:
        chosen = self.contract.programs[program]
        lag = self.contract.cache.cursor_lag_tokens if chosen.cursor else NONE
        refused = self.refusals > 0
        self.refusals -= refused
        at, others = self.at[program], self.histories
        propose_round(self.world, frame, at, chosen.drafts, chosen.packed, self.page_tokens,
                      self.contract.vocabulary, self.accept, self.model, EMPTY_HISTORY, self.table,
                      self.cache, self.pending, self.endpoint, self.seeds, self.drafts,
                      self.confidence[frame], self.survivals, self.heap, self.lengths)
        if others is not None:
            others.follow_round(self.world, frame, at, program, self.table, self.cache,
                                self.pending, self.endpoint, self.drafts, self.lengths,
                                self.differs)
        verify_round(self.world, frame, at, chosen.width, self.page_tokens,
                     self.contract.vocabulary, lag, refused, EMPTY_HISTORY, self.table, self.cache,
                     self.pending, self.endpoint, self.seeds, self.limits, self.minimums,
                     self.stops, self.generated, self.status, self.drafts, self.lengths,
                     self.differs)
        if others is not None:
            others.commit(self.world, frame, at)

    def poison(self, slot: int) -> None:
        """Makes a slot's logits non-finite, as a fault would: its next programs report that."""
        self.status[slot] = STATUS_NON_FINITE

    @property
    def plain(self) -> tuple[np.ndarray, ...]:
        """What plain programs work on."""
        return (self.table, self.cache, self.pending, self.endpoint, self.seeds, self.limits,
                self.minimums, self.stops, self.generated, self.status, self.differ)

    def contents(self) -> tuple[np.ndarray, ...]:
        """All that programs and copies write."""
        others = () if self.histories is None else self.histories.contents()
        return (*self.plain, self.drafts, self.differs, self.lengths, self.confidence, self.memory,
                self.disk, self.windows, self.stored, self.flight, *others)

    def save(self) -> SavedDevice:
        """All that is on the device and in flight, and the time."""
        return SavedDevice(
            self.clock.now_ns, tuple(array.copy() for array in self.contents()),
            [list(queued) for queued in self._copies], list(self._copied), self.refusals)

    def restore(self, saved: SavedDevice) -> None:
        """Goes back to what `save` gave, of this device or of one loaded alike."""
        for array, kept in zip(self.contents(), saved.contents, strict=True):
            array[...] = kept
        self._copies = [deque(queued) for queued in saved.copies]
        self._copied, self.refusals = list(saved.copied), saved.refusals
        self.clock.now_ns = saved.now_ns

    def descriptor(self) -> int:
        """Never readable: virtual time does not pass by itself."""
        return self._descriptor

    def drain(self) -> None:
        """Advances the clock to the last end."""
        while (end := self.next_end()) is not None:
            self._pass(end)
            self.poll()
            for queue in range(COPY_QUEUES):
                self.copied(queue)

    def _pass(self, end: int) -> None:
        """Lets time pass up to an end."""
        self.clock.now_ns = max(self.clock.now_ns, end)

    def close(self) -> None:
        """Drains."""
        self.drain()
        os.close(self._descriptor)


class Grammar(Protocol):
    """What the oracle asks of a constrained request's grammar, which starts at the first token."""

    @property
    def failed(self) -> bool:
        """Whether the request fails instead of going on."""

    def allowed(self) -> list[bool]:
        """Whether each token may follow."""

    def take(self, token: int) -> bool:
        """Goes on behind a token."""


def expected_tokens(prompt: list[int], seed: int, vocabulary: int, output_limit: int,
                    output_minimum: int, eos: tuple[int, ...],
                    grammar: Grammar | None = None) -> list[int]:
    """What the simulated device answers up to EOS or the limit, from the token list alone: the
    naive oracle."""
    history = np.uint64(EMPTY_HISTORY)
    for token in prompt:
        history = np.uint64(record(history, np.int32(token)))
    answer: list[int] = []
    while len(answer) < output_limit:
        token = int(draw(history, np.uint64(seed), vocabulary))
        if grammar is not None:
            if grammar.failed:
                break
            allowed = grammar.allowed()
            while not allowed[token]:
                token = (token + 1) % vocabulary
            grammar.take(token)
        answer.append(token)
        if token in eos and len(answer) > output_minimum:
            break
        history = np.uint64(record(history, np.int32(token)))
    return answer


def expected_scores(prompt: list[int]) -> list[float]:
    """The scores of a prompt's tokens from the second on, from the token list alone."""
    history, scores = np.uint64(EMPTY_HISTORY), []
    for i, token in enumerate(prompt[:-1]):
        history = np.uint64(record(history, np.int32(token)))
        scores.append(float(score_of(history, np.int32(prompt[i + 1]))))
    return scores

"""The grammar worker of a served engine: masks by llguidance, on its own threads.

One thread takes jobs and makes one call a batch for all rows: the library's threads, which hold no
interpreter lock, take the tokens and write the masks into the rows. Another compiles, so that a new
grammar holds up no mask. Compiled grammars are kept by content; a request gets a copy. Drafts are
walked on a copy of that, so that what they cost, or refuse, does not touch the request."""

import os
import queue
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np

from helios_dod.grammars.base import Job
from helios_dod.grammars.library import (
    GrammarError,
    Library,
    Source,
    decode,
    is_too_wide,
    on_large_stack,
)
from helios_dod.limits import MASK_BITS
from helios_dod.tables.grammars import mask_row, write_answer
from helios_dod.terms import (
    ANSWER_NO_COMPILE,
    ANSWER_NO_MASK,
    ANSWER_NO_TOKEN,
    ANSWER_NO_WORKER,
    ANSWER_READY,
    ANSWER_TOO_WIDE,
    JOB_RELEASE,
    JOB_START,
)

COMPILED_MAX = 64  # grammars kept
THREADS_MAX = 8
SLOW_NS = 500_000  # a row whose token took longer is not waited for with the interpreter's lock


@dataclass(frozen=True)
class Compiled:
    """The compiling thread's news. matcher: None if the grammar cannot be compiled."""

    job: Job
    matcher: Any


@dataclass
class Held:
    """One row's state. matcher: None until it is compiled. slow: a token of it took SLOW_NS."""

    generation: int
    matcher: Any = None
    slow: bool = False


class LibraryWorker:
    """A GrammarWorker. delimiters: of the core's own output syntax, made ready by `prepare`."""

    def __init__(self, world: np.ndarray, source: Source, delimiters: tuple[str, ...] = (),
                 threads: int = 0) -> None:
        self.world, self.library, self.delimiters = world, Library(source), delimiters
        words = max(int(world[0]["grammars"]["mask_words"]), 1)
        area = world[0]["grammars"]["masks"]
        self.masks = area[: len(area) // words * words].reshape(-1, words)
        self.thread_count = threads or min(len(os.sched_getaffinity(0)), THREADS_MAX)
        self.idle: Any = None  # a matcher that takes no token; made with the tokenizer
        self.rows: dict[int, Held] = {}
        self.compiled: OrderedDict[bytes, Any] = OrderedDict()
        self._jobs: queue.SimpleQueue[Sequence[Job] | Compiled | None] = queue.SimpleQueue()
        self._sources: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads: list[threading.Thread] = []

    def prepare(self) -> None:
        """Starts the threads, and makes what the first request would wait for."""
        if not self._threads:
            self._threads = [on_large_stack(self._compile_all, "grammars-compile"),
                             threading.Thread(target=self._serve, name="grammars", daemon=True)]
            self._threads[1].start()

    def hand(self, jobs: Sequence[Job]) -> None:
        """Takes jobs."""
        self.prepare()
        self._jobs.put(jobs)

    def descriptor(self) -> int:
        """An eventfd, readable when something was answered since it was last read."""
        return self._done

    def close(self) -> None:
        """Ends the threads."""
        if self._threads:
            self._jobs.put(None)
            self._sources.put(None)
            for thread in self._threads:
                thread.join()
        os.close(self._done)

    # the compiling thread

    def _compile_all(self) -> None:
        try:
            self.idle = self.library.idle(self.delimiters)
        except Exception:
            traceback.print_exc()  # each grammar fails the same way, and its request with it
        while (job := self._sources.get()) is not None:
            matcher = None
            try:
                matcher = self.library.compile(decode(job.text))
            except GrammarError as error:
                print(f"grammar: {error}", file=sys.stderr)
            except Exception:
                traceback.print_exc()
            self._jobs.put(Compiled(job, matcher))

    # the thread of the masks

    def _serve(self) -> None:
        executor = llguidance.LLExecutor(self.thread_count)
        while True:
            news = [self._jobs.get()]
            while not self._jobs.empty():
                news.append(self._jobs.get())
            due: dict[int, Job] = {}  # rows that wait for a mask
            try:
                for item in news:
                    if item is not None:
                        self._take(item, due)
                self._advance(executor, due)
            except Exception:
                traceback.print_exc()
                self._answer({row: ANSWER_NO_WORKER for row in due if row in self.rows})
            if None in news:
                return

    def _take(self, item: Sequence[Job] | Compiled, due: dict[int, Job]) -> None:
        """Notes jobs, and compiled grammars of rows that still wait for them."""
        if isinstance(item, Compiled):
            job = item.job
            if item.matcher is not None:
                self.compiled[job.text] = item.matcher
                if len(self.compiled) > COMPILED_MAX:
                    self.compiled.popitem(last=False)
            held = self.rows.get(job.row)
            if held is None or held.generation != job.generation:
                return
            if item.matcher is None:
                self._answer({job.row: ANSWER_NO_COMPILE})
                return
            held.matcher = item.matcher.deep_copy()
            due[job.row] = job
            return
        for job in item:
            due.pop(job.row, None)
            if job.kind == JOB_RELEASE:
                self.rows.pop(job.row, None)
            elif job.kind != JOB_START:
                due[job.row] = job
            else:
                self.rows[job.row] = Held(job.generation)
                if job.text in self.compiled:
                    self.compiled.move_to_end(job.text)
                    self.rows[job.row].matcher = self.compiled[job.text].deep_copy()
                    due[job.row] = job
                else:
                    self._sources.put(job)

    def _advance(self, executor: Any, due: dict[int, Job]) -> None:
        """Takes the tokens of every due row and writes its masks: one call each for all."""
        if not due:
            return
        matchers = {row: self.rows[row].matcher for row in due}
        answers: dict[int, int] = {}
        for position in range(max(len(job.tokens) for job in due.values())):
            taking = {row: (matchers[row], job.tokens[position]) for row, job in due.items()
                      if row not in answers and position < len(job.tokens)}
            taken = self._consume(executor, taking)
            answers |= {row: ANSWER_TOO_WIDE if is_too_wide(matchers[row]) else ANSWER_NO_TOKEN
                        for row in taking.keys() - taken}
        going = [row for row in due if row not in answers]
        if going:
            executor.unsafe_compute_mask_ptr(
                [(matchers[row], self._first(row)) for row in going], *self._area())
        answers |= {row: ANSWER_NO_MASK if matchers[row].is_error() else ANSWER_READY
                    for row in going}
        drafted = {row: matchers[row] for row in going
                   if due[row].drafts and answers[row] == ANSWER_READY}
        self._answer(answers, self._draft(executor, drafted, due))

    def _consume(self, executor: Any, taking: dict[int, tuple[Any, int]]) -> set[int]:
        """Takes one token of each row; the rows whose grammars had it.

        The library holds the interpreter's lock over a call for a single matcher, so that a slow
        row goes with a matcher that takes nothing. taking: row -> matcher and token."""
        if not taking:  # the library takes no empty list
            return set()
        pairs = list(taking.values())
        row = next(iter(taking)) if len(pairs) == 1 else None
        if row is not None and self.rows[row].slow and self.idle is not None:
            pairs.append((self.idle, 0))
        began = time.perf_counter_ns()
        good = executor.consume_token_par(pairs)[:len(taking)]
        if row is not None and time.perf_counter_ns() - began > SLOW_NS:
            self.rows[row].slow = True
        return {row for row, took in zip(taking, good, strict=True) if took}

    def _first(self, row: int) -> int:
        """The number of a row's first mask."""
        return int(mask_row(self.world, row))

    def _area(self) -> tuple[int, int, int]:
        """Where masks lie: address, bytes of one, their number."""
        return self.masks.ctypes.data, self.masks.strides[0], len(self.masks)

    def _allows(self, row: int, position: int, token: int) -> bool:
        """Is a token in one of a row's masks? None stands behind an end token."""
        mask = self.masks[self._first(row) + position]
        return token not in self.library.source.eos and bool(
            int(mask[token // MASK_BITS]) >> token % MASK_BITS & 1)

    def _draft(self, executor: Any, asked: dict[int, Any], due: dict[int, Job]) -> dict[int, int]:
        """Writes the masks behind drafts, position after position; how many drafts each row allows.
        asked: the state that each row's first mask is of."""
        allowed = dict.fromkeys(asked, 0)
        copies = {row: matcher.deep_copy() for row, matcher in asked.items()}
        while copies:
            taken = self._consume(executor, {
                row: (copy, due[row].drafts[allowed[row]]) for row, copy in copies.items()
                if allowed[row] < len(due[row].drafts)
                and self._allows(row, allowed[row], due[row].drafts[allowed[row]])})
            copies = {row: copies[row] for row in copies if row in taken}
            if copies:
                executor.unsafe_compute_mask_ptr(
                    [(copy, self._first(row) + allowed[row] + 1) for row, copy in copies.items()],
                    *self._area())
            copies = {row: copy for row, copy in copies.items() if not copy.is_error()}
            for row in copies:
                allowed[row] += 1
        return allowed

    def _answer(self, answers: dict[int, int], drafts: dict[int, int] | None = None) -> None:
        """Writes answers and wakes the engine."""
        for row, status in answers.items():
            write_answer(self.world, row, self.rows[row].generation, status,
                         (drafts or {}).get(row, 0))
            if status != ANSWER_READY:
                del self.rows[row]
        if answers:
            os.eventfd_write(self._done, 1)

"""The one interface between the engine and what computes grammar masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from helios_dod.limits import TOKEN_BLOCK
from helios_dod.tables.grammars import job_buffers, take_jobs
from helios_dod.terms import JOB_START


@dataclass(frozen=True)
class Job:
    """What is asked of a worker for one row of `grammars`.

    tokens: the generated tokens that are new to it (all of them with JOB_START). drafts: tokens
    that may come behind those, as far as the grammar allows."""

    row: int
    generation: int
    kind: int  # a JOB_ term
    tokens: tuple[int, ...] = ()
    text: bytes = b""  # JOB_START: the request's grammar
    drafts: tuple[int, ...] = ()


class GrammarWorker(Protocol):
    """Computes masks off the tick.

    A JOB_START and a JOB_ADVANCE are answered, each once, by `write_answer` after the row's words
    of `grammars.masks` are written: the mask of the next token, and one behind each draft that is
    allowed and has only allowed ones before it. Jobs of one row are done in order."""

    def prepare(self) -> None:
        """Begins to make what the first job would wait for."""

    def hand(self, jobs: Sequence[Job]) -> None:
        """Takes jobs; asynchronous."""

    def descriptor(self) -> int:
        """An eventfd that becomes readable when something is answered."""

    def close(self) -> None:
        """Ends the worker's threads."""


class Desk:
    """The engine's side: takes the queue of `grammars` after a tick and hands it over."""

    def __init__(self, world: np.ndarray, worker: GrammarWorker) -> None:
        self.world, self.worker = world, worker
        self._jobs, self._tokens = job_buffers(world)

    def hand_over(self) -> None:
        """Hands every queued job to the worker."""
        count = take_jobs(self.world, self._jobs, self._tokens)
        if count:
            self.worker.hand([self._job(*job) for job in self._jobs[:count].tolist()])

    def _job(self, row: int, generation: int, kind: int, first: int, size: int,
             drafts: int) -> Job:
        if kind != JOB_START:
            tokens = tuple(self._tokens[first : first + size + drafts].tolist())
            return Job(row, generation, kind, tokens[:size], drafts=tokens[size:])
        w = self.world[0]
        request = int(w["slots"]["request"][w["grammars"]["slot"][row]])
        prompt = int(w["requests"]["prompt_count"][request])
        return Job(row, generation, kind, tuple(self._words(request, prompt, size).tolist()),
                   self._text(request))

    def _words(self, request: int, first: int, size: int) -> np.ndarray:
        """Words of a request's blocks from position `first` on."""
        blocks = self.world[0]["requests"]["blocks"][request]
        last = -(-(first + size) // TOKEN_BLOCK)
        held = blocks[first // TOKEN_BLOCK : last]
        at = first % TOKEN_BLOCK
        ids: np.ndarray = self.world[0]["tokens"]["ids"][held].reshape(-1)
        return ids[at : at + size]

    def _text(self, request: int) -> bytes:
        requests = self.world[0]["requests"]
        size = int(requests["grammar_bytes"][request])
        first = int(requests["grammar_block"][request]) * TOKEN_BLOCK
        return self._words(request, first, -(-size // 4)).tobytes()[:size]

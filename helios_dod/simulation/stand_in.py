"""A deterministic grammar worker for the simulator, and its oracle's view of the same grammars.

A grammar is a seed: after any tokens, about a quarter of the vocabulary may follow, by a hash of
what came before; or, for half the seeds, less, by how many they are modulo a period, so that texts
repeat themselves. It may fail after a number of tokens."""

import random
import struct
from collections.abc import Sequence
from copy import copy

import numpy as np

from helios_dod.executors.simulated_device import mix
from helios_dod.grammars.base import Job
from helios_dod.limits import MASK_BITS
from helios_dod.simulation.invariants import require
from helios_dod.tables.grammars import mask_row, write_answer
from helios_dod.terms import (
    ANSWER_NO_COMPILE,
    ANSWER_NO_MASK,
    ANSWER_NO_TOKEN,
    ANSWER_READY,
    JOB_RELEASE,
    JOB_START,
)

TEXT = struct.Struct("<Qi")
NEVER = -1
NO_GRAMMAR = b"no grammar"


def grammar_text(seed: int, fails_after: int = NEVER) -> bytes:
    """The text of a grammar. fails_after: tokens after which no mask can be made."""
    return TEXT.pack(seed, fails_after)


class Automaton:
    """One grammar on its way."""

    def __init__(self, text: bytes, vocabulary: int) -> None:
        self.seed, self.fails_after = TEXT.unpack(text)
        self.state, self.vocabulary, self.count = self.seed, vocabulary, 0
        self.period = self.seed // 2 % 5 + 1 if self.seed % 2 else 0

    def allowed(self) -> list[bool]:
        """Whether each token may follow; at least one may."""
        share = 40 if self.period else 4
        found = [int(mix(np.uint64(self.state ^ token))) % share == 0
                 for token in range(self.vocabulary)]
        found[self.state % self.vocabulary] = True
        return found

    def take(self, token: int) -> bool:
        """Goes on behind a token; False if it may not follow."""
        if not self.allowed()[token]:
            return False
        self.count += 1
        self.state = int(mix(np.uint64(
            self.seed ^ (self.count % self.period << 32) if self.period
            else self.state ^ (token << 32))))
        return True

    @property
    def failed(self) -> bool:
        """Whether no mask can be made any more."""
        return 0 <= self.fails_after <= self.count


def automaton_of(text: bytes, vocabulary: int) -> Automaton | None:
    """The grammar of a request, or None where there is none that can be compiled."""
    return Automaton(text, vocabulary) if text and text != NO_GRAMMAR else None


def random_grammar(rng: random.Random, share: float) -> bytes:
    """No grammar, or a random one; some fail, and some cannot be compiled."""
    if rng.random() >= share:
        return b""
    kind = rng.random()
    if kind < 0.05:
        return NO_GRAMMAR
    return grammar_text(rng.getrandbits(64), rng.randint(0, 10) if kind < 0.15 else NEVER)


class StandIn:
    """The worker. Jobs wait until the simulator lets them be done."""

    def __init__(self, world: np.ndarray, vocabulary: int) -> None:
        self.world, self.vocabulary = world, vocabulary
        self.waiting: list[Job] = []
        self.held: dict[int, Automaton] = {}  # by row of `grammars`

    def prepare(self) -> None:
        """Nothing waits for anything."""

    def hand(self, jobs: Sequence[Job]) -> None:
        """Takes jobs."""
        self.waiting += jobs

    def descriptor(self) -> int:
        """There is none: the simulator ticks anyway."""
        return -1

    def close(self) -> None:
        """Nothing runs by itself."""

    def work(self, rng: random.Random) -> None:
        """Does a random number of jobs, the oldest first."""
        for _ in range(rng.randint(0, len(self.waiting))):
            self.do(self.waiting.pop(0))

    def do(self, job: Job) -> None:
        """One job."""
        if job.kind == JOB_RELEASE:
            self.held.pop(job.row, None)
            return
        status, drafts = ANSWER_NO_COMPILE, 0
        if job.kind != JOB_START or len(job.text) == TEXT.size:
            status, drafts = self.advance(job)
        write_answer(self.world, job.row, job.generation, status, drafts)

    def advance(self, job: Job) -> tuple[int, int]:
        """Starts or goes on, and writes the masks. The answer's status and drafts."""
        if job.kind == JOB_START:
            self.held[job.row] = Automaton(job.text, self.vocabulary)
        automaton = self.held[job.row]
        if not all(automaton.take(token) for token in job.tokens):
            return ANSWER_NO_TOKEN, 0
        if automaton.failed:
            return ANSWER_NO_MASK, 0
        self.write(job.row, 0, automaton.allowed())
        ahead = copy(automaton)
        for i, token in enumerate(job.drafts):
            if not ahead.take(token) or ahead.failed:
                return ANSWER_READY, i
            self.write(job.row, i + 1, ahead.allowed())
        return ANSWER_READY, len(job.drafts)

    def write(self, row: int, position: int, allowed: list[bool]) -> None:
        """One mask of a row."""
        words = -(-self.vocabulary // MASK_BITS)
        bits = np.zeros(words * MASK_BITS, bool)
        bits[: self.vocabulary] = allowed
        first = (mask_row(self.world, row) + position) * words
        self.world[0]["grammars"]["masks"][first : first + words] = np.packbits(
            bits, bitorder="little").view(np.uint32)

    def check_quiet(self) -> None:
        """Without work, nothing is held."""
        for job in self.waiting:
            self.do(job)
        self.waiting.clear()
        require(not self.held, f"stand-in: state of rows {sorted(self.held)} is left behind")

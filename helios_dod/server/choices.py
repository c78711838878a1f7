"""Choices that the engine works on: what receives their events, and what ended them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from helios_dod.edges import Submission
from helios_dod.frontend.output.terms import Event
from helios_dod.frontend.reading import Reading
from helios_dod.grammars.library import ITEMS_MAX, ROW_ITEMS_MAX, STEP_FUEL_MAX
from helios_dod.server.chunks import Score
from helios_dod.server.errors import ApiError, DeadlinePassed, ExecutionFailed, Unavailable
from helios_dod.terms import (
    ANSWER_NO_COMPILE,
    ANSWER_NO_MASK,
    ANSWER_NO_TOKEN,
    ANSWER_TOO_WIDE,
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FINISH_DEVICE_ERROR,
    FINISH_EOS,
    FINISH_GRAMMAR,
    FINISH_LIMIT,
    FINISH_NON_FINITE,
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    REJECT_GRAMMAR,
    REJECT_PAGES,
)

FINISH_REASONS = {FINISH_EOS: "stop", FINISH_STOP_TOKEN: "stop", FINISH_STOP_SEQUENCE: "stop",
                  FINISH_STOP_STRING: "stop", FINISH_LIMIT: "length"}
FAILURES = {
    FINISH_CANCELLED: "The request was cancelled by the server.",
    FINISH_NON_FINITE: "The model produced logits that are not finite for this request.",
    FINISH_DEVICE_ERROR: "The device failed while executing this request.",
}
GRAMMAR_FAILURES = {
    ANSWER_NO_COMPILE: "it does not compile",
    ANSWER_NO_MASK: f"a mask of it would cost more than {STEP_FUEL_MAX} steps of its lexer or "
                    f"{ITEMS_MAX} items of its parser",
    ANSWER_TOO_WIDE: f"its parser would hold more than {ROW_ITEMS_MAX} items behind one token; "
                     "write it with fewer ways to read the same text",
    ANSWER_NO_TOKEN: "the model wrote a token that is not in it",
}
Stopped = str | int | list[int] | None  # the stop that ended an output


def stopped_by(submission: Submission | None, reason: int, which: int) -> Stopped:
    """The stop string, token or sequence that ended a request; None: none did."""
    if submission is None:
        return None
    if reason == FINISH_STOP_STRING:
        return submission.stop_strings[which].decode()
    if reason == FINISH_STOP_SEQUENCE:
        return list(submission.stop_sequences[which])
    return submission.stop_ids[which] if reason == FINISH_STOP_TOKEN else None


def failure_of(reason: int, which: int) -> ApiError:
    """The error of a choice that ended without an answer. which: of several causes."""
    if reason == FINISH_DEADLINE:
        return DeadlinePassed("The request did not finish before its deadline.", "deadline_ms",
                              "deadline_passed")
    if reason == FINISH_GRAMMAR:
        why = GRAMMAR_FAILURES.get(which, "the grammar worker failed")
        return ExecutionFailed(f"The answer could not be held to its grammar: {why}.",
                               code="grammar_failed")
    return ExecutionFailed(FAILURES.get(reason, f"The request ended with reason {reason}."),
                           code="execution_failed")


def rejection_of(reason: int, asked: int, possible: int) -> ApiError:
    """The error of a choice that the engine does not take."""
    if reason == REJECT_GRAMMAR:
        return Unavailable("The engine cannot hold answers to a grammar.", code="engine_capacity")
    what = "cache pages" if reason == REJECT_PAGES else "tokens"
    return Unavailable(f"The engine cannot take this request: it needs {asked} {what}, and "
                       f"{possible} are possible.", code="engine_capacity")


class Answer(Protocol):
    """What receives a request's events. No method may block or await."""

    def token(self, choice: "Choice", text: bytes, entry: bytes) -> None:
        """Escaped text that one more token decided, and its log-probability entries if asked."""

    def said(self, choice: "Choice", events: Sequence[Event], entry: bytes) -> None:
        """What the choice's parser made of one more token, and entries if asked."""

    def observed(self, choice: "Choice", token: int, completed_ns: int) -> None:
        """A generated token, shown or not, and when it was accepted (0: not asked for)."""

    def prompt_scored(self, choice: "Choice", scores: Sequence[Score]) -> None:
        """The scores of the choice's prompt, from its second token on."""

    def finished(self, choice: "Choice", text: bytes, entry: bytes, reason: str) -> None:
        """The choice is complete; `generated` and `cached` are set."""

    def failed(self, error: ApiError) -> None:
        """The whole request failed. May be called more than once."""


@dataclass(slots=True)
class Choice:
    """One submitted choice of a request; lives while its permit does."""

    tag: int
    index: int
    answer: Answer
    live: bool = True  # the engine knows it
    generated: int = 0
    cached: int = 0  # prompt tokens that were not computed
    entries: deque[bytes] = field(default_factory=deque)  # of tokens that may not be shown yet
    admitted_ns: int = 0  # when the engine gave it a slot; 0: not, or not known yet
    entry_count: int = 0  # entries that were delivered
    submission: Submission | None = None
    stopped: Stopped = None
    reading: Reading | None = None  # None: all output is text
    observed: bool = False
    prompt_count: int = 0
    scores: list[Score] = field(default_factory=list)

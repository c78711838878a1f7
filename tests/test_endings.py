"""Deadlines and cancels in every state that a request can be in: it ends in the tick that sees
them, once, with that reason; its slot is free in the tick that sees its last fence; and at the end
nothing is held."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from helios_dod.edges import Submission
from helios_dod.limits import NO_ROW
from helios_dod.simulation.kinds import Kinds
from helios_dod.simulation.programs import Round
from helios_dod.simulation.simulator import Drafting, Live, Simulator, Workload
from helios_dod.simulation.stand_in import grammar_text
from helios_dod.terms import (
    CLOSING_PAUSED,
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FINISH_EOS,
    FREE,
    GRAMMAR_PENDING,
    RUNNING,
    SLOT_ADMITTED,
    SLOT_COPIES,
    SLOT_DECODE,
    SLOT_DRAINING,
    SLOT_PREFILL,
    SLOT_RESTORING,
    WAITING,
)

QUIET = Workload(arrival=0.0, cancel=0.0, deadline=0.0, drain=1.0)
HYBRID = Kinds(recurrent=True, continuation=True, snapshots=8)
WATCHED = 100  # its tag


def text(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32) % 50


def others(count: int, tokens: int = 20, output: int = 60) -> tuple[Submission, ...]:
    return tuple(Submission(tag, text(tag, tokens), output, seed=tag)
                 for tag in range(1, count + 1))


@dataclass(frozen=True)
class State:
    """there: of the world, the watched request's row and its slot. before: run to their ends
    first. beside: sent before it. masks: the grammar worker works."""

    there: Callable[[Any, int, int], bool]
    before: tuple[Submission, ...] = ()
    beside: tuple[Submission, ...] = others(1)
    watched: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    masks: bool = True
    reason: int = 0  # had it ended already: with that


def in_slot(state: int, flying: int = 0, **columns: int) -> Callable[[Any, int, int], bool]:
    """In a slot of that state, with so many frames in flight and those values."""
    def there(w: Any, row: int, slot: int) -> bool:
        return slot != NO_ROW and bool(
            w["slots"]["state"][slot] == state and w["slots"]["in_flight"][slot] == flying
            and all(w["slots"][name][slot] == value for name, value in columns.items()))
    return there


def waits(admitted: bool) -> Callable[[Any, int, int], bool]:
    return lambda w, row, _: row != NO_ROW and bool(
        w["requests"]["state"][row] == WAITING
        and (w["requests"]["admitted_ns"][row] > 0) == admitted)


def masked(generated: int) -> Callable[[Any, int, int], bool]:
    """Waits for the mask behind so many tokens."""
    def there(w: Any, row: int, slot: int) -> bool:
        return slot != NO_ROW and bool(
            w["grammars"]["state"][w["slots"]["grammar"][slot]] == GRAMMAR_PENDING
            and w["slots"]["in_flight"][slot] == 0 and generated
            == w["requests"]["token_count"][row] - w["requests"]["prompt_count"][row])
    return there


CHUNKED = {"prompt": text(7, 60)}
OFFLOADED = replace(QUIET, memory_pages=12, copy_ns=30_000)
STATES = {
    "in the ring": State(lambda w, row, slot: row == NO_ROW, beside=others(6, output=200)),
    "in the ring behind another": State(lambda w, row, slot: row == NO_ROW,
                                        beside=others(7, output=200)),
    "waiting": State(waits(False), beside=others(3)),
    "preempted": State(waits(True), beside=others(1, output=100), shape={"pages": 10},
                       watched={"output_limit": 100}),
    "admitted": State(in_slot(SLOT_ADMITTED), shape={"frames": 1}),
    "first mask": State(masked(0), watched={"grammar": grammar_text(6)}, masks=False),
    "mask behind tokens": State(masked(3), watched={"grammar": grammar_text(6)}),
    "restoring": State(
        in_slot(SLOT_RESTORING), before=(Submission(1, text(7, 60), 4), *others(3, 60, 60)[1:]),
        beside=(), watched=CHUNKED, shape={"pages": 8, "workload": OFFLOADED}),
    "copying a snapshot": State(
        in_slot(SLOT_COPIES, 1), before=(Submission(1, text(7, 40), 20),), beside=(),
        watched=CHUNKED, shape={"kinds": HYBRID}),
    "prefill of the first chunk": State(in_slot(SLOT_PREFILL, 1), watched=CHUNKED),
    "prefill of the third": State(in_slot(SLOT_PREFILL, 2, scheduled=48), beside=(),
                                  watched=CHUNKED),
    "decode of one frame": State(in_slot(SLOT_DECODE, 1), shape={"frames": 1}),
    "decode of two": State(in_slot(SLOT_DECODE, 2)),
    "a step of one with stops": State(in_slot(SLOT_DECODE, 1, feedback=1),
                                      watched={"stop_strings": (b"never",)}),
    "drafts in flight": State(
        in_slot(SLOT_DECODE, 1, open=1),
        shape={"drafting": Drafting(accept=90, rounds=(Round(0, 1, 3), Round(3, 4, 12)))}),
    "paused for a snapshot": State(
        in_slot(SLOT_DECODE, 1, closing=CLOSING_PAUSED), watched={"output_limit": 200},
        shape={"kinds": HYBRID, "pages": 40}),
    "draining": State(in_slot(SLOT_DRAINING, 1), watched={"eos": tuple(range(8))},
                      reason=FINISH_EOS),
}


class Watching(Simulator):
    """A simulator that notes how requests end."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__(1, **{"workload": QUIET, **shape})
        self.ends: dict[int, int] = {}
        self.submitted = 0

    def judge(self, live: Live, reason: int, *rest: Any) -> None:
        super().judge(live, reason, *rest)
        assert live.submission.tag not in self.ends
        self.ends[live.submission.tag] = reason

    def put(self, submission: Submission) -> None:
        self.live[submission.tag] = Live(submission, [])
        while not self.edge.submit(submission):
            self.settle()

    def at(self) -> tuple[int, int]:
        """Row and slot of the watched request."""
        w = self.world[0]
        rows = np.nonzero((w["requests"]["state"] != FREE)
                          & (w["requests"]["tag"] == WATCHED))[0]
        row = int(rows[0]) if len(rows) else NO_ROW
        slots = np.nonzero((w["slots"]["state"] != FREE) & (w["slots"]["request"] == row))[0]
        return row, int(slots[0]) if row != NO_ROW and len(slots) else NO_ROW

    def settle(self, masks: bool = True) -> None:
        """A tick and what follows it; time passes to the next fence once nothing is launched."""
        self.walk()
        self.follow(masks)

    def follow(self, masks: bool) -> None:
        self.read()
        slots = self.world[0]["slots"]
        assert not ((slots["state"] == SLOT_DRAINING) & (slots["in_flight"] == 0)
                    & (slots["closing"] == 0)).any(), "a slot is held behind its last fence"
        while masks and self.worker.waiting:
            self.worker.do(self.worker.waiting.pop(0))
        submitted = int(self.world[0]["frames"]["next_sequence"])
        if submitted == self.submitted:
            self.clock.now_ns = max(self.clock.now_ns, self.executor.next_end() or 0)
        self.submitted = submitted


def reach(state: State, deadline_ns: int) -> Watching:
    """A simulator whose watched request has come to the state in the last tick."""
    simulator = Watching(state.shape)
    for submission in state.before:
        simulator.put(submission)
        while simulator.live:
            simulator.settle()
    for submission in state.beside:
        simulator.put(submission)
        simulator.settle()
    simulator.put(Submission(**{
        "tag": WATCHED, "prompt": text(7, 20), "output_limit": 60, "seed": 7,
        "deadline_ns": deadline_ns, **state.watched}))
    for _ in range(600):
        simulator.walk()
        if state.there(simulator.world[0], *simulator.at()):
            return simulator
        simulator.follow(state.masks)
    raise AssertionError("the state was not reached")


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_an_end_in_every_state(state, how):
    simulator = reach(state, 0)
    if how == "deadline":
        due = simulator.clock.now_ns + 1
        simulator = reach(state, due)
        assert simulator.clock.now_ns == due - 1, "a later deadline changes nothing before it"
        simulator.clock.now_ns = due
    else:
        simulator.live[WATCHED].cancelled = True
        assert simulator.edge.cancel(WATCHED)
    simulator.settle(state.masks)
    wanted = {"cancel": FINISH_CANCELLED, "deadline": FINISH_DEADLINE}[how]
    assert simulator.ends[WATCHED] == (state.reason or wanted), "in the tick that sees it"
    assert simulator.edge.cancel(WATCHED), "which ends nothing any more"
    requests = simulator.world[0]["requests"]
    assert not ((requests["tag"] == WATCHED) & np.isin(requests["state"], (WAITING, RUNNING))).any()
    simulator.run(0)
    assert set(simulator.ends) == {WATCHED, *(s.tag for s in state.before + state.beside)}

"""What a flight recording shows: when requests came and went, and what every program took.

A recorded engine's ticks run again, so nothing had to be measured while it served. Times are those
of ticks: a program's end is when the engine noticed it.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from helios_dod.errors import UserError
from helios_dod.executors.acceptance import PLACES_MAX
from helios_dod.executors.costs import FEATURES, count_features
from helios_dod.recording import Crash, Divergence, File, first_world, load, replay
from helios_dod.simulation.machine import Machine
from helios_dod.simulation.study import NEVER, Outcome
from helios_dod.simulation.study_loop import GAP_BINS, gap_bin
from helios_dod.simulation.traces import Trace, make_trace
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_TOKEN,
    FRAME_SUBMITTED,
    INGRESS_SUBMIT,
    OP_SPECULATIVE,
    STATUS_RUNNING,
)
from helios_dod.world import digest

LANES = FEATURES.index("lanes")
GROUP_TOKENS = 16  # prompts that begin with the same ones share a prefix


@dataclass(frozen=True)
class Steps:
    """Programs that ran, one an element. idle: the device waited for it, so that the host's time
    to launch it and to notice its end is in it."""

    operation: np.ndarray  # int64 [n]
    features: np.ndarray  # int64 [n, 6], in the order of costs.FEATURES
    duration_ns: np.ndarray  # int64 [n]
    idle: np.ndarray  # bool [n]
    # int64 [2, places]: drafts that were verified behind accepted ones, and the accepted, by place
    drafts: np.ndarray = field(default_factory=lambda: np.zeros((2, PLACES_MAX), np.int64))


@dataclass(frozen=True)
class Observation:
    """Of one recording: requests that came and ended in it, and the machine without its costs."""

    steps: Steps
    trace: Trace
    outcome: Outcome
    machine: Machine


@dataclass
class Request:
    """Of the time in which it is there; the last token that a later one is compared with."""

    arrival_ns: int
    prompt: np.ndarray
    first_ns: int = NEVER
    last_ns: int = NEVER
    tokens: int = 0
    finish: int = 0
    cached: int = 0


class Observer:
    """Looks at the world after each tick."""

    def __init__(self, world: np.ndarray) -> None:
        """world: where the recording begins. What is in it by then is left out."""
        frames = world[0]["frames"]
        self.newest = int(frames["next_sequence"]) - 1
        self.finished = int(frames["finished_sequence"])
        self.seen = world[0]["ingress"]["seen"].copy()
        self.sent = world[0]["egress"]["end"][:, 0].copy()
        self.launched: dict[int, tuple[int, int, np.ndarray, int]] = {}
        self.steps: list[tuple[int, np.ndarray, int, bool]] = []
        self.live: dict[tuple[int, int], Request] = {}
        self.ended: list[Request] = []
        self.gaps = np.zeros(GAP_BINS, np.int64)
        self.free_ns = 0
        self.drafts = np.zeros((2, PLACES_MAX), np.int64)

    def see(self, world: np.ndarray) -> None:
        """One tick more."""
        now = int(world[0]["clock"]["now_ns"])
        self._programs(world, now)
        self._arrivals(world, now)
        self._events(world, now)

    def _programs(self, world: np.ndarray, now: int) -> None:
        frames = world[0]["frames"]
        finished = int(frames["finished_sequence"])
        ended = [self.launched.pop(sequence, None)
                 for sequence in range(self.finished + 1, finished + 1)]
        if len(ended) == 1 and ended[0] is not None:  # of two that end together neither is known
            since, operation, features, _ = ended[0]
            self.steps.append((operation, features, now - max(since, self.free_ns),
                               since >= self.free_ns))
        for flown in ended:
            if flown is not None and flown[1] == OP_SPECULATIVE:
                self._drafts(world[0]["completions"], flown[3], int(flown[2][LANES]))
        if ended:
            self.free_ns = now
        self.finished = finished
        for frame in np.nonzero((frames["state"] == FRAME_SUBMITTED)
                                & (frames["sequence"] > self.newest))[0].tolist():
            features = np.zeros(len(FEATURES), np.int64)
            count_features(world, frame, features)
            operation = int(world[0]["programs"]["operation"][frames["program"][frame]])
            self.launched[int(frames["sequence"][frame])] = now, operation, features, frame
        self.newest = int(frames["next_sequence"]) - 1

    def _drafts(self, done: np.void, frame: int, lanes: int) -> None:
        """Counts a round's drafts as the scheduler does: behind an end none was refused."""
        if not done["agreement"][frame]:
            return
        accepted = done["accepted"][frame, :lanes]
        going = done["status"][frame, :lanes] == STATUS_RUNNING
        offered = np.where(going, done["offered"][frame, :lanes], accepted)
        for place in range(PLACES_MAX):
            self.drafts[0, place] += int(((offered > place) & (accepted >= place)).sum())
            self.drafts[1, place] += int((accepted > place).sum())

    def _arrivals(self, world: np.ndarray, now: int) -> None:
        ring = world[0]["ingress"]
        rows, capacity = ring["kind"].shape[1], ring["words"].shape[1]
        for frontend in np.nonzero(ring["seen"] != self.seen)[0].tolist():
            for position in range(int(self.seen[frontend]), int(ring["seen"][frontend])):
                row = position % rows
                if ring["kind"][frontend, row] != INGRESS_SUBMIT:
                    continue
                start = int(ring["payload"][frontend, row]) % capacity
                count = int(ring["prompt_count"][frontend, row])
                self.live[frontend, int(ring["tag"][frontend, row])] = Request(
                    now, ring["words"][frontend, start:start + count].copy())
        self.seen[:] = ring["seen"]

    def _events(self, world: np.ndarray, now: int) -> None:
        ring = world[0]["egress"]
        ends = ring["end"][:, 0]
        for frontend in np.nonzero(ends != self.sent)[0].tolist():
            for position in range(int(self.sent[frontend]), int(ends[frontend])):
                row = position % ring["kind"].shape[1]
                tag = frontend, int(ring["tag"][frontend, row])
                request, kind = self.live.get(tag), ring["kind"][frontend, row]
                if request is None:
                    continue
                if kind == EGRESS_TOKEN:
                    if request.tokens:
                        self.gaps[gap_bin(now - request.last_ns)] += 1
                    else:
                        request.first_ns = now
                    request.last_ns = now
                    request.tokens += 1
                elif kind == EGRESS_FINISHED:
                    request.finish = int(ring["reason"][frontend, row])
                    request.cached = int(ring["value"][frontend, row])
                    self.ended.append(self.live.pop(tag))
        self.sent[:] = ends


def prefixes(prompts: list[np.ndarray]) -> tuple[list[int], list[int]]:
    """(text, tokens of it) that each prompt begins with: texts are the first prompts of those that
    begin alike."""
    groups: dict[bytes, int] = {}
    texts: list[np.ndarray] = []
    group, shared = [], []
    for prompt in prompts:
        key = prompt[:GROUP_TOKENS].tobytes()
        number = groups.setdefault(key, len(texts))
        if number == len(texts):
            texts.append(prompt)
        text = texts[number]
        count = min(len(text), len(prompt))
        differ = np.nonzero(text[:count] != prompt[:count])[0]
        group.append(number)
        shared.append(int(differ[0]) if len(differ) else count)
    return group, shared


def observe(file: File) -> Observation:
    """Runs a recording again. Raises UserError, Divergence, Crash, and ValueError where nothing
    ended."""
    world = first_world(file)
    observer = Observer(world)
    for world in replay(file):
        observer.see(world)
    requests = sorted((r for r in observer.ended if r.tokens), key=lambda r: r.arrival_ns)
    if not requests or not observer.steps:
        raise ValueError("no request came and was answered in the recording")
    group, shared = prefixes([request.prompt for request in requests])
    start = requests[0].arrival_ns

    def column(name: str, since: int = 0) -> np.ndarray:
        return np.array([getattr(request, name) - since for request in requests], np.int64)

    trace = make_trace(column("arrival_ns", start),
                       np.array([len(request.prompt) for request in requests]),
                       column("tokens"), np.array(group), np.array(shared))
    counters = world[0]["counters"]
    virtual = max(request.last_ns for request in requests) - start
    outcome = Outcome(
        trace.arrival_ns, column("first_ns", start), column("last_ns", start), column("tokens"),
        column("finish"), column("cached"), observer.gaps, virtual_ns=virtual, wall_s=virtual / 1e9,
        steps=len(file.entries),
        counters={name: int(counters[name]) for name in counters.dtype.names or ()},
        digest=digest(world))
    operation, features, duration, idle = zip(*observer.steps, strict=True)
    steps = Steps(np.array(operation, np.int64), np.array(features, np.int64),
                  np.array(duration, np.int64), np.array(idle, bool), observer.drafts)
    return Observation(steps, trace, outcome, machine_of(world))


def observe_file(path: Path) -> Observation:
    """Of a file. Raises UserError naming it."""
    try:
        return observe(load(path))
    except (Divergence, Crash, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def machine_of(world: np.ndarray) -> Machine:
    """The capacities of an engine."""
    settings = world[0]["settings"]
    return Machine(
        lanes=int(settings["slot_count"]), prefill_tokens=int(settings["prefill_tokens"]),
        pages=int(world[0]["pages"]["page_count"]), vocabulary=int(settings["vocabulary"]),
        context_tokens=int(settings["context_tokens"]),
        page_tokens=int(settings["page_tokens"]), frames=int(world[0]["frames"]["frame_count"]),
        caching=bool(settings["caching"]))

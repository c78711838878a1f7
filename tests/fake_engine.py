"""A test double of the engine process, for tests of the server alone: no scheduler, no model.

It reads the ingress ring and answers each submission with tokens that depend on its prompt and
seed only. A prompt that holds the text of a trigger fails on purpose. FAKE_TICK_MS is its pace.
A request of priority i is answered with text i - 1 of FAKE_SCRIPTS, a JSON list, and EOS.
"""

import json
import os
import select
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.limits import SIZES
from helios_dod.runtime.options import EngineOptions
from helios_dod.tables.stops import BLOCK_HEAD, BLOCK_IDS
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_REJECTED,
    EGRESS_SCORE,
    EGRESS_TOKEN,
    FINISH_DEADLINE,
    FINISH_EOS,
    FINISH_LIMIT,
    FINISH_NON_FINITE,
    FINISH_STOP_TOKEN,
    FLAG_SCORED,
    FLAG_TIMED,
    INGRESS_CANCEL,
    REJECT_PAGES,
    TEXT_ALL,
)
from helios_dod.world import boot

CONTEXT = 4096
WITHHELD = (FINISH_EOS, FINISH_STOP_TOKEN)  # the last token is not shown
TRIGGERS = {"<reject>": REJECT_PAGES, "<nonfinite>": FINISH_NON_FINITE}


@dataclass
class Running:
    """One request in the double."""

    frontend: int
    tag: int
    seed: int
    limit: int
    minimum: int
    top: int
    temperature: int
    eos: tuple[int, ...]
    stops: tuple[int, ...]
    prompt: tuple[int, ...]
    script: list[int]  # empty: the engine's own
    flags: int
    deadline_ns: int
    count: int = 0
    stop: int = 0  # which stop id ended it
    began_ns: int = field(default_factory=time.monotonic_ns)


class FakeEngine:
    """Serves the rings of one world. script: the token ids it talks in, in order, round and round.

    triggers: token sequences of a prompt -> what happens to it."""

    def __init__(self, world: np.ndarray, slots: int, script: list[int],
                 triggers: dict[tuple[int, ...], int], scripts: list[list[int]]) -> None:
        self.scripts = scripts
        self.world, self.slots, self.script, self.triggers = world, slots, script, triggers
        self.waiting: list[Running] = []
        self.running: list[Running] = []

    def receive(self) -> None:
        """Takes everything out of every ingress ring."""
        ring = self.world[0]["ingress"]
        rows, capacity = ring["kind"].shape[1], ring["words"].shape[1]
        for frontend in range(ring["kind"].shape[0]):
            first, end = int(ring["first"][frontend, 0]), int(ring["end"][frontend, 0])
            for position in range(first, end):
                row = position % rows
                value = {name: ring[name][frontend, row] for name in ring.dtype.names
                         if ring[name].ndim >= 2 and ring[name].shape[1] == rows}
                if value["kind"] == INGRESS_CANCEL:
                    self.cancel(frontend, int(value["tag"]))
                else:
                    start = int(value["payload"]) % capacity
                    words = ring["words"][frontend, start:start + capacity].tolist()
                    self.accept(frontend, value, words)
                ring["words_first"][frontend, 0] = value["payload_end"]
            ring["first"][frontend, 0] = end

    def accept(self, frontend: int, value: dict[str, Any], words: list[int]) -> None:
        """Queues one submission."""
        count, bias = int(value["prompt_count"]), int(value["bias_count"])
        block = words[count + 2 * bias:][: int(value["stop_words"])]
        stops = block[BLOCK_HEAD:][: block[BLOCK_IDS]] if block else []
        request = Running(
            frontend, int(value["tag"]), int(value["seed"]), int(value["output_limit"]),
            int(value["output_minimum"]), int(value["top_logprobs"]), int(value["temperature"]),
            tuple(t for t in value["eos"].tolist() if t >= 0), tuple(stops),
            tuple(words[:count]), self.scripts[int(value["priority"]) - 1]
            if 0 < value["priority"] <= len(self.scripts) else [], int(value["flags"]),
            int(value["deadline_ns"]))
        self.world[0]["counters"]["received"] += 1
        self.waiting.append(request)

    def cancel(self, frontend: int, tag: int) -> None:
        """Forgets a request."""
        for queue in (self.waiting, self.running):
            for request in list(queue):
                if request.frontend == frontend and request.tag == tag:
                    queue.remove(request)
                    self.world[0]["counters"]["cancelled"] += 1

    def put(self, request: Running, **columns: Any) -> None:
        """One event; the double never fills a ring."""
        ring = self.world[0]["egress"]
        frontend, end = request.frontend, int(ring["end"][request.frontend, 0])
        rows = ring["kind"].shape[1]
        assert end - ring["first"][frontend, 0] < rows, "egress ring full"
        ring["top_count"][frontend, end % rows] = -1
        ring["text"][frontend, end % rows] = TEXT_ALL
        for name, value in {"tag": request.tag, **columns}.items():
            ring[name][frontend, end % rows] = value
        ring["end"][frontend, 0] = end + 1

    def room(self, frontend: int) -> bool:
        """True if a tick's events fit the ring."""
        ring = self.world[0]["egress"]
        used = int(ring["end"][frontend, 0]) - int(ring["first"][frontend, 0])
        return used + 4 < ring["kind"].shape[1]

    def tick(self) -> set[int]:
        """One token for every running request; the frontends that got events."""
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))
        woken = set()
        for request in list(self.running):
            if self.room(request.frontend):
                woken.add(request.frontend)
                self.step(request)
        return woken

    def trigger(self, request: Running) -> int:
        """What a trigger in the prompt asks for, or 0."""
        for tokens, reason in self.triggers.items():
            for i in range(len(request.prompt) - len(tokens) + 1):
                if request.prompt[i:i + len(tokens)] == tokens:
                    return reason
        return 0

    def step(self, request: Running) -> None:
        """The next token of one request, and its end."""
        if request.deadline_ns and time.monotonic_ns() >= request.deadline_ns:
            self.finish(request, FINISH_DEADLINE)
            return
        if request.count == 0 and request.flags & FLAG_SCORED:
            self.score(request)
        reason = self.trigger(request)
        if reason == REJECT_PAGES:
            self.running.remove(request)
            self.world[0]["counters"]["rejected"] += 1
            self.put(request, kind=EGRESS_REJECTED, reason=reason, value=999, limit=99)
            return
        if reason and request.count == 2:
            self.finish(request, reason)
            return
        seed = request.seed if request.temperature else 0
        mixed = (seed * 2654435761 + sum(request.prompt) + request.count * 7919) % 1000003
        token = self.script[mixed % len(self.script) if request.temperature else
                            request.count % len(self.script)]
        ended = 0
        early = seed % 3 == 2 and request.count >= max(request.minimum, 5)
        if request.script:
            token = [*request.script, request.eos[0] if request.eos else 0][request.count]
            ended = FINISH_EOS if token in request.eos else 0
        elif early and request.eos:
            token, ended = request.eos[0], FINISH_EOS
        if not ended and token in request.stops:
            ended, request.stop = FINISH_STOP_TOKEN, request.stops.index(token)
        elif not ended and request.count + 1 >= request.limit:
            ended = FINISH_LIMIT
        self.emit(request, token, ended)
        if ended:
            self.finish(request, ended)

    def score(self, request: Running) -> None:
        """Made-up scores of the prompt, which must be short."""
        for position, token in enumerate(request.prompt[1:], 1):
            bits = np.float32(-position / 4).view(np.int32)
            self.put(request, kind=EGRESS_SCORE, token=token, index=position, logprob=bits,
                     top_count=0)

    def emit(self, request: Running, token: int, ended: int) -> None:
        """A token event, with made-up log-probabilities."""
        columns: dict[str, Any] = {"kind": EGRESS_TOKEN, "token": token, "index": request.count,
                                   "completed_ns": 0,
                                   "shown": request.count + (ended not in WITHHELD)}
        if request.flags & FLAG_TIMED:
            columns["completed_ns"] = time.monotonic_ns()
        if request.top >= 0:
            bits = np.array([-0.25 - k for k in range(20)], np.float32).view(np.int32)
            columns.update(logprob=bits[0], top_count=request.top,
                           top_tokens=[token + k for k in range(20)], top_logprobs=bits)
        self.put(request, **columns)
        request.count += 1
        self.world[0]["counters"]["generated_tokens"] += 1

    def finish(self, request: Running, reason: int) -> None:
        """The final event."""
        self.running.remove(request)
        self.world[0]["counters"]["finished"] += 1
        self.put(request, kind=EGRESS_FINISHED, reason=reason, token=request.stop,
                 index=request.count, value=1, completed_ns=request.began_ns,
                 shown=request.count - (reason in WITHHELD))


def run(core: Path, memory: memoryview, limits_name: str, wake_engine: int, wake_workers: list[int],
        options: EngineOptions) -> None:
    """As runtime.engine_process.run. core: a `tokenizers` JSON file."""
    from tokenizers import Tokenizer

    limits = SIZES[limits_name]
    world = boot(limits, memory)
    world[0]["settings"]["context_tokens"] = options.context_tokens or CONTEXT
    tokenizer = Tokenizer.from_str(core.read_text())

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    script = ids(" The quick brown fox says “hello” to 漢字 and 🙂, then jumps.\n")
    engine = FakeEngine(world, options.max_active or limits.slots_max, script,
                        {tuple(ids(text)): reason for text, reason in TRIGGERS.items()},
                        [ids(text) for text in json.loads(os.environ.get("FAKE_SCRIPTS", "[]"))])
    pace = float(os.environ.get("FAKE_TICK_MS", "1")) / 1e3
    time.sleep(float(os.environ.get("FAKE_START_S", "0")))
    while os.path.exists(os.environ.get("FAKE_STARTS_WHILE", "")):
        time.sleep(0.01)
    if os.environ.get("FAKE_FAIL"):
        raise ValueError(os.environ["FAKE_FAIL"])
    options.ready()
    while not options.stopping():
        engine.receive()
        for frontend in engine.tick():
            os.eventfd_write(wake_workers[frontend], 1)
        busy = engine.running or engine.waiting
        if busy:
            time.sleep(pace)
        elif select.select([wake_engine], [], [], 0.5)[0]:
            os.eventfd_read(wake_engine)

"""Requests through an embedded engine on the host executor."""

from dataclasses import dataclass, field
from pathlib import Path

from helios_dod.edges import Edge, Submission, fields
from helios_dod.runtime.load import load_host
from helios_dod.runtime.selection import Options
from helios_dod.simulation.invariants import check_quiet
from helios_dod.terms import EGRESS_FINISHED, EGRESS_SCORE, EGRESS_TOKEN


@dataclass
class Answer:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    prompt_scores: list[float] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    reason: int = 0
    failure: int = 0
    rejection: dict | None = None


class Embedded:
    """An engine of a core; use as a context."""

    def __init__(self, core: Path, threads: int = 2, **options) -> None:
        self.plan, self.engine = load_host(core, Options(**options), threads)
        self.edge = Edge(self.engine.world, 0)

    def __enter__(self) -> "Embedded":
        return self

    def __exit__(self, *_) -> None:
        self.engine.close()

    def ask(self, requests: list[Submission]) -> list[Answer]:
        """Submits all (as the ring has room) and runs until every one has ended."""
        answers = {request.tag: Answer() for request in requests}
        waiting, live = list(requests), set(answers)

        def stop() -> bool:
            while waiting and self.edge.submit(waiting[0]):
                waiting.pop(0)
            for event in self.edge.events():
                self.note(answers[int(event["tag"])], event, live)
            return not live and self.engine.idle()

        self.engine.run(stop)
        check_quiet(self.engine.world)
        return [answers[request.tag] for request in requests]

    @staticmethod
    def note(answer: Answer, event, live: set[int]) -> None:
        """Adds one event to its answer."""
        if event["kind"] == EGRESS_TOKEN:
            answer.tokens.append(int(event["token"]))
            answer.times.append(int(event["completed_ns"]))
            if event["top_count"] >= 0:
                answer.scores.append(float(event["logprob"]))
                count = int(event["top_count"])
                answer.tops.append(dict(zip(event["top_tokens"][:count].tolist(),
                                            event["top_logprobs"][:count].tolist(), strict=True)))
        elif event["kind"] == EGRESS_SCORE:
            assert int(event["index"]) == len(answer.prompt_scores) + 1
            answer.prompt_scores.append(float(event["logprob"]))
        else:
            answer.reason, answer.failure = int(event["reason"]), int(event["token"])
            if event["kind"] != EGRESS_FINISHED:
                answer.rejection = fields(event)
            live.discard(int(event["tag"]))

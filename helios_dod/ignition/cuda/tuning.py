"""Alternatives of a program's launches, and the tuning graphs that choose between them.

A tuning graph has the very launches of the first layers that it chooses for, on rows of their own
scratch; it is shared by every program with launches of that shape."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from helios_dod.contract.operations import READ_WRITE, WRITE
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.library import Pointer
from helios_dod.ignition.cuda.placing import Placing

TRIAL_WEIGHTS = 4  # that a trial goes through, so that caches do not decide
ALTERNATIVES = 2


@dataclass
class Trials:
    """A choice by shape: its output buffers, and each alternative's launch of some weights."""

    name: str
    selected: int
    best: int
    tokens: int
    launches: dict[int, list[wire.CudaKernel]] = field(default_factory=dict)  # by weight


class Choosing(Placing):
    """Adds nodes of which one is captured."""

    def __init__(self, manifest: wire.ExecutionManifest, page_tokens: int) -> None:
        super().__init__(manifest, page_tokens)
        self.trials: dict[tuple[Any, ...], Trials] = {}
        self.depends: dict[str, Trials] = {}  # of this program

    def either(self, key: tuple[Any, ...], tokens: int, weight: int,
               *makes: Callable[[], object]) -> None:
        """Appends the nodes of every alternative behind the same ones; each makes one kernel."""
        trials = self._trials(key, tokens)
        self.depends[trials.name] = trials
        before, made, lasts = self.last, self.alternatives, []
        for value, make in enumerate(makes):
            self.last, self.alternatives = before, made
            make()
            (number,) = self.last
            node = self.body.nodes[number]
            node.choice.CopyFrom(wire.CudaChoice(buffer=trials.selected, value=value))
            own = trials.launches.setdefault(weight, [])
            if len(own) == value:
                own.append(node.kernel)
            lasts.append(number)
        self.last, self.alternatives = lasts, True

    def _trials(self, key: tuple[Any, ...], tokens: int) -> Trials:
        if key not in self.trials:
            name = f"product_{len(self.trials)}"

            def state(part: str, dtype: wire.DataType, count: int) -> int:
                self.manifest.buffers.add(
                    name=f"tuning.{name}.{part}", kind=wire.STATE, dtype=dtype,
                    shape=[wire.Extent(multiplier=count)])
                return len(self.manifest.buffers) - 1

            self.trials[key] = Trials(name, state("selected", wire.I32, 1),
                                      state("best", wire.I64, ALTERNATIVES), tokens)
        return self.trials[key]

    def add_tuning(self) -> None:
        """The tuning graphs of all choices, once every program has been lowered."""
        counts = {self.manifest.live_packed, self.manifest.live_lanes, self.manifest.live_sampled}
        for trials in self.trials.values():
            live = self.scratch("tuning.live", wire.I32, [1])
            marks = self.scratch("tuning.marks", wire.I64, [ALTERNATIVES + 1])
            self.body, self.last, self.single, self.packed = wire.CudaBody(), [], False, 1 << 30
            for value in range(ALTERNATIVES):
                self._mark(marks, value, live, trials.tokens)
                for launch in self._some(trials, value):
                    node = wire.CudaNode(kernel=launch)
                    for argument in node.kernel.arguments:
                        if argument.HasField("address") and argument.address.buffer in counts:
                            argument.address.buffer = live
                    self.add(node)
            self._mark(marks, ALTERNATIVES, live, trials.tokens)
            self.add(wire.CudaNode(kernel=self.library.native(
                "choose_fastest", "trial.cu", (1, 1, 1),
                dict(marks=Pointer(marks), best=self.used(trials.best, READ_WRITE),
                     selected=self.used(trials.selected, WRITE),
                     candidates=ALTERNATIVES), {}, 1, 0)))
            self.manifest.cuda_bodies.append(self.body)
            self.manifest.tuning.add(
                name=trials.name, cuda_body=len(self.manifest.cuda_bodies) - 1,
                outputs=[trials.selected, trials.best])

    def _some(self, trials: Trials, value: int) -> list[wire.CudaKernel]:
        return [own[value] for own in list(trials.launches.values())[:TRIAL_WEIGHTS]]

    def _mark(self, marks: int, place: int, live: int, rows: int) -> None:
        self.add(wire.CudaNode(kernel=self.library.native(
            "mark_time", "trial.cu", (1, 1, 1),
            dict(marks=Pointer(marks), place=place, live=Pointer(live), rows=rows), {}, 1, 0)))

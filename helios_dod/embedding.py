"""`helios_dod.Engine`: the engine as a library. It starts no process, opens no port, installs no
signal handler and keeps nothing global, so several may live in one process.

An engine of a core computes on this machine's processors and its clock is the machine's; a
simulated one computes nothing and its time passes only when it is told to. Both run the tick that
`helios serve` runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from helios_dod.bounds import INT64_MAX, whole
from helios_dod.edges import Edge, Submission
from helios_dod.engine import Engine as Loop
from helios_dod.errors import UserError
from helios_dod.executors.simulated import SavedDevice, SimulatedExecutor, VirtualClock
from helios_dod.runtime.load import load_host
from helios_dod.runtime.selection import Options
from helios_dod.simulation.machine import Machine, simulated_engine
from helios_dod.system import System
from helios_dod.terms import FREE
from helios_dod.world import restore, snapshot

THREADS_MAX = 1024
CONTEXT_TOKENS = 4096  # of a simulated engine whose machine names none


@dataclass(frozen=True)
class Saved:
    """A simulated engine at one time: its world's bytes and what its device holds."""

    world: bytes
    device: SavedDevice


class Engine:
    """A scheduler, its executor and clock, and one frontend's ends of its rings. Its owner drives
    it, from one thread: `tick` and `events` by themselves, or `batches`. Close it, or use it as a
    context."""

    def __init__(self, loop: Loop, systems: Sequence[System] | None = None) -> None:
        """loop: an engine over any executor and clock, which is this one's from then on. systems:
        what a tick runs instead of `schedule.TICK`. Raises UserError."""
        self.loop = loop
        self.edge = Edge(loop.world, 0, batch=loop.world[0]["egress"]["kind"].shape[1])
        if systems is not None:
            loop.use(systems)

    @classmethod
    def host(cls, core: str | Path, options: Options | None = None, threads: int = 0,
             systems: Sequence[System] | None = None) -> "Engine":
        """Of a core, on this machine's processors. threads 0: as many as there are. Raises
        CoreError, ContractError, SelectionError, UserError."""
        return cls(load_host(core, options, whole("threads", threads, 0, THREADS_MAX))[1],
                   systems)

    @classmethod
    def simulated(cls, machine: Machine | None = None, clock: VirtualClock | None = None,
                  systems: Sequence[System] | None = None) -> "Engine":
        """Over a device that computes nothing. clock: that of other engines, where several share
        one time. Raises SelectionError, UserError."""
        machine = machine or Machine()
        context = machine.context_tokens or CONTEXT_TOKENS
        return cls(simulated_engine(machine, context, clock or VirtualClock()), systems)

    @property
    def now_ns(self) -> int:
        """The engine's time."""
        return self.loop.clock()

    def submit(self, request: Submission) -> bool:
        """Queues a request; False when the ring is full. `tag` is how events name it. Raises
        UserError for one that no engine of this size could hold, or a field out of its bounds."""
        return self.edge.submit(request)

    def cancel(self, tag: int) -> bool:
        """Asks for a request's end; False when the ring is full. Raises UserError."""
        return self.edge.cancel(tag)

    def tick(self) -> bool:
        """One tick, and the launch of what it composed; True if a program was launched."""
        return self.loop.step()

    def events(self) -> np.ndarray:
        """What happened since the last call: dtype `edges.EVENT`, kinds `terms.EGRESS_*`; valid
        until the next call."""
        return self.edge.events()

    def next_ns(self) -> int | None:
        """When the next program or copy of a simulated device ends; None: nothing is in flight."""
        return self._device().next_end()

    def advance(self, until_ns: int | None = None) -> None:
        """Virtual time passes: to the next end on the device, or to `until_ns` if that is sooner
        or nothing is in flight. Raises UserError."""
        if until_ns is not None:
            whole("until_ns", until_ns, 0, INT64_MAX)
        ends = [end for end in (self._device().next_end(), until_ns) if end is not None]
        if ends:
            clock = self._device().clock
            clock.now_ns = max(clock.now_ns, min(ends))

    def batches(self) -> Iterator[np.ndarray]:
        """Ticks, and lets time pass, until nothing is left to do; yields events as they come. What
        the receiver submits or cancels meanwhile counts."""
        virtual = type(self.loop.clock) is VirtualClock
        while True:
            if virtual:
                self.tick()
            events = self.events() if virtual else self._wait()
            if len(events):
                yield events
            elif self.idle():
                return
            if virtual:
                self.advance()

    def _wait(self) -> np.ndarray:
        """Runs the loop until there are events, or nothing to do."""
        found = self.events()

        def stop() -> bool:
            nonlocal found
            found = self.events()
            return len(found) > 0 or self.idle()

        if len(found) == 0:
            self.loop.run(stop)
        return found

    def idle(self) -> bool:
        """Nothing in flight, nothing submitted, no event withheld by a full ring."""
        return self.loop.idle()

    def stats(self) -> dict[str, int]:
        """The counters, and what there is now: requests that wait and run, free and idle (cached,
        evictable) pages, frames in flight."""
        world = self.loop.world[0]
        counters, requests, pages = world["counters"], world["requests"], world["pages"]
        return {
            **{name: int(counters[name]) for name in counters.dtype.names or ()},
            "waiting": int(requests["waiting_count"]), "running": int(world["slots"]["live_count"]),
            "pages": int(pages["page_count"]), "pages_free": int(pages["free_count"]),
            "pages_idle": int(pages["idle_count"]),
            "frames_in_flight": int((world["frames"]["state"] != FREE).sum())}

    def snapshot(self) -> Saved:
        """All of a simulated engine, its time and events that were not read included."""
        return Saved(snapshot(self.loop.world), self._device().save())

    def restore(self, saved: Saved) -> None:
        """Goes back to a snapshot of this engine, or of one made alike; what follows is then what
        followed. Raises UserError."""
        if len(saved.world) != self.loop.world.nbytes:
            raise UserError(f"snapshot: expected a world of {self.loop.world.nbytes} bytes, got "
                            f"{len(saved.world)}")
        restore(self.loop.world, saved.world)
        self._device().restore(saved.device)
        self.loop.resume()

    def _device(self) -> SimulatedExecutor:
        device = self.loop.executor
        if not isinstance(device, SimulatedExecutor) or type(device.clock) is not VirtualClock:
            raise UserError(f"executor: expected a simulated one in virtual time, got "
                            f"{device.name}")
        return device

    def close(self) -> None:
        """Drains, frees the device and ends its threads."""
        self.loop.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

"""The loop: clock, edges in, tick, launch, edges out. No policy.

An embedded engine starts no process, opens no port and installs no signal handler; the caller
drives `step`, or `run` with a stop condition.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable, Sequence

import numpy as np

from helios_dod.errors import UserError
from helios_dod.executors.base import DeviceError, Executor
from helios_dod.grammars.base import Desk, GrammarWorker
from helios_dod.limits import COPY_QUEUES
from helios_dod.recording import Recorder
from helios_dod.schedule import tick_first, tick_rest
from helios_dod.system import System, kernel, load_acquire
from helios_dod.systems.accept import accept
from helios_dod.systems.retire import scores_pending
from helios_dod.tables.grammars import see_answers, write_answer
from helios_dod.tables.rings import see_rings
from helios_dod.terms import CLOSING_WAITS, FRAME_SUBMITTED, FREE, SLOT_DRAINING

IDLE_WAIT_S = 0.5  # an idle engine looks around this often, should a wake-up ever be missed


@kernel
def begin(world, now_ns, finished_sequence):
    """Time, fences, the rings' positions and masks enter the world, and nowhere else; frames not
    yet launched have a larger sequence."""
    world[0].clock.tick += 1
    world[0].clock.now_ns = now_ns
    world[0].frames.finished_sequence = finished_sequence
    see_rings(world)
    see_answers(world)


@kernel
def to_launch(world, launched, out):
    """(frame, program, sequence) of frames submitted after `launched`, in order; their count."""
    frames = world[0].frames
    count = 0
    for sequence in range(launched + 1, frames.next_sequence):
        for frame in range(frames.state.shape[0]):
            if frames.state[frame] == FRAME_SUBMITTED and frames.sequence[frame] == sequence:
                out[count, 0], out[count, 1], out[count, 2] = frame, frames.program[frame], sequence
                count += 1
    return count


@kernel
def to_copy(world, started, out):
    """(first, end) of each queue's commands from number started[queue] on, which advances; True if
    there are any."""
    copies, found = world[0].copies, False
    for queue in range(out.shape[0]):
        out[queue, 0], out[queue, 1] = started[queue], copies.end[queue]
        found |= started[queue] < copies.end[queue]
        started[queue] = copies.end[queue]
    return found


@kernel
def fail_copies(world, queue):
    """Every command of a queue in flight has failed."""
    copies = world[0].copies
    for number in range(copies.finished[queue], copies.end[queue]):
        copies.failed[queue, number % copies.kind.shape[1]] = 1
    copies.finished[queue] = copies.end[queue]


@kernel
def undelivered(world):
    """Rows that wait for room in an egress ring."""
    return world[0].requests.emit_end - world[0].requests.emit_first


@kernel
def retirable(world):
    """True if the next tick frees a slot: `emit` delivered its last log-probabilities."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (slots.state[slot] == SLOT_DRAINING and slots.in_flight[slot] == 0
                and slots.closing[slot] != CLOSING_WAITS and not scores_pending(world, slot)):
            return True
    return False


@kernel
def busy(world):
    """True while a frame or a copy is in flight, a slot is held or something waits for room."""
    for queue in range(world[0].copies.first.shape[0]):
        if world[0].copies.first[queue] != world[0].copies.end[queue]:
            return True
    for frame in range(world[0].frames.state.shape[0]):
        if world[0].frames.state[frame] != FREE:
            return True
    return world[0].slots.live_count > 0 or undelivered(world) > 0


@kernel
def ingress_waiting(world):
    """Rows in all ingress rings."""
    ring = world[0].ingress
    count = 0
    for frontend in range(ring.kind.shape[0]):
        count += load_acquire(ring.end[frontend], 0) - ring.first[frontend, 0]
    return count


@kernel
def egress_ends(world, out):
    """Egress end position of every frontend, into int64 [frontends_max]."""
    for frontend in range(out.shape[0]):
        out[frontend] = world[0].egress.end[frontend, 0]


def walked(systems: Sequence[System]) -> Callable[[np.ndarray], int]:
    """A part of a tick, a call a system; how many timed tokens were accepted."""
    def walk(world: np.ndarray) -> int:
        for step in systems:
            step.run(world)
        return int(world[0]["clock"]["observed"])

    return walk


class Engine:
    """The scheduler of one world over one executor.

    clock: nanoseconds from a monotonic origin. programs: world program row -> manifest program
    index.
    """

    def __init__(self, world: np.ndarray, executor: Executor,
                 clock: Callable[[], int] = time.monotonic_ns,
                 grammars: GrammarWorker | None = None) -> None:
        self.world, self.executor, self.clock = world, executor, clock
        self.desk = None if grammars is None else Desk(world, grammars)
        if grammars is None:
            world[0]["settings"]["masked"] = 0  # nobody makes masks: such requests are rejected
        self._launched = self._submitted = int(world[0]["frames"]["next_sequence"]) - 1
        self._launches = np.zeros((len(world[0]["frames"]["state"]), 3), np.int64)
        self._tiers = bool(world[0]["tiers"]["place_count"][0])
        self._started = world[0]["copies"]["end"].copy()
        self._copies = np.zeros((COPY_QUEUES, 2), np.int64)
        self._ends = np.zeros(len(world[0]["egress"]["kind"]), np.int64)
        self._seen = self._ends.copy()
        self.failure: DeviceError | None = None
        self.recorder: Recorder | None = None
        self._first, self._rest = tick_first, tick_rest

    def use(self, systems: Sequence[System]) -> None:
        """Runs these systems from now on instead of TICK, each in a call of its own; `accept` must
        be among them. Raises UserError."""
        if self.recorder is not None:
            raise UserError("systems: not possible while recording, which runs TICK again")
        if accept not in systems:
            raise UserError("systems: expected `accept` among them, behind which the engine reads "
                            f"the clock; got {', '.join(step.name for step in systems)}")
        at = systems.index(accept) + 1
        self._first, self._rest = walked(systems[:at]), walked(systems[at:])

    @property
    def shipped(self) -> bool:
        """The tick is TICK, and nobody records it."""
        return self.recorder is None and self._first is tick_first

    def resume(self) -> None:
        """Goes on from another state of the world, whose bytes and device were put back."""
        self._launched = self._submitted = int(self.world[0]["frames"]["next_sequence"]) - 1
        self._started[:] = self.world[0]["copies"]["end"]
        self._seen[:] = self.world[0]["egress"]["end"][:, 0]

    def warm(self) -> None:
        """Compiles, or loads from the cache, everything that the loop calls. Nothing happens on a
        world without work."""
        self.step()
        self.woken_frontends()
        retirable(self.world)
        undelivered(self.world)
        to_copy(self.world, self._started, self._copies)
        fail_copies(self.world, 0)
        write_answer(self.world, 0, 0, 0, 0)
        self.idle()

    def step(self) -> bool:
        """One tick and its launches. True if a frame was launched."""
        self.begin()
        if self.recorder is not None:
            self.recorder.begin()
        if self._first(self.world):
            self.stamp()
        self._rest(self.world)
        launched = self.launch()
        if self.recorder is not None:
            self.recorder.end()
        return launched

    def begin(self) -> None:
        """What a tick begins with: the time, and what the executor has finished."""
        begin(self.world, self.clock(), self._poll())
        if self._tiers:
            self._end_copies()

    def _end_copies(self) -> None:
        """Copies that ended; after a device error all of them have failed."""
        try:
            for queue in range(COPY_QUEUES):
                if self.failure is None:
                    self.world[0]["copies"]["finished"][queue] = self.executor.copied(queue)
        except DeviceError as error:
            self._fail(error)
        if self.failure is not None:
            for queue in range(COPY_QUEUES):
                fail_copies(self.world, queue)

    def stamp(self) -> None:
        """The time of tokens that `accept` has just validated; nobody else's tokens are timed."""
        self.world[0]["clock"]["completed_ns"] = self.clock()

    def launch(self) -> bool:
        """Hands every newly submitted frame to the executor, and jobs to the grammar worker.
        True if there was a frame."""
        count = to_launch(self.world, self._launched, self._launches)
        for frame, program, sequence in self._launches[:count].tolist():
            self._launch(frame, program, sequence)
        if self.desk is not None:
            self.desk.hand_over()
        if self._tiers and to_copy(self.world, self._started, self._copies):
            self._copy()
        return bool(count)

    def _copy(self) -> None:
        """Hands new copies to the executor; after a device error they fail in the next tick."""
        for queue, (first, end) in enumerate(self._copies.tolist()):
            if first < end and self.failure is None:
                try:
                    self.executor.copy(queue, first, end)
                except DeviceError as error:
                    self._fail(error)

    def _poll(self) -> int:
        """Newest finished sequence; after a device error, every launched frame counts as failed.
        Those that the device never got end behind those that it has."""
        try:
            finished = self.executor.poll()
        except DeviceError as error:
            self._fail(error)
            return self._launched
        ended = self.failure is not None and finished >= self._submitted
        return self._launched if ended else finished

    def _launch(self, frame: int, program: int, sequence: int) -> None:
        self._launched = sequence
        if self.failure is None:
            try:
                self.executor.submit(frame, program, sequence)
                self._submitted = sequence
                return
            except DeviceError as error:
                self._fail(error)
        self.world[0]["frames"]["error"][frame] = 1

    def _fail(self, error: DeviceError) -> None:
        """A device error is final: frames in flight fail their requests, later ones at launch."""
        self.failure = self.failure or error
        submitted = self.world[0]["frames"]["state"] == FRAME_SUBMITTED
        self.world[0]["frames"]["error"][submitted] = 1

    def woken_frontends(self) -> list[int]:
        """Frontends that got events since the last call."""
        egress_ends(self.world, self._ends)
        rows = np.nonzero(self._ends != self._seen)[0]
        self._seen[:] = self._ends
        return rows.tolist()

    def close(self) -> None:
        """Drains, and ends all threads."""
        self.executor.close()
        if self.desk is not None:
            self.desk.worker.close()

    def idle(self) -> bool:
        """Nothing in flight, nothing received, nothing undelivered."""
        return not busy(self.world) and ingress_waiting(self.world) == 0

    def run(self, stop: Callable[[], bool], wake: int = -1,
            notify: Callable[[int], None] | None = None) -> None:
        """Steps until stop() is true. wake: an eventfd written by frontends; notify: called with
        each frontend that has new events. Blocks, without polling, on the executor and `wake`."""
        poller = select.poll()
        poller.register(self.executor.descriptor(), select.POLLIN)
        if wake >= 0:
            poller.register(wake, select.POLLIN)
        if self.desk is not None:
            poller.register(self.desk.worker.descriptor(), select.POLLIN)
        active = True
        while not stop():
            launched, before = self.step(), active
            active = busy(self.world)
            woken = self.woken_frontends()
            if notify is not None:
                for frontend in woken:
                    notify(frontend)
            if launched or woken or retirable(self.world) or (before and not active):
                continue  # an embedder's stop() looks at events and at an end before this blocks
            timeout = 1 if undelivered(self.world) else int(IDLE_WAIT_S * 1e3)
            for descriptor, _ in poller.poll(timeout):
                drain_eventfd(descriptor)


def drain_eventfd(descriptor: int) -> None:
    """Resets a non-blocking eventfd."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(descriptor)

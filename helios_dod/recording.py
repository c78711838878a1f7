"""The flight recorder: the last ticks' inputs, and a world that can run them again.

A tick is a function of the world and of what enters it before the tick: time, fences, the rings'
positions and new rows, the completions of finished frames, grammar masks, and copies that ended.
The recorder keeps these for the newest ticks, and a second world, the tail, in the state before the
oldest of them: an entry that leaves is executed on the tail, so memory is bounded and nothing is
ever copied whole while serving. Both lie in a ledger, which outlives an engine that is killed.
"""

import hashlib
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EEXIST
from pathlib import Path

import msgspec
import numpy as np
import zstandard

from helios_dod.code_cache import PACKAGE, sources_digest
from helios_dod.errors import UserError
from helios_dod.ledger import ADVANCING, EMPTY, KEPT, MEMORY_BYTES, UNFINISHED, Ledger
from helios_dod.limits import SIZES
from helios_dod.schedule import tick_first, tick_rest
from helios_dod.tables.grammars import drafts_allowed, job_buffers, mask_row, take_jobs
from helios_dod.terms import FRAME_SUBMITTED
from helios_dod.world import attach, boot, restore, snapshot

FORMAT = 1
TICKS = 100_000
EARLIER = 4  # earlier recordings of one name that stay beside the newest
# Written by frontends, the device or the loop; all else of a world is a tick's own doing.
EDGES = {"ingress": ("*",), "completions": ("*",), "egress": ("first",), "frames": ("error",),
         "grammars": ("masks", "answer"), "copies": ("finished", "failed")}
TOP_COLUMNS = ("top_tokens", "top_logprobs")
PACKED_COLUMNS = ("scores",)


class Row(msgspec.Struct, array_like=True):
    """A new row of an ingress ring: the columns in the table's order, and the payload's words."""

    frontend: int
    row: int
    columns: list[bytes]
    payload: bytes


class Finished(msgspec.Struct, array_like=True):
    """The completion of a frame: the columns in the table's order, rows of its lanes only."""

    frame: int
    columns: list[bytes]


class Mask(msgspec.Struct, array_like=True):
    """A grammar worker's answer for a row, and the masks that it wrote."""

    row: int
    answer: int
    words: bytes


class Entry(msgspec.Struct, array_like=True):
    """All that entered one tick from outside, and a check of what the tick decided."""

    now_ns: int
    finished_sequence: int
    errors: bytes
    ingress_seen: bytes
    egress_seen: bytes
    rows: list[Row]
    finished: list[Finished]
    masks: list[Mask]
    copied: bytes  # ended copies of each queue
    failed: list[tuple[int, int]]  # (queue, number) of those among the newest that failed
    completed_ns: int = 0  # the time of observed tokens, which is read inside the tick
    decisions: int = UNFINISHED  # the tick did not end


class File(msgspec.Struct):
    """A recording."""

    version: int
    limits: str
    sources: str  # digest of the code that ran
    tail: bytes  # the world before the first entry
    entries: list[Entry]
    digest: str  # of the world after the last entry, edges left out; empty if a tick did not end
    ended: str  # why the recording ended


class Divergence(Exception):
    """Running the inputs again decided otherwise."""


class Crash(Exception):
    """A tick raised something. Its text is what `File.ended` says of a tick that did."""


@dataclass
class Inputs:
    """The columns of one world through which things enter."""

    world: np.ndarray

    def __post_init__(self) -> None:
        w = self.world[0]
        self.ingress, self.egress = w["ingress"], w["egress"]
        self.frames, self.clock, self.done = w["frames"], w["clock"], w["completions"]
        rows = self.ingress["kind"].shape[1]
        self.row_columns = [self.ingress[name] for name in self.ingress.dtype.names
                            if name != "words" and self.ingress[name].shape[1:2] == (rows,)]
        self.done_columns = {name: self.done[name] for name in self.done.dtype.names}
        self.wants_top = w["requests"]["top_logprobs"]
        self.lane_slot, self.slot_request = w["lanes"]["slot"], w["slots"]["request"]
        self.counters, self.grammars = w["counters"], w["grammars"]
        self.copies = w["copies"]
        self.jobs = job_buffers(self.world)

    def read(self, before: np.ndarray) -> Entry:
        """The entry of the tick that begins. before: ingress positions that the last tick saw."""
        seen = self.ingress["seen"]
        rows = [self._row(frontend, position)
                for frontend in np.nonzero(seen != before)[0].tolist()
                for position in range(int(before[frontend]), int(seen[frontend]))]
        sequence = int(self.frames["finished_sequence"])
        ended = (self.frames["state"] == FRAME_SUBMITTED) & (self.frames["sequence"] <= sequence)
        return Entry(
            int(self.clock["now_ns"]), sequence, self.frames["error"].tobytes(), seen.tobytes(),
            self.egress["seen"].tobytes(), rows,
            [self._finished(frame) for frame in np.nonzero(ended)[0].tolist()],
            [Mask(row, int(self.grammars["seen"][row]), self._masks(row).tobytes())
             for row in np.nonzero(self.grammars["seen"])[0].tolist()],
            self.copies["finished"].tobytes(), self._failed())

    def _masks(self, row: int) -> np.ndarray:
        """Those that the answer of a row is about."""
        words, first = int(self.grammars["mask_words"]), int(mask_row(self.world, row))
        count = 1 + int(drafts_allowed(int(self.grammars["seen"][row])))
        masks: np.ndarray = self.grammars["masks"][first * words:(first + count) * words]
        return masks

    def _row(self, frontend: int, position: int) -> Row:
        row = position % self.ingress["kind"].shape[1]
        start, end = self.ingress["payload"][frontend, row], self.ingress["payload_end"][frontend,
                                                                                          row]
        at = int(start) % self.ingress["words"].shape[1]
        return Row(frontend, row, [column[frontend, row].tobytes() for column in self.row_columns],
                   self.ingress["words"][frontend, at:at + int(end - start)].tobytes())

    def extent(self, frame: int, name: str) -> int:
        """Rows of a completion column that mean something; scalars of a frame have none."""
        lanes = int(self.frames["lane_count"][frame])
        if name in PACKED_COLUMNS:
            return int(self.frames["packed_count"][frame])
        if name in TOP_COLUMNS:
            requests = self.slot_request[self.lane_slot[frame, :lanes]]
            live = requests[requests < len(self.wants_top)]
            return lanes if (self.wants_top[live] >= 0).any() else 0
        return lanes

    def _finished(self, frame: int) -> Finished:
        return Finished(frame, [
            (column[frame, :self.extent(frame, name)] if column.ndim > 1 else column[frame])
            .tobytes() for name, column in self.done_columns.items()])

    def _failed(self) -> list[tuple[int, int]]:
        """Copies that have ended since the last tick, and failed."""
        failed = self.copies["failed"]
        ends = zip(self.copies["first"].tolist(), self.copies["finished"].tolist(), strict=True)
        return [(queue, number) for queue, (first, end) in enumerate(ends)
                for number in range(first, end) if failed[queue, number % failed.shape[1]]]

    def write(self, entry: Entry) -> None:
        """Lets an entry's inputs enter this world, as they entered the recorded one."""
        self.clock["tick"] += 1
        self.clock["now_ns"] = entry.now_ns
        self.frames["finished_sequence"] = entry.finished_sequence
        self.frames["error"][:] = np.frombuffer(entry.errors, np.int32)
        self.ingress["seen"][:] = np.frombuffer(entry.ingress_seen, np.int64)
        self.egress["seen"][:] = np.frombuffer(entry.egress_seen, np.int64)
        self.copies["finished"][:] = np.frombuffer(entry.copied, np.int64)
        for queue, number in entry.failed:
            self.copies["failed"][queue, number % self.copies["failed"].shape[1]] = 1
        for row in entry.rows:
            for column, data in zip(self.row_columns, row.columns, strict=True):
                place = column[row.frontend, row.row:row.row + 1]
                place[...] = np.frombuffer(data, column.dtype).reshape(place.shape)
            words = np.frombuffer(row.payload, np.int32)
            at = int(self.ingress["payload"][row.frontend, row.row]) % (
                self.ingress["words"].shape[1])
            self.ingress["words"][row.frontend, at:at + len(words)] = words
        for done in entry.finished:
            for (name, column), data in zip(self.done_columns.items(), done.columns, strict=True):
                place = (column[done.frame, :self.extent(done.frame, name)] if column.ndim > 1
                         else column[done.frame:done.frame + 1])
                place[...] = np.frombuffer(data, column.dtype).reshape(place.shape)

        self.grammars["seen"][:] = 0
        for mask in entry.masks:
            self.grammars["seen"][mask.row] = mask.answer
            self._masks(mask.row)[:] = np.frombuffer(mask.words, np.uint32)

    def hand_over(self) -> None:
        """What the engine does after a tick, for a worker that there is not."""
        take_jobs(self.world, *self.jobs)

    def decisions(self) -> int:
        """A check of what a tick did: counters, frames and their lanes."""
        check = zlib.crc32(self.counters.tobytes())
        for frame, count in enumerate(self.frames["lane_count"].tolist()):
            check = zlib.crc32(self.lane_slot[frame, :count].tobytes(), check)
        for name in ("state", "program", "sequence"):
            check = zlib.crc32(self.frames[name].tobytes(), check)
        return check


def edgeless_digest(world: np.ndarray) -> str:
    """Hex SHA-256 of all that ticks alone write."""
    digest = hashlib.sha256()
    for table in world.dtype.names or ():
        left_out = EDGES.get(table, ())
        for column in world.dtype[table].names or ():
            if column not in left_out and "*" not in left_out:
                digest.update(np.ascontiguousarray(world[0][table][column]).data)
    return digest.hexdigest()


class Recorder:
    """Records an engine's world. ticks, memory_bytes: what is kept at most. ledger: where, if
    somebody else shall be able to write it."""

    def __init__(self, world: np.ndarray, limits_name: str, ticks: int = TICKS,
                 memory_bytes: int = MEMORY_BYTES, ledger: Ledger | None = None) -> None:
        self.limits_name, self.ticks = limits_name, ticks
        self.ledger = ledger or Ledger(world.nbytes, memory_bytes)
        self.ledger.state = EMPTY
        self.inputs = Inputs(world)
        self.tail = Inputs(boot(SIZES[limits_name], self.ledger.tail))
        restore(self.tail.world, snapshot(world))
        self.ledger.begin()
        self.before = world[0]["ingress"]["seen"].copy()
        self.broken = ""  # why recording stopped; serving goes on

    def begin(self) -> None:
        """Call between the engine's `begin` and its tick. Inputs for which there is no room at all
        end the recording."""
        if self.broken:
            return
        data = msgspec.msgpack.encode(self.inputs.read(self.before))
        self.before[:] = self.inputs.ingress["seen"]
        while not self.ledger.fits(data):
            if self.ledger.count == 0:
                self._stop(f"a tick's inputs have {len(data)} bytes, which "
                           f"{self.ledger.words.nbytes} do not hold")
            else:
                self._advance()
            if self.broken:
                return
        self.ledger.append(data)

    def end(self) -> None:
        """Call after the tick and its launches."""
        if self.broken:
            return
        self.ledger.finish(int(self.inputs.clock["completed_ns"]), self.inputs.decisions())
        while self.ledger.count > self.ticks and not self.broken:
            self._advance()

    def _advance(self) -> None:
        """Runs the oldest tick on the tail. One that does not run again as it ran ends the
        recording."""
        self.ledger.state = ADVANCING
        try:
            run_again(self.tail, entry_of(*self.ledger.oldest()))
        except (Divergence, Crash) as error:
            self._stop(str(error))
            return
        self.ledger.drop()
        self.ledger.state = KEPT

    def _stop(self, reason: str) -> None:
        self.broken = f"recording stopped: {reason}"
        self.ledger.state = EMPTY
        print(self.broken, file=sys.stderr)

    def save(self, path: Path, ended: str) -> None:
        """Writes the recording. ended: why, for a tick that raised as `crash_text` says it. Raises
        UserError."""
        if self.broken:
            raise UserError(f"{path}: not written, {self.broken}")
        write(self.ledger, self.inputs.world, self.limits_name, path, ended)


def entry_of(data: bytes, completed_ns: int, decisions: int) -> Entry:
    """An entry as a ledger keeps it."""
    entry = msgspec.msgpack.decode(data, type=Entry)
    entry.completed_ns, entry.decisions = completed_ns, decisions
    return entry


def write(ledger: Ledger, world: np.ndarray, limits_name: str, path: Path, ended: str) -> None:
    """Writes what a ledger keeps of a world, beside first; what was there becomes PATH.1, and so on
    up to EARLIER. Raises UserError."""
    entries = [entry_of(*entry) for entry in ledger.entries()]
    tail, now = attach(SIZES[limits_name], ledger.tail)[0]["clock"], world[0]["clock"]
    whole = tail["tick"] + len(entries) == now["tick"]  # else one had begun that is not here
    if entries and entries[-1].decisions == UNFINISHED:
        entries[-1].completed_ns = int(now["completed_ns"])
        whole = False
    file = File(FORMAT, limits_name, code_digest(), bytes(ledger.tail), entries,
                edgeless_digest(world) if whole else "", ended)
    fresh = beside(path)
    try:
        fresh.write_bytes(zstandard.compress(msgspec.msgpack.encode(file), 3))
        keep_earlier(path)
        fresh.replace(path)
    except OSError as error:
        raise UserError(f"{path}: not written, {error.strerror}") from None


def salvage(ledger: Ledger, memory: memoryview, limits_name: str, path: Path, ended: str) -> None:
    """Writes the recording of an engine that was killed in that memory, if there is one. Raises
    UserError."""
    state, ledger.state = ledger.state, EMPTY
    if state == ADVANCING:
        raise UserError(f"{path}: not written, the engine ended while it ran its oldest tick again")
    if state == KEPT:
        write(ledger, attach(SIZES[limits_name], memory), limits_name, path, ended)


def beside(path: Path) -> Path:
    """Where a recording is written first."""
    return path.with_name(path.name + ".partial")


def keep_earlier(path: Path) -> None:
    """PATH becomes PATH.1, that one PATH.2, and so on: PATH.EARLIER is lost. Raises OSError."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, EARLIER + 1))]
    free = next((at for at, name in enumerate(names) if not name.exists()), EARLIER)
    for at in range(free, 0, -1):
        names[at - 1].replace(names[at])


def check_target(path: Path) -> None:
    """Raises UserError unless a recording can be written there."""
    try:
        if path.exists() and not path.is_file():
            raise FileExistsError(EEXIST, "it is no file")
        beside(path).touch()
        beside(path).unlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"expected a file in a folder that can be written to, got {path} "
                        f"({reason})") from None


def crash_text(error: BaseException) -> str:
    """What a recording says of an engine that raised."""
    return f"{type(error).__name__}: {error}"


def code_digest() -> str:
    """Digest of the sources that a tick is made from."""
    return sources_digest(PACKAGE / "schedule.py")


def run_again(inputs: Inputs, entry: Entry) -> None:
    """One recorded tick on another world. Raises Divergence, Crash."""
    inputs.write(entry)
    try:
        if tick_first(inputs.world):
            inputs.clock["completed_ns"] = entry.completed_ns
        tick_rest(inputs.world)
    except Exception as error:
        raise Crash(crash_text(error)) from error
    if entry.decisions not in (UNFINISHED, inputs.decisions()):
        raise Divergence(f"tick {int(inputs.clock['tick'])} decided otherwise than recorded")
    inputs.hand_over()


def load(path: Path) -> File:
    """Reads a recording. Raises UserError."""
    try:
        data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        file = msgspec.msgpack.decode(data, type=File)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: not a recording ({error})") from None
    for field, expected, got in (
            ("version", FORMAT, file.version), ("sources", code_digest(), file.sources)):
        if expected != got:
            raise UserError(f"{path}: {field}: expected {expected}, got {got}; a recording runs "
                            "only with the code that made it")
    if file.limits not in SIZES:
        raise UserError(f"{path}: limits: expected one of {', '.join(SIZES)}, got {file.limits}")
    return file


def first_world(file: File) -> np.ndarray:
    """The world before the first recorded tick. Raises UserError."""
    world = boot(SIZES[file.limits])
    if len(file.tail) != world.nbytes:
        raise UserError(f"tail: expected {world.nbytes} bytes, got {len(file.tail)}")
    restore(world, file.tail)
    return world


def replay(file: File) -> Iterator[np.ndarray]:
    """The world after each recorded tick. Raises UserError, Divergence, Crash."""
    world = first_world(file)
    inputs = Inputs(world)
    for entry in file.entries:
        run_again(inputs, entry)
        yield world
    if file.digest and edgeless_digest(world) != file.digest:
        raise Divergence("the world after the last tick is not the recorded one")

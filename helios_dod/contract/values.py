"""What i32 elements are: where a body may take row numbers, positions and counts from.

Host staging says what it is by its binding's source. STATE and SCRATCH are 0 at load, and hold
what some operation of some program put there: this is followed through all bodies until nothing is
added, so that an index that an operation reads is known to lie in what it indexes.

    slot, lane, packed row, sample row     number of such a row (a sample row only where a lane
    state row, snapshot row                samples; a snapshot row may be -1)
    token, token?                          an id below the vocabulary; the same, or -1
    position                               of a token in its text
    start, length, consumed                a lane's packed rows and endpoint, as the host staged
    drawn start, drawn length              them; the same in a Draft's own rows
    drawn state row                        a request's row of state before one of its drafts
    update count, updates, copy count ...  of page tables, by view
    page                                   of page group 0 or 1, the offset
    constant, number                       0, 1 or -1; anything
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from helios_dod.contract.extents import Value
from helios_dod.contract.operations import OPERATIONS, Touch
from helios_dod.contract.prepared import PreparedProgram
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

COLUMNS_APART = 16  # columns of a row that are told apart
VALUES_MAX = 32  # that are told apart in a cell
Span = tuple[int, int, int]  # buffer, first column, end
NUMBER = Value("number")
ZERO = Value("constant", 0)
SOURCE_VALUES = {
    contract.SLOT: "slot", contract.LANE: "lane", contract.SAMPLE_ROW: "sample row",
    contract.QUERY_START: "start", contract.QUERY_LENGTH: "length", contract.CONSUMED: "consumed",
    contract.POSITION: "position", contract.TOKEN: "token?", contract.TARGET_TOKEN: "token",
    contract.PENDING_TOKEN: "token", contract.STATE_ROW: "state row",
    contract.RESTORE_SOURCE: "snapshot row", contract.SNAPSHOT_DESTINATION: "snapshot row",
    contract.PAGE_UPDATE_COUNT: "update count", contract.PAGE_UPDATES: "updates",
    contract.PAGE_COPY_COUNT: "copy count", contract.PAGE_COPIES: "copies",
    contract.BIAS_COUNT: "bias count", contract.BIAS_TOKENS: "token",
    contract.STOP_TOKENS: "token?", contract.CANDIDATE_COUNT: "candidates",
    contract.CANDIDATE_TOKENS: "token"}
# Programs whose lanes all take tokens that the host knows.
KNOWN_TOKENS = (wire.INITIALIZE, wire.RESTORE, wire.PREFILL, wire.SCORED_PREFILL, wire.RESUME)
# Staged geometry that is any number where it is copied: it belongs to its own row.
COPIED = frozenset({"start", "length", "consumed", "sample row", "drawn start", "drawn length",
                    "candidates", "update count", "updates", "copy count", "copies"})
# What a Draft keeps in the columns of its rows (proto Draft).
TARGET_ROWS = ("token", "slot", "packed row")
DRAWN_LANES = ("token", "position", "slot", "drawn start", "drawn length", "lane", "one",
               "token?")
COLUMNS = {"target_rows": TARGET_ROWS, "drawn_lanes": DRAWN_LANES}
# What an operand may be, beside 0: by the `values` of operations.py.
ALLOWED = {
    "slot": {"slot"}, "position": {"position"}, "start": {"start", "lane"},
    "length": {"length", "constant"}, "consumed": {"consumed"}, "token": {"token"},
    "token?": {"token?", "token"}, "bias_count": {"bias count"},
    "update_count": {"update count"}, "updates": {"updates"}, "copy_count": {"copy count"},
    "copies": {"copies"}, "candidates": {"candidates"}, "page": {"page"},
    "state_row": {"state row"},
    "rows": {"slot", "lane", "packed row", "sample row", "state row", "drawn state row", "token",
             "position", "constant"},
    "rows?": {"state row", "snapshot row", "slot", "constant"}}
MINUS_ONE = Value("constant", -1)


def constant(value: int) -> Value:
    """A value that is always the same: whether it is 0, 1 or -1 matters, else it is a number."""
    return Value("constant", value) if -1 <= value <= 1 else NUMBER


def staged_value(program: PreparedProgram, binding: Any) -> Value:
    """What a program finds in a STAGING buffer."""
    if binding.source == contract.CONSTANT:
        return constant(binding.constant)
    kind = SOURCE_VALUES.get(binding.source, "number")
    if binding.source == contract.TOKEN and (
            program.operation in KNOWN_TOKENS or program.host_pending):
        kind = "token"
    if kind in ("update count", "updates"):
        return Value(kind, binding.table)
    if binding.offset and kind in COPIED:
        return NUMBER
    return Value(kind, binding.offset)


@dataclass(frozen=True)
class Writer:
    """An operation that changes i32 elements."""

    body: int
    target: Span
    values: frozenset[Value]  # that it writes itself
    source: Span | None = None  # or takes from there, if it copies


class Values:
    """What every i32 buffer may hold: of narrow rows by column, of others all that there is.

    staged: by body, of STAGING buffers. widths: elements of a row of every buffer."""

    def __init__(self, staged: list[dict[int, frozenset[Value]]],
                 widths: Sequence[int | None]) -> None:
        self.staged, self.widths = staged, widths
        self.held: dict[tuple[int, int], set[Value]] = {}  # buffer, cell

    def cells(self, span: Span) -> Iterable[tuple[int, int]]:
        """What is told apart of a buffer's columns."""
        buffer, first, end = span
        width = self.widths[buffer]
        if width is None or width > COLUMNS_APART:
            return ((buffer, 0),)
        return [(buffer, column) for column in range(first, end)]

    def of(self, body: int, span: Span) -> frozenset[Value]:
        """What a body may find in some columns. 0, which is there at load, is not listed."""
        own = self.staged[body].get(span[0])
        if own is not None:
            return own
        return frozenset().union(*(self.held.get(cell, ()) for cell in self.cells(span)))

    def follow(self, writers: Iterable[Writer]) -> None:
        """Adds what operations put into STATE and SCRATCH until nothing is new."""
        waiting = list(dict.fromkeys(writers))
        readers: dict[int, list[Writer]] = {}
        for writer in waiting:
            if writer.source is not None:
                readers.setdefault(writer.source[0], []).append(writer)
        while waiting:
            writer = waiting.pop()
            if self._put(writer):
                waiting += readers.get(writer.target[0], ())

    def _put(self, writer: Writer) -> bool:
        """Adds what one operation writes; whether some of it is new."""
        fresh = set(writer.values)
        if writer.source is not None:
            fresh |= {NUMBER if value.kind in COPIED else value
                      for value in self.of(writer.body, writer.source)}
        changed = False
        for cell in self.cells(writer.target):
            held = self.held.setdefault(cell, set())
            new = fresh - held
            if len(held) + len(new) > VALUES_MAX:
                new = {NUMBER} - held  # anything: what is more may be as well
            held |= new
            changed |= bool(new)
        return changed


def staged_values(
    manifest: wire.ExecutionManifest, programs: Sequence[PreparedProgram],
) -> list[dict[int, frozenset[Value]]]:
    """By host body: what its programs find in STAGING."""
    found: list[dict[int, set[Value]]] = [{} for _ in manifest.host_bodies]
    filled = {table.buffer for table in manifest.tables}
    if manifest.HasField("transport"):
        filled |= {manifest.transport.frame_index, manifest.transport.submission_sequence}
    for declared, program in zip(manifest.programs, programs, strict=True):
        if program.device_body:
            continue
        own = found[declared.body]
        for binding in program.bindings:
            own.setdefault(binding.buffer, set()).add(staged_value(program, binding))
    for own in found:
        for buffer in filled:
            own.setdefault(buffer, set()).add(NUMBER)
    return [{buffer: frozenset(values) for buffer, values in own.items()} for own in found]


def writers_of(
    body: int, part: Any, touch: Touch, span: Span, source: Span | None, group: int,
) -> list[Writer]:
    """What one touch of an operation writes. source: of an operation that copies."""
    buffer, first, _ = span
    columns = COLUMNS.get(touch.values)
    if columns is not None:
        return [Writer(body, (buffer, first + i, first + i + 1), frozenset([
            constant(1) if kind == "one" else Value(kind)]))
            for i, kind in enumerate(columns)]
    if touch.values == "copy":
        return [Writer(body, span, frozenset(), source)]
    if touch.values == "fill":
        return [Writer(body, span, frozenset([constant(part.value)]))]
    if touch.values == "page":
        return [Writer(body, span, frozenset([Value("page", group)]))]
    return [Writer(body, span, frozenset([Value(touch.values.replace("_", " "))]))]


def problem(values: Iterable[Value], wanted: str, group: int) -> Value | None:
    """The first value that is none of `wanted`. group: the page group or view that it needs."""
    if wanted == "any":
        return None
    for value in sorted(values, key=str):
        right = value.kind in ALLOWED.get(wanted, (wanted,))
        if value.kind in ("page", "updates", "update count"):
            right = right and value.offset == group
        elif value.offset and wanted not in ("rows", "rows?", "length"):
            right = False
        none = value == MINUS_ONE and wanted.endswith("?")
        if not (right or none or value == ZERO):
            return value
    return None


def used_by(name: str) -> dict[str, list[Touch]]:
    """Index operands of an operation -> what is indexed by them."""
    return {touch.field: [other for other in OPERATIONS[name] if other.rows == f"@{touch.field}"]
            for touch in OPERATIONS[name] if touch.role == "index"}

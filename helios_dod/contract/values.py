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
    update count, updates, copy count ...  of page tables, by view
    page                                   of page group 0 or 1, the offset
    constant, number                       that value; anything
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from helios_dod.contract.extents import Value
from helios_dod.contract.operations import OPERATIONS, Touch
from helios_dod.contract.prepared import PreparedProgram
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

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
# What a copy of staged geometry is: a lane's start and length belong to its own row.
COPIED = {"start": "number", "length": "number", "consumed": "number", "sample row": "number",
          "drawn start": "number", "drawn length": "number", "candidates": "number",
          "update count": "number", "updates": "number", "copy count": "number",
          "copies": "number"}
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
    "rows": {"slot", "lane", "packed row", "sample row", "state row", "token", "position",
             "constant"},
    "rows?": {"state row", "snapshot row", "slot", "constant"}}
MINUS_ONE = Value("constant", -1)


def staged_value(program: PreparedProgram, binding: Any) -> Value:
    """What a program finds in a STAGING buffer."""
    if binding.source == contract.CONSTANT:
        return Value("constant", binding.constant + binding.offset)
    kind = SOURCE_VALUES.get(binding.source, "number")
    if binding.source == contract.TOKEN and (
            program.operation in KNOWN_TOKENS or program.host_pending):
        kind = "token"
    if kind in ("update count", "updates"):
        return Value(kind, binding.table)
    if binding.offset and kind in COPIED:
        return NUMBER
    return Value(kind, binding.offset)


@dataclass
class Writer:
    """An operation that changes i32 elements."""

    body: int
    target: tuple[int, int, int]  # buffer, first column, end
    values: frozenset[Value]  # that it writes itself
    source: tuple[int, int, int] | None = None  # or takes from there, if it copies


@dataclass
class Values:
    """What every i32 buffer may hold. staged: by body, of STAGING buffers."""

    staged: list[dict[int, frozenset[Value]]]
    held: dict[int, dict[tuple[int, int], set[Value]]] = field(default_factory=dict)

    def of(self, body: int, buffer: int, first: int, end: int) -> frozenset[Value]:
        """What a body may find in some columns. 0, which is there at load, is not listed."""
        own = self.staged[body].get(buffer)
        if own is not None:
            return own
        return frozenset().union(*(values for (low, high), values in
                                   self.held.get(buffer, {}).items() if low < end and first < high))

    def follow(self, writers: Iterable[Writer]) -> None:
        """Adds what operations put into STATE and SCRATCH until nothing is new."""
        waiting, changed = list(writers), True
        while changed:
            changed = False
            for writer in waiting:
                buffer, first, end = writer.target
                own = self.held.setdefault(buffer, {}).setdefault((first, end), set())
                before = len(own)
                own |= writer.values
                if writer.source is not None:
                    own |= self._copied(writer.body, writer.source)
                changed |= len(own) > before

    def _copied(self, body: int, source: tuple[int, int, int]) -> set[Value]:
        found = self.of(body, *source)
        return {NUMBER if COPIED.get(value.kind) else value for value in found}


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
    body: int, name: str, part: Any, touch: Touch, span: tuple[int, int, int],
    source: tuple[int, int, int] | None, group: int,
) -> list[Writer]:
    """What one touch of an operation writes. source: of an operation that copies."""
    buffer, first, _ = span
    columns = COLUMNS.get(touch.values)
    if columns is not None:
        return [Writer(body, (buffer, first + i, first + i + 1), frozenset([
            Value("constant", 1) if kind == "one" else Value(kind)]))
            for i, kind in enumerate(columns)]
    if touch.values == "copy":
        return [Writer(body, span, frozenset(), source)]
    if touch.values == "fill":
        return [Writer(body, span, frozenset([Value("constant", part.value)]))]
    if touch.values == "page":
        return [Writer(body, span, frozenset([Value("page", group)]))]
    kind = "drawn count" if touch.values == "drawn_count" else touch.values
    return [Writer(body, span, frozenset([Value(kind)]))]


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

"""Every operation of every host body against its declaration in operations.py: what each operand
must hold of rows and columns, of which type, and what the i32 that it reads may be.

A core is only as safe as this: an executor takes the addresses as they come."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from helios_dod.contract.errors import ContractError
from helios_dod.contract.extents import Extents, Value, covered
from helios_dod.contract.manifest import GROUP_PAGES, axes, describe_buffer, row_elements
from helios_dod.contract.operations import (
    BY_NUMBER,
    DOMAINS,
    OPERATIONS,
    REPORTS,
    ROUNDS,
    ROW_DOMAINS,
    TIMED,
    VERIFIED,
    Touch,
)
from helios_dod.contract.prepared import PreparedProgram
from helios_dod.contract.shapes import Operation, Problem
from helios_dod.contract.values import (
    COLUMNS,
    Values,
    Writer,
    problem,
    staged_values,
    used_by,
    writers_of,
)
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.limits import MASK_BITS

ROW_END = 2**62  # end of a row whose width is chosen at load
WRITES = ("write", "update", "report")
USED = {name: used_by(name) for name in OPERATIONS}
PLANES = ("cache", "store")
# What an operation is refused by outside of rounds.
FIELDS = {"draft": "step", "verify": "rows", "commit_state_rows": "state_row"}
# Operations that name rows of state behind a request's first one, if a field is set.
AHEAD = {"recurrent_scan": "ahead", "causal_convolution": "ahead", "draft": "has_state_row",
         "commit_state_rows": "state_row"}
# Operations that change what is followed.
WRITERS = frozenset(name for name, touches in OPERATIONS.items()
                    if any(touch.role in WRITES and touch.values for touch in touches))
PAIRED = frozenset(name for name, touches in OPERATIONS.items()
                   if any(touch.values == "start" for touch in touches))


def check_bodies(
    serving: contract.ServingContract, manifest: wire.ExecutionManifest,
    programs: tuple[PreparedProgram, ...],
) -> None:
    """Raises ContractError. Kinds and windows of operands are checked already."""
    Bodies(serving, manifest, programs).check()


class Resolved(NamedTuple):
    """An operation and what it names: (touch, (buffer, first column, end)), and what two operations
    have in common that are alike but for their weights and planes."""

    name: str
    part: Any
    places: list[tuple[Touch, tuple[int, int, int]]]
    same: tuple[Any, ...]
    number: int  # of those that differ


class Bodies:
    """All host bodies of a manifest, looked at together: they share buffers."""

    def __init__(self, serving: contract.ServingContract, manifest: wire.ExecutionManifest,
                 programs: tuple[PreparedProgram, ...]) -> None:
        self.serving, self.manifest = serving, manifest
        self.buffers = list(manifest.buffers)
        self.widths = [row_elements(buffer) for buffer in self.buffers]
        self.rows = [axes(buffer)[0] for buffer in self.buffers]
        self.dtypes = [buffer.dtype for buffer in self.buffers]
        self.kinds = [buffer.kind for buffer in self.buffers]
        self.tables = {table.buffer: i for i, table in enumerate(serving.model.cache.tables)}
        self.programs = [[] for _ in manifest.host_bodies]  # type: list[list[wire.Program]]
        self.rows_of_state = [0 for _ in manifest.host_bodies]
        for declared, program in zip(manifest.programs, programs, strict=True):
            if not program.device_body:
                own = self.programs[declared.body]
                rows = program.state_rows_per_request
                least = self.rows_of_state[declared.body]
                self.rows_of_state[declared.body] = min(least, rows) if own else rows
                own.append(declared)
        self.producers = {graph.body: graph.name for graph in manifest.tuning
                          if graph.WhichOneof("code") != "cuda_body"}
        hosted = [p for own in self.programs for p in own]
        self.extents = [Extents(serving, own, rows) for own, rows in zip(
            self.programs, self.rows_of_state, strict=True)]
        self.everywhere = Extents(serving, hosted, max(self.rows_of_state, default=0))
        self.resolved: dict[tuple[str, bytes], Resolved] = {}
        self.operations = [
            [self._resolve(name, getattr(operation, name)) for operation in body.operations
             if (name := operation.WhichOneof("operation")) is not None]
            for body in manifest.host_bodies]
        self.values = Values(staged_values(manifest, programs), self.widths)
        self.values.follow(self._writers())

    def check(self) -> None:
        """Raises ContractError for the first operand that is not as declared."""
        if self.manifest.HasField("live_drawn"):
            for value in self.values.of(0, (self.manifest.live_drawn, 0, 1)):
                if value.kind != "drawn count":
                    raise ContractError("manifest.live_drawn", "a count that Draft alone writes",
                                        value)
        shaped: set[int] = set()
        for number in range(len(self.operations)):
            Body(self, number).check(shaped)

    def _resolve(self, name: str, part: Any) -> Resolved:
        """What an operation names. Bodies share most of theirs, and layers name the same but for
        their weights and planes."""
        key = (name, part.SerializeToString())
        if key in self.resolved:
            return self.resolved[key]
        places, same = [], []
        for touch in OPERATIONS[name]:
            if touch.flag and not getattr(part, touch.flag):
                continue
            value = getattr(part, touch.field)
            if touch.role in BY_NUMBER:
                places.append((touch, (value, 0, 0)))
                same.append(self.rows[value] if touch.role in PLANES else
                            value if touch.role == "table" else -1)
            else:
                span = self.span(value)
                places.append((touch, span))
                same.append(span)
        self.resolved[key] = Resolved(name, part, places, tuple(same), len(self.resolved))
        return self.resolved[key]

    def span(self, operand: wire.Operand) -> tuple[int, int, int]:
        """Buffer, first column and end of an operand."""
        width = self.widths[operand.buffer]
        end = operand.column + operand.columns if operand.columns else (
            ROW_END if width is None else width)
        return operand.buffer, operand.column, end

    def group_of(self, table: int) -> int:
        """The page group of a page table, by its view."""
        views = self.serving.model.cache.tables
        return views[self.tables[table]].page_group if table in self.tables else 0

    def _writers(self) -> Iterable[Writer]:
        for number, operations in enumerate(self.operations):
            for name, part, places, *_ in operations:
                if name not in WRITERS:
                    continue
                for touch, span in places:
                    if touch.role not in WRITES or not touch.values or (
                            self.dtypes[span[0]] != wire.I32):
                        continue
                    source = None
                    if touch.values == "copy":
                        source = self.span(
                            part.input if name == "select_rows" else part.source)
                    if source is not None and self.dtypes[source[0]] != wire.I32:
                        source = None  # refused by its type
                    yield from writers_of(
                        number, part, touch, span, source, self.group_of(span[0]))


class Body:
    """One body, operation after operation. written: rows of i32 SCRATCH that it has filled."""

    def __init__(self, bodies: Bodies, number: int) -> None:
        self.all, self.number = bodies, number
        self.extents = bodies.extents[number]
        self.programs = bodies.programs[number]
        self.producer = bodies.producers.get(number, "")
        self.name = self.producer or (self.programs[0].name if self.programs else "no program")
        self.written: dict[int, set[str]] = {}
        self.passed: set[tuple[Any, ...]] = set()  # operations, but for weights and planes
        self.drafted = 0  # steps
        self.verified = 0  # operations that a Verify still runs
        self.judged = False  # behind a Verify

    def check(self, shaped: set[int]) -> None:
        """shaped: operations whose widths are known to be right."""
        for at, one in enumerate(self.all.operations[self.number]):
            name, part = one.name, one.part
            domain = self.domain(name, part)
            found = self._trials(name, domain) or self._rounds(name, part, domain)
            if found is None and one.number not in shaped:
                found = self._shape(one)
                shaped.add(one.number)
            like = (name, domain, self.verified > 0, one.same,
                    getattr(part, "trial_rows", 0))
            if found is None and (like not in self.passed or name == "copy_state_rows"):
                found = self._rows(one, domain) or self._values(one, domain)
                self.passed.add(like)
            if found is not None:
                field, expected, got = found
                raise ContractError(
                    f"manifest.host_bodies[{self.number}].operations[{at}].{name}.{field} "
                    f"({self.name})", expected, got)
            self._note(one, domain)

    def domain(self, name: str, part: Any) -> str:
        """The rows that an operation runs over."""
        if self.verified and name in VERIFIED:
            return "lanes" if name == "advance" else "packed"
        rows = 0 if name in (*ROUNDS, "copy_state_rows") else getattr(part, "rows", 0)
        return ROW_DOMAINS[rows] if rows else DOMAINS.get(name, "lanes")

    def _trials(self, name: str, domain: str) -> Problem:
        """A tuning graph has no requests: it times products of trial rows, and nothing else does.
        """
        field = {"mark_time": "output", "choose_fastest": "marks"}.get(name, "rows")
        if name in TIMED or domain == "trial":
            if self.programs or not self.producer:
                return field, "tuning graphs alone", self.name
            if name not in (*TIMED, "product"):
                return field, "products alone in ROWS_TRIAL", name
        elif self.producer:
            return field, "products of ROWS_TRIAL and what times them in a tuning graph", name
        return None

    def _rounds(self, name: str, part: Any, domain: str) -> Problem:
        """Drafts and their verification are of speculative programs, step after step."""
        drawn = name not in ROUNDS and domain == "drawn"
        ahead = name in AHEAD and getattr(part, AHEAD[name], True)
        if name in ROUNDS or drawn or ahead:
            for program in self.programs:
                if program.operation != wire.SPECULATIVE:
                    field = "rows" if drawn else FIELDS.get(name, "ahead")
                    return field, "SPECULATIVE programs alone", program.name
        if ahead:
            wanted = 1 + max((program.token_capacity for program in self.programs), default=1)
            if self.extents.state_rows < wanted:
                return (AHEAD[name], f"at least {wanted} state rows of a request, one more than "
                        "tokens of a lane", self.extents.state_rows)
        if name == "commit_state_rows" and not self.judged:
            return "state_row", "a Verify before it", "none"
        if drawn and not self.drafted:
            return "rows", "a Draft before ROWS_DRAWN", "none"
        if name == "verify" and part.has_masks:
            wanted = max((program.token_capacity for program in self.programs), default=1) * (
                -(-self.all.serving.model.vocabulary // MASK_BITS))
            _, first, end = self.all.span(part.masks)
            if end - first < wanted:
                return "masks", f"at least {wanted} columns, a mask a token", end - first
        if name != "draft":
            return None
        if part.step != self.drafted:
            return "step", f"{self.drafted}: steps follow each other", part.step
        if (part.count.buffer, part.count.column) != (self.all.manifest.live_drawn, 0):
            return "count", "manifest.live_drawn", self.all.buffers[part.count.buffer].name
        if part.has_candidates:
            drafts = max((program.draft_tokens for program in self.programs), default=0)
            _, first, end = self.all.span(part.candidate_tokens)
            if end - first < drafts:
                return "candidate_tokens", f"at least {drafts} columns, the drafts", end - first
        return None

    def _shape(self, one: Resolved) -> Problem:
        operation = Operation(
            self.all.buffers, self.all.widths, self.all.serving, one.name, one.part)
        for touch, _ in one.places:
            found = operation.touch_problem(touch)
            if found is not None:
                return found
        return operation.problem()

    def _rows(self, one: Resolved, domain: str) -> Problem:
        """Every operand has the rows that the operation touches."""
        for touch, (number, _, _) in one.places:
            if touch.rows.startswith("@") or touch.rows == "-":
                continue
            wanted = {"rows": domain, "spans": "drawn" if domain == "drawn" else "lanes",
                      "reports": "lanes" if self.verified else domain}.get(touch.rows, touch.rows)
            if wanted == "trial":
                symbol, times = self.all.rows[number]
                if symbol or times < one.part.trial_rows:
                    return touch.field, f"{one.part.trial_rows} rows", describe_buffer(
                        self.all.buffers[number])
            elif not self.extents.holds(self.all.rows[number], wanted):
                return touch.field, f"rows for {self._count(wanted)}", describe_buffer(
                    self.all.buffers[number])
            column = self.all.buffers[number].completion
            if column and column != REPORTS.get((one.name, touch.field)):
                return (touch.field, "STATE, SCRATCH or the column of this report",
                        describe_buffer(self.all.buffers[number]))
        return None

    def _count(self, domain: str) -> str:
        counts = {"packed": f"{self.extents.packed} packed tokens", "one": "one",
                  "updates": "UPDATES"}
        return counts.get(domain, f"{self.extents.batch} lanes")

    def _values(self, one: Resolved, domain: str) -> Problem:
        """Every i32 that is read is what the operation takes it for, and names rows that are there.
        """
        for touch, span in one.places:
            if touch.role == "index" or touch.values in COLUMNS:
                found = self._index_problem(one.name, one.part, touch, span, domain)
                if found is not None:
                    return found
        return self._pairs(one.name, one.part, domain)

    def _index_problem(self, name: str, part: Any, touch: Touch, span: tuple[int, int, int],
                       domain: str) -> Problem:
        buffer, first, _ = span
        wanted = COLUMNS.get(touch.values)
        if wanted is not None:
            for i, kind in enumerate(wanted):
                values = self.all.values.of(self.number, (buffer, first + i, first + i + 1))
                bad = problem(values, {"one": "length"}.get(kind, kind), 0)
                if bad is not None:
                    return touch.field, f"{kind} in column {i}", bad
            return None
        values = self.all.values.of(self.number, span)
        bad = problem(values, touch.values, self._group(name, part, touch))
        if bad is None and domain != "sampled":
            bad = next((v for v in values if v.kind == "sample row" and touch.values == "rows"),
                       None)
        if bad is not None:
            return touch.field, self._wanted(touch), f"{bad} in {self.all.buffers[buffer].name}"
        if self.all.kinds[buffer] in (wire.STATE, wire.SCRATCH):
            values |= {Value("constant", 0)}
        fresh = self._fresh(buffer, touch, domain)
        for used in USED[name][touch.field]:
            target = self._target(part, used)
            found = None if target < 0 else self._named(used, target, values, fresh)
            if found is not None:
                return found
        return None

    def _target(self, part: Any, used: Touch) -> int:
        """The buffer that is indexed; -1: none."""
        if used.flag and not getattr(part, used.flag):
            return -1
        target = getattr(part, used.field)
        return target if used.role in BY_NUMBER else target.buffer

    def _wanted(self, touch: Touch) -> str:
        return {"rows": "numbers of rows", "rows?": "numbers of rows or -1"}.get(
            touch.values, touch.values.replace("_", " ").replace("?", " or -1"))

    def _fresh(self, buffer: int, touch: Touch, domain: str) -> bool:
        """Whether the values are of this submission: others may name more rows than are live."""
        if self.all.kinds[buffer] == wire.STAGING:
            return not touch.rows.startswith("@")
        rows = {"rows": domain, "spans": "drawn" if domain == "drawn" else "lanes"}.get(
            touch.rows, touch.rows)
        return covered(rows, self.written.get(buffer, ()))

    def _named(self, used: Touch, number: int, values: Iterable[Value], fresh: bool) -> Problem:
        """Whether the rows that values are numbers of are there, in what is indexed by them."""
        buffer = self.all.buffers[number]
        rows = self.all.rows[number]
        if used.role == "table" and buffer.HasField("panel"):
            rows = (0, buffer.panel.rows)
        extents = self.extents if fresh else self.all.everywhere
        for value in sorted(values, key=str):
            if value.kind == "constant" and value.offset == -1 and used.rows != "@index":
                continue
            staged = self.all.kinds[number] == wire.STAGING and value.kind != "constant"
            if not extents.names(rows, value) or (staged and not fresh):
                return used.field, f"a row for every {value}", describe_buffer(buffer)
        return None

    def _group(self, name: str, part: Any, touch: Touch) -> int:
        """The page group, or view, that pages and updates must be of."""
        if name == "update_page_table":
            return self.all.tables.get(part.table.buffer, -1)
        if touch.values != "page":
            return 0
        plane = part.cache if name == "copy_partial_page" else part.key_cache
        return GROUP_PAGES.index(self.all.rows[plane][0])

    def _pairs(self, name: str, part: Any, domain: str) -> Problem:
        """A start and a length are of the same lane; state rows are those of one request."""
        if name == "copy_state_rows" and part.rows > max(self.extents.state_rows, 1):
            return "rows", f"at most {self.extents.state_rows} of a request", part.rows
        if name == "copy_state_rows" and part.rows > 1:
            for field in ("source_row", "destination_row"):
                values = self._of(getattr(part, field))
                if any(value.kind not in ("state row", "snapshot row") for value in values):
                    return field, "state or snapshot rows", ", ".join(sorted(map(str, values)))
        if name not in PAIRED:
            return None
        starts = {value.kind for value in self._of(part.query_start)}
        lengths = {str(value) for value in self._of(part.query_length)}
        if domain == "drawn":
            right = starts <= {"lane"} and lengths <= {"constant 1"}
        else:
            right = starts <= {"start"} and lengths <= {"length"}
            staged = all(self.all.kinds[operand.buffer] == wire.STAGING
                         for operand in (part.query_start, part.query_length))
            right = right and staged
        return None if right else ("query_length", "the lengths of the lanes of query_start",
                                   ", ".join(sorted(lengths | starts)) or "none")

    def _of(self, operand: wire.Operand) -> frozenset[Value]:
        return self.all.values.of(self.number, self.all.span(operand))

    def _note(self, one: Resolved, domain: str) -> None:
        """Remembers what the operation filled, and where it is in a round."""
        if one.name in WRITERS:
            for touch, (number, _, _) in one.places:
                if touch.role in WRITES and touch.values:
                    rows = {"rows": domain, "reports": domain}.get(touch.rows, touch.rows)
                    if touch.values in ("drawn_lanes", "drawn_state_row"):
                        rows = "drawn"
                    self.written.setdefault(number, set()).add(rows)
        self.judged |= one.name == "verify"
        self.drafted += one.name == "draft"
        self.verified = len(VERIFIED) if one.name == "verify" else max(self.verified - 1, 0)

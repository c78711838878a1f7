"""A manifest's operations as a flat table of int64 words with every address resolved.

One row an operation: its kind, its row domain, then for each operand its address and the bytes
between its rows, then attributes (floats as their 32 bits) in the order that the kernel's
constants name. Two tables, one a frame, differ in the addresses of staging and completions.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError, Geometry
from helios_dod.executors.host.attention_tile import QUERIES, SEGMENT_TOKENS, state_bytes
from helios_dod.executors.host.buffers import ITEM_BYTES, Bound, Memory
from helios_dod.executors.host.microkernels import variant_of
from helios_dod.executors.host.recurrence import STRENGTH_SIGMOID, STRENGTH_STEP

WORDS = 48
PACKED, LANES, SAMPLED, DRAWN, TRIAL = 1, 2, 3, 4, 5  # proto RowDomain
VERIFIED = 3  # operations behind a VERIFY that belong to it

# Kinds: the field numbers of proto HostOperation.
(
    SCATTER_ROWS,
    FILL_ROWS,
    UPDATE_PAGE_TABLE,
    COPY_PAGES,
    SELECT_TOKENS,
    EMBED,
    NORMALISE,
    PRODUCT,
    ROTARY,
    CACHE_WRITE,
    ATTENTION,
    ACTIVATION,
    SELECT_ROWS,
    ADJUST_LOGITS,
    SAMPLE,
    ADVANCE,
    SCORE,
    RECURRENT_SCAN,
    CAUSAL_CONVOLUTION,
    COPY_STATE_ROWS,
    COPY_PARTIAL_PAGE,
    DRAFT,
    VERIFY,
    COMMIT_STATE_ROWS,
    MARK_TIME,
    CHOOSE_FASTEST,
) = range(1, 27)
# Operations on rows alone: those of one domain that follow each other make one step.
ROW_LOCAL = {
    SCATTER_ROWS, FILL_ROWS, SELECT_TOKENS, EMBED, NORMALISE, ROTARY, CACHE_WRITE,
    ADJUST_LOGITS, SAMPLE}


def float_word(value: float) -> int:
    """The 32 bits of an f32, signed as the kernels read them."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


class Planner:
    """Turns operations into words for one frame."""

    def __init__(self, memory: Memory, geometry: Geometry, frame: int) -> None:
        self.memory, self.geometry, self.frame = memory, geometry, frame
        self.scratch_heads = {(1, 1)}  # (group, head) of every attention
        context = geometry.pages_per_request * geometry.page_tokens
        self.segments = -(-context // SEGMENT_TOKENS)
        self.vocabulary = 0
        self.rotary_count = 0
        self.key_columns = 0  # most key elements of a recurrent head

    def words(self, operation: Any) -> np.ndarray:
        """One row of the table."""
        name = operation.WhichOneof("operation")
        if name is None:
            raise DeviceError("an operation of the manifest is empty or unknown")
        op = getattr(operation, name)
        kind = operation.DESCRIPTOR.fields_by_name[name].number
        build: Callable[[Any], tuple[int, list[int]]] = getattr(self, f"_{name}")
        domain, body = build(op)
        row = np.zeros(WORDS, np.int64)
        row[0], row[1] = kind, domain
        assert len(body) <= WORDS - 2
        row[2 : 2 + len(body)] = body
        return row

    def buffer(self, index: int) -> Bound:
        """A bound buffer by its manifest index."""
        return self.memory.buffers[index]

    def _address(self, index: int) -> int:
        return self.buffer(index).address[self.frame]

    def _operand(self, operand: Any) -> list[int]:
        bound = self.buffer(operand.buffer)
        return [
            bound.address[self.frame] + operand.column * ITEM_BYTES[bound.dtype],
            bound.row_bytes,
        ]

    def _operands(self, op: Any, names: str) -> list[int]:
        return [word for name in names.split() for word in self._operand(getattr(op, name))]

    def _width(self, operand: Any) -> int:
        return operand.columns or self.buffer(operand.buffer).columns - operand.column

    def _row_size(self, operand: Any) -> int:
        return self._width(operand) * ITEM_BYTES[self.buffer(operand.buffer).dtype]

    def _storage(self, index: int) -> list[int]:
        """A matrix: address, variant, rows, columns, panel bytes, block columns, block bytes."""
        bound = self.buffer(index)
        panel = bound.panel
        if panel is None:
            raise DeviceError(f"buffer {bound.name!r} is not a panel matrix")
        try:
            variant = variant_of(panel)
        except ValueError as error:
            raise DeviceError(f"buffer {bound.name!r}: {error}") from None
        return [
            bound.address[0],
            variant,
            panel.rows,
            panel.columns,
            panel.panel_bytes,
            max(panel.block_columns, 1),
            panel.block_bytes,
        ]

    def _scatter_rows(self, op: Any) -> tuple[int, list[int]]:
        if self._row_size(op.source) != self._row_size(op.destination):
            raise DeviceError(
                f"scatter: rows of {self.buffer(op.source.buffer).name!r} and "
                f"{self.buffer(op.destination.buffer).name!r} differ in size"
            )
        return LANES, [*self._operands(op, "source slot destination"), self._row_size(op.source)]

    def _fill_rows(self, op: Any) -> tuple[int, list[int]]:
        return LANES, [0, 0, *self._operands(op, "slot destination"),
                       self._row_size(op.destination), op.value]

    def _update_page_table(self, op: Any) -> tuple[int, list[int]]:
        return 0, self._operands(op, "count updates table")

    def _copy_pages(self, op: Any) -> tuple[int, list[int]]:
        caches = self.memory.caches
        return 0, [*self._operands(op, "count pairs"), caches.ctypes.data, len(caches)]

    def _select_tokens(self, op: Any) -> tuple[int, list[int]]:
        staged = self._operand(op.staged) if op.has_staged else [0, 0]
        return PACKED, [*staged, *self._operands(op, "pending slot lane output")]

    def _embed(self, op: Any) -> tuple[int, list[int]]:
        table = self.buffer(op.table)
        columns = self._width(op.output)
        body = [
            *self._operands(op, "index output"),
            int(op.accumulate),
            float_word(op.scale),
            columns,
        ]
        if table.panel is None:
            plain = {1: 4, 2: 2, 3: 3}[table.dtype]
            return op.rows, [*body, plain, table.address[0]]
        address, variant, _, _, panel_bytes, block_columns, block_bytes = self._storage(op.table)
        return op.rows, [*body, 0, address, variant, 0, 0, panel_bytes, block_columns, block_bytes]

    def _normalise(self, op: Any) -> tuple[int, list[int]]:
        columns = self._width(op.input)
        return op.rows, [
            *self._operands(op, "input output"),
            self._address(op.weight),
            self._address(op.bias) if op.has_bias else 0,
            float_word(op.epsilon),
            op.group or columns,
            columns,
            op.kind,
        ]

    def _product(self, op: Any) -> tuple[int, list[int]]:
        address, variant, rows, columns, panel_bytes, block_columns, block_bytes = self._storage(
            op.weight
        )
        name = self.buffer(op.weight).name
        if self._width(op.input) != columns or self._width(op.output) != rows:
            raise DeviceError(
                f"product with {name!r} [{rows}, {columns}]: input has "
                f"{self._width(op.input)} columns, "
                f"output {self._width(op.output)}"
            )
        return op.rows, [
            *self._operands(op, "input output"),
            address,
            variant,
            rows,
            columns,
            panel_bytes,
            block_columns,
            block_bytes,
            self._address(op.bias) if op.has_bias else 0,
            int(op.accumulate),
            op.kernel,
            self._operand(op.selected)[0] if op.has_selected else 0,
            op.trial_rows,
        ]

    def _mark_time(self, op: Any) -> tuple[int, list[int]]:
        return 0, self._operands(op, "output")

    def _choose_fastest(self, op: Any) -> tuple[int, list[int]]:
        return 0, [*self._operands(op, "marks best selected"), self._width(op.best), op.first]

    def _rotary(self, op: Any) -> tuple[int, list[int]]:
        count = self.buffer(op.frequencies).shape[0]
        if 2 * count > op.head or self._width(op.operand) % op.head:
            raise DeviceError(
                f"rotary: {count} frequencies, heads of {op.head}, "
                f"{self._width(op.operand)} columns"
            )
        self.rotary_count = max(self.rotary_count, count)
        return op.rows or PACKED, [
            *self._operands(op, "operand position"),
            self._address(op.frequencies),
            count,
            op.head,
            self._width(op.operand) // op.head,
            op.kind,
            float_word(op.magnitude or 1.0),
        ]

    def _cache_pair(self, op: Any) -> tuple[Bound, Bound]:
        keys, values = self.buffer(op.key_cache), self.buffer(op.value_cache)
        page_tokens = self.geometry.page_tokens
        heads = keys.shape[1]
        if (
            keys.shape[1:] != (heads, op.head, page_tokens)
            or page_tokens % 16
            or values.shape[1:] != (heads, page_tokens, op.head)
            or keys.dtype != values.dtype
            or keys.dtype not in (1, 3)
        ):
            raise DeviceError(
                f"cache planes {keys.name!r} {keys.shape} and {values.name!r} {values.shape}: "
                f"wanted [pages, heads, {op.head}, {page_tokens}] and "
                f"[pages, heads, {page_tokens}, {op.head}] "
                "of f32 or bf16, pages of a multiple of 16 tokens"
            )
        return keys, values

    def _cache_write(self, op: Any) -> tuple[int, list[int]]:
        keys, values = self._cache_pair(op)
        return op.rows or PACKED, [
            *self._operands(op, "key value position lane slot table"),
            keys.address[0],
            values.address[0],
            keys.shape[1],
            op.head,
            self.geometry.page_tokens,
            keys.dtype,
        ]

    def _attention(self, op: Any) -> tuple[int, list[int]]:
        keys, values = self._cache_pair(op)
        if op.key_heads != keys.shape[1] or op.heads % op.key_heads:
            raise DeviceError(
                f"attention: {op.heads} heads over {op.key_heads}, cache {keys.shape}"
            )
        self.scratch_heads.add((op.heads // op.key_heads, op.head))
        return op.rows or PACKED, [
            *self._operands(op, "query output position lane slot table"),
            keys.address[0],
            values.address[0],
            op.heads,
            op.key_heads,
            op.head,
            float_word(op.scale),
            op.window,
            *self._operands(op, "query_start query_length"),
            self.geometry.page_tokens,
            keys.dtype,
            0,  # parts: the executor's, once their size is known
            state_bytes(max(QUERIES, op.heads // op.key_heads), op.head),
            self.segments,
        ]

    def _activation(self, op: Any) -> tuple[int, list[int]]:
        up = self._operand(op.up) if op.has_up else [0, 0]
        return op.rows, [*self._operand(op.gate), *up, *self._operand(op.output), op.kind,
                         self._width(op.gate)]

    def _select_rows(self, op: Any) -> tuple[int, list[int]]:
        return op.rows, [*self._operands(op, "input index output"), self._row_size(op.input)]

    def _vocabulary(self, operand: Any) -> int:
        self.vocabulary = max(self.vocabulary, self._width(operand))
        return self._width(operand)

    def _adjust_logits(self, op: Any) -> tuple[int, list[int]]:
        names = (
            "logits slot histogram repetition presence frequency bias_tokens bias_values "
            "bias_count stop_tokens minimum generated status"
        )
        return SAMPLED, [
            *self._operands(op, names),
            self._vocabulary(op.logits),
            self._width(op.stop_tokens),
            *(self._operand(op.mask) if op.has_mask else [0, 0]),
        ]

    def _sample(self, op: Any) -> tuple[int, list[int]]:
        names = (
            "logits slot temperature top_p min_p top_k seed position sample_row top_count output "
            "logprob top_tokens top_logprobs status"
        )
        return op.rows or SAMPLED, [*self._operands(op, names), self._vocabulary(op.logits)]

    def _advance(self, op: Any) -> tuple[int, list[int]]:
        names = (
            "sampled slot generation consumed query_length pending histogram generated limit "
            "minimum stop_tokens status"
        )
        columns = self.memory.world[0]["completions"]

        def column(name: str) -> int:
            return int(columns[name][self.frame].ctypes.data)

        return LANES, [
            *self._operands(op, names),
            self._width(op.stop_tokens),
            column("slot"),
            column("generation"),
            column("status"),
            column("offered"),
            column("accepted"),
            column("emitted"),
            column("tokens"),
            columns["tokens"].strides[1],
            column("endpoint"),
            column("cursor"),
            column("reserved"),
        ]

    def _draft(self, op: Any) -> tuple[int, list[int]]:
        copied = "candidate_tokens candidate_count candidate_generation candidate_endpoint"
        columns = self.memory.world[0]["completions"]
        return LANES, [
            op.step,
            int(op.has_candidates),
            *self._operands(
                op, "slot generation consumed query_start query_length position pending"),
            *(self._operands(op, copied) if op.has_candidates else [0] * 8),
            *self._operands(op, "rows drawn count"),
            *(int(columns[name].ctypes.data + self.frame * columns[name].strides[0])
              for name in ("aggregate", "agreement")),
            *(self._operands(op, "state_row drawn_state_row") if op.has_state_row else [0] * 4),
        ]

    def _verify(self, op: Any) -> tuple[int, list[int]]:
        return LANES, [*self._operands(op, "rows query_start query_length"),
                       *(self._operand(op.masks) if op.has_masks else [0, 0])]

    def _score(self, op: Any) -> tuple[int, list[int]]:
        return PACKED, [*self._operands(op, "logits target output"), self._vocabulary(op.logits)]

    def _recurrent_scan(self, op: Any) -> tuple[int, list[int]]:
        keys, values = op.key_heads * op.key_columns, op.heads * op.value_columns
        gates = self._width(op.gate)
        widths = {"query": keys, "key": keys, "value": values, "output": values,
                  "state": op.heads * op.key_columns * op.value_columns}
        for name, columns in widths.items():
            if self._width(getattr(op, name)) != columns:
                raise DeviceError(f"recurrent scan: {self._width(getattr(op, name))} columns of "
                                  f"{name}, {columns} wanted")
        if not op.key_heads or op.heads % op.key_heads or gates not in (
                op.heads, op.heads * op.key_columns):
            raise DeviceError(
                f"recurrent scan: {op.heads} heads over {op.key_heads}, {gates} gates")
        if op.strength_kind == STRENGTH_STEP and gates != op.heads:
            raise DeviceError(f"recurrent scan: a step of {gates} gates as strength of {op.heads}")
        if (op.strength_kind == STRENGTH_SIGMOID) != op.has_strength:
            raise DeviceError("recurrent scan: a strength operand exactly for STRENGTH_SIGMOID")
        self.key_columns = max(self.key_columns, op.key_columns)
        return DRAWN if op.rows == DRAWN else LANES, [
            *self._operands(op, "query key value gate state state_row query_start query_length "
                                "output"),
            *(self._operand(op.strength) if op.has_strength else (0, 0)),
            self._address(op.rate), self._address(op.bias), op.strength_kind, int(op.delta),
            op.heads, op.key_heads, op.key_columns, op.value_columns, float_word(op.scale), gates,
            int(op.ahead)]

    def _causal_convolution(self, op: Any) -> tuple[int, list[int]]:
        taps = self.buffer(op.taps)
        columns = self._width(op.input)
        if taps.columns != columns or self._width(op.output) != columns or (
                self._width(op.state) != (taps.shape[0] - 1) * columns):
            raise DeviceError(f"causal convolution: taps {taps.shape}, {columns} columns, "
                              f"{self._width(op.state)} of state")
        return DRAWN if op.rows == DRAWN else LANES, [
            *self._operands(op, "input output state state_row query_start query_length"),
            taps.address[0], taps.shape[0], self._address(op.bias) if op.has_bias else 0, columns,
            int(op.ahead)]

    def _commit_state_rows(self, op: Any) -> tuple[int, list[int]]:
        emitted = self.memory.world[0]["completions"]["emitted"][self.frame]
        return LANES, [*self._operands(op, "state_row state"), self._row_size(op.state),
                       int(emitted.ctypes.data)]

    def _copy_state_rows(self, op: Any) -> tuple[int, list[int]]:
        nbytes, room = self._row_size(op.source), self._row_size(op.destination)
        if nbytes != room or not op.rows:
            raise DeviceError(f"copy of {op.rows} state rows: {nbytes} bytes of a source row, "
                              f"{room} of a destination row")
        return LANES, [*self._operands(op, "source_row destination_row source destination"),
                       nbytes, op.rows]

    def _copy_partial_page(self, op: Any) -> tuple[int, list[int]]:
        cache = self.buffer(op.cache)
        room = self._row_size(op.storage)
        if room < cache.row_bytes:
            raise DeviceError(f"copy of a partial page: {cache.row_bytes} bytes of {cache.name!r}, "
                              f"{room} of storage")
        return LANES, [
            *self._operands(op, "row slot consumed query_length table storage"),
            cache.address[0], cache.row_bytes, self.geometry.page_tokens, int(op.restore)]


def steps_of(table: np.ndarray) -> np.ndarray:
    """First operation and count of each step of a program: int64 [steps, 2]."""
    steps: list[list[int]] = []
    for i, here in enumerate(table):
        before = table[i - 1]
        verified = steps and table[steps[-1][0], 0] == VERIFY and steps[-1][1] <= VERIFIED
        if verified or (
            steps
            and here[0] in ROW_LOCAL
            and before[0] in ROW_LOCAL | {SELECT_ROWS}
            and here[1] == before[1]
        ):
            steps[-1][1] += 1
        else:
            steps.append([i, 1])
    return np.array(steps, np.int64)

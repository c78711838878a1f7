"""A plain executor: every operation of a manifest in a few lines of numpy, to compare with.

Slow, greedy only, written from proto/manifest.proto alone. An Executor (load, submit, poll).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import Geometry
from helios_dod.executors.host.panels import PanelShape, unpack_matrix
from helios_dod.ignition.floats import to_e4m3

# Values of the 256 codes of e4m3; NaN at 0x7F and 0xFF.
E4M3 = np.array([
    (-1.0 if code & 0x80 else 1.0) * (
        np.nan if code & 0x7F == 0x7F else
        code % 8 / 512 if code >> 3 & 15 == 0 else (8 + code % 8) * 2.0 ** ((code >> 3 & 15) - 10))
    for code in range(256)], np.float32)
DTYPES = {
    wire.F32: np.float32, wire.F16: np.float16, wire.BF16: np.uint16, wire.I32: np.int32,
    wire.U32: np.uint32, wire.I64: np.int64, wire.U64: np.uint64, wire.U8: np.uint8,
    wire.I8: np.int8, wire.F8_E4M3: np.uint8,
}
COLUMNS = {
    wire.COMPLETION_SLOT: "slot", wire.COMPLETION_GENERATION: "generation",
    wire.COMPLETION_STATUS: "status", wire.COMPLETION_OFFERED: "offered",
    wire.COMPLETION_ACCEPTED: "accepted", wire.COMPLETION_EMITTED: "emitted",
    wire.COMPLETION_TOKENS: "tokens", wire.COMPLETION_ENDPOINT: "endpoint",
    wire.COMPLETION_CURSOR: "cursor", wire.COMPLETION_RESERVED: "reserved",
    wire.COMPLETION_LOGPROB: "logprob", wire.COMPLETION_TOP_TOKENS: "top_tokens",
    wire.COMPLETION_TOP_LOGPROBS: "top_logprobs", wire.COMPLETION_SCORES: "scores",
}
ERF = np.vectorize(math.erf)


def activate(kind: int, x: np.ndarray) -> np.ndarray:
    """The four activations, in float32."""
    if kind == wire.SILU:
        return x / (1 + np.exp(-x))
    if kind == wire.GELU_TANH:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if kind == wire.GELU_ERF:
        return 0.5 * x * (1 + ERF(x / np.sqrt(2)))
    assert kind == wire.RELU
    return np.maximum(x, 0)


def eighths_of(x: np.ndarray) -> np.ndarray:
    """Rows rounded to e4m3, whose largest value stands for the row's."""
    factor = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-30)) / np.float32(448)
    return E4M3[to_e4m3(x / factor)] * factor


class PlainDevice:
    """Executor over numpy arrays; a submission is finished when `submit` returns.

    eighths: in programs of more than one row the rows that products of layers read are rounded to
    e4m3 first, with a factor each, as kernels of weights in e4m3 do; head: those of the head too.
    real: what F32 values between operations are kept in; float64 with a cache of F32 rounds
    nothing."""

    name = "plain"

    def __init__(self, eighths: bool = False, real: type = np.float32, head: bool = False) -> None:
        self.eighths, self.real, self.head = eighths, real, head

    def load(self, manifest: Any, geometry: Geometry, weights: Mapping[str, np.ndarray],
             staging_first: Mapping[int, int], world: np.ndarray) -> None:
        """Binds every buffer; STAGING and COMPLETION are views made at each submission."""
        self.manifest, self.geometry, self.world = manifest, geometry, world
        self.staging_first = staging_first
        self.finished = 0
        self.arrays: dict[int, np.ndarray] = {}
        for index, buffer in enumerate(manifest.buffers):
            if buffer.kind == wire.WEIGHT:
                first = buffer.resource_offset
                data = weights[buffer.resource_id][first : first + buffer.resource_nbytes]
                self.arrays[index] = self.weight(buffer, data)
            elif buffer.kind not in (wire.STAGING, wire.COMPLETION):
                kept = self.real if buffer.dtype == wire.F32 else DTYPES[buffer.dtype]
                self.arrays[index] = np.zeros(self.shape(buffer), kept)

    def shape(self, buffer: Any) -> tuple[int, ...]:
        """Extents of a buffer."""
        return tuple(self.geometry.extent(axis.symbol, axis.multiplier) for axis in buffer.shape)

    def weight(self, buffer: Any, data: np.ndarray) -> np.ndarray:
        """Values of a weight buffer as float32."""
        if not buffer.HasField("panel"):
            assert buffer.dtype == wire.F32
            return data.view(np.float32).reshape(self.shape(buffer))
        panel = buffer.panel
        shape = PanelShape(panel.encoding, panel.rows, panel.columns, panel.panel_rows,
                           panel.block_columns, panel.scale, panel.minimum)
        return unpack_matrix(shape, data)

    def submit(self, frame: int, program: int, sequence: int) -> None:
        """Runs a program to its end."""
        staging = self.world[0]["staging"]["words"][frame]
        for index, buffer in enumerate(self.manifest.buffers):
            if buffer.kind == wire.STAGING and index in self.staging_first:
                shape, dtype = self.shape(buffer), DTYPES[buffer.dtype]
                words = int(np.prod(shape)) * np.dtype(dtype).itemsize // 4
                first = self.staging_first[index]
                self.arrays[index] = staging[first : first + words].view(dtype).reshape(shape)
            elif buffer.kind == wire.COMPLETION:
                column = self.world[0]["completions"][COLUMNS[buffer.completion]][frame]
                self.arrays[index] = column.view(DTYPES[buffer.dtype])
        self.live = {
            wire.ROWS_PACKED: int(self.arrays[self.manifest.live_packed][0]),
            wire.ROWS_LANES: int(self.arrays[self.manifest.live_lanes][0]),
            wire.ROWS_SAMPLED: int(self.arrays[self.manifest.live_sampled][0]),
        }
        self.program = self.manifest.programs[program]
        body = self.manifest.host_bodies[self.program.body]
        for operation in body.operations:
            name = operation.WhichOneof("operation")
            getattr(self, name)(getattr(operation, name))
        self.finished = sequence

    def poll(self) -> int:
        """The newest finished sequence."""
        return self.finished

    def drain(self) -> None:
        """Nothing is ever in flight."""

    def close(self) -> None:
        """Nothing to free."""

    def at(self, operand: Any) -> np.ndarray:
        """The view that an operand names."""
        array = self.arrays[operand.buffer]
        if array.ndim < 2 or not operand.columns:
            return array
        return array[:, operand.column : operand.column + operand.columns]

    @property
    def lanes(self) -> int:
        return self.live[wire.ROWS_LANES]

    @property
    def packed(self) -> int:
        return self.live[wire.ROWS_PACKED]

    def scatter_rows(self, op: Any) -> None:
        slot, source = self.at(op.slot), self.at(op.source)
        self.at(op.destination)[slot[: self.lanes]] = source[: self.lanes]

    def fill_rows(self, op: Any) -> None:
        self.at(op.destination)[self.at(op.slot)[: self.lanes]] = op.value

    def update_page_table(self, op: Any) -> None:
        for slot, index, page in self.at(op.updates)[: self.at(op.count)[0]]:
            self.at(op.table)[slot, index] = page

    def copy_pages(self, op: Any) -> None:
        for source, destination in self.at(op.pairs)[: self.at(op.count)[0]]:
            for index, buffer in enumerate(self.manifest.buffers):
                if buffer.kind == wire.CACHE:
                    self.arrays[index][destination] = self.arrays[index][source]

    def select_tokens(self, op: Any) -> None:
        rows = self.packed
        pending = self.at(op.pending)[self.at(op.slot)[self.at(op.lane)[:rows]]]
        staged = self.at(op.staged)[:rows] if op.has_staged else np.full(rows, -1)
        self.at(op.output)[:rows] = np.where(staged >= 0, staged, pending)

    def embed(self, op: Any) -> None:
        rows = self.live[op.rows]
        values = self.arrays[op.table][self.at(op.index)[:rows]] * np.float32(op.scale or 1)
        output = self.at(op.output)
        output[:rows] = values + (output[:rows] if op.accumulate else 0)

    def normalise(self, op: Any) -> None:
        rows = self.live[op.rows]
        x = self.at(op.input)[:rows]
        group = op.group or x.shape[1]
        x = x.reshape(rows, x.shape[1] // group, group)
        if op.kind == wire.LAYER:
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(op.epsilon))
        x = x * self.arrays[op.weight] + (self.arrays[op.bias] if op.has_bias else 0)
        self.at(op.output)[:rows] = x.reshape(self.at(op.output)[:rows].shape)

    def product(self, op: Any) -> None:
        rows, x = self.live[op.rows], self.at(op.input)
        x = x[:rows]
        capacity = self.program.packed_token_capacity if op.rows == wire.ROWS_PACKED else (
            self.program.batch_capacity)
        logits = self.manifest.buffers[op.output.buffer].shape[0].symbol == wire.LOGIT_ROWS
        if self.eighths and capacity > 1 and (self.head or not logits):
            x = eighths_of(x)
        y = x @ self.arrays[op.weight].T
        output = self.at(op.output)
        assert y.shape[1] == output.shape[1], self.manifest.buffers[op.weight].name
        y = y + (self.arrays[op.bias] if op.has_bias else 0)
        output[:rows] = y + (output[:rows] if op.accumulate else 0)

    def rotary(self, op: Any) -> None:
        rows, frequencies = self.packed, self.arrays[op.frequencies]
        x = self.at(op.operand)[:rows]
        heads, half = x.reshape(rows, -1, op.head).copy(), len(frequencies)
        angle = self.at(op.position)[:rows, None, None].astype(self.real) * frequencies
        cos, sin = (f(angle) * np.float32(op.magnitude or 1) for f in (np.cos, np.sin))
        first, second = ((slice(0, half), slice(half, 2 * half)) if op.kind == wire.HALVES
                         else (slice(0, 2 * half, 2), slice(1, 2 * half, 2)))
        a, b = heads[..., first].copy(), heads[..., second].copy()
        heads[..., first], heads[..., second] = a * cos - b * sin, a * sin + b * cos
        x[:] = heads.reshape(rows, -1)

    def stored(self, cache: int, values: np.ndarray) -> np.ndarray:
        """float32 as the cache's element type."""
        if self.manifest.buffers[cache].dtype == wire.F32:
            return values
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    def loaded(self, cache: int, values: np.ndarray) -> np.ndarray:
        """A cache's elements as float32."""
        if self.manifest.buffers[cache].dtype == wire.F32:
            return values
        return (values.astype(np.uint32) << 16).view(np.float32)

    def cache_write(self, op: Any) -> None:
        tokens = self.geometry.page_tokens
        for row in range(self.packed):
            slot = self.at(op.slot)[self.at(op.lane)[row]]
            page, token = divmod(int(self.at(op.position)[row]), tokens)
            page = self.at(op.table)[slot, page]
            key = self.stored(op.key_cache, self.at(op.key)[row]).reshape(-1, op.head)
            value = self.stored(op.value_cache, self.at(op.value)[row]).reshape(-1, op.head)
            self.arrays[op.key_cache][page, :, :, token] = key
            self.arrays[op.value_cache][page, :, token, :] = value

    def attention(self, op: Any) -> None:
        tokens = self.geometry.page_tokens
        share = op.heads // op.key_heads
        for row in range(self.packed):
            slot = self.at(op.slot)[self.at(op.lane)[row]]
            end = int(self.at(op.position)[row]) + 1
            first = max(0, end - op.window) if op.window else 0
            pages = self.at(op.table)[slot, : -(-end // tokens)]
            keys = self.loaded(op.key_cache, self.arrays[op.key_cache][pages])
            keys = keys.transpose(1, 0, 3, 2).reshape(op.key_heads, -1, op.head)[:, first:end]
            values = self.loaded(op.value_cache, self.arrays[op.value_cache][pages])
            values = values.transpose(1, 0, 2, 3).reshape(op.key_heads, -1, op.head)[:, first:end]
            query = self.at(op.query)[row].reshape(op.key_heads, share, op.head)
            scores = np.einsum("ksh,kth->kst", query, keys) * np.float32(op.scale)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            self.at(op.output)[row] = np.einsum("kst,kth->ksh", scores, values).reshape(-1)

    def activation(self, op: Any) -> None:
        rows = self.live[op.rows]
        value = activate(op.kind, self.at(op.gate)[:rows])
        self.at(op.output)[:rows] = value * self.at(op.up)[:rows] if op.has_up else value

    def select_rows(self, op: Any) -> None:
        rows = self.live[op.rows]
        self.at(op.output)[:rows] = self.at(op.input)[self.at(op.index)[:rows]]

    def adjust_logits(self, op: Any) -> None:
        assert all((self.at(op.repetition)[slot], self.at(op.bias_count)[slot]) == (1, 0)
                   for slot in self.at(op.slot)[: self.live[wire.ROWS_SAMPLED]])

    def sample(self, op: Any) -> None:
        rows = self.live[wire.ROWS_SAMPLED]
        assert not self.at(op.temperature)[self.at(op.slot)[:rows]].any()
        self.at(op.output)[:rows] = self.at(op.logits)[:rows].argmax(axis=-1)

    def advance(self, op: Any) -> None:
        named = {self.manifest.buffers[index].completion: array
                 for index, array in self.arrays.items()}
        for lane in range(self.lanes):
            slot, sampled = self.at(op.slot)[lane], lane < self.live[wire.ROWS_SAMPLED]
            if sampled:
                token = self.at(op.sampled)[lane]
                self.at(op.pending)[slot] = token
                self.at(op.histogram)[slot, token] += 1
                self.at(op.generated)[slot] += 1
                named[wire.COMPLETION_TOKENS][lane] = token
            consumed = self.at(op.consumed)[lane] + self.at(op.query_length)[lane]
            for field, value in (
                    (wire.COMPLETION_SLOT, slot), (wire.COMPLETION_ENDPOINT, consumed),
                    (wire.COMPLETION_GENERATION, self.at(op.generation)[lane]),
                    (wire.COMPLETION_STATUS, self.at(op.status)[slot]),
                    (wire.COMPLETION_EMITTED, sampled), (wire.COMPLETION_CURSOR, -1),
                    (wire.COMPLETION_RESERVED, -1)):
                named[field][lane] = value

    def score(self, op: Any) -> None:
        rows = self.packed
        logits = self.at(op.logits)[:rows].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        self.at(op.output)[:rows] = logits[np.arange(rows), self.at(op.target)[:rows]]

    def recurrent_scan(self, op: Any) -> None:
        group = op.heads // op.key_heads
        state_rows = self.at(op.state)
        for lane in range(self.lanes):
            start = int(self.at(op.query_start)[lane])
            row = int(self.at(op.state_row)[lane])
            state = state_rows[row].reshape(op.heads, op.key_columns, op.value_columns)
            for r in range(start, start + int(self.at(op.query_length)[lane])):
                query, key = (self.at(part)[r].reshape(op.key_heads, -1).repeat(group, axis=0)
                              for part in (op.query, op.key))
                step = np.log1p(np.exp(self.at(op.gate)[r] + self.arrays[op.bias]))
                state *= np.exp(-self.arrays[op.rate] * step).reshape(op.heads, -1, 1)
                strength = np.ones(op.heads, np.float32)
                if op.strength_kind == wire.STRENGTH_SIGMOID:
                    strength = 1 / (1 + np.exp(-self.at(op.strength)[r]))
                elif op.strength_kind == wire.STRENGTH_STEP:
                    strength = step
                value = self.at(op.value)[r].reshape(op.heads, -1)
                held = np.einsum("hkv,hk->hv", state, key) if op.delta else 0
                state += np.einsum("hk,hv->hkv", key, strength[:, None] * (value - held))
                read = np.einsum("hkv,hk->hv", state, query) * np.float32(op.scale)
                self.at(op.output)[r] = read.reshape(-1)

    def causal_convolution(self, op: Any) -> None:
        taps = self.arrays[op.taps]
        for lane in range(self.lanes):
            start, row = int(self.at(op.query_start)[lane]), int(self.at(op.state_row)[lane])
            rows = slice(start, start + int(self.at(op.query_length)[lane]))
            kept = self.at(op.state)[row].reshape(len(taps) - 1, -1)
            known = np.concatenate([kept, self.at(op.input)[rows]])
            count = rows.stop - rows.start
            output = sum(taps[j] * known[j : j + count] for j in range(len(taps)))
            self.at(op.output)[rows] = output + (self.arrays[op.bias] if op.has_bias else 0)
            kept[:] = known[count:]

    def copy_state_rows(self, op: Any) -> None:
        for lane in range(self.lanes):
            source, target = self.at(op.source_row)[lane], self.at(op.destination_row)[lane]
            if source >= 0 and target >= 0:
                rows = self.at(op.source)[source : source + op.rows]
                self.at(op.destination)[target : target + op.rows] = rows

    def copy_partial_page(self, op: Any) -> None:
        for lane in range(self.lanes):
            row = self.at(op.row)[lane]
            endpoint = int(self.at(op.consumed)[lane] + self.at(op.query_length)[lane])
            index, inside = divmod(endpoint, self.geometry.page_tokens)
            if row < 0 or not inside:
                continue
            plane = self.arrays[op.cache]
            page = self.at(op.table)[self.at(op.slot)[lane], index]
            storage = self.at(op.storage)[row]
            if op.restore:
                plane[page] = storage[: plane[0].size].reshape(plane[0].shape)
            else:
                storage[: plane[0].size] = plane[page].reshape(-1)

"""Drives an executor by hand: no scheduler, staging written here, logits read from scratch.

    harness = Harness(prepared, PlainDevice())          # or HostExecutor()
    harness.admit(slot=0)
    logits = harness.scored(slot=0, ids=prompt)         # [len(prompt), vocabulary]
    token = harness.prefill({0: prompt})[0]             # sampled token of each slot
    token = harness.decode([0])[0]

Every value source that shared packing knows is staged for every program, by its buffer's binding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plain_device import DTYPES, PlainDevice

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import Geometry
from helios_dod.ignition.prepared import Prepared
from helios_dod.limits import SMALL, Limits
from helios_dod.world import boot

WORD_BYTES = {wire.F32: 4, wire.I32: 4, wire.U32: 4, wire.U64: 8}
GREEDY = {
    contract.SEED: 0, contract.TEMPERATURE: 0.0, contract.TOP_P: 1.0, contract.MIN_P: 0.0,
    contract.TOP_K: 0, contract.REPETITION_PENALTY: 1.0, contract.PRESENCE_PENALTY: 0.0,
    contract.FREQUENCY_PENALTY: 0.0, contract.OUTPUT_LIMIT: 1 << 20, contract.OUTPUT_MINIMUM: 0,
    contract.STOP_TOKENS: [-1] * 8, contract.TOP_LOGPROBS: -1, contract.BIAS_COUNT: 0,
    contract.BIAS_TOKENS: [], contract.BIAS_VALUES: [], contract.GENERATED: 0,
}


@dataclass
class Row:
    """What the harness remembers of a slot."""

    consumed: int = 0
    pages: int = 0
    generation: int = 1


def geometry_of(prepared: Prepared, slots: int, pages: int) -> Geometry:
    """Extents that hold every program of a core."""
    programs = prepared.manifest.programs
    tokens = prepared.contract.model.cache.page_tokens
    lanes = max(program.batch_capacity for program in programs)
    packed = max(program.packed_token_capacity for program in programs)
    scored = max((program.packed_token_capacity for program in programs
                  if program.operation == wire.SCORED_PREFILL), default=0)
    return Geometry(
        lanes=lanes, packed=packed, slots=slots, pages=pages, page_tokens=tokens,
        pages_per_request=-(-prepared.contract.context_tokens // tokens),
        updates=packed // tokens + 2 * lanes, logit_rows=max(lanes, scored))


class Harness:
    """One executor with a core loaded, and rows to run on it."""

    def __init__(self, prepared: Prepared, executor: Any, *, slots: int = 32, pages: int = 128,
                 limits: Limits = SMALL, weights: Any = None,
                 world: np.ndarray | None = None) -> None:
        self.prepared, self.executor = prepared, executor
        self.manifest = prepared.manifest
        self.geometry = geometry_of(prepared, slots, pages)
        self.world = boot(limits) if world is None else world
        self.first: dict[int, int] = {}
        cursor = 0
        for index, buffer in enumerate(self.manifest.buffers):
            if buffer.kind == wire.STAGING:
                self.first[index] = cursor
                cursor = -(-(cursor + self.words(buffer)) // 16) * 16
        assert cursor <= limits.staging_words_max
        if weights is None:
            weights = {prepared.weights.resource_id: prepared.weights.assemble()}
        executor.load(self.manifest, self.geometry, weights, self.first, self.world)
        self.graphs = {graph.program: graph for graph in prepared.contract.model.graphs}
        self.sequence = 0
        self.frame = 0
        self.free = list(range(pages - 1, -1, -1))  # high pages first, so that order is no accident
        self.rows: dict[int, Row] = {}
        self.late: list[tuple[int, int, int]] = []  # entries that the next program uploads

    def words(self, buffer: Any) -> int:
        """4-byte words of a staged buffer."""
        elements = np.prod([self.geometry.extent(a.symbol, a.multiplier) for a in buffer.shape])
        return int(elements) * WORD_BYTES[buffer.dtype] // 4

    def run(self, name: str, values: dict[int, Any]) -> None:
        """Stages `values` (source -> array of live rows) and runs a program to its end, on the two
        frames in turn."""
        number = [program.name for program in self.manifest.programs].index(name)
        self.frame = 1 - self.frame
        staging = self.world[0]["staging"]["words"][self.frame]
        for binding in self.graphs[name].bindings:
            buffer = self.manifest.buffers[binding.buffer]
            dtype = {wire.F32: np.float32, wire.U64: np.uint64}.get(buffer.dtype, np.int32)
            everything = [-1] * self.words(buffer)  # what a grammar mask allows unless one is given
            value = values.get(binding.source, everything) if (
                binding.source == contract.GRAMMAR_MASK) else values[binding.source]
            data = np.asarray(value, dtype).reshape(-1).view(np.int32)
            assert data.size <= self.words(buffer), buffer.name
            first = self.first[binding.buffer]
            staging[first : first + data.size] = data
        self.sequence += 1
        self.executor.submit(self.frame, number, self.sequence)
        self.executor.drain()
        assert self.executor.poll() == self.sequence

    def admit(self, slot: int, histogram: Sequence[int] | None = None, **sampling: Any) -> None:
        """Initialises a slot: greedy, or with values by source name (temperature=1.0)."""
        self.release(slot)
        values = GREEDY | {contract.ValueSource.Value(k.upper()): v for k, v in sampling.items()}
        self.rows[slot] = Row()
        name = "initialize" if histogram is None else "initialize_histogram"
        values |= {contract.PROMPT_HISTOGRAM: [] if histogram is None else histogram}
        self.run(name, self.lane_values([slot], [0], sampled=0) | values)

    def restore(self, slot: int, source: int, **sampling: Any) -> None:
        """Admits a slot behind copies of another's pages, before that row's last token."""
        self.release(slot)
        values = GREEDY | {contract.ValueSource.Value(k.upper()): v for k, v in sampling.items()}
        self.rows[slot] = Row()
        consumed = self.rows[source].consumed - 1
        pages = self.assign_pages([slot], [consumed])
        table = self.buffer("page_table")
        copies = [(int(table[source, index]), page) for _, index, page in pages]
        values |= self.lane_values([slot], [0], sampled=0)
        self.run("restore", values | {
            contract.PAGE_COPY_COUNT: [len(copies)], contract.PAGE_COPIES: copies})
        self.rows[slot].consumed = consumed
        self.late = pages

    def release(self, slot: int) -> None:
        """Frees a slot's pages."""
        self.rows.pop(slot, None)
        if not self.rows:
            self.free = list(range(self.geometry.pages - 1, -1, -1))

    def lane_values(self, slots: Sequence[int], lengths: Sequence[int],
                    sampled: int) -> dict[int, Any]:
        """Geometry of a submission: lane i is slots[i] with lengths[i] packed rows."""
        starts = np.cumsum([0, *lengths])
        consumed = [self.rows[slot].consumed for slot in slots]
        updates = self.assign_pages(slots, lengths)
        return {
            contract.SLOT: slots,
            contract.GENERATION: [self.rows[slot].generation for slot in slots],
            contract.LIVE_LANES: [len(slots)], contract.LIVE_PACKED: [starts[-1]],
            contract.LIVE_SAMPLED: [sampled], contract.QUERY_LENGTH: lengths,
            contract.QUERY_START: starts[:-1], contract.SAMPLE_ROW: starts[1:] - 1,
            contract.LANE: np.repeat(np.arange(len(slots)), lengths),
            contract.POSITION: np.concatenate(
                [np.arange(length) + at for at, length in zip(consumed, lengths, strict=True)]),
            contract.CONSUMED: consumed, contract.PAGE_UPDATE_COUNT: [len(updates)],
            contract.PAGE_UPDATES: updates, contract.PAGE_COPY_COUNT: [0], contract.PAGE_COPIES: [],
        }

    def assign_pages(self, slots: Sequence[int],
                     lengths: Sequence[int]) -> list[tuple[int, int, int]]:
        """New page-table entries: slot, index, page."""
        updates, self.late = self.late, []
        for slot, length in zip(slots, lengths, strict=True):
            row = self.rows[slot]
            while row.pages * self.geometry.page_tokens < row.consumed + length:
                updates.append((slot, row.pages, self.free.pop()))
                row.pages += 1
        return updates

    def step(self, name: str, parts: dict[int, Sequence[int]], sampled: int,
             extra: dict[int, Any] | None = None) -> np.ndarray:
        """Runs a program over slot -> token ids (-1: device pending); the sampled tokens."""
        slots, lengths = list(parts), [len(ids) for ids in parts.values()]
        values = self.lane_values(slots, lengths, sampled)
        tokens = [np.asarray(ids, np.int32) for ids in parts.values()]
        values[contract.TOKEN] = np.concatenate(tokens)
        self.run(name, values | (extra or {}))
        for slot, length in zip(slots, lengths, strict=True):
            self.rows[slot].consumed += length
        completions = self.world[0]["completions"]
        assert completions["slot"][self.frame][: len(slots)].tolist() == slots
        assert completions["endpoint"][self.frame][: len(slots)].tolist() == [
            self.rows[slot].consumed for slot in slots]
        return completions["tokens"][self.frame][:sampled, 0].copy()

    def fitting(self, prefix: str, lanes: int, packed: int) -> str:
        """The smallest variant of a program that holds a submission."""
        fits = [program for program in self.manifest.programs
                if program.name.rsplit("_", 1)[0] == prefix and program.batch_capacity >= lanes
                and program.packed_token_capacity >= packed]
        return min(fits, key=lambda p: (p.packed_token_capacity, p.batch_capacity)).name

    def prefill(self, parts: dict[int, Sequence[int]]) -> np.ndarray:
        """Prompt tokens of each slot; the token sampled at each end."""
        packed = sum(len(ids) for ids in parts.values())
        return self.step(self.fitting("prefill", len(parts), packed), parts, len(parts))

    def mixed(self, parts: dict[int, Sequence[int]]) -> np.ndarray:
        """Prompt tokens of some slots, [-1] for those that decode; sampled tokens of all."""
        packed = sum(len(ids) for ids in parts.values())
        return self.step(self.fitting("mixed", len(parts), packed), parts, len(parts))

    def decode(self, slots: Sequence[int]) -> np.ndarray:
        """One token of each slot from its device-owned pending token."""
        name = self.fitting("decode", len(slots), len(slots))
        return self.step(name, {slot: [-1] for slot in slots}, len(slots))

    def decode_host(self, pending: dict[int, int]) -> np.ndarray:
        """One token of each slot from pending tokens that the host owns."""
        name = self.fitting("decode_host", len(pending), len(pending))
        return self.step(name, {slot: [-1] for slot in pending}, len(pending),
                         {contract.PENDING_TOKEN: list(pending.values())})

    def resume(self, slot: int, ids: Sequence[int], pending: int, generated: int) -> None:
        """Recomputes a history; the pending token and the generated count come from the host."""
        self.step(self.fitting("resume", 1, len(ids)), {slot: ids}, 0,
                  {contract.PENDING_TOKEN: [pending], contract.GENERATED: [generated]})

    def scored(self, slot: int, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Logits after each id [len(ids), vocabulary], and the score of each following id."""
        capacity = next(program.packed_token_capacity for program in self.manifest.programs
                        if program.operation == wire.SCORED_PREFILL)
        logits, scores = [], []
        for first in range(0, len(ids), capacity):
            part = list(ids[first : first + capacity])
            targets = [*ids[first + 1 : first + len(part) + 1], 0][: len(part)]
            self.step("scored_prefill", {slot: part}, 0, {contract.TARGET_TOKEN: targets})
            logits.append(self.logits(len(part)))
            column = self.world[0]["completions"]["scores"][self.frame][: len(part)]
            scores.append(column.view(np.float32).copy())
        return np.concatenate(logits), np.concatenate(scores)[:-1]

    def logits(self, rows: int) -> np.ndarray:
        """The first rows of the logits scratch."""
        return self.buffer("logits")[:rows].copy()

    def buffer(self, name: str) -> np.ndarray:
        """Contents of a state, cache or scratch buffer by name."""
        index = next(i for i, buffer in enumerate(self.manifest.buffers) if buffer.name == name)
        buffer = self.manifest.buffers[index]
        shape = [self.geometry.extent(axis.symbol, axis.multiplier) for axis in buffer.shape]
        if isinstance(self.executor, PlainDevice):
            return self.executor.arrays[index]
        if self.executor.name == "cuda":
            return self.executor.memory.read(index).view(DTYPES[buffer.dtype]).reshape(shape)
        return self.executor.memory.owned[index].view(DTYPES[buffer.dtype]).reshape(shape)

    def close(self) -> None:
        """Ends the executor."""
        self.executor.close()

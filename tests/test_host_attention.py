"""Paged attention: right for every head size and window, and bitwise equal however it is cut."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from host_machine import Machine

from helios_dod.contract.wire import manifest_pb2 as wire

PAGES, TOKENS = 210, 16


@dataclass(frozen=True)
class Case:
    """One attention shape."""

    head: int
    heads: int
    key_heads: int
    window: int = 0
    dtype: int = wire.F32


CASES = [
    Case(64, 9, 3),
    Case(24, 4, 4),
    Case(80, 5, 1),
    Case(128, 8, 2, window=40),
    Case(64, 6, 3, dtype=wire.BF16),
    Case(16, 28, 1, window=7, dtype=wire.BF16),
]


def attention_of(m: Machine, case: Case) -> None:
    """A program that writes keys and values, and attends, for one case."""
    name = f"{m.manifest.programs.__len__()}"
    shape = (PAGES, case.key_heads)
    m.state(f"keys{name}", case.dtype, (*shape, case.head, TOKENS), wire.CACHE)
    m.state(f"values{name}", case.dtype, (*shape, TOKENS, case.head), wire.CACHE)
    query, key = case.heads * case.head, case.key_heads * case.head
    common: dict[str, Any] = {n: m.part(n) for n in ("position", "lane", "slot", "table")}
    planes = {"key_cache": m.names[f"keys{name}"], "value_cache": m.names[f"values{name}"]}
    m.program(
        wire.UpdatePageTable(
            count=m.part("count"), updates=m.part("updates"), table=m.part("table")
        ),
        wire.CacheWrite(
            key=m.part("x", query, key),
            value=m.part("x", query + key, key),
            head=case.head,
            **common,
            **planes,
        ),
        wire.Attention(
            query=m.part("x", 0, query),
            output=m.part("y", 0, query),
            heads=case.heads,
            key_heads=case.key_heads,
            head=case.head,
            scale=case.head**-0.5,
            window=case.window,
            query_start=m.part("start"),
            query_length=m.part("length"),
            **common,
            **planes,
        ),
    )


@pytest.fixture(scope="module")
def machine():
    m = Machine()
    m.staging("position", wire.I32, (256,))
    m.staging("lane", wire.I32, (256,))
    for name in ("slot", "start", "length"):
        m.staging(name, wire.I32, (16,))
    m.staging("count", wire.I32, (1,))
    m.staging("updates", wire.I32, (64, 3))
    m.state("table", wire.I32, (16, 130))
    m.state("x", wire.F32, (256, 1600), wire.SCRATCH)
    m.state("y", wire.F32, (256, 1024), wire.SCRATCH)
    for case in CASES:
        attention_of(m, case)
    m.load()
    yield m
    m.executor.close()


class Run:
    """Sequences over pages of one case's cache."""

    def __init__(self, m: Machine, number: int, first_page: int = 0) -> None:
        self.m, self.number, self.case = m, number, CASES[number]
        self.page, self.consumed = first_page, {}
        for name in ("keys", "values"):  # whatever an earlier owner left must not matter
            view = m.view(f"{name}{number}")
            view[:] = np.nan if view.dtype == np.float32 else 0x7FC0

    def step(self, parts: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Rows of x for each slot, after what it has; the outputs."""
        m, updates, row = self.m, [], 0
        m.view("x")[:] = np.nan
        for lane, (slot, x) in enumerate(parts.items()):
            before = self.consumed.get(slot, 0)
            count = len(x)
            for index in range(-(-before // TOKENS), -(-(before + count) // TOKENS)):
                updates.append((slot, index, self.page % PAGES))
                self.page += 11
            m.view("slot")[lane], m.view("start")[lane], m.view("length")[lane] = slot, row, count
            m.view("lane")[row : row + count] = lane
            m.view("position")[row : row + count] = np.arange(before, before + count)
            m.view("x")[row : row + count, : x.shape[1]] = x
            self.consumed[slot] = before + count
            row += count
        m.view("count")[0] = len(updates)
        m.view("updates")[: len(updates)] = np.array(updates).reshape(-1, 3)
        m.run(self.number, packed=row, lanes=len(parts), sampled=0)
        y = m.view("y")[:row, : self.case.heads * self.case.head]
        cuts = np.cumsum([len(x) for x in parts.values()])[:-1]
        return {s: part.copy() for s, part in zip(parts, np.split(y, cuts), strict=True)}


def rows(case: Case, count: int, seed: int) -> np.ndarray:
    width = (case.heads + 2 * case.key_heads) * case.head
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32) * 2


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def plain(case: Case, x: np.ndarray) -> np.ndarray:
    """Attention of a whole sequence in float64."""
    query, key = case.heads * case.head, case.key_heads * case.head
    group = case.heads // case.key_heads
    kv = np.ascontiguousarray(x[:, query:])
    kv = (to_bf16(kv) if case.dtype == wire.BF16 else kv).astype(np.float64)
    q = x[:, :query].astype(np.float64).reshape(len(x), case.heads, case.head)
    k = kv[:, :key].reshape(len(x), case.key_heads, case.head).repeat(group, axis=1)
    v = kv[:, key:].reshape(len(x), case.key_heads, case.head).repeat(group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * case.head**-0.5
    behind = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
    seen = (behind >= 0) & ((behind < case.window) | (case.window == 0))
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), query)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_whole_sequence(machine: Machine, number: int) -> None:
    case = CASES[number]
    x = rows(case, 150, 1)
    y = Run(machine, number).step({3: x})[3]
    assert np.max(np.abs(y - plain(case, x))) < 3e-5


@pytest.mark.parametrize("number", range(len(CASES)))
def test_chunks_batch_and_pages_change_nothing(machine: Machine, number: int) -> None:
    case = CASES[number]
    x, other = rows(case, 150, 2), rows(case, 90, 3)
    whole = Run(machine, number).step({3: x})[3]
    pieces, at, run = [], 0, Run(machine, number, first_page=5)
    for i, count in enumerate((1, 15, 17, 64, 1, 1, 51)):
        parts = {5: other[i * 12 : i * 12 + 12], 3: x[at : at + count]}
        pieces.append(run.step(parts)[3])
        at += count
    assert at == 150
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("number", [0, 3, 4])
def test_segments_computed_apart_are_the_same(machine: Machine, number: int) -> None:
    """Histories beyond a segment: many rows at once, then few, which are split over threads."""
    case = CASES[number]
    x = rows(case, 1300, 7)
    outputs = []
    for cuts in ((250,) * 5 + (50,), (256,) * 5 + (3, *(1,) * 17)):
        run, at, found = Run(machine, number, first_page=3), 0, []
        for count in cuts:
            found.append(run.step({2: x[at : at + count]})[2])
            at += count
        assert at == len(x)
        outputs.append(np.concatenate(found))
    assert outputs[0].tobytes() == outputs[1].tobytes()
    assert np.max(np.abs(outputs[0] - plain(case, x))) < 3e-5


def test_a_lane_that_is_not_finite_harms_no_other(machine: Machine) -> None:
    case = CASES[0]
    x, bad = rows(case, 40, 4), np.full_like(rows(case, 40, 5), np.nan)
    alone = Run(machine, 0).step({3: x})[3]
    both = Run(machine, 0).step({1: bad, 3: x})
    assert both[3].tobytes() == alone.tobytes()
    assert np.isnan(both[1]).all()


def test_page_copies(machine: Machine) -> None:
    executor = machine.executor
    Run(machine, 0).step({3: rows(CASES[0], 64, 6)})
    keys, values = machine.view("keys0"), machine.view("values0")
    wanted = keys[0].tobytes(), values[11].tobytes()
    executor.copy_pages(np.array([[0, 40], [11, 41]]))
    assert keys[40].tobytes() == wanted[0] and values[41].tobytes() == wanted[1]

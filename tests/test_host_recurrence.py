"""Recurrent scans and causal convolutions: right by float64, and the same bits however a text is
cut or batched; copies of state rows and partial pages."""

from dataclasses import dataclass

import numpy as np
import pytest
from host_machine import Machine

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import DeviceError

ROWS, TAPS, COLUMNS = 40, 4, 600  # state rows; taps and columns of the convolution


@dataclass(frozen=True)
class Case:
    """One recurrence shape."""

    heads: int
    key_heads: int
    keys: int
    values: int
    strength: int
    delta: bool
    channels: bool = False  # a gate a key element

    @property
    def gates(self) -> int:
        return self.heads * (self.keys if self.channels else 1)

    @property
    def widths(self) -> list[int]:
        """Columns of query, key, value, gate, strength in a row of x."""
        keys = self.key_heads * self.keys
        return [keys, keys, self.heads * self.values, self.gates, self.heads]


CASES = [
    Case(4, 4, 16, 16, wire.STRENGTH_ONE, delta=False, channels=True),
    Case(6, 2, 24, 20, wire.STRENGTH_SIGMOID, delta=True),
    Case(3, 1, 64, 48, wire.STRENGTH_STEP, delta=False),
]


def weights_of(case: Case, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return (rng.uniform(0.05, 0.6, case.gates).astype(np.float32),
            rng.standard_normal(case.gates).astype(np.float32))


def scan_of(m: Machine, case: Case, **changes) -> wire.RecurrentScan:
    """The operation of a case; its weights and state are declared."""
    name = str(len(m.manifest.buffers))
    for title, values in zip(("rate", "bias"), weights_of(case, len(m.manifest.programs)),
                             strict=True):
        m.weight(title + name, values)
    m.state(f"state{len(m.manifest.programs)}", wire.F32,
            (ROWS, case.heads * case.keys * case.values))
    at = np.cumsum([0, *case.widths])
    parts = [m.part("x", int(first), width) for first, width in zip(at, case.widths, strict=False)]
    fields = dict(
        query=parts[0], key=parts[1], value=parts[2], gate=parts[3], strength=parts[4],
        has_strength=case.strength == wire.STRENGTH_SIGMOID, strength_kind=case.strength,
        rate=m.names["rate" + name], bias=m.names["bias" + name], delta=case.delta,
        state=m.part(f"state{len(m.manifest.programs)}"), state_row=m.part("row"),
        query_start=m.part("start"), query_length=m.part("length"),
        output=m.part("y", 0, case.heads * case.values), heads=case.heads,
        key_heads=case.key_heads, key_columns=case.keys, value_columns=case.values,
        scale=case.keys**-0.5)
    return wire.RecurrentScan(**(fields | changes))


def declare(m: Machine) -> None:
    for name in ("row", "start", "length", "source", "slot", "consumed"):
        m.staging(name, wire.I32, (16,))
    m.state("x", wire.F32, (256, 1000), wire.SCRATCH)
    m.state("y", wire.F32, (256, 1000), wire.SCRATCH)


TAP_VALUES = np.random.default_rng(8).standard_normal((TAPS, COLUMNS)).astype(np.float32)
TAP_BIAS = np.random.default_rng(9).standard_normal(COLUMNS).astype(np.float32)


@pytest.fixture(scope="module")
def machine():
    m = Machine()
    declare(m)
    for case in CASES:
        m.program(scan_of(m, case))
    m.weight("taps", TAP_VALUES)
    m.weight("tap_bias", TAP_BIAS)
    m.state("inputs", wire.F32, (ROWS, (TAPS - 1) * COLUMNS))
    m.program(wire.CausalConvolution(
        input=m.part("x", 0, COLUMNS), output=m.part("y", 0, COLUMNS), taps=m.names["taps"],
        bias=m.names["tap_bias"], has_bias=True, state=m.part("inputs"), state_row=m.part("row"),
        query_start=m.part("start"), query_length=m.part("length")))
    m.state("plane", wire.F32, (20, 16, 3), wire.CACHE)
    m.state("table", wire.I32, (16, 8))
    m.state("payload", wire.F32, (ROWS, 100))
    m.state("kept", wire.F32, (ROWS, (TAPS - 1) * COLUMNS))
    common = {name: m.part(name) for name in ("row", "slot", "consumed", "table")}
    for restore in (False, True):
        m.program(wire.CopyPartialPage(
            **common, query_length=m.part("length"), cache=m.names["plane"],
            storage=m.part("payload", 10, 48), restore=restore))
    m.program(wire.CopyStateRows(
        source_row=m.part("source"), destination_row=m.part("row"), source=m.part("inputs"),
        destination=m.part("kept"), rows=2))
    ahead = [wire.CausalConvolution.FromString(
        m.manifest.host_bodies[len(CASES)].operations[0].causal_convolution.SerializeToString())]
    ahead += [wire.RecurrentScan.FromString(
        m.manifest.host_bodies[i].operations[0].recurrent_scan.SerializeToString())
        for i in range(len(CASES))]
    for operation in ahead:
        operation.ahead = True
        m.program(operation)
    m.program(wire.CommitStateRows(state_row=m.part("row"), state=m.part("inputs")))
    m.load()
    yield m
    m.executor.close()


def step(m: Machine, number: int, parts: dict[int, np.ndarray], width: int) -> dict:
    """Rows of x for each state row; the outputs."""
    at = 0
    m.view("x")[:] = np.nan
    for lane, (row, x) in enumerate(parts.items()):
        m.view("row")[lane], m.view("start")[lane], m.view("length")[lane] = row, at, len(x)
        m.view("x")[at : at + len(x), : x.shape[1]] = x
        at += len(x)
    m.run(number, packed=at, lanes=len(parts))
    y = m.view("y")[:at, :width]
    cuts = np.cumsum([len(x) for x in parts.values()])[:-1]
    return {row: part.copy() for row, part in zip(parts, np.split(y, cuts), strict=True)}


def clear(m: Machine, name: str, *rows: int) -> None:
    m.view(name)[:] = np.nan  # other rows must not matter
    m.view(name)[list(rows)] = 0


def rows(case: Case, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, sum(case.widths))).astype(np.float32)


def plain(case: Case, x: np.ndarray, rate: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The recurrence of a whole text in float64, as the schema says it."""
    cuts = np.cumsum(case.widths)[:-1]
    query, key, value, gate, strength = np.split(x.astype(np.float64), cuts, axis=1)
    group = case.heads // case.key_heads
    step = np.log1p(np.exp(gate + bias))
    decay = np.exp(-rate * step).reshape(len(x), case.heads, -1, 1)
    scaled = {wire.STRENGTH_ONE: np.ones((len(x), case.heads)),
              wire.STRENGTH_SIGMOID: 1 / (1 + np.exp(-strength)),
              wire.STRENGTH_STEP: step[:, : case.heads]}[case.strength][:, :, None]
    query, key = (part.reshape(len(x), case.key_heads, case.keys).repeat(group, axis=1)
                  for part in (query, key))
    value = value.reshape(len(x), case.heads, case.values)
    state = np.zeros((case.heads, case.keys, case.values))
    out = np.zeros((len(x), case.heads, case.values))
    for t in range(len(x)):
        state *= decay[t]
        held = np.einsum("hkv,hk->hv", state, key[t]) if case.delta else 0
        state += np.einsum("hk,hv->hkv", key[t], scaled[t] * (value[t] - held))
        out[t] = np.einsum("hkv,hk->hv", state, query[t]) * case.keys**-0.5
    return out.reshape(len(x), -1)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_whole_text_against_float64(machine: Machine, number: int) -> None:
    case = CASES[number]
    x = rows(case, 90, 1) * (0.3 if case.delta else 1)  # a delta rule of long keys diverges
    clear(machine, f"state{number}", 7)
    y = step(machine, number, {7: x}, case.heads * case.values)[7]
    wanted = plain(case, x, *weights_of(case, number))
    assert np.max(np.abs(wanted)) > 0.1
    assert np.max(np.abs(y - wanted)) < 5e-6 * np.max(np.abs(wanted))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_chunks_and_batch_change_nothing(machine: Machine, number: int) -> None:
    case, width = CASES[number], CASES[number].heads * CASES[number].values
    x, other = rows(case, 150, 2) * 0.3, rows(case, 84, 3) * 0.3
    clear(machine, f"state{number}", 3)
    whole = step(machine, number, {3: x}, width)[3]
    kept = machine.view(f"state{number}")[3].copy()
    clear(machine, f"state{number}", 5, 39)
    pieces, at = [], 0
    for i, count in enumerate((1, 15, 17, 64, 1, 1, 51)):
        parts = {39: other[i * 12 : i * 12 + 12], 5: x[at : at + count]}
        pieces.append(step(machine, number, parts, width)[5])
        at += count
    assert at == 150
    assert np.concatenate(pieces).tobytes() == whole.tobytes()
    assert machine.view(f"state{number}")[5].tobytes() == kept.tobytes()


def convolved(x: np.ndarray) -> np.ndarray:
    padded = np.concatenate([np.zeros((TAPS - 1, COLUMNS)), x.astype(np.float64)])
    return TAP_BIAS + sum(TAP_VALUES[j] * padded[j : j + len(x)] for j in range(TAPS))


def test_convolution(machine: Machine) -> None:
    """Against float64; and in pieces shorter and longer than its taps."""
    x = np.random.default_rng(4).standard_normal((60, COLUMNS)).astype(np.float32)
    clear(machine, "inputs", 2)
    whole = step(machine, len(CASES), {2: x}, COLUMNS)[2]
    assert np.max(np.abs(whole - convolved(x))) < 1e-5
    clear(machine, "inputs", 9, 30)
    pieces, at = [], 0
    for count in (1, 2, 1, 30, 3, 23):
        parts = {30: x[:5], 9: x[at : at + count]}
        pieces.append(step(machine, len(CASES), parts, COLUMNS)[9])
        at += count
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_partial_pages_go_to_storage_and_back(machine: Machine) -> None:
    """Only of lanes that name a row and end inside a page; the page is the table's."""
    m, first = machine, len(CASES) + 1
    plane, payload = m.view("plane"), m.view("payload")
    plane[:] = np.arange(plane.size).reshape(plane.shape)
    payload[:] = -1
    m.view("table")[4, :3], m.view("table")[5, :3] = (7, 11, 2), (3, 1, 9)
    m.view("slot")[:3], m.view("row")[:3] = (4, 5, 4), (20, 21, -1)
    m.view("consumed")[:3], m.view("length")[:3] = (17, 30, 5), (4, 2, 4)
    m.run(first, lanes=3)
    assert (payload[20, 10:58] == plane[11].reshape(-1)).all()
    assert (payload[20, :10] == -1).all() and (payload[20, 58:] == -1).all()
    assert (payload[21] == -1).all()  # an endpoint between pages has no partial page
    m.view("length")[:3] = 4
    before = plane.copy()
    m.view("table")[4, 1] = 13
    m.run(first + 1, lanes=1)
    assert (plane[13] == before[11]).all()
    before[13] = before[11]
    assert (plane == before).all()


def test_state_rows_are_copied(machine: Machine) -> None:
    m, state, kept = machine, machine.view("inputs"), machine.view("kept")
    state[:] = np.arange(ROWS)[:, None]
    kept[:] = -1
    m.view("source")[:3], m.view("row")[:3] = (5, -1, 6), (7, 9, -1)
    m.run(len(CASES) + 3, lanes=3)
    assert (kept[7] == 5).all() and (kept[8] == 6).all()
    assert (np.delete(kept, (7, 8), axis=0) == -1).all() and (state[:, 0] == np.arange(ROWS)).all()


@pytest.mark.parametrize("number", range(len(CASES) + 1))
def test_state_ahead_is_that_behind_each_row(machine: Machine, number: int) -> None:
    """The outputs and states of one row after another; the committed row stays as it was."""
    convolved = number == len(CASES)
    name = "inputs" if convolved else f"state{number}"
    width = COLUMNS if convolved else CASES[number].heads * CASES[number].values
    x = (np.random.default_rng(6).standard_normal((11, COLUMNS)).astype(np.float32) if convolved
         else rows(CASES[number], 11, 6) * np.float32(0.3))
    state = machine.view(name)
    clear(machine, name, 3)
    outputs = [step(machine, number, {3: x[:5]}, width)[3]]
    behind = [state[3].copy()]
    for t in range(5, 11):
        outputs.append(step(machine, number, {3: x[t : t + 1]}, width)[3])
        behind.append(state[3].copy())
    clear(machine, name, 20, 30)
    step(machine, number, {20: x[:5], 30: x[:5]}, width)
    ahead = len(CASES) + 4 + (0 if convolved else 1 + number)
    y = step(machine, ahead, {20: x[5:], 30: x[5:7]}, width)
    assert y[20].tobytes() == np.concatenate(outputs[1:]).tobytes()
    assert y[30].tobytes() == np.concatenate(outputs[1:3]).tobytes()
    assert state[20:27].tobytes() == np.stack(behind).tobytes()
    assert state[30:33].tobytes() == np.stack(behind[:3]).tobytes()
    assert np.isnan(state[27]).all() and np.isnan(state[33]).all()


def test_state_is_committed_as_far_as_tokens_were_emitted(machine: Machine) -> None:
    state = machine.view("inputs")
    state[:] = np.arange(ROWS)[:, None]
    machine.view("row")[:3] = 4, 10, 16
    machine.world[0]["completions"]["emitted"][0, :4] = 3, 0, 1, 5
    machine.run(2 * len(CASES) + 5, lanes=3)
    expected = np.arange(ROWS)
    expected[[4, 16]] = 7, 17
    assert (state == expected[:, None]).all()


@pytest.mark.parametrize("changes, words", [
    ({"heads": 5}, "columns of value"), ({"key_columns": 8}, "columns of query"),
    ({"strength_kind": wire.STRENGTH_SIGMOID}, "STRENGTH_SIGMOID"),
    ({"strength_kind": wire.STRENGTH_STEP}, "gates as strength"),
])
def test_shapes_that_disagree_are_refused(changes: dict, words: str) -> None:
    m = Machine()
    declare(m)
    m.program(scan_of(m, CASES[0], **changes))
    with pytest.raises(DeviceError, match=words):
        m.load()

"""Row operations of the host executor against float64 numpy."""

import math

import numpy as np
import pytest
from host_machine import Machine
from test_host_panels import KINDS, raw_matrix

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host import panels

WIDTH, ROWS = 150, 40
ACTIVATIONS = [wire.SILU, wire.GELU_TANH, wire.GELU_ERF, wire.RELU]
EMBED_COLUMNS = 256


def declare(m: Machine) -> None:
    """Every buffer."""
    rng = np.random.default_rng(0)
    m.staging("index", wire.I32, (256,))
    m.staging("position", wire.I32, (256,))
    m.staging("slot", wire.I32, (16,))
    m.staging("rows", wire.I32, (16, 8))
    m.staging("staged", wire.I32, (256,))
    m.staging("lane", wire.I32, (256,))
    m.state("x", wire.F32, (256, WIDTH + 10))
    m.state("y", wire.F32, (256, WIDTH + 10))
    m.state("wide", wire.F32, (256, EMBED_COLUMNS))
    m.state("table", wire.I32, (16, 8))
    m.state("pending", wire.I32, (16,))
    m.state("tokens", wire.I32, (256,))
    for name, size in (("weight", WIDTH), ("bias", WIDTH), ("short", 30)):
        m.weight(name, rng.standard_normal(size, dtype=np.float32))
    m.weight("frequencies", (10_000.0 ** (-np.arange(20) / 20)).astype(np.float32))
    m.weight("plain", rng.standard_normal((100, EMBED_COLUMNS), dtype=np.float32))


def row_programs(m: Machine) -> dict:
    """Norms, selections and scatters by name."""
    x, y = m.part("x", 4, WIDTH), m.part("y", 8, WIDTH)
    packed = wire.ROWS_PACKED
    return {
        "rms": m.program(
            wire.Normalise(
                rows=packed,
                kind=wire.RMS,
                input=x,
                output=y,
                weight=m.names["weight"],
                epsilon=1e-5,
            )
        ),
        "layer": m.program(
            wire.Normalise(
                rows=packed,
                kind=wire.LAYER,
                input=x,
                output=y,
                weight=m.names["weight"],
                bias=m.names["bias"],
                has_bias=True,
                epsilon=1e-5,
            )
        ),
        "group": m.program(
            wire.Normalise(
                rows=packed,
                kind=wire.RMS,
                input=x,
                output=y,
                group=30,
                weight=m.names["short"],
                epsilon=1e-6,
            )
        ),
        "select": m.program(wire.SelectRows(rows=packed, input=x, index=m.part("index"), output=y)),
        "tokens": m.program(
            wire.SelectTokens(
                staged=m.part("staged"),
                has_staged=True,
                pending=m.part("pending"),
                slot=m.part("slot"),
                lane=m.part("lane"),
                output=m.part("tokens"),
            )
        ),
        "scatter": m.program(
            wire.FillRows(value=-3, slot=m.part("slot"), destination=m.part("table")),
            wire.ScatterRows(
                source=m.part("rows", 1, 5), slot=m.part("slot"), destination=m.part("table", 2, 5)
            ),
        ),
    }


def kind_programs(m: Machine) -> None:
    """Rotary and activations of every kind."""
    packed, x, y = wire.ROWS_PACKED, m.part("x", 4, WIDTH), m.part("y", 8, WIDTH)
    for kind in (wire.HALVES, wire.INTERLEAVED):
        m.programs["rotary", kind] = m.program(
            wire.Rotary(
                operand=m.part("x", 4, WIDTH),
                position=m.part("position"),
                kind=kind,
                frequencies=m.names["frequencies"],
                head=50,
                magnitude=1.25,
            )
        )
    for kind in ACTIVATIONS:
        m.programs["gated", kind] = m.program(
            wire.Activation(
                rows=packed,
                kind=kind,
                gate=x,
                up=m.part("y", 8, WIDTH),
                has_up=True,
                output=m.part("x", 4, WIDTH),
            )
        )
        m.programs["alone", kind] = m.program(
            wire.Activation(rows=packed, kind=kind, gate=x, output=y)
        )


def embed_programs(m: Machine) -> None:
    """Embeddings from every storage."""
    packed = wire.ROWS_PACKED
    for kind in KINDS:
        columns = EMBED_COLUMNS
        m.matrix(kind, kind, 100, columns, raw_matrix(kind, 100, columns))
        m.programs["embed", kind] = m.program(
            wire.Embed(
                rows=packed, index=m.part("index"), table=m.names[kind], output=m.part("wide")
            )
        )
    m.programs["embed"] = m.program(
        wire.Embed(
            rows=packed,
            index=m.part("index"),
            table=m.names["plain"],
            output=m.part("wide"),
            accumulate=True,
            scale=0.5,
        )
    )


@pytest.fixture(scope="module")
def machine():
    m = Machine()
    declare(m)
    m.programs = row_programs(m)
    kind_programs(m)
    embed_programs(m)
    m.load()
    yield m
    m.executor.close()


def filled(m: Machine) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    for name in ("x", "y"):
        m.view(name)[:] = rng.standard_normal(m.view(name).shape) * 3
    m.view("index")[:] = rng.integers(0, 100, 256)
    return m.view("x").astype(np.float64), m.view("y").astype(np.float64)


def outside_is_untouched(m: Machine, y: np.ndarray) -> None:
    now = m.view("y")
    assert np.array_equal(now[:, :8], y[:, :8]) and np.array_equal(now[:, 158:], y[:, 158:])
    assert np.array_equal(now[ROWS:], y[ROWS:])


@pytest.mark.parametrize("name", ["rms", "layer", "group"])
def test_norms(machine: Machine, name: str) -> None:
    x, y = filled(machine)
    machine.run(machine.programs[name], packed=ROWS)
    inside = x[:ROWS, 4 : 4 + WIDTH].reshape(ROWS, -1, 30 if name == "group" else WIDTH)
    if name == "layer":
        inside = inside - inside.mean(axis=-1, keepdims=True)
    epsilon = 1e-6 if name == "group" else 1e-5
    wanted = inside / np.sqrt((inside**2).mean(axis=-1, keepdims=True) + epsilon)
    wanted *= machine.weights["short" if name == "group" else "weight"].view(np.float32)
    if name == "layer":
        wanted += machine.weights["bias"].view(np.float32)
    found = machine.view("y")[:ROWS, 8 : 8 + WIDTH]
    assert np.max(np.abs(found - wanted.reshape(ROWS, WIDTH))) < 3e-6
    outside_is_untouched(machine, y)


@pytest.mark.parametrize("kind", [wire.HALVES, wire.INTERLEAVED])
def test_rotary(machine: Machine, kind: int) -> None:
    x, _ = filled(machine)
    position = np.random.default_rng(2).integers(0, 131_072, 256)
    position[:2] = 0, 131_071
    machine.view("position")[:] = position
    machine.run(machine.programs["rotary", kind], packed=ROWS)
    frequencies = machine.weights["frequencies"].view(np.float32)
    angle = (position[:ROWS, None].astype(np.float32) * frequencies).astype(np.float64)
    cosine, sine = 1.25 * np.cos(angle)[:, None], 1.25 * np.sin(angle)[:, None]
    heads = x[:ROWS, 4 : 4 + WIDTH].reshape(ROWS, 3, 50)
    first = slice(0, 20) if kind == wire.HALVES else slice(0, 40, 2)
    second = slice(20, 40) if kind == wire.HALVES else slice(1, 40, 2)
    wanted = heads.copy()
    wanted[:, :, first] = heads[:, :, first] * cosine - heads[:, :, second] * sine
    wanted[:, :, second] = heads[:, :, second] * cosine + heads[:, :, first] * sine
    found = machine.view("x").astype(np.float64)
    assert np.max(np.abs(found[:ROWS, 4 : 4 + WIDTH].reshape(wanted.shape) - wanted)) < 2e-6
    found[:ROWS, 4 : 4 + WIDTH] = x[:ROWS, 4 : 4 + WIDTH]
    assert np.array_equal(found, x)


def plain_activation(kind: int, x: np.ndarray) -> np.ndarray:
    if kind == wire.SILU:
        return x / (1 + np.exp(-x))
    if kind == wire.GELU_TANH:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == wire.GELU_ERF:
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return np.maximum(x, 0)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(machine: Machine, kind: int) -> None:
    x, y = filled(machine)
    machine.run(machine.programs["alone", kind], packed=ROWS)
    wanted = plain_activation(kind, x[:ROWS, 4 : 4 + WIDTH])
    assert np.max(np.abs(machine.view("y")[:ROWS, 8 : 8 + WIDTH] - wanted)) < 4e-6
    outside_is_untouched(machine, y)
    x, y = filled(machine)
    machine.run(machine.programs["gated", kind], packed=ROWS)
    wanted *= y[:ROWS, 8 : 8 + WIDTH]
    assert np.max(np.abs(machine.view("x")[:ROWS, 4 : 4 + WIDTH] - wanted)) < 2e-5


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_of_large_values_stay_finite(machine: Machine, kind: int) -> None:
    machine.view("x")[:] = np.linspace(-2000, 2000, WIDTH + 10, dtype=np.float32)
    machine.run(machine.programs["alone", kind], packed=1)
    with np.errstate(over="ignore"):
        wanted = plain_activation(kind, machine.view("x")[0, 4 : 4 + WIDTH].astype(np.float64))
    assert np.allclose(machine.view("y")[0, 8 : 8 + WIDTH], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_from_panels(machine: Machine, kind: str) -> None:
    filled(machine)
    panel = machine.manifest.buffers[machine.names[kind]].panel
    shape = panels.PanelShape(*[getattr(panel, f) for f in panels.PanelShape.__dataclass_fields__])
    table = panels.unpack_matrix(shape, machine.weights[kind])
    machine.run(machine.programs["embed", kind], packed=ROWS)
    found = machine.view("wide")[:ROWS]
    assert np.array_equal(found, table[machine.view("index")[:ROWS]])


def test_embedding_scales_and_accumulates(machine: Machine) -> None:
    filled(machine)
    machine.view("wide")[:] = 2
    machine.run(machine.programs["embed"], packed=ROWS)
    table = machine.weights["plain"].view(np.float32).reshape(100, EMBED_COLUMNS)
    wanted = 2 + np.float32(0.5) * table[machine.view("index")[:ROWS]]
    assert np.array_equal(machine.view("wide")[:ROWS], wanted)
    assert np.all(machine.view("wide")[ROWS:] == 2)


def test_selections_and_scatters(machine: Machine) -> None:
    x, y = filled(machine)
    machine.run(machine.programs["select"], packed=ROWS)
    index = machine.view("index")[:ROWS]
    assert np.array_equal(machine.view("y")[:ROWS, 8 : 8 + WIDTH], x[index, 4 : 4 + WIDTH])
    outside_is_untouched(machine, y)
    rng = np.random.default_rng(3)
    slots = rng.permutation(16)
    machine.view("slot")[:] = slots
    machine.view("pending")[:] = np.arange(16) + 500
    machine.view("lane")[:] = rng.integers(0, 16, 256)
    staged = np.where(rng.random(256) < 0.5, -1, np.arange(256))
    machine.view("staged")[:] = staged
    machine.run(machine.programs["tokens"], packed=ROWS)
    wanted = np.where(staged < 0, slots[machine.view("lane")] + 500, staged)
    assert np.array_equal(machine.view("tokens")[:ROWS], wanted[:ROWS])
    machine.view("rows")[:] = rng.integers(0, 100, (16, 8))
    machine.view("table")[:] = 9
    machine.run(machine.programs["scatter"], lanes=5)
    table = np.full((16, 8), 9)
    table[slots[:5]] = -3
    table[slots[:5], 2:7] = machine.view("rows")[:5, 1:6]
    assert np.array_equal(machine.view("table"), table)

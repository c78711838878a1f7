"""Matrix products of the host executor: right, and bitwise equal whatever the batch."""

import numpy as np
import pytest
from host_machine import Machine
from test_host_panels import KINDS, raw_matrix

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host import panels

ROWS, COLUMNS, BATCH = 200, 512, 150


@pytest.fixture(scope="module")
def machine():
    """One product a storage kind, one with bias, one that accumulates, one narrow plain one."""
    m = Machine()
    rng = np.random.default_rng(1)
    m.state("x", wire.F32, (256, COLUMNS))
    m.state("y", wire.F32, (256, ROWS + 24))
    m.weight("bias", rng.standard_normal(ROWS, dtype=np.float32))
    for kind in KINDS:
        m.matrix(kind, kind, ROWS, COLUMNS, raw_matrix(kind, ROWS, COLUMNS))
        m.program(
            wire.Product(
                rows=wire.ROWS_PACKED,
                input=m.part("x"),
                weight=m.names[kind],
                output=m.part("y", 8, ROWS),
            )
        )
    m.program(
        wire.Product(
            rows=wire.ROWS_PACKED,
            input=m.part("x"),
            weight=m.names["Q4_1"],
            output=m.part("y", 8, ROWS),
            bias=m.names["bias"],
            has_bias=True,
        )
    )
    m.program(
        wire.Product(
            rows=wire.ROWS_PACKED,
            input=m.part("x"),
            weight=m.names["Q4_1"],
            output=m.part("y", 8, ROWS),
            accumulate=True,
        )
    )
    m.matrix("narrow", "F32", ROWS, 33, raw_matrix("F32", ROWS, 33))
    m.program(
        wire.Product(
            rows=wire.ROWS_PACKED,
            input=m.part("x", 3, 33),
            weight=m.names["narrow"],
            output=m.part("y", 8, ROWS),
        )
    )
    m.load()
    yield m
    m.executor.close()


def activations(m: Machine) -> np.ndarray:
    x = np.random.default_rng(2).standard_normal((256, COLUMNS), dtype=np.float32)
    m.view("x")[:] = x
    return x


def matrix_of(m: Machine, name: str) -> np.ndarray:
    panel = m.manifest.buffers[m.names[name]].panel
    fields = [getattr(panel, f) for f in panels.PanelShape.__dataclass_fields__]
    return panels.unpack_matrix(panels.PanelShape(*fields), m.weights[name])


@pytest.mark.parametrize("number,kind", list(enumerate(KINDS)))
def test_product(machine: Machine, number: int, kind: str) -> None:
    x = activations(machine).astype(np.float64)
    exact = x @ matrix_of(machine, kind).astype(np.float64).T
    scale = np.abs(x) @ np.abs(matrix_of(machine, kind)).astype(np.float64).T
    machine.view("y")[:] = 7
    machine.run(number, packed=BATCH)
    y = machine.view("y")
    assert np.max(np.abs(y[:BATCH, 8 : 8 + ROWS] - exact[:BATCH]) / scale[:BATCH]) < 2e-6
    assert np.all(y[:, :8] == 7) and np.all(y[:, 8 + ROWS :] == 7) and np.all(y[BATCH:] == 7)


@pytest.mark.parametrize("number,kind", list(enumerate(KINDS)))
def test_rows_do_not_depend_on_the_batch(machine: Machine, number: int, kind: str) -> None:
    activations(machine)
    machine.run(number, packed=BATCH)
    whole = machine.view("y")[:BATCH].copy()
    for batch in (1, 2, 3, 4, 5, 6, 7, 8, 13, 129):
        machine.view("y")[:] = 0
        machine.run(number, packed=batch)
        assert (
            machine.view("y")[:batch, 8 : 8 + ROWS].tobytes()
            == whole[:batch, 8 : 8 + ROWS].tobytes()
        )


def test_bias_accumulate_and_narrow(machine: Machine) -> None:
    x = activations(machine).astype(np.float64)
    exact = x[:BATCH] @ matrix_of(machine, "Q4_1").astype(np.float64).T
    bias = machine.weights["bias"].view(np.float32)
    inside = (slice(0, BATCH), slice(8, 8 + ROWS))
    machine.run(len(KINDS), packed=BATCH)
    assert np.allclose(machine.view("y")[inside], exact + bias, rtol=0, atol=2e-3)
    machine.view("y")[:] = 100
    machine.run(len(KINDS) + 1, packed=BATCH)
    assert np.allclose(machine.view("y")[inside], exact + 100, rtol=0, atol=2e-3)
    machine.run(len(KINDS) + 2, packed=BATCH)
    narrow = x[:BATCH, 3:36] @ matrix_of(machine, "narrow").astype(np.float64).T
    assert np.allclose(machine.view("y")[inside], narrow, rtol=0, atol=2e-5)

"""Panels hold exactly the values that the checkpoint library dequantises."""

import numpy as np
import pytest

from helios_dod.contract.wire import manifest_pb2
from helios_dod.executors.host import panels

KINDS = [*panels.FORMATS, *panels.PLAIN]


def raw_matrix(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random checkpoint bytes whose scales are finite."""
    rng = np.random.default_rng(seed)
    if kind == "F32":
        return rng.standard_normal((rows, columns), dtype=np.float32).view(np.uint8)
    if kind == "F16":
        return rng.standard_normal((rows, columns)).astype(np.float16).view(np.uint8)
    if kind == "BF16":
        words = rng.standard_normal((rows, columns), dtype=np.float32).view(np.uint32) >> 16
        return words.astype(np.uint16).view(np.uint8)
    form = panels.FORMATS[kind]
    blocks = rng.integers(0, 256, (rows, columns // form.elements, form.nbytes), dtype=np.uint8)
    halves = {"Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,)}.get(kind, (0, 2))
    for at in halves:
        values = rng.uniform(-0.1, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = values[:, :, None].view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_values_equal_the_library(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    rows, columns = 70, 512
    raw = raw_matrix(kind, rows, columns)
    shape, data = panels.pack_matrix(kind, rows, columns, raw)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    values = panels.unpack_matrix(shape, data)
    assert values.dtype == expected.dtype == np.float32 and np.array_equal(values, expected)
    assert data.size == shape.matrix_bytes
    assert shape == panels.panel_shape(kind, rows, columns)


@pytest.mark.parametrize("kind,columns", [("F32", 7), ("BF16", 33), ("F16", 1), ("Q4_1", 32)])
@pytest.mark.parametrize("rows", [1, 63, 64, 65])
def test_any_row_count(kind: str, columns: int, rows: int) -> None:
    shape, data = panels.pack_matrix(kind, rows, columns, raw_matrix(kind, rows, columns))
    assert data.size == shape.matrix_bytes == shape.panel_count * shape.panel_bytes
    assert panels.unpack_matrix(shape, data).shape == (rows, columns)


def test_scale_outside_f16_widens() -> None:
    gguf = pytest.importorskip("gguf")
    raw = raw_matrix("Q4_0", 2, 32)
    raw[0, :2] = np.array([60000], np.float16).view(np.uint8)  # -8 times it overflows f16
    shape, data = panels.pack_matrix("Q4_0", 2, 32, raw)
    assert shape.scale == shape.minimum == panels.F32
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(panels.unpack_matrix(shape, data), expected)


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="Q4_1: 33 columns are not a multiple of 32"):
        panels.pack_matrix("Q4_1", 1, 33, np.zeros(20, np.uint8))
    with pytest.raises(ValueError, match="20 bytes expected, got 19"):
        panels.pack_matrix("Q4_1", 1, 32, np.zeros(19, np.uint8))
    with pytest.raises(ValueError, match="IQ2_XS"):
        panels.pack_matrix("IQ2_XS", 1, 32, np.zeros(19, np.uint8))


def test_numbers_are_those_on_the_wire() -> None:
    for name in ("PANEL_F32", "PANEL_F16", "PANEL_BF16", "PANEL_Q4", "PANEL_Q8"):
        assert getattr(panels, name) == getattr(manifest_pb2, name)
    assert (panels.F32, panels.F16) == (manifest_pb2.F32, manifest_pb2.F16)
    fields = [field.name for field in manifest_pb2.Panel.DESCRIPTOR.fields]
    assert fields == list(panels.PanelShape.__dataclass_fields__)

"""Row-panel storage of weight matrices, and the exact packers that make it from checkpoint bytes.

A matrix [rows, columns] is cut into panels of PANEL_ROWS rows; the last one is padded with rows of
zeros. A panel is contiguous and holds every column, so a product streams it once. Within a panel:

    plain (F32, F16, BF16)   [column][PANEL_ROWS] values
    Q4    per block of `block_columns`: scale [PANEL_ROWS], minimum [PANEL_ROWS], then
          [block_columns / 8][PANEL_ROWS] u32 words; column 8 g + j is bits 4 j .. 4 j + 3 of word g
    Q8    per block: scale [PANEL_ROWS], minimum [PANEL_ROWS] if any, then
          [block_columns / 4][PANEL_ROWS] u32 words; column 4 g + j is the signed byte j of word g

    value = fma(q, scale, minimum), rounded once to f32

That value equals the checkpoint library's dequantised one for every format here (a zero's sign
aside): the product of quant and scale is exact in f32 wherever a minimum is added, and otherwise it
is rounded once by both.
Block layouts are those of the GGUF specification (ggml's block_q4_0 .. block_q6_K).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PANEL_ROWS = 64

# proto PanelEncoding
PANEL_F32, PANEL_F16, PANEL_BF16, PANEL_Q4, PANEL_Q8 = 1, 2, 3, 4, 5
# proto DataType
NONE, F32, F16 = 0, 1, 2

PLAIN = {
    "F32": (PANEL_F32, np.dtype("<f4")),
    "F16": (PANEL_F16, np.dtype("<f2")),
    "BF16": (PANEL_BF16, np.dtype("<u2")),
}
WORD_COLUMNS = {PANEL_Q4: 8, PANEL_Q8: 4}
VALUE_BYTES = {PANEL_F32: 4, PANEL_F16: 2, PANEL_BF16: 2}
SCALE_BYTES = {NONE: 0, F32: 4, F16: 2}


@dataclass(frozen=True)
class PanelShape:
    """The fields of proto Panel, enums as integers."""

    encoding: int
    rows: int
    columns: int
    panel_rows: int
    block_columns: int
    scale: int
    minimum: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one panel; of one column for plain encodings."""
        if self.block_columns == 0:
            return self.panel_rows * VALUE_BYTES[self.encoding]
        words = self.block_columns // WORD_COLUMNS[self.encoding]
        return self.panel_rows * (SCALE_BYTES[self.scale] + SCALE_BYTES[self.minimum] + 4 * words)

    @property
    def panel_count(self) -> int:
        """Panels of the matrix, the padded one included."""
        return -(-self.rows // self.panel_rows)

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel."""
        return self.block_bytes * (self.columns // max(self.block_columns, 1))

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.panel_bytes * self.panel_count


@dataclass(frozen=True)
class Quants:
    """A decoded matrix: value[r, c] = fma(q[r, c], scale[r, c // block], the same of minimum)."""

    q: np.ndarray  # uint8 nibbles or int8, [rows, columns]
    scale: np.ndarray  # float16 or float32, [rows, columns / block]
    minimum: np.ndarray | None


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The f16 at byte `at` of every block: [rows, blocks]."""
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0]


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Low nibbles of a run, then its high ones, along the last axis."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """32 bits from byte `at`, bit j as 16 at element j: [rows, blocks, 32]."""
    return np.unpackbits(blocks[:, :, at : at + 4], axis=-1, bitorder="little") << 4


def _flat(q: np.ndarray) -> np.ndarray:
    return q.reshape(len(q), -1)


def _q4_0(b: np.ndarray) -> Quants:
    scale = _half(b, 0)
    with np.errstate(over="ignore"):
        minimum = scale * np.float16(-8)  # a power of two: exact unless it overflows
    if not np.isfinite(minimum).all():
        scale = scale.astype(np.float32)
        minimum = scale * np.float32(-8)
    return Quants(_flat(_nibbles(b[:, :, 2:18])), scale, minimum)


def _q4_1(b: np.ndarray) -> Quants:
    return Quants(_flat(_nibbles(b[:, :, 4:20])), _half(b, 0), _half(b, 2))


def _q5_0(b: np.ndarray) -> Quants:
    q = (_nibbles(b[:, :, 6:22]) | _fifth_bits(b, 2)).astype(np.int8) - np.int8(16)
    return Quants(_flat(q), _half(b, 0), None)


def _q5_1(b: np.ndarray) -> Quants:
    q = (_nibbles(b[:, :, 8:24]) | _fifth_bits(b, 4)).astype(np.int8)
    return Quants(_flat(q), _half(b, 0), _half(b, 2))


def _q8_0(b: np.ndarray) -> Quants:
    return Quants(_flat(b[:, :, 2:34].view(np.int8)), _half(b, 0), None)


def _k_scales(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of Q4_K and Q5_K's sub-blocks of 32, f32 [rows, blocks * 8].

    Six-bit factors: the first four whole in bytes 0-3 and 4-7, the others split over all twelve."""
    low, middle, high = b[:, :, 4:8], b[:, :, 8:12], b[:, :, 12:16]
    factor = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    offset = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    scale = _half(b, 0).astype(np.float32)[:, :, None] * factor.astype(np.float32)
    minimum = _half(b, 2).astype(np.float32)[:, :, None] * offset.astype(np.float32)
    return _flat(scale), -_flat(minimum)


def _q4_k(b: np.ndarray) -> Quants:
    scale, minimum = _k_scales(b)
    runs = b[:, :, 16:144].reshape(*b.shape[:2], 4, 32)
    return Quants(_flat(_nibbles(runs)), scale, minimum)


def _q5_k(b: np.ndarray) -> Quants:
    scale, minimum = _k_scales(b)
    runs = _nibbles(b[:, :, 48:176].reshape(*b.shape[:2], 4, 32)).reshape(*b.shape[:2], 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (b[:, :, None, 16:48] >> shifts & 1) << 4
    return Quants(_flat((runs | fifth).astype(np.int8)), scale, minimum)


def _q6_k(b: np.ndarray) -> Quants:
    lead = b.shape[:2]
    low = _nibbles(b[:, :, :128].reshape(*lead, 2, 64)).reshape(*lead, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = b[:, :, 128:192].reshape(*lead, 2, 1, 32) >> shifts & 3
    q = (low | high << 4).astype(np.int8) - np.int8(32)
    factor = b[:, :, 192:208].view(np.int8).astype(np.float32)
    scale = _half(b, 208).astype(np.float32)[:, :, None] * factor
    return Quants(_flat(q), _flat(scale), None)


@dataclass(frozen=True)
class Format:
    """A quantised checkpoint format: elements and bytes of a block, and its panel block."""

    elements: int
    nbytes: int
    encoding: int
    block_columns: int
    decode: Callable[[np.ndarray], Quants]


FORMATS = {
    "Q4_0": Format(32, 18, PANEL_Q4, 32, _q4_0),
    "Q4_1": Format(32, 20, PANEL_Q4, 32, _q4_1),
    "Q5_0": Format(32, 22, PANEL_Q8, 32, _q5_0),
    "Q5_1": Format(32, 24, PANEL_Q8, 32, _q5_1),
    "Q8_0": Format(32, 34, PANEL_Q8, 32, _q8_0),
    "Q4_K": Format(256, 144, PANEL_Q4, 32, _q4_k),
    "Q5_K": Format(256, 176, PANEL_Q8, 32, _q5_k),
    "Q6_K": Format(256, 210, PANEL_Q8, 16, _q6_k),
}


def row_bytes(kind: str, columns: int) -> int:
    """Checkpoint bytes of one row. ValueError names the format or the column count it refuses."""
    if kind in PLAIN:
        return columns * PLAIN[kind][1].itemsize
    if kind not in FORMATS:
        raise ValueError(f"format {kind!r} is not one of {sorted([*PLAIN, *FORMATS])}")
    form = FORMATS[kind]
    if columns % form.elements:
        raise ValueError(f"{kind}: {columns} columns are not a multiple of {form.elements}")
    return columns // form.elements * form.nbytes


def _panel_scale(values: np.ndarray) -> int:
    return F16 if values.dtype == np.float16 else F32


def panel_shape(kind: str, rows: int, columns: int) -> PanelShape:
    """The shape that `pack_matrix` gives a plain matrix, or a quantised one whose scales fit."""
    row_bytes(kind, columns)
    if kind in PLAIN:
        return PanelShape(PLAIN[kind][0], rows, columns, PANEL_ROWS, 0, NONE, NONE)
    form = FORMATS[kind]
    quants = form.decode(np.zeros((1, 1, form.nbytes), np.uint8))
    minimum = NONE if quants.minimum is None else _panel_scale(quants.minimum)
    return PanelShape(
        form.encoding,
        rows,
        columns,
        PANEL_ROWS,
        form.block_columns,
        _panel_scale(quants.scale),
        minimum,
    )


def _panels(values: np.ndarray) -> np.ndarray:
    """[rows, n] padded with zero rows and split: [panels, PANEL_ROWS, n]."""
    pad = -len(values) % PANEL_ROWS
    if pad:
        values = np.concatenate([values, np.zeros((pad, values.shape[1]), values.dtype)])
    return values.reshape(-1, PANEL_ROWS, values.shape[1])


def _bytes_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8)


def _words(q: np.ndarray, encoding: int) -> np.ndarray:
    """Quants [panels, PANEL_ROWS, columns] as words [panels, PANEL_ROWS, columns / 8 or 4]."""
    if encoding == PANEL_Q4:
        q = q[:, :, 0::2] | q[:, :, 1::2] << 4
    return np.ascontiguousarray(q).view("<u4")


def _pack_quants(quants: Quants, encoding: int, block: int) -> np.ndarray:
    """Interleaves scales and words block by block: uint8 [bytes]."""
    words = _words(_panels(quants.q), encoding)
    panels, blocks = len(words), quants.scale.shape[1]
    grouped = words.reshape(panels, PANEL_ROWS, blocks, block // WORD_COLUMNS[encoding])
    parts = [_bytes_of(_panels(quants.scale).transpose(0, 2, 1)).reshape(panels, blocks, -1)]
    if quants.minimum is not None:
        minimum = _bytes_of(_panels(quants.minimum).transpose(0, 2, 1))
        parts.append(minimum.reshape(panels, blocks, -1))
    parts.append(_bytes_of(grouped.transpose(0, 2, 3, 1)).reshape(panels, blocks, -1))
    return np.concatenate(parts, axis=-1).reshape(-1)


def pack_matrix(
    kind: str, rows: int, columns: int, data: np.ndarray
) -> tuple[PanelShape, np.ndarray]:
    """Checkpoint bytes of a row-major matrix -> its panel shape and panel bytes (uint8).

    kind: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K. data: uint8, any shape.
    ValueError says which of format, columns or byte count does not agree."""
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    expected = rows * row_bytes(kind, columns)
    if data.size != expected:
        raise ValueError(
            f"{kind} matrix [{rows}, {columns}]: {expected} bytes expected, got {data.size}"
        )
    if kind in PLAIN:
        encoding, dtype = PLAIN[kind]
        values = _panels(data.view(dtype).reshape(rows, columns))
        shape = PanelShape(encoding, rows, columns, PANEL_ROWS, 0, NONE, NONE)
        return shape, _bytes_of(values.transpose(0, 2, 1)).reshape(-1)
    form = FORMATS[kind]
    quants = form.decode(data.reshape(rows, -1, form.nbytes))
    minimum = NONE if quants.minimum is None else _panel_scale(quants.minimum)
    shape = PanelShape(
        form.encoding,
        rows,
        columns,
        PANEL_ROWS,
        form.block_columns,
        _panel_scale(quants.scale),
        minimum,
    )
    return shape, _pack_quants(quants, form.encoding, form.block_columns)


def _take_scale(blocks: np.ndarray, at: int, kind: int) -> tuple[np.ndarray, int]:
    """A scale row of every block as f32 [panels, blocks, PANEL_ROWS], and the byte after it."""
    end = at + PANEL_ROWS * SCALE_BYTES[kind]
    dtype = "<f2" if kind == F16 else "<f4"
    return np.ascontiguousarray(blocks[:, :, at:end]).view(dtype).astype(np.float32), end


def unpack_matrix(shape: PanelShape, data: np.ndarray) -> np.ndarray:
    """The plain counterpart of the kernels: f32 [rows, columns] of a panel matrix."""
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if shape.block_columns == 0:
        dtype = {PANEL_F32: "<f4", PANEL_F16: "<f2", PANEL_BF16: "<u2"}[shape.encoding]
        values = data.view(dtype).reshape(shape.panel_count, shape.columns, PANEL_ROWS)
        if shape.encoding == PANEL_BF16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        flat = values.transpose(0, 2, 1).reshape(-1, shape.columns)
        return np.ascontiguousarray(flat[: shape.rows], dtype=np.float32)
    blocks = data.reshape(shape.panel_count, -1, shape.block_bytes)
    scale, at = _take_scale(blocks, 0, shape.scale)
    minimum = np.float32(0)
    if shape.minimum != NONE:
        minimum, at = _take_scale(blocks, at, shape.minimum)
        minimum = minimum[:, :, None, :]
    words = np.ascontiguousarray(blocks[:, :, at:])
    q = words.reshape(*blocks.shape[:2], -1, PANEL_ROWS, 4)  # [panel, block, word, row, byte]
    if shape.encoding == PANEL_Q4:
        q = np.stack([q & 15, q >> 4], axis=-1).reshape(*q.shape[:4], 8)
    else:
        q = q.view(np.int8)
    q = q.transpose(0, 1, 2, 4, 3).reshape(*blocks.shape[:2], shape.block_columns, PANEL_ROWS)
    product = q.astype(np.float64) * scale[:, :, None, :].astype(np.float64)
    values = (product + minimum).astype(np.float32)  # f64 holds both exactly: one rounding
    flat = values.transpose(0, 3, 1, 2).reshape(-1, shape.columns)
    return np.ascontiguousarray(flat[: shape.rows])

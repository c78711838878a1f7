"""Weights as CUDA kernels read them: matrices in rows of bf16 or e4m3, vectors as they were.

Quantised tensors are dequantised to float32 and rounded to bf16, to nearest even, before a recipe
sees them; so a recipe stacks what belongs together, whatever types a file mixes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host.panels import PanelShape, pack_matrix, unpack_matrix
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint, Tensor
from helios_dod.ignition.floats import E4M3_MAX, to_bf16, to_e4m3
from helios_dod.ignition.prepared import WEIGHT_ALIGNMENT, WeightPart, Weights

BF16_BYTES = 2
ROWS_AT_ONCE = 1024
EMPTY_FACTOR = 2.0**-12  # of a row of zeros, where any is right: of made ones (upload.py) it is too


class Quantised:
    """A bf16 matrix [rows, columns] in e4m3 with one factor a row, which its values are multiplied
    with; the matrix is read once, where its bits are made before its factors."""

    def __init__(self, rows: int, columns: int, produce: Callable[[], np.ndarray]) -> None:
        self.shape, self.produce = (rows, columns), produce
        self.scale: np.ndarray | None = None

    def _parts(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Rows, their values as float32, their factors."""
        stored = self.produce().view(np.uint16).reshape(self.shape)
        self.scale = np.empty(self.shape[0], np.float32)
        for first in range(0, self.shape[0], ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            values = (stored[rows].astype(np.uint32) << 16).view(np.float32)
            peak = np.abs(values).max(axis=1)
            self.scale[rows] = np.where(peak > 0, peak / np.float32(E4M3_MAX), EMPTY_FACTOR)
            yield rows, values, self.scale[rows, None]

    def bits(self) -> np.ndarray:
        """uint8 [rows * columns]."""
        out = np.empty(self.shape, np.uint8)
        for rows, values, scale in self._parts():
            out[rows] = to_e4m3(values / scale)
        return out.reshape(-1)

    def factors(self) -> np.ndarray:
        """uint8: float32 [rows]."""
        if self.scale is None:
            for _ in self._parts():
                pass
        assert self.scale is not None
        return self.scale.view(np.uint8)


def dense(tensor: Tensor) -> Tensor:
    """A matrix as BF16, converted when it is read; vectors stay."""
    if len(tensor.shape) != 2 or tensor.kind == "BF16":
        return tensor

    def read() -> np.ndarray:
        rows, columns = tensor.shape
        shape, data = pack_matrix(tensor.kind, rows, columns, tensor.data)
        return to_bf16(unpack_matrix(shape, data)).reshape(-1).view(np.uint8)

    return replace(tensor, kind="BF16", read=read)


def dense_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with every matrix as BF16."""
    tensors = {name: dense(tensor) for name, tensor in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def row_major(manifest: wire.ExecutionManifest, weights: Weights) -> Weights:
    """Turns panel buffers of a manifest into BF16 [rows, columns], in place; their weights."""
    parts = {part.name: part for part in weights.parts}
    made: list[WeightPart] = []
    end = 0
    for buffer in manifest.buffers:
        if buffer.kind != wire.WEIGHT:
            continue
        produce, nbytes = parts[buffer.name].produce, buffer.resource_nbytes
        if buffer.HasField("panel"):
            shape = PanelShape(*(getattr(buffer.panel, name) for name in (
                "encoding", "rows", "columns", "panel_rows", "block_columns", "scale", "minimum")))
            produce, nbytes = _rows_of(shape, produce), BF16_BYTES * shape.rows * shape.columns
            buffer.ClearField("panel")
            buffer.dtype = wire.BF16
            del buffer.shape[:]
            buffer.shape.extend(wire.Extent(multiplier=n) for n in (shape.rows, shape.columns))
        offset = -(-end // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
        buffer.resource_offset, buffer.resource_nbytes = offset, nbytes
        made.append(WeightPart(buffer.name, offset, nbytes, produce))
        end = offset + nbytes
    return Weights(weights.resource_id, end, tuple(made))


def in_e4m3(manifest: wire.ExecutionManifest, weights: Weights, head: bool = False) -> Weights:
    """Turns the BF16 matrices of products into F8_E4M3 and adds F32 [rows] factors behind each, by
    the name NAME.scale, in place; their weights. head: that of the logits too, unless it is the
    embedding, which stays as it is."""
    products: set[int] = set()
    kept: set[int] = set()
    for body in manifest.host_bodies:
        for operation in body.operations:
            if operation.HasField("embed"):
                kept.add(operation.embed.table)
            if operation.HasField("product"):
                product = operation.product
                shape = manifest.buffers[product.output.buffer].shape
                logits = shape[0].symbol == wire.LOGIT_ROWS
                (kept if logits and not head else products).add(product.weight)
    parts = {part.name: part for part in weights.parts}
    made: list[WeightPart] = []
    end = 0

    def place(buffer: wire.Buffer, nbytes: int, produce: Callable[[], np.ndarray]) -> None:
        nonlocal end
        offset = -(-end // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
        buffer.resource_offset, buffer.resource_nbytes = offset, nbytes
        made.append(WeightPart(buffer.name, offset, nbytes, produce))
        end = offset + nbytes

    for index, buffer in enumerate(list(manifest.buffers)):
        if buffer.kind != wire.WEIGHT:
            continue
        if index not in products - kept:
            place(buffer, buffer.resource_nbytes, parts[buffer.name].produce)
            continue
        rows, columns = (axis.multiplier for axis in buffer.shape)
        matrix = Quantised(rows, columns, parts[buffer.name].produce)
        buffer.dtype = wire.F8_E4M3
        place(buffer, rows * columns, matrix.bits)
        factors = manifest.buffers.add(
            name=f"{buffer.name}.scale", kind=wire.WEIGHT, dtype=wire.F32,
            resource_id=buffer.resource_id, shape=[wire.Extent(multiplier=rows)])
        place(factors, 4 * rows, matrix.factors)
    return Weights(weights.resource_id, end, tuple(made))


def _rows_of(shape: PanelShape, produce: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    def rows() -> np.ndarray:
        return to_bf16(unpack_matrix(shape, produce())).reshape(-1).view(np.uint8)

    return rows

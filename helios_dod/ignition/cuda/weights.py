"""Weights as CUDA kernels read them: matrices in rows of bf16, vectors as they were.

Quantised tensors are dequantised to float32 and rounded to bf16, to nearest even, before a recipe
sees them; so a recipe stacks what belongs together, whatever types a file mixes.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host.panels import PanelShape, pack_matrix, unpack_matrix
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint, Tensor
from helios_dod.ignition.prepared import WEIGHT_ALIGNMENT, WeightPart, Weights

BF16_BYTES = 2


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> bf16 bits (uint16), rounded to nearest even; values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


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


def _rows_of(shape: PanelShape, produce: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    def rows() -> np.ndarray:
        return to_bf16(unpack_matrix(shape, produce())).reshape(-1).view(np.uint8)

    return rows

"""Costs of a core's programs from its manifest and a declared machine: bytes over bandwidth or
operations over rate, whichever takes longer (Williams, Waterman and Patterson, "Roofline", 2009).

Counted are matrix products and attention; a program of few tokens reads every matrix once. Of host
bodies the products are named; a device body does not say what its nodes compute, so there every
weight matrix counts as a product, one with as many rows as the vocabulary as the head, and a cached
value as read by one query head.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from helios_dod.contract.prepared import PreparedContract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.errors import UserError
from helios_dod.executors.costs import FEATURES, OPERATIONS, PS, TABLE_SHAPE, Costs

ITEM_BYTES = {wire.F32: 4, wire.I32: 4, wire.U32: 4, wire.F16: 2, wire.BF16: 2, wire.U8: 1,
              wire.U64: 8, wire.F8_E4M3: 1}
WITHOUT_MODEL = ("initialize", "restore")


@dataclass(frozen=True)
class Work:
    """What a decoding program of a core moves and does."""

    weight_bytes: int  # of every program
    packed_operations: int  # of each packed token; a multiplication and an addition are two
    sampled_operations: int  # of each lane that samples: the head
    history_bytes: int  # of each token of history that a lane reads
    pair_operations: int  # of each token and one that it sees

    @property
    def sides(self) -> np.ndarray:
        """Bytes and operations of each feature: int64 [2, 6], in the order of costs.FEATURES."""
        parts = ({"program": self.weight_bytes, "history": self.history_bytes},
                 {"packed": self.packed_operations, "sampled": self.sampled_operations,
                  "pairs": self.pair_operations})
        return np.array([[part.get(name, 0) for name in FEATURES] for part in parts], np.int64)


@dataclass(frozen=True)
class Device:
    """A declared machine. efficiency: the share of both rates that programs reach."""

    bytes_per_s: float
    operations_per_s: float
    overhead_ns: int = 0  # of every program
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "operations_per_s", "efficiency"):
            if not getattr(self, name) > 0:
                raise UserError(f"device.{name}: expected more than 0, got {getattr(self, name)}")
        if self.overhead_ns < 0 or self.efficiency > 1:
            raise UserError("device: expected an overhead of at least 0 and an efficiency of at "
                            f"most 1, got {self.overhead_ns} and {self.efficiency}")


def matrix_of(buffer: wire.Buffer) -> tuple[int, int] | None:
    """(rows, columns) of a weight matrix, else None."""
    if buffer.kind != wire.WEIGHT:
        return None
    if buffer.HasField("panel"):
        return buffer.panel.rows, buffer.panel.columns
    shape = [extent.multiplier for extent in buffer.shape]
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else None


def work_of(manifest: wire.ExecutionManifest, contract: PreparedContract) -> Work:
    """Of the widest decoding program. Raises UserError where there is none."""
    programs = [(program.batch_capacity, index) for index, program in enumerate(manifest.programs)
                if program.operation == wire.DECODE]
    if not programs:
        raise UserError("programs: expected one that decodes, got none")
    program = manifest.programs[max(programs)[1]]
    values = sum(prod(extent.multiplier for extent in manifest.buffers[plane].shape[1:])
                 for region in contract.cache.regions for plane in region.planes
                 if region.page_group == 0)
    products: list[tuple[wire.Buffer, bool]] = []  # (matrix, of lanes that sample only)
    pairs = 2 * values
    if program.WhichOneof("code") == "cuda_body":
        products = [(buffer, shape[0] == contract.vocabulary) for buffer in manifest.buffers
                    if (shape := matrix_of(buffer)) is not None]
    else:
        pairs = 0
        for step in manifest.host_bodies[program.body].operations:
            if step.WhichOneof("operation") == "product":
                products.append((manifest.buffers[step.product.weight],
                                 step.product.rows == wire.ROWS_SAMPLED))
            elif step.WhichOneof("operation") == "attention":
                pairs += 4 * step.attention.heads * step.attention.head
    counts = {False: 0, True: 0}
    for buffer, sampled in products:
        counts[sampled] += 2 * prod(matrix_of(buffer) or (0,))
    cache = contract.cache
    return Work(sum(buffer.resource_nbytes for buffer, _ in products), counts[False], counts[True],
                cache.page_bytes // cache.page_tokens, pairs)


def roofline(work: Work, device: Device) -> Costs:
    """Every program that runs the model; others take the overhead alone."""
    rates = np.array([[device.bytes_per_s], [device.operations_per_s]]) * device.efficiency
    own = np.rint(work.sides * (PS * 1e9 / rates)).astype(np.int64)
    table = np.zeros(TABLE_SHAPE, np.int64)
    table[1:, :, FEATURES.index("program")] = device.overhead_ns * PS
    for name, row in OPERATIONS.items():
        if name not in WITHOUT_MODEL:
            table[row] += own
    return Costs(table)

"""A small typed builder: named buffers, lists of operations, programs -> ExecutionManifest.

A program's value bindings and state accesses are derived from what its operations read and write,
so that a manifest cannot stage a buffer that nothing reads, or read one that nothing stages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from helios_dod.contract.operations import OPERATIONS, READ, ROLE_ACCESS
from helios_dod.contract.states import BY_BITS
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host.panels import pack_matrix, panel_shape
from helios_dod.ignition.checkpoints.checkpoint import Tensor
from helios_dod.ignition.prepared import (
    WEIGHT_ALIGNMENT,
    WEIGHT_RESOURCE,
    PreparationError,
    WeightPart,
    Weights,
)

ABI_VERSION = 6
ELEMENT_BYTES = {
    wire.F32: 4,
    wire.F16: 2,
    wire.BF16: 2,
    wire.I32: 4,
    wire.U32: 4,
    wire.I64: 8,
    wire.U64: 8,
    wire.U8: 1,
    wire.I8: 1,
    wire.F8_E4M3: 1,
}
Axis = int | wire.Extent

OPERATION_FIELDS = {
    entry.message_type.name: entry.name
    for entry in wire.HostOperation.DESCRIPTOR.oneofs[0].fields
    if entry.message_type is not None
}


def symbol(kind: wire.Symbol, multiplier: int = 1) -> wire.Extent:
    """An axis that is chosen when a core is loaded."""
    return wire.Extent(symbol=kind, multiplier=multiplier)


@dataclass(frozen=True)
class Handle:
    """A declared buffer."""

    index: int
    name: str

    def part(self, column: int = 0, columns: int = 0) -> wire.Operand:
        """All rows of some columns; 0 columns is all of them."""
        return wire.Operand(buffer=self.index, column=column, columns=columns)

    @property
    def whole(self) -> wire.Operand:
        """The whole buffer."""
        return self.part()


@dataclass(frozen=True)
class Source:
    """Where the host takes a STAGING buffer's values from."""

    value: contract.ValueSource
    indexing: contract.Indexing


def buffers_of(operation: Any) -> Iterator[tuple[int, int]]:
    """(buffer, access) of every buffer that an operation message names."""
    name = OPERATION_FIELDS[operation.DESCRIPTOR.name]
    for touch in OPERATIONS[name]:
        if touch.flag and not getattr(operation, touch.flag):
            continue
        value = getattr(operation, touch.field)
        yield value if isinstance(value, int) else value.buffer, ROLE_ACCESS[touch.role]


@dataclass
class Body:
    """Operations in order. One body serves any number of program variants."""

    operations: list[Any] = field(default_factory=list)

    def add(self, *operations: Any) -> None:
        """Appends operation messages (Product, Rotary ...)."""
        self.operations.extend(operations)

    def accesses(self) -> dict[int, int]:
        """Buffer -> access over the whole body, in order of first use."""
        found: dict[int, int] = {}
        for operation in self.operations:
            for buffer, access in buffers_of(operation):
                found[buffer] = found.get(buffer, 0) | access
        return found


class Builder:
    """Collects a manifest and the graph contracts that belong to it."""

    def __init__(self) -> None:
        self.manifest = wire.ExecutionManifest(abi_version=ABI_VERSION)
        self.graphs: list[contract.GraphContract] = []
        self.sources: dict[int, Source] = {}
        self.parts: list[WeightPart] = []
        self.weight_bytes = 0
        self.by_name: dict[str, Handle] = {}

    def buffer(
        self,
        name: str,
        kind: wire.BufferKind,
        dtype: wire.DataType,
        shape: Sequence[Axis],
        **fields: Any,
    ) -> Handle:
        """Declares a buffer; names are unique."""
        assert name not in self.by_name, f"buffer {name} is declared twice"
        axes = [
            axis if isinstance(axis, wire.Extent) else wire.Extent(multiplier=axis)
            for axis in shape
        ]
        self.manifest.buffers.append(
            wire.Buffer(name=name, kind=kind, dtype=dtype, shape=axes, **fields)
        )
        handle = Handle(len(self.manifest.buffers) - 1, name)
        self.by_name[name] = handle
        return handle

    def staging(
        self, name: str, dtype: wire.DataType, shape: Sequence[Axis], source: Source
    ) -> Handle:
        """Declares a buffer that the host fills before every program that reads it."""
        handle = self.buffer(name, wire.STAGING, dtype, shape)
        self.sources[handle.index] = source
        return handle

    def _weight(
        self,
        name: str,
        dtype: wire.DataType,
        shape: Sequence[int],
        nbytes: int,
        produce: Callable[[], np.ndarray],
        **fields: Any,
    ) -> Handle:
        offset = -(-self.weight_bytes // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
        self.weight_bytes = offset + nbytes
        self.parts.append(WeightPart(name, offset, nbytes, produce))
        return self.buffer(
            name,
            wire.WEIGHT,
            dtype,
            shape,
            resource_id=WEIGHT_RESOURCE,
            resource_offset=offset,
            resource_nbytes=nbytes,
            **fields,
        )

    def vector(self, name: str, values: np.ndarray) -> Handle:
        """A one-dimensional float32 weight: norm, bias, frequencies."""
        assert values.ndim == 1 and values.dtype == np.float32, name
        return self._weight(
            name,
            wire.F32,
            values.shape,
            values.nbytes,
            lambda: np.ascontiguousarray(values).view(np.uint8),
        )

    def matrix(self, name: str, tensors: Sequence[Tensor]) -> Handle:
        """A panel matrix of tensors [rows, columns] of one type and width, stacked by rows."""
        kind, columns = tensors[0].kind, tensors[0].shape[1]
        assert all(tensor.kind == kind and tensor.shape[1] == columns for tensor in tensors), name
        rows = sum(tensor.shape[0] for tensor in tensors)
        shape = panel_shape(kind, rows, columns)

        def produce() -> np.ndarray:
            stored = [tensor.data for tensor in tensors]
            made, data = pack_matrix(
                kind, rows, columns, stored[0] if len(stored) == 1 else np.concatenate(stored)
            )
            if made != shape:
                raise PreparationError(
                    f"tensor {tensors[0].name}: its scales do not fit the storage of type {kind}"
                )
            return data

        panel = wire.Panel(
            encoding=shape.encoding,
            rows=rows,
            columns=columns,
            panel_rows=shape.panel_rows,
            block_columns=shape.block_columns,
            scale=shape.scale,
            minimum=shape.minimum,
        )
        nbytes = shape.matrix_bytes
        return self._weight(name, wire.U8, (nbytes,), nbytes, produce, panel=panel)

    def weights(self) -> Weights:
        """The weight resource of all matrices and vectors so far."""
        return Weights(WEIGHT_RESOURCE, self.weight_bytes, tuple(self.parts))

    def body(self, body: Body) -> int:
        """Adds a body; its number for `program`."""
        operations = [
            wire.HostOperation(**{OPERATION_FIELDS[operation.DESCRIPTOR.name]: operation})
            for operation in body.operations
        ]
        self.manifest.host_bodies.append(wire.HostBody(operations=operations))
        return len(self.manifest.host_bodies) - 1

    def program(
        self, name: str, operation: wire.Operation, body: Body, number: int, *,
        batch: int, packed: int, live: Sequence[Handle], host_pending: Handle | None = None,
        width: int = 1, state_rows: int = 0,
    ) -> None:
        """Adds a variant of a body, and its graph contract.

        live: staged counts that every program reads. host_pending: the staged buffer that holds
        pending tokens, where the host owns them. width: tokens of one lane; a speculative program
        draws a draft less. state_rows: of one request."""
        assert all(program.name != name for program in self.manifest.programs), name
        self.manifest.programs.append(wire.Program(
            name=name, operation=operation, batch_capacity=batch, token_capacity=width,
            draft_tokens=width - 1, packed_token_capacity=packed, body=number))
        graph = contract.GraphContract(
            program=name, operation=operation, state_rows_per_request=state_rows)
        accesses = dict.fromkeys((handle.index for handle in live), READ) | body.accesses()
        staged = [buffer for buffer in accesses if buffer in self.sources]
        graph.bindings.extend(self.binding(buffer) for buffer in staged)
        for buffer, access in accesses.items():
            if self.manifest.buffers[buffer].kind == wire.STATE:
                graph.states.append(self.state_view(buffer, BY_BITS[access]))
        if host_pending is not None:
            graph.host_pending_binding = staged.index(host_pending.index)
        elif accesses.get(self.by_name["pending"].index, 0) & READ:
            graph.device_pending.CopyFrom(
                self.state_view(self.by_name["pending"].index, contract.READ))
        self.graphs.append(graph)

    def binding(self, buffer: int) -> contract.ValueBinding:
        """The value binding of a STAGING buffer."""
        source = self.sources[buffer]
        return contract.ValueBinding(buffer=buffer, source=source.value, indexing=source.indexing)

    def state_view(self, buffer: int, access: contract.Access) -> contract.StateView:
        """The whole row of a state buffer; zeros where its width is chosen at load."""
        declared = self.manifest.buffers[buffer]
        fixed = all(axis.symbol == 0 for axis in declared.shape[1:])
        elements = int(np.prod([axis.multiplier for axis in declared.shape[1:]], dtype=np.int64))
        row = ELEMENT_BYTES[declared.dtype] * elements if fixed else 0
        return contract.StateView(
            buffer=buffer, offset=0, row_stride=row, extent=row, access=access)

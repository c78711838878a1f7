"""A small typed builder: named buffers, lists of operations, programs -> ExecutionManifest.

A program's value bindings and state accesses are derived from what its operations read and write,
so that a manifest cannot stage a buffer that nothing reads, or read one that nothing stages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
}
Axis = int | wire.Extent

# Operation message -> fields that it writes; every other operand is read. Fields that are both are
# in READ_WRITTEN too.
WRITTEN = {
    "ScatterRows": ("destination",),
    "FillRows": ("destination",),
    "UpdatePageTable": ("table",),
    "SelectTokens": ("output",),
    "Embed": ("output",),
    "Normalise": ("output",),
    "Product": ("output",),
    "Rotary": ("operand",),
    "CacheWrite": ("key_cache", "value_cache"),
    "Attention": ("output",),
    "Activation": ("output",),
    "SelectRows": ("output",),
    "AdjustLogits": ("logits", "status"),
    "Sample": ("output", "logprob", "top_tokens", "top_logprobs"),
    "Advance": ("pending", "histogram", "generated", "status"),
    "Score": ("output",),
}
READ_WRITTEN = {
    "Rotary": ("operand",),
    "AdjustLogits": ("logits", "status"),
    "Advance": ("histogram", "generated", "status"),
}
# Plain integer fields that name a buffer, with the flag that says whether they count.
INDEX_FIELDS: dict[str, dict[str, str | None]] = {
    "Embed": {"table": None},
    "Normalise": {"weight": None, "bias": "has_bias"},
    "Product": {"weight": None, "bias": "has_bias"},
    "Rotary": {"frequencies": None},
    "CacheWrite": {"key_cache": None, "value_cache": None},
    "Attention": {"key_cache": None, "value_cache": None},
}
OPTIONAL_OPERANDS: dict[str, dict[str, str]] = {
    "SelectTokens": {"staged": "has_staged"},
    "Activation": {"up": "has_up"},
}
ACCESSES = {  # (read, written)
    (True, False): contract.READ,
    (False, True): contract.WRITE,
    (True, True): contract.READ_WRITE,
}
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
    """Where the host takes a STAGING buffer's values from; the fields of ValueBinding."""

    value: contract.ValueSource
    indexing: contract.Indexing
    padding: int = 0
    constant: int = 0


def buffers_of(operation: Any) -> Iterator[tuple[int, bool, bool]]:
    """(buffer, read, written) of every buffer that an operation message names."""
    kind = operation.DESCRIPTOR.name
    written, both = WRITTEN.get(kind, ()), READ_WRITTEN.get(kind, ())
    indices, optional = INDEX_FIELDS.get(kind, {}), OPTIONAL_OPERANDS.get(kind, {})
    for entry in operation.DESCRIPTOR.fields:
        value = getattr(operation, entry.name)
        if entry.name in indices:
            flag, buffer = indices[entry.name], value
        elif entry.message_type is not None and entry.message_type.name == "Operand":
            flag, buffer = optional.get(entry.name), value.buffer
        else:
            continue
        if flag is None or getattr(operation, flag):
            is_written = entry.name in written
            yield buffer, not is_written or entry.name in both, is_written


@dataclass
class Body:
    """Operations in order. One body serves any number of program variants."""

    operations: list[Any] = field(default_factory=list)

    def add(self, *operations: Any) -> None:
        """Appends operation messages (Product, Rotary ...)."""
        self.operations.extend(operations)

    def accesses(self) -> dict[int, tuple[bool, bool]]:
        """Buffer -> (read, written) over the whole body, in order of first use."""
        found: dict[int, tuple[bool, bool]] = {}
        for operation in self.operations:
            for buffer, read, written in buffers_of(operation):
                before = found.get(buffer, (False, False))
                found[buffer] = (before[0] or read, before[1] or written)
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
        self,
        name: str,
        operation: wire.Operation,
        body: Body,
        number: int,
        *,
        batch: int,
        packed: int,
        live: Sequence[Handle],
        fixed: Mapping[Handle, Source],
        host_pending: Handle | None = None,
    ) -> None:
        """Adds a variant of a body, and its graph contract.

        live: staged counts that every program reads. fixed: sources that this program replaces.
        host_pending: the staged buffer that holds pending tokens, where the host owns them."""
        assert all(program.name != name for program in self.manifest.programs), name
        self.manifest.programs.append(
            wire.Program(
                name=name,
                operation=operation,
                batch_capacity=batch,
                token_capacity=1,
                packed_token_capacity=packed,
                body=number,
            )
        )
        graph = contract.GraphContract(program=name, operation=operation)
        sources = self.sources | {handle.index: source for handle, source in fixed.items()}
        accesses = {handle.index: (True, False) for handle in live} | body.accesses()
        for buffer, (read, written) in accesses.items():
            if buffer in sources:
                source = sources[buffer]
                if host_pending is not None and buffer == host_pending.index:
                    graph.host_pending_binding = len(graph.bindings)
                graph.bindings.append(
                    contract.ValueBinding(
                        buffer=buffer,
                        source=source.value,
                        indexing=source.indexing,
                        padding=source.padding,
                        constant=source.constant,
                    )
                )
            elif self._is_row_state(buffer):
                graph.states.append(self.state_view(buffer, ACCESSES[read, written]))
        pending = self.by_name.get("pending")
        if (
            host_pending is None
            and pending is not None
            and accesses.get(pending.index, (False,))[0]
        ):
            graph.device_pending.CopyFrom(self.state_view(pending.index, contract.READ))
        self.graphs.append(graph)

    def _is_row_state(self, buffer: int) -> bool:
        """Whether a buffer is state with rows of a fixed size (page tables have not)."""
        declared = self.manifest.buffers[buffer]
        return declared.kind == wire.STATE and all(axis.symbol == 0 for axis in declared.shape[1:])

    def state_view(self, buffer: int, access: contract.Access) -> contract.StateView:
        """The whole row of a state buffer, one row a slot."""
        declared = self.manifest.buffers[buffer]
        row = ELEMENT_BYTES[declared.dtype] * int(
            np.prod([axis.multiplier for axis in declared.shape[1:]])
        )
        return contract.StateView(
            buffer=buffer, offset=0, row_stride=row, extent=row, access=access
        )

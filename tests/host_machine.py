"""A small manifest builder and a runner, to test host operations one by one."""

from dataclasses import replace
from typing import Any

import numpy as np

from helios_dod import limits, world
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import Geometry
from helios_dod.executors.host import panels
from helios_dod.executors.host.executor import HostExecutor

DTYPES = {
    wire.F32: np.float32,
    wire.F16: np.float16,
    wire.BF16: np.uint16,
    wire.I32: np.int32,
    wire.U32: np.uint32,
    wire.I64: np.int64,
    wire.U64: np.uint64,
    wire.U8: np.uint8,
}
GEOMETRY = Geometry(
    lanes=16,
    packed=256,
    slots=16,
    pages=210,
    page_tokens=16,
    pages_per_request=130,
    updates=64,
    logit_rows=16,
)
SIZE = replace(
    limits.TEST_MIN,
    name="HOST_TEST",
    requests_max=16,
    slots_max=16,
    lanes_max=16,
    packed_max=256,
    width_max=1,
    pages_max=64,
    pages_per_request_max=32,
    context_max=512,
    blocks_max=32,
    programs_max=32,
    bindings_max=512,
    staging_words_max=65_536,
    page_updates_max=64,
    frontends_max=1,
    ingress_rows_max=4,
    ingress_words_max=4096,
    egress_rows_max=16,
)


class Machine:
    """Buffers by name, programs by number, one executor."""

    def __init__(self, geometry: Geometry = GEOMETRY, threads: int = 2) -> None:
        self.manifest = wire.ExecutionManifest(abi_version=6)
        self.geometry = geometry
        self.names: dict[str, int] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.first: dict[int, int] = {}
        self.words = 0
        self.world = world.boot(SIZE)
        self.executor = HostExecutor(threads)
        for name in ("live_packed", "live_lanes", "live_sampled"):
            setattr(self.manifest, name, self.staging(name, wire.I32, (1,)))
        self.sequence = 0

    def _buffer(self, name: str, kind: int, dtype: int, shape: tuple[int, ...], **more: Any) -> int:
        axes = [wire.Extent(multiplier=n) for n in shape]
        if kind == wire.CACHE and shape[0] == self.geometry.pages:  # a plane of page group 0
            axes[0] = wire.Extent(symbol=wire.PAGES, multiplier=1)
        self.names[name] = len(self.manifest.buffers)
        self.manifest.buffers.append(
            wire.Buffer(name=name, kind=kind, dtype=dtype, shape=axes, **more)
        )
        return self.names[name]

    def staging(self, name: str, dtype: int, shape: tuple[int, ...]) -> int:
        index = self._buffer(name, wire.STAGING, dtype, shape)
        self.first[index] = self.words
        self.words += -(-int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize // 4)
        return index

    def state(self, name: str, dtype: int, shape: tuple[int, ...], kind: int = wire.STATE) -> int:
        return self._buffer(name, kind, dtype, shape)

    def completion(self, name: str, field: int, dtype: int, shape: tuple[int, ...]) -> int:
        return self._buffer(name, wire.COMPLETION, dtype, shape, completion=field)

    def weight(self, name: str, values: np.ndarray) -> int:
        return self._weight(name, wire.F32, values.shape, values.view(np.uint8).reshape(-1))

    def matrix(self, name: str, kind: str, rows: int, columns: int, raw: np.ndarray) -> int:
        shape, data = panels.pack_matrix(kind, rows, columns, raw)
        panel = wire.Panel(**shape.__dict__)
        return self._weight(name, wire.U8, data.shape, data, panel=panel)

    def _weight(
        self, name: str, dtype: int, shape: tuple[int, ...], data: np.ndarray, **more: Any
    ) -> int:
        self.weights[name] = np.ascontiguousarray(data)
        return self._buffer(
            name, wire.WEIGHT, dtype, shape, resource_id=name, resource_nbytes=data.nbytes, **more
        )

    def part(self, name: str, column: int = 0, columns: int = 0) -> Any:
        return wire.Operand(buffer=self.names[name], column=column, columns=columns)

    def program(self, *operations: Any) -> int:
        body = wire.HostBody()
        for operation in operations:
            field = next(
                f.name
                for f in wire.HostOperation.DESCRIPTOR.fields
                if f.message_type is operation.DESCRIPTOR
            )
            body.operations.append(wire.HostOperation(**{field: operation}))
        self.manifest.programs.append(wire.Program(body=len(self.manifest.host_bodies)))
        self.manifest.host_bodies.append(body)
        return len(self.manifest.programs) - 1

    def load(self) -> "Machine":
        self.executor.load(self.manifest, self.geometry, self.weights, self.first, self.world)
        return self

    def view(self, name: str, frame: int = 0) -> np.ndarray:
        """A buffer's contents as an array over the executor's or the world's memory."""
        index = self.names[name]
        buffer = self.manifest.buffers[index]
        shape = tuple(self.geometry.extent(a.symbol, a.multiplier) for a in buffer.shape)
        dtype = DTYPES[buffer.dtype]
        count = int(np.prod(shape))
        if buffer.kind == wire.STAGING:
            words = self.world[0]["staging"]["words"][frame][self.first[index] :]
            return (
                words.view(np.uint8)[: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
            )
        return self.executor.memory.owned[index].view(dtype).reshape(shape)

    def run(
        self, program: int = 0, packed: int = 0, lanes: int = 0, sampled: int = 0, frame: int = 0
    ) -> None:
        self.live(packed, lanes, sampled, frame)
        self.sequence += 1
        self.executor.submit(frame, program, self.sequence)
        self.executor.drain()
        assert self.executor.poll() == self.sequence

    def live(self, packed: int, lanes: int, sampled: int, frame: int = 0) -> None:
        self.view("live_packed", frame)[0] = packed
        self.view("live_lanes", frame)[0] = lanes
        self.view("live_sampled", frame)[0] = sampled

"""Runs one kernel on the GPU over arrays of the host, through the library and graphs of serving.

    bench = Bench()
    out = bench(rows.embed, (4, 1), dict(index=..., table=bf16(...), output=...), constants)

Arrays are numpy arrays of the types that kernels know; bf16() and e4m3() mark bits as such. What
comes back is every array as the kernel left it. Declarations are compared as at load.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from helios_dod.contract.cuda import check_cuda
from helios_dod.contract.functions import check_functions
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.library import Library, Pointer

TYPES = {np.dtype(np.float32): wire.F32, np.dtype(np.int32): wire.I32,
         np.dtype(np.uint32): wire.U32, np.dtype(np.uint64): wire.U64,
         np.dtype(np.int64): wire.I64}


class Bits(NamedTuple):
    """An array of a type that numpy lacks."""

    data: np.ndarray
    dtype: int


def bf16(data: np.ndarray) -> Bits:
    """uint16 bits of bf16."""
    return Bits(data, wire.BF16)


def e4m3(data: np.ndarray) -> Bits:
    """uint8 bits of e4m3."""
    return Bits(data, wire.F8_E4M3)


class Bench:
    """One device. dry: kernels are compiled and compared, and not run."""

    def __init__(self, dry: bool = False) -> None:
        self.device = None
        if not dry:
            from helios_dod.executors.cuda.driver import Device

            self.device = Device()

    def __call__(self, function: Any, grid: tuple[int, ...], arguments: dict[str, Any],
                 constants: dict[str, Any], warps: int = 4, stages: int = 2, shared: int = 0,
                 words: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """function: of Triton, or (entry, source) of CUDA C++. words: arrays taken as i32."""
        manifest, arrays = wire.ExecutionManifest(), {}
        given: dict[str, Any] = {}
        for name, value in arguments.items():
            if isinstance(value, np.ndarray | Bits):
                data = value if isinstance(value, np.ndarray) else value.data
                dtype = TYPES[data.dtype] if isinstance(value, np.ndarray) else value.dtype
                arrays[name] = np.ascontiguousarray(data)
                given[name] = Pointer(len(manifest.buffers), kind="*i32" if name in words else "")
                manifest.buffers.add(name=name, kind=wire.SCRATCH, dtype=dtype, shape=[
                    wire.Extent(multiplier=axis) for axis in data.shape])
                if name.startswith("live"):
                    field = "live_sampled" if name == "live_sampled" else "live_lanes"
                    setattr(manifest, field, given[name].buffer)  # what the contract knows of it
            else:
                given[name] = value
        x, y, z = (*grid, 1, 1)[:3]
        library = Library(manifest)
        if isinstance(function, tuple):
            kernel = library.native(*function, (x, y, z), given, constants, warps, shared)
        else:
            kernel = library.kernel(function, (x, y, z), given, constants, warps, stages)
        body = manifest.cuda_bodies.add()
        body.nodes.add().kernel.CopyFrom(kernel)
        manifest.programs.add(cuda_body=0, batch_capacity=1, packed_token_capacity=1)
        check_cuda(manifest)
        check_functions(manifest, 16)
        return arrays if self.device is None else self._run(manifest, body, arrays)

    def _run(self, manifest: Any, body: Any, arrays: dict[str, np.ndarray]
             ) -> dict[str, np.ndarray]:
        from helios_dod.executors.cuda.driver import call
        from helios_dod.executors.cuda.graphs import Code, Graph, Resolved
        from helios_dod.executors.cuda.memory import Bound

        assert self.device is not None
        bound = []
        for buffer, data in zip(manifest.buffers, arrays.values(), strict=True):
            address = int(call("cuMemAlloc", max(data.nbytes, 16)))
            call("cuMemcpyHtoD", address, data.ctypes.data, data.nbytes)
            bound.append(Bound(buffer.name, buffer.kind, (address, address), data.nbytes,
                               data.nbytes // len(data)))
        code = Code(self.device, manifest)
        memory: Any = SimpleNamespace(bound=bound.__getitem__)
        graph = Graph(self.device, Resolved(code, memory, body), 0)
        call("cuGraphLaunch", graph.handle, 0)
        call("cuCtxSynchronize")
        found = {}
        for name, one in zip(arrays, bound, strict=True):
            found[name] = np.empty_like(arrays[name])
            call("cuMemcpyDtoH", found[name].ctypes.data, one.address[0], one.nbytes)
            call("cuMemFree", one.address[0])
        graph.close()
        code.close()
        return found

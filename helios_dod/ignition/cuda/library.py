"""Kernels compiled ahead of time: Triton functions and CUDA C++ become modules of the manifest.

Needs neither a GPU nor a driver. A kernel that two programs share is compiled and stored once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.native import compile_native
from helios_dod.ignition.prepared import PreparationError

ARCHITECTURE = 90
POINTERS = {
    wire.F32: "*fp32", wire.BF16: "*bf16", wire.I32: "*i32", wire.U32: "*u32", wire.I64: "*i64",
    wire.U64: "*u64", wire.F8_E4M3: "*fp8e4nv",
}
USES = (wire.ADDRESS_USE_UNSPECIFIED, wire.ADDRESS_READ, wire.ADDRESS_WRITTEN,
        wire.ADDRESS_UPDATED)  # by the bits of the contract's Access
ALIGNMENT = 16  # bytes that Triton's pointer specialisation means
SCRATCH_ARGUMENTS = 2  # pointers to scratch that Triton appends to every kernel's parameters


@dataclass(frozen=True)
class Pointer:
    """A buffer as an argument; `alignment` is promised to the compiler and checked when bound."""

    buffer: int
    alignment: int = ALIGNMENT
    kind: str = ""  # Triton's pointer type; empty: by the buffer's element type
    use: int = 0  # AddressUse of STATE and CACHE


@dataclass(frozen=True)
class RowBytes:
    """Bytes between rows of a buffer, an i32 argument."""

    buffer: int



@dataclass
class Library:
    """Compiles kernels into a manifest's modules."""

    manifest: wire.ExecutionManifest
    found: dict[Any, tuple[int, Any]] = field(default_factory=dict)

    def kernel(self, function: Any, grid: tuple[int, int, int], arguments: Mapping[str, Any],
               constants: Mapping[str, Any], warps: int = 4, stages: int = 2) -> wire.CudaKernel:
        """A launch of `function`. arguments and constants together are its parameters by name."""
        names = [name for name in function.arg_names if name not in constants]
        assert set(names) == set(arguments), (function.__name__, names, list(arguments))
        values = [encode(arguments[name]) for name in names]
        kinds = [self._kind(arguments[name]) for name in names]
        aligned = tuple(isinstance(arguments[name], Pointer) and arguments[name].alignment
                        >= ALIGNMENT for name in names)
        key = (function.__name__, tuple(kinds), aligned, tuple(sorted(constants.items())), warps,
               stages)
        if key not in self.found:
            self.found[key] = self._compile(function, names, kinds, aligned, constants, warps,
                                            stages)
        module, metadata = self.found[key]
        return wire.CudaKernel(
            module=module, entry=metadata.name, grid=grid, block=(32 * metadata.num_warps, 1, 1),
            shared_nbytes=metadata.shared,
            arguments=values + [wire.CudaArgument(words=0)] * SCRATCH_ARGUMENTS)

    def native(self, entry: str, source: str, grid: tuple[int, int, int], arguments: list[Any],
               constants: Mapping[str, int], warps: int, shared: int) -> wire.CudaKernel:
        """A launch of an entry of CUDA C++. arguments: in its parameters' order."""
        key = (source, entry, tuple(sorted(constants.items())))
        if key not in self.found:
            cubin = compile_native(source, constants, ARCHITECTURE)
            self.found[key] = self._add(entry, cubin), None
        return wire.CudaKernel(
            module=self.found[key][0], entry=entry, grid=grid, block=(32 * warps, 1, 1),
            shared_nbytes=shared, arguments=[encode(argument) for argument in arguments])

    def _add(self, name: str, cubin: bytes) -> int:
        """The number of the module with this code."""
        for number, module in enumerate(self.manifest.modules):
            if module.cubin == cubin:
                return number
        self.manifest.modules.append(wire.CudaModule(
            name=f"{name}_{len(self.found)}", architecture=ARCHITECTURE, cubin=cubin))
        return len(self.manifest.modules) - 1

    def _kind(self, value: Any) -> str:
        if isinstance(value, Pointer):
            return value.kind or POINTERS[self.manifest.buffers[value.buffer].dtype]
        if isinstance(value, float):
            return "fp32"
        return "*i64" if isinstance(value, Word) else "i32"

    def _compile(self, function: Any, names: list[str], kinds: list[str],
                 aligned: tuple[bool, ...], constants: Mapping[str, Any], warps: int,
                 stages: int) -> tuple[int, Any]:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        order = {name: i for i, name in enumerate(function.arg_names)}
        signature = dict.fromkeys(constants, "constexpr") | dict(
            zip(names, kinds, strict=True))
        signature = {name: signature[name] for name in function.arg_names}
        attributes = {(order[name],): [["tt.divisibility", ALIGNMENT]]
                      for name, whole in zip(names, aligned, strict=True) if whole}
        source = ASTSource(function, signature, dict(constants), attributes)
        try:
            made = triton.compile(source, target=GPUTarget("cuda", ARCHITECTURE, 32),
                                  options={"num_warps": warps, "num_stages": stages})
        except Exception as error:
            raise PreparationError(
                f"kernel {function.__name__} {dict(constants)}: {error}") from error
        assert made.metadata.global_scratch_size == 0
        return self._add(function.__name__, made.asm["cubin"]), made.metadata


@dataclass(frozen=True)
class Word:
    """A word of the executor."""

    kind: wire.ExecutorWord


def encode(value: Any) -> wire.CudaArgument:
    """The wire form of an argument."""
    if isinstance(value, Pointer):
        return wire.CudaArgument(address=wire.CudaAddress(
            buffer=value.buffer, alignment=value.alignment, use=USES[value.use]))
    if isinstance(value, RowBytes):
        return wire.CudaArgument(row_bytes=value.buffer)
    if isinstance(value, Word):
        return wire.CudaArgument(executor_word=value.kind)
    if isinstance(value, wire.Extent):
        return wire.CudaArgument(extent=value)
    if isinstance(value, float):
        return wire.CudaArgument(real=value)
    return wire.CudaArgument(word=value & 0xFFFFFFFF)

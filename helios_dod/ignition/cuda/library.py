"""Kernels compiled ahead of time: Triton functions and CUDA C++ become modules of the manifest.

Needs neither a GPU nor a driver. A kernel that two programs share is compiled and stored once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.layouts import Given, declaration
from helios_dod.ignition.cuda.native import SOURCES, compile_native
from helios_dod.ignition.prepared import PreparationError

ARCHITECTURE = 90
POINTERS = {
    wire.F32: "*fp32", wire.BF16: "*bf16", wire.I32: "*i32", wire.U32: "*u32", wire.I64: "*i64",
    wire.U64: "*u64", wire.F8_E4M3: "*fp8e4nv",
}
TYPES = {kind: dtype for dtype, kind in POINTERS.items()} | {
    kind.removeprefix("*"): dtype for dtype, kind in POINTERS.items()}
NATIVE_TYPES = {"u16": wire.BF16, "float": wire.F32, "int": wire.I32}  # void: the buffer's
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
    # Module, function in it, bytes of shared memory.
    found: dict[Any, tuple[int, int, int]] = field(default_factory=dict)

    def kernel(self, function: Any, grid: tuple[int, int, int], arguments: Mapping[str, Any],
               constants: Mapping[str, Any], warps: int = 4, stages: int = 2) -> wire.CudaKernel:
        """A launch of `function`. arguments and constants together are its parameters by name."""
        names = [name for name in function.arg_names if name not in constants]
        assert set(names) == set(arguments), (function.__name__, names, list(arguments))
        values = [encode(arguments[name]) for name in names]
        kinds = [self._kind(arguments[name]) for name in names]
        aligned = tuple(isinstance(arguments[name], Pointer) and arguments[name].alignment
                        >= ALIGNMENT for name in names)
        words = tuple(isinstance(arguments[name], Pointer) and bool(arguments[name].kind)
                      for name in names)
        key = (function.__name__, tuple(kinds), aligned, words, tuple(sorted(constants.items())),
               warps, stages)
        if key not in self.found:
            made = self._compile(function, names, kinds, aligned, constants, warps, stages)
            given = [Given(name, TYPES[kind], ALIGNMENT if whole else 0, kind.startswith("*"), raw)
                     for name, kind, whole, raw in zip(names, kinds, aligned, words, strict=True)]
            given += [Given(f"scratch_{i}", wire.U64, pointer=False)
                      for i in range(SCRATCH_ARGUMENTS)]
            self.found[key] = *self._add(
                function.__name__, made.asm["cubin"], declaration(
                    function.__name__, made.metadata.name, 32 * warps, constants, given)
                ), made.metadata.shared
        module, number, shared = self.found[key]
        entry = self.manifest.modules[module].functions[number].entry
        return wire.CudaKernel(
            module=module, function=number, entry=entry, grid=grid, block=(32 * warps, 1, 1),
            shared_nbytes=shared,
            arguments=values + [wire.CudaArgument(words=0)] * SCRATCH_ARGUMENTS)

    def native(self, entry: str, source: str, grid: tuple[int, int, int],
               arguments: Mapping[str, Any], constants: Mapping[str, int], warps: int, shared: int,
               ) -> wire.CudaKernel:
        """A launch of an entry of CUDA C++."""
        parameters = native_parameters((SOURCES / source).read_text(), entry)
        given = [self._given(name, kind, arguments[name]) for name, kind in parameters]
        key = (source, entry, tuple(given), tuple(sorted(constants.items())))
        if key not in self.found:
            cubin = compile_native(source, constants, ARCHITECTURE)
            self.found[key] = *self._add(entry, cubin, declaration(
                f"{source}/{entry}", entry, 32 * warps, constants, given)), shared
        module, number, _ = self.found[key]
        return wire.CudaKernel(
            module=module, function=number, entry=entry, grid=grid, block=(32 * warps, 1, 1),
            shared_nbytes=shared, arguments=[encode(arguments[name]) for name, _ in parameters])

    def _given(self, name: str, kind: str, value: Any) -> Given:
        """A parameter of CUDA C++, of the type that its source says."""
        if not isinstance(value, Pointer):
            return Given(name, NATIVE_TYPES[kind], pointer=False)
        dtype = self.manifest.buffers[value.buffer].dtype
        return Given(name, NATIVE_TYPES.get(kind.removesuffix("*"), dtype), ALIGNMENT)

    def _add(self, name: str, cubin: bytes, function: wire.CudaFunction) -> tuple[int, int]:
        """The numbers of the module with this code, and of the function in it."""
        modules = self.manifest.modules
        number = next((i for i, one in enumerate(modules) if one.cubin == cubin), len(modules))
        if number == len(modules):
            modules.add(name=f"{name}_{len(self.found)}", architecture=ARCHITECTURE, cubin=cubin)
        module = modules[number]
        if function not in module.functions:
            module.functions.append(function)
        return number, list(module.functions).index(function)

    def _kind(self, value: Any) -> str:
        if isinstance(value, Pointer):
            return value.kind or POINTERS[self.manifest.buffers[value.buffer].dtype]
        if isinstance(value, float):
            return "fp32"
        return "*i64" if isinstance(value, Word) else "i32"

    def _compile(self, function: Any, names: list[str], kinds: list[str],
                 aligned: tuple[bool, ...], constants: Mapping[str, Any], warps: int,
                 stages: int) -> Any:
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
        assert made.metadata.global_scratch_size == 0 and made.metadata.num_warps == warps
        return made


def native_parameters(source: str, entry: str) -> list[tuple[str, str]]:
    """(name, type) of the parameters of a kernel of CUDA C++; pointers end in *."""
    found = re.search(rf"^{entry}\(([^)]*)\)", source, re.MULTILINE)
    assert found is not None, entry
    parts = [part.replace("const ", "").rsplit(None, 1) for part in found[1].split(",")]
    return [(name, kind.strip()) for kind, name in parts]


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

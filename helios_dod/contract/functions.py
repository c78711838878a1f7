"""Compares launches with what the code that they launch was specialised for.

A function declares its constants, the threads of a block and its parameters: types, alignment and
the axes that it addresses. What is compared is the buffer that an argument names, so a core whose
shapes changed under its code is refused before anything runs. A core has hundreds of thousands of
arguments and few different ones: each is looked at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from helios_dod.contract.cuda import ALIGNMENT_MAX, ARGUMENTS_MAX, THREADS_MAX
from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.wire import manifest_pb2 as wire

CONSTANTS_MAX = 64  # of one function
AXES_MAX = 8  # of one parameter,
FACTORS_MAX = 8  # and names of one axis
CONSTANT_MAX = 2**31  # magnitude
DECLARED_MAX = 65_536  # constants, parameters, axes and factors of a manifest
# The arguments that a parameter may be given.
NUMBERS: dict[int, tuple[str, ...]] = {
    wire.I32: ("word", "extent", "row_bytes"), wire.F32: ("real",), wire.U64: ("words",)}
POINTERS = ("address", "executor_word")
WORD_BYTES = 8  # of a word of the executor
ITEM_BYTES: dict[int, int] = {int(dtype): count for dtype, count in ELEMENT_BYTES.items()}


class _Parameter(NamedTuple):
    """A parameter as a launch is compared with it. axes: names and multiplier of each."""

    name: str
    kind: int
    dtype: int
    alignment: int
    axes: tuple[tuple[tuple[str, ...], int], ...]
    count_max: str


@dataclass
class _Function:
    """A declared function. fits: arguments that are known to be right."""

    entry: str
    threads: int
    constants: dict[str, int]
    parameters: list[_Parameter]
    uses: list[str]  # number parameters that axes name
    fits: set[Any] = field(default_factory=set)


class _Shapes:
    """What buffers hold, in bytes; None where load chooses it."""

    def __init__(self, manifest: wire.ExecutionManifest, page_tokens: int) -> None:
        self.buffers = manifest.buffers
        self.known = {0: 1, wire.PAGE_TOKENS: page_tokens}
        self.counts = {manifest.live_packed: "packed_token_capacity",
                       manifest.live_lanes: "batch_capacity",
                       manifest.live_sampled: "batch_capacity"}

    def nbytes(self, index: int, first: int) -> int | None:
        """Of the axes from `first` on."""
        buffer = self.buffers[index]
        if any(axis.symbol not in self.known for axis in buffer.shape[first:]):
            return None
        return ELEMENT_BYTES[buffer.dtype] * prod(
            axis.multiplier * self.known[axis.symbol] for axis in buffer.shape[first:])


def check_functions(manifest: wire.ExecutionManifest, page_tokens: int) -> None:
    """Raises ContractError, naming the field. Modules, bodies and buffers are checked already."""
    _check_size(manifest)
    declared = [[_declared(function, f"manifest.modules[{i}].functions[{j}]")
                 for j, function in enumerate(module.functions)]
                for i, module in enumerate(manifest.modules)]
    if not any(declared):
        return
    shapes = _Shapes(manifest, page_tokens)
    programs: dict[int, list[wire.Program]] = {}
    for program in manifest.programs:
        if program.WhichOneof("code") == "cuda_body":
            programs.setdefault(program.cuda_body, []).append(program)
    producers = {graph.cuda_body for graph in manifest.tuning
                 if graph.WhichOneof("code") == "cuda_body"}
    trials = _Shapes(manifest, page_tokens)  # a tuning graph's counts are scalars of its own
    trials.counts = {i: "trial" for i, buffer in enumerate(manifest.buffers)
                     if buffer.kind == wire.SCRATCH and buffer.dtype == wire.I32
                     and [(axis.symbol, axis.multiplier) for axis in buffer.shape] == [(0, 1)]}
    right: set[Any] = set()
    for i, body in enumerate(manifest.cuda_bodies):
        most = {name: max((getattr(program, name) for program in programs.get(i, ())), default=0)
                for name in ("packed_token_capacity", "batch_capacity")}
        most["trial"] = -1  # no capacity of a program: what fits it is told apart by that
        own = trials if i in producers else shapes
        for j, node in enumerate(body.nodes):
            if not node.HasField("kernel") or not declared[node.kernel.module]:
                continue
            # Twins have the same launches.
            key = node.kernel.SerializeToString(), own, *most.values()
            if key not in right:
                _check_launch(node.kernel, declared[node.kernel.module], own, most,
                              f"manifest.cuda_bodies[{i}].nodes[{j}].kernel")
                right.add(key)


def _check_size(manifest: wire.ExecutionManifest) -> None:
    """Bounds what is kept of declarations, before any is."""
    total = 0
    for i, module in enumerate(manifest.modules):
        for j, function in enumerate(module.functions):
            total += 1 + len(function.constants) + len(function.parameters) + sum(
                1 + len(axis.factors) for one in function.parameters for axis in one.shape)
            require(total <= DECLARED_MAX, f"manifest.modules[{i}].functions[{j}]",
                    f"at most {DECLARED_MAX} constants, parameters, axes and factors in all", total)


def _declared(function: wire.CudaFunction, at: str) -> _Function:
    """A declaration, which must hold together."""
    require(bool(function.entry), f"{at}.entry", "a kernel's name", "")
    require(0 < function.threads <= THREADS_MAX, f"{at}.threads", f"1 to {THREADS_MAX}",
            function.threads)
    require(len(function.constants) <= CONSTANTS_MAX, f"{at}.constants",
            f"at most {CONSTANTS_MAX}", len(function.constants))
    require(len(function.parameters) <= ARGUMENTS_MAX, f"{at}.parameters",
            f"at most {ARGUMENTS_MAX}", len(function.parameters))
    constants: dict[str, int] = {}
    for constant in function.constants:
        require(bool(constant.name) and constant.name not in constants, f"{at}.constants",
                "names, each once", constant.name)
        require(abs(constant.value) < CONSTANT_MAX, f"{at}.constants ({constant.name})",
                f"a magnitude below {CONSTANT_MAX}", constant.value)
        constants[constant.name] = constant.value
    names = [parameter.name for parameter in function.parameters]
    require(all(names) and len(set(names) | set(constants)) == len(names) + len(constants),
            f"{at}.parameters", "names of their own", ", ".join(names))
    numbers = {parameter.name for parameter in function.parameters
               if parameter.kind == wire.CUDA_NUMBER and parameter.dtype == wire.I32}
    known = numbers | {name for name, value in constants.items() if value >= 0}
    parameters = [_parameter(parameter, known, f"{at}.parameters[{i}]")
                  for i, parameter in enumerate(function.parameters)]
    named = {name for one in parameters for factors, _ in one.axes for name in factors} | {
        one.count_max for one in parameters}
    return _Function(function.entry, function.threads, constants, parameters,
                     sorted(named & numbers))


def _parameter(parameter: wire.CudaParameter, known: set[str], at: str) -> _Parameter:
    """A declared parameter. known: what axes may name."""
    kind = parameter.kind
    require(kind in (wire.CUDA_POINTER, wire.CUDA_WORDS, wire.CUDA_NUMBER), f"{at}.kind",
            "a pointer, words or a number", kind)
    pointer = kind != wire.CUDA_NUMBER
    require(parameter.dtype in (ELEMENT_BYTES if pointer else NUMBERS), f"{at}.dtype",
            "the type of an element" if pointer else "I32, F32 or U64", parameter.dtype)
    alignment = parameter.alignment
    require(alignment <= ALIGNMENT_MAX and not alignment & (alignment - 1), f"{at}.alignment",
            f"0, or a power of two up to {ALIGNMENT_MAX}", alignment)
    require(pointer or not (alignment or parameter.shape or parameter.count_max), at,
            "no alignment, shape or count_max of a number", parameter.name)
    require(len(parameter.shape) <= AXES_MAX, f"{at}.shape", f"at most {AXES_MAX} axes",
            len(parameter.shape))
    for i, axis in enumerate(parameter.shape):
        require(len(axis.factors) <= FACTORS_MAX, f"{at}.shape[{i}].factors",
                f"at most {FACTORS_MAX}", len(axis.factors))
        require(bool(axis.factors or axis.multiplier) or i == 0, f"{at}.shape[{i}]",
                "an extent behind the first axis", "any")
        for name in axis.factors:
            require(name in known, f"{at}.shape[{i}].factors",
                    "constants of at least 0, or I32 numbers", name)
    require(not parameter.count_max or parameter.count_max in known, f"{at}.count_max",
            "a constant or an I32 number", parameter.count_max)
    return _Parameter(
        parameter.name, kind, parameter.dtype, alignment,
        tuple((tuple(axis.factors), axis.multiplier) for axis in parameter.shape),
        parameter.count_max)


def _check_launch(kernel: wire.CudaKernel, declared: list[_Function], shapes: _Shapes,
                  most: Mapping[str, int], at: str) -> None:
    """One kernel node. most: the largest capacities of the programs that have its body."""
    require(kernel.function < len(declared), f"{at}.function",
            f"a function below {len(declared)} of the module", kernel.function)
    function = declared[kernel.function]
    require(kernel.entry == function.entry, f"{at}.entry", function.entry, kernel.entry)
    threads = prod(kernel.block)
    require(threads == function.threads, f"{at}.block", f"{function.threads} threads", threads)
    require(len(kernel.arguments) == len(function.parameters), f"{at}.arguments",
            f"{len(function.parameters)} arguments", len(kernel.arguments))
    numbers: dict[str, int | None] = {}
    if function.uses:
        for one, argument in zip(function.parameters, kernel.arguments, strict=True):
            if one.name in function.uses:
                numbers[one.name] = _number(argument)
    given = tuple(numbers.values())
    for i, argument in enumerate(kernel.arguments):
        address, kind = argument.address, argument.WhichOneof("argument")
        capacity = most.get(shapes.counts.get(address.buffer, ""), 0)
        key = i, kind, address.buffer, address.offset, address.alignment, capacity, given
        if key not in function.fits:
            _check_argument(function, i, argument, shapes, capacity, function.constants | numbers,
                            f"{at}.arguments[{i}]")
            function.fits.add(key)


def _type(dtype: int) -> str:
    return wire.DataType.Name(wire.DataType.ValueType(dtype))


def _number(argument: wire.CudaArgument) -> int | None:
    """An I32 number, where it is known before load."""
    if argument.WhichOneof("argument") == "word":
        return int(argument.word)
    return argument.extent.multiplier if argument.HasField("extent") and (
        argument.extent.symbol == 0) else None


def _check_argument(function: _Function, i: int, argument: wire.CudaArgument, shapes: _Shapes,
                    capacity: int, values: Mapping[str, int | None], at: str) -> None:
    """An argument of a parameter, whose axes are made of `values`."""
    wanted, kind = function.parameters[i], argument.WhichOneof("argument")
    allowed = NUMBERS[wanted.dtype] if wanted.kind == wire.CUDA_NUMBER else POINTERS
    require(kind in allowed, at, f"{' or '.join(allowed)} for {wanted.name}", kind)
    if kind == "executor_word":
        item = ITEM_BYTES[wanted.dtype]
        require(item == WORD_BYTES and not wanted.axes, f"{at}.executor_word",
                f"an address of {_type(wanted.dtype)} for {wanted.name}",
                "a word of 8 bytes")
    if kind != "address":
        return
    address = argument.address
    buffer = shapes.buffers[address.buffer]
    require(not wanted.alignment or (
        address.alignment >= wanted.alignment), f"{at}.address.alignment",
            f"at least {wanted.alignment}, which {function.entry} relies on for {wanted.name}",
            address.alignment)
    require(wanted.kind == wire.CUDA_WORDS or buffer.dtype == wanted.dtype,
            f"{at}.address.buffer ({buffer.name})",
            f"{_type(wanted.dtype)} for {wanted.name} of {function.entry}",
            _type(buffer.dtype))
    if wanted.count_max:
        most = values[wanted.count_max]
        require(address.buffer in shapes.counts, f"{at}.address.buffer ({buffer.name})",
                f"a live count for {wanted.name} of {function.entry}",
                wire.BufferKind.Name(buffer.kind))
        require(most is not None and capacity <= most, f"{at}.address.buffer ({buffer.name})",
                f"a count of at most {most}, {wanted.count_max} of {function.entry}", capacity)
    if wanted.axes:
        _check_axes(function, wanted, address, shapes, values,
                    f"{at}.address.buffer ({buffer.name})")


def _check_axes(function: _Function, wanted: _Parameter, address: wire.CudaAddress,
                shapes: _Shapes, values: Mapping[str, int | None], at: str) -> None:
    """Rows are as long as the code steps over; what it addresses of constant buffers is there, and
    of a weight it is all."""
    item = ITEM_BYTES[wanted.dtype]
    extents: list[int | None] = []
    for factors, multiplier in wanted.axes:
        found = [values[name] for name in factors]
        for name, value in zip(factors, found, strict=True):
            if value is None:
                raise ContractError(at, f"a number known before load for {name}", "another")
        extents.append((multiplier or 1) * prod(int(value or 0) for value in found)
                       if factors or multiplier else None)
    spelled = ", ".join("*".join([str(multiplier)] * bool(multiplier) + list(factors)) or "any"
                        for factors, multiplier in wanted.axes)
    told = f"of {wanted.name} [{spelled}] of {function.entry}"
    row = item * prod(int(extent or 0) for extent in extents[1:])
    flat = len(shapes.buffers[address.buffer].shape) == 1
    if len(extents) > 1 and not flat:
        got = shapes.nbytes(address.buffer, 1)
        require(got == row, at, f"rows of {row} bytes {told}", got)
    whole = shapes.nbytes(address.buffer, 0)
    if whole is None or address.offset > whole:
        return
    first = 1 if extents[0] is None else extents[0]
    need, got = row * first if len(extents) > 1 else item * first, whole - address.offset
    exact = shapes.buffers[address.buffer].kind == wire.WEIGHT and extents[0] is not None
    require(got == need if exact else got >= need, at,
            f"{need} bytes {told}" if exact else f"at least {need} bytes {told}", got)

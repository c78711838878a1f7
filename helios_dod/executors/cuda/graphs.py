"""Explicit graphs: the nodes of a manifest's body with every address resolved, instantiated."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda.driver import Device, call, driver, naming
from helios_dod.executors.cuda.memory import Memory
from helios_dod.limits import FRAMES_MAX

SLOT_BYTES = 8  # of an argument in the table that kernels' parameters are read from
PROGRAMMATIC_PORT = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
INGEST_GAP = 64 << 10  # bytes that a copy rather takes along than end before
SHARED_DEFAULT = 48 << 10  # dynamic shared memory that needs no permission
SIZES = {"address": 8, "executor_word": 8, "words": 8, "word": 4, "real": 4, "extent": 4,
         "row_bytes": 4}


class Code:
    """Loaded modules and the functions that kernels name, with their parameter sizes."""

    def __init__(self, device: Device, manifest: Any) -> None:
        self.modules, self.manifest = [], manifest
        self.functions: dict[tuple[int, str], Any] = {}
        self.layouts: dict[tuple[int, str], list[int]] = {}
        self.shared: dict[tuple[int, str], int] = {}  # bytes that a function may ask for
        for module in manifest.modules:
            if not module.cubin:
                raise DeviceError(f"module {module.name!r}: code in resource "
                                  f"{module.resource_id!r}; only cubins of the manifest are loaded")
            if module.architecture != device.architecture:
                raise DeviceError(
                    f"module {module.name!r} is for architecture {module.architecture}, this "
                    f"device is {device.architecture}")
            with naming(f"module {module.name!r}"):
                self.modules.append(call("cuModuleLoadData", module.cubin))

    def function(self, kernel: Any, kinds: list[str]) -> Any:
        """The function of a kernel node, whose arguments of these kinds fit: every node is looked
        at, since two of one function may differ. Its shared memory is permitted."""
        key = kernel.module, kernel.entry
        if key not in self.functions:
            function = call("cuModuleGetFunction", self.modules[kernel.module],
                            kernel.entry.encode())
            self.functions[key], self.layouts[key] = function, _layout(function)
        if kernel.shared_nbytes > self.shared.get(key, SHARED_DEFAULT):
            call("cuFuncSetAttribute", self.functions[key], driver.CUfunction_attribute
                 .CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_nbytes)
            self.shared[key] = kernel.shared_nbytes
        if "live" in kinds:
            raise DeviceError(f"{self._name(kernel)}: live counts as values; kernels read them "
                              f"from their buffers")
        given = [SIZES[kind] for kind in kinds]
        if given != self.layouts[key]:
            raise DeviceError(f"{self._name(kernel)}: parameters of {self.layouts[key]} bytes, "
                              f"arguments of {given}")
        return self.functions[key]

    def _name(self, kernel: Any) -> str:
        return f"module {self.manifest.modules[kernel.module].name!r}, {kernel.entry!r}"

    def close(self) -> None:
        """Unloads the modules."""
        for module in self.modules:
            call("cuModuleUnload", module)


def _layout(function: Any) -> list[int]:
    """Bytes of each parameter."""
    sizes: list[int] = []
    while True:
        answer, _, size = driver.cuFuncGetParamInfo(function, len(sizes))
        if answer != driver.CUresult.CUDA_SUCCESS:
            return sizes
        sizes.append(int(size))


def _resolve(argument: Any, memory: Memory, known: dict[bytes, tuple[str, tuple[int, ...]]]
             ) -> tuple[str, tuple[int, ...]]:
    """An argument's kind, and its bits in each frame; it is known from now on."""
    kind = argument.WhichOneof("argument")
    found = kind, _values(argument, kind, memory)
    known[argument.SerializeToString()] = found
    return found


def _values(argument: Any, kind: str, memory: Memory) -> tuple[int, ...]:
    """An argument's bits in each frame; of live counts none, which no function takes."""
    if kind == "live":
        return (0,) * FRAMES_MAX
    if kind == "address":
        return _places(argument.address, memory, 1)
    return (_constant(argument, kind, memory),) * FRAMES_MAX


def _places(pointer: Any, memory: Memory, nbytes: int) -> tuple[int, ...]:
    """Where an address is in each frame, with so many bytes of its buffer behind it."""
    bound, offset, alignment = memory.bound(pointer.buffer), pointer.offset, pointer.alignment
    if offset + nbytes > bound.nbytes:
        raise DeviceError(f"buffer {bound.name!r}: offset {offset} of {bound.nbytes} bytes" + (
            f", {nbytes} from there on" if nbytes > 1 else ""))
    addresses = tuple([address + offset for address in bound.address])
    for address in addresses if alignment else ():
        if address % alignment:
            raise DeviceError(f"buffer {bound.name!r}: address {address:#x} is not aligned to "
                              f"{alignment} bytes")
    return addresses


def _constant(argument: Any, kind: str, memory: Memory) -> int:
    """The bits of an argument that is no address."""
    if kind in ("word", "words"):
        return int(getattr(argument, kind))
    if kind == "real":
        return int(struct.unpack("<I", struct.pack("<f", argument.real))[0])
    if kind == "executor_word":
        return memory.words[argument.executor_word]
    if kind == "extent":
        return memory.geometry.extent(argument.extent.symbol, argument.extent.multiplier)
    return memory.bound(argument.row_bytes).row_bytes


@dataclass(frozen=True)
class Part:
    """A node of a body: a kernel's parameters and its first argument, buffers to ingest, a copy or
    a fill; left out: an alternative that was not selected."""

    after: list[int]
    overlapping: list[int]
    kernel: Any = None
    argument: int = 0
    buffers: tuple[int, ...] = ()
    left_out: bool = False
    moved: "Moved | None" = None


@dataclass(frozen=True)
class Moved:
    """A copy, or without a source a fill with one byte; addresses are of each frame."""

    source: tuple[int, ...] | None
    target: tuple[int, ...]
    nbytes: int
    byte: int = 0


class Resolved:
    """A body with every argument resolved, which its graphs of both frames are made of: walking its
    messages takes as long as building a graph does.

    known: kind and bits of arguments by their bytes, which bodies of one memory share: of tens of
    thousands of arguments few differ."""

    def __init__(self, code: Code, memory: Memory, body: Any,
                 known: dict[bytes, tuple[str, tuple[int, ...]]] | None = None) -> None:
        self.memory, known = memory, {} if known is None else known
        selected = _selected(memory, body)
        self.shared_percent = body.shared_percent if body.HasField("shared_percent") else None
        self.parts: list[Part] = []
        before: dict[int, tuple[list[int], list[int]]] = {}  # node -> full, overlapping edges
        for edge in body.edges:
            before.setdefault(edge.after, ([], []))[edge.overlap].append(edge.before)
        values: list[tuple[int, ...]] = []
        for number, node in enumerate(body.nodes):
            edges = before.get(number, ([], []))
            choice = node.choice if node.HasField("choice") else None
            if choice and selected[choice.buffer, choice.element] != choice.value:
                self.parts.append(Part(*edges, left_out=True))
                continue
            kind = node.WhichOneof("node")
            if kind == "ingest":
                self.parts.append(Part(*edges, buffers=tuple(node.ingest.buffers)))
            elif kind == "kernel":
                kernel = node.kernel
                found = [known.get(one.SerializeToString()) or _resolve(one, memory, known)
                         for one in kernel.arguments]
                function = code.function(kernel, [kind for kind, _ in found])
                self.parts.append(Part(*edges, _parameters(function, kernel), len(values)))
                values.extend([bits for _, bits in found])
            else:
                with naming(f"node {number}"):
                    self.parts.append(Part(*edges, moved=_moved(node, kind, memory)))
        self.table = np.array(values or [(0,) * FRAMES_MAX], np.uint64).T.copy()  # frame, argument


def _moved(node: Any, kind: str, memory: Memory) -> Moved:
    if kind == "copy":
        source, target = (_places(place, memory, node.copy.nbytes) for place in (
            node.copy.source, node.copy.destination))
        return Moved(source, target, node.copy.nbytes)
    fill = node.fill
    return Moved(None, _places(fill.destination, memory, fill.nbytes), fill.nbytes, fill.byte)


def _selected(memory: Memory, body: Any) -> dict[tuple[int, int], int]:
    """What tuning selected of each choice of a body. Raises DeviceError where no node is that."""
    values: dict[tuple[int, int], set[int]] = {}
    for node in body.nodes:
        if node.HasField("choice"):
            key = node.choice.buffer, node.choice.element
            values.setdefault(key, set()).add(node.choice.value)
    found: dict[tuple[int, int], int] = {}
    for (buffer, element), alternatives in values.items():
        value = int(memory.read(buffer).view(np.int32)[element])
        if value not in alternatives:
            raise DeviceError(f"element {element} of {memory.bound(buffer).name!r} selects "
                              f"{value}, expected one of {sorted(alternatives)}")
        found[buffer, element] = value
    return found


class Graph:
    """One program on one frame."""

    def __init__(self, device: Device, resolved: Resolved, frame: int) -> None:
        graph = call("cuGraphCreate", 0)
        arguments = resolved.table[frame].ctypes.data
        # For each argument where it stands, which is what the driver takes.
        places = arguments + SLOT_BYTES * np.arange(resolved.table.shape[1], dtype=np.uint64)
        first = places.ctypes.data
        nodes: list[list[Any]] = []  # of the graph, for each of the body
        for part in resolved.parts:
            if part.left_out:
                nodes.append([])
                continue
            after = [one for i in part.after for one in nodes[i]]
            if part.moved is not None:
                nodes.append([_move(device, graph, after, part.moved, frame)])
                continue
            if part.kernel is None:
                nodes.append(_ingest(device, graph, after, resolved.memory, part.buffers, frame))
                continue
            part.kernel.kernelParams = first + SLOT_BYTES * part.argument
            try:  # the driver copies the arguments now
                node = call("cuGraphAddKernelNode", graph, after, len(after), part.kernel)
            except DeviceError as error:
                raise DeviceError(f"node {len(nodes)}: {error}") from error
            if resolved.shared_percent is not None:
                _ask_for_shared(node, resolved.shared_percent)
            _overlap(graph, [one for i in part.overlapping for one in nodes[i]], node)
            nodes.append([node])
        self.nodes = sum(map(len, nodes))
        self.handle = call("cuGraphInstantiate", graph, 0)
        call("cuGraphDestroy", graph)

    def close(self) -> None:
        """Destroys the instance."""
        call("cuGraphExecDestroy", self.handle)


def _parameters(function: Any, kernel: Any) -> Any:
    """What the driver takes of a kernel node, its arguments still open."""
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func = function
    node.gridDimX, node.gridDimY, node.gridDimZ = kernel.grid
    node.blockDimX, node.blockDimY, node.blockDimZ = kernel.block
    node.sharedMemBytes = kernel.shared_nbytes
    return node


def _ask_for_shared(node: Any, percent: int) -> None:
    """Makes a kernel node ask for a share of its processor's memory as shared memory."""
    value = driver.CUkernelNodeAttrValue()
    value.sharedMemCarveout = percent
    call("cuGraphKernelNodeSetAttribute", node, driver.CUkernelNodeAttrID
         .CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, value)


def _overlap(graph: Any, before: list[Any], node: Any) -> None:
    """Edges over which a kernel is launched before the one at their start has ended."""
    if before:
        edge = driver.CUgraphEdgeData()
        edge.from_port = PROGRAMMATIC_PORT
        edge.type = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        call("cuGraphAddDependencies", graph, before, [node] * len(before), [edge] * len(before),
             len(before))


def _ingest(device: Device, graph: Any, after: list[Any], memory: Memory, buffers: Any,
            frame: int) -> list[Any]:
    """Adds copies of the staged words of some buffers: one for those that lie close together."""
    bound = sorted((memory.bound(index) for index in buffers), key=lambda one: one.source[frame])
    spans: list[list[int]] = []  # host address, device address, bytes
    for one in bound:
        source = one.source[frame]
        if not spans or source - sum(spans[-1][::2]) > INGEST_GAP:
            spans.append([source, one.address[frame], 0])
        spans[-1][2] = source + one.nbytes - spans[-1][0]
    return [_staged_copy(device, graph, after, *span) for span in spans]


def _staged_copy(device: Device, graph: Any, after: list[Any], source: int, target: int,
                 nbytes: int) -> Any:
    copy = _copy_to_device(target, nbytes)
    copy.srcMemoryType, copy.srcHost = driver.CUmemorytype.CU_MEMORYTYPE_HOST, source
    return call("cuGraphAddMemcpyNode", graph, after, len(after), copy, device.context)


def _copy_to_device(target: int, nbytes: int) -> Any:
    """A copy whose source is still open."""
    copy = driver.CUDA_MEMCPY3D()
    copy.dstMemoryType, copy.dstDevice = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, target
    copy.WidthInBytes = nbytes
    copy.Height = copy.Depth = 1
    return copy


def _move(device: Device, graph: Any, after: list[Any], moved: Moved, frame: int) -> Any:
    """Adds a copy or a fill."""
    if moved.source is not None:
        copy = _copy_to_device(moved.target[frame], moved.nbytes)
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice = moved.source[frame]
        return call("cuGraphAddMemcpyNode", graph, after, len(after), copy, device.context)
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.width, fill.value = moved.target[frame], moved.nbytes, moved.byte
    fill.elementSize, fill.height = 1, 1
    return call("cuGraphAddMemsetNode", graph, after, len(after), fill, device.context)

"""Graphs of device bodies, as a driver of the test's own is told of them."""

import ctypes
import sys
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import DeviceError, Geometry

graphs = pytest.importorskip("helios_dod.executors.cuda.graphs", reason="needs cuda-python")
LANES = 5


class Driver:
    """Notes every node, with the arguments that the driver would copy, and every edge."""

    def __init__(self) -> None:
        self.nodes, self.edges, self.shares = [], [], []

    def __call__(self, name: str, *arguments):
        return getattr(self, name)(*arguments)

    def cuGraphCreate(self, flags: int) -> str:
        return "graph"

    def cuGraphAddKernelNode(self, graph: str, after: list, count: int, node) -> int:
        pointers = (ctypes.c_uint64 * self.arguments.pop(0)).from_address(int(node.kernelParams))
        values = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
        grid = node.gridDimX, node.gridDimY, node.gridDimZ
        self.nodes.append((list(after), grid, node.sharedMemBytes, values))
        return len(self.nodes) - 1

    def cuGraphAddMemcpyNode(self, graph: str, after: list, count: int, copy, context) -> int:
        kinds = graphs.driver.CUmemorytype
        host = copy.srcMemoryType == kinds.CU_MEMORYTYPE_HOST
        assert copy.dstMemoryType == kinds.CU_MEMORYTYPE_DEVICE and copy.Height == copy.Depth == 1
        self.nodes.append((int(copy.srcHost if host else copy.srcDevice), int(copy.dstDevice),
                           copy.WidthInBytes))
        return len(self.nodes) - 1

    def cuGraphAddMemsetNode(self, graph: str, after: list, count: int, fill, context) -> int:
        assert (fill.elementSize, fill.height, count) == (1, 1, len(after))
        self.nodes.append((list(after), int(fill.dst), fill.width, fill.value))
        return len(self.nodes) - 1

    def cuGraphAddDependencies(self, graph, before, after, edges, count) -> None:
        self.edges += list(zip(before, after, strict=True))

    def cuGraphKernelNodeSetAttribute(self, node, kind, value) -> None:
        self.shares.append((node, value.sharedMemCarveout))

    def cuGraphInstantiate(self, graph: str, flags: int) -> str:
        return "instance"

    def cuGraphDestroy(self, graph: str) -> None:
        pass


class Memory:
    words = MappingProxyType({wire.SUBMISSION_COUNT: 0x111, wire.FINISHED_COUNT: 0x222})
    geometry = Geometry(lanes=LANES, packed=8, slots=2, pages=4, page_tokens=16,
                        pages_per_request=4, updates=8, logit_rows=5)
    buffers = (
        SimpleNamespace(name="state", address=(0x1000, 0x1000), nbytes=512, row_bytes=64),
        SimpleNamespace(name="staged", address=(0x8000, 0x8000), nbytes=256, row_bytes=4,
                        source=(0x500000, 0x600000)),
        SimpleNamespace(name="completion", address=(0x2000, 0x3008), nbytes=256, row_bytes=4))

    def bound(self, index: int):
        return self.buffers[index]


def body_of(alignment: int = 16, offset: int = 32) -> wire.CudaBody:
    """An ingest, two kernels behind it, and one that begins before the second has ended."""
    body = wire.CudaBody(shared_percent=31)
    body.nodes.add().ingest.buffers.append(1)
    first, second, third = (body.nodes.add().kernel for _ in range(3))
    for kernel, grid in ((first, (7, 1, 1)), (second, (2, 3, 4)), (third, (1, 1, 1))):
        kernel.grid.extend(grid)
        kernel.block.extend((32, 1, 1))
    first.arguments.add().address.CopyFrom(
        wire.CudaAddress(buffer=0, offset=offset, alignment=alignment))
    first.arguments.add().address.CopyFrom(wire.CudaAddress(buffer=2, offset=8))
    first.arguments.add(word=77)
    first.arguments.add(real=1.5)
    second.shared_nbytes = 1024
    second.arguments.add(words=1 << 40)
    second.arguments.add().extent.CopyFrom(wire.Extent(symbol=wire.LANES, multiplier=3))
    second.arguments.add(executor_word=wire.FINISHED_COUNT)
    second.arguments.add(row_bytes=0)
    for before, after, overlap in ((0, 1, False), (0, 2, False), (1, 2, False), (2, 3, True)):
        body.edges.add(before=before, after=after, overlap=overlap)
    return body


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(graphs, "call", made)
    return made


CODE = SimpleNamespace(function=lambda kernel, kinds: 0)


def test_both_frames_have_their_own_addresses_and_the_same_nodes(driver):
    resolved = graphs.Resolved(CODE, Memory(), body_of())
    seen = []
    for frame in range(2):
        driver.nodes, driver.edges, driver.shares, driver.arguments = [], [], [], [4, 4, 0]
        made = graphs.Graph(SimpleNamespace(context=0), resolved, frame)
        assert made.nodes == 4 and made.handle == "instance"
        seen.append(driver.nodes)
        assert driver.edges == [(2, 3)]
        assert driver.shares == [(1, 31), (2, 31), (3, 31)]
    for frame, (ingest, first, second, third) in enumerate(seen):
        assert ingest == ((0x500000, 0x600000)[frame], 0x8000, 256)
        assert first == ([0], (7, 1, 1), 0, [
            0x1020, (0x2008, 0x3010)[frame], 77, 0x3FC00000])
        assert second == ([0, 1], (2, 3, 4), 1024, [1 << 40, 3 * LANES, 0x222, 64])
        assert third == ([], (1, 1, 1), 0, [])


def test_bodies_share_what_is_known_of_their_arguments(driver):
    known, memory = {}, Memory()
    first = graphs.Resolved(CODE, memory, body_of(), known)
    assert len(known) == 8 and all(len(bits) == 2 for _, bits in known.values())
    memory.bound = None  # nothing is looked up again
    second = graphs.Resolved(CODE, memory, body_of(), known)
    assert (first.table == second.table).all()
    with pytest.raises(TypeError):
        graphs.Resolved(CODE, memory, body_of(offset=48), known)


@pytest.mark.parametrize("changed, message", [
    ({"alignment": 256}, "buffer 'state': address 0x1020 is not aligned to 256"),
    ({"offset": 512}, "buffer 'state': offset 512 of 512"),
])
def test_addresses_that_do_not_fit_are_refused_by_buffer(driver, changed, message):
    with pytest.raises(DeviceError, match=message):
        graphs.Resolved(CODE, Memory(), body_of(**changed))


def moving(source=0, target=2, offset=8, nbytes=16) -> wire.CudaBody:
    """A copy from a buffer into another, and a fill behind it."""
    body = wire.CudaBody()
    copy = body.nodes.add().copy
    copy.source.CopyFrom(wire.CudaAddress(buffer=source, offset=32, alignment=16))
    copy.destination.CopyFrom(wire.CudaAddress(buffer=target, offset=offset))
    copy.nbytes = nbytes
    fill = body.nodes.add().fill
    fill.destination.buffer, fill.nbytes, fill.byte = target, nbytes, 0xA5
    body.edges.add(before=0, after=1)
    return body


def test_copies_and_fills_are_nodes_with_the_addresses_of_each_frame(driver):
    resolved = graphs.Resolved(CODE, Memory(), moving())
    for frame, target in enumerate((0x2000, 0x3008)):
        driver.nodes = []
        graphs.Graph(SimpleNamespace(context=0), resolved, frame)
        assert driver.nodes == [(0x1020, target + 8, 16), ([0], target, 16, 0xA5)]


def test_what_copies_and_fills_name_is_bound():
    manifest = wire.ExecutionManifest(cuda_bodies=[moving(source=1, target=4)])
    manifest.programs.add(cuda_body=0)
    from helios_dod.executors.cuda.memory import _used

    assert _used(manifest, [0]) == {1, 4}


@pytest.mark.parametrize("changed, message", [
    ({"nbytes": 481}, "node 0: buffer 'state': offset 32 of 512 bytes, 481 from there on"),
    ({"nbytes": 249}, "node 0: buffer 'completion': offset 8 of 256 bytes, 249 from there on"),
    ({"nbytes": 250, "offset": 0, "source": 2}, "node 0: buffer 'completion': offset 32 of 256"),
])
def test_copies_and_fills_stay_inside_their_buffers(driver, changed, message):
    with pytest.raises(DeviceError, match=message):
        graphs.Resolved(CODE, Memory(), moving(**changed))


def test_what_the_driver_refuses_of_a_node_is_told_with_its_number(driver, monkeypatch):
    resolved = graphs.Resolved(CODE, Memory(), body_of())
    driver.arguments = [4]
    added = driver.cuGraphAddKernelNode

    def one_only(*node) -> int:
        if not driver.arguments:
            raise DeviceError("cuGraphAddKernelNode: CUDA_ERROR_INVALID_VALUE")
        return added(*node)

    monkeypatch.setattr(driver, "cuGraphAddKernelNode", one_only)
    with pytest.raises(DeviceError, match="node 2: cuGraphAddKernelNode: CUDA_ERROR_INVALID"):
        graphs.Graph(SimpleNamespace(context=0), resolved, 0)


class Functions:
    """A driver that knows one function, and how large each of its parameters is."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.allowed = sizes, []
        self.CUresult, self.CUfunction_attribute = (
            graphs.driver.CUresult, graphs.driver.CUfunction_attribute)

    def cuFuncGetParamInfo(self, function: str, index: int):
        if index == len(self.sizes):
            return self.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
        return self.CUresult.CUDA_SUCCESS, 8 * index, self.sizes[index]

    def __call__(self, name: str, *arguments):
        if name == "cuFuncSetAttribute":
            self.allowed.append(arguments[2])
        return {"cuModuleLoadData": "module", "cuModuleGetFunction": "function"}.get(name)


def test_code_that_the_driver_refuses_is_told_by_its_module(code, monkeypatch):
    def refused(name: str, *_):
        raise DeviceError(f"{name}: CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(graphs, "call", refused)
    with pytest.raises(DeviceError, match="module 'norms': cuModuleLoadData: CUDA_ERROR_NO_BIN"):
        graphs.Code(SimpleNamespace(architecture=90), code[1].manifest)


@pytest.fixture
def code(monkeypatch):
    functions = Functions((8, 4))
    monkeypatch.setattr(graphs, "driver", functions)
    monkeypatch.setattr(graphs, "call", functions)
    manifest = wire.ExecutionManifest()
    manifest.modules.add(name="norms", architecture=90, cubin=b"code")
    return functions, graphs.Code(SimpleNamespace(architecture=90), manifest)


@pytest.mark.parametrize("kinds, message", [
    (["address"], r"'norms', 'norm': parameters of \[8, 4\] bytes, arguments of \[8\]"),
    (["address", "words"], r"parameters of \[8, 4\] bytes, arguments of \[8, 8\]"),
    (["address", "live"], "live counts"),
])
def test_every_launch_of_a_function_has_its_parameters(code, kinds, message):
    kernel = wire.CudaKernel(entry="norm")
    assert code[1].function(kernel, ["address", "real"]) == "function"
    with pytest.raises(DeviceError, match=message):
        code[1].function(kernel, kinds)


def test_a_function_may_use_the_most_shared_memory_that_a_launch_asks_for(code):
    functions, made = code
    for nbytes in (1 << 10, 64 << 10, 50 << 10, 96 << 10):
        made.function(wire.CudaKernel(entry="norm", shared_nbytes=nbytes), ["address", "word"])
    assert functions.allowed == [64 << 10, 96 << 10]


def choosing(values=(0, 1, 0)) -> wire.CudaBody:
    """A kernel, then one of some, each behind it, then a kernel behind all of them."""
    body = wire.CudaBody()
    for number in range(len(values) + 2):
        kernel = body.nodes.add().kernel
        kernel.grid.extend((number + 1, 1, 1))
        kernel.block.extend((32, 1, 1))
    for number, value in enumerate(values, 1):
        body.nodes[number].choice.CopyFrom(
            wire.CudaChoice(buffer=0, element=number // 3, value=value))
        body.edges.add(before=0, after=number, overlap=number == 1)
        body.edges.add(before=number, after=len(values) + 1)
    return body


@pytest.mark.parametrize("selected, grids, last", [([0, 0], [1, 2, 4, 5], [1, 2]),
                                                   ([1, 0], [1, 3, 4, 5], [1, 2])])
def test_one_of_several_alternatives_is_captured(driver, selected, grids, last):
    memory = Memory()
    memory.read = lambda index: np.array(selected, np.int32).view(np.uint8)
    driver.arguments = [0] * 4
    graphs.Graph(SimpleNamespace(context=0), graphs.Resolved(CODE, memory, choosing()), 0)
    assert [node[1][0] for node in driver.nodes] == grids
    assert driver.nodes[-1][0] == last
    assert driver.edges == ([(0, 1)] if selected[0] == 0 else [])


def test_a_selection_that_is_no_alternative_is_refused(driver):
    memory = Memory()
    memory.read = lambda index: np.array([2, 0], np.int32).view(np.uint8)
    with pytest.raises(DeviceError, match=r"element 0 of 'state' selects 2, expected .* \[0, 1\]"):
        graphs.Resolved(CODE, memory, choosing())


def program(name: str):
    return SimpleNamespace(name=name, cuda_body=0)


def test_every_body_is_walked_before_the_first_graph_is_built(monkeypatch):
    """Both frames' graphs of each program; what fails says of which program."""
    executors = pytest.importorskip("helios_dod.executors.cuda.executor")
    done = []

    def resolved(code, memory, body, known):
        done.append("walked")
        return len(done)

    def graph(device, body, frame):
        if body == 2:
            raise DeviceError("refused")
        done.append((body, frame))
        return body, frame

    monkeypatch.setattr(executors, "Resolved", resolved)
    monkeypatch.setattr(executors, "Graph", graph)
    executor = SimpleNamespace(_code=None, memory=None, device=None, graphs={})
    manifest = SimpleNamespace(programs=[program("first"), program("second")], cuda_bodies=[None])
    with pytest.raises(DeviceError, match="program 'second': refused"):
        executors.CudaExecutor._build(executor, manifest, [0, 1])
    assert done == ["walked", "walked", (1, 0), (1, 1)]
    assert executor.graphs == {(0, 0): (1, 0), (1, 0): (1, 1)}


def test_turns_are_short_only_while_a_core_loads():
    executors = pytest.importorskip("helios_dod.executors.cuda.executor")
    before = sys.getswitchinterval()
    with pytest.raises(DeviceError), executors.short_turns():
        assert before > executors.TURN_S
        assert sys.getswitchinterval() == pytest.approx(executors.TURN_S)
        raise DeviceError("a failed load")
    assert sys.getswitchinterval() == before

"""Validates device bodies: modules, and the nodes and edges of every body.

What needs the machine is checked when a body is bound: parameter sizes, addresses, architecture;
what code was specialised for is functions.py's. A body has hundreds of nodes of a dozen
arguments, so texts are made only for an error.
"""

from math import prod
from typing import NamedTuple

from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.wire import manifest_pb2 as wire

ELF = b"\x7fELF"
NODES_MAX = 65_536  # of one device body
ARGUMENTS_MAX = 256
THREADS_MAX = 1024  # of one block
SHARED_NBYTES_MAX = 227 << 10  # of one block on architecture 90
GRID_MAX = (2**31 - 1, 65_535, 65_535)
ALIGNMENT_MAX = 256
Problem = tuple[str, str, object] | None  # field, expected, got


class _Buffer(NamedTuple):
    """What addresses are checked against: a body has tens of thousands of them."""

    kind: int
    nbytes: int | None  # where its extents are constants


class _Known(NamedTuple):
    """What nodes may name."""

    modules: int
    buffers: list[_Buffer]


def _buffer_of(buffer: wire.Buffer) -> _Buffer:
    if any(axis.symbol for axis in buffer.shape):
        return _Buffer(buffer.kind, None)
    return _Buffer(buffer.kind, ELEMENT_BYTES[buffer.dtype] * prod(
        axis.multiplier for axis in buffer.shape))


def check_cuda(manifest: wire.ExecutionManifest) -> None:
    """Raises ContractError, naming the field. Buffers are checked already."""
    for i, module in enumerate(manifest.modules):
        field = f"manifest.modules[{i}]"
        require(bool(module.name), f"{field}.name", "a name", "")
        require(bool(module.resource_id) != bool(module.cubin), f"{field}.resource_id",
                "a resource or a cubin, one of them", module.resource_id)
        if module.cubin:
            require(module.cubin.startswith(ELF), f"{field}.cubin", "a cubin", "other bytes")
            require(module.architecture > 0, f"{field}.architecture", "at least 1", 0)
    known = _Known(len(manifest.modules), [_buffer_of(buffer) for buffer in manifest.buffers])
    for i, body in enumerate(manifest.cuda_bodies):
        field = f"manifest.cuda_bodies[{i}]"
        require(0 < len(body.nodes) <= NODES_MAX, f"{field}.nodes", f"1 to {NODES_MAX}",
                len(body.nodes))
        require(body.shared_percent <= 100, f"{field}.shared_percent", "0 to 100",
                body.shared_percent)
        for j, node in enumerate(body.nodes):
            _raise(_node_problem(known, node), f"{field}.nodes[{j}]")
        for j, edge in enumerate(body.edges):
            _raise(_edge_problem(body, edge), f"{field}.edges[{j}]")


def _raise(problem: Problem, field: str) -> None:
    if problem is not None:
        part, expected, got = problem
        raise ContractError(f"{field}.{part}" if part else field, expected, got)


def _inside(part: str, problem: Problem) -> Problem:
    return None if problem is None else (f"{part}.{problem[0]}", *problem[1:])


def _edge_problem(body: wire.CudaBody, edge: wire.CudaEdge) -> Problem:
    if not edge.before < edge.after < len(body.nodes):
        return "", f"before < after < {len(body.nodes)} nodes", f"{edge.before} to {edge.after}"
    ends = body.nodes[edge.before], body.nodes[edge.after]
    if edge.overlap and not all(node.HasField("kernel") for node in ends):
        return "overlap", "false except between kernels", edge.overlap
    return None


def _node_problem(known: _Known, node: wire.CudaNode) -> Problem:
    if node.HasField("choice"):
        buffer, element = node.choice.buffer, node.choice.element
        kind, room = known.buffers[buffer] if buffer < len(known.buffers) else (0, None)
        if kind != wire.STATE or room is None or 4 * element + 4 > room:
            return ("choice", "an element of a STATE buffer of constant extents",
                    f"{element} of buffer {buffer}")
    kind = node.WhichOneof("node")
    if kind == "kernel":
        return _inside("kernel", _kernel_problem(known, node.kernel))
    if kind == "ingest":
        return _inside("ingest", _ingest_problem(known, node.ingest))
    if kind == "copy":
        if node.copy.nbytes == 0:
            return "copy.nbytes", "at least 1", 0
        nbytes = node.copy.nbytes
        return _inside(
            "copy.source", _place_problem(known, node.copy.source, False, nbytes)) or _inside(
            "copy.destination", _place_problem(known, node.copy.destination, True, nbytes))
    if kind == "fill":
        if node.fill.nbytes == 0:
            return "fill.nbytes", "at least 1", 0
        if node.fill.byte > 255:
            return "fill.byte", "0 to 255", node.fill.byte
        return _inside("fill.destination", _place_problem(
            known, node.fill.destination, True, node.fill.nbytes))
    return "", "a kernel, copy, fill or ingest", "none"


def _ingest_problem(known: _Known, ingest: wire.CudaIngest) -> Problem:
    if not ingest.buffers:
        return "buffers", "at least one", 0
    for index in ingest.buffers:
        if index >= len(known.buffers) or known.buffers[index].kind != wire.STAGING:
            return "buffers", "numbers of STAGING buffers", index
    return None


def _kernel_problem(known: _Known, kernel: wire.CudaKernel) -> Problem:
    if kernel.module >= known.modules:
        return "module", f"a module below {known.modules}", kernel.module
    if not kernel.entry:
        return "entry", "a kernel's name", ""
    grid, block = tuple(kernel.grid), tuple(kernel.block)
    if len(grid) != 3 or not all(1 <= n <= most for n, most in zip(grid, GRID_MAX, strict=True)):
        return "grid", f"3 extents of 1 to {GRID_MAX}", grid
    if len(block) != 3 or min(block) < 1 or block[0] * block[1] * block[2] > THREADS_MAX:
        return "block", f"3 extents of at least 1, at most {THREADS_MAX} threads", block
    if kernel.shared_nbytes > SHARED_NBYTES_MAX:
        return "shared_nbytes", f"at most {SHARED_NBYTES_MAX}", kernel.shared_nbytes
    if len(kernel.arguments) > ARGUMENTS_MAX:
        return "arguments", f"at most {ARGUMENTS_MAX}", len(kernel.arguments)
    for i, argument in enumerate(kernel.arguments):
        problem = _argument_problem(known, argument)
        if problem is not None:
            return _inside(f"arguments[{i}]", problem)
    return None


def _argument_problem(known: _Known, argument: wire.CudaArgument) -> Problem:
    kind = argument.WhichOneof("argument")
    if kind == "address":
        return _inside("address", _address_problem(known, argument.address, False))
    if kind == "row_bytes" and argument.row_bytes >= len(known.buffers):
        return "row_bytes", f"a buffer below {len(known.buffers)}", argument.row_bytes
    return ("argument", "an argument", "none") if kind is None else None


def _place_problem(
    known: _Known, address: wire.CudaAddress, written: bool, nbytes: int,
) -> Problem:
    """An address of a copy or fill, which say themselves what they do."""
    if address.use:
        return "use", "none outside kernel arguments", wire.AddressUse.Name(address.use)
    return _address_problem(known, address, written, nbytes)


def _address_problem(
    known: _Known, address: wire.CudaAddress, written: bool, nbytes: int = 1,
) -> Problem:
    """nbytes: from the address on that lie in the buffer, as far as its extents are known."""
    if address.buffer >= len(known.buffers):
        return "buffer", f"a buffer number below {len(known.buffers)}", address.buffer
    kind, room = known.buffers[address.buffer]
    if written and kind in (wire.WEIGHT, wire.STAGING):
        return "buffer", "a buffer that programs may write", wire.BufferKind.Name(kind)
    alignment = address.alignment
    if alignment > ALIGNMENT_MAX or alignment & (alignment - 1):
        return "alignment", f"0, or a power of two up to {ALIGNMENT_MAX}", alignment
    if alignment and address.offset % alignment:
        return "offset", f"a multiple of {alignment}", address.offset
    if room is not None and address.offset + nbytes > max(room, 1):
        return "offset", f"{nbytes} bytes inside {room}", address.offset
    if address.use and kind not in (wire.STATE, wire.CACHE):
        return "use", "none: only STATE and CACHE have one", wire.AddressUse.Name(address.use)
    return None

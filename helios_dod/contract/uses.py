"""What the bodies of programs do to buffers: of host operations all of it is known; of device nodes
what copies, fills and ingests do, and kernels to the arguments that say their use."""

from dataclasses import dataclass
from functools import cached_property

from helios_dod.contract.elements import ELEMENT_BYTES
from helios_dod.contract.manifest import row_elements
from helios_dod.contract.operations import EVERY_PLANE, OPERATIONS, ROLE_ACCESS
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

ROW_END = 2**63  # end of a row whose width is chosen at load
PERSISTENT = (wire.STATE, wire.CACHE)
Span = tuple[int, int, int]  # buffer, first byte of its rows, end


@dataclass(frozen=True)
class BodyUse:
    """What one body touches."""

    touched: dict[Span, int]  # STATE and CACHE -> READ, WRITE or READ_WRITE
    named: frozenset[int]  # STATE and CACHE that kernels name without saying their use
    staged: frozenset[int]  # STAGING that it reads
    resources: tuple[str, ...]  # weight resources that it reads, sorted
    keyed: tuple[tuple[int, int, int, int], ...] = ()  # key plane, value plane, page table, window
    updates: tuple[tuple[int, int, int], ...] = ()  # count, updates, page table that they go to

    @cached_property
    def by_buffer(self) -> dict[int, list[tuple[int, int, int]]]:
        """What it touches of each buffer: first byte, end, access."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for (number, first, end), access in self.touched.items():
            found.setdefault(number, []).append((first, end, access))
        return found

    def written(self) -> set[int]:
        """STATE and CACHE buffers that it is known to write."""
        return {span[0] for span, access in self.touched.items() if access & contract.WRITE}


class BodyUses:
    """One for each body: programs share bodies, so this is not worked out for each program."""

    def __init__(self, manifest: wire.ExecutionManifest) -> None:
        rows = [_row_end(buffer) for buffer in manifest.buffers]
        self.host = [_host_use(manifest, body, rows) for body in manifest.host_bodies]
        self.device = [_device_use(manifest, body, rows) for body in manifest.cuda_bodies]

    def of(self, program: wire.Program | wire.TuningGraph) -> BodyUse:
        """Of a program's or a producer's body."""
        device = program.WhichOneof("code") == "cuda_body"
        return self.device[program.cuda_body] if device else self.host[program.body]


def _row_end(buffer: wire.Buffer) -> int:
    elements = row_elements(buffer)
    return ROW_END if elements is None else elements * ELEMENT_BYTES[buffer.dtype]


def _resources(manifest: wire.ExecutionManifest, weights: set[int]) -> tuple[str, ...]:
    return tuple(sorted({manifest.buffers[number].resource_id for number in weights}))


def _host_use(
    manifest: wire.ExecutionManifest, body: wire.HostBody, rows: list[int],
) -> BodyUse:
    kinds = [buffer.kind for buffer in manifest.buffers]
    touched: dict[Span, int] = {}
    staged, weights, keyed, updates = set(), set(), [], []
    for operation in body.operations:
        name = operation.WhichOneof("operation")
        assert name is not None, "checked by check_manifest"
        part = getattr(operation, name)
        for touch in OPERATIONS[name]:
            if touch.flag and not getattr(part, touch.flag):
                continue
            value = getattr(part, touch.field)
            number = value if isinstance(value, int) else value.buffer
            kind = kinds[number]
            if kind in PERSISTENT:
                span = (number, 0, rows[number])
                if not isinstance(value, int) and value.columns:
                    width = ELEMENT_BYTES[manifest.buffers[number].dtype]
                    first = value.column * width
                    span = (number, first, first + value.columns * width)
                touched[span] = touched.get(span, 0) | ROLE_ACCESS[touch.role]
            elif kind == wire.STAGING:
                staged.add(number)
            elif kind == wire.WEIGHT:
                weights.add(number)
        if name in ("cache_write", "attention"):
            window = part.window if name == "attention" else -1
            keyed.append((part.key_cache, part.value_cache, part.table.buffer, window))
        elif name == "update_page_table":
            updates.append((part.count.buffer, part.updates.buffer, part.table.buffer))
        elif name in EVERY_PLANE:
            touched |= {(number, 0, rows[number]): contract.READ_WRITE
                        for number, kind in enumerate(kinds) if kind == wire.CACHE}
    return BodyUse(touched, frozenset(), frozenset(staged), _resources(manifest, weights),
                   tuple(dict.fromkeys(keyed)), tuple(dict.fromkeys(updates)))


def _device_use(
    manifest: wire.ExecutionManifest, body: wire.CudaBody, rows: list[int],
) -> BodyUse:
    kinds = [buffer.kind for buffer in manifest.buffers]
    touched: dict[Span, int] = {}
    named: set[int] = set()  # of any kind
    staged: set[int] = set()

    def touch(number: int, access: int) -> None:
        if kinds[number] in PERSISTENT:
            span = (number, 0, rows[number])
            touched[span] = touched.get(span, 0) | access
        else:
            named.add(number)

    for node in body.nodes:
        if node.HasField("choice"):
            touch(node.choice.buffer, contract.READ)
        kind = node.WhichOneof("node")
        if kind == "kernel":
            for argument in node.kernel.arguments:
                if argument.WhichOneof("argument") == "address":
                    address = argument.address
                    if address.use:
                        touch(address.buffer, address.use)
                    else:
                        named.add(address.buffer)
        elif kind == "ingest":
            staged.update(node.ingest.buffers)
        elif kind == "copy":
            touch(node.copy.source.buffer, contract.READ)
            touch(node.copy.destination.buffer, contract.WRITE)
        else:
            touch(node.fill.destination.buffer, contract.WRITE)
    staged |= {number for number in named if kinds[number] == wire.STAGING}
    return BodyUse(
        touched, frozenset(number for number in named if kinds[number] in PERSISTENT),
        frozenset(staged),
        _resources(manifest, {number for number in named if kinds[number] == wire.WEIGHT}))

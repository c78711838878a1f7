"""What every part of a lowering needs: scratch, operands as arguments, nodes behind each other."""

from typing import Any

from helios_dod.contract.operations import OPERATIONS, ROLE_ACCESS
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.library import Library, Pointer
from helios_dod.ignition.cuda.tiles import (
    EARLY_EIGHTHS,
    EARLY_TOKENS,
    OVERLAP_LANES,
    OVERLAP_TOKENS,
)
from helios_dod.ignition.preparation.builder import ELEMENT_BYTES, OPERATION_FIELDS
from helios_dod.ignition.prepared import PreparationError


def power(value: int) -> int:
    """The next power of two."""
    return 1 << (value - 1).bit_length()


class Nodes:
    """Adds nodes to the body of one program after the other."""

    batch: int  # lanes and packed tokens of the program
    packed: int
    single: bool  # one token a lane
    body: wire.CudaBody
    last: list[int]  # nodes that the next one waits for
    halves: set[int]  # buffers whose bf16 twin the program wrote
    quantised: set[int]  # and whose e4m3 twin
    alternatives = False  # whether one of `last` is captured

    def __init__(self, manifest: wire.ExecutionManifest, page_tokens: int) -> None:
        from helios_dod.ignition.kernels import attention, decoding, products, rows, sampling

        self.rows, self.products, self.attend, self.draws = rows, products, attention, sampling
        self.decoding = decoding
        self.manifest, self.page_tokens = manifest, page_tokens
        self.library = Library(manifest)
        self.made: dict[str, int] = {}  # own scratch by name
        self.partials = self.scratch("partials", wire.F32, [1])
        numbers = {buffer.name: i for i, buffer in enumerate(manifest.buffers)}
        self.factors = {  # weights in e4m3 -> factors of their rows
            i: numbers[f"{buffer.name}.scale"] for i, buffer in enumerate(manifest.buffers)
            if buffer.kind == wire.WEIGHT and buffer.dtype == wire.F8_E4M3}

    def scratch(self, name: str, dtype: wire.DataType, shape: list[Any]) -> int:
        """A scratch buffer of this name; a constant one grows to the largest shape asked for."""
        axes = [axis if isinstance(axis, wire.Extent) else wire.Extent(multiplier=axis)
                for axis in shape]
        if name not in self.made:
            self.made[name] = len(self.manifest.buffers)
            self.manifest.buffers.append(
                wire.Buffer(name=name, kind=wire.SCRATCH, dtype=dtype, shape=axes))
        buffer = self.manifest.buffers[self.made[name]]
        if axes[0].symbol == 0:
            buffer.shape[0].multiplier = max(buffer.shape[0].multiplier, axes[0].multiplier)
        return self.made[name]

    def half(self, index: int, write: bool = True) -> Pointer:
        """The bf16 twin of a buffer; it is read only behind a write of the same program."""
        buffer = self.manifest.buffers[index]
        if write:
            self.halves.add(index)
            self.quantised.discard(index)
        elif index not in self.halves:
            raise self.refusal("product", f"rows of {buffer.name} in float32")
        return Pointer(self.scratch(f"{buffer.name}.bf16", wire.BF16, list(buffer.shape)))

    def eighth(self, index: int) -> tuple[Pointer, Pointer]:
        """The e4m3 twin of a buffer and the factors of its rows, to be written."""
        buffer = self.manifest.buffers[index]
        self.quantised.add(index)
        return (Pointer(self.scratch(f"{buffer.name}.e4m3", wire.F8_E4M3, list(buffer.shape))),
                Pointer(self.scratch(f"{buffer.name}.scale", wire.F32, [buffer.shape[0]])))

    def columns(self, index: int) -> int:
        """Elements of one row of a buffer of constant width."""
        count = 1
        for axis in self.manifest.buffers[index].shape[1:]:
            assert axis.symbol == 0
            count *= axis.multiplier
        return count

    def refusal(self, place: str, what: str) -> PreparationError:
        """The error for what has no kernel."""
        return PreparationError(f"target cuda-sm90, {place}: no kernel for {what}")

    def add(self, node: wire.CudaNode) -> None:
        """Appends a node behind the last; a kernel behind one kernel may overlap it."""
        kernels = [self.body.nodes[i].HasField("kernel") for i in self.last]
        alone = node.HasField("kernel") and bool(kernels) and all(kernels) and (
            len(kernels) == 1 or self.alternatives)
        self.alternatives = False
        self.body.nodes.append(node)
        number = len(self.body.nodes) - 1
        most = OVERLAP_LANES if self.single else OVERLAP_TOKENS
        for before in self.last:
            self.body.edges.add(before=before, after=number,
                                overlap=alone and self.packed <= most)
        self.last = [number]

    def launch(self, function: Any, grid: tuple[int, ...], arguments: dict[str, Any],
               constants: dict[str, Any], warps: int = 4, stages: int = 2) -> None:
        """Appends a kernel node."""
        x, y, z = (*grid, 1, 1)[:3]
        if "EARLY" in function.arg_names:
            most = EARLY_EIGHTHS if self.factors else EARLY_TOKENS
            constants = constants | dict(EARLY=self.packed <= most)
        self.add(wire.CudaNode(kernel=self.library.kernel(
            function, (x, y, z), arguments, constants, warps, stages)))

    def live(self, rows: wire.RowDomain) -> Pointer:
        """The live count of a row domain."""
        return Pointer({wire.ROWS_PACKED: self.manifest.live_packed,
                        wire.ROWS_LANES: self.manifest.live_lanes,
                        wire.ROWS_SAMPLED: self.manifest.live_sampled}[rows])

    def capacity(self, rows: int) -> int:
        """The most rows of a domain."""
        return self.packed if rows == wire.ROWS_PACKED else self.batch

    def operands(self, op: Any, names: str) -> dict[str, Pointer]:
        """Operands by field name; completion columns are only aligned to their elements."""
        touches = {touch.field: touch for touch in OPERATIONS[OPERATION_FIELDS[
            op.DESCRIPTOR.name]]}
        found = {}
        for name in names.split():
            index = getattr(op, name).buffer
            kind = self.manifest.buffers[index].kind
            found[name] = Pointer(index, 4) if kind == wire.COMPLETION else self.used(
                index, ROLE_ACCESS[touches[name].role])
        return found

    def used(self, index: int, use: int, kind: str = "") -> Pointer:
        """A buffer and, where it outlives the program, what the kernel does with it."""
        lasts = self.manifest.buffers[index].kind in (wire.STATE, wire.CACHE)
        return Pointer(index, kind=kind, use=use if lasts else 0)

    def words(self, index: int) -> int:
        """4-byte words of one row."""
        return self.columns(index) * ELEMENT_BYTES[self.manifest.buffers[index].dtype] // 4

"""The tuning catalog of a core for the host: which kernel runs a product of few rows.

For each kind of matrix of the layers, one tuning graph times both kernels of proto ProductKernel
over a few of those matrices, with as many rows as each place of a tuned row is of; its selections
go into a row that every product of such a matrix names. Sums are the same with either kernel."""

from collections.abc import Iterator
from dataclasses import replace

from helios_dod.contract.operations import READ
from helios_dod.contract.states import BY_BITS
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host.products import TUNED_ROWS
from helios_dod.ignition.prepared import Prepared

KERNELS = (wire.PRODUCT_DIRECT, wire.PRODUCT_EXPANDED)
TRIAL_BYTES = 8 << 20  # of matrices that a trial goes through, so that caches do not decide
MATRIX_BYTES_MAX = 64 << 20  # larger ones, such as heads, would take the whole time
PLACES = len(TUNED_ROWS)


def products_of(body: wire.HostBody) -> Iterator[wire.Product]:
    """The products of a body."""
    for operation in body.operations:
        if operation.WhichOneof("operation") == "product":
            yield operation.product


def with_tuning(prepared: Prepared) -> Prepared:
    """The core with a tuning catalog of its products. Its programs are for the host."""
    manifest, serving = wire.ExecutionManifest(), contract.ServingContract()
    manifest.CopyFrom(prepared.manifest)
    serving.CopyFrom(prepared.contract)
    kinds: dict[bytes, list[int]] = {}  # panel -> matrices
    for body in manifest.host_bodies:
        for product in products_of(body):
            buffer = manifest.buffers[product.weight]
            own = kinds.setdefault(buffer.panel.SerializeToString(deterministic=True), [])
            if buffer.resource_nbytes <= MATRIX_BYTES_MAX and product.weight not in own:
                own.append(product.weight)
    bodies = len(manifest.host_bodies)
    selected: dict[int, int] = {}  # matrix -> its tuned row
    for number, matrices in enumerate(sorted(kinds.values())):
        if matrices:
            index = _add_graph(manifest, f"product_{number}", matrices)
            selected |= dict.fromkeys(matrices, index)
    graphs = {graph.program: graph for graph in serving.model.graphs}
    producers = {graph.outputs[0]: graph.name for graph in manifest.tuning}
    for i in range(bodies):
        read = _select(manifest.host_bodies[i], selected)
        for program in manifest.programs:
            if program.body == i:
                for index in read:
                    _bind(program, graphs[program.name], index, producers[index])
    return replace(prepared, manifest=manifest, contract=serving)


def _select(body: wire.HostBody, selected: dict[int, int]) -> list[int]:
    """Makes products name the tuned row of their matrix; the rows that were named."""
    named: dict[int, None] = {}
    for product in products_of(body):
        if product.weight in selected:
            index = selected[product.weight]
            product.selected.CopyFrom(wire.Operand(buffer=index))
            product.has_selected = True
            named[index] = None
    return list(named)


def _bind(program: wire.Program, graph: contract.GraphContract, index: int, producer: str) -> None:
    program.tuned.add(buffer=index, producer=producer)
    graph.tuned_bindings.add(buffer=index, producer=producer)
    graph.states.add(buffer=index, row_stride=4 * PLACES, extent=4 * PLACES, access=BY_BITS[READ])


def _add_graph(manifest: wire.ExecutionManifest, name: str, matrices: list[int]) -> int:
    """A tuning graph of matrices of one kind; the buffer that holds what it selects."""
    panel = manifest.buffers[matrices[0]].panel
    nbytes = manifest.buffers[matrices[0]].resource_nbytes

    def buffer(part: str, kind: wire.BufferKind, dtype: wire.DataType, *shape: int) -> int:
        manifest.buffers.append(wire.Buffer(
            name=f"tuning.{name}.{part}", kind=kind, dtype=dtype,
            shape=[wire.Extent(multiplier=extent) for extent in shape]))
        return len(manifest.buffers) - 1

    rows = max(TUNED_ROWS)
    source = buffer("input", wire.SCRATCH, wire.F32, rows, panel.columns)
    output = buffer("output", wire.SCRATCH, wire.F32, rows, panel.rows)
    marks = buffer("marks", wire.SCRATCH, wire.I64, 1, len(KERNELS) + 1)
    selected = buffer("selected", wire.STATE, wire.I32, 1, PLACES)
    best = buffer("best", wire.STATE, wire.I64, 1, PLACES * len(KERNELS))
    body = manifest.host_bodies.add()
    some = matrices[:max(1, TRIAL_BYTES // nbytes)]
    for place, count in enumerate(TUNED_ROWS):
        for i, kernel in enumerate(KERNELS):
            _mark(body, marks, i)
            for weight in some:
                body.operations.add().product.CopyFrom(wire.Product(
                    rows=wire.ROWS_TRIAL, trial_rows=count, weight=weight, kernel=kernel,
                    input=wire.Operand(buffer=source), output=wire.Operand(buffer=output)))
        _mark(body, marks, len(KERNELS))
        body.operations.add().choose_fastest.CopyFrom(wire.ChooseFastest(
            marks=wire.Operand(buffer=marks), first=KERNELS[0],
            best=wire.Operand(buffer=best, column=place * len(KERNELS), columns=len(KERNELS)),
            selected=wire.Operand(buffer=selected, column=place, columns=1)))
    manifest.tuning.add(name=name, body=len(manifest.host_bodies) - 1, outputs=[selected, best])
    return selected


def _mark(body: wire.HostBody, marks: int, column: int) -> None:
    body.operations.add().mark_time.output.CopyFrom(
        wire.Operand(buffer=marks, column=column, columns=1))

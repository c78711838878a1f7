"""Startup tuning: what a graph contract says of it equals the execution descriptor, and outputs
overlap nothing that requests write."""

from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.prepared import PreparedProgram, PreparedTuning
from helios_dod.contract.uses import BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire


def tuned_inputs(
    manifest: wire.ExecutionManifest, program: wire.Program, graph: contract.GraphContract,
    field: str,
) -> tuple[tuple[int, str], ...]:
    """(buffer, producer) of every tuned binding of a program. Raises ContractError."""
    declared = [(bound.buffer, bound.producer) for bound in graph.tuned_bindings]
    physical = [(bound.buffer, bound.producer) for bound in program.tuned]
    require(declared == physical, f"{field}.tuned_bindings",
            f"{physical or 'none'}, as the execution descriptor says", declared or "none")
    outputs = {graph.name: set(graph.outputs) for graph in manifest.tuning}
    for i, (buffer, producer) in enumerate(declared):
        require(producer in outputs, f"{field}.tuned_bindings[{i}].producer",
                "a graph of the tuning catalog", producer)
        require(buffer in outputs[producer], f"{field}.tuned_bindings[{i}].buffer",
                f"an output of {producer}", buffer)
    require(len({buffer for buffer, _ in declared}) == len(declared), f"{field}.tuned_bindings",
            "one producer a buffer", declared)
    return tuple(declared)


def prepare_tuning(
    manifest: wire.ExecutionManifest, programs: tuple[PreparedProgram, ...], uses: BodyUses,
    tables: frozenset[int],
) -> tuple[PreparedTuning, ...]:
    """The tuning catalog. Raises ContractError where an output is a request input, writable graph
    state or cache storage, or a producer leaves an output out or writes something else."""
    check_choices(manifest)
    outputs = frozenset(buffer for graph in manifest.tuning for buffer in graph.outputs)
    for i, graph in enumerate(manifest.tuning):
        field = f"manifest.tuning[{i}].outputs"
        for buffer in graph.outputs:
            name = manifest.buffers[buffer].name
            for program in programs:
                states = {state.buffer for state in program.states if state.access != contract.READ}
                if program.device_pending is not None:
                    states.add(program.device_pending.buffer)
                require(buffer not in states, field, f"no writable state of {program.name}", name)
                inputs = {binding.buffer for binding in program.bindings}
                require(buffer not in inputs, field, f"no request input of {program.name}", name)
            require(buffer not in tables, field, "no page table or cache storage", name)
        _check_producer(manifest, graph, uses, field)
    if outputs:
        for declared, program in zip(manifest.programs, programs, strict=True):
            use = uses.of(declared)
            _check_consumer(manifest, program, outputs,
                            {number for number, _, _ in use.touched} | use.named)
    return tuple(PreparedTuning(
        graph.name, tuple(graph.outputs), graph.WhichOneof("code") == "cuda_body")
        for graph in manifest.tuning)


def check_choices(manifest: wire.ExecutionManifest) -> None:
    """Alternatives of a body depend on a producer, and are numbered from 0: that is what an output
    says before its producer has run. Raises ContractError."""
    outputs = {buffer for graph in manifest.tuning for buffer in graph.outputs}
    producers = {graph.cuda_body for graph in manifest.tuning
                 if graph.WhichOneof("code") == "cuda_body"}
    for i, body in enumerate(manifest.cuda_bodies):
        field, values = f"manifest.cuda_bodies[{i}].nodes", {}  # type: ignore[var-annotated]
        for j, node in enumerate(body.nodes):
            if not node.HasField("choice"):
                continue
            choice, buffer = node.choice, manifest.buffers[node.choice.buffer]
            require(i not in producers, f"{field}[{j}].choice", "none in a tuning graph",
                    buffer.name)
            require(choice.buffer in outputs and buffer.dtype == wire.I32,
                    f"{field}[{j}].choice.buffer", "an I32 output of a tuning graph", buffer.name)
            values.setdefault((choice.buffer, choice.element), set()).add(choice.value)
        for (index, element), found in values.items():
            require(found == set(range(len(found))), field,
                    f"alternatives 0 to {len(found) - 1} of element {element} of "
                    f"{manifest.buffers[index].name}", sorted(found))


def _check_producer(
    manifest: wire.ExecutionManifest, graph: wire.TuningGraph, uses: BodyUses, field: str,
) -> None:
    """A producer's body writes its outputs, no other persistent buffer, and reads no input."""
    use, outputs = uses.of(graph), set(graph.outputs)
    problems = (
        (outputs - use.written() - use.named, f"only buffers that {graph.name} writes"),
        (use.written() - outputs, f"every persistent buffer that {graph.name} writes, with"),
        (use.staged, f"a body of {graph.name} that reads no request input like"))
    for buffers, expected in problems:
        if buffers:
            raise ContractError(field, expected, manifest.buffers[min(buffers)].name)


def _check_consumer(
    manifest: wire.ExecutionManifest, program: PreparedProgram, outputs: frozenset[int],
    touched: set[int],
) -> None:
    """A program that touches a producer's output depends on it."""
    missing = outputs & touched - {buffer for buffer, _ in program.tuned}
    if missing:
        raise ContractError(
            f"contract.model.graphs ({program.name}).tuned_bindings",
            f"a binding of {manifest.buffers[min(missing)].name}, which the program touches",
            "none")

"""Startup tuning: what a graph contract says of it equals the execution descriptor, and outputs
overlap nothing that requests write."""

from helios_dod.contract.errors import require
from helios_dod.contract.manifest import body_uses, use_of
from helios_dod.contract.prepared import PreparedProgram, PreparedTuning
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
    manifest: wire.ExecutionManifest, programs: tuple[PreparedProgram, ...],
    tables: frozenset[int],
) -> tuple[PreparedTuning, ...]:
    """The tuning catalog. Raises ContractError where an output is a request input, writable graph
    state or cache storage."""
    uses = body_uses(manifest) if manifest.tuning else ()
    written = [use_of(uses, program).written for program in manifest.programs] if uses else []
    for i, graph in enumerate(manifest.tuning):
        field = f"manifest.tuning[{i}].outputs"
        for buffer in graph.outputs:
            name = manifest.buffers[buffer].name
            for program, touched in zip(programs, written, strict=True):
                states = {state.buffer for state in program.states if state.access != contract.READ}
                if program.device_pending is not None:
                    states.add(program.device_pending.buffer)
                require(buffer not in states | touched, field,
                        f"no writable state of {program.name}", name)
                inputs = {binding.buffer for binding in program.bindings}
                require(buffer not in inputs, field, f"no request input of {program.name}", name)
            require(buffer not in tables, field, "no page table or cache storage", name)
    return tuple(PreparedTuning(
        graph.name, tuple(graph.outputs), graph.WhichOneof("code") == "cuda_body")
        for graph in manifest.tuning)

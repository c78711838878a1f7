"""A prepared core for the host -> one for CUDA: same contract, same buffers, kernels for bodies."""

from dataclasses import replace

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.lowering import Lowering
from helios_dod.ignition.cuda.weights import row_major
from helios_dod.ignition.prepared import Prepared


def lower(manifest: wire.ExecutionManifest, graphs: list[contract.GraphContract],
          page_tokens: int) -> None:
    """Replaces the host bodies of a manifest, whose matrices are row-major, by CUDA bodies."""
    bound = {graph.program: [binding.buffer for binding in graph.bindings] for graph in graphs}
    lowering = Lowering(manifest, page_tokens)
    for program in manifest.programs:
        operations = list(manifest.host_bodies[program.body].operations)
        lowering.program(program, operations, bound[program.name])
    del manifest.host_bodies[:]


def for_cuda(prepared: Prepared) -> Prepared:
    """The core of the same model for target cuda-sm90. Raises PreparationError."""
    manifest = wire.ExecutionManifest()
    manifest.CopyFrom(prepared.manifest)
    weights = row_major(manifest, prepared.weights)
    model = prepared.contract.model
    lower(manifest, list(model.graphs), model.cache.page_tokens)
    serving = contract.ServingContract()
    serving.CopyFrom(prepared.contract)
    serving.cache_identity = f"{prepared.contract.cache_identity}-cuda-sm90"
    return replace(prepared, manifest=manifest, contract=serving, weights=weights)

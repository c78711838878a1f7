"""A prepared core for the host -> one for CUDA: same contract, same buffers, kernels for bodies."""

from dataclasses import replace

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.lowering import Lowering
from helios_dod.ignition.cuda.weights import row_major
from helios_dod.ignition.prepared import Prepared


def without_masks(manifest: wire.ExecutionManifest, graphs: list[contract.GraphContract]) -> None:
    """Leaves grammar masks out: staged for every lane of every step, they would cost the device
    more than the token. Requests that need them are refused by name."""
    for body in manifest.host_bodies:
        for operation in body.operations:
            if operation.WhichOneof("operation") == "adjust_logits":
                operation.adjust_logits.ClearField("mask")
                operation.adjust_logits.has_mask = False
    for graph in graphs:
        kept = [binding for binding in graph.bindings
                if binding.source != contract.GRAMMAR_MASK]
        if graph.HasField("host_pending_binding"):
            graph.host_pending_binding = kept.index(graph.bindings[graph.host_pending_binding])
        del graph.bindings[:]
        graph.bindings.extend(kept)


def lower(manifest: wire.ExecutionManifest, graphs: list[contract.GraphContract],
          page_tokens: int) -> None:
    """Replaces the host bodies of a manifest, whose matrices are row-major, by CUDA bodies."""
    without_masks(manifest, graphs)
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
    serving = contract.ServingContract()
    serving.CopyFrom(prepared.contract)
    model = serving.model
    lower(manifest, list(model.graphs), model.cache.page_tokens)
    serving.cache_identity = f"{prepared.contract.cache_identity}-cuda-sm90"
    return replace(prepared, manifest=manifest, contract=serving, weights=weights)

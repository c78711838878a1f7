"""A prepared core for the host -> one for CUDA: same contract, same buffers, kernels for bodies."""

from dataclasses import replace

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.cuda.lowering import Lowering
from helios_dod.ignition.cuda.weights import in_e4m3, row_major
from helios_dod.ignition.prepared import Prepared

MASKED = (wire.PREFILL, wire.MIXED, wire.DECODE)  # operations whose lanes may be under a grammar


def separate_masks(manifest: wire.ExecutionManifest, graphs: list[contract.GraphContract],
                   ) -> list[contract.GraphContract]:
    """Programs without grammar masks, and behind them twins with masks of those where the device
    owns the next token: masks are staged for every lane, so that steps that need none should not
    carry them. Returns the graphs of both; a graph that takes masks is one of a twin."""
    twins = []
    for program, graph in zip(list(manifest.programs), graphs, strict=True):
        if not any(binding.source == contract.GRAMMAR_MASK for binding in graph.bindings):
            continue
        if program.operation in MASKED and not graph.HasField("host_pending_binding"):
            name = f"{program.name}_masked"
            manifest.programs.add().CopyFrom(program)
            manifest.programs[-1].name = name
            twin = contract.GraphContract()
            twin.CopyFrom(graph)
            twin.program = name
            twins.append(twin)
        kept = [binding for binding in graph.bindings
                if binding.source != contract.GRAMMAR_MASK]
        if graph.HasField("host_pending_binding"):
            graph.host_pending_binding = kept.index(graph.bindings[graph.host_pending_binding])
        del graph.bindings[:]
        graph.bindings.extend(kept)
    return [*graphs, *twins]


def without_mask(operation: wire.HostOperation) -> wire.HostOperation:
    """The operation, or a copy of one that takes a mask, without it."""
    if operation.WhichOneof("operation") != "adjust_logits":
        return operation
    made = wire.HostOperation()
    made.CopyFrom(operation)
    made.adjust_logits.ClearField("mask")
    made.adjust_logits.has_mask = False
    return made


def lower(manifest: wire.ExecutionManifest, graphs: list[contract.GraphContract],
          page_tokens: int) -> list[contract.GraphContract]:
    """Replaces the host bodies of a manifest, whose matrices are row-major, by CUDA bodies. Returns
    the graphs of its programs."""
    graphs = separate_masks(manifest, graphs)
    lowering = Lowering(manifest, page_tokens)
    for program, graph in zip(manifest.programs, graphs, strict=True):
        operations = list(manifest.host_bodies[program.body].operations)
        if not any(binding.source == contract.GRAMMAR_MASK for binding in graph.bindings):
            operations = [without_mask(operation) for operation in operations]
        lowering.program(program, operations, [binding.buffer for binding in graph.bindings])
        for name, trials in lowering.depends.items():
            program.tuned.add(buffer=trials.selected, producer=name)
            graph.tuned_bindings.add(buffer=trials.selected, producer=name)
            graph.states.add(buffer=trials.selected, row_stride=4, extent=4, access=contract.READ)
    lowering.add_tuning()
    del manifest.host_bodies[:]
    return graphs


WEIGHT_TYPES = ("bf16", "fp8", "fp8-head")  # of the matrices of layers; the last: of the head too


def for_cuda(prepared: Prepared, weight_type: str = "bf16") -> Prepared:
    """The core of the same model for target cuda-sm90. Raises PreparationError."""
    assert weight_type in WEIGHT_TYPES
    manifest = wire.ExecutionManifest()
    manifest.CopyFrom(prepared.manifest)
    weights, identity = row_major(manifest, prepared.weights), "cuda-sm90"
    if weight_type != "bf16":
        weights = in_e4m3(manifest, weights, head=weight_type == "fp8-head")
        identity = f"{identity}-{weight_type}"
    serving = contract.ServingContract()
    serving.CopyFrom(prepared.contract)
    model = serving.model
    graphs = lower(manifest, list(model.graphs), model.cache.page_tokens)
    del model.graphs[:]
    model.graphs.extend(graphs)
    serving.cache_identity = f"{prepared.contract.cache_identity}-{identity}"
    return replace(prepared, manifest=manifest, contract=serving, weights=weights)

"""Variants of decode kernels timed in whole steps beside each other, in one process over the same
buffers: kernels that follow one another overlap, so a kernel alone says little.

    python perf/h200/variants.py save 8b FILE.pickle     # no GPU
    python perf/h200/variants.py run 8b FILE.pickle      # logits against the first variant's, times

A variant: tiles of products of few tokens (warps, depth, blocks; of gated ones), of attention in
rings (splits, warps, depth), tokens up to which kernels overlap, and to which small ones let the
next begin early. None: the kernels in Triton.
"""

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
from cuda_models import Decoder, TextModel, TextPrograms
from measure import Harness, Model, Weights, contract, contract_of, wire
from models import SHAPES, random_checkpoint, random_weights

from helios_dod.ignition.cuda import lowering, nodes, prepare, tiles
from helios_dod.ignition.cuda.weights import row_major
from helios_dod.ignition.preparation.builder import Builder
from helios_dod.ignition.preparation.contract import declare_shared
from helios_dod.ignition.preparation.options import PAGE_TOKENS
from helios_dod.limits import MEDIUM

SHARED = ("initialize", "prefill_512")


@dataclass(frozen=True)
class Variant:
    """Kernels of a decode program."""

    few: tuple[int, int, int] | None = None
    gated: tuple[int, int, int] | None = None
    ring: tuple[int, int, int] | None = None
    overlap: int = 16
    early: int = 1

    def __str__(self) -> str:
        def text(one: tuple[int, int, int] | None) -> str:
            return "-" if one is None else ",".join(map(str, one))

        return (f"few {text(self.few)} gated {text(self.gated)} ring {text(self.ring)} "
                f"{self.overlap} {self.early}")


FEW, GATED = (8, 6, 2), (8, 4, 2)
VARIANTS: dict[int, list[Variant]] = {
    1: [Variant(), Variant(ring=(8, 4, 3)), Variant(ring=(8, 4, 2)), Variant(ring=(8, 8, 2)),
        Variant(ring=(4, 8, 3)), Variant(FEW, GATED, (8, 4, 3)),
        Variant((4, 8, 4), (4, 4, 4), (8, 4, 3))],
    8: [Variant(), Variant(ring=(4, 4, 3)), Variant(FEW, GATED), Variant(FEW, GATED, (4, 4, 3)),
        Variant(FEW, GATED, (4, 4, 3), early=16), Variant(FEW, GATED, (8, 4, 2), early=16),
        Variant(FEW, GATED, (2, 8, 3), early=16), Variant(FEW, GATED, (4, 8, 2), early=16),
        Variant((4, 8, 4), (4, 4, 4), (4, 4, 3), early=16),
        Variant((8, 4, 2), (8, 3, 2), (4, 4, 3), early=16),
        Variant((16, 4, 1), (16, 4, 1), (4, 4, 3), early=16),
        Variant((8, 4, 3), (8, 2, 3), (4, 4, 3), early=16),
        Variant(FEW, GATED, (4, 4, 3), overlap=0)],
    64: [Variant(), Variant(ring=(1, 4, 3)), Variant(ring=(1, 4, 2)), Variant(ring=(1, 4, 3)),
         Variant(ring=(1, 8, 2)), Variant(ring=(2, 4, 2)), Variant(ring=(2, 4, 3)),
         Variant(ring=(1, 4, 3), overlap=64), Variant(ring=(1, 4, 3), overlap=64, early=64)],
}
ALONE = (0, 3)  # variants whose kernels are timed alone too


def apply(variant: Variant) -> None:
    """Makes lowering use a variant."""
    def few(columns: int, tokens: int, gated: bool) -> tiles.FewTile | None:
        chosen = variant.gated if gated else variant.few
        return None if chosen is None or tokens > 16 else tiles.FewTile(*chosen)

    def ring(*_: int) -> tiles.RingTile | None:
        return None if variant.ring is None else tiles.RingTile(*variant.ring)

    changed: Any = lowering
    changed.few_tile, changed.ring_tile = few, ring
    nodes.OVERLAP_TOKENS, nodes.EARLY_TOKENS = variant.overlap, variant.early


def save(shape: str, path: str) -> None:
    """Lowers the shared programs, and decode programs in every variant, into one manifest."""
    builder, options = Builder(), measure.options_of(shape)
    checkpoint = random_checkpoint(SHAPES[shape])
    shared = declare_shared(builder, options, checkpoint.config.vocabulary)
    decoder = Decoder(builder, shared, checkpoint, options)
    TextPrograms(builder, shared, TextModel(
        decoder.buffers.logits, decoder.embed, decoder.run_layers, decoder.head), options).emit()
    manifest, weights = builder.manifest, row_major(builder.manifest, builder.weights())
    graphs = prepare.separate_masks(manifest, builder.graphs)
    made = lowering.Lowering(manifest, PAGE_TOKENS)
    kept: list[tuple[Any, Any]] = []

    def lower(program: Any, graph: Any, name: str) -> None:
        chosen, own = wire.Program(), contract.GraphContract()
        chosen.CopyFrom(program)
        own.CopyFrom(graph)
        chosen.name = own.program = name
        operations = [prepare.without_mask(operation)
                      for operation in manifest.host_bodies[program.body].operations]
        made.program(chosen, operations, [binding.buffer for binding in graph.bindings])
        kept.append((chosen, own))

    for program, graph in zip(list(manifest.programs), graphs, strict=True):
        if program.name in SHARED:
            apply(Variant())
            lower(program, graph, program.name)
        for batch, variants in VARIANTS.items():
            for number, variant in enumerate(variants):
                if program.name in (f"decode_{batch}", f"decode_host_{batch}"):
                    apply(variant)
                    lower(program, graph, f"{program.name.rsplit('_', 1)[0]}.{batch}.{number}")
    del manifest.host_bodies[:], manifest.programs[:]
    manifest.programs.extend(program for program, _ in kept)
    model = Model(manifest, weights, contract_of(
        [graph for _, graph in kept], options.context_of(checkpoint.config.context)))
    Path(path).write_bytes(pickle.dumps((
        manifest.SerializeToString(), [graph.SerializeToString() for _, graph in kept],
        model.contract.context_tokens, weights.nbytes, random_weights(model).vectors)))
    print(f"{path}: {Path(path).stat().st_size} bytes, {len(manifest.modules)} modules")


def loaded(path: str) -> Harness:
    """The programs of a file on the device, 64 slots at the context."""
    from helios_dod.executors.cuda.executor import CudaExecutor
    from helios_dod.executors.cuda.upload import RandomWeights

    manifest, graphs, context, nbytes, vectors = pickle.loads(Path(path).read_bytes())
    read = contract.GraphContract.FromString
    model = Model(wire.ExecutionManifest.FromString(manifest), Weights("weights", nbytes, ()),
                  contract_of([read(graph) for graph in graphs], context), vectors)
    harness = Harness(model, CudaExecutor(), slots=64, pages=64 * 84, limits=MEDIUM,
                      weights={"weights": RandomWeights(nbytes, vectors)})
    print(f"loaded, {harness.executor.load_ns}", flush=True)
    generator = np.random.default_rng(1)
    for slot in range(64):
        harness.admit(slot)
        for _ in range(measure.CONTEXT // 512):
            harness.prefill({slot: generator.integers(0, 128_000, 512).tolist()})
    return harness


def logits_of(harness: Harness, name: str, batch: int) -> np.ndarray:
    """Logits of one step whose tokens the host gives, which is taken back."""
    slots = list(range(batch))
    harness.step(name, {slot: [-1] for slot in slots}, batch,
                 {contract.PENDING_TOKEN: [7 * slot + 1 for slot in slots]})
    for slot in slots:
        harness.rows[slot].consumed -= 1
    return harness.logits(batch)


def run(shape: str, path: str) -> None:
    """Times every variant."""
    measure.STEPS, measure.REPETITIONS = 80, 3
    harness = loaded(path)
    names = [program.name for program in harness.manifest.programs]
    for batch, variants in VARIANTS.items():
        known = None
        for number, variant in enumerate(variants):
            found = logits_of(harness, f"decode_host.{batch}.{number}", batch)
            known = found if known is None else known
            spread = np.sqrt(((found - known) ** 2).mean(axis=1) / (known**2).mean(axis=1))
            program = names.index(f"decode.{batch}.{number}")
            times = measure.back_to_back(harness, program)
            print(f"{shape} {batch} {variant}: {np.median(times):.4f} ({min(times):.4f}-"
                  f"{max(times):.4f}) ms, off {spread.max():.4f}", flush=True)
        for number in ALONE:
            print(f"    alone: {variants[number]}")
            measure.profile(harness, names.index(f"decode.{batch}.{number}"))
    harness.close()


if __name__ == "__main__":
    {"save": save, "run": run}[sys.argv[1]](*sys.argv[2:])

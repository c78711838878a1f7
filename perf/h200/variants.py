"""Variants of decode kernels timed in whole steps beside each other, in one process over the same
buffers: kernels that follow one another overlap, so a kernel alone says little.

    python perf/h200/variants.py save 8b FILE.pickle     # no GPU
    python perf/h200/variants.py run 8b FILE.pickle      # logits against the first variant's, times
    python perf/h200/variants.py run 8b FILE.pickle host # and what the host adds

A variant: tiles of products of few tokens (warps, depth, blocks), which products take them, and
blocks that they are split into; of attention in rings (splits, warps, depth); tokens up to which
kernels overlap, and to which small ones let the next begin early; per cent of a processor's memory
that the program's kernels ask for as shared. None: the kernels in Triton, and the driver's choice.
Own: what lowering itself takes.
"""

import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measure
import numpy as np
from cuda_models import Decoder, TextModel, TextPrograms
from measure import Harness, Model, Weights, contract, contract_of, wire
from models import SHAPES, random_checkpoint, random_weights

from helios_dod.ignition.cuda import lowering, nodes, prepare, tiles
from helios_dod.ignition.cuda.weights import in_e4m3, row_major
from helios_dod.ignition.preparation.builder import Builder
from helios_dod.ignition.preparation.contract import declare_shared
from helios_dod.ignition.preparation.options import PAGE_TOKENS
from helios_dod.limits import MEDIUM

SHARED = ("initialize", f"prefill_{measure.PROMPT}")


@dataclass(frozen=True)
class Variant:
    """Kernels of a decode program."""

    few: tuple[int, int, int] | None = None
    uses: str = "all"  # narrow: of few columns, and of the vocabulary; head: only of that
    blocks: int = 256
    ring: tuple[int, int, int] | None = None
    tile: tuple[int, int, int, int] | None = None  # of attention that is no ring
    vector: tuple[int, int, int] | None = None  # rows, step, warps of one token on e4m3
    overlap: int = 16
    early: int = 1
    shared: int | None = None
    own: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.__dict__.items()
                         if value != getattr(Variant, name)) or "none"

    def takes(self, rows: int, columns: int) -> bool:
        """Whether a product has the tile of few tokens."""
        return self.few is not None and (
            self.uses == "all" or rows >= tiles.MANY_ROWS
            or (self.uses == "narrow" and columns <= tiles.NARROW))


NONE, OWN = Variant(), Variant(own=True)
EIGHT, WIDE = (8, 6, 2), (16, 4, 2)
SHARED_RING = Variant(WIDE, ring=(2, 4, 2), early=16, shared=31)
VECTORS = [replace(OWN, vector=vector) for vector in (
    (2, 4096, 4), (4, 4096, 8), (8, 4096, 8), (4, 2048, 4), (4, 1024, 2), (2, 2048, 2),
    (2, 4096, 2), (8, 2048, 4))]
LATE = [Variant(ring=(1, 4, 3)), Variant(ring=(1, 4, 2)), Variant(tile=(128, 1, 4, 3))]
VARIANTS: dict[int, list[Variant]] = {  # a share of functions stays: what has one comes last
    1: [OWN, *VECTORS], 64: [OWN], 256: [OWN, *LATE],
}
LONG, HOST_STEPS = 300, 100  # steps of what is landed; of a host's time
BARS = (1, 8, 64, 256)  # batches that have them
ALONE = (128, 256)  # batches where the kernels of what is landed are timed alone
CHOICES = ("few_tile", "ring_tile", "decode_tile", "vector_tile")
LANDED: dict[str, Any] = {name: getattr(lowering, name) for name in CHOICES}


def apply(variant: Variant) -> None:
    """Makes lowering use a variant."""
    def few(rows: int, columns: int, tokens: int, split: bool) -> Any:
        if tokens > 16 or not variant.takes(rows, columns):
            return None
        chosen = tiles.FewTile(*variant.few or ())
        splits = tiles.few_splits(rows, columns, chosen.warps, variant.blocks) if split else 1
        return replace(chosen, splits=splits)

    def ring(*_: int) -> tiles.RingTile | None:
        return None if variant.ring is None else tiles.RingTile(*variant.ring)

    changed: Any = lowering
    def tile(*shape: int) -> tiles.DecodeTile:
        return LANDED["decode_tile"](*shape) if variant.tile is None else tiles.DecodeTile(
            *variant.tile, ahead=False)

    def vector(columns: int, gated: bool, item: int = 2) -> tiles.Tile:
        if item == 2 or variant.vector is None:
            return LANDED["vector_tile"](columns, gated, item)
        rows, step, warps = variant.vector
        while columns % step:
            step //= 2
        return tiles.Tile(rows // (1 + gated), 1, step, 1, warps, 2)

    chosen = (*list(LANDED.values())[:-1], vector) if variant.own else (few, ring, tile, vector)
    for name, function in zip(CHOICES, chosen, strict=True):
        setattr(changed, name, function)
    own = variant.own and variant.overlap == Variant.overlap
    nodes.OVERLAP_TOKENS = tiles.OVERLAP_TOKENS if own else variant.overlap
    nodes.OVERLAP_LANES = tiles.OVERLAP_LANES if own else variant.overlap
    own = variant.own and variant.early == Variant.early
    nodes.EARLY_TOKENS = tiles.EARLY_TOKENS if own else variant.early
    nodes.EARLY_EIGHTHS = tiles.EARLY_EIGHTHS if own else variant.early


def save(shape: str, path: str) -> None:
    """Lowers the shared programs, and decode programs in every variant, into one manifest."""
    builder, options = Builder(), measure.options_of(shape)
    shape, _, weight_type = shape.partition("-")
    checkpoint = random_checkpoint(SHAPES[shape])
    shared = declare_shared(builder, options, checkpoint.config.vocabulary)
    decoder = Decoder(builder, shared, checkpoint, options)
    TextPrograms(builder, shared, TextModel(
        decoder.buffers.logits, decoder.embed, decoder.run_layers, decoder.head), options).emit()
    manifest, weights = builder.manifest, row_major(builder.manifest, builder.weights())
    if weight_type == "fp8":
        weights = in_e4m3(manifest, weights)
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
    from helios_dod.executors.cuda.upload import RandomWeights, eighths_of

    manifest, graphs, context, nbytes, vectors = pickle.loads(Path(path).read_bytes())
    read = contract.GraphContract.FromString
    model = Model(wire.ExecutionManifest.FromString(manifest), Weights("weights", nbytes, ()),
                  contract_of([read(graph) for graph in graphs], context), vectors)
    slots = max(VARIANTS)
    harness = Harness(model, CudaExecutor(), slots=slots, pages=slots * 84, limits=MEDIUM,
                      weights={"weights": RandomWeights(nbytes, vectors, eighths_of(
                          model.manifest.buffers))})
    print(f"loaded, {harness.executor.load_ns}", flush=True)
    measure.fill(harness, slots)
    return harness


def logits_of(harness: Harness, name: str, batch: int) -> np.ndarray:
    """Logits of one step whose tokens the host gives, which is taken back."""
    slots = list(range(batch))
    harness.step(name, {slot: [-1] for slot in slots}, batch,
                 {contract.PENDING_TOKEN: [7 * slot + 1 for slot in slots]})
    for slot in slots:
        harness.rows[slot].consumed -= 1
    return harness.logits(batch)


def ask_for(harness: Harness, program: int, share: int | None) -> None:
    """Builds a program's graphs again, with kernels that ask for a share of shared memory, as
    nodes and as functions."""
    from helios_dod.executors.cuda import graphs
    from helios_dod.executors.cuda.driver import call, driver

    executor, manifest = harness.executor, harness.manifest
    body = manifest.cuda_bodies[manifest.programs[program].cuda_body]
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    for node in body.nodes:
        if node.HasField("kernel"):
            call("cuFuncSetAttribute", executor._code.function(node.kernel), attribute,
                 -1 if share is None else share)
    body.ClearField("shared_percent")
    if share is not None:
        body.shared_percent = share
    resolved = graphs.Resolved(executor._code, executor.memory, body)
    for frame in range(2):
        executor.graphs[frame, program].close()
        executor.graphs[frame, program] = graphs.Graph(executor.device, resolved, frame)


def host_time(harness: Harness, shape: str, batch: int, program: int) -> None:
    """Prints what submit and poll add to the same graphs launched back to back."""
    measure.STEPS = HOST_STEPS
    words = harness.world[0]["staging"]["words"]
    words[1 - harness.frame] = words[harness.frame]
    times = [(measure.back_to_back(harness, program, (0, 1)), measure.stepped(harness, program))
             for _ in range(measure.REPETITIONS)]
    alone, whole = np.median(times, axis=0)
    print(f"{shape} {batch}: host {1e3 * (whole - alone):.2f} us a step", flush=True)


def run(shape: str, path: str, host: str = "") -> None:
    """Times every variant, and on demand what the host adds to a step."""
    measure.REPETITIONS = 3
    harness = loaded(path)
    names = [program.name for program in harness.manifest.programs]
    for batch, variants in VARIANTS.items():
        known = None
        for number, variant in enumerate(variants):
            found = logits_of(harness, f"decode_host.{batch}.{number}", batch)
            known = found if known is None else known
            spread = np.sqrt(((found - known) ** 2).mean(axis=1) / (known**2).mean(axis=1))
            program = names.index(f"decode.{batch}.{number}")
            if not variant.own:
                ask_for(harness, program, variant.shared)
            measure.STEPS = LONG if batch in BARS and variant.own else 80
            times = [measure.back_to_back(harness, program, (harness.frame,))
                     for _ in range(measure.REPETITIONS)]
            print(f"{shape} {batch} {variant}: {np.median(times):.4f} ({min(times):.4f}-"
                  f"{max(times):.4f}) ms, off {spread.max():.4f}", flush=True)
        landed = names.index(f"decode.{batch}.{variants.index(OWN)}")
        if host and batch in (1, 64):
            host_time(harness, shape, batch, landed)
        if batch in ALONE:
            measure.profile(harness, landed)
    harness.close()


if __name__ == "__main__":
    {"save": save, "run": run}[sys.argv[1]](*sys.argv[2:])

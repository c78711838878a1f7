"""Tiles of decode attention, timed in whole steps beside each other: kernels that follow one
another overlap, so a kernel alone says little.

    python perf/h200/variants.py 8b        # batch 1, 8 and 64; columns as DecodeTile's fields
"""

import contextlib
import io
import multiprocessing
import pickle
import sys
import tempfile
from pathlib import Path

import measure
import numpy as np
from measure import Harness, Model, Weights, contract, contract_of, wire
from models import SHAPES, build, random_checkpoint, random_weights

from helios_dod.ignition.cuda import lowering
from helios_dod.ignition.cuda.tiles import DecodeTile
from helios_dod.limits import MEDIUM

PROGRAMS = ("initialize", "prefill_512", "decode_1", "decode_8", "decode_64")
# tokens, splits, warps, stages, ahead
TILES: dict[int, tuple[tuple[int, int, int, int, bool], ...]] = {
    1: ((64, 32, 4, 1, True), (64, 16, 8, 1, True), (32, 32, 4, 1, True), (64, 32, 4, 1, False)),
    8: ((64, 8, 4, 1, True), (64, 8, 4, 1, False), (64, 4, 8, 3, False), (64, 4, 4, 3, False)),
    64: ((64, 1, 2, 3, False), (128, 1, 4, 2, False), (64, 1, 4, 3, False), (64, 1, 2, 4, False)),
}


def make(task: tuple[str, int, str]) -> str:
    """Lowers the few programs with variant number `variant` of each batch's tiles into a file."""
    shape, variant, path = task
    chosen = lowering.decode_tile
    whole = lowering.Lowering.program

    def tile(lanes: int, key_heads: int, head: int) -> DecodeTile:
        return DecodeTile(*TILES[lanes][variant]) if lanes in TILES else chosen(
            lanes, key_heads, head)

    def some(self, program, *rest) -> None:
        if program.name in PROGRAMS:
            whole(self, program, *rest)

    lowering.decode_tile, lowering.Lowering.program = tile, some  # type: ignore[method-assign]
    model = build(random_checkpoint(SHAPES[shape]), measure.options_of(shape), cuda=True)
    graphs = [graph.SerializeToString() for graph in model.contract.model.graphs]
    Path(path).write_bytes(pickle.dumps((
        model.manifest.SerializeToString(), graphs, model.contract.context_tokens,
        model.weights.nbytes, random_weights(model).vectors)))
    return path


def loaded(path: str) -> Harness:
    """The programs of a file on the device, 64 slots at the context."""
    from helios_dod.executors.cuda.executor import CudaExecutor
    from helios_dod.executors.cuda.upload import RandomWeights

    manifest, graphs, context, nbytes, vectors = pickle.loads(Path(path).read_bytes())
    read = contract.GraphContract.FromString
    model = Model(wire.ExecutionManifest.FromString(manifest), Weights("weights", nbytes, ()),
                  contract_of([read(graph) for graph in graphs], context), vectors)
    numbers = tuple(i for i, program in enumerate(model.manifest.programs)
                    if program.name in PROGRAMS)
    harness = Harness(model, CudaExecutor(programs=numbers), slots=64, pages=64 * 84,
                      limits=MEDIUM, weights={"weights": RandomWeights(nbytes, vectors)})
    generator = np.random.default_rng(1)
    for slot in range(64):
        harness.admit(slot)
        for _ in range(measure.CONTEXT // 512):
            harness.prefill({slot: generator.integers(0, 128_000, 512).tolist()})
    return harness


def attention_us(harness: Harness, program: int) -> str:
    """Microseconds of the kernels of attention, each alone."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        measure.profile(harness, program)
    lines = [line.split() for line in text.getvalue().splitlines()]
    return " + ".join(f"{line[3]} us" for line in lines
                      if line[0].startswith(("decode_attention", "combine")))


def main() -> None:
    """Compiles every variant in processes of its own, then times them one after the other."""
    shape = sys.argv[1]
    measure.STEPS, measure.REPETITIONS = 200, 3
    with tempfile.TemporaryDirectory() as folder:
        tasks = [(shape, variant, f"{folder}/{variant}") for variant in range(len(TILES[1]))]
        with multiprocessing.get_context("spawn").Pool(len(tasks), maxtasksperchild=1) as pool:
            paths = pool.map(make, tasks, chunksize=1)
        known: dict[int, np.ndarray] = {}
        for variant, path in enumerate(paths):
            harness = loaded(path)
            names = [program.name for program in harness.manifest.programs]
            for batch, tiles in TILES.items():
                harness.decode(list(range(batch)))
                logits = harness.logits(batch)
                error = logits - known.setdefault(batch, logits)
                spread = np.sqrt((error**2).mean() / (logits**2).mean())
                number = names.index(f"decode_{batch}")
                times = measure.back_to_back(harness, number)
                print(f"{shape} batch {batch} tile {tiles[variant]}: {np.median(times):.4f} ms "
                      f"({min(times):.4f} to {max(times):.4f}), "
                      f"alone {attention_us(harness, number)}; logits within {spread:.4f} of the "
                      f"first's", flush=True)
            harness.close()


if __name__ == "__main__":
    main()

"""Checks and times the CUDA executor on a GPU, with random weights.

    python perf/h200/measure.py check                  # against plain float32, batch invariance
    python perf/h200/measure.py decode 8b 1 8:300 64   # step times at context 1,024; 300 steps of 8
    python perf/h200/measure.py prefill 8b             # one prompt of 4,096 tokens, eight of 512
    python perf/h200/measure.py save 8b FILE           # prepares a manifest, no GPU needed
    python perf/h200/measure.py upload 8               # GiB of weights from memory to the device
"""

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

from host_harness import Harness
from models import (
    SHAPES,
    Model,
    build,
    contract_of,
    random_checkpoint,
    random_weights,
)
from plain_device import PlainDevice

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.mapped import MappedFile
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.prepared import Weights
from helios_dod.limits import MEDIUM

PEAK = 4657e9  # bytes a second of a plain read sweep
MATRIX = 790e12  # bf16 operations a second of a large product
PROMPT = 4096  # tokens of a prefill that is timed,
PROMPTS = 8  # so often at once
CONTEXT = 1024
STEPS = int(os.environ.get("STEPS", "1000"))
REPETITIONS = 3


def options_of(name: str) -> Options:
    """Capacities of a shape's programs."""
    if name[:2] in ("8b", "1b"):
        lanes = int(os.environ.get("LANES", "256"))
        packed = tuple(int(text) for text in os.environ.get("PACKED", f"512,{PROMPT}").split(","))
        return Options(lanes=lanes, context=8192, packed=packed)
    return Options(lanes=16, context=2048, packed=(64,))


LARGE = ("product", "gated_product", "wide_product", "wide_gated_product", "attention",
         "vector_product", "gated_vector_product")


def separate(model: Model, policy: str) -> Model:
    """The same programs with fewer kernels that overlap: `none`, or only `small` ones."""
    for body in model.manifest.cuda_bodies:
        for edge in body.edges:
            large = body.nodes[edge.after].kernel.entry in LARGE
            edge.overlap = edge.overlap and policy == "small" and not large
    return model


def prepared(name: str) -> Model:
    """A shape's CUDA programs: from a saved file where there is one, else built now."""
    saved = ROOT / ".cuda" / f"{name}.pickle"
    if saved.exists():
        manifest, graphs, context, nbytes, vectors = pickle.loads(saved.read_bytes())
        read = contract.GraphContract.FromString
        return Model(wire.ExecutionManifest.FromString(manifest), Weights("weights", nbytes, ()),
                     contract_of([read(graph) for graph in graphs], context), vectors)
    return made(name)


def made(name: str) -> Model:
    """A shape's CUDA programs; of NAME-fp8 with weights in e4m3, of NAME-fp8-head that of the head
    too. LANES: of the environment, 256 without it."""
    shape, _, weight_type = name.partition("-")
    return build(random_checkpoint(SHAPES[shape]), options_of(name), cuda=True,
                 weight_type=weight_type or "bf16")


def check(names: Sequence[str]) -> None:
    """Logits of every kind of program against float32, and bitwise batch invariance."""
    from helios_dod.executors.cuda.executor import CudaExecutor

    for name in names:
        checkpoint = random_checkpoint(SHAPES[name])
        host, cuda = (build(checkpoint, options_of(name), cuda=c) for c in (False, True))
        plain = Harness(host, PlainDevice(), slots=16, pages=512)
        device = Harness(cuda, CudaExecutor(), slots=16, pages=512)
        print(name, "load ns", device.executor.load_ns, flush=True)
        prompt = np.random.default_rng(3).integers(0, 5000, 50).tolist()
        for harness in (plain, device):
            harness.admit(slot=2)
        a, sa = plain.scored(2, prompt)
        b, sb = device.scored(2, prompt)
        report(f"{name} scored logits", a, b)
        print(f"{name} scores: largest difference {np.abs(sa - sb).max():.4f}")
        for harness in (plain, device):
            harness.admit(slot=2)
            harness.found = [int(harness.prefill({2: prompt})[0])]
        report(f"{name} prefill logits", plain.logits(1), device.logits(1))
        for _ in range(24):
            forced = plain.found[-1]
            for harness in (plain, device):
                harness.found.append(int(harness.decode_host({2: forced})[0]))
        report(f"{name} decode logits", plain.logits(1), device.logits(1))
        same = sum(x == y for x, y in zip(plain.found, device.found, strict=True))
        print(f"{name} greedy, forced: {same} of {len(plain.found)} equal")
        invariance(name, device, prompt)
        device.close()


def report(what: str, a: np.ndarray, b: np.ndarray) -> None:
    """Difference relative to the spread of the reference."""
    error = np.abs(a - b).max() / np.abs(a).max()
    rms = np.sqrt(((a - b) ** 2).mean() / (a**2).mean())
    print(f"{what}: largest {error:.4f} of the largest logit, rms {rms:.4f}", flush=True)


def invariance(name: str, device: Harness, prompt: list[int]) -> None:
    """Logits of one request alone and beside fifteen others, in the same program."""
    generator = np.random.default_rng(5)
    kept = []
    for others in (range(0), range(1, 16)):
        for slot in (0, *others):
            device.admit(slot)
        if others:
            lengths = {slot: generator.integers(0, 5000, 1 + slot % 4).tolist()
                       for slot in others}
            device.prefill(lengths)
        device.prefill({0: prompt})
        rows = [*others, 0]
        for _ in range(5):
            device.step("decode_16", {slot: [-1] for slot in rows}, len(rows))
        kept.append(device.logits(len(rows))[-1])
        for slot in list(device.rows):
            device.release(slot)
    print(f"{name} batch invariance, bitwise: {np.array_equal(*kept)}", flush=True)


def loaded(name: str, slots: int) -> Harness:
    """A shape on the device with random weights."""
    from helios_dod.executors.cuda.executor import CudaExecutor
    from helios_dod.executors.cuda.upload import RandomWeights, eighths_of

    model = prepared(name)
    if "OVERLAP" in os.environ:
        separate(model, os.environ["OVERLAP"])
    weights = random_weights(model) if model.vectors is None else RandomWeights(
        model.weights.nbytes, model.vectors, eighths_of(model.manifest.buffers))
    started = time.monotonic()
    harness = Harness(model, CudaExecutor(), slots=256, pages=max(slots * 84, 1024), limits=MEDIUM,
                      weights={"weights": weights})
    load = {key: f"{value / 1e6:.0f} ms" for key, value in harness.executor.load_ns.items()}
    graphs = harness.executor.graphs
    print(f"{name}: load {time.monotonic() - started:.2f} s, {load}, {len(graphs)} graphs of "
          f"{sum(graph.nodes for graph in graphs.values())} nodes", flush=True)
    return harness


def decode(name: str, wanted: Sequence[str]) -> None:
    """Step times of decode at the context, and what each kernel takes of them. wanted: batches,
    each with `:STEPS` for others than the environment's."""
    pairs = [word.partition(":")[::2] for word in wanted]
    batches = {int(batch): int(steps or STEPS) for batch, steps in pairs}
    harness = loaded(name, max(batches))
    fill(harness, max(batches))
    for batch, steps in batches.items():
        slots = list(range(batch))
        for _ in range(3):
            harness.decode(slots)
        number = [p.name for p in harness.manifest.programs].index(f"decode_{batch}")
        frame, times = harness.frame, np.zeros((2, REPETITIONS))
        words = harness.world[0]["staging"]["words"]
        words[1 - frame] = words[frame]
        for repetition in range(REPETITIONS):
            times[:, repetition] = (
                back_to_back(harness, number, (0, 1), steps),
                stepped(harness, number, steps=steps))
        both, each = np.median(times, axis=1)
        print(f"{name} batch {batch}: graphs {both:.3f} ms ({times[0].min():.3f} to "
              f"{times[0].max():.3f}), stepped {each:.3f} ms ({times[1].min():.3f} to "
              f"{times[1].max():.3f}), host {1e3 * np.median(times[1] - times[0]):.2f} us a step; "
              f"{steps} steps; floor {floor_ms(harness, batch):.3f} ms", flush=True)
        if "PROFILE" in os.environ:
            profile(harness, number)
    harness.close()


def fill(harness: Harness, slots: int) -> None:
    """Histories of CONTEXT tokens in so many slots."""
    generator, at_once = np.random.default_rng(1), PROMPT // CONTEXT
    for slot in range(slots):
        harness.admit(slot)
    for first in range(0, slots, at_once):
        harness.prefill({slot: generator.integers(0, 128_000, CONTEXT).tolist()
                         for slot in range(first, min(first + at_once, slots))})


def prefill(name: str) -> None:
    """Times of the programs of 512 and PROMPT tokens: one prompt, and eight of a program."""
    harness = loaded(name, 1)
    generator = np.random.default_rng(1)
    for packed in (512, PROMPT):
        for lanes in (1, 8):
            for slot in range(lanes):
                harness.admit(slot)
            harness.prefill({slot: generator.integers(0, 128_000, packed // lanes).tolist()
                             for slot in range(lanes)})
            number = [p.name for p in harness.manifest.programs].index(f"prefill_{packed}")
            times = [back_to_back(harness, number, (harness.frame,), PROMPTS)
                     for _ in range(REPETITIONS)]
            operations = prefill_operations(harness, packed, lanes)
            print(f"{name} prefill, {lanes} of {packed // lanes}: {np.median(times):.3f} ms "
                  f"({min(times):.3f} to {max(times):.3f}), "
                  f"{operations / np.median(times) / 1e9:.0f} TFLOP/s; floor "
                  f"{operations / MATRIX * 1e3:.2f} ms", flush=True)
            for slot in range(lanes):
                harness.release(slot)
        if "PROFILE" in os.environ:
            profile(harness, number)
    harness.close()


def prefill_operations(harness: Harness, packed: int, lanes: int) -> float:
    """Operations of the products of all packed tokens, of causal attention, and of the head for
    each lane's last."""
    matrices = {buffer.name: buffer.shape[0].multiplier * buffer.shape[1].multiplier
                for buffer in harness.manifest.buffers
                if buffer.kind == wire.WEIGHT and len(buffer.shape) == 2}
    head = matrices.pop("head.weight", 0) or matrices["embedding.weight"]
    matrices.pop("embedding.weight", None)
    query = next(buffer.shape[1].multiplier for buffer in harness.manifest.buffers
                 if buffer.name == "query.bf16")
    layers = sum(buffer.kind == wire.CACHE for buffer in harness.manifest.buffers) // 2
    return 2.0 * (packed * sum(matrices.values()) + lanes * head
                  + layers * query * packed * packed / lanes)


def floor_ms(harness: Harness, batch: int) -> float:
    """Milliseconds that reading the weights of a step and the history takes at PEAK."""
    manifest = harness.manifest
    sizes = {buffer.name: buffer.resource_nbytes for buffer in manifest.buffers}
    weights = harness.prepared.weights.nbytes
    if "head.weight" in sizes:  # of the embedding only a few rows are read
        weights -= sizes["embedding.weight"]
    history = harness.executor.page_bytes() // harness.geometry.page_tokens * CONTEXT * batch
    return (weights + history) / PEAK * 1e3


def back_to_back(harness: Harness, program: int, frames: Sequence[int], steps: int = 0) -> float:
    """Milliseconds of one launch among so many (0: STEPS) of these frames' graphs in turn, by
    events."""
    from helios_dod.executors.cuda.driver import call

    executor = harness.executor
    graphs = [executor.graphs[frame, program].handle for frame in frames]
    executor.drain()
    start, end = call("cuEventCreate", 0), call("cuEventCreate", 0)
    stream = executor._stream
    call("cuEventRecord", start, stream)
    steps = steps or STEPS
    for step in range(steps):
        call("cuGraphLaunch", graphs[step % len(graphs)], stream)
        executor._queued.append(harness.sequence)
        executor._control[0] += 1
    call("cuEventRecord", end, stream)
    call("cuEventSynchronize", end)
    span = call("cuEventElapsedTime", start, end) / steps
    executor.drain()
    for event in (start, end):
        call("cuEventDestroy", event)
    return float(span)


def stepped(harness: Harness, program: int, between: Callable[[], None] = lambda: None,
            steps: int = 0) -> float:
    """Milliseconds a step of so many (0: STEPS), with submit and poll and two frames in flight.
    between: called while the device works, again and again."""
    executor, frame = harness.executor, harness.frame
    executor.drain()
    begun = time.monotonic()
    first, steps = harness.sequence, steps or STEPS
    for i in range(steps):
        harness.sequence += 1
        executor.submit((frame + i) % 2, program, harness.sequence)
        while executor.poll() < harness.sequence - 1 and harness.sequence - 1 > first:
            between()
    while executor.poll() < harness.sequence:
        between()
    return (time.monotonic() - begun) / steps * 1e3


def upload_rate(gibibytes: int) -> None:
    """GB/s of weights from a mapped file, with each count of threads."""
    with tempfile.NamedTemporaryFile() as file:
        block = np.random.default_rng(0).integers(0, 256, 1 << 26, dtype=np.uint8)
        for number in range(gibibytes << 4):
            block[:8] = number % 256
            file.write(block)
        file.flush()
        timed_uploads(np.frombuffer(MappedFile(file.fileno(), gibibytes << 30), np.uint8))


def timed_uploads(data: np.ndarray) -> None:
    """The same of one mapped file in the page cache, which is compared afterwards."""
    from helios_dod.executors.cuda import upload as uploads
    from helios_dod.executors.cuda.driver import Device, call

    Device()
    address = int(call("cuMemAlloc", data.nbytes))
    chosen = uploads.CHUNK_BYTES >> 10, uploads.THREADS_MAX
    for kibibytes, threads in (chosen, chosen, (2048, 11), (1024, 8), (2048, 8), chosen):
        uploads.THREADS_MAX, uploads.CHUNK_BYTES = threads, kibibytes << 10
        spans = []
        for _ in range(6):
            begun = time.monotonic()
            uploads.upload(data, address)
            spans.append(time.monotonic() - begun)
        rates = data.nbytes / np.array(spans[1:]) / 1e9  # the first compiles
        print(f"upload, {kibibytes} KiB, {threads} threads: {rates.max():.1f} GB/s best, "
              f"{np.median(rates):.1f} median, {rates.min():.1f} worst", flush=True)
    back = np.empty(1 << 24, np.uint8)
    call("cuMemsetD8", address, 0, data.nbytes)
    uploads.upload(data, address)
    for start in range(0, data.nbytes - back.nbytes + 1, data.nbytes // 16):
        call("cuMemcpyDtoH", back.ctypes.data, address + start, back.nbytes)
        assert np.array_equal(back, data[start : start + back.nbytes]), "uploaded bytes differ"
    pinned = int(call("cuMemHostAlloc", 1 << 30, 1))
    for _ in range(2):
        begun = time.monotonic()
        for _ in range(4):
            call("cuMemcpyHtoD", address, pinned, 1 << 30)
        rate = 4 * (1 << 30) / (time.monotonic() - begun) / 1e9
    print(f"pinned copy: {rate:.1f} GB/s")


def profile(harness: Harness, program: int) -> None:
    """Microseconds of each kernel of a program, run by itself in one graph of all its nodes."""
    from helios_dod.executors.cuda.driver import call
    from helios_dod.executors.cuda.graphs import Graph, Resolved

    executor, manifest = harness.executor, harness.manifest
    body = manifest.cuda_bodies[manifest.programs[program].cuda_body]
    groups: dict[str, Any] = {}
    for node in body.nodes:
        name = "ingest"
        if node.WhichOneof("node") == "kernel":
            module = manifest.modules[node.kernel.module].name
            name = module if node.kernel.entry != "signal" else ""
        if name:
            one = groups.setdefault(name, wire.CudaBody())
            if body.HasField("shared_percent"):
                one.shared_percent = body.shared_percent
            one.nodes.add().CopyFrom(node)
            if len(one.nodes) > 1:
                one.edges.add(before=len(one.nodes) - 2, after=len(one.nodes) - 1)
    start, end = call("cuEventCreate", 0), call("cuEventCreate", 0)
    lines = []
    for name, one in groups.items():
        resolved = Resolved(executor._code, executor.memory, one)
        graph = Graph(executor.device, resolved, harness.frame)
        times = []
        for _ in range(6):
            call("cuEventRecord", start, executor._stream)
            call("cuGraphLaunch", graph.handle, executor._stream)
            call("cuEventRecord", end, executor._stream)
            call("cuEventSynchronize", end)
            times.append(call("cuEventElapsedTime", start, end) * 1e3)
        count = len(one.nodes)
        grid = tuple(one.nodes[0].kernel.grid) if count else ()
        lines.append((float(np.median(times)), name, count, grid))
        graph.close()
    for total, name, count, grid in sorted(lines, reverse=True):
        print(f"    {name:24} {count:3} nodes {total / count:8.2f} us each {total:8.1f} us "
              f"grid {grid}")


def save(name: str, path: str) -> None:
    """Prepares a shape's programs without a GPU."""
    model = made(name)
    vectors = random_weights(model).vectors
    graphs = [graph.SerializeToString() for graph in model.contract.model.graphs]
    Path(path).write_bytes(pickle.dumps((
        model.manifest.SerializeToString(), graphs, model.contract.context_tokens,
        model.weights.nbytes, vectors)))
    print(f"{path}: {Path(path).stat().st_size} bytes")


def main() -> None:
    """Runs one command."""
    command, *rest = sys.argv[1:]
    if command == "check":
        check(rest or ["small", "windowed"])
    elif command == "decode":
        decode(rest[0], rest[1:])
    elif command == "prefill":
        prefill(rest[0])
    elif command == "upload":
        upload_rate(int(rest[0]))
    elif command == "save":
        save(rest[0], rest[1])


if __name__ == "__main__":
    main()

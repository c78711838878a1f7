"""The CUDA executor on a GPU: equal to plain float32 within bf16, bitwise batch invariance."""

import mmap
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cuda_models import SMALL_SHAPES, build, random_checkpoint, rounded
from host_harness import Harness
from plain_device import E4M3, PlainDevice

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.executors.base import DeviceError
from helios_dod.ignition.checkpoints.checkpoint import Rotary
from helios_dod.ignition.cuda import tiles
from helios_dod.ignition.preparation.options import Options
from helios_dod.limits import MEDIUM, SMALL
from helios_dod.terms import COPY_FETCH, COPY_OFFLOAD, COPY_RESTORE, COPY_SINK
from helios_dod.world import boot, dtype_of

pytest.importorskip("triton", reason="kernels are compiled by Triton")
OPTIONS = Options(lanes=32, context=2048, packed=(64,))
WIDE = Options(lanes=128, context=2048, packed=(1024,))
LOGITS_RMS = 2e-2  # relative, of bf16 against float32


def gpu_count() -> int:
    """GPUs that the driver sees."""
    try:
        from cuda.bindings import driver

        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return 0
        return driver.cuDeviceGetCount()[1]
    except (ImportError, OSError, RuntimeError):
        return 0


pytestmark = [pytest.mark.cuda,
              pytest.mark.skipif(gpu_count() == 0, reason="no NVIDIA GPU here")]


def executor():
    from helios_dod.executors.cuda.executor import CudaExecutor

    return CudaExecutor()


@pytest.fixture(scope="module", params=sorted(SMALL_SHAPES))
def pair(request):
    """A plain device and a CUDA one with the same weights."""
    checkpoint = random_checkpoint(SMALL_SHAPES[request.param])
    plain = Harness(build(checkpoint, OPTIONS, cuda=False), PlainDevice(), slots=32, pages=1024)
    device = Harness(build(checkpoint, OPTIONS, cuda=True), executor(), slots=32, pages=1024)
    yield plain, device
    device.close()


def near(a, b):
    return np.sqrt(((a - b) ** 2).mean() / (a**2).mean()) < LOGITS_RMS


def test_logits_of_every_kind_of_program(pair):
    prompt = np.random.default_rng(3).integers(0, 5000, 50).tolist()
    found = {}
    for harness in pair:
        harness.admit(slot=2)
        logits, scores = harness.scored(2, prompt)
        harness.admit(slot=2)
        harness.prefill({2: prompt[:40]})
        harness.mixed({2: prompt[40:]})
        after = harness.logits(1)
        for token in (7, 9, 11):
            harness.decode_host({2: token})
        found[harness] = logits, scores, after, harness.logits(1)
    for plain, cuda in zip(found[pair[0]], found[pair[1]], strict=True):
        assert near(plain, cuda)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 130, 400])
def test_decode_behind_histories_of_every_length(pair, length):
    """The new position is the first or last of a page, and the history ends in any split."""
    prompt = np.random.default_rng(length).integers(0, 5000, length).tolist()
    for harness in pair:
        for slot in (1, 3):
            harness.admit(slot)
            for start in range(0, length, 64):
                harness.prefill({slot: prompt[start : start + 64]})
        for token in (8, 9, 10):
            harness.decode_host({1: token})
    assert near(*(harness.logits(1) for harness in pair))
    for harness in pair:
        harness.decode_host({1: 11, 3: 12})
    assert near(*(harness.logits(2) for harness in pair))
    for harness in pair:
        for slot in list(harness.rows):
            harness.release(slot)


def test_log_probabilities_are_those_of_the_logits(pair):
    device = pair[1]
    device.admit(slot=4, top_logprobs=5)
    token = int(device.prefill({4: [3, 1, 4, 1, 5]})[0])
    logits = device.logits(1)[0].astype(np.float64)
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    record, frame = device.world[0]["completions"], device.frame
    assert abs(record["logprob"][frame][:1].view(np.float32)[0] - expected[token]) < 1e-4
    best = np.argsort(-logits, kind="stable")[:5]
    assert record["top_tokens"][frame][0][:5].tolist() == best.tolist()
    found = record["top_logprobs"][frame][0][:5].view(np.float32)
    assert np.abs(found - expected[best]).max() < 1e-4


def test_companions_do_not_change_a_request(pair):
    device = pair[1]
    prompt = np.random.default_rng(4).integers(0, 5000, 50).tolist()
    kept = []
    for others in (range(0), range(1, 16)):
        for slot in (0, *others):
            device.admit(slot)
        if others:
            device.prefill({slot: [slot] * (1 + slot % 4) for slot in others})
        device.prefill({0: prompt})
        rows = [*others, 0]
        for _ in range(5):
            device.step("decode_16", {slot: [-1] for slot in rows}, len(rows))
        kept.append(device.logits(len(rows))[-1])
        for slot in list(device.rows):
            device.release(slot)
    assert np.array_equal(*kept)


def check_contained(device):
    """A row that is not finite ends alone: the others keep the bits of their logits."""
    from helios_dod.executors.cuda.driver import call

    kept = []
    for poisoned in (False, True):
        for slot in range(4):
            device.admit(slot)
            device.prefill({slot: [slot + 5] * 20})
        if poisoned:
            page = int(device.buffer("page_table")[2, 0])
            plane = device.executor.memory.caches()[0]
            call("cuMemsetD16", plane.address[0] + page * plane.row_bytes, 0x7FC0,
                 plane.row_bytes // 2)
            call("cuCtxSynchronize")
        device.decode([0, 1, 2, 3])
        status = device.world[0]["completions"]["status"][device.frame][:4].tolist()
        kept.append(device.logits(4)[[0, 1, 3]])
        for slot in range(4):
            device.release(slot)
    assert status == [0, 0, 3, 0] and np.array_equal(*kept)


def test_a_row_that_is_not_finite_ends_alone(pair):
    check_contained(pair[1])


def test_stops_limits_and_bias_are_the_devices(pair):
    device = pair[1]
    device.admit(slot=1, output_limit=2)
    device.prefill({1: [4, 5, 6]})
    device.decode([1])
    assert device.world[0]["completions"]["status"][device.frame][0] == 2
    device.admit(slot=1, bias_count=1, bias_tokens=[77], bias_values=[1e6],
                 stop_tokens=[77] + [-1] * 7)
    assert device.prefill({1: [4, 5, 6]})[0] == 77
    assert device.world[0]["completions"]["status"][device.frame][0] == 1


def test_a_mask_leaves_what_it_allows(pair):
    device, allowed = pair[1], np.array([5, 31, 32, 997, 4999])
    words = np.zeros(-(-device.buffer("logits").shape[1] // 32), np.uint32)
    np.bitwise_or.at(words, allowed // 32, np.uint32(1) << (allowed % 32).astype(np.uint32))
    mask = {contract.GRAMMAR_MASK: words}
    device.admit(slot=3)
    device.prefill({3: [9, 8, 7]})
    best = allowed[device.logits(1)[0][allowed].argmax()]
    device.admit(slot=3)
    assert device.step("prefill_64_masked", {3: [9, 8, 7]}, 1, mask)[0] == best
    logits = device.logits(1)[0]
    assert np.isfinite(logits).nonzero()[0].tolist() == allowed.tolist()
    device.admit(slot=3, temperature=5.0, seed=4)
    device.prefill({3: [9, 8, 7]})
    for name in ("decode_1_masked", "decode_16_masked"):
        assert device.step(name, {3: [-1]}, 1, mask)[0] in allowed
    everything = device.step("decode_1_masked", {3: [-1]}, 1)
    assert np.isfinite(device.logits(1)).all() and everything[0] >= 0


def test_products_of_many_columns_agree_with_plain(monkeypatch):
    """One token and sixteen have other kernels than where columns are few."""
    monkeypatch.setattr(tiles, "NARROW", 256)
    checkpoint = random_checkpoint(SMALL_SHAPES["windowed"])
    plain = Harness(build(checkpoint, OPTIONS, cuda=False), PlainDevice(), slots=16, pages=64)
    device = Harness(build(checkpoint, OPTIONS, cuda=True), executor(), slots=16, pages=64)
    for harness in (plain, device):
        for slot in range(16):
            harness.admit(slot)
            harness.prefill({slot: [slot + 1, 5, 9]})
    for batch in (1, 16):
        for harness in (plain, device):
            harness.decode_host({slot: 7 + slot for slot in range(batch)})
        assert near(plain.logits(batch), device.logits(batch))
    device.close()


def test_eight_lanes_of_wide_rows_beside_a_share_agree_with_plain(monkeypatch):
    """Their products have other tiles than narrow rows, and kernels ask for shared memory."""
    from helios_dod.executors.cuda import graphs

    asked, ask = [], graphs._ask_for_shared

    def asking(node, percent):
        ask(node, percent)
        asked.append(graphs.call("cuGraphKernelNodeGetAttribute", node, graphs.driver
            .CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
            .sharedMemCarveout)

    monkeypatch.setattr(graphs, "_ask_for_shared", asking)
    checkpoint = random_checkpoint(replace(
        SMALL_SHAPES["small"], layers=1, windows=(0,), hidden=2048, heads=16, key_heads=4, head=128,
        intermediate=4096, vocabulary=5000, rotary=Rotary(10_000.0, 128)))
    options = replace(OPTIONS, lanes=8)
    plain = Harness(build(checkpoint, options, cuda=False), PlainDevice(), slots=8, pages=64)
    device = Harness(build(checkpoint, options, cuda=True), executor(), slots=8, pages=64)
    assert asked and set(asked) == {tiles.SHARE_PERCENT}
    for harness in (plain, device):
        for slot in range(8):
            harness.admit(slot)
            harness.prefill({slot: list(range(slot, 7 * slot + 4))})
    for batch in (5, 8):
        for harness in (plain, device):
            harness.decode_host({slot: 7 + slot for slot in range(batch)})
        for row in range(batch):
            assert near(plain.logits(batch)[row], device.logits(batch)[row]), (batch, row)
    device.close()


@pytest.fixture(scope="module", params=sorted(SMALL_SHAPES))
def wide_pair(request):
    """Programs of many tokens and of many lanes."""
    checkpoint = random_checkpoint(SMALL_SHAPES[request.param])
    places = dict(slots=128, pages=4096, limits=MEDIUM)
    plain = Harness(build(checkpoint, WIDE, cuda=False), PlainDevice(), **places)
    device = Harness(build(checkpoint, WIDE, cuda=True), executor(), **places)
    yield plain, device
    device.close()


def test_many_tokens_of_several_lanes_agree_with_plain(wide_pair):
    """Lanes begin and end within tiles; the second time behind histories, one lane without."""
    rng = np.random.default_rng(6)
    for lengths in ({0: 700, 1: 1, 2: 290}, {2: 513, 3: 33, 0: 129, 1: 17}):
        parts = {slot: rng.integers(0, 5000, length).tolist() for slot, length in lengths.items()}
        for harness in wide_pair:
            for slot in parts:
                if slot not in harness.rows:
                    harness.admit(slot)
            harness.prefill(parts)
        plain, cuda = (harness.logits(len(parts)) for harness in wide_pair)
        for row in range(len(parts)):
            assert near(plain[row], cuda[row]), (lengths, row)


def test_many_lanes_agree_with_plain(wide_pair):
    lengths = np.random.default_rng(7).integers(1, 15, 100)
    for harness in wide_pair:
        for slot in range(len(lengths)):
            harness.admit(slot)
        for first in (0, 50):
            harness.prefill({slot: [slot + 3] * int(lengths[slot])
                             for slot in range(first, first + 50)})
        harness.decode_host({slot: 7 + slot for slot in range(100)})
    plain, cuda = (harness.logits(100) for harness in wide_pair)
    for row in range(100):
        assert near(plain[row], cuda[row]), row


EIGHTHS_RMS = 0.2  # relative: these models make 0.11 of noise of 0.002 in front of the rounding
BF16_RMS = 4e-3


@pytest.fixture(scope="module", params=["small", "windowed"])
def eighths(request):
    """Weights in e4m3: a plain device that rounds as they do, and a CUDA one."""
    checkpoint = random_checkpoint(SMALL_SHAPES[request.param])
    places = dict(slots=128, pages=2048, limits=MEDIUM)
    options = replace(WIDE, packed=(64, 256))
    plain = Harness(build(rounded(checkpoint), options, cuda=False), PlainDevice(eighths=True),
                    **places)
    device = Harness(build(checkpoint, options, cuda=True, weight_type="fp8"), executor(), **places)
    yield plain, device
    device.close()


def eighth_rows(device, name, rows):
    """Rows of the e4m3 twin of a buffer."""
    return E4M3[device.buffer(f"{name}.e4m3")[:rows]].astype(np.float64) * device.buffer(
        f"{name}.scale")[:rows, None]


def bf16_rows(device, name, rows):
    """Rows of the bf16 twin of a buffer."""
    bits = device.buffer(f"{name}.bf16")[:rows].astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


def relative(plain, found):
    return float(np.sqrt(((plain - found) ** 2).mean() / (plain**2).mean()))


def test_one_token_on_weights_in_e4m3_agrees_with_plain(eighths):
    """From its first token on, so that no row is rounded to e4m3."""
    for harness in eighths:
        harness.admit(5)
        for token in (9, 30, 2000, 77):
            harness.decode_host({5: token})
    assert near(*(harness.logits(1) for harness in eighths))


@pytest.mark.parametrize("lengths", [[40, 3], [200, 1, 50]])
def test_programs_in_e4m3_are_near_plain(eighths, lengths):
    parts = {slot: np.random.default_rng(slot).integers(0, 5000, length).tolist()
             for slot, length in enumerate(lengths)}
    for harness in eighths:
        for slot in parts:
            harness.admit(slot)
        harness.prefill(parts)
    for plain, found in zip(*(harness.logits(len(parts)) for harness in eighths), strict=True):
        assert relative(plain, found) < EIGHTHS_RMS
    for harness in eighths:
        harness.decode_host({slot: 7 + slot for slot in parts})
    for plain, found in zip(*(harness.logits(len(parts)) for harness in eighths), strict=True):
        assert relative(plain, found) < EIGHTHS_RMS


def test_rows_are_rounded_to_e4m3_with_a_factor_each(eighths):
    device = eighths[1]
    device.admit(6)
    device.prefill({6: list(range(100, 150))})
    exact, found = bf16_rows(device, "activated", 1), eighth_rows(device, "activated", 1)
    scale = device.buffer("activated.scale")[0]
    assert np.isclose(scale, np.abs(exact).max() / 448)
    assert (np.abs(found - exact) <= np.maximum(np.abs(exact) / 15.9, scale / 500)).all()


@pytest.mark.parametrize("packed", [64, 256])
def test_products_in_e4m3_are_those_of_float64(eighths, packed):
    """The last layer's, of the rows and weights that the device has; of few tokens and of many."""
    device = eighths[1]
    for slot in range(3):
        device.admit(slot)
    device.step(f"prefill_{packed}", {slot: list(range(slot, slot + 9)) for slot in range(3)}, 3)
    weights = {buffer.name: buffer for buffer in device.manifest.buffers
               if buffer.name.startswith("layers.2.")}
    whole = device.prepared.weights.assemble()

    def matrix(name):
        bits, scale = (whole[weights[part].resource_offset :][: weights[part].resource_nbytes]
                       for part in (name, f"{name}.scale"))
        rows = weights[name].shape[0].multiplier
        return E4M3[bits].astype(np.float64).reshape(rows, -1) * scale.view(np.float32)[:, None]

    gate, up = np.split(
        eighth_rows(device, "normed", 3) @ matrix("layers.2.gate_up.weight").T, 2, axis=1)
    assert relative(gate / (1 + np.exp(-gate)) * up, bf16_rows(device, "activated", 3)) < BF16_RMS
    down = matrix("layers.2.down.weight")
    tokens = min(packed, WIDE.lanes)
    tile = (tiles.product_tile if tokens <= tiles.FEWER_TOKENS else partial(
        tiles.wide_tile, gated=False))(*down.shape, tokens, splits=True, item=1)
    parts = device.buffer("partials")[: tile.splits * tokens * len(down)]
    found = parts.reshape(tile.splits, tokens, -1)[:, :3].sum(axis=0, dtype=np.float64)
    assert relative(eighth_rows(device, "activated", 3) @ down.T, found) < BF16_RMS


def test_a_row_that_is_not_finite_stays_alone_in_e4m3(eighths):
    check_contained(eighths[1])


@pytest.mark.parametrize("batch", [2, 8, 16, 32])
def test_batches_of_every_size_agree_with_plain(pair, batch):
    """Products of few tokens, and attention split over a cluster, at each number of lanes."""
    rng = np.random.default_rng(batch)
    lengths = rng.integers(1, 300, batch)
    for harness in pair:
        for slot, length in enumerate(lengths):
            harness.admit(slot)
            prompt = np.random.default_rng(slot).integers(0, 5000, length).tolist()
            for start in range(0, length, 64):
                harness.prefill({slot: prompt[start : start + 64]})
        for token in (8, 9):
            harness.decode_host({slot: token + slot for slot in range(batch)})
    plain, cuda = (harness.logits(batch) for harness in pair)
    for row in range(batch):
        assert near(plain[row], cuda[row]), row
    for harness in pair:
        for slot in list(harness.rows):
            harness.release(slot)


def test_errors_name_what_is_wrong(pair):
    device = pair[1]
    with pytest.raises(DeviceError, match="not loaded"):
        device.executor.submit(0, 999, 1)
    body = device.manifest.cuda_bodies[device.manifest.programs[3].cuda_body]
    kernel = body.nodes[1].kernel
    from helios_dod.executors.cuda.graphs import Code

    code = Code(device.executor.device, device.manifest)
    kinds = [one.WhichOneof("argument") for one in kernel.arguments]
    code.function(kernel, kinds)
    with pytest.raises(DeviceError, match="parameters of"):
        code.function(kernel, kinds[:-1])


def test_a_shared_world_can_be_registered():
    """Serving keeps the world in a memfd that processes share."""
    descriptor = os.memfd_create("world")
    size = dtype_of(SMALL).itemsize
    os.ftruncate(descriptor, size)
    shared = mmap.mmap(descriptor, size)
    world = boot(SMALL, memoryview(shared))
    made = build(random_checkpoint(SMALL_SHAPES["windowed"]), OPTIONS, cuda=True)
    harness = Harness(made, executor(), slots=4, pages=64, world=world)
    harness.admit(slot=0)
    assert harness.prefill({0: [1, 2, 3]})[0] >= 0
    assert os.eventfd_read(harness.executor.descriptor()) >= 1
    harness.close()


def test_pages_go_to_pinned_memory_and_disk_and_come_back(pair):
    """Each kind of copy by itself, while programs run: bytes arrive, ends come in order."""
    device = pair[1]
    device.admit(slot=2)
    device.prefill({2: np.random.default_rng(6).integers(0, 5000, 60).tolist()})
    executor, copies = device.executor, device.world[0]["copies"]
    planes = executor.memory.paged()
    page_bytes = sum(plane.row_bytes for plane in planes)
    executor.back(4, mmap.mmap(-1, 4 * page_bytes))
    page = int(device.buffer("page_table")[2, 0])

    def held(at):
        return b"".join(
            executor.memory.read(executor.memory.buffers.index(plane))[
                at * plane.row_bytes : (at + 1) * plane.row_bytes].tobytes() for plane in planes)

    wanted, first = held(page), {0: 0, 1: 0}
    for queue, kind, source, target in (
            (0, 1, page, 3), (0, 2, 3, 7), (1, 3, 3, 2), (1, 4, 2, 9)):
        number = first[queue]
        copies["kind"][queue, number], copies["failed"][queue, number] = kind, 0
        copies["source"][queue, number], copies["target"][queue, number] = source, target
        executor.copy(queue, number, number + 1)
        device.decode([2])
        executor.drain()
        first[queue] += 1
        assert executor.copied(queue) == first[queue]
    assert any(wanted) and held(7) == wanted and held(9) == wanted and held(page) == wanted


def test_copies_move_pages_of_every_plane(tmp_path):
    """Device, pinned memory and a file: bytes arrive, neighbours stay, ends come in order."""
    made = build(random_checkpoint(SMALL_SHAPES["windowed"]), OPTIONS, cuda=True)
    harness = Harness(made, executor(), slots=4, pages=64)
    cuda, copies = harness.executor, harness.world[0]["copies"]
    from helios_dod.executors.cuda.driver import call

    rng, before = np.random.default_rng(2), []
    for plane in cuda.memory.paged():
        data = rng.integers(0, 256, (64, plane.row_bytes), dtype=np.uint8)
        call("cuMemcpyHtoD", plane.address[0], data.ctypes.data, data.nbytes)
        before.append(data)
    size = cuda.page_bytes()
    with open(tmp_path / "pages", "wb+") as file:
        file.truncate(4 * size)
        cuda.back(4, mmap.mmap(file.fileno(), 4 * size))
    commands = {0: [(COPY_OFFLOAD, 5, 2), (COPY_RESTORE, 2, 9)],
                1: [(COPY_SINK, 2, 3), (COPY_FETCH, 3, 11)]}
    for queue, listed in commands.items():
        for number, (kind, source, target) in enumerate(listed):
            copies["kind"][queue, number] = kind
            copies["source"][queue, number] = source
            copies["target"][queue, number] = target
            cuda.copy(queue, number, number + 1)
            cuda.drain()
        assert cuda.copied(queue) == 2
    for plane, data in zip(cuda.memory.paged(), before, strict=True):
        data[9], data[11] = data[5], data[5]
        out = np.empty_like(data)
        call("cuMemcpyDtoH", out.ctypes.data, plane.address[0], out.nbytes)
        assert np.array_equal(out, data)
    harness.close()

"""Programs for target cuda-sm90 as preparation makes them, on a machine without a GPU."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cuda_models import SMALL_SHAPES, build, random_checkpoint
from ignition_fixtures import opened
from plain_device import E4M3

from helios_dod.contract.cuda import SHARED_NBYTES_MAX, check_cuda
from helios_dod.contract.errors import ContractError
from helios_dod.contract.functions import check_functions
from helios_dod.contract.states import derive_views, prepare_states
from helios_dod.contract.tuning import check_choices
from helios_dod.contract.uses import BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.host.panels import pack_matrix, unpack_matrix
from helios_dod.ignition.cuda import tiles
from helios_dod.ignition.cuda.native import compile_native, decode_shared
from helios_dod.ignition.cuda.tiles import (
    decode_tile,
    gated_tile,
    product_tile,
    ring_tile,
    vector_tile,
    wide_tile,
)
from helios_dod.ignition.cuda.weights import Quantised, dense
from helios_dod.ignition.floats import E4M3_VALUES, to_bf16, to_e4m3
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.prepared import PreparationError

OPTIONS = Options(lanes=2, context=256, packed=(64,), scored=64)
SIZES = {"address": 8, "executor_word": 8, "words": 8, "word": 4, "real": 4, "extent": 4,
         "row_bytes": 4}


@cache
def model():
    """The windowed shape, lowered."""
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    return build(random_checkpoint(SMALL_SHAPES["windowed"]), OPTIONS, cuda=True)


def kernels(body):
    return [node.kernel for node in body.nodes if node.HasField("kernel")]


def test_programs_validate_and_name_what_exists():
    manifest = model().manifest
    check_cuda(manifest)
    assert not manifest.host_bodies
    names = {program.name for program in manifest.programs}
    assert {"initialize", "prefill_64", "decode_1", "decode_2", "mixed_64"} <= names
    assert all(program.WhichOneof("code") == "cuda_body" for program in manifest.programs)
    for body in manifest.cuda_bodies:
        assert body.nodes[0].HasField("ingest"), "staged values come first"
        assert body.nodes[-1].kernel.entry == "signal", "the host is told last"
        behind = {edge.after for edge in body.edges}
        assert behind == set(range(1, len(body.nodes))), "every node waits for another"
        assert not any(edge.overlap for edge in body.edges if edge.before == 0)


def test_every_kernel_declares_what_it_was_specialised_for():
    manifest = wire.ExecutionManifest()
    manifest.CopyFrom(model().manifest)
    check_functions(manifest, 16)
    entries = set()
    for body in manifest.cuda_bodies:
        for kernel in kernels(body):
            function = manifest.modules[kernel.module].functions[kernel.function]
            assert function.entry == kernel.entry and function.threads == kernel.block[0]
            assert len(function.parameters) == len(kernel.arguments)
            entries.add(kernel.entry)
    assert len(entries) > 15
    with pytest.raises(ContractError, match=r"rows of 4096 bytes of plane .* got 8192"):
        check_functions(manifest, 32)
    with pytest.raises(ContractError, match=r"rows of 2048 bytes of keys \[any, KEY_HEADS"
                       r"\*HEAD\*PAGE\] of \w+, got 4096"):
        for module in manifest.modules:
            for constant in [one for made in module.functions for one in made.constants]:
                if constant.name == "KEY_HEADS":
                    constant.value //= 2
        check_functions(manifest, 16)


def test_kernels_say_what_they_do_to_state():
    """The same accesses as the host's operations have, which the graphs list."""
    made = model()
    uses = BodyUses(made.manifest)
    for program, graph in zip(made.manifest.programs, made.contract.model.graphs, strict=True):
        use = uses.of(program)
        assert not use.named
        assert {view.SerializeToString() for view in derive_views(made.manifest, use)} == {
            view.SerializeToString() for view in graph.states}
        assert prepare_states(made.manifest, 3, graph, use, program.name)


def test_cubins_hold_their_kernels_for_the_architecture():
    manifest = model().manifest
    for body in manifest.cuda_bodies:
        for kernel in kernels(body):
            module = manifest.modules[kernel.module]
            assert kernel.entry.encode() in module.cubin
            flags = int.from_bytes(module.cubin[48:52], "little")  # ELF e_flags
            assert flags & 0xFF == 90 or flags >> 8 & 0xFF == 90
    assert len(manifest.modules) == len({module.cubin for module in manifest.modules})


def test_matrices_are_rows_of_bf16():
    made = model()
    by_name = {buffer.name: buffer for buffer in made.manifest.buffers}
    down = by_name["layers.0.down.weight"]
    assert down.dtype == wire.BF16 and not down.HasField("panel")
    assert [axis.multiplier for axis in down.shape] == [512, 1024]
    data = made.weights.assemble()[down.resource_offset:][: down.resource_nbytes]
    expected = random_checkpoint(SMALL_SHAPES["windowed"]).tensors["layers.0.down.weight"].data
    assert np.array_equal(data, expected)


def test_few_tokens_and_many_use_their_products():
    manifest = model().manifest
    entries = {program.name: [kernel.entry for kernel in kernels(
        manifest.cuda_bodies[program.cuda_body])] for program in manifest.programs}
    for few in ("decode_1", "decode_2"):
        assert entries[few].count("few_product") == 3 * 4 + 1
    assert entries["prefill_64"].count("gated_product") == 2, "all layers but the last"
    assert entries["decode_1"].count("combine") == entries["decode_2"].count("combine") == 3


def test_one_token_of_many_columns_has_its_own_products(monkeypatch):
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    monkeypatch.setattr(tiles, "NARROW", 256)
    manifest = build(random_checkpoint(SMALL_SHAPES["windowed"]), OPTIONS, cuda=True).manifest
    body = next(manifest.cuda_bodies[program.cuda_body] for program in manifest.programs
                if program.name == "decode_1")
    entries = [kernel.entry for kernel in kernels(body)]
    assert entries.count("gated_vector_product") == 3
    assert entries.count("vector_product") == 3 * 3 + 1


@pytest.mark.parametrize("rows, columns, tokens, splits", [
    (6144, 4096, 1, 0), (128_256, 4096, 1, 1), (2048, 2048, 1, 2), (6144, 4096, 8, 1),
    (4096, 14_336, 8, 1), (2048, 8192, 8, 2), (6144, 4096, 16, 0), (3072, 2048, 16, 2),
    (576, 576, 2, 1), (512, 1000, 2, 0), (3072, 2048, 17, 0)])
def test_products_of_few_tokens_are_split_into_enough_blocks(rows, columns, tokens, splits):
    """0 splits: another kernel's."""
    tile = tiles.few_tile(rows, columns, tokens, split=True)
    assert (tile.splits if tile else 0) == splits


def test_products_beside_a_share_have_longer_rings_by_columns():
    few = [tiles.few_tile(6144, columns, tokens, split=False)
           for tokens in (4, 8) for columns in (1024, 2048, 4096)]
    assert [(tile.warps, tile.depth, tile.blocks) for tile in few if tile] == [
        (4, 4, 8), (8, 4, 4), (8, 4, 4), (4, 4, 8), (8, 6, 2), (16, 4, 2)]


@pytest.mark.parametrize("key_heads", [2, 1])
def test_programs_of_eight_lanes_ask_for_shared_memory(key_heads):
    """Where their attention is a ring: of nine heads a key head it is not."""
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    shape = replace(SMALL_SHAPES["windowed"], heads=9 if key_heads == 1 else 8,
                    key_heads=key_heads, windows=(0,), layers=1)
    manifest = build(random_checkpoint(shape), replace(OPTIONS, lanes=8), cuda=True).manifest
    check_cuda(manifest)
    asking = {program.name for program in manifest.programs
              if manifest.cuda_bodies[program.cuda_body].HasField("shared_percent")}
    expected = {"decode_8", "decode_8_masked", "decode_host_8"}
    assert asking == (expected if key_heads == 2 else set())
    assert {body.shared_percent for body in manifest.cuda_bodies} == (
        {0, tiles.SHARE_PERCENT} if asking else {0})


@pytest.mark.parametrize("heads, ring", [(8, True), (9, False)])
def test_attention_of_lanes_is_a_ring_where_the_group_fits(heads, ring):
    """Nine heads a key head are more than a ring takes."""
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    shape = replace(SMALL_SHAPES["windowed"], heads=heads, key_heads=1, windows=(0,), layers=1)
    manifest = build(random_checkpoint(shape), replace(OPTIONS, lanes=32), cuda=True).manifest
    bodies = {program.name: manifest.cuda_bodies[program.cuda_body]
              for program in manifest.programs}
    entries = [kernel.entry for kernel in kernels(bodies["decode_32"])]
    assert entries.count("decode_attention") == 1 and ("combine" not in entries) == ring
    entries = [kernel.entry for kernel in kernels(bodies["decode_1"])]
    assert entries.index("combine") == entries.index("decode_attention") + 1


def test_layer_norms_biases_and_plain_activations_have_kernels():
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    manifest = build(random_checkpoint(SMALL_SHAPES["layered"]), OPTIONS, cuda=True).manifest
    check_cuda(manifest)
    body = next(manifest.cuda_bodies[program.cuda_body] for program in manifest.programs
                if program.name == "decode_2")
    entries = [kernel.entry for kernel in kernels(body)]
    assert entries.count("embed") == 2 and entries.count("activate") == 2
    assert entries.count("normalise") == 5 and entries.count("decode_attention") == 2


def test_programs_with_masks_are_twins_of_those_without():
    made = model()
    graphs = {graph.program: graph for graph in made.contract.model.graphs}
    assert [graph.program for graph in made.contract.model.graphs] == [
        program.name for program in made.manifest.programs]
    masked = {name for name, graph in graphs.items() if any(
        binding.source == contract.GRAMMAR_MASK for binding in graph.bindings)}
    assert masked == {f"{name}_masked" for name in (
        "prefill_64", "mixed_64", "decode_1", "decode_2")}
    for name in masked:
        twin = [[binding.source for binding in graphs[one].bindings] for one in (
            name, name.removesuffix("_masked"))]
        assert set(twin[0]) - set(twin[1]) == {contract.GRAMMAR_MASK}


@pytest.mark.parametrize("heads, key_heads, head, group_fits", [
    (32, 8, 128, True), (32, 8, 64, True), (9, 3, 64, True), (32, 2, 128, False),
    (16, 8, 256, False)])
def test_ring_tiles_fit_a_processor(heads, key_heads, head, group_fits):
    for lanes in (1, 2, 8, 17, 32, 64, 256):
        tile = ring_tile(lanes, heads, key_heads, head, 16)
        assert (tile is not None) == (group_fits and lanes >= 3 and (lanes <= 64 or head <= 64))
        if tile is not None:
            assert 1 <= tile.splits <= 8 and 32 * tile.warps % head == 0
            shared = decode_shared(head, heads // key_heads, tile.warps, tile.depth)
            assert 2 * shared <= SHARED_NBYTES_MAX


def test_quantised_matrices_round_to_nearest():
    tensor = next(tensor for tensor in opened("all_types.gguf").tensors.values()
                  if tensor.kind == "Q4_K")
    values = unpack_matrix(*pack_matrix(tensor.kind, *tensor.shape, tensor.data))
    found = (dense(tensor).data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert np.abs(found.reshape(values.shape) - values).max() <= np.abs(values).max() / 256
    assert to_bf16(np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)).tolist() == [0x3F80, 0x3F82]


@pytest.mark.parametrize("rows, columns", [(6144, 4096), (4096, 14336), (960, 576), (128256, 2048)])
@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 64, 128, 256, 512, 4096])
@pytest.mark.parametrize("item", [1, 2])
def test_tiles_divide_their_matrix(rows, columns, tokens, item):
    for tile in (product_tile(rows, columns, min(tokens, 64), True, item),
                 gated_tile(columns, min(tokens, 64), item),
                 vector_tile(columns, gated=False, item=item),
                 wide_tile(rows, columns, tokens, False, True, item),
                 wide_tile(rows, columns, tokens, True, False, item)):
        assert columns % (tile.splits * tile.columns) == 0 and 1 <= tile.warps <= 8
        assert tile.rows & (tile.rows - 1) == 0 and tile.tokens & (tile.tokens - 1) == 0
        assert item * tile.columns * (tile.rows + tile.tokens) * tile.stages <= SHARED_NBYTES_MAX
    assert product_tile(rows, columns, min(tokens, 64), True).tokens >= min(tokens, 16)


@pytest.mark.parametrize("rows, columns, tokens, tile", [
    (4096, 14_336, 256, (256, 4)), (6144, 4096, 256, (256, 2)), (4096, 4096, 128, (128, 4)),
    (4096, 14_336, 512, (256, 2)), (6144, 4096, 4096, (256, 1)), (576, 576, 128, (128, 1))])
def test_products_of_many_tokens_are_split_into_enough_blocks(rows, columns, tokens, tile):
    """As perf/h200 found best."""
    found = wide_tile(rows, columns, tokens, gated=False, splits=True)
    assert (found.rows, found.splits) == tile


def test_e4m3_rounds_to_the_nearest_even_code():
    assert np.array_equal(E4M3, E4M3_VALUES, equal_nan=True)
    generator = np.random.default_rng(2)
    values = np.concatenate([
        generator.standard_normal(3000) * 2.0 ** generator.integers(-12, 9, 3000), E4M3[:127],
        (E4M3[:126] + E4M3[1:127]) / 2, [500.0, 0.0, -0.0, 2.0**-10]]).astype(np.float32)
    values = np.concatenate([values, -values])
    found = to_e4m3(values)
    distances = np.abs(E4M3[:127].astype(np.float64)[None] - np.abs(values)[:, None])
    least = distances.min(axis=1)
    ties = distances == least[:, None]
    even = np.array([next((i for i in np.flatnonzero(row) if i % 2 == 0), np.flatnonzero(row)[0])
                     for row in ties])
    assert np.array_equal(found & 0x7F, even)
    assert np.array_equal(found >> 7, np.signbit(values))


def test_weights_in_e4m3_have_factors_of_their_rows():
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    checkpoint = random_checkpoint(SMALL_SHAPES["windowed"])
    made = build(checkpoint, OPTIONS, cuda=True, weight_type="fp8")
    check_cuda(made.manifest)
    by_name = {buffer.name: buffer for buffer in made.manifest.buffers}
    whole = made.weights.assemble()

    def stored(name):
        buffer = by_name[name]
        return whole[buffer.resource_offset :][: buffer.resource_nbytes]

    down, scale = by_name["layers.0.down.weight"], by_name["layers.0.down.weight.scale"]
    assert (down.dtype, scale.dtype) == (wire.F8_E4M3, wire.F32)
    factors = stored(scale.name).view(np.float32)
    values = E4M3[stored(down.name).reshape(512, 1024)] * factors[:, None]
    exact = (checkpoint.tensors[down.name].data.view(np.uint16).astype(np.uint32) << 16).view(
        np.float32).reshape(512, 1024)
    assert np.abs(values - exact).max() <= np.abs(exact).max() / 16
    assert np.allclose(np.abs(values).max(axis=1), np.abs(exact).max(axis=1))
    assert by_name["embedding.weight"].dtype == wire.BF16, "it is the head, too"
    entries = [kernel.entry for body in made.manifest.cuda_bodies for kernel in kernels(body)]
    assert "quantise" in entries and "few_product" in entries, "the head is bf16"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weight_type", ["fp8", "fp8-head"])
def test_a_head_is_in_e4m3_where_that_is_asked_for_and_it_is_not_the_embedding(tied, weight_type):
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    checkpoint = random_checkpoint(replace(SMALL_SHAPES["windowed"], tied=tied))
    made = build(checkpoint, OPTIONS, cuda=True, weight_type=weight_type)
    check_cuda(made.manifest)
    by_name = {buffer.name: buffer for buffer in made.manifest.buffers}
    assert by_name["embedding.weight"].dtype == wire.BF16
    eighths = not tied and weight_type == "fp8-head"
    assert ("head.weight.scale" in by_name) == eighths
    if not tied:
        assert by_name["head.weight"].dtype == (wire.F8_E4M3 if eighths else wire.BF16)


def test_a_row_of_zeros_has_a_factor():
    values = np.eye(2, 16) * [[0], [1]]
    matrix = Quantised(2, 16, lambda: to_bf16(values).reshape(-1).view(np.uint8))
    factors = matrix.factors().view(np.float32).tolist()
    assert factors[0] > 0 and factors[1] == np.float32(1 / 448)
    assert not matrix.bits().reshape(2, 16)[0].any()
    assert matrix.factors().view(np.float32).tolist() == factors


@pytest.mark.parametrize("head", [16, 64, 128, 256])
def test_history_splits_are_powers_of_two(head):
    for lanes in (1, 2, 8, 64, 256):
        tile = decode_tile(lanes, 8, head)
        assert tile.splits & (tile.splits - 1) == 0 and 1 <= tile.splits <= 32
        assert tile.tokens % 16 == 0


def test_what_decode_attention_reads_ahead_is_older_than_the_chain():
    """It reads pages and tables before its wait: whatever wrote them has ended when the first norm
    begins, because the embedding before that norm lets it begin only behind its own wait."""
    manifest = model().manifest
    for program in manifest.programs:
        entries = [kernel.entry for kernel in kernels(manifest.cuda_bodies[program.cuda_body])]
        if "decode_attention" in entries:
            first = entries.index("embed")
            assert "update_page_table" in entries[:first]
            assert not {"update_page_table", "copy_pages", "scatter_rows"} & set(entries[first:])
            assert entries.index("normalise") < entries.index("decode_attention")
            assert "rotate_and_store" not in entries


def test_shapes_without_kernels_are_refused():
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    with pytest.raises(PreparationError, match="heads of 24"):
        build(opened("mistral"), OPTIONS, cuda=True)


def test_what_does_not_compile_is_told_with_its_constants():
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the bindings are there, the library is an extra
        pytest.skip(f"NVRTC: {error}")
    with pytest.raises(PreparationError, match=r"decode.cu with .*'HEAD': 20.*\n.*shape"):
        compile_native("decode.cu", dict(
            HEADS=8, KEY_HEADS=2, HEAD=20, HALF=8, PAGE=16, WINDOW=0, INTERLEAVED=0, BIAS=0, NORM=0,
            PARTIALS=1, TOKENS=1, SPLITS=1, WARPS=4, DEPTH=2), 90)


def small_body():
    manifest = wire.ExecutionManifest()
    manifest.buffers.add(name="staged", kind=wire.STAGING, dtype=wire.I32)
    manifest.buffers.add(name="state", kind=wire.STATE, dtype=wire.I32)
    manifest.modules.add(name="code", architecture=90, cubin=b"\x7fELF and more")
    body = manifest.cuda_bodies.add()
    body.nodes.add().ingest.buffers.append(0)
    for _ in range(2):
        kernel = body.nodes.add().kernel
        kernel.entry, kernel.grid[:], kernel.block[:] = "step", [1, 1, 1], [32, 1, 1]
        kernel.arguments.add().address.CopyFrom(wire.CudaAddress(buffer=1, alignment=16))
        kernel.arguments.add().executor_word = wire.FINISHED_COUNT
    body.edges.add(before=0, after=1)
    body.edges.add(before=1, after=2, overlap=True)
    return manifest, body


@pytest.mark.parametrize("change, field", [
    (lambda m, b: b.nodes[0].ingest.buffers.append(1), "nodes[0].ingest.buffers"),
    (lambda m, b: b.nodes[0].ingest.ClearField("buffers"), "nodes[0].ingest.buffers"),
    (lambda m, b: setattr(b.edges[0], "overlap", True), "edges[0].overlap"),
    (lambda m, b: setattr(b.nodes[1].kernel.arguments[0].address, "alignment", 3), "alignment"),
    (lambda m, b: setattr(b.nodes[1].kernel.arguments[0].address, "offset", 4), "offset"),
    (lambda m, b: setattr(b.nodes[1].kernel.arguments.add(), "row_bytes", 9), "row_bytes"),
    (lambda m, b: setattr(b, "shared_percent", 101), "cuda_bodies[0].shared_percent"),
    (lambda m, b: setattr(m.modules[0], "cubin", b"PTX"), "modules[0].cubin"),
    (lambda m, b: setattr(m.modules[0], "resource_id", "both"), "modules[0].resource_id"),
    (lambda m, b: setattr(m.modules[0], "architecture", 0), "modules[0].architecture"),
])
def test_hostile_bodies_are_refused(change, field):
    manifest, body = small_body()
    check_cuda(manifest)
    change(manifest, body)
    with pytest.raises(ContractError) as error:
        check_cuda(manifest)
    assert field in str(error.value)


def test_a_machine_without_a_driver_says_so(monkeypatch):
    from helios_dod.executors.base import DeviceError
    from helios_dod.executors.cuda import driver

    class Missing:
        def __getattr__(self, name):
            raise RuntimeError("libcuda is not there")

    monkeypatch.setattr(driver, "driver", Missing())
    with pytest.raises(DeviceError, match="no usable NVIDIA driver"):
        driver.Device()


def test_programs_of_one_core_are_for_one_device():
    from types import SimpleNamespace

    from helios_dod.runtime.devices import TargetError, on_device

    def contract(*bodies):
        return SimpleNamespace(programs=[SimpleNamespace(device_body=body) for body in bodies])

    assert on_device(contract(True, False, True), (0, 2))
    assert not on_device(contract(True, False), (1,))
    with pytest.raises(TargetError):
        on_device(contract(True, False), (0, 1))


def test_products_of_sixteen_lanes_have_alternatives_that_a_tuning_graph_times():
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    options = replace(OPTIONS, lanes=16)
    made = build(random_checkpoint(replace(SMALL_SHAPES["windowed"], tied=False)), options, True)
    manifest = made.manifest
    check_cuda(manifest)
    check_functions(manifest, 16)
    check_choices(manifest)
    graphs = {graph.name: graph for graph in manifest.tuning}
    assert len(graphs) == 2  # of gated products, of the head
    for graph in graphs.values():
        entries = [node.kernel.entry for node in manifest.cuda_bodies[graph.cuda_body].nodes]
        count = (len(entries) - 4) // 2
        assert entries == ["mark_time", *[entries[1]] * count, "mark_time",
                           *["few_product"] * count, "mark_time", "choose_fastest"]
        named = {argument.address.buffer
                 for node in manifest.cuda_bodies[graph.cuda_body].nodes
                 for argument in node.kernel.arguments if argument.HasField("address")}
        assert not {manifest.live_packed, manifest.live_lanes, manifest.live_sampled} & named
    for program in manifest.programs:
        body = manifest.cuda_bodies[program.cuda_body]
        chosen = {node.choice.buffer for node in body.nodes if node.HasField("choice")}
        assert chosen == {bound.buffer for bound in program.tuned}
        assert all(bound.buffer == graphs[bound.producer].outputs[0] for bound in program.tuned)
        if program.name == "decode_16":
            assert len(chosen) == 2 and sum(node.HasField("choice") for node in body.nodes) == 8


@pytest.mark.parametrize("change, message", [
    (lambda node: setattr(node.choice, "value", 2), "alternatives 0 to 1 of element 0"),
    (lambda node: setattr(node.choice, "element", 1), "choice: expected an element of a STATE"),
    (lambda node: setattr(node.choice, "buffer", 0), "choice: expected an element of a STATE")])
def test_choices_are_of_a_tuned_row(change, message):
    manifest = wire.ExecutionManifest()
    manifest.buffers.add(name="hidden", kind=wire.SCRATCH, dtype=wire.I32).shape.add(multiplier=1)
    manifest.buffers.add(name="chosen", kind=wire.STATE, dtype=wire.I32).shape.add(multiplier=1)
    body = manifest.cuda_bodies.add()
    for value in range(2):
        node = body.nodes.add(choice=wire.CudaChoice(buffer=1, value=value))
        node.fill.destination.buffer, node.fill.nbytes = 0, 4
    own = manifest.cuda_bodies.add().nodes.add()
    own.fill.destination.buffer, own.fill.nbytes = 1, 4
    manifest.tuning.add(name="choose", cuda_body=1, outputs=[1])
    check_cuda(manifest)
    check_choices(manifest)
    own.choice.buffer = 1
    with pytest.raises(ContractError, match="none in a tuning graph"):
        check_choices(manifest)
    own.ClearField("choice")
    change(body.nodes[1])
    with pytest.raises(ContractError, match=message):
        check_cuda(manifest)
        check_choices(manifest)

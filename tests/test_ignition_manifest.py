"""Manifests and contracts that the recipes make: whole, consistent, and accepted by the decoder."""

import re

import numpy as np
import pytest
from ignition_fixtures import EVERY, opened, prepared

from helios_dod.contract.decode import decode
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints.checkpoint import GenerationDefaults
from helios_dod.ignition.preparation.builder import Body, Builder, Source, buffers_of
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.prepared import WEIGHT_ALIGNMENT, PreparationError
from helios_dod.ignition.recipes import prepare

WANTED = {
    wire.INITIALIZE, wire.RESTORE, wire.PREFILL, wire.SCORED_PREFILL, wire.RESUME, wire.DECODE,
    wire.MIXED,
}


def operations(manifest, program) -> list:
    """Operation messages of a program, in order."""
    body = manifest.host_bodies[program.body]
    return [getattr(entry, entry.WhichOneof("operation")) for entry in body.operations]


@pytest.mark.parametrize("name", EVERY)
def test_contracts_decode(name):
    core = prepared(name)
    found = decode(core.contract, core.manifest)
    assert {program.operation for program in found.programs} == WANTED
    assert any(program.host_pending for program in found.programs)
    assert any(program.histogram for program in found.programs)
    assert found.concurrency == 16
    assert found.context_tokens == opened(name).config.context


@pytest.mark.parametrize("name", EVERY)
def test_staged_buffers_are_bound_once_where_they_are_read(name):
    core = prepared(name)
    live = {core.manifest.live_packed, core.manifest.live_lanes, core.manifest.live_sampled}
    bound_somewhere = set()
    for program, graph in zip(core.manifest.programs, core.contract.model.graphs, strict=True):
        assert graph.program == program.name
        read = set(live)
        for operation in operations(core.manifest, program):
            for buffer, _ in buffers_of(operation):
                assert buffer < len(core.manifest.buffers)
                if core.manifest.buffers[buffer].kind == wire.STAGING:
                    read.add(buffer)
        bound = [binding.buffer for binding in graph.bindings]
        assert len(bound) == len(set(bound))
        assert set(bound) == read
        bound_somewhere |= read
    staged = {i for i, buffer in enumerate(core.manifest.buffers) if buffer.kind == wire.STAGING}
    assert staged == bound_somewhere


def columns_of(manifest, operand) -> int:
    """Columns of an operand of a two-dimensional buffer."""
    return operand.columns or manifest.buffers[operand.buffer].shape[1].multiplier


@pytest.mark.parametrize("name", EVERY)
def test_shapes_agree(name):
    manifest = prepared(name).manifest
    for body in manifest.host_bodies:
        for entry in body.operations:
            kind = entry.WhichOneof("operation")
            operation = getattr(entry, kind)
            if kind == "product":
                panel = manifest.buffers[operation.weight].panel
                assert columns_of(manifest, operation.input) == panel.columns
                assert columns_of(manifest, operation.output) == panel.rows
                if operation.has_bias:
                    assert manifest.buffers[operation.bias].shape[0].multiplier == panel.rows
            elif kind == "normalise":
                width = operation.group or columns_of(manifest, operation.input)
                assert manifest.buffers[operation.weight].shape[0].multiplier == width
                assert columns_of(manifest, operation.input) % width == 0
            elif kind == "attention":
                assert columns_of(manifest, operation.query) == operation.heads * operation.head
                keys = manifest.buffers[operation.key_cache]
                assert [axis.multiplier for axis in keys.shape[1:3]] == [
                    operation.key_heads, operation.head]
                assert keys.shape[3].symbol == wire.PAGE_TOKENS
            elif kind == "scatter_rows":
                source, target = (manifest.buffers[o.buffer]
                                  for o in (operation.source, operation.destination))
                assert source.dtype == target.dtype
                assert [a.multiplier for a in source.shape[1:]] == [
                    a.multiplier for a in target.shape[1:]]


@pytest.mark.parametrize("name", EVERY)
def test_weights_stream_in_order_and_aligned(name):
    core = prepared(name)
    buffers = {b.name: b for b in core.manifest.buffers if b.kind == wire.WEIGHT}
    end = 0
    for label, offset, data in core.weights:
        buffer = buffers.pop(label)
        assert offset >= end
        assert offset % WEIGHT_ALIGNMENT == 0
        assert (buffer.resource_offset, buffer.resource_nbytes) == (offset, data.size)
        end = offset + data.size
    assert not buffers
    assert end == core.weights.nbytes


def test_stacking_follows_element_types():
    """Neighbours of one type are one matrix; here query, key and value are Q4_0, F32 and F16."""
    names = {buffer.name for buffer in prepared("all_types.gguf").manifest.buffers}
    assert {f"layers.0.query_key_value.{i}.weight" for i in range(3)} <= names
    spm = {buffer.name for buffer in prepared("spm.gguf").manifest.buffers}
    assert "layers.0.query_key_value.weight" in spm
    assert "layers.0.query_key_value.0.weight" not in spm


def test_bodies_are_shared_and_programs_ordered():
    manifest = prepared("llama2").manifest
    decode_bodies = {p.body for p in manifest.programs if p.name.startswith("decode_host")}
    assert len(decode_bodies) == 1
    assert [p.batch_capacity for p in manifest.programs if re.fullmatch(r"decode_\d+", p.name)] == [
        1, 2, 4, 8, 16]
    order = [p.operation for p in manifest.programs]
    assert order == sorted(order)


def test_pending_tokens_have_one_owner():
    core = prepared("llama2")
    owners = {g.program: g.WhichOneof("pending") for g in core.contract.model.graphs}
    assert owners["decode_4"] == owners["mixed_64"] == "device_pending"
    assert owners["decode_host_4"] == "host_pending_binding"
    graph = next(g for g in core.contract.model.graphs if g.program == "decode_host_4")
    assert graph.bindings[graph.host_pending_binding].source == contract.PENDING_TOKEN
    pending = next(i for i, b in enumerate(core.manifest.buffers) if b.name == "pending")
    access = {g.program: state.access for g in core.contract.model.graphs
              for state in g.states if state.buffer == pending}
    assert access["decode_host_4"] == access["prefill_64"] == access["resume_64"] == contract.WRITE
    assert access["decode_4"] == contract.READ_WRITE


def test_regions_of_windows():
    core = prepared("qwen2_window")
    full, windowed = core.contract.model.cache.regions
    assert (full.kind, full.window_tokens, len(full.planes)) == (contract.PAGED_KEY_VALUE, 0, 2)
    assert (windowed.kind, windowed.window_tokens) == (contract.SLIDING_WINDOW, 24)
    assert len(windowed.planes) == 4


def test_cache_identity_tells_weights_apart():
    identities = {prepared(name).contract.cache_identity for name in EVERY}
    assert len(identities) == len(EVERY)
    assert prepared("llama2", "bf16").contract.cache_identity not in identities


def test_options():
    checkpoint = opened("llama2")
    options = Options(served_id="tiny", context=100, lanes=3, packed=(8, 16), scored=8)
    core = prepare(checkpoint, options)
    assert (core.contract.served_id, core.contract.context_tokens) == ("tiny", 100)
    assert core.contract.prefill_tokens == 16
    assert {p.batch_capacity for p in core.manifest.programs} == {1, 2, 3}
    for bad, words in (({"context": 513}, "at most 512"), ({"lanes": 0}, "lanes"),
                       ({"cache": "f64"}, "bf16, f32"), ({"packed": ()}, "packed"),
                       ({"packed": (64, 1 << 20)}, "1 to 32768")):
        with pytest.raises(PreparationError, match=words):
            prepare(checkpoint, Options(**bad))
    with pytest.raises(PreparationError, match="recipe gpt2 expects"):
        prepare(checkpoint, Options(), recipe="gpt2")
    with pytest.raises(PreparationError, match="decoder, gpt2"):
        prepare(checkpoint, Options(), recipe="other")


def test_sampling_defaults_have_an_order():
    """A model card's values stand over the checkpoint's; what neither says stays unset."""
    options = Options(sampling=GenerationDefaults(temperature=0.25, min_p=0.125))
    found = prepare(opened("qwen2"), options).contract.sampling
    assert (found.temperature, found.min_p, found.top_k) == (0.25, 0.125, 20)
    assert found.HasField("repetition_penalty")
    assert not found.HasField("presence_penalty")


def test_builder_derives_accesses():
    builder = Builder()
    staged = builder.staging("slot", wire.I32, (4,), Source(contract.SLOT, contract.ACTIVE_ROW))
    state = builder.buffer("pending", wire.STATE, wire.I32, (8, 3))
    with pytest.raises(AssertionError, match="declared twice"):
        builder.buffer("slot", wire.STATE, wire.I32, (8,))
    body = Body()
    body.add(wire.FillRows(value=1, slot=staged.whole, destination=state.whole))
    builder.program("fill", wire.INITIALIZE, body, builder.body(body), batch=1, packed=1, live=())
    (graph,) = builder.graphs
    assert [binding.buffer for binding in graph.bindings] == [staged.index]
    (view,) = graph.states
    assert (view.row_stride, view.extent, view.access) == (12, 12, contract.WRITE)
    assert builder.vector("v", np.ones(3, np.float32)).index == 2

"""python -m tests.golden FOLDER: makes a small core of every contract version and carrier.

The ones in tests/fixtures/golden were made once and are never made again: a core that loads today
loads for ever. New carriers and versions get new folders.

The four of `first-version-3-payload` and `version-3-*` broke the contract, and a check that came
later refuses them: their graphs list no state accesses, though their programs write state. They are
kept as they are, with the refusal beside them in expected.json; `listed-version-3-*` are in their
place. Cores that a recipe made always listed what they access.

All of those have no real tokenizer. Cores of `whole` have every part that a server needs.
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.writer import CARRIERS, Publisher, write_core
from tests.tiny_core import TOKENIZER, add_buffer, make_prepared, number

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # signs test data only
SECRET = bytes(range(32, 64))  # seals test data only
FOLDER = Path(__file__).parent / "fixtures" / "golden"


def at_version(version):
    """What preparation would hand over, with what that contract version can say."""
    prepared = replace(make_prepared(), tokenizer_json=b'{"version": "1.0"}')
    manifest, serving = prepared.manifest, prepared.contract
    serving.model.version = version
    if version == 1:  # text, page tables, host-owned pending tokens, width one
        for graph in serving.model.graphs:
            if graph.HasField("device_pending"):
                graph.host_pending_binding = next(
                    i for i, part in enumerate(graph.bindings) if part.source == contract.TOKEN)
        return prepared
    serving.snapshots = 2  # 2: device-owned tokens, snapshots, speculation by exact lengths
    add_speculative(manifest, serving, contract.QUERY_LENGTH)
    if version == 3:
        everything(manifest, serving)
    return prepared


def whole(version):
    """The same with a tokenizer, a template with roles, and the syntax of its answers."""
    prepared = at_version(version)
    frontend = prepared.contract.model.frontend
    frontend.tool_syntax, frontend.reasoning_syntax = contract.KEY_VALUE_TAGS, contract.THINK_TAGS
    frontend.ClearField("output")
    output = frontend.output
    output.pairs.CopyFrom(contract.PairSyntax(
        call_open="<c>", call_close="</c>", key_open="<k>", key_close="</k>", value_open="<v>",
        value_close="</v>", typing=contract.TYPED_BY_SCHEMA, unions=contract.UNION_JSON_FIRST))
    output.think.open, output.think.close = "<t>", "</t>"
    if version == 3:
        output.think.terminals.markers.append("<c>")
    output.envelope.opener = "assistant:"
    output.call_ids, output.unknown_names = contract.CALL_ID_SHORT, contract.UNKNOWN_NAMES_DROP
    frontend.prefix_boundaries.add(roles=["system"], constraint=contract.RENDER_ALWAYS)
    return replace(
        prepared, tokenizer_json=TOKENIZER, chat_template=(
            "{% for m in messages %}{{ m.role ~ ':' ~ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}"))


def add_speculative(manifest, serving, source):
    """A speculative program of width 4 that takes its lengths from `source`."""
    manifest.programs.add(name="speculative", operation=wire.SPECULATIVE, batch_capacity=4,
                          draft_tokens=3, token_capacity=4, packed_token_capacity=12, body=2)
    decode = next(graph for graph in serving.model.graphs if graph.program == "decode")
    graph = serving.model.graphs.add()
    graph.CopyFrom(decode)
    graph.program, graph.operation = "speculative", wire.SPECULATIVE
    for binding in graph.bindings:
        if binding.source == contract.QUERY_LENGTH:
            binding.source = source
    serving.speculative_widths.append(4)


def everything(manifest, serving):
    """What only version 3 has."""
    graph = serving.model.graphs[-1]
    for binding in graph.bindings:
        if binding.source == contract.QUERY_LENGTH:
            binding.source = contract.SPECULATIVE_PREFIX_LIMIT
    manifest.programs[-1].confidence_width = 3
    manifest.proposal_confidence = add_buffer(
        manifest, "confidence", wire.STATE, wire.F32, 2, (wire.SLOTS, 1), 3)
    manifest.transport.frames = 2
    manifest.transport.frame_index = add_buffer(manifest, "frame", wire.STAGING, wire.I32, 1)
    manifest.completion.token_width = 4
    manifest.buffers[number(manifest, "completion_tokens")].shape[1].multiplier = 4
    manifest.ranks.add(rank=0, weights=["weights"])
    rows = add_buffer(manifest, "rows", wire.STAGING, wire.F32, (wire.PACKED, 1), 2)
    manifest.tables.add(name="rows", buffer=rows, frames=2, consumer_ranks=[0])
    chosen = add_buffer(manifest, "chosen", wire.STATE, wire.I32, 4)
    manifest.cuda_bodies.add().nodes.add().fill.CopyFrom(wire.CudaFill(
        destination=wire.CudaAddress(buffer=chosen), nbytes=16, byte=1))
    manifest.tuning.add(name="choose", cuda_body=0, outputs=[chosen])
    manifest.programs[4].tuned.add(buffer=chosen, producer="choose")
    serving.model.graphs[4].tuned_bindings.add(buffer=chosen, producer="choose")
    serving.model.cache.regions.add(
        kind=contract.CONTINUATION, planes=[number(manifest, "slot_limit")])
    histories(manifest, serving.model.cache)
    cursor(manifest, serving.model)
    output(serving.model.frontend)
    images(serving.model)


def histories(manifest, cache):
    """Latent records of four tokens each, and a second page table, shifted by a page."""
    latents = add_buffer(manifest, "latents", wire.CACHE, wire.F32, (wire.PAGES, 1), 4, 8)
    cache.regions.add(kind=contract.PAGED_LATENT, planes=[latents], compression_ratio=4)
    table = add_buffer(manifest, "draft_table", wire.STATE, wire.I32, (wire.SLOTS, 1),
                       (wire.PAGES_PER_REQUEST, 1))
    cache.tables.add(buffer=table, page_offset=1)


def cursor(manifest, model):
    """A draft cursor of each slot, one token behind, which the speculative program moves."""
    cursors = add_buffer(manifest, "cursors", wire.STATE, wire.I32, (wire.SLOTS, 1))
    body = manifest.host_bodies.add()
    body.CopyFrom(manifest.host_bodies[2])
    manifest.programs[-1].body = len(manifest.host_bodies) - 1
    move = body.operations.add().scatter_rows
    move.source.buffer, move.slot.buffer = cursors, number(manifest, "slot")
    move.destination.buffer = cursors
    view = model.graphs[-1].states.add(
        buffer=cursors, row_stride=4, extent=4, access=contract.READ_WRITE)
    model.cache.cursor_lag_tokens = 1
    model.cache.cursor_state.CopyFrom(view)


def output(frontend):
    """Calls in tags, and reasoning that a call's opener ends too."""
    frontend.tool_syntax, frontend.reasoning_syntax = contract.PARAMETER_TAGS, contract.THINK_TAGS
    frontend.output.tags.CopyFrom(contract.TagSyntax(
        wrapper_open="<calls>", wrapper_close="</calls>", invoke_open="<call=",
        invoke_close="</call>", parameter_open="<p=", parameter_close="</p>",
        typing=contract.TYPED_BY_SCHEMA, orphan=contract.ORPHAN_TEXT, unions=contract.UNION_TEXT))
    frontend.output.think.open, frontend.output.think.close = "<think>", "</think>"
    frontend.output.think.terminals.markers.append("<calls>")
    frontend.output.call_ids = contract.CALL_ID_PREFIXED
    frontend.output.unknown_names = contract.UNKNOWN_NAMES_DROP


def images(model):
    """Image capacities and syntax."""
    model.input_vocabulary += 1
    model.vision.feature_slots, model.vision.features_per_window = 1, 16
    model.vision.patches_per_feature = 4
    model.vision.patch_capacities.append(64)
    image = model.frontend.image
    image.preparation, image.layout = contract.RESIZE_TO_GRID, contract.FEATURE_RUN
    image.tokens.feature_tokens.append(model.vocabulary)
    image.settings.patch, image.settings.pixels_min, image.settings.pixels_max = 14, 1, 4096
    image.settings.mean[:] = image.settings.deviation[:] = [0.5] * 3


def name_of(version):
    """The name that a version's cores begin with."""
    return "listed-version-3" if version == 3 else f"version-{version}"


def without_bodies():
    """A core of before the choice between bodies: programs of body 0 name no body at all."""
    prepared = make_prepared()
    for program in prepared.manifest.programs:
        if program.body == 0:
            program.ClearField("body")
    return prepared


def main():
    os.environ["HELIOS_CORE_KEY"] = SECRET.hex()
    folder = Path(sys.argv[1])
    for version in (1, 2, 3):
        for carrier in CARRIERS:
            target = folder / f"{name_of(version)}-{carrier}"
            shutil.rmtree(target, ignore_errors=True)
            write_core(at_version(version), target, Publisher(KEY, "golden"), carrier=carrier)
            target = folder / f"whole-{version}-{carrier}"
            shutil.rmtree(target, ignore_errors=True)
            write_core(whole(version), target, Publisher(KEY, "golden"), carrier=carrier)
    write_core(without_bodies(), folder / "listed-first-version-3-payload",
               Publisher(KEY, "golden"))


if __name__ == "__main__":
    main()

"""python -m tests.golden FOLDER: makes a small core of every contract version and carrier.

The ones in tests/fixtures/golden were made once and are never made again: a core that loads today
loads for ever. New carriers and versions get new folders.
"""

import os
import shutil
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.writer import CARRIERS, Publisher, write_core
from tests.tiny_core import add_buffer, make_prepared, number

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # signs test data only
SECRET = bytes(range(32, 64))  # seals test data only
FOLDER = Path(__file__).parent / "fixtures" / "golden"


def at_version(version):
    """What preparation would hand over, with what that contract version can say."""
    prepared = make_prepared()
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
    manifest.completion.token_width = 1
    manifest.ranks.add(rank=0, weights=["weights"])
    rows = add_buffer(manifest, "rows", wire.STAGING, wire.F32, (wire.PACKED, 1), 2)
    manifest.tables.add(name="rows", buffer=rows, frames=2, consumer_ranks=[0])
    chosen = add_buffer(manifest, "chosen", wire.STATE, wire.I32, 4)
    manifest.tuning.add(name="choose", body=2, outputs=[chosen])
    manifest.programs[4].tuned.add(buffer=chosen, producer="choose")
    serving.model.graphs[4].tuned_bindings.add(buffer=chosen, producer="choose")
    serving.model.cache.regions.add(
        kind=contract.CONTINUATION, planes=[number(manifest, "slot_limit")])
    serving.model.cache.cursor_lag_tokens = 1
    images(serving.model)


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


def main():
    os.environ["HELIOS_CORE_KEY"] = SECRET.hex()
    folder = Path(sys.argv[1])
    for version in (1, 2, 3):
        for carrier in CARRIERS:
            target = folder / f"version-{version}-{carrier}"
            shutil.rmtree(target, ignore_errors=True)
            write_core(at_version(version), target, Publisher(KEY, "golden"), carrier=carrier)


if __name__ == "__main__":
    main()

"""A verified core as contents that can be written in another carrier."""

from collections.abc import Iterator

import numpy as np

from helios_dod.cores.layout import RESOURCES
from helios_dod.cores.padding import check_padding
from helios_dod.cores.reader import Core
from helios_dod.cores.writer import Contents, Progress, WeightStream

PIECE_NBYTES = 4 << 20


def contents_of(core: Core, progress: Progress | None = None) -> Contents:
    """Everything of a core, verified. Raises CoreError, ContractError."""
    manifest = core.manifest()
    core.prepared(manifest)
    core.chat_template()
    core.token_bytes()
    weights = core.weights(progress=progress)
    check_padding(manifest, weights)
    return Contents(
        contract=core.serving, license_text=core.license_text,
        executables={kind: core.read(kind) for kind in RESOURCES},
        weights=tuple(_stream(part.id, part.rank, weights[part.id]) for part in core.body.weights),
        rebuild_manifest=core.body.rebuild_manifest,
        weight_catalogs=tuple(core.body.weight_catalogs))


def _stream(name: str, rank: int, data: np.ndarray) -> WeightStream:

    def pieces() -> Iterator[memoryview]:
        for first in range(0, data.size, PIECE_NBYTES):
            yield data[first : first + PIECE_NBYTES].data

    return WeightStream(name, rank, data.size, pieces)

"""A verified core as contents that can be written in another carrier."""

from collections.abc import Iterator
from functools import partial

from helios_dod.cores.chunks import Progress
from helios_dod.cores.layout import RESOURCES
from helios_dod.cores.reader import Core
from helios_dod.cores.writer import Contents, WeightStream


def contents_of(core: Core, progress: Progress | None = None) -> Contents:
    """Everything of a core, verified. Raises CoreError, ContractError.

    Weights are verified again when their streams are read: what is written, and signed, is what
    was signed before, whatever has happened to their files."""
    manifest = core.manifest()
    core.prepared(manifest)
    core.chat_template()
    core.token_bytes()
    core.weights(progress=progress, manifest=manifest)
    return Contents(
        contract=core.serving, license_text=core.license_text,
        executables={kind: core.read(kind) for kind in RESOURCES},
        weights=tuple(WeightStream(part.id, part.rank, part.nbytes, partial(_pieces, core, part.id))
                      for part in core.body.weights),
        rebuild_manifest=core.body.rebuild_manifest,
        weight_catalogs=tuple(core.body.weight_catalogs))


def _pieces(core: Core, name: str) -> Iterator[memoryview]:
    return map(memoryview, core.weight_pieces(name))

"""Bytes of weight resources that belong to no buffer: they are zero."""

from collections.abc import Mapping

import numpy as np

from helios_dod.contract.wire import manifest_pb2
from helios_dod.cores.errors import CoreError


def check_padding(manifest: manifest_pb2.ExecutionManifest,
                  weights: Mapping[str, np.ndarray]) -> None:
    """Raises CoreError where a byte between or behind the weight buffers is not zero."""
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in weights}
    for buffer in manifest.buffers:
        if buffer.kind == manifest_pb2.WEIGHT:
            first = buffer.resource_offset
            spans[buffer.resource_id].append((first, first + buffer.resource_nbytes))
    for name, parts in spans.items():
        data, cursor = weights[name], 0
        for first, end in [*sorted(parts), (data.size, data.size)]:
            if first > cursor and data[cursor:first].any():
                at = cursor + int(np.flatnonzero(data[cursor:first])[0])
                raise CoreError(f"weight resource {name}", f"byte {at}: padding that is not zero")
            cursor = max(cursor, end)

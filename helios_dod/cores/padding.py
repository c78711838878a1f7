"""Bytes of weight resources that belong to no buffer: they are zero."""

from collections.abc import Mapping

from helios_dod.contract.wire import manifest_pb2

Spans = list[tuple[int, int]]  # first byte, end


def padding_of(manifest: manifest_pb2.ExecutionManifest, sizes: Mapping[str, int]
               ) -> dict[str, Spans]:
    """Resource id -> the bytes between and behind its buffers, ascending. sizes: of resources."""
    taken: dict[str, Spans] = {name: [] for name in sizes}
    for buffer in manifest.buffers:
        if buffer.kind == manifest_pb2.WEIGHT:
            first = buffer.resource_offset
            taken[buffer.resource_id].append((first, first + buffer.resource_nbytes))
    found: dict[str, Spans] = {}
    for name, spans in taken.items():
        cursor, free = 0, []
        for first, end in [*sorted(spans), (sizes[name], sizes[name])]:
            if first > cursor:
                free.append((cursor, first))
            cursor = max(cursor, end)
        found[name] = free
    return found

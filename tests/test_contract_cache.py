"""Histories, page-table views and the completion cursor: refusals by field."""

import pytest

from helios_dod.contract.decode import decode
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from tests.test_contract_decode import graph_of, make_speculative, pair, refused
from tests.tiny_core import WIDTH, add_buffer, number


@pytest.mark.parametrize("kind", [
    contract.PAGED_KEY_VALUE, contract.PAGED_LATENT, contract.SLIDING_WINDOW, contract.RECURRENT,
    contract.CONTINUATION], ids=contract.HistoryKind.Name)
def test_every_history_kind(kind):
    serving, manifest = pair()
    region = serving.model.cache.regions[0]
    if kind in (contract.RECURRENT, contract.CONTINUATION):
        region = serving.model.cache.regions.add(kind=kind, planes=[
            add_buffer(manifest, "rows", wire.STATE, wire.F32, (wire.STATE_ROWS, 1), 8)])
    if kind == contract.SLIDING_WINDOW:
        region.kind, region.window_tokens, region.page_group = kind, 32, 1
        serving.model.cache.tables[0].page_group = 1
        for plane in region.planes:
            manifest.buffers[plane].shape[0].symbol = wire.WINDOWED_PAGES
    if kind == contract.PAGED_LATENT:
        region = serving.model.cache.regions.add(kind=kind, compression_ratio=4, planes=[
            add_buffer(manifest, "latents", wire.CACHE, wire.F32, (wire.PAGES, 1), 4, 8)])
    made = decode(serving, manifest).cache.regions[-1]
    assert (made.kind, made.window_tokens, made.compression_ratio) == (
        kind, region.window_tokens, region.compression_ratio)


def test_page_groups_and_state_rows():
    """Group 1 is windowed and has planes of its own; state lies in state rows."""
    serving, manifest = pair()
    region = serving.model.cache.regions[0]
    region.page_group = 1
    refused(serving, manifest, "regions[0].page_group", "0 unless SLIDING_WINDOW")
    region.kind, region.window_tokens = contract.SLIDING_WINDOW, 32
    refused(serving, manifest, "regions[0].planes", "CACHE buffers of WINDOWED_PAGES rows")
    serving.model.cache.tables[0].page_group = 1
    for plane in region.planes:
        manifest.buffers[plane].shape[0].symbol = wire.WINDOWED_PAGES
    cache = decode(serving, manifest).cache
    assert (cache.page_bytes, cache.windowed_page_bytes) == (0, 2 * 16 * 4 * 4)
    serving, manifest = pair()
    serving.model.cache.regions.add(
        kind=contract.RECURRENT, planes=[number(manifest, "page_table")])
    manifest.buffers[number(manifest, "page_table")].shape[0].multiplier = 2
    refused(serving, manifest, "regions[1].planes",
            "STATE buffers of STATE_ROWS or SNAPSHOT_ROWS or SLOTS rows")
    serving, manifest = pair()
    serving.model.cache.regions[0].compression_ratio = 3
    refused(serving, manifest, "regions[0].compression_ratio", "a divisor of 16")


def test_page_updates_name_their_view():
    serving, manifest = pair()
    updates = next(b for graph in serving.model.graphs for b in graph.bindings
                   if b.source == contract.PAGE_UPDATES)
    updates.table = 1
    refused(serving, manifest, "bindings[11] (PAGE_UPDATES to updates).table",
            "a page-table view below 1")
    index = add_buffer(manifest, "draft_table", wire.STATE, wire.I32, (wire.SLOTS, 1),
                       (wire.PAGES_PER_REQUEST, 1))
    serving.model.cache.tables.add(buffer=index, page_offset=1)
    updates.table = 0
    graph_of(serving, "prefill").bindings.add(
        buffer=add_buffer(manifest, "draft_updates", wire.STAGING, wire.I32, (wire.UPDATES, 1), 3),
        source=contract.PAGE_UPDATES, indexing=contract.SCALAR, table=1)
    tables = {b.table for program in decode(serving, manifest).programs for b in program.bindings}
    assert tables == {0, 1}
    serving.model.graphs[0].bindings[0].table = 1
    refused(serving, manifest, "bindings[0] (LIVE_PACKED to live_packed).table", "expected 0")


@pytest.mark.parametrize("ratio, kind, tail, held", [
    (1, contract.PAGED_LATENT, ((wire.PAGE_TOKENS, 1), 8), True),
    (1, contract.PAGED_LATENT, (16, 8), True),
    (4, contract.PAGED_LATENT, (4, 8), True),
    (16, contract.PAGED_LATENT, (8,), True),
    (8, contract.PAGED_KEY_VALUE, (3, 2, 8), True),
    (1, contract.PAGED_LATENT, ((wire.PAGE_TOKENS, 2), 8), False),
    (1, contract.PAGED_LATENT, (8, 8), False),
    (4, contract.PAGED_LATENT, ((wire.PAGE_TOKENS, 1), 8), False),
    (4, contract.PAGED_LATENT, (8, 8), False),
    (1, contract.PAGED_KEY_VALUE, ((wire.PAGE_TOKENS, 1), (wire.PAGE_TOKENS, 1)), False),
    (1, contract.PAGED_LATENT, (2, (wire.PAGE_TOKENS, 1), 8), False),
    (2, contract.PAGED_LATENT, (4, 8), False),  # 8 is what a record holds, not how many there are
])
def test_planes_hold_page_tokens_over_the_ratio(ratio, kind, tail, held):
    serving, manifest = pair()
    plane = add_buffer(manifest, "plane", wire.CACHE, wire.F32, (wire.PAGES, 1), *tail)
    serving.model.cache.regions.add(kind=kind, planes=[plane], compression_ratio=ratio)
    if held:
        assert decode(serving, manifest).cache.regions[1].compression_ratio == ratio
    else:
        refused(serving, manifest, "regions[1].planes", "got plane: CACHE F32 [PAGES, ")


def with_attention():
    """The smallest core, whose step also attends over its history."""
    serving, manifest = pair()
    attention = manifest.host_bodies[2].operations.add().attention
    write = manifest.host_bodies[2].operations[3].cache_write
    for name in ("position", "lane", "slot", "table"):
        getattr(attention, name).CopyFrom(getattr(write, name))
    for name in ("query", "output"):
        getattr(attention, name).CopyFrom(write.key)
    start = add_buffer(manifest, "query_start", wire.STAGING, wire.I32, (wire.LANES, 1))
    for graph in serving.model.graphs[2:]:
        graph.bindings.add(
            buffer=start, source=contract.QUERY_START, indexing=contract.ACTIVE_ROW)
    attention.query_start.buffer = start
    attention.query_length.buffer = number(manifest, "query_length")
    attention.heads, attention.key_heads, attention.head = 1, 1, WIDTH
    attention.key_cache, attention.value_cache = write.key_cache, write.value_cache
    return serving, manifest, attention


def test_operations_find_their_histories():
    """What bodies do with keys and values agrees with the region that declares them."""
    decode(*with_attention()[:2])

    def split(cache, manifest, attention):
        value = cache.regions[0].planes.pop()
        cache.regions.add(kind=contract.PAGED_LATENT, planes=[value], compression_ratio=1)

    def other_table(cache, manifest, attention):
        attention.table.buffer = add_buffer(
            manifest, "more", wire.STATE, wire.I32, (wire.SLOTS, 1), (wire.PAGES_PER_REQUEST, 1))

    changes = [
        (lambda c, m, a: setattr(c.regions[0], "kind", contract.PAGED_LATENT), "regions[0].kind",
         "keys and values for key_cache and value_cache of prefill, got PAGED_LATENT"),
        (lambda c, m, a: setattr(a, "window", 8), "regions[0].window_tokens", "expected 8"),
        (split, "regions[0].planes", "got the values in regions[1]"),
    ]
    for change, field, expected in changes:
        serving, manifest, attention = with_attention()
        change(serving.model.cache, manifest, attention)
        refused(serving, manifest, field, expected)
    serving, manifest, attention = with_attention()
    other_table(serving.model.cache, manifest, attention)
    for graph in serving.model.graphs[2:]:
        graph.states.add(buffer=attention.table.buffer, access=contract.READ)
    refused(serving, manifest, "cache.tables", "got none of more")
    serving.model.cache.tables.add(buffer=attention.table.buffer)
    decode(serving, manifest)


def test_keys_and_values_are_a_record_a_token():
    """A compressed plane is no plane of host attention."""
    serving, manifest = pair()
    region = serving.model.cache.regions[0]
    region.compression_ratio = 4
    for plane in region.planes:
        shape = manifest.buffers[plane].shape
        shape[1].symbol, shape[1].multiplier = 0, 4
        shape[2].multiplier = 16  # as many elements
    refused(serving, manifest, "cache_write.key_cache", "a region of compression ratio 1")


def test_a_page_table_is_updated_with_its_own_view():
    serving, manifest = pair()
    serving.model.cache.tables.add(buffer=add_table(manifest), page_offset=1)
    decode(serving, manifest)
    for source, name in ((contract.PAGE_UPDATES, "updates"),
                         (contract.PAGE_UPDATE_COUNT, "update_count")):
        bound = next(b for b in graph_of(serving, "decode").bindings if b.source == source)
        bound.table = 1
        refused(serving, manifest, "(decode).bindings",
                f"which the program puts there, in {name}, got draft_table")
        bound.table = 0


def test_every_paged_region_has_a_view():
    serving, manifest = pair()
    serving.model.cache.ClearField("tables")
    refused(serving, manifest, "regions[0].page_group", "of a page-table view")
    serving, manifest = pair()
    plane = add_buffer(manifest, "windowed", wire.CACHE, wire.F32, (wire.WINDOWED_PAGES, 1),
                       (wire.PAGE_TOKENS, 1), 4)
    serving.model.cache.regions.add(kind=contract.SLIDING_WINDOW, planes=[plane], page_group=1,
                                    window_tokens=32, compression_ratio=1)
    refused(serving, manifest, "regions[1].page_group", "of a page-table view")
    pages = add_buffer(manifest, "pages", wire.STAGING, wire.I32, (wire.LANES, 1), 8)
    graph_of(serving, "decode").bindings.add(
        buffer=pages, source=contract.PAGE_TABLE, indexing=contract.ACTIVE_ROW)
    decode(serving, manifest)
    serving, manifest = pair()
    serving.model.cache.tables[0].page_group = 1
    refused(serving, manifest, "tables[0].page_group", "group of a paged region, got 1")


def test_regions_of_state_are_not_paged():
    serving, manifest = pair()
    region = serving.model.cache.regions.add(
        kind=contract.RECURRENT, planes=[number(manifest, "slot_limit")])
    for ratio in (0, 1):
        region.compression_ratio = ratio
        decode(serving, manifest)
    region.compression_ratio = 2
    refused(serving, manifest, "regions[1].compression_ratio", "nothing is paged, got 2")
    planes = list(region.planes)
    region.compression_ratio = 0
    del region.planes[:]
    refused(serving, manifest, "regions[1].planes", "at least one, got 0")
    region.planes.extend(planes)
    region.compression_ratio, region.window_tokens = 0, 1
    refused(serving, manifest, "regions[1].window_tokens")
    serving.model.cache.regions[0].kind = contract.SLIDING_WINDOW
    serving.model.cache.regions[0].window_tokens = 2**31
    refused(serving, manifest, "regions[0].window_tokens", "got 2147483648")


def add_table(manifest, name="draft_table"):
    return add_buffer(manifest, name, wire.STATE, wire.I32, (wire.SLOTS, 1),
                      (wire.PAGES_PER_REQUEST, 1))


def test_shifted_page_table_views():
    """64 tokens of context are 4 pages: no view is shifted by more."""
    serving, manifest = pair()
    serving.model.cache.tables.add(buffer=add_table(manifest), page_offset=1)
    assert decode(serving, manifest).cache.tables[1].page_offset == 1
    for offset, held in ((4, True), (-4, True), (5, False), (-2000, False)):
        serving.model.cache.tables[1].page_offset = offset
        if held:
            decode(serving, manifest)
        else:
            refused(serving, manifest, "tables[1].page_offset", f"-4 to 4, the pages of a request, "
                    f"got {offset}")
    serving.context_tokens, serving.model.cache.tables[1].page_offset = 2**20, 1025
    refused(serving, manifest, "tables[1].page_offset", "-1024 to 1024")
    serving.model.cache.tables[1].page_offset = 0
    serving.model.cache.tables[1].buffer = number(manifest, "page_table")
    refused(serving, manifest, "tables[1].buffer", "of no other view, got page_table")


def with_cursor():
    """A speculative program that keeps a draft cursor for each slot, one token behind."""
    serving, manifest, graph = make_speculative(contract.QUERY_LENGTH)
    cursors = add_buffer(manifest, "cursors", wire.STATE, wire.I32, (wire.SLOTS, 1))
    body = manifest.host_bodies.add()
    body.CopyFrom(manifest.host_bodies[2])
    manifest.programs[-1].body = len(manifest.host_bodies) - 1
    move = body.operations.add().scatter_rows
    move.source.buffer, move.slot.buffer = cursors, number(manifest, "slot")
    move.destination.buffer = cursors
    graph.states.add(buffer=cursors, row_stride=4, extent=4, access=contract.READ_WRITE)
    serving.model.cache.cursor_lag_tokens = 1
    serving.model.cache.cursor_state.CopyFrom(contract.StateView(
        buffer=cursors, row_stride=4, extent=4, access=contract.READ))
    return serving, manifest, serving.model.cache.cursor_state


def test_a_completion_cursor_names_committed_state():
    serving, manifest, cursor = with_cursor()
    prepared = decode(serving, manifest)
    assert prepared.cache.cursor_state.buffer == number(manifest, "cursors")
    assert prepared.cache.cursor_lag_tokens == 1
    assert [program.name for program in prepared.programs if program.cursor] == ["speculative"]
    changes = [
        (lambda s, m, c: s.model.cache.ClearField("cursor_state"), "cursor_lag_tokens",
         "0 without a cursor_state, got 1"),
        (lambda s, m, c: setattr(s.model.cache, "cursor_lag_tokens", -1), "cursor_lag_tokens", ""),
        (lambda s, m, c: setattr(s.model.cache, "cursor_lag_tokens", 65), "cursor_lag_tokens",
         "0 to 64, the context, got 65"),
        (lambda s, m, c: setattr(c, "buffer", number(m, "pending")), "cursor_state",
         "no pending token, got pending"),
        (lambda s, m, c: setattr(c, "access", contract.WRITE), "cursor_state.access", "READ"),
        (lambda s, m, c: setattr(c, "extent", 8), "cursor_state.extent", "1 to 4"),
        (lambda s, m, c: setattr(c, "buffer", 999), "cursor_state.buffer", "got 999"),
        (lambda s, m, c: setattr(c, "buffer", number(m, "slot")), "cursor_state.buffer", "STATE"),
        (lambda s, m, c: setattr(m.buffers[c.buffer], "dtype", wire.U32), "cursor_state", "I32"),
        (lambda s, m, c: setattr(m.buffers[c.buffer].shape[0], "symbol", wire.LANES),
         "cursor_state", "[SLOTS"),
        (lambda s, m, c: setattr(c, "buffer", add_buffer(
            m, "idle", wire.STATE, wire.I32, (wire.SLOTS, 1))), "cursor_state", "reads it"),
        (lambda s, m, c: setattr(c, "buffer", number(m, "slot_limit")), "cursor_state", "reads it"),
        (lambda s, m, c: setattr(s.model, "version", 2), "cursor_state", "none before version 3"),
    ]
    for change, field, expected in changes:
        serving, manifest, cursor = with_cursor()
        change(serving, manifest, cursor)
        refused(serving, manifest, field, expected)
    serving, manifest, cursor = with_cursor()
    operations = manifest.host_bodies[-1].operations
    operations[-1].scatter_rows.destination.buffer = number(manifest, "slot_limit")
    serving.model.graphs[-1].states[-1].access = contract.READ
    serving.model.graphs[-1].states.add(buffer=number(manifest, "slot_limit"), row_stride=4,
                                        extent=4, access=contract.WRITE)
    refused(serving, manifest, "cursor_state", "writes it, which commits it")

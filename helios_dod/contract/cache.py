"""CacheContract -> PreparedCache: history regions, page-table views, the completion cursor."""

from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.manifest import (
    GROUP_PAGES,
    axes,
    buffer_at,
    describe_buffer,
    page_bytes,
    snapshot_row_bytes,
)
from helios_dod.contract.prepared import (
    PreparedCache,
    PreparedProgram,
    PreparedRegion,
    PreparedState,
    PreparedTable,
)
from helios_dod.contract.states import LISTED_VERSION, covers, prepare_view, span_of
from helios_dod.contract.uses import BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.limits import GROUPS_MAX

FIELD = "contract.model.cache"
TOKENS_MAX = 2**30  # context, vocabulary and counts of them stay inside i32
OFFSET_MAX = 1024  # pages by which a view may be shifted, and no more than one request has
PAGED = (contract.PAGED_KEY_VALUE, contract.PAGED_LATENT, contract.SLIDING_WINDOW)
KEYED = (contract.PAGED_KEY_VALUE, contract.SLIDING_WINDOW)  # hold keys and values
LATENT_AXES = 3  # at most: pages, records, elements; a latent record has no heads
CURSOR_BYTES = 4


def prepare_cache(
    serving: contract.ServingContract, manifest: wire.ExecutionManifest,
    programs: tuple[PreparedProgram, ...], uses: BodyUses,
) -> PreparedCache:
    """Raises ContractError."""
    cache = serving.model.cache
    require(1 <= cache.page_tokens <= 65_536, f"{FIELD}.page_tokens", "1 to 65536",
            cache.page_tokens)
    owners: dict[int, int] = {}
    for i, region in enumerate(cache.regions):
        _check_region(region, manifest, cache.page_tokens, f"{FIELD}.regions[{i}]")
        for plane in region.planes:
            require(plane not in owners, f"{FIELD}.regions[{i}].planes",
                    "planes of no other region", manifest.buffers[plane].name)
            owners[plane] = i
    for i, buffer in enumerate(manifest.buffers):
        require(buffer.kind != wire.CACHE or i in owners, f"{FIELD}.regions",
                "a region for every CACHE buffer", f"none for {buffer.name}")
    _check_tables(serving, manifest)
    _check_views(cache, programs)
    _check_operations(cache, manifest, owners, uses)
    _check_updates(cache, manifest, programs, uses)
    return PreparedCache(
        page_tokens=cache.page_tokens, page_bytes=page_bytes(manifest, cache.page_tokens),
        windowed_page_bytes=page_bytes(manifest, cache.page_tokens, 1),
        snapshot_row_bytes=snapshot_row_bytes(manifest),
        regions=tuple(PreparedRegion(
            region.kind, tuple(region.planes), region.compression_ratio, region.window_tokens,
            region.page_group) for region in cache.regions),
        tables=tuple(PreparedTable(table.buffer, table.page_offset, table.page_group)
                     for table in cache.tables),
        cursor_lag_tokens=cache.cursor_lag_tokens,
        cursor_state=_prepare_cursor(serving, manifest, programs))


def _check_group(group: int, field: str) -> None:
    require(group < GROUPS_MAX, field, f"a page group below {GROUPS_MAX}", group)


def _check_region(
    region: contract.HistoryRegion, manifest: wire.ExecutionManifest, page_tokens: int, field: str,
) -> None:
    paged = region.kind in PAGED
    require(bool(region.planes), f"{field}.planes", "at least one", 0)
    _check_group(region.page_group, f"{field}.page_group")
    require(region.page_group == 0 or region.kind == contract.SLIDING_WINDOW,
            f"{field}.page_group", "0 unless SLIDING_WINDOW", region.page_group)
    require((region.window_tokens > 0) == (region.kind == contract.SLIDING_WINDOW)
            and region.window_tokens <= TOKENS_MAX, f"{field}.window_tokens",
            f"1 to {TOKENS_MAX} exactly for SLIDING_WINDOW, else 0", region.window_tokens)
    ratio = region.compression_ratio
    if paged:
        require(ratio >= 1 and page_tokens % ratio == 0, f"{field}.compression_ratio",
                f"a divisor of {page_tokens}, the tokens of a page", ratio)
    else:
        require(ratio <= 1, f"{field}.compression_ratio", "0 or 1: nothing is paged", ratio)
    kind = wire.CACHE if paged else wire.STATE
    symbols = (GROUP_PAGES[region.page_group],) if paged else (
        wire.STATE_ROWS, wire.SNAPSHOT_ROWS, wire.SLOTS)
    for plane in region.planes:
        buffer = buffer_at(manifest, plane, f"{field}.planes")
        rows = axes(buffer)[0] in [(symbol, 1) for symbol in symbols]
        require(buffer.kind == kind and rows, f"{field}.planes",
                f"{wire.BufferKind.Name(kind)} buffers of "
                f"{' or '.join(map(wire.Symbol.Name, symbols))} rows",
                describe_buffer(buffer))
        if paged:
            _check_records(region, buffer, page_tokens, field)


def _check_records(
    region: contract.HistoryRegion, buffer: wire.Buffer, page_tokens: int, field: str,
) -> None:
    """A page of a plane holds page_tokens / compression_ratio records."""
    records = page_tokens // region.compression_ratio
    tail = axes(buffer)[1:]
    by_page = [multiplier for symbol, multiplier in tail if symbol == wire.PAGE_TOKENS]
    latent = region.kind == contract.PAGED_LATENT  # its last axis is what a record holds
    constant = {multiplier for symbol, multiplier in (tail[:1] if latent else tail) if symbol == 0}
    if by_page:
        held = by_page == [1] and region.compression_ratio == 1
    else:
        held = records == 1 or records in constant
    require(held, f"{field}.planes",
            f"planes with one axis of {records} records, page_tokens / compression_ratio",
            describe_buffer(buffer))
    require(not latent or len(buffer.shape) <= LATENT_AXES,
            f"{field}.planes", "pages of latent records, which have no heads: at most "
            f"{LATENT_AXES} axes", describe_buffer(buffer))


def _check_tables(serving: contract.ServingContract, manifest: wire.ExecutionManifest) -> None:
    """Each view by itself: a page table of its own, shifted by no more than a request has."""
    cache = serving.model.cache
    most = min(OFFSET_MAX, -(-serving.context_tokens // cache.page_tokens))
    groups = {region.page_group for region in cache.regions if region.kind in PAGED}
    found: set[int] = set()
    for i, table in enumerate(cache.tables):
        field = f"{FIELD}.tables[{i}]"
        buffer = buffer_at(manifest, table.buffer, f"{field}.buffer")
        require(buffer.kind == wire.STATE and buffer.dtype == wire.I32
                and axes(buffer) == ((wire.SLOTS, 1), (wire.PAGES_PER_REQUEST, 1)),
                f"{field}.buffer", "STATE I32 [SLOTS, PAGES_PER_REQUEST]", describe_buffer(buffer))
        require(table.buffer not in found, f"{field}.buffer", "a buffer of no other view",
                buffer.name)
        found.add(table.buffer)
        _check_group(table.page_group, f"{field}.page_group")
        require(table.page_group in groups, f"{field}.page_group",
                "the page group of a paged region", table.page_group)
        require(-most <= table.page_offset <= most, f"{field}.page_offset",
                f"{-most} to {most}, the pages of a request", table.page_offset)


def _check_views(cache: contract.CacheContract, programs: tuple[PreparedProgram, ...]) -> None:
    """Each paged region has a view of its group, unless programs are staged whole page tables."""
    staged = any(binding.source == contract.PAGE_TABLE
                 for program in programs for binding in program.bindings)
    groups = {table.page_group for table in cache.tables}
    for i, region in enumerate(cache.regions):
        require(staged or region.kind not in PAGED or region.page_group in groups,
                f"{FIELD}.regions[{i}].page_group",
                "the page group of a page-table view, or a binding of PAGE_TABLE",
                region.page_group)


def _check_operations(
    cache: contract.CacheContract, manifest: wire.ExecutionManifest, owners: dict[int, int],
    uses: BodyUses,
) -> None:
    """Operations on keys and values find them in one region of their kind, by a view of its
    group, with its window; page tables that are updated are views."""
    views = {table.buffer: table for table in cache.tables}
    first = {id(uses.of(program)): program for program in reversed(manifest.programs)}
    for program in first.values():
        use = uses.of(program)
        tables = {table for _, _, table in use.updates}
        for key, value, table, window in use.keyed:
            tables.add(table)
            number = owners[key]
            field, region = f"{FIELD}.regions[{number}]", cache.regions[number]
            names = f"{manifest.buffers[key].name} and {manifest.buffers[value].name}"
            require(owners[value] == number, f"{field}.planes",
                    f"both of {names}, keys and values of {program.name}",
                    f"the values in regions[{owners[value]}]")
            require(region.kind in KEYED, f"{field}.kind",
                    f"a kind of keys and values for {names} of {program.name}",
                    contract.HistoryKind.Name(region.kind))
            require(window in (-1, region.window_tokens), f"{field}.window_tokens",
                    f"{window}, the window of {program.name} over {names}", region.window_tokens)
            require(table not in views or views[table].page_group == region.page_group,
                    f"{field}.page_group",
                    f"the group of {manifest.buffers[table].name}, as {program.name} has it",
                    region.page_group)
        for table in sorted(tables - set(views)):
            raise ContractError(f"{FIELD}.tables", f"a view of each page table of {program.name}",
                                f"none of {manifest.buffers[table].name}")


def _check_updates(
    cache: contract.CacheContract, manifest: wire.ExecutionManifest,
    programs: tuple[PreparedProgram, ...], uses: BodyUses,
) -> None:
    """A page table is updated with what is staged for its own view."""
    for declared, program in zip(manifest.programs, programs, strict=True):
        staged = {binding.buffer: binding for binding in program.bindings
                  if binding.source in (contract.PAGE_UPDATES, contract.PAGE_UPDATE_COUNT)}
        for count, updates, table in uses.of(declared).updates:
            for number in (count, updates):
                own = staged.get(number)
                if own is not None and cache.tables[own.table].buffer != table:
                    raise ContractError(
                        f"contract.model.graphs ({program.name}).bindings",
                        f"updates of {manifest.buffers[table].name}, which the program puts there, "
                        f"in {manifest.buffers[number].name}",
                        manifest.buffers[cache.tables[own.table].buffer].name)


def _prepare_cursor(
    serving: contract.ServingContract, manifest: wire.ExecutionManifest,
    programs: tuple[PreparedProgram, ...],
) -> PreparedState | None:
    """The committed state that a completion cursor names: there exactly if graphs report one."""
    cache, field = serving.model.cache, f"{FIELD}.cursor_state"
    lag, most = cache.cursor_lag_tokens, serving.context_tokens
    require(0 <= lag <= most, f"{FIELD}.cursor_lag_tokens", f"0 to {most}, the context", lag)
    if not cache.HasField("cursor_state"):
        require(lag == 0, f"{FIELD}.cursor_lag_tokens", "0 without a cursor_state", lag)
        return None
    version = serving.model.version
    require(version >= LISTED_VERSION, field, f"none before version {LISTED_VERSION}", version)
    view = prepare_view(manifest, cache.cursor_state, field)
    buffer = manifest.buffers[view.buffer]
    require(buffer.kind == wire.STATE and buffer.dtype == wire.I32
            and axes(buffer)[0] == (wire.SLOTS, 1) and view.extent == CURSOR_BYTES, field,
            "one i32 of each row of a STATE I32 [SLOTS ...]", describe_buffer(buffer))
    require(view.access != contract.WRITE, f"{field}.access", "READ or READ_WRITE",
            contract.Access.Name(view.access))
    pending = {p.device_pending.buffer for p in programs if p.device_pending is not None}
    require(view.buffer not in pending, field, "no pending token", buffer.name)
    for access, what in ((contract.READ, "reads it and so reports a draft cursor"),
                         (contract.WRITE, "writes it, which commits it")):
        require(any(covers(program.states, span_of(view), access) for program in programs), field,
                f"state that a graph {what}", buffer.name)
    return view

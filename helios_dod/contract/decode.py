"""ServingContract and ExecutionManifest -> PreparedContract, or an error that names the field."""

from math import isfinite

from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.frontend import prepare_frontend, prepare_vision
from helios_dod.contract.graphs import prepare_graphs
from helios_dod.contract.manifest import (
    GROUP_PAGES,
    axes,
    buffer_at,
    check_manifest,
    completion_buffers,
    describe_buffer,
    page_bytes,
)
from helios_dod.contract.prepared import (
    PreparedCache,
    PreparedContract,
    PreparedProgram,
    PreparedRank,
    PreparedRegion,
    PreparedSampling,
    PreparedStagingTable,
    PreparedTable,
)
from helios_dod.contract.strict import check_known
from helios_dod.contract.tuning import prepare_tuning
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.limits import GROUPS_MAX

VERSIONS = (1, 2, 3)
TOKENS_MAX = 2**30  # context, vocabulary and counts of them stay inside i32
NAME_MAX = 256
OFFSET_MAX = 1024  # pages by which a view may be shifted
PAGED = (contract.PAGED_KEY_VALUE, contract.PAGED_LATENT, contract.SLIDING_WINDOW)


def decode(
    serving: contract.ServingContract, manifest: wire.ExecutionManifest,
) -> PreparedContract:
    """Validates both and their agreement. Raises ContractError(field, expected, got)."""
    version = serving.model.version
    require(version in VERSIONS, "contract.model.version", "1, 2 or 3", version)
    check_known(serving, "contract")
    check_manifest(manifest)
    _check_serving(serving)
    model = serving.model
    _positive("contract.model.vocabulary", model.vocabulary)
    _positive("contract.model.input_vocabulary", model.input_vocabulary)
    require(model.input_vocabulary >= model.vocabulary, "contract.model.input_vocabulary",
            f"at least the vocabulary, {model.vocabulary}", model.input_vocabulary)
    programs = prepare_graphs(model, manifest)
    _check_variants(serving, programs)
    return PreparedContract(
        version=version, served_id=serving.served_id, aliases=tuple(serving.aliases),
        cache_identity=serving.cache_identity, context_tokens=serving.context_tokens,
        prefill_tokens=serving.prefill_tokens, pages=serving.pages, snapshots=serving.snapshots,
        concurrency=serving.concurrency, vocabulary=model.vocabulary,
        input_vocabulary=model.input_vocabulary, sampling=_prepare_sampling(serving.sampling),
        cache=_prepare_cache(model.cache, manifest), programs=programs,
        completions=completion_buffers(manifest), frontend=prepare_frontend(model),
        vision=prepare_vision(model), speculative_widths=_prepare_widths(serving, programs),
        tuning=prepare_tuning(
            manifest, programs, frozenset(table.buffer for table in model.cache.tables)),
        staging_tables=tuple(PreparedStagingTable(
            table.name, table.buffer, table.frames, tuple(table.consumer_ranks))
            for table in manifest.tables),
        ranks=tuple(PreparedRank(part.rank, tuple(part.weights), tuple(part.modules))
                    for part in manifest.ranks),
        proposal_confidence=(manifest.proposal_confidence
                             if manifest.HasField("proposal_confidence") else None))


def _positive(field: str, value: int) -> None:
    require(0 < value <= TOKENS_MAX, field, f"1 to {TOKENS_MAX}", value)


def _check_serving(serving: contract.ServingContract) -> None:
    names: set[str] = set()
    for field, name in [("served_id", serving.served_id),
                        *((f"aliases[{i}]", alias) for i, alias in enumerate(serving.aliases))]:
        require(0 < len(name) <= NAME_MAX and name.isprintable(), f"contract.{field}",
                f"1 to {NAME_MAX} printable characters", name)
        require(name not in names, f"contract.{field}", "a name of its own", name)
        names.add(name)
    identity = serving.cache_identity
    require(0 < len(identity) <= NAME_MAX, "contract.cache_identity",
            f"1 to {NAME_MAX} characters", identity)
    for field in ("context_tokens", "prefill_tokens", "pages", "concurrency"):
        _positive(f"contract.{field}", getattr(serving, field))
    if serving.model.version == 1:
        require(serving.snapshots == 0, "contract.snapshots", "0 in version 1", serving.snapshots)


def _check_variants(
    serving: contract.ServingContract, programs: tuple[PreparedProgram, ...],
) -> None:
    """Every request passes through initialise, prefill and decode: each has a variant that fits."""
    batches: dict[int, int] = {}
    packed = 0
    for program in programs:
        batches[program.operation] = max(batches.get(program.operation, 0), program.batch)
        if program.operation in (wire.PREFILL, wire.MIXED):
            packed = max(packed, program.packed)
    for operation in (wire.INITIALIZE, wire.PREFILL, wire.DECODE):
        require(operation in batches, "manifest.programs",
                f"a variant of {wire.Operation.Name(operation)}", "none")
    require(serving.concurrency <= batches[wire.DECODE], "contract.concurrency",
            f"at most {batches[wire.DECODE]}, the largest DECODE batch", serving.concurrency)
    require(serving.prefill_tokens <= packed, "contract.prefill_tokens",
            f"at most {packed}, the largest prefill capacity", serving.prefill_tokens)


def _prepare_widths(
    serving: contract.ServingContract, programs: tuple[PreparedProgram, ...],
) -> tuple[int, ...]:
    """The selected speculative widths; each has a captured program."""
    widths = tuple(serving.speculative_widths)
    captured = {program.width for program in programs if program.operation == wire.SPECULATIVE}
    require(list(widths) == sorted(set(widths)), "contract.speculative_widths",
            "ascending widths, each once", widths)
    for i, width in enumerate(widths):
        require(width in captured, f"contract.speculative_widths[{i}]",
                f"the width of a SPECULATIVE program, one of {sorted(captured) or 'none'}", width)
    return widths


def _prepare_cache(
    cache: contract.CacheContract, manifest: wire.ExecutionManifest,
) -> PreparedCache:
    field = "contract.model.cache"
    require(1 <= cache.page_tokens <= 65_536, f"{field}.page_tokens", "1 to 65536",
            cache.page_tokens)
    require(0 <= cache.cursor_lag_tokens <= TOKENS_MAX, f"{field}.cursor_lag_tokens",
            "0 or more", cache.cursor_lag_tokens)
    owners: dict[int, int] = {}
    for i, region in enumerate(cache.regions):
        _check_region(region, manifest, cache.page_tokens, f"{field}.regions[{i}]")
        for plane in region.planes:
            require(plane not in owners, f"{field}.regions[{i}].planes",
                    "planes of no other region", manifest.buffers[plane].name)
            owners[plane] = i
    for i, buffer in enumerate(manifest.buffers):
        require(buffer.kind != wire.CACHE or i in owners, f"{field}.regions",
                "a region for every CACHE buffer", f"none for {buffer.name}")
    for i, table in enumerate(cache.tables):
        name = f"{field}.tables[{i}]"
        buffer = buffer_at(manifest, table.buffer, f"{name}.buffer")
        require(buffer.kind == wire.STATE and buffer.dtype == wire.I32
                and axes(buffer) == ((wire.SLOTS, 1), (wire.PAGES_PER_REQUEST, 1)),
                f"{name}.buffer", "STATE I32 [SLOTS, PAGES_PER_REQUEST]", describe_buffer(buffer))
        _check_group(table.page_group, f"{name}.page_group")
        require(-OFFSET_MAX <= table.page_offset <= OFFSET_MAX, f"{name}.page_offset",
                f"-{OFFSET_MAX} to {OFFSET_MAX}", table.page_offset)
    return PreparedCache(
        page_tokens=cache.page_tokens, page_bytes=page_bytes(manifest, cache.page_tokens),
        windowed_page_bytes=page_bytes(manifest, cache.page_tokens, 1),
        regions=tuple(PreparedRegion(
            region.kind, tuple(region.planes), region.compression_ratio, region.window_tokens,
            region.page_group) for region in cache.regions),
        tables=tuple(PreparedTable(table.buffer, table.page_offset, table.page_group)
                     for table in cache.tables),
        cursor_lag_tokens=cache.cursor_lag_tokens)


def _check_group(group: int, field: str) -> None:
    require(group < GROUPS_MAX, field, f"a page group below {GROUPS_MAX}", group)


def _check_region(
    region: contract.HistoryRegion, manifest: wire.ExecutionManifest, page_tokens: int, field: str,
) -> None:
    paged = region.kind in PAGED
    require(bool(region.planes) or not paged, f"{field}.planes", "at least one", 0)
    _check_group(region.page_group, f"{field}.page_group")
    require(region.page_group == 0 or region.kind == contract.SLIDING_WINDOW,
            f"{field}.page_group", "0 unless SLIDING_WINDOW", region.page_group)
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
    require((region.window_tokens > 0) == (region.kind == contract.SLIDING_WINDOW),
            f"{field}.window_tokens", "an extent exactly for SLIDING_WINDOW", region.window_tokens)
    ratio = region.compression_ratio
    require(not paged or (ratio >= 1 and page_tokens % ratio == 0), f"{field}.compression_ratio",
            f"a divisor of {page_tokens}, the tokens of a page", ratio)


# Accepted default values: lowest, highest, and whether the lowest itself is refused.
SAMPLING_RANGES = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "top_k": (0, TOKENS_MAX, False),
    "repetition_penalty": (0.0, 100.0, True),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
}


def _prepare_sampling(sampling: contract.SamplingDefaults) -> PreparedSampling:
    values: dict[str, float | int | None] = {}
    for name, (lowest, highest, open_end) in SAMPLING_RANGES.items():
        if not sampling.HasField(name):
            values[name] = None
            continue
        value = getattr(sampling, name)
        if not isfinite(value) or not lowest <= value <= highest or (open_end and value == lowest):
            expected = f"{'above' if open_end else 'from'} {lowest} to {highest}"
            raise ContractError(f"contract.sampling.{name}", expected, value)
        values[name] = value
    return PreparedSampling(**values)  # type: ignore[arg-type]

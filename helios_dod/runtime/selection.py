"""Load-time choices: which size of world, how many slots and pages, which programs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from helios_dod.bounds import INT64_MAX, shown, whole
from helios_dod.contract.prepared import PreparedContract, PreparedProgram
from helios_dod.errors import UserError
from helios_dod.executors import base
from helios_dod.executors.base import Geometry
from helios_dod.limits import (
    FRAMES_MAX,
    HUGE,
    LARGE,
    MASK_BITS,
    MEDIUM,
    PAGE_TOKENS_MAX,
    SIZES,
    SMALL,
    TOKEN_BLOCK,
    Limits,
)
from helios_dod.runtime.options import EngineOptions
from helios_dod.terms import (
    OP_DECODE,
    OP_INITIALIZE,
    OP_MIXED,
    OP_PREFILL,
    OP_SCORED_PREFILL,
    OP_SPECULATIVE,
)

WINDOW_SPARE = 3  # pages of a slot beside its window: the ends of it and of what is in flight
# Tokens of a page: a row of `pages` holds them, and blocks of text are whole pages.
PAGE_TOKENS = tuple(n for n in range(1, PAGE_TOKENS_MAX + 1) if TOKEN_BLOCK % n == 0)
DEFAULT_CACHE_SHARE = 0.4  # of the memory that is free at start


class SelectionError(UserError):
    """Options or machine do not fit the core: the field, what was asked, what is possible."""

    def __init__(self, field: str, asked: object, possible: str) -> None:
        self.field = field
        self.reason = f"{asked} asked, {possible}"
        super().__init__(f"{field}: {self.reason}")


@dataclass(frozen=True)
class Options:
    """What a caller may choose; None takes the core's or the machine's value."""

    concurrency: int | None = None
    context_tokens: int | None = None
    prefill_tokens: int | None = None
    cache_bytes: int | None = None
    snapshots: int | None = None  # places for them; None: as the cache's memory allows
    speculative_width: int | None = None  # widest speculative program; None: the core's own choice
    history_drafting: bool = False  # copied proposals; the core must be able to
    offload_bytes: int | None = None  # host memory for pages that leave the device; None: none
    disk_folder: Path | None = None  # where a file for pages that leave that memory is made,
    disk_bytes: int | None = None  # and its size
    frames: int = 2
    host_pending: bool = False
    caching: bool = True  # prefixes are reused
    cache_room: int | None = None  # of a device that holds the cache; None: the host's memory does
    size: str | None = None  # name of a Limits

    def __post_init__(self) -> None:
        """Raises UserError for what is no value of its field; `choose` knows what is possible."""
        for name in ("concurrency", "context_tokens", "prefill_tokens", "cache_bytes",
                     "snapshots", "speculative_width", "offload_bytes", "disk_bytes", "frames"):
            value = getattr(self, name)
            if value is not None or name == "frames":
                whole(name, value, -INT64_MAX, INT64_MAX)
        for name in ("history_drafting", "host_pending", "caching"):
            if not isinstance(getattr(self, name), bool):
                raise SelectionError(name, shown(getattr(self, name)), "True or False possible")
        if self.disk_folder is not None and not isinstance(self.disk_folder, Path):
            raise SelectionError("disk_folder", shown(self.disk_folder), "a pathlib.Path possible")
        if self.size is not None and self.size not in tuple(SIZES):
            raise SelectionError("size", shown(self.size), f"one of {', '.join(SIZES)} possible")


def selection_options(engine: EngineOptions, size: str | None) -> Options:
    """What a server's user chose; 0 there is None here."""
    return Options(
        concurrency=engine.max_active or None, context_tokens=engine.context_tokens or None,
        cache_bytes=engine.cache_bytes or None, snapshots=engine.snapshots or None,
        speculative_width=engine.speculative_width or None,
        offload_bytes=engine.offload_bytes or None, disk_folder=engine.disk_folder,
        disk_bytes=engine.disk_bytes or None,
        history_drafting=engine.history_drafting, size=size)


@dataclass(frozen=True)
class Selection:
    """What was chosen. `programs`: manifest indices that are loaded, in order."""

    limits: Limits
    geometry: Geometry
    context_tokens: int
    prefill_tokens: int
    frames: int
    host_pending: bool
    caching: bool
    history_drafting: bool
    programs: tuple[int, ...]
    page_bytes: int
    speculative_widths: tuple[int, ...]  # of the loaded speculative programs, ascending
    memory_pages: int = 0  # places for pages behind the device: host memory,
    disk_pages: int = 0  # and disk
    disk_folder: Path | None = None
    window_places: int = 0  # in host memory, for pages of windowed histories,
    window_stored: int = 0  # and on disk


def available_bytes() -> int:
    """Memory that can be had without swapping. Raises SelectionError where nothing says."""
    free = base.available_bytes()
    if free is None:
        raise SelectionError(
            "cache_bytes", "default", "but /proc/meminfo has no MemAvailable: choose it")
    return free


def sizes_of(name: str | None) -> tuple[Limits, ...]:
    """The named size, or all that are served, the smallest first."""
    return (SMALL, MEDIUM, LARGE, HUGE) if name is None else (SIZES[name],)


def choose_number(field: str, asked: int | None, most: int) -> int:
    """`asked`, or `most` when nothing was; an error outside 1..most."""
    if asked is None:
        return most
    if not 1 <= asked <= most:
        raise SelectionError(field, asked, f"1 to {most} possible")
    return asked


def choose_widths(contract: PreparedContract, asked: int | None) -> tuple[int, ...]:
    """Widths of the speculative programs to load: those that the core selects, none where it
    selects none; or, where a width was asked, every captured one up to it. Width one goes with
    any: it draws nothing, and keeps what wider rounds continue from."""
    captured = {p.width for p in contract.programs if p.operation == OP_SPECULATIVE}
    if asked is None:
        widths = set(contract.speculative_widths)
    else:
        if not captured:
            raise SelectionError("speculative_width", asked, "the core has no speculative program")
        choose_number("speculative_width", asked, max(captured))
        widths = {width for width in captured if width <= asked}
        if not widths:
            raise SelectionError("speculative_width", asked,
                                 f"the narrowest speculative program has {min(captured)}")
    return tuple(sorted(widths | ({1} & captured if widths else set())))


def kind_of(program: PreparedProgram) -> tuple[object, ...]:
    """What variants by batch have in common."""
    return (program.operation, program.host_pending, program.histogram, program.masked,
            program.packed)


def choose_programs(
    contract: PreparedContract, slots: int, widths: tuple[int, ...],
) -> tuple[int, ...]:
    """Every variant that a cohort of `slots` can need, speculative ones of these widths: of each
    kind, up to the first that holds it."""
    chosen = []
    for index, program in enumerate(contract.programs):
        if program.operation == OP_SPECULATIVE and program.width not in widths:
            continue
        kind = kind_of(program)
        enough = [p.batch for p in contract.programs
                  if kind_of(p) == kind and p.batch >= slots]
        if not enough or program.batch <= min(enough):
            chosen.append(index)
    return tuple(chosen)


def require_programs(contract: PreparedContract, slots: int, prefill: int, host: bool) -> None:
    """Missing graph variants fail start-up."""
    needed = [(OP_INITIALIZE, False, 1, 0), (OP_PREFILL, False, slots, prefill),
              (OP_MIXED, False, slots, prefill), (OP_DECODE, host, slots, slots)]
    for operation, pending, batch, packed in needed:
        if not any(p.operation == operation and p.host_pending == pending and p.batch >= batch
                   and p.packed >= packed for p in contract.programs):
            raise SelectionError(
                "programs", f"operation {operation} for {batch} lanes and {packed} packed tokens",
                "but the core has no such variant: choose smaller concurrency or prefill_tokens")


def choose_windowed(
    contract: PreparedContract, slots: int, most: int, prefill: int, width: int, snapshots: int,
) -> tuple[int, int]:
    """Pages of group 1, and how many of them one request holds at most. There is what every slot
    can hold at once, so that none ever waits for one, and as much for snapshots as slots have.
    width: tokens of a lane of the widest program that generates."""
    window, tokens = contract.cache.window_tokens, contract.cache.page_tokens
    if window == 0:
        return 0, 0
    seen, longest = -(-window // tokens), -(-most // tokens)
    spare = max(WINDOW_SPARE, 1 + -(-FRAMES_MAX * width // tokens))
    held, in_flight = min(seen + spare, longest), 2 * -(-prefill // tokens)
    pages = slots * held + in_flight + min(snapshots, slots) * seen
    return pages, min(held + in_flight, longest)


def cache_room(options: Options) -> tuple[int, int]:
    """Bytes that the cache may take, and that are free."""
    free, share = options.cache_room, 1.0
    if free is None:
        free, share = available_bytes(), DEFAULT_CACHE_SHARE
    return int(free * share) if options.cache_bytes is None else options.cache_bytes, free


def choose_pages(page_bytes: int, most: int, room: tuple[int, int], beside: int) -> int:
    """Pages of the cache: what `most` requests could hold, within the memory that windowed
    histories and snapshots leave."""
    budget, free = room
    pages = min(most, (budget - beside) // max(page_bytes, 1))
    if pages < 1:
        raise SelectionError("cache_bytes", budget,
                             f"but one page takes {page_bytes} bytes" + (
                                 f" beside {beside} bytes of windowed histories and snapshots: "
                                 "choose smaller concurrency or fewer snapshots" if beside else ""))
    if pages * page_bytes > free - beside:
        raise SelectionError(
            "cache_bytes", pages * page_bytes, f"but {free - beside} bytes of memory are free")
    return pages


def choose_context(contract: PreparedContract, options: Options, pages: int) -> int:
    """Tokens of one request: what was asked, or as many as the core, the cache and a size that was
    named can hold, so that every request within them can run alone."""
    page_tokens = contract.cache.page_tokens
    view = contract.cache.view_pages
    held = (pages - 2 * view) * page_tokens
    if held < 1:
        raise SelectionError("cache_bytes", f"{pages} pages",
                             f"but shifted page-table views take {2 * view} beside a text")
    if options.context_tokens is None:
        size = SIZES[options.size or LARGE.name]
        return min(contract.context_tokens, held, size.context_max,
                   (size.pages_per_request_max - view) * page_tokens)
    if options.context_tokens > held:
        raise SelectionError("context_tokens", options.context_tokens,
                             f"but the cache's {pages} pages hold {held}")
    return options.context_tokens


def snapshot_bytes(contract: PreparedContract, programs: Iterable[PreparedProgram]) -> int:
    """Bytes of one snapshot, beside its pages."""
    return contract.cache.snapshot_row_bytes * max(
        program.state_rows_per_request for program in programs)


def choose_snapshots(contract: PreparedContract, options: Options, slots: int, pages: int,
                     working: int, each: int, budget: int) -> int:
    """Places of snapshots: preparation's, or as many beside `pages`, which the requests could hold,
    as it had beside its own; where `budget` bytes hold both, and no more than the smallest size for
    so many slots has. working: bytes of preparation's pages. each: of a snapshot."""
    if contract.snapshots == 0:
        if options.snapshots is not None:
            raise SelectionError("snapshots", options.snapshots,
                                 "but the core was prepared for none")
        return 0
    sizes = sizes_of(options.size)
    if options.snapshots is not None:
        return choose_number("snapshots", options.snapshots, sizes[-1].snapshots_max)
    prepared = min(contract.snapshots, sizes[-1].snapshots_max)
    most = next((size.snapshots_max for size in sizes
                 if size.slots_max >= slots and size.snapshots_max >= prepared),
                sizes[-1].snapshots_max)
    held = contract.snapshots * budget // max(working + contract.snapshots * each, 1)
    beside = max(prepared, -(-contract.snapshots * pages // contract.pages))
    return max(min(most, held, beside), 1)


def choose_window_places(contract: PreparedContract, options: Options,
                         snapshots: int) -> tuple[int, int]:
    """Pages of group 1 that host memory and the disk can hold: those of all snapshots, in at most
    half of the bytes of each. The disk has those that memory has no room for."""
    cache, places = contract.cache, [0, 0]
    if options.offload_bytes is None or cache.window_tokens == 0 or not options.caching:
        return 0, 0
    most = snapshots * -(-cache.window_tokens // cache.page_tokens)
    for tier, nbytes in enumerate((options.offload_bytes, options.disk_bytes or 0)):
        places[tier] = max(min(most, nbytes // 2 // max(cache.windowed_page_bytes, 1)), 0)
        most -= places[tier]
    return places[0], places[1] if places[0] else 0


def choose_tiers(
    page_bytes: int, device_pages: int, windowed_bytes: list[int], options: Options,
) -> tuple[int, int]:
    """Pages of host memory and of disk behind the device, as many as the bytes hold beside
    windowed_bytes of each."""
    if options.disk_bytes is not None and options.offload_bytes is None:
        raise SelectionError("disk_bytes", options.disk_bytes,
                             "but pages reach the disk through offload memory: choose that too")
    if (options.disk_bytes is None) != (options.disk_folder is None):
        given = options.disk_bytes if options.disk_folder is None else options.disk_folder
        field = "disk_bytes" if options.disk_folder is None else "disk_folder"
        raise SelectionError(field, given, "but a disk tier needs a folder and a size")
    if options.offload_bytes is None:
        return 0, 0
    counts = []
    for field, asked, other in (("offload_bytes", options.offload_bytes, windowed_bytes[0]),
                                ("disk_bytes", options.disk_bytes, windowed_bytes[1])):
        counts.append(0 if asked is None else (asked - other) // max(page_bytes, 1))
        if asked is not None and counts[-1] < 1:
            raise SelectionError(field, asked, f"but one page takes {page_bytes} bytes" + (
                f" beside {other} bytes of windowed histories" if other else ""))
    free, beside = available_bytes(), ""
    wanted = counts[0] * page_bytes + windowed_bytes[0]
    if options.cache_room is None:
        wanted, beside = wanted + device_pages * page_bytes, "with the cache "
    if wanted > free:
        raise SelectionError("offload_bytes", options.offload_bytes,
                             f"but {beside}that is {wanted} bytes, and {free} are free")
    return counts[0], counts[1]


def choose_limits(name: str | None, geometry: Geometry, context: int, width: int, programs: int,
                  bindings: int, words: int, mask_words: int, tier_pages: int,
                  window_places: int) -> Limits:
    """The named size, or the smallest to hold the selection. Without tiers the cache may be cut to
    what a size holds; pages of tiers that were asked for may not."""
    needs = {
        "slots_max": geometry.slots, "lanes_max": geometry.lanes, "packed_max": geometry.packed,
        "context_max": context, "pages_per_request_max": geometry.pages_per_request,
        "width_max": width, "programs_max": programs, "bindings_max": bindings,
        "staging_words_max": words, "page_updates_max": geometry.updates,
        "mask_words_max": mask_words, "snapshots_max": geometry.snapshots,
        "window_pages_max": geometry.window_pages,
        "pages_max": max(geometry.pages + tier_pages if tier_pages else 0,
                         geometry.windowed_pages + window_places)}
    sizes = sizes_of(name)
    for size in sizes:
        short = [f"{field} {need} over {getattr(size, field)}" for field, need in needs.items()
                 if need > getattr(size, field)]
        if not short:
            return size
    raise SelectionError("size", size.name, f"but this core and its options need {short[0]}")


def choose(contract: PreparedContract, page_bytes: int, staging_words: Callable[[Geometry], int],
           options: Options) -> Selection:
    """Resolves options against the core and the machine. Raises SelectionError."""
    if contract.cache.page_tokens not in PAGE_TOKENS:
        raise SelectionError("page_tokens", contract.cache.page_tokens,
                             f"one of {PAGE_TOKENS} possible")
    frames = choose_number("frames", options.frames, FRAMES_MAX)
    slots = choose_number("concurrency", options.concurrency, contract.concurrency)
    most = choose_number("context_tokens", options.context_tokens, contract.context_tokens)
    prefill = choose_number("prefill_tokens", options.prefill_tokens, contract.prefill_tokens)
    prefill = max(prefill, slots)
    require_programs(contract, slots, prefill, options.host_pending)
    widths = choose_widths(contract, options.speculative_width)
    programs = choose_programs(contract, slots, widths)
    loaded = [contract.programs[index] for index in programs]
    page_tokens = contract.cache.page_tokens
    view = contract.cache.view_pages
    width = max(p.width for p in loaded)
    room, wanted = cache_room(options), slots * (-(-most // page_tokens) + 2 * view)
    each = snapshot_bytes(contract, loaded)
    snapshots = choose_snapshots(contract, options, slots, wanted, contract.pages * page_bytes,
                                 each, room[0])
    windowed, window_pages = choose_windowed(contract, slots, most, prefill, width, snapshots)
    pages = choose_pages(page_bytes, wanted, room,
                         windowed * contract.cache.windowed_page_bytes + snapshots * each)
    context = choose_context(contract, options, pages)
    per_request = -(-context // page_tokens) + view
    lanes, packed = max(p.batch for p in loaded), max(p.packed for p in loaded)
    whole = (OP_SCORED_PREFILL, OP_SPECULATIVE)  # logits of every packed row
    scored = max((p.packed for p in loaded if p.operation in whole), default=0)
    state_rows = max(p.state_rows_per_request for p in loaded)
    geometry = Geometry(
        lanes=lanes, packed=packed, slots=slots,
        pages=min(pages, slots * (per_request + view)), page_tokens=page_tokens,
        pages_per_request=per_request,
        updates=packed // page_tokens + 2 * lanes + per_request,
        logit_rows=max(lanes, scored), state_rows_per_request=state_rows,
        state_rows=slots * state_rows, snapshot_rows=snapshots * state_rows,
        windowed_pages=windowed, window_pages=window_pages, snapshots=snapshots)
    windows = choose_window_places(contract, options, snapshots)
    tiers = choose_tiers(page_bytes, geometry.pages,
                         [count * contract.cache.windowed_page_bytes for count in windows], options)
    limits = choose_limits(
        options.size, geometry, context, width, len(contract.programs),
        sum(len(p.bindings) for p in loaded), staging_words(geometry),
        -(-contract.vocabulary // MASK_BITS) if any(p.masked for p in loaded) else 0, sum(tiers),
        sum(windows))
    if geometry.pages > limits.pages_max:
        geometry = replace(geometry, pages=limits.pages_max)
    return Selection(limits, geometry, context, prefill, frames, options.host_pending,
                     options.caching, options.history_drafting, programs, page_bytes, widths,
                     *tiers, options.disk_folder, *windows)

"""Load-time choices: which size of world, how many slots and pages, which programs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from helios_dod.contract.prepared import PreparedContract
from helios_dod.errors import UserError
from helios_dod.executors.base import Geometry
from helios_dod.limits import LARGE, MEDIUM, SMALL, TEST_MIN, Limits
from helios_dod.terms import OP_DECODE, OP_INITIALIZE, OP_MIXED, OP_PREFILL, OP_SCORED_PREFILL

DEFAULT_CACHE_SHARE = 0.4  # of the memory that is free at start


class SelectionError(UserError):
    """Options or machine do not fit the core: the field, what was asked, what is possible."""

    def __init__(self, field: str, asked: object, possible: str) -> None:
        super().__init__(f"{field}: {asked} asked, {possible}")


@dataclass(frozen=True)
class Options:
    """What a caller may choose; None takes the core's or the machine's value."""

    concurrency: int | None = None
    context_tokens: int | None = None
    prefill_tokens: int | None = None
    cache_bytes: int | None = None
    frames: int = 2
    host_pending: bool = False
    caching: bool = True  # prefixes are reused
    size: str | None = None  # name of a Limits


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
    programs: tuple[int, ...]
    page_bytes: int


def available_bytes() -> int:
    """Memory that can be had without swapping, by /proc/meminfo."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise SelectionError(
        "cache_bytes", "default", "but /proc/meminfo has no MemAvailable: choose it")


def choose_number(field: str, asked: int | None, most: int) -> int:
    """`asked`, or `most` when nothing was; an error outside 1..most."""
    if asked is None:
        return most
    if not 1 <= asked <= most:
        raise SelectionError(field, asked, f"1 to {most} possible")
    return asked


def choose_programs(contract: PreparedContract, slots: int) -> tuple[int, ...]:
    """Every variant that a cohort of `slots` can need: of each kind, up to the first to hold it."""
    chosen = []
    for index, program in enumerate(contract.programs):
        kind = (program.operation, program.host_pending, program.histogram, program.packed)
        enough = [p.batch for p in contract.programs
                  if (p.operation, p.host_pending, p.histogram, p.packed) == kind
                  and p.batch >= slots]
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


def choose_pages(page_bytes: int, most: int, options: Options) -> int:
    """Pages of the cache: what `most` requests could hold, within the memory."""
    budget = options.cache_bytes
    if budget is None:
        budget = int(available_bytes() * DEFAULT_CACHE_SHARE)
    pages = min(most, budget // max(page_bytes, 1))
    if pages < 1:
        raise SelectionError("cache_bytes", budget, f"one page takes {page_bytes}")
    return pages


def choose_limits(name: str | None, geometry: Geometry, context: int, width: int, programs: int,
                  bindings: int, words: int) -> Limits:
    """The smallest named size that holds the selection."""
    sizes = (TEST_MIN, SMALL, MEDIUM, LARGE)
    for size in sizes:
        fits = (geometry.slots <= size.slots_max and geometry.lanes <= size.lanes_max
                and geometry.packed <= size.packed_max and context <= size.context_max
                and geometry.pages_per_request <= size.pages_per_request_max
                and width <= size.width_max and programs <= size.programs_max
                and bindings <= size.bindings_max and words <= size.staging_words_max
                and geometry.updates <= size.page_updates_max)
        if fits and ((name is None and size is not TEST_MIN) or name == size.name):
            return size
    raise SelectionError(
        "size", name or "default", f"geometry {geometry}, context {context} fits none")


def choose(contract: PreparedContract, page_bytes: int, staging_words: Callable[[Geometry], int],
           options: Options) -> Selection:
    """Resolves options against the core and the machine. Raises SelectionError."""
    slots = choose_number("concurrency", options.concurrency, contract.concurrency)
    context = choose_number("context_tokens", options.context_tokens, contract.context_tokens)
    prefill = choose_number("prefill_tokens", options.prefill_tokens, contract.prefill_tokens)
    prefill = max(prefill, slots)
    require_programs(contract, slots, prefill, options.host_pending)
    programs = choose_programs(contract, slots)
    loaded = [contract.programs[index] for index in programs]
    per_request = -(-context // contract.cache.page_tokens)
    lanes, packed = max(p.batch for p in loaded), max(p.packed for p in loaded)
    scored = max((p.packed for p in loaded if p.operation == OP_SCORED_PREFILL), default=0)
    geometry = Geometry(
        lanes=lanes, packed=packed, slots=slots,
        pages=choose_pages(page_bytes, slots * per_request, options),
        page_tokens=contract.cache.page_tokens, pages_per_request=per_request,
        updates=packed // contract.cache.page_tokens + 2 * lanes + per_request,
        logit_rows=max(lanes, scored))
    limits = choose_limits(
        options.size, geometry, context, max(p.width for p in loaded), len(contract.programs),
        sum(len(p.bindings) for p in loaded), staging_words(geometry))
    if geometry.pages > limits.pages_max:
        geometry = replace(geometry, pages=limits.pages_max)
    return Selection(limits, geometry, context, prefill, options.frames, options.host_pending,
                     options.caching, programs, page_bytes)

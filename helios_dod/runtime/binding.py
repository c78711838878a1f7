"""Resolves a prepared contract into the world's tables: settings, programs, bindings, cache."""

import hashlib
from collections.abc import Sequence

import numpy as np

from helios_dod.contract.prepared import PreparedContract, PreparedProgram, PreparedTable
from helios_dod.executors.base import Geometry
from helios_dod.limits import MASK_BITS, NO_ROW
from helios_dod.runtime.selection import Selection
from helios_dod.tables.drafts import HOPE
from helios_dod.terms import (
    OP_DECODE,
    OP_IMAGE_ENCODE,
    OP_MIXED,
    OP_PREFILL,
    OP_SCORED_PREFILL,
    OP_SPECULATIVE,
    SOURCE_CANDIDATE_COUNT,
    SOURCE_CONSUMED,
    SOURCE_PAGE_COPIES,
    SOURCE_POSITION,
    SOURCE_RESTORE_SOURCE,
    SOURCE_SNAPSHOT_DESTINATION,
    SOURCE_SPECULATIVE_PREFIX_LIMIT,
)
from helios_dod.world import fill_free, fill_pages, fill_windows

# A program that is given one of these works from an endpoint that the host knows.
ENDPOINT_SOURCES = {SOURCE_CONSUMED, SOURCE_POSITION}
STAGING_ALIGN_WORDS = 16  # every staged buffer starts on a cache line


def staged_buffers(contract: PreparedContract) -> dict[int, tuple]:
    """STAGING buffer index -> (rows extent, words a row), of every bound buffer."""
    return {binding.buffer: (binding.rows, binding.words)
            for program in contract.programs for binding in program.bindings}


def staging_layout(contract: PreparedContract, geometry: Geometry) -> tuple[dict[int, int], int]:
    """(STAGING buffer index -> first word in a frame's staging, words of a frame)."""
    first, cursor = {}, 0
    for buffer, (rows, words) in sorted(staged_buffers(contract).items()):
        first[buffer] = cursor
        cursor += geometry.extent(rows.symbol, rows.multiplier) * words
        cursor = -(-cursor // STAGING_ALIGN_WORDS) * STAGING_ALIGN_WORDS
    return first, cursor


def bind_program(world: np.ndarray, row: int, program: PreparedProgram, geometry: Geometry,
                 first: dict[int, int], tables: tuple[PreparedTable, ...]) -> None:
    """Fills one row of `programs` and its rows of `bindings`."""
    programs, bindings = world[0]["programs"], world[0]["bindings"]
    programs["operation"][row] = program.operation
    programs["host_pending"][row] = program.host_pending
    programs["histogram"][row] = program.histogram
    programs["masked"][row] = program.masked
    programs["restores"][row] = binds(program, SOURCE_RESTORE_SOURCE)
    programs["copies"][row] = binds(program, SOURCE_PAGE_COPIES)
    programs["batch"][row] = program.batch
    programs["drafts"][row] = program.drafts
    programs["width"][row] = program.width
    programs["packed"][row] = program.packed
    programs["lane_limit"][row] = program.lane_limit
    programs["cursor"][row] = program.cursor
    sources = {binding.source for binding in program.bindings}
    programs["prefix_limit"][row] = SOURCE_SPECULATIVE_PREFIX_LIMIT in sources
    programs["endpoint_input"][row] = bool(sources & ENDPOINT_SOURCES)
    programs["history_input"][row] = SOURCE_CANDIDATE_COUNT in sources
    start = int(bindings["binding_count"])
    programs["binding_first"][row] = start
    programs["binding_count"][row] = len(program.bindings)
    for at, binding in enumerate(program.bindings, start):
        rows = geometry.extent(binding.rows.symbol, binding.rows.multiplier)
        bindings["source"][at] = binding.source
        bindings["indexing"][at] = binding.indexing
        bindings["words"][at] = binding.words
        bindings["first"][at] = first[binding.buffer]
        bindings["rows"][at] = rows
        bindings["offset"][at] = binding.offset
        bindings["padding"][at] = binding.padding
        bindings["constant"][at] = binding.constant
        bindings["group"][at] = tables[binding.table].page_group if tables else 0
        bindings["shift"][at] = tables[binding.table].page_offset if tables else 0
    bindings["binding_count"] = start + len(program.bindings)


def takes_masks(programs: Sequence[PreparedProgram], host_pending: bool) -> bool:
    """Does every operation that samples for ordinary requests have its largest variant with a
    grammar mask?"""
    for operation, host in ((OP_PREFILL, False), (OP_MIXED, False), (OP_DECODE, host_pending)):
        sizes: dict[bool, tuple[int, int]] = {}
        for program in programs:
            if program.operation == operation and program.host_pending == host:
                size = (program.packed, program.batch)
                for kind in {False, program.masked}:
                    sizes[kind] = max(sizes.get(kind, size), size)
        if sizes.get(True) != sizes.get(False) or not sizes:
            return False
    return True


# Equal in variants that differ in how much they hold, or in whether they take masks.
KIND = ("operation", "host_pending", "histogram", "drafts", "width", "lane_limit",
        "prefix_limit", "endpoint_input", "history_input")


def bind_rounds(world: np.ndarray, selection: Selection) -> None:
    """Links every variant to the next smaller one of its kind, those without masks first; lists the
    speculative ones."""
    programs = world[0]["programs"]
    rows = sorted(selection.programs, key=lambda row: (
        programs["batch"][row], programs["packed"][row], programs["masked"][row]))
    last: dict[tuple[int, ...], int] = {}
    last_masked: dict[tuple[int, ...], int] = {}
    for row in rows:
        kind = tuple(int(programs[name][row]) for name in KIND)
        programs["smaller"][row] = last.get(kind, NO_ROW)
        programs["smaller_masked"][row] = last_masked.get(kind, NO_ROW)
        last[kind] = row
        if programs["masked"][row]:
            last_masked[kind] = row
    rounds = [row for row in rows if programs["operation"][row] == OP_SPECULATIVE
              and programs["host_pending"][row] == selection.host_pending]
    programs["rounds"][:len(rounds)] = rounds
    programs["round_count"] = len(rounds)
    programs["round_width"] = max((int(programs["lane_limit"][row]) for row in rounds), default=1)


def bind_masks(world: np.ndarray, contract: PreparedContract, selection: Selection) -> None:
    """Words of a mask; how many masks a constrained request may have, and how many requests may
    have more than one: as many as a round that verifies copies under masks takes lanes, and as
    there is room for; none without such a round."""
    programs, grammars = world[0]["programs"], world[0]["grammars"]
    rounds = programs["rounds"][:programs["round_count"]]
    verifying = [row for row in rounds.tolist()
                 if programs["masked"][row] and programs["history_input"][row]]
    words, drafts, lanes = -(-contract.vocabulary // MASK_BITS), 0, 0
    if verifying and selection.history_drafting:
        drafts = int(programs["lane_limit"][verifying].max()) - 1
        lanes = int(programs["batch"][verifying].max())
    spare = len(grammars["masks"]) // words - len(grammars["state"])
    grammars["mask_words"], grammars["positions"] = words, 1 + drafts
    grammars["drafted_rows"] = min(lanes, spare // max(drafts, 1), len(grammars["state"]))


def cache_seed(contract: PreparedContract) -> int:
    """Where every chain of pages of this core begins: 64 bits of its cache identity's SHA-256."""
    digest = hashlib.sha256(contract.cache_identity.encode()).digest()
    return int.from_bytes(digest[:8], "little")


def binds(program: PreparedProgram, source: int) -> bool:
    """Does a program take values of that source?"""
    return any(binding.source == source for binding in program.bindings)


def longest_span(contract: PreparedContract, selection: Selection) -> int:
    """Tokens of an atomic span that every program's share of a prompt holds, however many other
    requests decode beside it."""
    scored = [contract.programs[i].packed for i in selection.programs
              if contract.programs[i].operation == OP_SCORED_PREFILL]
    share = selection.prefill_tokens - selection.geometry.slots + 1
    return max(min([share, *scored]), 1)


def bind_snapshots(world: np.ndarray, contract: PreparedContract, selection: Selection) -> None:
    """What snapshots the selected programs can write and restore."""
    settings, geometry, cache = world[0]["settings"], selection.geometry, contract.cache
    programs = [contract.programs[i] for i in selection.programs]
    settings["stateful"] = cache.stateful
    settings["partial"] = cache.partial
    settings["state_rows"] = geometry.state_rows_per_request
    settings["view_pages"] = cache.view_pages
    settings["window_tokens"] = cache.window_tokens
    fill_windows(world[0]["windows"], geometry.windowed_pages, selection.window_places,
                 selection.window_stored)
    world[0]["windows"]["moving_max"] = (
        min(geometry.snapshots, geometry.slots) * -(-cache.window_tokens // cache.page_tokens))
    if not (cache.stateful and selection.caching and geometry.snapshots):
        return
    fill_free(world[0]["snapshots"], geometry.snapshots)
    world[0]["snapshots"]["snapshot_count"] = geometry.snapshots
    settings["snapshot_inline"] = all(
        binds(p, SOURCE_SNAPSHOT_DESTINATION) for p in programs
        if p.operation in (OP_PREFILL, OP_MIXED))
    settings["snapshot_closing"] = all(
        binds(p, SOURCE_SNAPSHOT_DESTINATION) for p in programs
        if binds(p, SOURCE_RESTORE_SOURCE))


def bind(world: np.ndarray, contract: PreparedContract, selection: Selection) -> dict[int, int]:
    """Fills a fresh world; the staging layout (STAGING buffer index -> first word).

    A program's row is its index in the manifest; rows of programs not selected stay unused."""
    geometry = selection.geometry
    settings = world[0]["settings"]
    settings["page_tokens"] = geometry.page_tokens
    settings["page_bytes"] = selection.page_bytes
    settings["window_page_bytes"] = contract.cache.windowed_page_bytes
    settings["context_tokens"] = selection.context_tokens
    settings["vocabulary"] = contract.vocabulary
    # Ids beyond the vocabulary stand for an image's features: without an encoder none are there.
    encodes = any(contract.programs[i].operation == OP_IMAGE_ENCODE for i in selection.programs)
    settings["input_vocabulary"] = contract.input_vocabulary if encodes else contract.vocabulary
    settings["slot_count"] = geometry.slots
    settings["prefill_tokens"] = selection.prefill_tokens
    settings["span_tokens"] = longest_span(contract, selection)
    settings["cursor_lag"] = contract.cache.cursor_lag_tokens
    settings["page_updates"] = geometry.updates
    settings["cache_seed"] = cache_seed(contract)
    settings["caching"] = selection.caching
    settings["host_pending"] = selection.host_pending
    settings["masked"] = takes_masks(
        [contract.programs[index] for index in selection.programs], selection.host_pending)
    settings["history"] = selection.history_drafting
    world[0]["drafts"]["prior"] = HOPE
    world[0]["frames"]["frame_count"] = selection.frames
    fill_pages(world, geometry.pages, (selection.memory_pages, selection.disk_pages))
    fill_free(world[0]["slots"], geometry.slots)
    first, _ = staging_layout(contract, geometry)
    for index in selection.programs:
        bind_program(world, index, contract.programs[index], geometry, first,
                     contract.cache.tables)
    world[0]["programs"]["program_count"] = len(contract.programs)
    bind_rounds(world, selection)
    bind_masks(world, contract, selection)
    bind_snapshots(world, contract, selection)
    return first

"""Pages behind the cache of the host executor: answers are the same bits, with the real model; the
copies alone; and the file behind memory."""

import mmap
import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from embedded import Embedded
from test_engine_equal import assert_same, requests

from helios_dod import engine as engine_module
from helios_dod.executors.disk import check_of
from helios_dod.executors.host.copies import Copies
from helios_dod.limits import SMALL
from helios_dod.runtime.disk_tier import map_file
from helios_dod.runtime.selection import SelectionError
from helios_dod.terms import (
    COPY_FETCH,
    COPY_OFFLOAD,
    COPY_RESTORE,
    COPY_SINK,
    COPY_WINDOW_FETCH,
    COPY_WINDOW_OFFLOAD,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
)
from helios_dod.world import boot

PAGE_BYTES = 2 * 368_640  # f32 planes, 16 tokens a page


def long_requests(first_tag: int = 1):
    """Prompts of some pages each."""
    rng = np.random.default_rng(5)
    return [replace(request, prompt=rng.integers(0, 49_152, 100 + 7 * i, dtype=np.int32))
            for i, request in enumerate(requests(8, first_tag))]


@pytest.fixture(scope="module")
def resident(f32_core):
    """Answers of an engine whose cache holds everything."""
    with Embedded(f32_core) as engine:
        return engine.ask(long_requests())


@pytest.mark.parametrize("disk_pages", [0, 60], ids=["memory", "disk"])
def test_offloaded_equals_resident(f32_core, resident, tmp_path, disk_pages):
    """A cache that holds two of eight prompts: asked again, they are restored, to the same bits."""
    options = {"offload_bytes": (8 if disk_pages else 80) * PAGE_BYTES}
    if disk_pages:
        options |= {"disk_bytes": disk_pages * PAGE_BYTES, "disk_folder": tmp_path}
    with Embedded(f32_core, cache_bytes=24 * PAGE_BYTES, concurrency=2, **options) as engine:
        counters = engine.engine.world[0]["counters"]
        for turn in range(3):
            for i, request in enumerate(long_requests(1 + 100 * turn)):
                assert_same(engine.ask([request]), resident[i : i + 1])
        assert counters["pages_offloaded"] > 30 and counters["copies_failed"] == 0
        assert counters["pages_restored_memory"] + counters["pages_restored_disk"] > 30
        if disk_pages:
            assert counters["pages_stored"] > 20 and counters["pages_restored_disk"] > 20
        assert os.listdir(tmp_path) == []


def test_copies_move_every_plane(f32_core, tmp_path):
    """Each kind of command by itself: bytes arrive, neighbours stay, ends come in order."""
    with Embedded(f32_core, cache_bytes=24 * PAGE_BYTES, offload_bytes=4 * PAGE_BYTES,
                  disk_bytes=4 * PAGE_BYTES, disk_folder=tmp_path) as embedded:
        executor, world = embedded.engine.executor, embedded.engine.world
        planes = [owned.reshape(bound.shape[0], -1)
                  for bound, owned in executor.memory.owned_caches()]
        rng = np.random.default_rng(2)
        for plane in planes:
            plane[:] = rng.integers(0, 256, plane.shape, dtype=np.uint8)
        before = [plane.copy() for plane in planes]
        copies = world[0]["copies"]

        def command(queue, number, kind, source, target):
            copies["kind"][queue, number] = kind
            copies["source"][queue, number], copies["target"][queue, number] = source, target

        def run(queue, first, end):
            executor.copy(queue, first, end)
            executor.drain()
            assert executor.copied(queue) == end

        command(0, 0, 1, 5, 2)  # device 5 -> memory 2
        command(0, 1, 2, 2, 9)  # memory 2 -> device 9
        run(0, 0, 2)
        command(1, 0, 3, 2, 3)  # memory 2 -> disk 3
        command(1, 1, 4, 3, 11)  # disk 3 -> device 11
        run(1, 0, 2)
        for plane, old in zip(planes, before, strict=True):
            old[9], old[11] = old[5], old[5]
            assert np.array_equal(plane, old)


def test_copies_move_windowed_pages():
    """Pages of both groups, whose planes and sizes differ: bytes arrive, neighbours stay."""
    rng, world, done = np.random.default_rng(3), boot(SMALL), os.eventfd(0, os.EFD_NONBLOCK)
    held = [rng.integers(0, 256, (10, size), dtype=np.uint8) for size in (64, 192, 32)]
    before = [plane.copy() for plane in held]
    planes, windowed = (
        np.array([[plane.ctypes.data, plane.shape[1]] for plane in some], np.int64)
        for some in (held[:1], held[1:]))
    disk = mmap.mmap(-1, 2 * 64 + 3 * (192 + 32))
    copies = Copies(planes, world, done, 4, disk, windowed, 3, 3)
    commands = (
        ((COPY_OFFLOAD, 5, 2), (COPY_WINDOW_OFFLOAD, 6, 2), (COPY_RESTORE, 2, 9),
         (COPY_WINDOW_RESTORE, 2, 1)),
        ((COPY_SINK, 2, 1), (COPY_WINDOW_SINK, 2, 0), (COPY_FETCH, 1, 8),
         (COPY_WINDOW_FETCH, 0, 7)))
    for queue, listed in enumerate(commands):
        for number, command in enumerate(listed):
            for name, value in zip(("kind", "source", "target"), command, strict=True):
                world[0]["copies"][name][queue, number] = value
        copies.start(queue, 0, 4)
        copies.drain()
    copies.close()
    os.close(done)
    before[0][9] = before[0][8] = before[0][5]
    for plane in before[1:]:
        plane[1] = plane[7] = plane[6]
    assert all(np.array_equal(plane, old) for plane, old in zip(held, before, strict=True))


def cut_off(folder):
    """Truncates the files without a name that this process has in a folder."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/"):
                os.truncate(f"/proc/self/fd/{name}", 0)


@pytest.mark.parametrize("fault", ["changed", "cut off"])
@pytest.mark.parametrize("kinds", [(COPY_SINK, COPY_FETCH), (COPY_WINDOW_SINK, COPY_WINDOW_FETCH)],
                         ids=["pages", "windows"])
def test_a_file_that_fails_fails_its_copies(tmp_path, capsys, kinds, fault):
    """What is not readable, not writable or not what was written is a copy that failed: it moves
    nothing, and those before and behind it end as ever."""
    world, done = boot(SMALL), os.eventfd(0, os.EFD_NONBLOCK)
    held = np.arange(40 * 4096, dtype=np.int64).view(np.uint8).reshape(2, 10, -1)
    before = held.copy()
    planes, windowed = (np.array([[plane.ctypes.data, plane.shape[1]]], np.int64)
                        for plane in held)
    copies = Copies(planes, world, done, 4, map_file(tmp_path, 5 * held.shape[2]), windowed, 4, 2)
    table, (sink, fetch) = world[0]["copies"], kinds
    copies.memory[:] = copies.windows[:] = 7

    def run(number, kind, source, target):
        for name, value in (("kind", kind), ("source", source), ("target", target)):
            table[name][1, number] = value
        copies.start(1, number, number + 1)
        copies.drain()
        return bool(table["failed"][1, number])

    assert not run(0, sink, 2, 1) and not run(1, fetch, 1, 3)
    if fault == "changed":
        copies._disk.bytes[:] ^= 1
    else:
        cut_off(tmp_path)
    assert run(2, fetch, 1, 4)
    assert run(3, sink, 2, 0) == (fault == "cut off")
    assert run(4, fetch, 0, 5) == (fault == "cut off")
    shown = capsys.readouterr().err
    assert shown.count("helios: --offload-disk: a page is ") == 1
    assert ("not what was written" if fault == "changed" else "not readable") in shown
    group = kinds[0] == COPY_WINDOW_SINK
    before[int(group), 3] = 7
    if fault == "changed":
        before[int(group), 5] = 7
    assert np.array_equal(held, before)
    copies.close()
    os.close(done)


@pytest.mark.parametrize("words", [1, 3, 4, 5, 64])
def test_a_check_sees_one_and_two_changed_bits(words):
    """Of a page of any length, wherever they are: the highest bits of two words as well."""
    rng = np.random.default_rng(words)
    page = rng.integers(0, 256, 8 * words, dtype=np.uint8)
    known, bits = check_of(page), 64 * words
    pairs = [(i, i) for i in range(bits)] + [(63, i) for i in range(127, bits, 64)]
    pairs += rng.integers(0, bits, (2000, 2)).tolist()
    for first, second in pairs:
        changed = page.copy()
        for bit in {first, second}:
            changed[bit // 8] ^= np.uint8(1 << bit % 8)
        assert check_of(changed) != known
    assert words == 1 or check_of(np.roll(page, 8)) != known, "words in another order"


def test_idle_engine_wakes_for_a_copy(f32_core, monkeypatch):
    """A request that only waits for a restore goes on when it ends: the loop looks by itself only
    once in hours here."""
    monkeypatch.setattr(engine_module, "IDLE_WAIT_S", 10_000)
    made = long_requests()
    with Embedded(f32_core, cache_bytes=24 * PAGE_BYTES, concurrency=2,
                  offload_bytes=80 * PAGE_BYTES) as engine:
        for request in made:
            engine.ask([request])
        restored = int(engine.engine.world[0]["counters"]["pages_restored_memory"])
        engine.ask([replace(made[0], tag=50)])
        assert engine.engine.world[0]["counters"]["pages_restored_memory"] > restored


def test_disk_without_room_or_folder_is_refused(tmp_path):
    with pytest.raises(SelectionError, match="disk_folder"):
        map_file(tmp_path / "missing", 4096)
    with pytest.raises(SelectionError, match="disk_folder"):
        map_file(tmp_path, 1 << 60)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("options, field", [
    ({"disk_bytes": 1 << 20}, "disk_bytes"),
    ({"offload_bytes": 1}, "offload_bytes"),
    ({"offload_bytes": 1 << 50}, "offload_bytes"),
    ({"offload_bytes": 1 << 20, "disk_bytes": 1 << 20}, "disk_bytes"),
])
def test_tiers_that_cannot_be_are_refused(options, field):
    from helios_dod.contract.decode import decode
    from helios_dod.runtime.binding import staging_layout
    from helios_dod.runtime.selection import Options, choose
    from helios_dod.simulation.programs import simulated_core

    manifest, serving = simulated_core()
    contract = decode(serving, manifest)
    with pytest.raises(SelectionError, match=field):
        choose(contract, 128, lambda geometry: staging_layout(contract, geometry)[1],
               Options(cache_bytes=1 << 16, **options))

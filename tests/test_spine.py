"""Schema, world, schedule: layout, boot, snapshot, and the two forms of the tick."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaError

from helios_dod import limits, schedule
from helios_dod.contract.decode import decode
from helios_dod.limits import NO_ROW, SIZES, TEST_MIN
from helios_dod.runtime.selection import Options, SelectionError, choose
from helios_dod.simulation.programs import simulated_core
from helios_dod.system import kernel
from helios_dod.terms import OP_SPECULATIVE
from helios_dod.world import attach, boot, diff, digest, dtype_of, restore, snapshot


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_columns_are_aligned_and_disjoint(size):
    """Large columns start on cache lines; no two columns overlap; the dtype is an aligned
    struct."""
    dtype = dtype_of(size)
    assert dtype.isalignedstruct and dtype is dtype_of(size)
    for name in dtype.names:
        table, start = dtype.fields[name][:2]
        assert start % 64 == 0
        end = 0
        for column in table.names:
            kind, offset = table.fields[column][:2]
            assert offset >= end
            assert kind.itemsize < 64 or offset % 64 == 0
            end = offset + kind.itemsize


def test_boot_links_name_nothing():
    w = boot(TEST_MIN)[0]
    assert (w["requests"]["slot"] == NO_ROW).all() and w["requests"]["waiting_first"] == NO_ROW
    assert (w["slots"]["pages"] == NO_ROW).all()
    assert int(w["requests"]["free"][int(w["requests"]["free_count"]) - 1]) == 0


def test_snapshot_restore_digest_diff():
    world = boot(TEST_MIN)
    saved, before = snapshot(world), digest(world)
    world[0]["pages"]["free_count"] = 3
    assert diff(saved, world) == ["pages.free_count"] and digest(world) != before
    restore(world, saved)
    assert digest(world) == before and diff(saved, world) == []


def test_attach_sees_the_same_memory():
    memory = memoryview(bytearray(dtype_of(TEST_MIN).itemsize))
    first, second = boot(TEST_MIN, memory), attach(TEST_MIN, memory)
    first[0]["clock"]["tick"] = 9
    assert second[0]["clock"]["tick"] == 9


def test_limits_refuse_what_could_overflow():
    fields = {**TEST_MIN.__dict__, "ingress_rows_max": 5}
    with pytest.raises(AssertionError):
        limits.Limits(**fields)


def test_fused_tick_calls_the_systems_in_order():
    halves = (schedule.tick_first, schedule.tick_rest)
    lines = [line for half in halves for line in inspect.getsource(half.py_func).splitlines()]
    called = [line.strip().removesuffix("(world)") for line in lines if "run_" in line]
    assert called == [f"run_{step.name}" for step in schedule.TICK]
    for step in schedule.TICK:
        assert getattr(schedule, f"run_{step.name}") is step.run
    whole = inspect.getsource(schedule.tick.py_func)
    assert 0 < whole.index("tick_first(world)") < whole.index("tick_rest(world)")


def test_readme_draws_the_tick():
    """The order of systems in the README is the order of TICK."""
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    drawn = readme[readme.index("receive ->"):readme.index("emit\n")] + "emit"
    assert drawn.replace("\n", " ").replace("->", " ").split() == [s.name for s in schedule.TICK]


def test_tables_hold_integers_only():
    for name in dtype_of(TEST_MIN).names:
        table = dtype_of(TEST_MIN)[name]
        for column in table.names:
            assert np.issubdtype(table[column].base, np.integer), f"{name}.{column}"


def test_speculative_width_is_reduced_at_load():
    """The core's own widths hold until an option chooses; other programs are not loaded."""
    manifest, serving = simulated_core()
    plain = decode(serving, manifest)
    wide = [replace(plain.programs[-2], name=f"speculative_{width}", operation=OP_SPECULATIVE,
                    width=width, drafts=width - 1) for width in (1, 2, 4)]
    contract = replace(plain, programs=(*plain.programs, *wide), speculative_widths=(2,))
    first = len(plain.programs)

    def loaded(core=contract, **options):
        chosen = choose(core, 128, lambda geometry: 1, Options(cache_bytes=1 << 16, **options))
        assert chosen.limits.width_max >= max(chosen.speculative_widths, default=1)
        return [index - first for index in chosen.programs if index >= first]

    assert loaded() == [0, 1]  # the declared width, and width one beside it
    assert loaded(replace(contract, speculative_widths=(4,))) == [0, 2]
    assert loaded(replace(contract, speculative_widths=())) == []
    assert loaded(speculative_width=4) == [0, 1, 2] and loaded(speculative_width=2) == [0, 1]
    assert loaded(speculative_width=1) == [0]
    assert loaded(replace(contract, speculative_widths=()), speculative_width=2) == [0, 1]
    with pytest.raises(SelectionError, match="speculative_width: 5 asked, 1 to 4"):
        loaded(speculative_width=5)
    with pytest.raises(SelectionError, match=r"speculative_width: 1 asked, the narrowest .* has 4"):
        loaded(replace(contract, programs=(*plain.programs, wide[2])), speculative_width=1)
    with pytest.raises(SelectionError, match="no speculative program"):
        choose(plain, 128, lambda geometry: 1, Options(cache_bytes=1 << 16, speculative_width=2))


def test_a_kernel_that_would_allocate_does_not_compile():
    @kernel
    def total(count):
        return np.arange(count).sum()

    with pytest.raises(NumbaError):
        total(3)

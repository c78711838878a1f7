"""Pages behind the device: offloaded = resident in the simulator, faults of copies, canaries, and
the page tables alone against a naive twin."""

from dataclasses import replace

import numpy as np
import pytest

from helios_dod.limits import SMALL
from helios_dod.simulation.invariants import Violation
from helios_dod.simulation.simulator import Simulator, Workload
from helios_dod.systems.settle import observe
from helios_dod.terms import (
    COPY_RESTORE,
    COPY_WINDOW_RESTORE,
    COPY_WINDOW_SINK,
    QUEUE_DISK,
    QUEUE_MEMORY,
)
from helios_dod.world import boot

REVISITS = Workload(
    arrival=0.3, cancel=0.0, deadline=0.0, stops=0.0, ignore_eos=1.0, shared=1.0, scored=0.0,
    salted=0.0, oversize=0.0, drain=1.0, prompt_max=60, output_max=20, priority_max=0,
    memory_pages=12, copy_ns=20)


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("disk", [0, 12], ids=["memory", "disk"])
def test_offloaded_equals_resident(seed, disk):
    """With a cache too small for its texts, hits are restored, and every answer is the oracle's."""
    load = replace(REVISITS, disk_pages=disk, memory_pages=3 if disk else 12)
    simulator = Simulator(seed, walked=seed == 1, workload=load, pages=12)
    simulator.run(300)
    counters = simulator.world[0]["counters"]
    for name in ("pages_offloaded", "pages_restored_disk" if disk else "pages_restored_memory"):
        assert counters[name] > 0, name


@pytest.mark.parametrize("seed", range(200, 216))
def test_faults_of_copies(seed):
    """Failed and late copies, cancels at any time: the oracle's answers, and at the end no page,
    place, command or reference is held."""
    load = replace(
        REVISITS, arrival=1.0, cancel=(0.0, 0.3)[seed % 2], deadline=0.2, shared=0.8, scored=0.1,
        memory_pages=(1, 4, 12)[seed % 3], disk_pages=(0, 1, 12)[seed // 3 % 3],
        copy_failure=(0.1, 0.6)[seed // 2 % 2], copy_late=0.2, copy_ns=(20, 300)[seed % 2])
    simulator = Simulator(seed, walked=seed % 8 == 0, workload=load, pages=(8, 12, 20)[seed % 3])
    simulator.run(200 if simulator.walked else 1000)
    assert simulator.world[0]["counters"]["copies_failed"] > 0


def test_every_rare_branch_is_reached():
    """Over some seeds: dropping in each tier, refused restores, failures, and pages computed again
    while they were away."""
    reached = dict.fromkeys(
        ("pages_dropped_memory", "pages_dropped_disk", "copies_failed", "pages_stored",
         "pages_evicted", "preempted", "refused"), 0)
    for seed in range(5):
        load = replace(REVISITS, arrival=1.0, memory_pages=3, disk_pages=4, copy_failure=0.1,
                       copy_ns=(20, 3000)[seed % 2], output_max=60)
        simulator = Simulator(seed, walked=False, workload=load, pages=8)
        simulator.run(800)
        for name in reached:
            reached[name] += int(
                simulator.world[0]["tiers"]["refused_count"].sum() if name == "refused"
                else simulator.world[0]["counters"][name])
    assert all(reached.values()), reached


def test_alone_with_duplicates_ends():
    """A request that computed what another published, and alone fills the cache, does not wait for
    itself (seeds that once did)."""
    for seed, disk in ((1185, 0), (1016, 12)):
        load = replace(REVISITS, arrival=1.0, shared=0.7, scored=0.2, prompt_max=120, output_max=60,
                       memory_pages=3 if disk else 1, disk_pages=disk, copy_ns=3000)
        Simulator(seed, walked=False, workload=load, pages=12).run(600)


def test_time_of_copies_is_shared_by_their_bytes():
    """A page of a window and one of the other group, which end together: each has its part."""
    world = boot(SMALL)
    w = world[0]
    w["settings"]["page_bytes"], w["settings"]["window_page_bytes"] = 300, 100
    w["clock"]["now_ns"] = 4000
    for number, kind in enumerate((COPY_RESTORE, COPY_WINDOW_RESTORE)):
        w["copies"]["kind"][QUEUE_MEMORY, number] = kind
    observe(world, QUEUE_MEMORY, 0, 2)
    tiers = w["tiers"]
    assert (tiers["restored_ns"][0], tiers["window_restored_ns"][0]) == (3000, 1000)
    assert (tiers["restored_count"][0], tiers["window_restored_count"][0]) == (1, 1)
    w["clock"]["now_ns"] = 4500
    w["copies"]["kind"][QUEUE_DISK, 0] = COPY_WINDOW_SINK
    observe(world, QUEUE_DISK, 0, 1)
    assert (tiers["window_stored_ns"][1], tiers["stored_count"][1]) == (4500, 0)


def skip_one(simulator, kind):
    """A device that reports the first copy of a kind as done, and has not done it."""
    moved, skipped = simulator.executor._move, []
    ends = {"offload": (simulator.executor.cache, simulator.executor.memory),
            "restore": (simulator.executor.memory, simulator.executor.cache)}[kind]

    def move(source, target):
        if not skipped and source[0] is ends[0] and target[0] is ends[1]:
            skipped.append(target)
            return
        moved(source, target)

    simulator.executor._move = move
    return skipped


@pytest.mark.parametrize(("kind", "least"), [("offload", 1), ("restore", 15)])
def test_canary_skipped_copy(kind, least):
    """One copy that is reported as done and was not changes tokens, and the oracle sees it. A page
    that is restored is needed at once: about four of five seeds tell."""
    seen = 0
    for seed in range(1, 31):
        simulator = Simulator(seed, walked=False, workload=REVISITS, pages=12)
        skipped = skip_one(simulator, kind)
        try:
            simulator.run(150)
        except Violation as violation:
            assert skipped and "expected" in str(violation)
            seen += 1
        if seen == least:
            return
    raise AssertionError(f"{seen} of 30 seeds tell")


def test_canary_leaked_place():
    """A place of a tier that nothing holds is noticed at the next check."""
    simulator = Simulator(3, walked=True, workload=REVISITS, pages=12)
    for _ in range(40):
        simulator.tick()
    simulator.world[0]["tiers"]["free_count"][0] -= 1
    with pytest.raises(Violation, match="places of the memory"):
        simulator.tick()


def test_canary_page_reused_before_its_copy():
    """A page given away while its copy still reads it is noticed at once."""
    simulator = Simulator(4, walked=True, workload=REVISITS, pages=12)
    pages = simulator.world[0]["pages"]
    for _ in range(200):
        simulator.tick()
        if simulator.world[0]["copies"]["leaving_count"] > 0:
            break
    leaving = int(np.nonzero(pages["state"] == 3)[0][0])
    pages["free"][int(pages["free_count"])] = pages["place"][leaving]
    pages["free_count"] += 1
    with pytest.raises(Violation, match="places of the device"):
        simulator.tick()


def test_device_error_with_copies_in_flight():
    """After a device error requests end with that reason; copies in flight count as failed."""
    from helios_dod.executors.base import DeviceError
    from helios_dod.terms import FINISH_DEVICE_ERROR

    load = replace(REVISITS, arrival=1.0, copy_ns=5000)
    simulator = Simulator(10, walked=False, workload=load, pages=8)
    reasons = []
    simulator.judge = lambda live, reason, *_: reasons.append(reason)
    for _ in range(400):
        simulator.tick()
        copies = simulator.world[0]["copies"]
        if (copies["first"] != copies["end"]).any() and simulator.engine.failure is None:
            break

    def broken():
        raise DeviceError("copy(queue=0): injected")

    simulator.executor.poll = broken
    simulator.executor.next_end = lambda: None
    simulator.run(10)
    assert FINISH_DEVICE_ERROR in reasons
    assert simulator.world[0]["counters"]["copies_failed"] > 0

"""The checks of a walked tick themselves: what they say that they read is all that they read, and a
system that writes what it does not declare is caught."""

import pytest

from helios_dod.simulation.invariants import INVARIANTS, Violation, check
from helios_dod.simulation.simulator import Simulator
from helios_dod.simulation.swarm import shape
from helios_dod.simulation.watch import covers
from helios_dod.systems.pack import pack

SEEDS = (5, 9, 33)  # of the corpus: tiers, snapshots and windows, rounds


class Seen:
    """A record that notes which columns are looked at."""

    def __init__(self, record, prefix, names):
        self.record, self.prefix, self.names = record, prefix, names

    def __getitem__(self, name):
        if not self.prefix:
            return Seen(self.record[name], f"{name}.", self.names)
        self.names.add(self.prefix + name)
        return self.record[name]


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_read_what_they_declare(seed):
    """Else a change that one of them would notice would not run it."""
    simulator = Simulator(seed, walked=False, **shape(seed))
    names = [set() for _ in INVARIANTS]
    for _ in range(60):
        simulator.tick()
        for invariant, found in zip(INVARIANTS, names, strict=True):
            invariant.check(Seen(simulator.world[0], "", found))
    for invariant, found in zip(INVARIANTS, names, strict=True):
        assert found and not [name for name in found if not covers(invariant.reads, name)]


def test_canary_undeclared_write():
    """A system that touches a column outside its write-set, be it by one bit."""
    simulator = Simulator(5, walked=True, **shape(5))
    for _ in range(20):
        simulator.tick()
    simulator.watch.after(None)
    simulator.world[0]["staging"]["words"][0, 0] ^= 1
    simulator.watch.after(pack)
    simulator.world[0]["slots"]["acceptance"][0, 1] ^= 1
    with pytest.raises(Violation, match=r"pack wrote \['slots.acceptance'\]"):
        simulator.watch.after(pack)


def test_walked_ticks_see_what_all_invariants_see():
    """A broken link is noticed by the step that changes it, and by a check of everything."""
    simulator = Simulator(9, walked=True, **shape(9))
    for _ in range(40):
        simulator.tick()
    check(simulator.world)
    simulator.world[0]["pages"]["idle_count"] += 1
    for judge in (lambda: check(simulator.world), lambda: simulator.watch.after(None)):
        with pytest.raises(Violation, match="idle_count"):
            judge()

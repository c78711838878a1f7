"""TICK, the sequence of systems, and its fused jitted form. A test proves both equal."""

from helios_dod.system import System, kernel
from helios_dod.systems.accept import accept
from helios_dod.systems.admit import admit
from helios_dod.systems.collect import collect
from helios_dod.systems.compose import compose
from helios_dod.systems.constrain import constrain
from helios_dod.systems.emit import emit
from helios_dod.systems.evict import evict
from helios_dod.systems.match import match
from helios_dod.systems.pack import pack
from helios_dod.systems.preempt import preempt
from helios_dod.systems.publish import publish
from helios_dod.systems.receive import receive
from helios_dod.systems.reserve import reserve
from helios_dod.systems.restore import restore
from helios_dod.systems.retire import retire
from helios_dod.systems.settle import settle
from helios_dod.systems.stop import stop
from helios_dod.systems.submit import submit

TICK: tuple[System, ...] = (
    receive, collect, accept, stop, constrain, publish, retire, settle, match, admit, evict,
    preempt, restore, compose, reserve, pack, submit, emit,
)

(run_receive, run_collect, run_accept, run_stop, run_constrain, run_publish, run_retire, run_settle,
 run_match, run_admit, run_evict, run_preempt, run_restore, run_compose, run_reserve, run_pack,
 run_submit, run_emit) = (
    step.run for step in TICK)


@kernel
def tick_first(world):
    """Systems up to `accept`; then the engine reads the clock if a timed token was accepted."""
    run_receive(world)
    run_collect(world)
    run_accept(world)
    return world[0].clock.observed


@kernel
def tick_rest(world):
    """The systems behind `accept`."""
    run_stop(world)
    run_constrain(world)
    run_publish(world)
    run_retire(world)
    run_settle(world)
    run_match(world)
    run_admit(world)
    run_evict(world)
    run_preempt(world)
    run_restore(world)
    run_compose(world)
    run_reserve(world)
    run_pack(world)
    run_submit(world)
    run_emit(world)


@kernel
def tick(world):
    """One tick in one call: the systems of TICK in order."""
    tick_first(world)
    tick_rest(world)

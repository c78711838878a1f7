"""A simulated device without shadow contents, for studies, where nobody reads tokens.

A token is drawn from the request's seed and its position. So pages, page tables and prompts change
nothing here: what checks the scheduler by its tokens runs over the contents of simulated.py.
"""

import numpy as np

from helios_dod.executors.simulated import SimulatedExecutor
from helios_dod.executors.simulated_device import advance, initialize, mix
from helios_dod.executors.simulated_flight import COUNT, FINISHED, FIRST, land
from helios_dod.system import kernel
from helios_dod.terms import (
    OP_DECODE,
    OP_INITIALIZE,
    OP_MIXED,
    OP_PREFILL,
    SOURCE_CONSUMED,
    SOURCE_GENERATION,
    SOURCE_LIVE_LANES,
    SOURCE_LIVE_SAMPLED,
    SOURCE_QUERY_LENGTH,
    SOURCE_SLOT,
    STATUS_RUNNING,
)

KNOWN = (OP_INITIALIZE, OP_PREFILL, OP_MIXED, OP_DECODE)


@kernel
def draw_lanes(world, frame, at, vocabulary, pending, endpoint, seeds, limits, minimums, stops,
               generated, status):
    """A plain program: draws for the lanes that sample, and reports every lane."""
    words, done = world[0].staging.words[frame], world[0].completions
    lanes, sampled = words[at[SOURCE_LIVE_LANES]], words[at[SOURCE_LIVE_SAMPLED]]
    slots = words[at[SOURCE_SLOT]:at[SOURCE_SLOT] + lanes]
    consumed = words[at[SOURCE_CONSUMED]:at[SOURCE_CONSUMED] + lanes]
    length = words[at[SOURCE_QUERY_LENGTH]:at[SOURCE_QUERY_LENGTH] + lanes]
    for lane in range(lanes):
        done.slot[frame, lane] = slots[lane]
    for lane in range(lanes):
        done.generation[frame, lane] = words[at[SOURCE_GENERATION] + lane]
    done.offered[frame, :lanes] = 0
    done.accepted[frame, :lanes] = 0
    done.cursor[frame, :lanes] = -1
    done.reserved[frame, :lanes] = -1
    for lane in range(lanes):
        done.endpoint[frame, lane] = consumed[lane] + length[lane]
    for lane in range(lanes):
        slot = slots[lane]
        endpoint[slot] = done.endpoint[frame, lane]
        emitted = lane < sampled and status[slot] == STATUS_RUNNING
        if emitted:
            high = mix(seeds[slot] ^ np.uint64(endpoint[slot])) >> np.uint64(32)
            pending[slot] = np.int32((high * np.uint64(vocabulary)) >> np.uint64(32))
            done.tokens[frame, lane, 0] = pending[slot]
            advance(slot, pending[slot], limits, minimums, stops, generated, status)
        done.emitted[frame, lane] = emitted
        done.status[frame, lane] = status[slot]


@kernel
def run_due(world, flight, now_ns, bound, operations, vocabulary, device):
    """Runs every program whose end has come. device: `NoiseExecutor.drawn`."""
    pending, endpoint, seeds, limits, minimums, stops, generated, status = device
    while flight[COUNT] > 0 and flight[FIRST] <= now_ns:
        frame, program = flight[FIRST + 2], flight[FIRST + 3]
        assert operations[program] in KNOWN
        if operations[program] == OP_INITIALIZE:
            initialize(world[0].staging.words[frame], bound[program], seeds, limits, minimums,
                       stops, generated, status)
        else:
            draw_lanes(world, frame, bound[program], vocabulary, pending, endpoint, seeds, limits,
                       minimums, stops, generated, status)
        land(flight)


class NoiseExecutor(SimulatedExecutor):
    """Knows `initialize` and plain programs; another one is a broken invariant."""

    def poll(self) -> int:
        """Runs every program whose end has come."""
        run_due(self.world, self.flight, self.clock(), self.at, self.operations,
                self.contract.vocabulary, self.drawn)
        return int(self.flight[FINISHED])

    @property
    def drawn(self) -> tuple[np.ndarray, ...]:
        """What its programs work on."""
        return (self.pending, self.endpoint, self.seeds, self.limits, self.minimums, self.stops,
                self.generated, self.status)

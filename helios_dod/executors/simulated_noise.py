"""A simulated device without shadow contents, for studies, where nobody reads tokens.

A token is drawn from the request's seed and its position, and which drafts are right by a model of
acceptance. So pages, page tables and prompts change nothing here: what checks the scheduler by its
tokens runs over the contents of simulated.py.
"""

from collections.abc import Mapping

import numpy as np

from helios_dod.executors.acceptance import foretell
from helios_dod.executors.base import Geometry
from helios_dod.executors.simulated import SimulatedExecutor
from helios_dod.executors.simulated_device import advance, initialize, mix
from helios_dod.executors.simulated_flight import COUNT, FINISHED, FIRST, land
from helios_dod.executors.simulated_rounds import lengths_of, report
from helios_dod.system import kernel
from helios_dod.terms import (
    OP_DECODE,
    OP_INITIALIZE,
    OP_MIXED,
    OP_PREFILL,
    OP_SPECULATIVE,
    SOURCE_CONSUMED,
    SOURCE_GENERATION,
    SOURCE_LIVE_LANES,
    SOURCE_LIVE_SAMPLED,
    SOURCE_QUERY_LENGTH,
    SOURCE_SLOT,
    STATUS_RUNNING,
)

KNOWN = (OP_INITIALIZE, OP_PREFILL, OP_MIXED, OP_DECODE, OP_SPECULATIVE)
END_TOKEN = 0  # where answers end by themselves; no other token of theirs is this one


@kernel
def next_token(slot, position, vocabulary, seeds, generated, ends):
    """The token of a position. ends: int64, tokens of the answer to the request of each seed, or
    nothing where only limits end answers."""
    high = mix(seeds[slot] ^ np.uint64(position)) >> np.uint64(32)
    token = np.int32((high * np.uint64(vocabulary)) >> np.uint64(32))
    if ends.shape[0] == 0:
        return token
    if generated[slot] + 1 >= ends[np.int64(seeds[slot])]:
        return np.int32(END_TOKEN)
    return max(token, np.int32(END_TOKEN + 1))


@kernel
def draw_lanes(world, frame, at, vocabulary, pending, endpoint, seeds, limits, minimums, stops,
               generated, status, ends):
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
            pending[slot] = next_token(slot, endpoint[slot], vocabulary, seeds, generated, ends)
            done.tokens[frame, lane, 0] = pending[slot]
            advance(slot, pending[slot], limits, minimums, stops, generated, status)
        done.emitted[frame, lane] = emitted
        done.status[frame, lane] = status[slot]


@kernel
def draw_round(world, frame, at, vocabulary, extents, model, confidence, survivals, heap, lengths,
               pending, endpoint, seeds, limits, minimums, stops, generated, status, ends):
    """A speculative program: target rows by the drafts' confidence where it allocates; then each
    lane's tokens, up to the first draft that is wrong. extents: int64 [2], drafts of a lane, and
    target rows of all. confidence: f32 [lanes, drafts]. lengths: i32 [lanes]. survivals,
    heap: see allocate_prefixes."""
    words, done, rows = world[0].staging.words[frame], world[0].completions, 0
    lanes = words[at[SOURCE_LIVE_LANES]]
    for lane in range(lanes):
        slot = words[at[SOURCE_SLOT] + lane]
        if at[SOURCE_CONSUMED] >= 0:
            endpoint[slot] = words[at[SOURCE_CONSUMED] + lane]
        for place in range(extents[0]):
            confidence[lane, place] = foretell(model, seeds[slot], endpoint[slot] + place, place)[1]
    lengths_of(words, at, lanes, extents[1], confidence, survivals, heap, lengths)
    for lane in range(lanes):
        slot, emitted = words[at[SOURCE_SLOT] + lane], 0
        going, start = status[slot] == STATUS_RUNNING, endpoint[slot]
        while going:
            pending[slot] = next_token(slot, start + emitted + 1, vocabulary, seeds, generated,
                                       ends)
            done.tokens[frame, lane, emitted] = pending[slot]
            advance(slot, pending[slot], limits, minimums, stops, generated, status)
            going = (status[slot] == STATUS_RUNNING and emitted + 1 < lengths[lane]
                     and foretell(model, seeds[slot], start + emitted, emitted)[0])
            emitted += 1
        endpoint[slot] = start + emitted
        rows += lengths[lane]
        report(world, frame, at, lane, lengths[lane] - 1, emitted, endpoint[slot], status[slot])
    done.aggregate[frame] = rows
    done.agreement[frame] = True


@kernel
def run_due(world, flight, now_ns, bound, operations, vocabulary, device):
    """Runs every program whose end has come. device: `NoiseExecutor.drawn`."""
    (pending, endpoint, seeds, limits, minimums, stops, generated, status, ends, extents, model,
     confidence, survivals, heap, lengths) = device
    while flight[COUNT] > 0 and flight[FIRST] <= now_ns:
        frame, program = flight[FIRST + 2], flight[FIRST + 3]
        assert operations[program] in KNOWN
        if operations[program] == OP_INITIALIZE:
            initialize(world[0].staging.words[frame], bound[program], seeds, limits, minimums,
                       stops, generated, status)
        elif operations[program] == OP_SPECULATIVE:
            draw_round(world, frame, bound[program], vocabulary, extents[program], model,
                       confidence[frame], survivals, heap, lengths, pending, endpoint, seeds,
                       limits, minimums, stops, generated, status, ends)
        else:
            draw_lanes(world, frame, bound[program], vocabulary, pending, endpoint, seeds, limits,
                       minimums, stops, generated, status, ends)
        land(flight)


class NoiseExecutor(SimulatedExecutor):
    """Knows `initialize`, plain and speculative programs; another one is a broken invariant."""

    def load(self, manifest: object, geometry: Geometry, weights: Mapping[str, np.ndarray],
             staging_first: Mapping[int, int], world: np.ndarray) -> None:
        """As its parent. Only limits end answers until `ends` says otherwise."""
        super().load(manifest, geometry, weights, staging_first, world)
        self.ends = np.zeros(0, np.int64)
        self.extents = np.array([(program.drafts, program.packed)
                                 for program in self.contract.programs], np.int64)

    def poll(self) -> int:
        """Runs every program whose end has come."""
        run_due(self.world, self.flight, self.clock(), self.at, self.operations,
                self.contract.vocabulary, self.drawn)
        return int(self.flight[FINISHED])

    @property
    def drawn(self) -> tuple[np.ndarray, ...]:
        """What its programs work on."""
        return (self.pending, self.endpoint, self.seeds, self.limits, self.minimums, self.stops,
                self.generated, self.status, self.ends, self.extents, self.model, self.confidence,
                self.survivals, self.heap, self.lengths)

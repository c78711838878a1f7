"""A study's step in jitted code: arrivals, the engine's tick, programs of the simulated device,
events, time. The same calls in the same order as `Study.step`; a test compares bytes.
"""

import numpy as np

from helios_dod.edges import WORDS, put_submission
from helios_dod.engine import begin, to_launch
from helios_dod.executors.simulated_device import mix
from helios_dod.executors.simulated_flight import COUNT, FINISHED, FIRST, take_off
from helios_dod.executors.simulated_noise import run_due
from helios_dod.schedule import tick_first, tick_rest
from helios_dod.system import kernel, load_acquire, store_release
from helios_dod.terms import EGRESS_FINISHED, EGRESS_REJECTED, EGRESS_TOKEN

GAP_BINS_OCTAVE = 64  # so a gap is known within 1.1 %
GAP_BINS = 64 * GAP_BINS_OCTAVE
PROMPT_COUNT, OUTPUT_LIMIT = WORDS.index("prompt_count"), WORDS.index("output_limit")
# Words of `at`: the time; requests that were submitted and that ended; the one whose prompt
# `payload` holds; seed, concurrency, vocabulary; newest launched sequence; host time of a launch;
# tokens of an answer at most, 0: as many as it has.
(NOW, NEXT, ENDED, FILLED, SEED, CONCURRENCY, VOCABULARY, LAUNCHED, HOST_NS, LIMIT,
 LOAD_WORDS) = range(11)


@kernel
def fill_prompt(payload, seed, index, prefix, shared, count, vocabulary):
    """Tokens of a request's prompt: the first `shared` are those of text number `prefix`."""
    for i in range(count):
        key = np.uint64(2 * prefix + 2 if i < shared else 2 * index + 1)
        drawn = mix(mix(key ^ (np.uint64(seed) << np.uint64(40))) ^ np.uint64(i))
        payload[i] = np.int32(((drawn >> np.uint64(32)) * np.uint64(vocabulary)) >> np.uint64(32))


@kernel
def arrive(world, at, trace, arrived_ns, words, eos, payload):
    """Submits what has come by now, in order; a full ring keeps the rest outside.

    trace: int64 [5, requests] in the order of traces.COLUMNS."""
    while at[NEXT] < trace.shape[1]:
        index = at[NEXT]
        if at[CONCURRENCY] > 0:
            if index - at[ENDED] >= at[CONCURRENCY]:
                return
        elif trace[0, index] > at[NOW]:
            return
        count = trace[1, index]
        if at[FILLED] != index:
            fill_prompt(payload, at[SEED], index, trace[3, index], trace[4, index], count,
                        at[VOCABULARY])
            at[FILLED] = index
        words[PROMPT_COUNT] = count
        words[OUTPUT_LIMIT] = at[LIMIT] if at[LIMIT] > 0 else trace[2, index]
        if not put_submission(world, 0, index, 0, np.uint64(index), np.uint64(0), words, eos,
                              payload[:count]):
            return
        arrived_ns[index] = at[NOW] if at[CONCURRENCY] > 0 else trace[0, index]
        at[NEXT] += 1


@kernel
def gap_bin(gap_ns):
    """Bin of a gap: logarithmic, GAP_BINS_OCTAVE an octave."""
    if gap_ns < 1:
        return 0
    return min(int(np.log2(gap_ns) * GAP_BINS_OCTAVE), GAP_BINS - 1)


@kernel
def read(world, at, first_ns, last_ns, tokens, finish, cached, gaps):
    """Takes every waiting event. Tokens of a tick are mostly equally late, so the last bin is
    remembered."""
    ring, now_ns = world[0].egress, at[NOW]
    rows = ring.kind.shape[1]
    first, end = ring.first[0, 0], load_acquire(ring.end[0], 0)
    gap, bin_of_gap = np.int64(0), 0
    for position in range(first, end):
        row = position % rows
        kind, tag = ring.kind[0, row], ring.tag[0, row]
        if kind == EGRESS_TOKEN:
            if tokens[tag] == 0:
                first_ns[tag] = now_ns
            else:
                if now_ns - last_ns[tag] != gap:
                    gap = now_ns - last_ns[tag]
                    bin_of_gap = gap_bin(gap)
                gaps[bin_of_gap] += 1
            last_ns[tag] = now_ns
            tokens[tag] += 1
        elif kind == EGRESS_FINISHED:
            finish[tag] = ring.reason[0, row]
            cached[tag] = ring.value[0, row]
            at[ENDED] += 1
        elif kind == EGRESS_REJECTED:
            at[ENDED] += 1
    store_release(ring.first[0], 0, end)


@kernel
def launch(world, at, flight, operations, costs, launches, features):
    """Queues newly submitted frames behind those in flight; how many."""
    count = to_launch(world, at[LAUNCHED], launches)
    for i in range(count):
        frame, program, sequence = launches[i, 0], launches[i, 1], launches[i, 2]
        take_off(world, flight, at[NOW], at[HOST_NS], frame, program, sequence,
                 operations[program], costs, features)
        at[LAUNCHED] = sequence
    return count


@kernel
def advance(world, at, flight, trace, launched):
    """Time passes to the next fence or arrival. It does not behind a tick that launched while there
    is a frame left: the engine's loop goes on at once then, and may fill that one too."""
    if launched and flight[COUNT] < world[0].frames.frame_count:
        return
    found, soonest = flight[COUNT] > 0, flight[FIRST]
    if at[CONCURRENCY] == 0 and at[NEXT] < trace.shape[1] and trace[0, at[NEXT]] > at[NOW]:
        soonest = min(soonest, trace[0, at[NEXT]]) if found else trace[0, at[NEXT]]
        found = True
    if found:
        at[NOW] = max(at[NOW], soonest)


@kernel
def run_steps(world, count, at, trace, arrived_ns, words, eos, payload, columns, flight, bound,
              operations, costs, launches, features, device):
    """At most `count` steps, fewer where every request has ended; how many. Requests of a study
    bring no grammar, no timed token and nothing for the tiers."""
    first_ns, last_ns, tokens, finish, cached, gaps = columns
    for step in range(count):
        if at[ENDED] == trace.shape[1]:
            return step
        arrive(world, at, trace, arrived_ns, words, eos, payload)
        run_due(world, flight, at[NOW], bound, operations, at[VOCABULARY], device)
        begin(world, at[NOW], flight[FINISHED])
        observed = tick_first(world)
        assert observed == 0
        tick_rest(world)
        launched = launch(world, at, flight, operations, costs, launches, features) > 0
        read(world, at, first_ns, last_ns, tokens, finish, cached, gaps)
        advance(world, at, flight, trace, launched)
    return count

"""accept: validate every lane of a finished frame, then commit all of them."""

import numpy as np

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.drafts import is_round, learn_acceptance
from helios_dod.tables.requests import finish_request, queue_emit
from helios_dod.tables.stops import ask_stops
from helios_dod.tables.tokens import append_token
from helios_dod.terms import (
    COPIED,
    DRAWN,
    FINISH_DEVICE_ERROR,
    FINISH_NON_FINITE,
    FLAG_TIMED,
    FRAME_ACCEPTED,
    FRAME_FINISHED,
    OP_INITIALIZE,
    OP_SCORED_PREFILL,
    SLOT_DRAINING,
    STATUS_CANCELLED,
    STATUS_NON_FINITE,
    STATUS_RUNNING,
)


@kernel
def next_finished(world):
    """The finished frame with the smallest sequence, or -1."""
    frames = world[0].frames
    best = -1
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] == FRAME_FINISHED:
            if best < 0 or frames.sequence[frame] < frames.sequence[best]:
                best = frame
    return best


@kernel
def cursor_fits(world, frame, lane):
    """A draft cursor lags behind the endpoint by what the core declares; a program without one
    says -1."""
    done, cursor = world[0].completions, -1
    if world[0].programs.cursor[world[0].frames.program[frame]] == 1:
        cursor = max(done.endpoint[frame, lane] - world[0].settings.cursor_lag, 0)
    return done.cursor[frame, lane] == cursor


@kernel
def plain_breaks(world, frame, lane):
    """Ways in which a lane that consumes an exact number of tokens disagrees with its frame."""
    lanes, done = world[0].lanes, world[0].completions
    endpoint = lanes.consumed[frame, lane] + lanes.query_length[frame, lane]
    broken = 0
    broken += done.offered[frame, lane] != 0 or done.accepted[frame, lane] != 0
    broken += lanes.sampled[frame, lane] == 0 and done.emitted[frame, lane] != 0
    broken += done.endpoint[frame, lane] != endpoint
    broken += not cursor_fits(world, frame, lane)
    return broken


@kernel
def round_breaks(world, frame, lane):
    """Ways in which a speculative lane disagrees with its ceiling or with itself.

    A lane consumes one token for each that it emits: the pending one, then its accepted drafts.
    Frames are accepted in order, so the slot's endpoint is the one that the program began at."""
    lanes, done = world[0].lanes, world[0].completions
    offered, emitted = done.offered[frame, lane], done.emitted[frame, lane]
    status, endpoint = done.status[frame, lane], done.endpoint[frame, lane]
    broken = 0
    broken += offered < 0 or offered >= lanes.ceiling[frame, lane]
    broken += done.accepted[frame, lane] != max(emitted - 1, 0)
    broken += done.accepted[frame, lane] > offered
    broken += endpoint != world[0].slots.consumed[lanes.slot[frame, lane]] + emitted
    broken += not cursor_fits(world, frame, lane)
    broken += done.agreement[frame] == 0 and emitted != 0
    broken += done.agreement[frame] != 0 and status == STATUS_RUNNING and emitted == 0
    return broken


@kernel
def validate(world, frame):
    """Asserts that the completion is one that this frame can have; nothing is committed before."""
    frames, lanes, done = world[0].frames, world[0].lanes, world[0].completions
    program = frames.program[frame]
    speculative = is_round(world, program)
    broken, rows = 0, 0
    for lane in range(frames.lane_count[frame]):
        emitted, status = done.emitted[frame, lane], done.status[frame, lane]
        broken += done.slot[frame, lane] != lanes.slot[frame, lane]
        broken += done.generation[frame, lane] != np.int32(lanes.generation[frame, lane])
        broken += status < 0 or status > STATUS_CANCELLED
        broken += emitted < 0 or emitted > lanes.ceiling[frame, lane]
        broken += done.reserved[frame, lane] != -1
        if speculative:
            broken += round_breaks(world, frame, lane)
        else:
            broken += plain_breaks(world, frame, lane)
        for i in range(min(emitted, lanes.ceiling[frame, lane])):
            token = done.tokens[frame, lane, i]
            broken += token < 0 or token >= world[0].settings.vocabulary
        rows += 1 + done.offered[frame, lane]
    assert broken == 0, "completions: a lane disagrees with its frame"
    assert not speculative or (
        done.aggregate[frame] == rows and rows <= world[0].programs.packed[program])


@kernel
def keep_scores(world, frame, lane, row):
    """Holds a token's log-probabilities in the slot until `emit` delivers them."""
    slots, done, requests = world[0].slots, world[0].completions, world[0].requests
    slot = world[0].lanes.slot[frame, lane]
    assert slots.scores_held[slot, frame] == 0
    slots.scores_held[slot, frame] = requests.token_count[row] - requests.prompt_count[row]
    slots.score[slot, frame] = done.logprob[frame, lane]
    for k in range(requests.top_logprobs[row]):
        slots.top_tokens[slot, frame, k] = done.top_tokens[frame, lane, k]
        slots.top_scores[slot, frame, k] = done.top_logprobs[frame, lane, k]


@kernel
def keep_prompt_scores(world, frame, lane, slot):
    """Holds the scores of a lane's prompt tokens in the slot until `emit` delivers them. Row r of a
    lane scores the token behind the one that it consumes."""
    slots, lanes = world[0].slots, world[0].lanes
    assert slots.prompt_score_count[slot] == 0
    first, count = lanes.query_start[frame, lane], lanes.query_length[frame, lane]
    for i in range(count):
        slots.prompt_scores[slot, i] = world[0].completions.scores[frame, first + i]
    slots.prompt_score_first[slot] = lanes.consumed[frame, lane] + 1
    slots.prompt_score_at[slot] = 0
    slots.prompt_score_count[slot] = count
    queue_emit(world, slots.request[slot])


@kernel
def stamp(world, frame, row):
    """Marks the frame's tokens of a request for the time that the engine reads behind `accept`."""
    requests = world[0].requests
    assert requests.stamp_end[row, frame] == 0
    requests.stamp_end[row, frame] = requests.token_count[row] - requests.prompt_count[row]
    requests.stamp_ns[row, frame] = 0
    world[0].clock.observed += 1


@kernel
def learn_drafts(world, frame, lane):
    """Counts a lane's drafts, for the next choice of a program."""
    done, counters = world[0].completions, world[0].counters
    offered, accepted = done.offered[frame, lane], done.accepted[frame, lane]
    copied = min(world[0].lanes.candidate_count[frame, lane], offered)
    slot = world[0].lanes.slot[frame, lane]
    if done.status[frame, lane] != STATUS_RUNNING:
        offered = accepted  # an end cut the drafts behind it, they were not refused
    counters.state_rollbacks += world[0].settings.stateful == 1 and accepted < offered
    counters.drafts_offered += offered
    counters.drafts_accepted += accepted
    if copied > 0:
        counters.drafts_copied_offered += offered
        counters.drafts_copied_accepted += accepted
    if copied > 0 and world[0].slots.grammar[slot] != NO_ROW:
        counters.drafts_constrained_offered += offered
        counters.drafts_constrained_accepted += accepted
    learn_acceptance(world, slot, COPIED if copied > 0 else DRAWN, offered, accepted)


@kernel
def commit(world, frame, lane):
    """Advances a slot by its lane's completion and appends the emitted tokens."""
    lanes, done, slots = world[0].lanes, world[0].completions, world[0].slots
    slot = lanes.slot[frame, lane]
    row = slots.request[slot]
    moved = done.endpoint[frame, lane] - slots.consumed[slot]
    slots.scheduled[slot] -= lanes.query_length[frame, lane] - moved
    slots.consumed[slot] = done.endpoint[frame, lane]
    assert slots.consumed[slot] <= slots.scheduled[slot]
    if slots.state[slot] == SLOT_DRAINING:
        return
    for i in range(done.emitted[frame, lane]):
        append_token(world, row, done.tokens[frame, lane, i])
        if world[0].stops.active[row] == 1:
            ask_stops(world, row, done.tokens[frame, lane, i])
        slots.sampled[slot] = 1
        world[0].counters.generated_tokens += 1
        if world[0].requests.top_logprobs[row] >= 0:
            keep_scores(world, frame, lane, row)
    if done.emitted[frame, lane] > 0 and world[0].requests.flags[row] & FLAG_TIMED != 0:
        stamp(world, frame, row)
    program = world[0].frames.program[frame]
    if world[0].programs.operation[program] == OP_SCORED_PREFILL:
        keep_prompt_scores(world, frame, lane, slot)
    if done.status[frame, lane] == STATUS_NON_FINITE:
        finish_request(world, row, FINISH_NON_FINITE)
        world[0].counters.failed += 1


@kernel
def commit_round(world, frame):
    """What a speculative frame says of itself."""
    if world[0].completions.agreement[frame] == 0:
        world[0].counters.cohorts_refused += 1
        return
    for lane in range(world[0].frames.lane_count[frame]):
        learn_drafts(world, frame, lane)


@kernel
def fail(world, frame, lane):
    """Ends the request of a lane whose program failed."""
    slot = world[0].lanes.slot[frame, lane]
    if world[0].slots.state[slot] != SLOT_DRAINING:
        finish_request(world, world[0].slots.request[slot], FINISH_DEVICE_ERROR)
        world[0].counters.failed += 1


@system(
    reads="completions.* lanes.* settings.* programs.* stops.* pieces.*",
    writes="frames.state slots.* requests.* tokens.ids drafts.prior counters.* "
           "clock.observed",
)
def accept(world):
    """Commits finished frames in submission order."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    world[0].clock.observed = 0
    for _ in range(frames.state.shape[0]):
        frame = next_finished(world)
        if frame < 0:
            return
        records = world[0].programs.operation[frames.program[frame]] != OP_INITIALIZE
        speculative = is_round(world, frames.program[frame])
        if records and frames.error[frame] == 0:
            validate(world, frame)
            if speculative:
                commit_round(world, frame)
        for lane in range(frames.lane_count[frame]):
            slot = lanes.slot[frame, lane]
            slots.in_flight[slot] -= 1
            slots.open[slot] -= speculative
            assert slots.in_flight[slot] >= slots.open[slot] >= 0
            if frames.error[frame] != 0:
                fail(world, frame, lane)
            elif records:
                commit(world, frame, lane)
        frames.state[frame] = FRAME_ACCEPTED

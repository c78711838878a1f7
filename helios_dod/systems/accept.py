"""accept: validate every lane of a finished frame, then commit all of them."""

from helios_dod.system import kernel, system
from helios_dod.tables.requests import finish_request, queue_emit
from helios_dod.tables.stops import ask_stops
from helios_dod.tables.tokens import append_token
from helios_dod.terms import (
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
def validate(world, frame):
    """Asserts that the completion is one that this frame can have; nothing is committed before."""
    frames, lanes, done = world[0].frames, world[0].lanes, world[0].completions
    settings = world[0].settings
    broken, emitted_total = 0, 0
    for lane in range(frames.lane_count[frame]):
        endpoint = lanes.consumed[frame, lane] + lanes.query_length[frame, lane]
        emitted, status = done.emitted[frame, lane], done.status[frame, lane]
        broken += done.slot[frame, lane] != lanes.slot[frame, lane]
        broken += done.generation[frame, lane] != lanes.generation[frame, lane]
        broken += status < 0 or status > STATUS_CANCELLED
        broken += done.offered[frame, lane] > max(lanes.ceiling[frame, lane] - 1, 0)
        broken += done.accepted[frame, lane] > done.offered[frame, lane]
        broken += emitted < 0 or emitted > lanes.ceiling[frame, lane]
        broken += lanes.sampled[frame, lane] == 0 and emitted != 0
        broken += done.endpoint[frame, lane] != endpoint
        broken += done.cursor[frame, lane] != -1 or done.reserved[frame, lane] != -1
        for i in range(emitted):
            token = done.tokens[frame, lane, i]
            broken += token < 0 or token >= settings.vocabulary
        emitted_total += emitted
    assert broken == 0, "completions: a lane disagrees with its frame"
    assert emitted_total <= world[0].programs.packed[frames.program[frame]]


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
def commit(world, frame, lane):
    """Advances a slot by its lane's completion and appends the emitted tokens."""
    lanes, done, slots = world[0].lanes, world[0].completions, world[0].slots
    slot = lanes.slot[frame, lane]
    row = slots.request[slot]
    slots.consumed[slot] = done.endpoint[frame, lane]
    if slots.state[slot] == SLOT_DRAINING:
        return
    if done.status[frame, lane] == STATUS_NON_FINITE:
        finish_request(world, row, FINISH_NON_FINITE)
        world[0].counters.failed += 1
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


@kernel
def fail(world, frame, lane):
    """Ends the request of a lane whose program failed."""
    slot = world[0].lanes.slot[frame, lane]
    if world[0].slots.state[slot] != SLOT_DRAINING:
        finish_request(world, world[0].slots.request[slot], FINISH_DEVICE_ERROR)
        world[0].counters.failed += 1


@system(
    reads="completions.* lanes.* settings.vocabulary programs.* stops.* pieces.*",
    writes="frames.state slots.* requests.* tokens.ids counters.* clock.observed",
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
        if records and frames.error[frame] == 0:
            validate(world, frame)
        for lane in range(frames.lane_count[frame]):
            slot = lanes.slot[frame, lane]
            slots.in_flight[slot] -= 1
            assert slots.in_flight[slot] >= 0
            if frames.error[frame] != 0:
                fail(world, frame, lane)
            elif records:
                commit(world, frame, lane)
        frames.state[frame] = FRAME_ACCEPTED

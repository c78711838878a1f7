"""emit: accepted tokens and ends -> egress rings. A full ring delays; it loses nothing."""

from helios_dod.limits import NO_ROW
from helios_dod.system import kernel, store_release, system
from helios_dod.tables.requests import free_request, queue_emit
from helios_dod.tables.rings import egress_room
from helios_dod.tables.tokens import token_at
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_SCORE,
    EGRESS_TOKEN,
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    FINISHED,
    FLAG_SCORED,
    FLAG_TIMED,
)


@kernel
def write_scores(world, request, index, frontend, row):
    """Moves a token's log-probabilities from its slot to the egress row."""
    ring, slots, requests = world[0].egress, world[0].slots, world[0].requests
    slot, count = requests.slot[request], requests.top_logprobs[request]
    assert slot != NO_ROW
    held = -1
    for frame in range(slots.scores_held.shape[1]):
        if slots.scores_held[slot, frame] == index + 1:
            held = frame
    assert held >= 0, "slots.scores_held: no log-probabilities for an accepted token"
    ring.logprob[frontend, row] = slots.score[slot, held]
    for k in range(count):
        ring.top_tokens[frontend, row, k] = slots.top_tokens[slot, held, k]
        ring.top_logprobs[frontend, row, k] = slots.top_scores[slot, held, k]
    slots.scores_held[slot, held] = 0
    ring.top_count[frontend, row] = count


@kernel
def set_stamps(world, row):
    """Gives tokens that were accepted in this tick the time that the engine read for them."""
    requests = world[0].requests
    for frame in range(requests.stamp_end.shape[1]):
        if requests.stamp_end[row, frame] != 0 and requests.stamp_ns[row, frame] == 0:
            requests.stamp_ns[row, frame] = world[0].clock.completed_ns


@kernel
def take_stamp(world, row, index):
    """When a generated token was accepted, or 0; the last token of a frame clears its stamp."""
    requests, found = world[0].requests, -1
    for frame in range(requests.stamp_end.shape[1]):
        end = requests.stamp_end[row, frame]
        if end > index and (found < 0 or end < requests.stamp_end[row, found]):
            found = frame
    if found < 0:
        return 0
    if requests.stamp_end[row, found] == index + 1:
        requests.stamp_end[row, found] = 0
    return requests.stamp_ns[row, found]


@kernel
def write_prompt_scores(world, request, room):
    """Delivers prompt scores that the request's slot holds; the room left, -1 if that is too
    little. Those of an earlier run of a request that was sent back are left out."""
    ring, slots, requests = world[0].egress, world[0].slots, world[0].requests
    slot, frontend = requests.slot[request], requests.frontend[request]
    if slot == NO_ROW:
        return room
    while slots.prompt_score_count[slot] > 0:
        position = slots.prompt_score_first[slot]
        if position > requests.scored_count[request]:
            if room == 0:
                return -1
            end = ring.end[frontend, 0]
            row = end % ring.kind.shape[1]
            ring.kind[frontend, row] = EGRESS_SCORE
            ring.reason[frontend, row] = 0
            ring.tag[frontend, row] = requests.tag[request]
            ring.token[frontend, row] = token_at(world, request, position)
            ring.index[frontend, row] = position
            ring.logprob[frontend, row] = slots.prompt_scores[slot, slots.prompt_score_at[slot]]
            ring.top_count[frontend, row] = 0
            store_release(ring.end[frontend], 0, end + 1)
            requests.scored_count[request] = position
            room -= 1
        slots.prompt_score_at[slot] += 1
        slots.prompt_score_first[slot] = position + 1
        slots.prompt_score_count[slot] -= 1
    return room


@kernel
def write_bounds(world, request, frontend, row):
    """How much of the output may be shown by now; of an older token this may be less than all."""
    ring, requests = world[0].egress, world[0].requests
    generated = requests.token_count[request] - requests.prompt_count[request]
    ring.shown[frontend, row] = generated - requests.withheld[request]
    ring.text[frontend, row] = requests.text_end[request]


@kernel
def write_token(world, request, index):
    """One token event; the caller has checked the room."""
    ring, requests = world[0].egress, world[0].requests
    frontend = requests.frontend[request]
    end = ring.end[frontend, 0]
    row = end % ring.kind.shape[1]
    ring.kind[frontend, row] = EGRESS_TOKEN
    ring.reason[frontend, row] = 0
    ring.tag[frontend, row] = requests.tag[request]
    ring.token[frontend, row] = token_at(world, request, requests.prompt_count[request] + index)
    ring.index[frontend, row] = index
    write_bounds(world, request, frontend, row)
    ring.top_count[frontend, row] = -1
    ring.completed_ns[frontend, row] = 0
    if requests.flags[request] & FLAG_TIMED != 0:
        ring.completed_ns[frontend, row] = take_stamp(world, request, index)
    if requests.top_logprobs[request] >= 0:
        write_scores(world, request, index, frontend, row)
    store_release(ring.end[frontend], 0, end + 1)


@kernel
def write_end(world, request):
    """The final event: reason, generated and prompt tokens, prompt tokens that were cached, when
    it was admitted."""
    ring, requests = world[0].egress, world[0].requests
    frontend = requests.frontend[request]
    end = ring.end[frontend, 0]
    row = end % ring.kind.shape[1]
    ring.kind[frontend, row] = EGRESS_FINISHED
    ring.reason[frontend, row] = requests.finish[request]
    ring.token[frontend, row] = requests.failure[request]
    if requests.finish[request] in (FINISH_STOP_STRING, FINISH_STOP_TOKEN, FINISH_STOP_SEQUENCE):
        ring.token[frontend, row] = world[0].stops.found[request]
    ring.tag[frontend, row] = requests.tag[request]
    ring.index[frontend, row] = requests.token_count[request] - requests.prompt_count[request]
    ring.value[frontend, row] = requests.cached_count[request]
    ring.limit[frontend, row] = requests.prompt_count[request]
    ring.completed_ns[frontend, row] = requests.admitted_ns[request]
    write_bounds(world, request, frontend, row)
    ring.top_count[frontend, row] = -1
    store_release(ring.end[frontend], 0, end + 1)


@kernel
def deliver(world, row):
    """Writes what the ring has room for; True when nothing of the row is left over."""
    requests = world[0].requests
    frontend = requests.frontend[row]
    generated = requests.token_count[row] - requests.prompt_count[row]
    ends = 1 if requests.state[row] == FINISHED else 0
    room = egress_room(world, frontend)
    if requests.flags[row] & FLAG_TIMED != 0:
        set_stamps(world, row)
    if requests.flags[row] & FLAG_SCORED != 0:
        room = write_prompt_scores(world, row, room)
    if room < 0:
        return False
    for _ in range(min(room, generated - requests.emitted_count[row])):
        write_token(world, row, requests.emitted_count[row])
        requests.emitted_count[row] += 1
        room -= 1
    if room < ends or requests.emitted_count[row] < generated:
        return False
    if ends == 1:
        write_end(world, row)
        requests.delivered[row] = 1
    return True


@system(
    reads="requests.* tokens.* slots.* stops.found clock.completed_ns",
    writes="egress.* requests.* tokens.owner tokens.free tokens.free_count slots.scores_held "
           "slots.prompt_score_at slots.prompt_score_first slots.prompt_score_count "
           "counters.egress_full",
)
def emit(world):
    """Serves the queue once around; rows that did not fit go to its end."""
    requests = world[0].requests
    for _ in range(requests.emit_end - requests.emit_first):
        row = requests.emit_queue[requests.emit_first % requests.emit_queue.shape[0]]
        requests.emit_first += 1
        requests.emit_queued[row] = 0
        if not deliver(world, row):
            world[0].counters.egress_full += 1
            queue_emit(world, row)
        elif requests.delivered[row] == 1 and requests.slot[row] == NO_ROW:
            free_request(world, row)

"""stop: does the newest token of a lane end its request? EOS, stops of the host, limit."""

from helios_dod.limits import EOS_MAX, NO_ROW
from helios_dod.system import kernel, system
from helios_dod.tables.requests import finish_request, queue_emit
from helios_dod.tables.stops import take_stop
from helios_dod.tables.tokens import token_at
from helios_dod.terms import (
    FINISH_EOS,
    FINISH_LIMIT,
    FRAME_ACCEPTED,
    RUNNING,
    SLOT_DECODE,
    TEXT_ALL,
)


@kernel
def ending(world, row, token):
    """Finish reason of a request after its newest token, or 0; and what of it may be shown.

    The device applies the same EOS and limit rules, so that a second frame in flight is
    harmless. EOS and limit release what only began like a stop. Nothing but the limit ends an
    output of no more than `output_minimum` tokens."""
    requests = world[0].requests
    generated = requests.token_count[row] - requests.prompt_count[row]
    counts = generated > requests.output_minimum[row]
    if counts:
        for i in range(EOS_MAX):
            if requests.eos[row, i] == token:
                requests.withheld[row] = 1
                requests.text_end[row] = TEXT_ALL
                return FINISH_EOS
    if world[0].stops.active[row] == 1:
        reason = take_stop(world, row, token, counts)
        if reason != 0:
            return reason
    if generated >= requests.output_limit[row]:
        requests.withheld[row] = 0
        requests.text_end[row] = TEXT_ALL
        return FINISH_LIMIT
    return 0


@kernel
def newest(world, frame, lane):
    """(request, its newest token) of a lane that emitted and decodes, or (NO_ROW, 0)."""
    slots, requests = world[0].slots, world[0].requests
    slot = world[0].lanes.slot[frame, lane]
    if slots.state[slot] != SLOT_DECODE or world[0].completions.emitted[frame, lane] == 0:
        return NO_ROW, 0
    row = slots.request[slot]
    assert requests.state[row] == RUNNING
    return row, token_at(world, row, requests.token_count[row] - 1)


@system(
    reads="frames.* lanes.* completions.emitted tokens.ids pieces.*",
    writes="requests.* stops.* slots.state counters.finished",
)
def stop(world):
    """Looks at every lane that emitted in this tick's accepted frames."""
    frames = world[0].frames
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_ACCEPTED or frames.error[frame] != 0:
            continue
        for lane in range(frames.sampled_count[frame]):
            row, token = newest(world, frame, lane)
            if row == NO_ROW:
                continue
            queue_emit(world, row)
            reason = ending(world, row, token)
            if reason != 0:
                finish_request(world, row, reason)
                world[0].counters.finished += 1

"""stop: does the newest token of a lane end its request? EOS, limit, stop ids."""

from helios_dod.limits import EOS_MAX
from helios_dod.system import kernel, system
from helios_dod.tables.requests import finish_request, queue_emit
from helios_dod.tables.tokens import token_at
from helios_dod.terms import (
    FINISH_EOS,
    FINISH_LIMIT,
    FINISH_STOP_TOKEN,
    FRAME_ACCEPTED,
    RUNNING,
    SLOT_DECODE,
)


@kernel
def ending(world, row):
    """Finish reason of a request after its newest token, or 0.

    The device applies the same EOS and limit rules, so that a second frame in flight is
    harmless."""
    requests = world[0].requests
    generated = requests.token_count[row] - requests.prompt_count[row]
    token = token_at(world, row, requests.token_count[row] - 1)
    if generated > requests.output_minimum[row]:
        for i in range(EOS_MAX):
            if requests.eos[row, i] == token:
                return FINISH_EOS
    for i in range(requests.stop_id_count[row]):
        if requests.stop_ids[row, i] == token:
            return FINISH_STOP_TOKEN
    if generated >= requests.output_limit[row]:
        return FINISH_LIMIT
    return 0


@system(
    reads="frames.* lanes.* completions.emitted tokens.ids",
    writes="requests.* slots.state counters.finished",
)
def stop(world):
    """Looks at every lane that emitted in this tick's accepted frames."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_ACCEPTED or frames.error[frame] != 0:
            continue
        for lane in range(frames.sampled_count[frame]):
            slot = lanes.slot[frame, lane]
            if slots.state[slot] != SLOT_DECODE or world[0].completions.emitted[frame, lane] == 0:
                continue
            row = slots.request[slot]
            assert world[0].requests.state[row] == RUNNING
            queue_emit(world, row)
            reason = ending(world, row)
            if reason != 0:
                finish_request(world, row, reason)
                world[0].counters.finished += 1

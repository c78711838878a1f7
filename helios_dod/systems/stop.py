"""stop: does a token that a lane emitted end its request? EOS, stops of the host, limit."""

from helios_dod.limits import EOS_MAX
from helios_dod.system import kernel, system
from helios_dod.tables.requests import finish_request, queue_emit
from helios_dod.tables.stops import take_stop
from helios_dod.terms import (
    FINISH_EOS,
    FINISH_LIMIT,
    FRAME_ACCEPTED,
    RUNNING,
    SLOT_DECODE,
    TEXT_ALL,
)


@kernel
def ending(world, row, token, generated):
    """Finish reason of a request behind `token`, its generated token number `generated`, or 0; and
    what of it may be shown.

    The device applies the same EOS and limit rules, so that a second frame in flight is
    harmless. EOS and limit release what only began like a stop. Nothing but the limit ends an
    output of no more than `output_minimum` tokens."""
    requests = world[0].requests
    counts = generated > requests.output_minimum[row]
    if counts:
        for i in range(EOS_MAX):
            if requests.eos[row, i] < 0:
                break
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
def cut(world, row, generated):
    """Drops the tokens behind an end, and their times."""
    requests = world[0].requests
    requests.token_count[row] = requests.prompt_count[row] + generated
    for frame in range(requests.stamp_end.shape[1]):
        requests.stamp_end[row, frame] = min(requests.stamp_end[row, frame], generated)


@kernel
def stop_lane(world, frame, lane, row, emitted):
    """Looks at a lane's tokens in order; what stands behind an end is dropped.

    Two frames of a request are accepted in one tick only where it has no host stops, and of EOS
    and limit the device knew: then the younger frame emitted nothing behind them. A lane's last
    token stands at its endpoint."""
    done = world[0].completions
    first = done.endpoint[frame, lane] - emitted + 2 - world[0].requests.prompt_count[row]
    for i in range(emitted):
        reason = ending(world, row, done.tokens[frame, lane, i], first + i)
        if reason != 0:
            cut(world, row, first + i)
            finish_request(world, row, reason)
            world[0].counters.finished += 1
            return


@system(
    reads="frames.* lanes.* completions.* pieces.*",
    writes="requests.* stops.* slots.state counters.finished",
)
def stop(world):
    """Looks at every lane that emitted in this tick's accepted frames."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_ACCEPTED or frames.error[frame] != 0:
            continue
        for lane in range(frames.sampled_count[frame]):
            slot, emitted = lanes.slot[frame, lane], world[0].completions.emitted[frame, lane]
            if slots.state[slot] != SLOT_DECODE or emitted == 0:
                continue
            row = slots.request[slot]
            assert world[0].requests.state[row] == RUNNING
            queue_emit(world, row)
            stop_lane(world, frame, lane, row, emitted)

"""submit: give packed frames their sequence; the engine launches them after the tick."""

from helios_dod.system import system
from helios_dod.terms import FRAME_PACKED, FRAME_SUBMITTED


@system(
    reads="lanes.* clock.now_ns",
    writes="frames.state frames.sequence frames.next_sequence frames.submitted_ns "
           "slots.scheduled slots.in_flight programs.launches counters.*",
)
def submit(world):
    """Advances what is scheduled; from here to the fence every resource of the lanes is kept."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_PACKED:
            continue
        for lane in range(frames.lane_count[frame]):
            slot = lanes.slot[frame, lane]
            slots.scheduled[slot] += lanes.query_length[frame, lane]
            slots.in_flight[slot] += 1
        frames.sequence[frame] = frames.next_sequence
        frames.next_sequence += 1
        frames.submitted_ns[frame] = world[0].clock.now_ns
        frames.state[frame] = FRAME_SUBMITTED
        world[0].programs.launches[frames.program[frame]] += 1
        world[0].counters.frames_submitted += 1
        world[0].counters.lanes_submitted += frames.lane_count[frame]
        world[0].counters.packed_submitted += frames.packed_count[frame]

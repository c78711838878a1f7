"""submit: give packed frames their sequence; the engine launches them after the tick."""

from helios_dod.system import kernel, system
from helios_dod.tables.drafts import is_round
from helios_dod.tables.grammars import outstanding
from helios_dod.terms import FRAME_PACKED, FRAME_SUBMITTED, OP_DECODE


@kernel
def count_constrained(world, frame):
    """What is counted of a frame with constrained lanes."""
    frames, counters = world[0].frames, world[0].counters
    if frames.constrained_count[frame] == 0:
        return
    counters.constrained_submitted += 1
    operation = world[0].programs.operation[frames.program[frame]]
    if operation == OP_DECODE and frames.constrained_count[frame] < frames.lane_count[frame]:
        counters.mixed_grammar_submitted += 1
    counters.constrained_in_flight_max = max(
        counters.constrained_in_flight_max, outstanding(world))


@system(
    reads="lanes.* clock.now_ns programs.operation",
    writes="frames.state frames.sequence frames.next_sequence frames.submitted_ns "
           "slots.scheduled slots.in_flight slots.open programs.launches counters.*",
)
def submit(world):
    """Advances what is scheduled; from here to the fence every resource of the lanes is kept."""
    frames, lanes, slots = world[0].frames, world[0].lanes, world[0].slots
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_PACKED:
            continue
        program = frames.program[frame]
        speculative = is_round(world, program)
        if speculative and world[0].programs.lane_limit[program] > 1:
            world[0].counters.rounds_speculative += 1
        for lane in range(frames.lane_count[frame]):
            slot = lanes.slot[frame, lane]
            slots.scheduled[slot] += lanes.query_length[frame, lane]
            slots.in_flight[slot] += 1
            slots.open[slot] += speculative
        frames.sequence[frame] = frames.next_sequence
        frames.next_sequence += 1
        frames.submitted_ns[frame] = world[0].clock.now_ns
        frames.state[frame] = FRAME_SUBMITTED
        count_constrained(world, frame)
        world[0].programs.launches[program] += 1
        world[0].counters.frames_submitted += 1
        world[0].counters.lanes_submitted += frames.lane_count[frame]
        world[0].counters.packed_submitted += frames.packed_count[frame]

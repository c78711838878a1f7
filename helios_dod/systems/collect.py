"""collect: fences that passed -> finished frames, in submission order."""

from helios_dod.system import system
from helios_dod.tables.drafts import learn_cost
from helios_dod.tables.tiers import observe_prefill
from helios_dod.tables.values import observe_copying
from helios_dod.terms import FRAME_FINISHED, FRAME_SUBMITTED, OP_MIXED, OP_PREFILL, OP_RESTORE


@system(
    reads="frames.* clock.now_ns",
    writes="frames.state frames.finished_ns programs.cost_ns programs.observed_count "
           "programs.observed_ns counters.frames_finished tiers.prefill_ns tiers.prefill_tokens "
           "snapshots.copied_ns snapshots.copied_count",
)
def collect(world):
    """Marks every submitted frame whose sequence the executor reports as finished."""
    frames, now = world[0].frames, world[0].clock.now_ns
    for frame in range(frames.state.shape[0]):
        if frames.state[frame] != FRAME_SUBMITTED:
            continue
        if frames.sequence[frame] > frames.finished_sequence:
            continue
        frames.state[frame] = FRAME_FINISHED
        frames.finished_ns[frame] = now
        other = frames.finished_ns[1 - frame]
        elapsed = now - max(frames.submitted_ns[frame], other if other < now else 0)
        learn_cost(world, frames.program[frame], frames.drawn[frame], elapsed, now)
        operation = world[0].programs.operation[frames.program[frame]]
        if operation in (OP_PREFILL, OP_MIXED):
            observe_prefill(world, elapsed, frames.packed_count[frame])
        elif operation == OP_RESTORE:
            observe_copying(world, elapsed, frames.lane_count[frame])
        world[0].counters.frames_finished += 1

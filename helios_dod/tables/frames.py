"""Programs in flight, and the lanes of each."""

from helios_dod.schema import i32, i64, scalar, table, u8, u32


@table(rows="FRAMES_MAX")
class Frames:
    """One row per frame. Invariant: sequences of submitted frames are consecutive."""

    state: u8
    program: i32
    sequence: i64
    lane_count: i32
    sampled_count: i32  # lanes that sample; they come first
    packed_count: i32
    constrained_count: i32  # lanes that sample under a mask
    page_update_count: i32
    drawn: u8  # some lane of a speculative program draws its drafts
    probe: u8  # chosen for the sake of its cost, which the next choice waits for
    window_update_count: i32
    page_copy_count: i32
    page_room: i32  # free pages and page-table updates left while composing
    update_room: i32
    window_room: i32  # updates of group 1, and page copies, left for restored slots
    copy_room: i32
    submitted_ns: i64
    finished_ns: i64
    retired_ranks: i64  # mask
    error: i32  # 0, or the executor's error number
    finished_sequence: scalar(i64)  # newest fence that the executor reports
    next_sequence: scalar(i64)
    frame_count: scalar(i32)  # frames in use: 1 or 2


@table(rows="FRAMES_MAX")
class Lanes:
    """Row (frame, lane): a submitted row of a frame.

    Invariants: `sample_row` of a sampling lane is the last packed row of the lane; a lane of a
    speculative program has query_length = ceiling, and consumes at most so many tokens.
    """

    slot: i32["lanes_max"]
    generation: u32["lanes_max"]
    query_start: i32["lanes_max"]
    query_length: i32["lanes_max"]
    # endpoint before the program; behind a frame of unknown length the most that it can be
    consumed: i32["lanes_max"]
    ceiling: i32["lanes_max"]  # tokens that the lane may emit
    wanted: i32["lanes_max"]  # tokens that it should be able to emit, while composing
    candidate_count: i32["lanes_max"]  # copied drafts
    candidates: i32["lanes_max", "width_max"]
    sampled: u8["lanes_max"]
    restore: i32["lanes_max"]  # snapshot that the program copies to the slot's state, or NO_ROW
    snapshot: i32["lanes_max"]  # snapshot that it writes, or NO_ROW
    page_update_slot: i32["page_updates_max"]
    page_update_index: i32["page_updates_max"]
    page_update_page: i32["page_updates_max"]
    window_update_slot: i32["page_updates_max"]
    window_update_index: i32["page_updates_max"]
    window_update_page: i32["page_updates_max"]
    page_copy_source: i32["page_updates_max"]
    page_copy_target: i32["page_updates_max"]

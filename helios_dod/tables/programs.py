"""Captured program variants and their resolved bindings; written once at load."""

from helios_dod.schema import i32, i64, scalar, table, u8


@table(rows="programs_max")
class Programs:
    """One row per loaded variant, ordered by operation, then capacity."""

    operation: u8
    host_pending: u8  # the pending token is bound by the host
    histogram: u8  # binds the prompt histogram
    masked: u8  # binds grammar masks for every token that a lane may emit
    restores: u8  # binds a restore source
    copies: u8  # restores by copies of pages
    batch: i32  # B
    drafts: i32  # D
    width: i32  # W
    packed: i32  # P
    lane_limit: i32  # tokens that a lane can emit at most, pending one included
    prefix_limit: u8  # takes ceilings and allocates lengths itself; else lengths are exact
    endpoint_input: u8  # a lane's endpoint is staged, so it must be known
    history_input: u8  # takes copied tokens
    cursor: u8  # its completions report a draft cursor
    smaller: i32  # the variant of its kind with the next smaller B, or NO_ROW
    smaller_masked: i32  # the same among those that take masks
    binding_first: i32
    binding_count: i32
    launches: i64
    # by whether a lane draws (1) or none does (0): a program is cheaper where nothing is drawn
    cost_ns: i64[2]  # exponentially weighted mean of observed durations
    observed_count: i64[2]
    observed_ns: i64[2]  # when it was last observed
    program_count: scalar(i32)
    rounds: scalar(i32["programs_max"])  # speculative variants that may be chosen
    round_count: scalar(i32)
    round_width: scalar(i32)  # the most that a lane can emit in one of them; 1 without any
    probed_ns: scalar(i64)  # when a choice was last made for the sake of its cost


@table(rows="bindings_max")
class Bindings:
    """One row per value binding, resolved to words of a frame's staging."""

    source: u8
    indexing: u8
    words: i32  # 4-byte words of one row
    first: i32  # word offset in the frame's staging
    rows: i32  # capacity
    offset: i32
    padding: i32
    constant: i32
    group: u8  # page updates: page group of their view
    shift: i32  # and pages by which it is shifted
    binding_count: scalar(i32)


@table(rows="FRAMES_MAX")
class Staging:
    """Host staging of each frame, in 4-byte words; the executor reads it from `submit` to the
    fence."""

    words: i32["staging_words_max"]
    mask_free: i32["slots_max"]  # first word of the mask row that allows every token, plus 1


@table(rows="FRAMES_MAX")
class Completions:
    """Completion record of each frame, written by the program (see proto CompletionField)."""

    slot: i32["lanes_max"]
    generation: i32["lanes_max"]
    status: i32["lanes_max"]
    offered: i32["lanes_max"]
    accepted: i32["lanes_max"]
    emitted: i32["lanes_max"]
    tokens: i32["lanes_max", "width_max"]
    endpoint: i32["lanes_max"]
    cursor: i32["lanes_max"]
    reserved: i32["lanes_max"]
    logprob: i32["lanes_max"]  # float32 bits
    top_tokens: i32["lanes_max", "TOP_LOGPROBS_MAX"]
    top_logprobs: i32["lanes_max", "TOP_LOGPROBS_MAX"]
    scores: i32["packed_max"]
    agreement: i32  # speculative: 0 if some rank refused the cohort, so that nothing is committed
    aggregate: i32  # speculative: target rows, one and its offers for each lane

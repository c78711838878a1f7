"""Physical request rows: what the device holds state for."""

from helios_dod.schema import i32, scalar, table, u8, u32, u64


@table(rows="slots_max")
class Slots:
    """One row per physical request row on the device.

    Invariants: `consumed <= scheduled`; at most `scheduled - consumed` tokens are in flight,
    exactly so many where `open` is 0; pages[:page_count] are owned by the slot; `page_count *
    page_tokens >= scheduled`. Pages of a slot's table and text can be read unless it is RESTORING,
    or DRAINING after that.
    """

    state: u8
    sampled: u8  # a token was accepted, so the device owns a pending token
    feedback: u8  # every step waits for the last one (host stops, grammar, host-owned token)
    unpublished: u8  # its text is published no further: the pages were needed
    narrow: u8  # one token a round (host stops, host-owned token, log-probabilities)
    waits: u8  # barrier that the slot waits for, counted once a wait; 0: none
    generation: u32
    request: i32
    consumed: i32  # tokens whose history is committed (accepted completions)
    scheduled: i32  # tokens submitted, in-flight ones included
    in_flight: i32  # frames that name this slot
    open: i32  # speculative ones among them: how far they get is not known
    acceptance: i32["DRAFT_SOURCES"]  # chance that the next draft is accepted, of 65,536
    page_count: i32
    uploaded_count: i32  # page-table entries that the device has
    prefill_end: i32  # tokens to prefill: the prompt, after preemption the output so far too
    promise: i32  # pages that admission promised; what the slot holds beyond is overcommitted
    restoring: i32  # last entries of its table that have no place on the device yet
    arrived: i32  # first entries that a slot which waits for copies knows to be readable
    published_count: i32  # pages whose content is indexed
    published_page: i32  # the immutable page of the last of them
    published_hash: u64
    restore: i32  # snapshot that its state begins with, until the program that copies it
    closing: u8  # what became of the snapshot of its end
    copying: i32  # pages at the end of its published text that are to be copied for views
    window_pages: i32["window_pages_max"]  # ring: page i of its text in group 1 at i modulo size
    window_first: i32
    window_end: i32
    window_uploaded: i32  # page-table entries that the device has are below
    pages: i32["pages_per_request_max"]
    grammar: i32  # row of a constrained request's masks
    # generated index + 1 of a log-probability row not yet delivered, per frame
    scores_held: i32["FRAMES_MAX"]
    score: i32["FRAMES_MAX"]  # float32 bits
    top_tokens: i32["FRAMES_MAX", "TOP_LOGPROBS_MAX"]
    top_scores: i32["FRAMES_MAX", "TOP_LOGPROBS_MAX"]
    # log-probabilities of prompt tokens not yet delivered: the position of the first
    prompt_score_count: i32
    prompt_score_first: i32
    prompt_score_at: i32  # index of that one
    prompt_scores: i32["SCORES_MAX"]  # float32 bits
    free: scalar(i32["slots_max"])
    free_count: scalar(i32)
    live: scalar(i32["slots_max"])  # rows in use, in admission order
    live_count: scalar(i32)

"""What was chosen at load, the clock, and the counters: tables of one row."""

from helios_dod.schema import i32, i64, scalar, table, u64


@table()
class Settings:
    """Chosen once at load; constant while serving."""

    page_bytes: scalar(i64)  # of all planes of page group 0
    window_page_bytes: scalar(i64)  # of page group 1
    page_tokens: scalar(i32)
    context_tokens: scalar(i32)
    vocabulary: scalar(i32)
    input_vocabulary: scalar(i32)
    slot_count: scalar(i32)
    prefill_tokens: scalar(i32)  # prompt tokens of one frame at most
    page_updates: scalar(i32)  # page-table entries that one frame uploads at most
    cursor_lag: scalar(i32)
    cache_seed: scalar(u64)  # hash of the cache identity, where every chain of pages begins
    caching: scalar(i32)  # 1: prefixes are reused
    queue_capacity: scalar(i32)  # requests that wait, and rows of one ingress ring; 0: as built
    masked: scalar(i32)  # 1: every operation that samples has a program that takes masks
    stateful: scalar(i32)  # 1: histories need a snapshot to go on from, pages alone do not do
    state_rows: scalar(i32)  # state rows of one request, and of one snapshot
    span_tokens: scalar(i32)  # of the longest atomic span that a prompt may have
    view_pages: scalar(i32)  # pages by which the furthest page-table view is shifted
    window_tokens: scalar(i32)  # that histories of page group 1 see; 0: there are none
    partial: scalar(i32)  # 1: snapshots keep pages that are not complete
    snapshot_inline: scalar(i32)  # 1: programs that prefill also write snapshots
    snapshot_closing: scalar(i32)  # 1: restoring programs also write snapshots
    host_pending: scalar(i32)  # 1: the host owns pending tokens, so every step is fed back
    history: scalar(i32)  # 1: drafts are copied from a request's own text


@table()
class Clock:
    """Time enters here and nowhere else. Nanoseconds since the process-wide monotonic origin."""

    tick: scalar(i64)
    now_ns: scalar(i64)
    completed_ns: scalar(i64)  # read behind `accept` in a tick that `observed` a timed token
    observed: scalar(i32)  # lanes of timed requests that this tick accepted tokens of


@table()
class Counters:
    """Plain monotonic integers; the exporter reads them."""

    received: scalar(i64)
    rejected: scalar(i64)
    admitted: scalar(i64)
    finished: scalar(i64)
    cancelled: scalar(i64)
    failed: scalar(i64)
    prompt_tokens: scalar(i64)
    generated_tokens: scalar(i64)
    frames_submitted: scalar(i64)
    frames_finished: scalar(i64)
    lanes_submitted: scalar(i64)
    packed_submitted: scalar(i64)
    ticks_idle: scalar(i64)
    egress_full: scalar(i64)
    pages_full: scalar(i64)
    pages_published: scalar(i64)
    pages_evicted: scalar(i64)
    pages_offloaded: scalar(i64)
    pages_stored: scalar(i64)
    pages_restored_memory: scalar(i64)
    pages_restored_disk: scalar(i64)
    pages_dropped_memory: scalar(i64)
    pages_dropped_disk: scalar(i64)
    window_pages_offloaded: scalar(i64)
    window_pages_restored: scalar(i64)
    window_pages_stored: scalar(i64)
    window_pages_fetched: scalar(i64)
    window_restores_refused: scalar(i64)  # matches that computing was cheaper for
    copies_failed: scalar(i64)
    prompt_tokens_cached: scalar(i64)
    preempted: scalar(i64)
    snapshots_published: scalar(i64)
    snapshots_dropped: scalar(i64)
    snapshots_evicted: scalar(i64)
    snapshot_hits: scalar(i64)
    snapshot_hits_away: scalar(i64)  # of them, behind or with pages that were in a tier
    state_rollbacks: scalar(i64)  # rounds of a lane that committed state before what it offered
    slots_full: scalar(i64)
    barrier_grammar: scalar(i64)  # frames not composed because a constrained lane waits
    constrained_submitted: scalar(i64)  # frames with a constrained lane
    mixed_grammar_submitted: scalar(i64)  # of them, decode frames with other lanes too
    constrained_in_flight_max: scalar(i64)  # frames outstanding after such a submission
    drafts_offered: scalar(i64)
    drafts_accepted: scalar(i64)
    drafts_copied_offered: scalar(i64)
    drafts_copied_accepted: scalar(i64)
    drafts_constrained_offered: scalar(i64)  # of the copied ones, those under masks
    drafts_constrained_accepted: scalar(i64)
    drafts_grammar_refused: scalar(i64)  # copies that a grammar does not allow
    draft_masks_full: scalar(i64)  # times that a constrained request had no room for such masks
    cohorts_refused: scalar(i64)
    rounds_speculative: scalar(i64)  # frames of speculative programs wider than one
    # slots that had to wait for a completion before their next frame, by cause
    barrier_host_pending: scalar(i64)
    barrier_stops: scalar(i64)
    barrier_history: scalar(i64)
    barrier_cost: scalar(i64)
    barrier_phase: scalar(i64)
    barrier_endpoint: scalar(i64)

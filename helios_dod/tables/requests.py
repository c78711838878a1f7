"""Accepted requests."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, i64, scalar, table, u8, u32, u64
from helios_dod.system import kernel
from helios_dod.terms import FINISHED, FLAG_SCORED, FREE, RUNNING, SLOT_DRAINING, WAITING

AGING_NS = 60_000_000_000  # one priority class outweighs so much waiting, and no more


@table(rows="requests_max")
class Requests:
    """One row per accepted request. FREE rows are zero except links, which are NO_ROW.

    Invariants: `slot` and `slots.request` agree while RUNNING; `prompt_count <= token_count <=
    prompt_count + output_limit`; the waiting list is ordered by `order_ns`; float
    parameters are float32 bits.
    """

    state: u8
    finish: u8
    failure: u8  # why, where `finish` leaves it open
    flags: u8
    generation: u32
    frontend: i32
    tag: i64  # the frontend's own name for the request
    admitted_ns: i64  # when it first got a slot, 0: never
    deadline_ns: i64  # 0: none
    priority: i32  # smaller runs first
    slot: i32
    waiting_next: i32
    waiting_previous: i32
    emit_queued: u8
    delivered: u8  # the final event is in the egress ring
    prompt_count: i32
    token_count: i32  # prompt and accepted generated tokens
    cached_count: i32  # prompt tokens that were not computed
    output_limit: i32
    output_minimum: i32
    emitted_count: i32  # generated tokens already in the egress ring
    scored_count: i32  # prompt scores already in the egress ring
    # a frame's accepted tokens that are timed and not yet delivered: up to which, 0: none; when
    stamp_end: i32["FRAMES_MAX"]
    stamp_ns: i64["FRAMES_MAX"]
    withheld: i32  # newest generated tokens that are not shown: they end, or may become, a stop
    text_end: i32  # bytes of text that may be shown, or TEXT_ALL
    salt: u64  # digest of the request's cache salt, 0: none
    order_ns: i64  # arrival plus priority times AGING_NS: the waiting list is in this order
    match_page: i32  # deepest cached page of its text, valid while match_epoch is pages.epoch
    match_count: i32  # pages up to match_page
    match_snapshot: i32  # the snapshot behind match_page that state begins with, or NO_ROW
    match_epoch: i32
    # atomic spans [first, end), ascending: content that tokens stand for, by its digest
    span_count: i32
    span_first: i32["SPANS_MAX"]
    span_end: i32["SPANS_MAX"]
    span_digest: u64["SPANS_MAX"]
    boundary_count: i32
    boundaries: i32["BOUNDARIES_MAX"]  # endpoints where other prompts may part, ascending
    page_need: i32  # pages that the request can hold at most
    block_count: i32
    blocks: i32["blocks_per_request_max"]
    seed: u64
    temperature: i32
    top_p: i32
    min_p: i32
    top_k: i32
    repetition_penalty: i32
    presence_penalty: i32
    frequency_penalty: i32
    top_logprobs: i32  # -1: none asked
    eos: i32["EOS_MAX"]  # padded with -1
    grammar_bytes: i32  # of its grammar's text, 0: unconstrained
    grammar_block: i32  # which of its blocks the text begins in
    bias_count: i32
    bias_tokens: i32["BIAS_MAX"]
    bias_values: i32["BIAS_MAX"]
    free: scalar(i32["requests_max"])  # stack of free rows
    free_count: scalar(i32)
    waiting_first: scalar(i32)
    waiting_last: scalar(i32)
    waiting_count: scalar(i32)
    emit_queue: scalar(i32["requests_max"])  # circular: rows with something to deliver
    emit_first: scalar(i64)
    emit_end: scalar(i64)
    deadline_next_ns: scalar(i64)  # no deadline is earlier; 0: none


@kernel
def take_request(world):
    """A free row with its generation advanced, or NO_ROW."""
    requests = world[0].requests
    if requests.free_count == 0:
        return NO_ROW
    requests.free_count -= 1
    row = requests.free[requests.free_count]
    assert requests.state[row] == FREE
    requests.generation[row] += 1
    return row


@kernel
def free_request(world, row):
    """Gives the row and its token blocks back."""
    requests, tokens = world[0].requests, world[0].tokens
    assert requests.slot[row] == NO_ROW and requests.emit_queued[row] == 0
    for index in range(requests.block_count[row]):
        block = requests.blocks[row, index]
        assert tokens.owner[block] == row
        tokens.owner[block] = NO_ROW
        tokens.free[tokens.free_count] = block
        tokens.free_count += 1
        requests.blocks[row, index] = NO_ROW
    requests.block_count[row] = 0
    requests.state[row] = FREE
    requests.finish[row] = 0
    requests.failure[row] = 0
    requests.grammar_bytes[row] = 0
    requests.grammar_block[row] = 0
    requests.delivered[row] = 0
    requests.deadline_ns[row] = 0
    requests.stamp_end[row, :] = 0
    requests.free[requests.free_count] = row
    requests.free_count += 1


@kernel
def waiting_insert(world, row):
    """Links a row behind every waiting request whose order is not larger."""
    requests = world[0].requests
    after = requests.waiting_last
    for _ in range(requests.waiting_count):
        if requests.order_ns[after] <= requests.order_ns[row]:
            break
        after = requests.waiting_previous[after]
    before = requests.waiting_first if after == NO_ROW else requests.waiting_next[after]
    requests.waiting_previous[row] = after
    requests.waiting_next[row] = before
    if after == NO_ROW:
        requests.waiting_first = row
    else:
        requests.waiting_next[after] = row
    if before == NO_ROW:
        requests.waiting_last = row
    else:
        requests.waiting_previous[before] = row
    requests.waiting_count += 1


@kernel
def waiting_remove(world, row):
    """Unlinks a waiting row."""
    requests = world[0].requests
    after, before = requests.waiting_previous[row], requests.waiting_next[row]
    if after == NO_ROW:
        requests.waiting_first = before
    else:
        requests.waiting_next[after] = before
    if before == NO_ROW:
        requests.waiting_last = after
    else:
        requests.waiting_previous[before] = after
    requests.waiting_previous[row] = NO_ROW
    requests.waiting_next[row] = NO_ROW
    requests.waiting_count -= 1
    assert requests.waiting_count >= 0


@kernel
def scores_left(world, row):
    """Prompt tokens whose score is asked for and not yet delivered; the first token has none."""
    requests = world[0].requests
    if requests.flags[row] & FLAG_SCORED == 0:
        return 0
    return requests.prompt_count[row] - 1 - requests.scored_count[row]


@kernel
def queue_emit(world, row):
    """Marks a row as having something to deliver; once queued it stays until delivered."""
    requests = world[0].requests
    if requests.emit_queued[row] == 1:
        return
    capacity = requests.emit_queue.shape[0]
    assert requests.emit_end - requests.emit_first < capacity
    requests.emit_queue[requests.emit_end % capacity] = row
    requests.emit_end += 1
    requests.emit_queued[row] = 1


@kernel
def finish_request(world, row, reason):
    """Ends a request, whatever its state: a waiting one leaves the list, a running one drains."""
    requests, slots = world[0].requests, world[0].slots
    assert requests.state[row] == WAITING or requests.state[row] == RUNNING
    if requests.state[row] == WAITING:
        waiting_remove(world, row)
    else:
        slots.state[requests.slot[row]] = SLOT_DRAINING
    requests.state[row] = FINISHED
    requests.finish[row] = reason
    queue_emit(world, row)

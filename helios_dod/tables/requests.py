"""Accepted requests."""

from helios_dod.schema import i32, i64, scalar, table, u8, u32, u64


@table(rows="requests_max")
class Requests:
    """One row per accepted request. FREE rows are zero except links, which are NO_ROW.

    Invariants: `slot` and `slots.request` agree while RUNNING; `prompt_count <= token_count <=
    prompt_count + output_limit`; the waiting list is ordered by priority, then arrival; float
    parameters are float32 bits.
    """

    state: u8
    finish: u8
    cancelled: u8
    flags: u8
    generation: u32
    frontend: i32
    tag: i64  # the frontend's own name for the request
    arrival_ns: i64
    deadline_ns: i64  # 0: none
    priority: i32  # smaller runs first
    slot: i32
    waiting_next: i32
    waiting_previous: i32
    emit_queued: u8
    prompt_count: i32
    token_count: i32  # prompt and accepted generated tokens
    cached_count: i32  # prompt tokens that were not computed
    output_limit: i32
    output_minimum: i32
    emitted_count: i32  # generated tokens already in the egress ring
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
    stop_id_count: i32
    stop_ids: i32["STOP_IDS_MAX"]
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

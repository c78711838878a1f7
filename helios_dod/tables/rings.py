"""Ingress and egress: one single-producer single-consumer pair per frontend.

Positions (`first`, `end`) only grow; row = position modulo capacity. The producer alone writes
`end`, with release; the consumer alone writes `first`, with release. The engine looks at the
frontends' positions once a tick, before it: `seen` is all that its systems know of them.
"""

from helios_dod.schema import i32, i64, table, u8, u64
from helios_dod.system import kernel, load_acquire


@table(rows="frontends_max")
class Ingress:
    """Submissions and cancels, frontend to engine. A row's payload lies in `words`, contiguous:
    prompt tokens, bias tokens, bias values (float32 bits), a block of stops (tables/stops.py),
    the grammar's bytes. Float columns are float32 bits."""

    end: i64["LINE"]
    first: i64["LINE"]
    seen: i64  # `end` when this tick began
    kind: u8["ingress_rows_max"]
    flags: u8["ingress_rows_max"]
    tag: i64["ingress_rows_max"]
    deadline_ns: i64["ingress_rows_max"]  # absolute, 0: none
    priority: i32["ingress_rows_max"]
    payload: i64["ingress_rows_max"]  # growing word position of the payload
    payload_end: i64["ingress_rows_max"]  # position after it; the consumer frees up to here
    prompt_count: i32["ingress_rows_max"]
    output_limit: i32["ingress_rows_max"]
    output_minimum: i32["ingress_rows_max"]
    seed: u64["ingress_rows_max"]
    salt: u64["ingress_rows_max"]
    temperature: i32["ingress_rows_max"]
    top_p: i32["ingress_rows_max"]
    min_p: i32["ingress_rows_max"]
    top_k: i32["ingress_rows_max"]
    repetition_penalty: i32["ingress_rows_max"]
    presence_penalty: i32["ingress_rows_max"]
    frequency_penalty: i32["ingress_rows_max"]
    top_logprobs: i32["ingress_rows_max"]
    eos: i32["ingress_rows_max", "EOS_MAX"]
    bias_count: i32["ingress_rows_max"]
    stop_words: i32["ingress_rows_max"]  # of the block of stops; 0: none
    grammar_bytes: i32["ingress_rows_max"]
    span_count: i32["ingress_rows_max"]
    boundary_count: i32["ingress_rows_max"]
    words_first: i64["LINE"]  # payload words before this position are free again
    words: i32["ingress_words_max"]


@table(rows="frontends_max")
class Egress:
    """Events, engine to frontend: one token or prompt score a row, one final row a request,
    or one rejection."""

    end: i64["LINE"]
    first: i64["LINE"]
    seen: i64  # `first` when this tick began
    kind: u8["egress_rows_max"]
    reason: u8["egress_rows_max"]  # finish or rejection
    tag: i64["egress_rows_max"]
    # of FINISHED: which stop of its kind ended it, else requests.failure
    token: i32["egress_rows_max"]
    # of the generated token; of a score: the prompt's position; of FINISHED: tokens generated
    index: i32["egress_rows_max"]
    shown: i32["egress_rows_max"]  # generated tokens that may be shown
    text: i32["egress_rows_max"]  # bytes of their text that may be shown, or TEXT_ALL
    value: i64["egress_rows_max"]  # rejection: what was asked; FINISHED: cached prompt tokens
    limit: i64["egress_rows_max"]  # rejection: what is possible
    # of a timed token, else 0; of FINISHED: when the request first got a slot, 0: never
    completed_ns: i64["egress_rows_max"]
    logprob: i32["egress_rows_max"]  # float32 bits
    top_count: i32["egress_rows_max"]  # -1: no log-probabilities
    top_tokens: i32["egress_rows_max", "TOP_LOGPROBS_MAX"]
    top_logprobs: i32["egress_rows_max", "TOP_LOGPROBS_MAX"]


@kernel
def egress_room(world, frontend):
    """Events that the frontend's ring can take now."""
    ring = world[0].egress
    return ring.kind.shape[1] - (ring.end[frontend, 0] - ring.seen[frontend])


@kernel
def see_rings(world):
    """Reads every position that a frontend owns, for the tick that begins."""
    ingress, egress = world[0].ingress, world[0].egress
    for frontend in range(ingress.seen.shape[0]):
        ingress.seen[frontend] = load_acquire(ingress.end[frontend], 0)
        egress.seen[frontend] = load_acquire(egress.first[frontend], 0)


@kernel
def payload_index(world, frontend, row):
    """First payload word of an ingress row, as an index into the ring's words."""
    ring = world[0].ingress
    return ring.payload[frontend, row] % ring.words.shape[1]

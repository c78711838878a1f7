"""The frontend's side of the rings: submissions and cancels in, events out.

The same code serves an embedded engine and one in another process: both sides see one world.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from helios_dod.bounds import INT32_MAX, INT64_MAX, UINT64_MAX, real, shown, whole
from helios_dod.errors import UserError
from helios_dod.limits import (
    BIAS_MAX,
    BOUNDARIES_MAX,
    DELIMITERS_MAX,
    EOS_MAX,
    SPANS_MAX,
    STOP_IDS_MAX,
    STOP_ROW_PAD,
    STOP_SEQUENCE_TOKENS_MAX,
    STOP_SEQUENCES_MAX,
    STOP_STRINGS_MAX,
    TOKEN_BLOCK,
    TOP_LOGPROBS_MAX,
)
from helios_dod.system import kernel, load_acquire, store_release
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_TOKEN,
    FLAG_KEEP_STOP,
    FLAG_PENALTIES,
    FLAG_SCORED,
    FLAG_TIMED,
    INGRESS_CANCEL,
    INGRESS_SUBMIT,
)

WORDS = ("priority", "prompt_count", "output_limit", "output_minimum", "temperature", "top_p",
         "min_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty",
         "top_logprobs", "bias_count", "stop_words", "flags",
         "grammar_bytes", "span_count", "boundary_count")  # order of put_submission's words

PRIORITY_MAX = 1 << 20  # a class weighs requests.AGING_NS; so many of them fit int64 nanoseconds
TEMPERATURE_MIN = 1e-4  # logits over a smaller one leave float32's range
WHOLE: dict[str, tuple[int, int]] = {  # inclusive bounds of a submission's fields
    "tag": (-INT64_MAX - 1, INT64_MAX), "output_limit": (1, INT32_MAX),
    "output_minimum": (0, INT32_MAX), "seed": (0, UINT64_MAX), "salt": (0, UINT64_MAX),
    "top_logprobs": (-1, TOP_LOGPROBS_MAX), "priority": (-PRIORITY_MAX, PRIORITY_MAX),
    "deadline_ns": (0, INT64_MAX),
}
REAL: dict[str, tuple[float, float]] = {
    "temperature": (0, 1e6), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 100),
    "presence_penalty": (-100, 100), "frequency_penalty": (-100, 100),
}
BIAS_VALUE_MAX = 1e6

EVENT = np.dtype([
    ("kind", "u1"), ("reason", "u1"), ("tag", "i8"), ("token", "i4"), ("index", "i4"),
    ("shown", "i4"), ("text", "i4"), ("value", "i8"), ("limit", "i8"), ("completed_ns", "i8"),
    ("logprob", "f4"), ("top_count", "i4"), ("top_tokens", "i4", TOP_LOGPROBS_MAX),
    ("top_logprobs", "f4", TOP_LOGPROBS_MAX),
], align=True)


def salt_of(text: str | None) -> int:
    """The cache salt of a request's text: 64 bits of its SHA-256, and 0 for none."""
    if text is None:
        return 0
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


@dataclass
class Submission:
    """A request. Token ids are those of the vocabulary; bounds of numbers are WHOLE and REAL."""

    tag: int  # unique among the frontend's live requests
    prompt: np.ndarray  # int32 token ids, at least one
    output_limit: int
    output_minimum: int = 0
    temperature: float = 0.0  # 0 is greedy, else at least TEMPERATURE_MIN
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0  # 0: off; at most the vocabulary
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    salt: int = 0  # digest of the cache salt; only requests with the same one share pages
    top_logprobs: int = -1  # -1: no log-probabilities
    eos: tuple[int, ...] = ()  # empty: EOS is ignored
    stop_ids: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    stop_strings: tuple[bytes, ...] = ()  # UTF-8; not together with ids or sequences
    keep_stop: bool = False  # the stop itself is shown
    delimiters: tuple[int, ...] = ()  # special tokens that are text, for stop strings
    bias: dict[int, float] = field(default_factory=dict)
    priority: int = 0  # smaller first
    grammar: bytes = b""  # what a grammar worker compiles; empty: unconstrained
    deadline_ns: int = 0  # absolute on the engine's clock, 0: none
    timed: bool = False  # stamp each token's completion
    scored: bool = False  # score the prompt's tokens
    # token ranges (first, end, 64-bit digest of what they stand for) that nothing cuts, ascending
    spans: tuple[tuple[int, int, int], ...] = ()
    boundaries: tuple[int, ...] = ()  # endpoints where other prompts may part, ascending


@kernel
def put_submission(world, frontend, tag, deadline_ns, seed, salt, words, eos, payload):
    """Writes one row and its payload (int32: prompt, bias tokens, bias values, stops, grammar,
    spans, boundaries).

    words: int32 [18] in the order of WORDS. False when the ring has no room."""
    ring = world[0].ingress
    rows, capacity = ring.kind.shape[1], ring.words.shape[1]
    end, bound = ring.end[frontend, 0], world[0].settings.queue_capacity
    held = end - load_acquire(ring.first[frontend], 0)
    if held >= rows or 0 < bound <= held:
        return False
    count = payload.shape[0]
    start = ring.payload_end[frontend, (end - 1) % rows] if end > 0 else 0
    if start % capacity + count > capacity:
        start += capacity - start % capacity  # payloads are contiguous
    if start + count - load_acquire(ring.words_first[frontend], 0) > capacity:
        return False
    at = start % capacity
    for i in range(count):
        ring.words[frontend, at + i] = payload[i]
    row = end % rows
    ring.kind[frontend, row] = INGRESS_SUBMIT
    ring.tag[frontend, row] = tag
    ring.deadline_ns[frontend, row] = deadline_ns
    ring.seed[frontend, row] = seed
    ring.salt[frontend, row] = salt
    ring.payload[frontend, row] = start
    ring.payload_end[frontend, row] = start + count
    ring.priority[frontend, row] = words[0]
    ring.prompt_count[frontend, row] = words[1]
    ring.output_limit[frontend, row] = words[2]
    ring.output_minimum[frontend, row] = words[3]
    ring.temperature[frontend, row] = words[4]
    ring.top_p[frontend, row] = words[5]
    ring.min_p[frontend, row] = words[6]
    ring.top_k[frontend, row] = words[7]
    ring.repetition_penalty[frontend, row] = words[8]
    ring.presence_penalty[frontend, row] = words[9]
    ring.frequency_penalty[frontend, row] = words[10]
    ring.top_logprobs[frontend, row] = words[11]
    ring.bias_count[frontend, row] = words[12]
    ring.stop_words[frontend, row] = words[13]
    ring.flags[frontend, row] = words[14]
    ring.grammar_bytes[frontend, row] = words[15]
    ring.span_count[frontend, row] = words[16]
    ring.boundary_count[frontend, row] = words[17]
    for i in range(EOS_MAX):
        ring.eos[frontend, row, i] = eos[i]
    store_release(ring.end[frontend], 0, end + 1)
    return True


@kernel
def put_cancel(world, frontend, tag):
    """Asks for the end of a request. False when the ring has no room."""
    ring = world[0].ingress
    rows = ring.kind.shape[1]
    end = ring.end[frontend, 0]
    if end - load_acquire(ring.first[frontend], 0) >= rows:
        return False
    row = end % rows
    ring.kind[frontend, row] = INGRESS_CANCEL
    ring.tag[frontend, row] = tag
    start = ring.payload_end[frontend, (end - 1) % rows] if end > 0 else 0
    ring.payload[frontend, row] = start
    ring.payload_end[frontend, row] = start
    store_release(ring.end[frontend], 0, end + 1)
    return True


@kernel
def take_events(world, frontend, kind, reason, tag, token, index, shown, text, value, limit,
                completed_ns, logprob, top_count, top_tokens, top_logprobs):
    """Copies at most len(kind) events out of the egress ring; the number copied."""
    ring = world[0].egress
    rows = ring.kind.shape[1]
    first = ring.first[frontend, 0]
    count = min(load_acquire(ring.end[frontend], 0) - first, kind.shape[0])
    for i in range(count):
        row = (first + i) % rows
        kind[i] = ring.kind[frontend, row]
        reason[i] = ring.reason[frontend, row]
        tag[i] = ring.tag[frontend, row]
        token[i] = ring.token[frontend, row]
        index[i] = ring.index[frontend, row]
        shown[i] = ring.shown[frontend, row]
        text[i] = ring.text[frontend, row]
        value[i] = ring.value[frontend, row]
        limit[i] = ring.limit[frontend, row]
        timed = kind[i] == EGRESS_TOKEN or kind[i] == EGRESS_FINISHED
        completed_ns[i] = ring.completed_ns[frontend, row] if timed else 0
        top_count[i] = ring.top_count[frontend, row]
        if top_count[i] >= 0:
            logprob[i] = ring.logprob[frontend, row]
            for k in range(top_count[i]):
                top_tokens[i, k] = ring.top_tokens[frontend, row, k]
                top_logprobs[i, k] = ring.top_logprobs[frontend, row, k]
    store_release(ring.first[frontend], 0, first + count)
    return count


def bits(value: float) -> int:
    """float32 bits of a number, as int32."""
    return int(np.float32(value).view(np.int32))


class Edge:
    """One frontend's ends of both rings. Not thread-safe: one owner."""

    def __init__(self, world: np.ndarray, frontend: int, batch: int = 1024) -> None:
        self.world, self.frontend = world, frontend
        self._context_max = world[0]["requests"]["blocks"].shape[1] * TOKEN_BLOCK
        stops = world[0]["stops"]
        self._stop_symbols = (stops["bytes"].shape[1] - STOP_ROW_PAD, stops["tokens"].shape[1])
        self._events = np.zeros(batch, EVENT)
        e = self._events
        self._columns = tuple(
            e[name].view(np.int32) if e[name].dtype.base == np.float32 else e[name]
            for name in EVENT.names)

    def submit(self, request: Submission) -> bool:
        """Queues a request. False when the ring is full (try again, or refuse). Raises UserError
        for one that never fits, or a field that is not what it says."""
        prompt = check_values(request, int(self.world[0]["settings"]["vocabulary"]))
        check_fits(request, self._context_max)
        check_stops(request, *self._stop_symbols)
        check_cuts(request)
        stops = stop_block(request)
        words = row_of(request, len(stops))
        eos = np.full(EOS_MAX, -1, dtype=np.int32)
        eos[: len(request.eos)] = request.eos
        payload = np.concatenate([
            prompt,
            np.fromiter(request.bias.keys(), np.int32, len(request.bias)),
            np.fromiter(request.bias.values(), np.float32, len(request.bias)).view(np.int32),
            stops,
            np.frombuffer(request.grammar + bytes(-len(request.grammar) % 4), np.int32),
            span_block(request), np.asarray(request.boundaries, dtype=np.int32),
        ])
        return bool(put_submission(
            self.world, self.frontend, int(request.tag), int(request.deadline_ns),
            np.uint64(request.seed), np.uint64(request.salt), words, eos, payload))

    def cancel(self, tag: int) -> bool:
        """Queues a cancel. False when the ring is full. Raises UserError."""
        return bool(put_cancel(self.world, self.frontend, whole("tag", tag, *WHOLE["tag"])))

    def events(self) -> np.ndarray:
        """The waiting events (at most one batch), dtype EVENT; valid until the next call."""
        return self._events[: take_events(self.world, self.frontend, *self._columns)]


def row_of(request: Submission, stop_words: int) -> np.ndarray:
    """Fixed columns of a request's row: int32 [18] in the order of WORDS."""
    sampling = (request.temperature, request.top_p, request.min_p)
    penalties = (request.repetition_penalty, request.presence_penalty, request.frequency_penalty)
    return np.array([
        request.priority, len(request.prompt), request.output_limit, request.output_minimum,
        *map(bits, sampling), request.top_k, *map(bits, penalties), request.top_logprobs,
        len(request.bias), stop_words,
        (FLAG_PENALTIES if penalties != (1.0, 0.0, 0.0) else 0)
        | (FLAG_TIMED if request.timed else 0) | (FLAG_SCORED if request.scored else 0)
        | (FLAG_KEEP_STOP if request.keep_stop else 0), len(request.grammar),
        len(request.spans), len(request.boundaries),
    ], dtype=np.int32)


def row_words(request: Submission) -> int:
    """Words of the token blocks that hold a request's prompt and its grammar."""
    return sum(-(-words // TOKEN_BLOCK) * TOKEN_BLOCK
               for words in (len(request.prompt), -(-len(request.grammar) // 4)))


def span_block(request: Submission) -> np.ndarray:
    """Spans as words: first, end, and both halves of the digest."""
    words = np.zeros((len(request.spans), 4), np.int32)
    for i, (first, end, digest) in enumerate(request.spans):
        words[i, :2] = first, end
        words[i, 2:] = np.array([digest], np.uint64).view(np.int32)
    return words.reshape(-1)


def check_values(request: Submission, vocabulary: int) -> np.ndarray:
    """The prompt, int32 [tokens]. Raises UserError for a field of another type, or out of its
    bounds. vocabulary 0: that of a world which no core is bound to yet, unknown."""
    most = (vocabulary or INT32_MAX) - 1
    for name, bounds in WHOLE.items():
        whole(name, getattr(request, name), *bounds)
    for name, limits in REAL.items():
        real(name, getattr(request, name), *limits)
    if 0 < request.temperature < TEMPERATURE_MIN:
        raise UserError(f"temperature: 0 or at least {TEMPERATURE_MIN:g} possible, got "
                        f"{request.temperature!r}")
    whole("top_k", request.top_k, 0, most + 1)
    for name, tokens in (("eos", request.eos), ("stop_ids", request.stop_ids),
                         ("bias", request.bias), ("delimiters", request.delimiters),
                         *(("stop_sequences", part) for part in request.stop_sequences)):
        for token in tokens:
            whole(name, token, 0, most if name != "delimiters" else INT32_MAX)
    for value in request.bias.values():
        real("bias", value, -BIAS_VALUE_MAX, BIAS_VALUE_MAX)
    for _, _, digest in request.spans:
        whole("spans", digest, 0, UINT64_MAX)
    for name, texts in (("grammar", (request.grammar,)), ("stop_strings", request.stop_strings)):
        for text in texts:
            if not isinstance(text, bytes):
                raise UserError(f"{name}: expected bytes, got {shown(text)}")
    return prompt_of(request)


def prompt_of(request: Submission) -> np.ndarray:
    """The prompt, int32 [tokens]. Raises UserError; the engine compares ids with its vocabulary."""
    try:
        prompt = np.asarray(request.prompt)
    except ValueError:  # lists of several lengths
        prompt = np.asarray(request.prompt, object)
    if prompt.ndim != 1 or prompt.size == 0 or prompt.dtype.kind not in "iu":
        raise UserError("prompt: expected at least one token id in one dimension, got "
                        f"{prompt.dtype.name} of shape {list(prompt.shape)}")
    for token in (prompt.min(), prompt.max()):
        whole("prompt", token, 0, INT32_MAX)
    return prompt.astype(np.int32)


def check_cuts(request: Submission) -> None:
    """Raises UserError unless spans and boundaries ascend inside the prompt and none cuts one."""
    at, count = 0, len(request.prompt)
    for first, end, _ in request.spans:
        if not at <= first < end <= count:
            raise UserError(f"spans: {first} to {end}, not ascending inside {count} tokens")
        at = end
    if request.scored and at == count:
        raise UserError(f"spans: the last one ends the prompt, at {count}, whose tokens but the "
                        "last are scored by themselves")
    at = 0
    for endpoint in request.boundaries:
        inside = any(first < endpoint < end for first, end, _ in request.spans)
        if not at < endpoint <= count or inside:
            raise UserError(f"boundaries: {endpoint}, not ascending outside spans and up to "
                            f"{count}, the end of the prompt")
        at = endpoint


def check_fits(request: Submission, context_max: int) -> None:
    """Raises UserError where a request is larger than a row: it would never find room."""
    for name, count, most in (
            ("prompt", len(request.prompt), context_max),
            ("prompt and grammar", row_words(request), context_max),
            ("eos", len(request.eos), EOS_MAX),
            ("spans", len(request.spans), SPANS_MAX),
            ("boundaries", len(request.boundaries), BOUNDARIES_MAX),
            ("stop_ids", len(request.stop_ids), STOP_IDS_MAX),
            ("stop_sequences", len(request.stop_sequences), STOP_SEQUENCES_MAX),
            ("stop_strings", len(request.stop_strings), STOP_STRINGS_MAX),
            ("delimiters", len(request.delimiters), DELIMITERS_MAX),
            ("bias", len(request.bias), BIAS_MAX)):
        if count > most:
            raise UserError(f"{name}: {count} asked, at most {most} possible")


def check_stops(request: Submission, bytes_max: int, tokens_max: int) -> None:
    """Raises UserError for stops that no row can hold or that exclude each other."""
    strings, sequences = request.stop_strings, request.stop_sequences
    if strings and (sequences or request.stop_ids):
        raise UserError("stop_strings: not possible together with stop_ids or stop_sequences")
    if not all(strings) or not all(sequences):
        raise UserError("stop_strings, stop_sequences: an empty one is not possible")
    longest = max(map(len, sequences), default=0)
    for name, count, most in (
            ("stop_strings", sum(map(len, strings)), bytes_max),
            ("stop_sequences", sum(map(len, sequences)), tokens_max),
            ("stop_sequences", longest, STOP_SEQUENCE_TOKENS_MAX)):
        if count > most:
            raise UserError(f"{name}: {count} symbols asked, at most {most} possible")


def stop_block(request: Submission) -> np.ndarray:
    """The block of stops in the payload, as tables/stops.py reads it; empty without stops."""
    ids, strings, sequences = request.stop_ids, request.stop_strings, request.stop_sequences
    if not (ids or strings or sequences):
        return np.zeros(0, np.int32)
    delimiters = request.delimiters if strings else ()
    head = [len(ids), len(delimiters), len(strings), len(sequences), *ids, *delimiters]
    patterns: tuple[Any, ...] = strings or sequences
    joined = b"".join(strings)
    joined += bytes(-len(joined) % 4)
    return np.concatenate([
        np.array([*head, *map(len, patterns)], np.int32), np.frombuffer(joined, "<i4"),
        np.array([token for sequence in sequences for token in sequence], np.int32)])


def fields(event: Any) -> dict[str, Any]:
    """An event as a dict, for tests and traces."""
    return {name: event[name].tolist() for name in EVENT.names}

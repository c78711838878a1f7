"""Cost of grammar masks a token: taking it and making the next mask, as the engine's worker does.

Runs the library over a made-up vocabulary of 131,072 tokens. None of this is on the tick's path."""

import json
import os
import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.limits import MASK_BITS
from helios_dod.perf.machine import conditions
from helios_dod.perf.tick import VOCABULARY

SCHEMA = {
    "type": "object", "additionalProperties": False,
    "required": ["name", "age", "tags", "address", "note"],
    "properties": {
        "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "address": {"type": "object", "properties": {"street": {"type": "string"},
                                                     "zip": {"type": "string",
                                                             "pattern": "^[0-9]{5}$"}}},
        "note": {"type": "string"}}}
STEPS_MAX = 400
WARM_UP = 1  # rounds of answers before those that count
LETTERS = b'abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:{}[]"-'


class Words:
    """Every byte, then random short texts, then an end token: what the library asks of a
    tokenizer."""

    def __init__(self, count: int) -> None:
        rng = random.Random(1)
        made = {bytes([i]): i for i in range(256)}
        while len(made) < count - 1:
            made.setdefault(bytes(rng.choices(LETTERS, k=rng.randint(2, 8))), len(made))
        self.ids, self.tokens = made, [*made, b"<end>"]
        self.eos_token_id, self.bos_token_id = count - 1, None
        self.special_token_ids = [count - 1]

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        made, at = [], 0
        while at < len(data):
            size = next(n for n in range(8, 0, -1) if data[at:at + n] in self.ids)
            made.append(self.ids[data[at:at + size]])
            at += size
        return made


@dataclass(frozen=True)
class Load:
    """So many answers at once, round after round; tokens are drawn by the seed."""

    streams: int = 8
    repeats: int = 5
    seed: int = 1


def answer(compiled: Any, executor: Any, masks: np.ndarray, rng: np.random.Generator,
           end: int) -> list[float]:
    """Microseconds a token of each step, until every answer has drawn the token `end`. masks:
    uint32 [answers, words]."""
    streams = len(masks)
    matchers, spent = [compiled.deep_copy() for _ in range(streams)], []
    live, taken = list(range(streams)), list[tuple[Any, int]]()
    for _ in range(STEPS_MAX):
        began = time.perf_counter_ns()
        if taken:
            executor.consume_token_par(taken)
        executor.unsafe_compute_mask_ptr(
            [(matchers[row], row) for row in live], masks.ctypes.data, masks.strides[0], streams)
        spent.append((time.perf_counter_ns() - began) / 1e3 / len(live))
        taken = []
        for row in list(live):
            allowed = np.nonzero(np.unpackbits(masks[row].view(np.uint8), bitorder="little"))[0]
            token = int(rng.choice(allowed))
            if token == end:
                live.remove(row)
            else:
                taken.append((matchers[row], token))
        if not live:
            break
    return spent


def run(load: Load) -> dict[str, Any]:
    """Microseconds a token: median and 99th percentile, and the lowest and highest median of a
    round."""
    import llguidance

    words = Words(VOCABULARY)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words),
                                       eos_token=[words.eos_token_id])
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
    compiled = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    assert not compiled.is_error(), compiled.get_error()
    executor = llguidance.LLExecutor(len(os.sched_getaffinity(0)))
    masks = np.zeros((load.streams, VOCABULARY // MASK_BITS), np.uint32)
    rng = np.random.default_rng(load.seed)
    rounds = [answer(compiled, executor, masks, rng, words.eos_token_id)
              for _ in range(WARM_UP + load.repeats)][WARM_UP:]
    medians, spent = [float(np.median(one)) for one in rounds], np.concatenate(rounds)
    return {**conditions(load.seed, WARM_UP, load.repeats), "vocabulary": VOCABULARY,
            "streams": load.streams, "tokens": len(spent) * load.streams,
            "median_us": round(float(np.median(spent)), 2), "lowest_us": round(min(medians), 2),
            "highest_us": round(max(medians), 2),
            "p99_us": round(float(np.percentile(spent, 99)), 2)}

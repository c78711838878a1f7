"""From logits to tokens and completion records, with the semantics of the host executor's sampling.

Filters are thresholds found by bisection over the order of floats, so nothing is sorted; the draw
is Philox4x32-10 keyed by the seed, with the new token's position as counter.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

PROMPT_BIT = tl.constexpr(1 << 30)
RUNNING = tl.constexpr(0)
EOS = tl.constexpr(1)
LIMIT = tl.constexpr(2)
NON_FINITE = tl.constexpr(3)
FAR = tl.constexpr(2147483647)


@triton.jit
def adjust_logits(logits, slot, status, histogram, repetition, presence, frequency, bias_tokens,
                  bias_values, bias_count, stop_tokens, minimum, generated, mask_words, chunk_top,
                  chunk_index, live, VOCABULARY: tl.constexpr, CHUNKS: tl.constexpr,
                  BIAS: tl.constexpr, STOPS: tl.constexpr, MASK: tl.constexpr,
                  BLOCK: tl.constexpr):
    """Finite check, grammar mask, penalties, bias, suppressed stops of one chunk of a row, and its
    largest logit.

    Grid: lanes, CHUNKS. chunk_top: f32 [lanes, CHUNKS], chunk_index: i32, the lowest id of it.
    mask_words: u32 [lanes, MASK], bits of the tokens that are allowed; MASK = 0: none."""
    gdc_launch_dependents()
    gdc_wait()
    i = tl.program_id(0)
    if i >= tl.load(live):
        return
    chunk = tl.program_id(1)
    row = tl.load(slot + i)
    if tl.load(status + row) != RUNNING:
        return
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    mask = token < VOCABULARY
    place = logits + i.to(tl.int64) * VOCABULARY + token
    x = tl.load(place, mask=mask, other=0.0)
    bad = tl.sum(tl.where(tl.abs(x) < float("inf"), 0, 1), axis=0)
    if bad > 0:
        tl.store(status + row, NON_FINITE)
    if MASK > 0:
        allowed = tl.load(mask_words + i.to(tl.int64) * MASK + token // 32, mask=mask, other=0)
        x = tl.where((allowed.to(tl.int32) >> token % 32) & 1 != 0, x, float("-inf"))
    repeated = tl.load(repetition + row)
    present = tl.load(presence + row)
    often = tl.load(frequency + row)
    biased = tl.load(bias_count + row)
    short = tl.load(generated + row) < tl.load(minimum + row)
    if (repeated != 1.0) | (present != 0.0) | (often != 0.0):
        word = tl.load(histogram + row.to(tl.int64) * VOCABULARY + token, mask=mask, other=0)
        count = word & (PROMPT_BIT - 1)
        y = tl.where(x > 0, tl.div_rn(x, tl.zeros_like(x) + repeated), x * repeated)
        y = tl.where(count > 0, y - present - often * count.to(tl.float32), y)
        x = tl.where(word != 0, y, x)
    for j in range(biased):
        wanted = tl.load(bias_tokens + row * BIAS + j)
        x = tl.where(token == wanted, x + tl.load(bias_values + row * BIAS + j), x)
    if short:
        for stop in tl.static_range(STOPS):
            x = tl.where(token == tl.load(stop_tokens + row * STOPS + stop), float("-inf"), x)
    if (MASK > 0) | short | (biased > 0) | (repeated != 1.0) | (present != 0.0) | (often != 0.0):
        tl.store(place, x, mask=mask)
    x = tl.where(mask, x, float("-inf"))
    top = tl.max(x, axis=0)
    tl.store(chunk_top + i * CHUNKS + chunk, top)
    tl.store(chunk_index + i * CHUNKS + chunk,
             tl.min(tl.where((x == top) & mask, token, FAR), axis=0))


@triton.jit
def ordered_float(key):
    """The f32 of an integer key; keys and floats have one order."""
    bits = key.to(tl.int32)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def ordered_key(value):
    """Inverse of ordered_float, as int64; minus zero is zero."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def kept_weight(x, top, inverse, least_logit, least_weight):
    """exp((x - top) * inverse) where logit and weight pass their thresholds, else 0."""
    weight = tl.where(x >= least_logit, tl.exp((x - top) * inverse), 0.0)
    return tl.where(weight >= least_weight, weight, 0.0)


@triton.jit
def row_total(x, top, inverse, least_logit, least_weight, COUNTING: tl.constexpr,
              VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Number of logits, or sum of weights, that pass both thresholds."""
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(x + token, mask=token < VOCABULARY, other=float("-inf"))
        if COUNTING:
            acc += tl.where((value >= least_logit) & (token < VOCABULARY), 1.0, 0.0)
        else:
            acc += kept_weight(value, top, inverse, least_logit, least_weight)
    return tl.sum(acc, axis=0)


@triton.jit
def least_logit_of(x, top, wanted, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Largest f32 t such that at least `wanted` logits are >= t."""
    low = ordered_key(top * 0.0 - 3.4e38)
    high = ordered_key(top) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        count = row_total(x, top, 1.0, ordered_float(middle), 0.0, True, VOCABULARY, BLOCK)
        enough = count >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return ordered_float(low)


@triton.jit
def least_weight_of(x, top, inverse, least_logit, wanted, VOCABULARY: tl.constexpr,
                    BLOCK: tl.constexpr):
    """Largest f32 t such that weights >= t sum to at least `wanted`."""
    low = ordered_key(top * 0.0)
    high = ordered_key(top * 0.0 + 1.0) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        mass = row_total(x, top, inverse, least_logit, ordered_float(middle), False, VOCABULARY,
                         BLOCK)
        enough = mass >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return ordered_float(low)


@triton.jit
def uniform_of(seed, counter):
    """A double in [0, 1) from Philox4x32-10 (Salmon et al., 2011)."""
    low = counter.to(tl.uint32)
    zero = low * 0
    a, b, _, _ = tl.philox(seed, low, zero, zero, zero)
    bits = (a.to(tl.uint64) << 32) | b.to(tl.uint64)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def pick(x, top, inverse, least_logit, least_weight, uniform, VOCABULARY: tl.constexpr,
         BLOCK: tl.constexpr):
    """Id whose share of the cumulative weights holds `uniform`; zeros are never picked."""
    total = tl.sum(tl.zeros([BLOCK], tl.float64), axis=0)
    for start in range(0, VOCABULARY, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(x + token, mask=token < VOCABULARY, other=float("-inf"))
        weight = kept_weight(value, top, inverse, least_logit, least_weight)
        total += tl.sum(weight, axis=0).to(tl.float64)
    goal = uniform * total
    running = total * 0.0
    chosen = tl.max(tl.full([BLOCK], -1, tl.int32), axis=0)
    for start in range(0, VOCABULARY, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(x + token, mask=token < VOCABULARY, other=float("-inf"))
        weight = kept_weight(value, top, inverse, least_logit, least_weight)
        sum_ = tl.sum(weight, axis=0).to(tl.float64)
        if running <= goal:
            inner = running + tl.cumsum(weight, axis=0).to(tl.float64)
            found = tl.min(tl.where((inner > goal) & (weight > 0), token, FAR), axis=0)
            last = tl.max(tl.where(weight > 0, token, -1), axis=0)
            chosen = tl.where(found != FAR, found, tl.maximum(chosen, last))
            running = tl.where(found != FAR, goal + 1.0, running + sum_)
    return chosen


@triton.jit
def top_entries(x, tokens, values, wanted, offset, VOCABULARY: tl.constexpr,
                BLOCK: tl.constexpr):
    """The `wanted` largest logits, descending, lowest id first on ties, as log-probabilities."""
    before = tl.sum(tl.zeros([BLOCK], tl.float32), axis=0) + float("inf")
    at = tl.max(tl.full([BLOCK], -1, tl.int32), axis=0)
    for j in range(wanted):
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        index = tl.full([BLOCK], FAR, tl.int32)
        for start in range(0, VOCABULARY, BLOCK):
            token = start + tl.arange(0, BLOCK)
            value = tl.load(x + token, mask=token < VOCABULARY, other=float("-inf"))
            later = (value < before) | ((value == before) & (token > at))
            better = later & (token < VOCABULARY) & ((value > best) | (index == FAR))
            best = tl.where(better, value, best)
            index = tl.where(better, token, index)
        before = tl.max(best, axis=0)
        at = tl.min(tl.where((best == before) & (index != FAR), index, FAR), axis=0)
        tl.store(tokens + j, at)
        tl.store(values + j, before - offset)


@triton.jit
def sample(logits, slot, status, temperature, top_p, min_p, top_k, seed, position, sample_row,
           top_count, output, logprob, top_tokens, top_logprobs, chunk_top, chunk_index, live,
           VOCABULARY: tl.constexpr, CHUNKS: tl.constexpr, CHUNKS_UP: tl.constexpr,
           TOP: tl.constexpr, BLOCK: tl.constexpr):
    """One token a row, -1 for a row whose slot has ended. Grid: lanes."""
    gdc_launch_dependents()
    gdc_wait()
    i = tl.program_id(0)
    if i >= tl.load(live):
        return
    row = tl.load(slot + i)
    if tl.load(status + row) != RUNNING:
        tl.store(output + i, -1)
        return
    x = logits + i.to(tl.int64) * VOCABULARY
    c = tl.arange(0, CHUNKS_UP)
    tops = tl.load(chunk_top + i * CHUNKS + c, mask=c < CHUNKS, other=float("-inf"))
    ids = tl.load(chunk_index + i * CHUNKS + c, mask=c < CHUNKS, other=FAR)
    top = tl.max(tops, axis=0)
    token = tl.min(tl.where(tops == top, ids, FAR), axis=0)
    heat = tl.load(temperature + row)
    if heat > 0:
        inverse = 1.0 / heat
        least_logit = top * 0.0 + float("-inf")
        wanted = tl.load(top_k + row)
        if (wanted > 0) & (wanted < VOCABULARY):
            least_logit = least_logit_of(x, top, wanted.to(tl.float32), VOCABULARY, BLOCK)
        least_weight = tl.load(min_p + row)
        nucleus = tl.load(top_p + row)
        if nucleus < 1.0:
            mass = row_total(x, top, inverse, least_logit, 0.0, False, VOCABULARY, BLOCK)
            least_weight = tl.maximum(least_weight, least_weight_of(
                x, top, inverse, least_logit, nucleus * mass, VOCABULARY, BLOCK))
        where = tl.load(position + tl.load(sample_row + i)) + 1
        uniform = uniform_of(tl.load(seed + row), where)
        token = pick(x, top, inverse, least_logit, least_weight, uniform, VOCABULARY, BLOCK)
    tl.store(output + i, token)
    asked = tl.load(top_count + row)
    if asked >= 0:
        offset = top + tl.log(row_total(x, top, 1.0, float("-inf"), 0.0, False, VOCABULARY, BLOCK))
        tl.store(logprob + i, tl.load(x + token) - offset)
        top_entries(x, top_tokens + i * TOP, top_logprobs + i * TOP,
                    tl.minimum(asked, min(TOP, VOCABULARY)), offset, VOCABULARY, BLOCK)


@triton.jit
def score(logits, target, output, live, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """output[r] = log softmax(logits[r])[target[r]], 0 where there is no target. Grid: rows."""
    gdc_wait()
    gdc_launch_dependents()
    r = tl.program_id(0)
    if r >= tl.load(live):
        return
    wanted = tl.load(target + r)
    value = 0.0
    if wanted >= 0:
        x = logits + r.to(tl.int64) * VOCABULARY
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            token = start + tl.arange(0, BLOCK)
            best = tl.maximum(best, tl.load(x + token, mask=token < VOCABULARY,
                                            other=float("-inf")))
        top = tl.max(best, axis=0)
        total = row_total(x, top, 1.0, float("-inf"), 0.0, False, VOCABULARY, BLOCK)
        value = tl.load(x + wanted) - top - tl.log(total)
    tl.store(output + r, value)


@triton.jit
def advance(sampled, slot, generation, consumed, query_length, pending, histogram, generated,
            limit, minimum, stop_tokens, status, out_slot, out_generation, out_status,
            out_offered, out_accepted, out_emitted, out_tokens, out_endpoint, out_cursor,
            out_reserved, live_lanes, live_sampled, tokens_stride, VOCABULARY: tl.constexpr,
            STOPS: tl.constexpr, BLOCK: tl.constexpr):
    """Commits the sampled tokens and writes the completion record of every live lane. Grid: 1."""
    gdc_launch_dependents()
    gdc_wait()
    i = tl.arange(0, BLOCK)
    live = i < tl.load(live_lanes)
    row = tl.load(slot + i, mask=live, other=0)
    state = tl.load(status + row, mask=live, other=EOS)
    draws = live & (i < tl.load(live_sampled)) & (state == RUNNING)
    token = tl.where(draws, tl.load(sampled + i, mask=draws, other=-1), -1)
    tl.store(pending + row, token, mask=draws)
    word = histogram + row.to(tl.int64) * VOCABULARY + token
    tl.store(word, tl.load(word, mask=draws, other=0) + 1, mask=draws)
    count = tl.load(generated + row, mask=draws, other=0) + 1
    tl.store(generated + row, count, mask=draws)
    ended = tl.where(count >= tl.load(limit + row, mask=draws, other=0), LIMIT, RUNNING)
    may_stop = count > tl.load(minimum + row, mask=draws, other=0)
    for j in tl.static_range(STOPS):
        stop = tl.load(stop_tokens + row * STOPS + j, mask=draws, other=-1)
        ended = tl.where(may_stop & (stop == token), EOS, ended)
    tl.store(status + row, ended, mask=draws)
    state = tl.where(draws, ended, state)
    zero = tl.zeros([BLOCK], tl.int32)
    tl.store(out_slot + i, row, mask=live)
    tl.store(out_generation + i, tl.load(generation + i, mask=live, other=0), mask=live)
    tl.store(out_status + i, state, mask=live)
    tl.store(out_offered + i, zero, mask=live)
    tl.store(out_accepted + i, zero, mask=live)
    tl.store(out_emitted + i, draws.to(tl.int32), mask=live)
    tl.store(out_tokens + i * (tokens_stride // 4), token, mask=live)
    endpoint = tl.load(consumed + i, mask=live, other=0)
    endpoint += tl.load(query_length + i, mask=live, other=0)
    tl.store(out_endpoint + i, endpoint, mask=live)
    tl.store(out_cursor + i, zero - 1, mask=live)
    tl.store(out_reserved + i, zero - 1, mask=live)

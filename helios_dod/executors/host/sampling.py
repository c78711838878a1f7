"""Sampling: logits to one token a row, and what the device keeps of it.

Order, a row alone: finite check; grammar mask, where the program takes one (what is not allowed
becomes -inf); repetition penalty over prompt and output (logit / r or * r by
sign); presence and frequency penalties over output counts; logit bias; end-of-sequence ids to -inf
while fewer than `minimum` tokens are generated. Log-probabilities are of these logits. Then
temperature (0: the largest logit, lowest id on ties), top-k, top-p over what top-k keeps, min-p
relative to the largest, and a draw. The filters are thresholds on the logit, so ties at a
threshold are all kept. The draw uses Philox4x32-10 keyed by the seed with the new token's position
as counter, and nothing else.
"""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host import vectors as v
from helios_dod.limits import MASK_BITS
from helios_dod.system import bits_float, float_bits, kernel

LANES = v.LANES
TOP_MAX = 20  # log-probabilities of a row
PROMPT_BIT = 1 << 30  # of a histogram word: the token is in the prompt
RUNNING, EOS, LIMIT, NON_FINITE = 0, 1, 2, 3
F0, F1 = np.float32(0), np.float32(1)
LEAST = np.float32(-np.inf)

# words after kind and domain
J_LOGITS, J_SLOT, J_HISTOGRAM, J_REPETITION, J_PRESENCE, J_FREQUENCY = 2, 4, 6, 8, 10, 12
J_BIAS_TOKENS, J_BIAS_VALUES, J_BIAS_COUNT, J_STOPS, J_MINIMUM, J_GENERATED = 14, 16, 18, 20, 22, 24
J_STATUS, J_VOCABULARY, J_STOP_COUNT, J_MASK = 26, 28, 29, 30
S_LOGITS, S_SLOT, S_TEMPERATURE, S_TOP_P, S_MIN_P, S_TOP_K, S_SEED = 2, 4, 6, 8, 10, 12, 14
S_POSITION, S_ROW, S_TOP_COUNT, S_OUTPUT, S_LOGPROB, S_TOP_TOKENS = 16, 18, 20, 22, 24, 26
S_TOP_LOGPROBS, S_STATUS, S_VOCABULARY = 28, 30, 32
L_LOGITS, L_TARGET, L_OUTPUT, L_VOCABULARY = 2, 4, 6, 8


@kernel(inline="always", boundscheck=False)
def at(w, operand, row):
    """Address of a row of an operand."""
    return w[operand] + row * w[operand + 1]


@kernel(boundscheck=False)
def all_finite(x, count):
    """Whether no value is infinite or NaN: 0 * x is 0 then, and NaN stays NaN in a sum."""
    zero = v.splat(F0)
    acc = zero
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        acc = v.fma(v.load(x + 4 * i), zero, acc)
    acc = v.fma(v.load_head(x + 4 * whole, count - whole), zero, acc)
    return v.total(acc) == F0


@kernel(boundscheck=False)
def penalise(w, slot, x):
    """Repetition, presence and frequency penalties by the slot's histogram."""
    repetition = m.get_f32(at(w, J_REPETITION, slot))
    presence = m.get_f32(at(w, J_PRESENCE, slot))
    frequency = m.get_f32(at(w, J_FREQUENCY, slot))
    if repetition == F1 and presence == F0 and frequency == F0:
        return
    histogram = at(w, J_HISTOGRAM, slot)
    for token in range(w[J_VOCABULARY]):
        word = m.get_i32(histogram + 4 * token)
        if word == 0:
            continue
        value = m.get_f32(x + 4 * token)
        value = value / repetition if value > F0 else value * repetition
        count = word & (PROMPT_BIT - 1)
        if count > 0:
            value = value - presence - frequency * np.float32(count)
        m.put_f32(x + 4 * token, value)


@kernel(boundscheck=False)
def apply_mask(x, mask, count):
    """Logits of tokens whose bit is not set become -inf. mask: address of 32-bit words."""
    least = v.splat(LEAST)
    for first in range(0, count, MASK_BITS):
        bits = m.get_i32(mask + first // 8)
        some = min(MASK_BITS, count - first)
        if bits == -1:
            continue
        if bits == 0 and some == MASK_BITS:
            for i in range(0, MASK_BITS, LANES):
                v.store(x + 4 * (first + i), least)
            continue
        for i in range(some):
            if (bits >> i) & 1 == 0:
                m.put_f32(x + 4 * (first + i), LEAST)


@kernel(boundscheck=False)
def adjust_row(w, i, mask):
    """Everything before temperature, in place; a row that is not finite ends its slot. mask:
    address of its bits, 0: every token is allowed."""
    slot = m.get_i32(at(w, J_SLOT, i))
    status = at(w, J_STATUS, slot)
    if m.get_i32(status) != RUNNING:
        return
    x = at(w, J_LOGITS, i)
    if not all_finite(x, w[J_VOCABULARY]):
        m.put_i32(status, NON_FINITE)
        return
    if mask != 0:
        apply_mask(x, mask, w[J_VOCABULARY])
    penalise(w, slot, x)
    tokens, values = at(w, J_BIAS_TOKENS, slot), at(w, J_BIAS_VALUES, slot)
    for j in range(m.get_i32(at(w, J_BIAS_COUNT, slot))):
        place = x + 4 * m.get_i32(tokens + 4 * j)
        m.put_f32(place, m.get_f32(place) + m.get_f32(values + 4 * j))
    if m.get_i32(at(w, J_GENERATED, slot)) < m.get_i32(at(w, J_MINIMUM, slot)):
        stops = at(w, J_STOPS, slot)
        for j in range(w[J_STOP_COUNT]):
            token = m.get_i32(stops + 4 * j)
            if token >= 0:
                m.put_f32(x + 4 * token, LEAST)


@kernel(boundscheck=False)
def adjust_logits(w, first, last):
    """A range of rows, each with the mask of its own row, if there are masks."""
    for i in range(first, last):
        adjust_row(w, i, at(w, J_MASK, i) if w[J_MASK] != 0 else np.int64(0))


@kernel(boundscheck=False)
def argmax(x, count):
    """Index of the largest value, the lowest one on ties."""
    best = v.splat(LEAST)
    where = v.splat(F0)
    place = v.ramp()
    step = v.splat(np.float32(LANES))
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        value = v.load(x + 4 * i)
        where = v.where_greater(value, best, place, where)
        best = v.larger(value, best)
        place = v.add(place, step)
    top = v.largest(best)
    far = v.splat(np.float32(1 << 24))
    # Lanes below the largest take a far index; the smallest index is the negated largest.
    kept = v.where_greater(v.splat(top), best, far, where)
    index = np.int64(-v.largest(v.sub(v.splat(F0), kept)))
    if whole == 0:
        index = np.int64(0)
        top = m.get_f32(x)
    for i in range(whole, count):
        value = m.get_f32(x + 4 * i)
        if value > top:
            top, index = value, i
    return index


@kernel(boundscheck=False)
def exponentials(x, count, top, inverse, threshold, out):
    """out = exp((x - top) * inverse) where x >= threshold, else 0; their sum."""
    shift, factor, bound = v.splat(top), v.splat(inverse), v.splat(threshold)
    zero = v.splat(F0)
    acc = zero
    for i in range(0, count, LANES):
        some = min(LANES, count - i)
        value = v.load_head(x + 4 * i, some)
        weight = v.exp_below(v.mul(v.sub(value, shift), factor))
        weight = v.where_greater(bound, value, zero, weight)
        v.store_head(out + 4 * i, weight, some)
        acc = v.add(acc, v.load_head(out + 4 * i, some))
    return v.total(acc)


@kernel(boundscheck=False)
def sum_exponentials(x, count, top):
    """Sum of exp(x - top)."""
    shift = v.splat(top)
    acc = v.splat(F0)
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        acc = v.add(acc, v.exp_below(v.sub(v.load(x + 4 * i), shift)))
    sum_ = v.total(acc)
    for i in range(whole, count):
        sum_ += np.exp(m.get_f32(x + 4 * i) - top)
    return sum_


@kernel(boundscheck=False)
def mass_above(x, count, threshold):
    """Sum and number of the values that are at least a threshold."""
    bound, zero, one = v.splat(threshold), v.splat(F0), v.splat(F1)
    sums, numbers = zero, zero
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        value = v.load(x + 4 * i)
        sums = v.add(sums, v.where_greater(bound, value, zero, value))
        numbers = v.add(numbers, v.where_greater(bound, value, zero, one))
    sum_, number = v.total(sums), v.total(numbers)
    for i in range(whole, count):
        value = m.get_f32(x + 4 * i)
        if value >= threshold:
            sum_ += value
            number += F1
    return sum_, number


@kernel(boundscheck=False)
def ordered_float(key):
    """The f32 of an integer key; keys and floats have one order."""
    bits = key if key >= 0 else key ^ 0x7FFFFFFF
    return bits_float(np.int32(bits))


@kernel(boundscheck=False)
def ordered_key(value):
    """Inverse of ordered_float; minus zero is zero."""
    bits = np.int64(float_bits(np.float32(value + F0)))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


@kernel(boundscheck=False)
def gather_above(x, count, threshold, out):
    """Copies the values that are at least a threshold; their number."""
    bound = v.splat(threshold)
    found = 0
    for i in range(0, count, LANES):
        some = min(LANES, count - i)
        if some == LANES and not v.any_at_least(v.load(x + 4 * i), bound):
            continue
        for j in range(i, i + some):
            value = m.get_f32(x + 4 * j)
            if value >= threshold:
                m.put_f32(out + 4 * found, value)
                found += 1
    return np.int64(found)


@kernel(boundscheck=False)
def threshold_for(x, count, wanted, counting, low, high, candidates, room):
    """Largest f32 t such that the number (or sum) of values x >= t is `wanted` at least.

    Bisects on ordered keys; `low` is low enough. Once no more than `room` values are left, only
    they are looked at."""
    a, b = ordered_key(low), ordered_key(high) + 1  # mass(a) >= wanted > mass(b)
    gathered = False
    while b - a > 1:
        middle = (a + b) >> 1
        mass, number = mass_above(x, count, ordered_float(middle))
        if (number if counting else mass) >= wanted:
            a = middle
            if not gathered and number <= room:
                count = gather_above(x, count, ordered_float(a), candidates)
                x, gathered = candidates, True
        else:
            b = middle
    return ordered_float(a)


@kernel(boundscheck=False)
def philox(seed, counter):
    """A double in [0, 1) from Philox4x32-10 (Salmon et al., 2011), key `seed`, counter word 0-1."""
    low32 = np.uint64(0xFFFFFFFF)
    bits = np.uint64(32)
    k0, k1 = np.uint64(seed) & low32, np.uint64(seed) >> bits
    c0, c1 = np.uint64(counter) & low32, np.uint64(counter) >> bits
    c2, c3 = np.uint64(0), np.uint64(0)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> bits) ^ c1 ^ k0, p1 & low32, (p0 >> bits) ^ c3 ^ k1, p0 & low32
        k0 = (k0 + np.uint64(0x9E3779B9)) & low32
        k1 = (k1 + np.uint64(0xBB67AE85)) & low32
    return np.float64(((c0 << bits) | c1) >> np.uint64(11)) * 2.0**-53


@kernel(boundscheck=False)
def pick(weights, count, total, uniform):
    """Index whose share of the cumulative weights holds `uniform`; zeros are never picked."""
    goal = uniform * total
    running = 0.0
    last = np.int64(0)
    for i in range(0, count, LANES):
        some = min(LANES, count - i)
        sum_ = np.float64(v.total(v.load_head(weights + 4 * i, some)))
        if sum_ > 0 and running + sum_ > goal:
            inner = running
            for j in range(i, i + some):
                weight = np.float64(m.get_f32(weights + 4 * j))
                inner += weight
                if weight > 0:
                    last = j
                    if inner > goal:
                        return np.int64(j)
        elif sum_ > 0:
            for j in range(i + some - 1, i - 1, -1):
                if m.get_f32(weights + 4 * j) > F0:
                    last = j
                    break
        running += sum_
    return np.int64(last)


@kernel(boundscheck=False)
def total_of(weights, count):
    """Sum in the order of `pick`."""
    running = 0.0
    for i in range(0, count, LANES):
        running += np.float64(v.total(v.load_head(weights + 4 * i, min(LANES, count - i))))
    return running


@kernel(boundscheck=False)
def draw(w, i, slot, x, top, temperature, scratch):
    """Temperature, filters and the draw of one row."""
    count = w[S_VOCABULARY]
    candidates = scratch + 4 * count
    room = count // 16
    inverse = F1 / temperature
    threshold = LEAST
    top_k = m.get_i32(at(w, S_TOP_K, slot))
    if 0 < top_k < count:
        threshold = threshold_for(
            x, count, np.float32(top_k), True, np.float32(-3.4e38), top, candidates, room
        )
    mass = exponentials(x, count, top, inverse, threshold, scratch)
    top_p, min_p = m.get_f32(at(w, S_TOP_P, slot)), m.get_f32(at(w, S_MIN_P, slot))
    least = min_p
    if top_p < F1:
        least = max(
            least, threshold_for(scratch, count, top_p * mass, False, F0, F1, candidates, room)
        )
    if least > F0:
        zero, bound = v.splat(F0), v.splat(least)
        for j in range(0, count, LANES):
            some = min(LANES, count - j)
            value = v.load_head(scratch + 4 * j, some)
            v.store_head(scratch + 4 * j, v.where_greater(bound, value, zero, value), some)
    position = m.get_i32(at(w, S_POSITION, m.get_i32(at(w, S_ROW, i)))) + 1
    uniform = philox(m.get_i64(at(w, S_SEED, slot)), position)
    return pick(scratch, count, total_of(scratch, count), uniform)


@kernel(boundscheck=False)
def top_entries(w, i, x, wanted, offset):
    """The `wanted` largest logits, descending, lowest id first on ties, as log-probabilities."""
    tokens, values = at(w, S_TOP_TOKENS, i), at(w, S_TOP_LOGPROBS, i)
    held = np.int64(0)
    count = w[S_VOCABULARY]
    bound = LEAST
    for start in range(0, count, LANES):
        some = min(LANES, count - start)
        if held == wanted and some == LANES:
            if not v.any_greater(v.load(x + 4 * start), v.splat(bound)):
                continue
        for token in range(start, start + some):
            value = m.get_f32(x + 4 * token)
            if held == wanted and not value > bound:
                continue
            if held < wanted:
                held += 1
            j = held - 1
            while j > 0 and m.get_f32(values + 4 * (j - 1)) < value:
                m.put_f32(values + 4 * j, m.get_f32(values + 4 * (j - 1)))
                m.put_i32(tokens + 4 * j, m.get_i32(tokens + 4 * (j - 1)))
                j -= 1
            m.put_f32(values + 4 * j, value)
            m.put_i32(tokens + 4 * j, token)
            bound = m.get_f32(values + 4 * (held - 1))
    for j in range(held):
        m.put_f32(values + 4 * j, m.get_f32(values + 4 * j) - offset)


@kernel(boundscheck=False)
def sample_row(w, i, report, scratch):
    """One token of a row, -1 where its slot has ended; log-probabilities go to row `report`."""
    count = w[S_VOCABULARY]
    slot = m.get_i32(at(w, S_SLOT, i))
    if m.get_i32(at(w, S_STATUS, slot)) != RUNNING:
        m.put_i32(at(w, S_OUTPUT, i), -1)
        return
    x = at(w, S_LOGITS, i)
    token = argmax(x, count)
    top = m.get_f32(x + 4 * token)
    temperature = m.get_f32(at(w, S_TEMPERATURE, slot))
    if temperature > F0:
        token = draw(w, i, slot, x, top, temperature, scratch)
    m.put_i32(at(w, S_OUTPUT, i), token)
    wanted = m.get_i32(at(w, S_TOP_COUNT, slot))
    if wanted >= 0:
        offset = top + np.log(sum_exponentials(x, count, top))
        m.put_f32(at(w, S_LOGPROB, report), m.get_f32(x + 4 * token) - offset)
        if wanted > 0:
            top_entries(w, report, x, min(wanted, TOP_MAX, count), offset)


@kernel(boundscheck=False)
def sample(w, first, last, scratch):
    """One token a row; -1 for a row whose slot has ended."""
    for i in range(first, last):
        sample_row(w, i, i, scratch)


@kernel(boundscheck=False)
def score(w, first, last):
    """Log-probability of each row's target token; 0 where that is no token of the vocabulary."""
    for i in range(first, last):
        target = m.get_i32(at(w, L_TARGET, i))
        value = F0
        if 0 <= target < w[L_VOCABULARY]:
            x = at(w, L_LOGITS, i)
            top = m.get_f32(x + 4 * argmax(x, w[L_VOCABULARY]))
            offset = top + np.log(sum_exponentials(x, w[L_VOCABULARY], top))
            value = m.get_f32(x + 4 * target) - offset
        m.put_f32(at(w, L_OUTPUT, i), value)

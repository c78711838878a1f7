"""Recurrent histories: gated linear scans, causal convolutions, and copies of their state rows.

A lane's packed rows are taken in order and its state lies in memory between any two of them, so a
scan gives the same bits however a text is cut. A round's rows are taken ahead: state behind each of
them goes to a row of its own, and the one behind the last token that was accepted is committed.
Items: (lane, head) of a scan, (lane, block of columns) of a convolution.
"""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host import vectors as v
from helios_dod.executors.host.rows import word_float
from helios_dod.system import kernel

LANES = v.LANES
F0, F1 = np.float32(0), np.float32(1)
STRENGTH_SIGMOID, STRENGTH_STEP = 2, 3  # proto StrengthKind
CONVOLUTION_COLUMNS = 512  # columns of one share of a convolution

# words after kind and domain
G_QUERY, G_KEY, G_VALUE, G_GATE, G_STATE, G_STATE_ROW, G_START, G_LENGTH, G_OUTPUT = range(2, 20, 2)
G_STRENGTH, G_RATE, G_BIAS, G_STRENGTH_KIND, G_DELTA = 20, 22, 23, 24, 25
G_HEADS, G_KEY_HEADS, G_KEYS, G_VALUES, G_SCALE, G_GATES, G_AHEAD = range(26, 33)
V_INPUT, V_OUTPUT, V_STATE, V_STATE_ROW, V_START, V_LENGTH = range(2, 14, 2)
V_TAPS, V_TAP_COUNT, V_BIAS, V_COLUMNS, V_AHEAD = range(14, 19)
N_STATE_ROW, N_STATE, N_BYTES, N_EMITTED = 2, 4, 6, 7
Y_SOURCE_ROW, Y_DESTINATION_ROW, Y_SOURCE, Y_DESTINATION, Y_BYTES, Y_ROWS = 2, 4, 6, 8, 10, 11
K_ROW, K_SLOT, K_CONSUMED, K_LENGTH, K_TABLE, K_STORAGE = range(2, 14, 2)
K_CACHE, K_PAGE_BYTES, K_PAGE_TOKENS, K_RESTORE = 14, 15, 16, 17


@kernel(inline="always", boundscheck=False)
def row_of(w, word, index):
    """Address of row `index` of an operand."""
    return w[word] + index * w[word + 1]


@kernel(boundscheck=False)
def softplus(x):
    """log(1 + exp(x)), without overflow."""
    return max(x, F0) + np.log1p(np.exp(-abs(x)))


@kernel(boundscheck=False)
def steps(w, row, head, factors):
    """Decay factors of a head's key elements into `factors`; the step of the last of them."""
    keys, single = w[G_KEYS], w[G_GATES] == w[G_HEADS]
    step = F0
    for i in range(1 if single else keys):
        column = head if single else head * keys + i
        gate = m.get_f32(row_of(w, G_GATE, row) + 4 * column)
        step = softplus(gate + m.get_f32(w[G_BIAS] + 4 * column))
        m.put_f32(factors + 4 * i, np.exp(-m.get_f32(w[G_RATE] + 4 * column) * step))
    if single:
        for i in range(1, keys):
            m.put_f32(factors + 4 * i, m.get_f32(factors))
    return step


@kernel(boundscheck=False)
def strength_of(w, row, head, step):
    """What scales the value that the state takes in."""
    if w[G_STRENGTH_KIND] == STRENGTH_STEP:
        return step
    if w[G_STRENGTH_KIND] == STRENGTH_SIGMOID:
        x = m.get_f32(row_of(w, G_STRENGTH, row) + 4 * head)
        return F1 / (F1 + np.exp(-x))
    return F1


@kernel(boundscheck=False)
def take_in(w, row, head, state, factors, strength):
    """One row of one head: decays the state, adds the outer product, reads it by the query."""
    keys, values = w[G_KEYS], w[G_VALUES]
    shared = head // (w[G_HEADS] // w[G_KEY_HEADS]) * keys * 4
    query, key = row_of(w, G_QUERY, row) + shared, row_of(w, G_KEY, row) + shared
    value = row_of(w, G_VALUE, row) + head * values * 4
    output = row_of(w, G_OUTPUT, row) + head * values * 4
    scale, wide = v.splat(word_float(w[G_SCALE])), v.splat(strength)
    for block in range(0, values, LANES):
        some = min(LANES, values - block)
        held = v.splat(F0)
        for i in range(keys):
            at = state + (i * values + block) * 4
            cell = v.mul(v.load_head(at, some), v.splat(m.get_f32(factors + 4 * i)))
            v.store_head(at, cell, some)
            if w[G_DELTA] != 0:
                held = v.fma(v.splat(m.get_f32(key + 4 * i)), cell, held)
        taken = v.mul(wide, v.sub(v.load_head(value + block * 4, some), held))
        read = v.splat(F0)
        for i in range(keys):
            at = state + (i * values + block) * 4
            cell = v.fma(v.splat(m.get_f32(key + 4 * i)), taken, v.load_head(at, some))
            v.store_head(at, cell, some)
            read = v.fma(v.splat(m.get_f32(query + 4 * i)), cell, read)
        v.store_head(output + block * 4, v.mul(scale, read), some)


@kernel(boundscheck=False)
def recurrent_scan(w, first, last, scratch):
    """Items (lane, head), lane by lane. scratch: one f32 a key element."""
    heads, nbytes = w[G_HEADS], w[G_KEYS] * w[G_VALUES] * 4
    for item in range(first, last):
        lane, head = item // heads, item % heads
        state = row_of(w, G_STATE, m.get_i32(row_of(w, G_STATE_ROW, lane))) + head * nbytes
        start = m.get_i32(row_of(w, G_START, lane))
        for row in range(start, start + m.get_i32(row_of(w, G_LENGTH, lane))):
            if w[G_AHEAD] != 0:
                m.copy_bytes(state + w[G_STATE + 1], state, nbytes)
                state += w[G_STATE + 1]
            step = steps(w, row, head, scratch)
            take_in(w, row, head, state, scratch, strength_of(w, row, head, step))


@kernel(boundscheck=False)
def convolution_blocks(w):
    """Blocks of columns of a row."""
    return (w[V_COLUMNS] + CONVOLUTION_COLUMNS - 1) // CONVOLUTION_COLUMNS


@kernel(boundscheck=False)
def input_at(w, start, state, t):
    """Address of the lane's input row t; before its first packed row they lie in the state."""
    if t >= 0:
        return row_of(w, V_INPUT, start + t)
    return state + (w[V_TAP_COUNT] - 1 + t) * w[V_COLUMNS] * 4


@kernel(boundscheck=False)
def keep_inputs(w, start, length, state, kept, column, some):
    """The inputs that the row behind `length` rows will need, into the state `kept`."""
    taps = w[V_TAP_COUNT]
    for j in range(taps - 1):  # an input moves to a smaller row only: none is lost
        x = v.load_head(input_at(w, start, state, length - taps + 1 + j) + 4 * column, some)
        v.store_head(kept + (j * w[V_COLUMNS] + column) * 4, x, some)


@kernel(boundscheck=False)
def convolve(w, start, length, state, column, some):
    """Outputs of one vector of columns, and the inputs that the next row will need."""
    taps, columns = w[V_TAP_COUNT], w[V_COLUMNS]
    for t in range(length):
        out = v.splat(F0)
        if w[V_BIAS] != 0:
            out = v.load_head(w[V_BIAS] + 4 * column, some)
        for j in range(taps):
            x = v.load_head(input_at(w, start, state, t - taps + 1 + j) + 4 * column, some)
            out = v.fma(x, v.load_head(w[V_TAPS] + (j * columns + column) * 4, some), out)
        v.store_head(row_of(w, V_OUTPUT, start + t) + 4 * column, out, some)
        if w[V_AHEAD] != 0:
            kept = state + (t + 1) * w[V_STATE + 1]
            keep_inputs(w, start, t + 1, state, kept, column, some)
    if w[V_AHEAD] == 0:
        keep_inputs(w, start, length, state, state, column, some)


@kernel(boundscheck=False)
def causal_convolution(w, first, last):
    """Items (lane, block of columns), lane by lane; input and output are different rows."""
    blocks = convolution_blocks(w)
    for item in range(first, last):
        lane, block = item // blocks, item % blocks
        state = row_of(w, V_STATE, m.get_i32(row_of(w, V_STATE_ROW, lane)))
        start, length = m.get_i32(row_of(w, V_START, lane)), m.get_i32(row_of(w, V_LENGTH, lane))
        low = block * CONVOLUTION_COLUMNS
        high = min(low + CONVOLUTION_COLUMNS, w[V_COLUMNS])
        for column in range(low, high, LANES):
            convolve(w, start, length, state, column, min(LANES, high - column))


@kernel(boundscheck=False)
def commit_state_rows(w, first, last):
    """The state behind the last token that each lane's completion record says was emitted."""
    for lane in range(first, last):
        emitted = m.get_i32(w[N_EMITTED] + 4 * lane)
        if emitted > 0:
            state = row_of(w, N_STATE, m.get_i32(row_of(w, N_STATE_ROW, lane)))
            m.copy_bytes(state, state + emitted * w[N_STATE + 1], w[N_BYTES])


@kernel(boundscheck=False)
def copy_state_rows(w, first, last):
    """Rows of a lane's source to its destination where both name one."""
    for lane in range(first, last):
        source = m.get_i32(row_of(w, Y_SOURCE_ROW, lane))
        destination = m.get_i32(row_of(w, Y_DESTINATION_ROW, lane))
        if source < 0 or destination < 0:
            continue
        for i in range(w[Y_ROWS]):
            m.copy_bytes(row_of(w, Y_DESTINATION, destination + i), row_of(w, Y_SOURCE, source + i),
                         w[Y_BYTES])


@kernel(boundscheck=False)
def copy_partial_page(w, first, last):
    """The page that a lane's endpoint lies inside, to its storage row or back."""
    tokens, nbytes = w[K_PAGE_TOKENS], w[K_PAGE_BYTES]
    for lane in range(first, last):
        row = m.get_i32(row_of(w, K_ROW, lane))
        endpoint = m.get_i32(row_of(w, K_CONSUMED, lane)) + m.get_i32(row_of(w, K_LENGTH, lane))
        if row < 0 or endpoint % tokens == 0:
            continue
        table = row_of(w, K_TABLE, m.get_i32(row_of(w, K_SLOT, lane)))
        page = w[K_CACHE] + m.get_i32(table + 4 * (endpoint // tokens)) * nbytes
        storage = row_of(w, K_STORAGE, row)
        if w[K_RESTORE] != 0:
            m.copy_bytes(page, storage, nbytes)
        else:
            m.copy_bytes(storage, page, nbytes)

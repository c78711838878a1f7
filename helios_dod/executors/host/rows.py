"""Operations on rows of activations: embedding, norm, rotary, activation, selection.

Each takes its words `w` (laid out by plan.py: kind, row domain, then address and byte stride of
every operand, then attributes), the live row count, and the calling thread's share of rows. A row
is always computed alone, in one order.
"""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host import vectors as v
from helios_dod.executors.host.products import panel_element
from helios_dod.system import bits_float, kernel

LANES = v.LANES
SILU, GELU_TANH, GELU_ERF, RELU = 1, 2, 3, 4  # proto ActivationKind
RMS, LAYER = 1, 2  # proto NormKind
HALVES, INTERLEAVED = 1, 2  # proto RotaryKind
ACTIVATION_COLUMNS = 512  # columns of one share of an activation
F0, F1, HALF = np.float32(0), np.float32(1), np.float32(0.5)

# words after kind and domain
E_INDEX, E_OUTPUT, E_OUTPUT_STRIDE, E_ACCUMULATE, E_SCALE, E_COLUMNS, E_PLAIN = 2, 4, 5, 6, 7, 8, 9
E_TABLE, E_VARIANT = 10, 11  # then as a product's words from P_VARIANT on
N_INPUT, N_OUTPUT, N_WEIGHT, N_BIAS, N_EPSILON, N_GROUP, N_COLUMNS, N_KIND = (
    2,
    4,
    6,
    7,
    8,
    9,
    10,
    11,
)
R_OPERAND, R_POSITION, R_FREQUENCIES, R_COUNT, R_HEAD, R_HEADS, R_KIND, R_MAGNITUDE = (
    2,
    4,
    6,
    7,
    8,
    9,
    10,
    11,
)
A_GATE, A_UP, A_OUTPUT, A_KIND, A_COLUMNS = 2, 4, 6, 8, 9
S_INPUT, S_INDEX, S_OUTPUT, S_BYTES = 2, 4, 6, 8
T_STAGED, T_PENDING, T_SLOT, T_LANE, T_OUTPUT = 2, 4, 6, 8, 10
C_SOURCE, C_SLOT, C_DESTINATION, C_BYTES, C_VALUE = 2, 4, 6, 8, 9
U_COUNT, U_UPDATES, U_TABLE = 2, 4, 6


@kernel(inline="always", boundscheck=False)
def word_float(word):
    """The f32 whose bits are the low half of a word."""
    return bits_float(np.int32(word))


@kernel(boundscheck=False)
def embed(w, first, last):
    """output[r] = table[index[r]] (* scale) (+ output[r]); the table is panels or plain rows."""
    scale = word_float(w[E_SCALE])
    columns = w[E_COLUMNS]
    for r in range(first, last):
        row = m.get_i32(w[E_INDEX] + r * w[E_INDEX + 1])
        target = w[E_OUTPUT] + r * w[E_OUTPUT_STRIDE]
        for c in range(columns):
            if w[E_PLAIN] == 4:
                value = m.get_f32(w[E_TABLE] + (row * columns + c) * 4)
            elif w[E_PLAIN] == 2:
                value = m.get_f16(w[E_TABLE] + (row * columns + c) * 2)
            elif w[E_PLAIN] == 3:
                value = m.get_bf16(w[E_TABLE] + (row * columns + c) * 2)
            else:
                value = panel_element(w, E_VARIANT, row, c)
            if scale != F0:
                value *= scale
            if w[E_ACCUMULATE] != 0:
                value += m.get_f32(target + 4 * c)
            m.put_f32(target + 4 * c, value)


@kernel(boundscheck=False)
def squares(x, count, mean):
    """Sum of (x - mean)**2 over `count` f32."""
    offset = v.splat(mean)
    acc = v.splat(F0)
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        value = v.sub(v.load(x + 4 * i), offset)
        acc = v.fma(value, value, acc)
    sum_ = v.total(acc)
    for i in range(whole, count):
        value = m.get_f32(x + 4 * i) - mean
        sum_ += value * value
    return sum_


@kernel(boundscheck=False)
def sum_of(x, count):
    """Sum of `count` f32."""
    acc = v.splat(F0)
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        acc = v.add(acc, v.load(x + 4 * i))
    sum_ = v.total(acc)
    for i in range(whole, count):
        sum_ += m.get_f32(x + 4 * i)
    return sum_


@kernel(boundscheck=False)
def normalise(w, first, last):
    """RMS or layer norm of every `group` columns, times the weight (+ bias)."""
    group = w[N_GROUP]
    size = np.float32(group)
    epsilon = word_float(w[N_EPSILON])
    for r in range(first, last):
        for g in range(w[N_COLUMNS] // group):
            x = w[N_INPUT] + r * w[N_INPUT + 1] + g * group * 4
            y = w[N_OUTPUT] + r * w[N_OUTPUT + 1] + g * group * 4
            mean = F0 if w[N_KIND] == RMS else sum_of(x, group) / size
            factor = F1 / np.sqrt(squares(x, group, mean) / size + epsilon)
            wide_mean, wide = v.splat(mean), v.splat(factor)
            for i in range(0, group, LANES):
                some = min(LANES, group - i)
                value = v.mul(v.sub(v.load_head(x + 4 * i, some), wide_mean), wide)
                value = v.mul(value, v.load_head(w[N_WEIGHT] + 4 * i, some))
                if w[N_BIAS] != 0:
                    value = v.add(value, v.load_head(w[N_BIAS] + 4 * i, some))
                v.store_head(y + 4 * i, value, some)


@kernel(boundscheck=False)
def sine_cosine(angle):
    """sin and cos of an f32 angle, |angle| < 2**20: reduced in f64, Taylor on [-pi/4, pi/4]."""
    turns = np.rint(np.float64(angle) * 0.6366197723675814)
    r = np.float64(angle) - turns * 1.5707963267948966
    z = r * r
    sine = r * (
        1.0
        + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z / 39916800))))
    )
    cosine = 1.0 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z / 3628800))))
    quadrant = np.int64(turns) & 3
    if quadrant & 1:
        sine, cosine = cosine, sine
    if quadrant & 2:
        sine = -sine
    if quadrant == 1 or quadrant == 2:
        cosine = -cosine
    return np.float32(sine), np.float32(cosine)


@kernel(boundscheck=False)
def rotary(w, first, last, scratch):
    """Rotates the leading 2 * count columns of every head by position * frequency."""
    count, head = w[R_COUNT], w[R_HEAD]
    magnitude = word_float(w[R_MAGNITUDE])
    cosines, sines = scratch, scratch + 4 * count
    for r in range(first, last):
        position = np.float32(m.get_i32(w[R_POSITION] + r * w[R_POSITION + 1]))
        for i in range(count):
            sine, cosine = sine_cosine(position * m.get_f32(w[R_FREQUENCIES] + 4 * i))
            m.put_f32(cosines + 4 * i, cosine * magnitude)
            m.put_f32(sines + 4 * i, sine * magnitude)
        for h in range(w[R_HEADS]):
            x = w[R_OPERAND] + r * w[R_OPERAND + 1] + h * head * 4
            if w[R_KIND] == HALVES:
                rotate_halves(x, cosines, sines, count)
            else:
                rotate_pairs(x, cosines, sines, count)


@kernel(boundscheck=False)
def rotate_halves(x, cosines, sines, count):
    """Pairs (i, i + count)."""
    for i in range(0, count, LANES):
        some = min(LANES, count - i)
        a = v.load_head(x + 4 * i, some)
        b = v.load_head(x + 4 * (count + i), some)
        c = v.load_head(cosines + 4 * i, some)
        s = v.load_head(sines + 4 * i, some)
        v.store_head(x + 4 * i, v.sub(v.mul(a, c), v.mul(b, s)), some)
        v.store_head(x + 4 * (count + i), v.add(v.mul(b, c), v.mul(a, s)), some)


@kernel(boundscheck=False)
def rotate_pairs(x, cosines, sines, count):
    """Pairs (2 i, 2 i + 1)."""
    for i in range(count):
        a, b = m.get_f32(x + 8 * i), m.get_f32(x + 8 * i + 4)
        c, s = m.get_f32(cosines + 4 * i), m.get_f32(sines + 4 * i)
        m.put_f32(x + 8 * i, a * c - b * s)
        m.put_f32(x + 8 * i + 4, b * c + a * s)


@kernel(inline="always", boundscheck=False)
def horner(p, z, constant):
    """p * z + constant."""
    return v.fma(p, z, v.splat(np.float32(constant)))


@kernel(boundscheck=False)
def error_function(x):
    """erf of a vector: the odd rational approximation on [-4, 4] that Eigen uses, 4e-7 absolute."""
    four = v.splat(np.float32(4))
    minus = v.splat(np.float32(-4))
    x = v.where_greater(x, four, four, x)
    x = v.where_greater(minus, x, minus, x)
    z = v.mul(x, x)
    p = v.splat(np.float32(-2.72614225801306e-10))
    p = horner(p, z, 2.77068142495902e-08)
    p = horner(p, z, -2.10102402082508e-06)
    p = horner(p, z, -5.69250639462346e-05)
    p = horner(p, z, -7.34990630326855e-04)
    p = horner(p, z, -2.95459980854025e-03)
    p = horner(p, z, -1.60960333262415e-02)
    q = v.splat(np.float32(-1.45660718464996e-05))
    q = horner(q, z, -2.13374055278905e-04)
    q = horner(q, z, -1.68282697438203e-03)
    q = horner(q, z, -7.37332916720468e-03)
    q = horner(q, z, -1.42647390514189e-02)
    return v.div(v.mul(x, p), q)


@kernel(boundscheck=False)
def activate(kind, x):
    """The activation of a vector."""
    one = v.splat(F1)
    half = v.mul(v.splat(HALF), x)
    if kind == SILU:
        return v.div(x, v.add(one, v.exp(v.sub(v.splat(F0), x))))
    if kind == GELU_TANH:  # tanh(z) = 1 - 2 / (exp(2 z) + 1), z = sqrt(2 / pi) (x + 0.044715 x^3)
        cube = v.mul(v.mul(x, x), x)
        z = v.fma(cube, v.splat(np.float32(0.044715)), x)
        e = v.exp(v.mul(z, v.splat(np.float32(2 * 0.7978845608028654))))
        tanh = v.sub(one, v.div(v.splat(np.float32(2)), v.add(e, one)))
        return v.mul(half, v.add(one, tanh))
    if kind == GELU_ERF:
        erf = error_function(v.mul(x, v.splat(np.float32(0.7071067811865476))))
        return v.mul(half, v.add(one, erf))
    zero = v.splat(F0)
    return v.where_greater(zero, x, zero, x)


@kernel(boundscheck=False)
def activation_blocks(w):
    """Blocks of columns of a row."""
    return (w[A_COLUMNS] + ACTIVATION_COLUMNS - 1) // ACTIVATION_COLUMNS


@kernel(boundscheck=False)
def activation(w, first, last):
    """output = f(gate) (* up), for a range of blocks of columns counted row by row."""
    columns = w[A_COLUMNS]
    blocks = activation_blocks(w)
    for item in range(first, last):
        r = item // blocks
        start = item % blocks * ACTIVATION_COLUMNS
        gate = w[A_GATE] + r * w[A_GATE + 1]
        up = w[A_UP] + r * w[A_UP + 1]
        out = w[A_OUTPUT] + r * w[A_OUTPUT + 1]
        end = min(start + ACTIVATION_COLUMNS, columns)
        for i in range(start, end, LANES):
            some = min(LANES, end - i)
            value = activate(w[A_KIND], v.load_head(gate + 4 * i, some))
            if w[A_UP] != 0:
                value = v.mul(value, v.load_head(up + 4 * i, some))
            v.store_head(out + 4 * i, value, some)


@kernel(boundscheck=False)
def select_rows(w, first, last):
    """output[i] = input[index[i]]."""
    for i in range(first, last):
        row = m.get_i32(w[S_INDEX] + i * w[S_INDEX + 1])
        m.copy_bytes(
            w[S_OUTPUT] + i * w[S_OUTPUT + 1], w[S_INPUT] + row * w[S_INPUT + 1], w[S_BYTES]
        )


@kernel(boundscheck=False)
def select_tokens(w, first, last):
    """output[r] = staged[r] if it is a token, else pending[slot[lane[r]]]."""
    for r in range(first, last):
        token = np.int64(-1)
        if w[T_STAGED] != 0:
            token = m.get_i32(w[T_STAGED] + r * w[T_STAGED + 1])
        if token < 0:
            lane = m.get_i32(w[T_LANE] + r * w[T_LANE + 1])
            slot = m.get_i32(w[T_SLOT] + lane * w[T_SLOT + 1])
            token = m.get_i32(w[T_PENDING] + slot * w[T_PENDING + 1])
        m.put_i32(w[T_OUTPUT] + r * w[T_OUTPUT + 1], token)


@kernel(boundscheck=False)
def scatter_rows(w, first, last):
    """destination[slot[i]] = source[i]."""
    for i in range(first, last):
        slot = m.get_i32(w[C_SLOT] + i * w[C_SLOT + 1])
        m.copy_bytes(
            w[C_DESTINATION] + slot * w[C_DESTINATION + 1],
            w[C_SOURCE] + i * w[C_SOURCE + 1],
            w[C_BYTES],
        )


@kernel(boundscheck=False)
def fill_rows(w, first, last):
    """destination[slot[i]] = value, every 32-bit element."""
    for i in range(first, last):
        slot = m.get_i32(w[C_SLOT] + i * w[C_SLOT + 1])
        target = w[C_DESTINATION] + slot * w[C_DESTINATION + 1]
        for at in range(0, w[C_BYTES], 4):
            m.put_i32(target + at, w[C_VALUE])


@kernel(boundscheck=False)
def update_page_table(w):
    """table[update[i, 0], update[i, 1]] = update[i, 2]."""
    for i in range(m.get_i32(w[U_COUNT])):
        update = w[U_UPDATES] + i * w[U_UPDATES + 1]
        row = w[U_TABLE] + m.get_i32(update) * w[U_TABLE + 1]
        m.put_i32(row + 4 * m.get_i32(update + 4), m.get_i32(update + 8))

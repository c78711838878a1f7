"""Bytes of tokens to valid text: a jitted UTF-8 machine, one byte at a time.

A partial character is held until it is complete or certainly invalid; an invalid one becomes
U+FFFD, one for each maximal subpart (the Unicode Standard, section 3.9). The tick's stop strings
and the frontend's text are both made by it, so their positions agree.
"""

import numpy as np

from helios_dod.system import kernel

# The limits.DECODING_WORDS words of a text's state: the character being read, and whether any text
# went out.
NEED, LOW, HIGH, COUNT, STARTED, HELD = 0, 1, 2, 3, 4, 5


@kernel
def put_text(out, at, byte, escape):
    """Writes one byte of valid text at out[at]; the position after it. escape: as in JSON."""
    if not escape or (byte >= 0x20 and byte != 0x22 and byte != 0x5C):
        out[at] = byte
        return at + 1
    short = 0
    if byte == 0x22 or byte == 0x5C:
        short = byte
    elif byte == 0x0A:
        short = 0x6E
    elif byte == 0x0D:
        short = 0x72
    elif byte == 0x09:
        short = 0x74
    out[at] = 0x5C
    if short:
        out[at + 1] = short
        return at + 2
    out[at + 1] = 0x75
    out[at + 2] = 0x30
    out[at + 3] = 0x30
    out[at + 4] = 0x30 + (byte >> 4)
    low = byte & 15
    out[at + 5] = 0x30 + low if low < 10 else 0x57 + low
    return at + 6


@kernel
def put_byte(out, at, state, byte, escape, strip):
    """Writes one byte of valid text at out[at]; the position after it.

    escape: as in a JSON string. strip: the first byte of a text is dropped if it is a space."""
    if state[STARTED] == 0:
        state[STARTED] = 1
        if strip and byte == 0x20:
            return at
    return put_text(out, at, byte, escape)


@kernel
def put_replacement(out, at, state):
    """Writes U+FFFD and forgets the held bytes; the position after it."""
    state[STARTED] = 1
    state[NEED] = 0
    state[COUNT] = 0
    out[at] = 0xEF
    out[at + 1] = 0xBF
    out[at + 2] = 0xBD
    return at + 3


@kernel
def expect(state, byte):
    """Begins a character of several bytes; False if no character begins so (Unicode table 3-7)."""
    state[LOW] = 0x80
    state[HIGH] = 0xBF
    if 0xC2 <= byte <= 0xDF:
        state[NEED] = 1
    elif 0xE0 <= byte <= 0xEF:
        state[NEED] = 2
        if byte == 0xE0:
            state[LOW] = 0xA0
        elif byte == 0xED:
            state[HIGH] = 0x9F
    elif 0xF0 <= byte <= 0xF4:
        state[NEED] = 3
        if byte == 0xF0:
            state[LOW] = 0x90
        elif byte == 0xF4:
            state[HIGH] = 0x8F
    else:
        return False
    state[HELD] = byte
    state[COUNT] = 1
    return True


@kernel
def put_raw(out, at, state, byte, escape, strip):
    """Takes one byte of a token; writes what is decided by it, unescaped at most DECODED_MAX bytes.
    The position after it."""
    if state[NEED] > 0:
        if state[LOW] <= byte <= state[HIGH]:
            state[NEED] -= 1
            state[LOW] = 0x80
            state[HIGH] = 0xBF
            if state[NEED] > 0:
                state[HELD + state[COUNT]] = byte
                state[COUNT] += 1
                return at
            for i in range(state[COUNT]):
                at = put_byte(out, at, state, state[HELD + i], escape, strip)
            state[COUNT] = 0
            return put_byte(out, at, state, byte, escape, strip)
        at = put_replacement(out, at, state)
    if byte < 0x80:
        return put_byte(out, at, state, byte, escape, strip)
    if expect(state, byte):
        return at
    return put_replacement(out, at, state)


@kernel
def put_token(data, offsets, special, out, at, state, token, escape, strip):
    """Writes the text that one more token decides; the position after it."""
    if token < 0 or token >= special.shape[0] or special[token] == 1:
        return at
    for i in range(offsets[token], offsets[token + 1]):
        at = put_raw(out, at, state, np.int32(data[i]), escape, strip)
    return at

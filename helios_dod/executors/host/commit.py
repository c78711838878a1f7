"""The end of a program: what the device keeps of emitted tokens, and completion records."""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host.sampling import EOS, LIMIT, RUNNING, at
from helios_dod.system import kernel

# words after kind and domain
A_SAMPLED, A_SLOT, A_GENERATION, A_CONSUMED, A_LENGTH, A_PENDING = 2, 4, 6, 8, 10, 12
A_HISTOGRAM, A_GENERATED, A_LIMIT, A_MINIMUM, A_STOPS, A_STATUS = 14, 16, 18, 20, 22, 24
A_STOP_COUNT, A_OUT_SLOT, A_OUT_GENERATION, A_OUT_STATUS, A_OUT_OFFERED = 26, 27, 28, 29, 30
A_OUT_ACCEPTED, A_OUT_EMITTED, A_OUT_TOKENS, A_OUT_TOKENS_STRIDE = 31, 32, 33, 34
A_OUT_ENDPOINT, A_OUT_CURSOR, A_OUT_RESERVED = 35, 36, 37


@kernel(boundscheck=False)
def commit_token(w, slot, token):
    """Pending token, histogram, count and status of a slot that emits `token`."""
    m.put_i32(at(w, A_PENDING, slot), token)
    word = at(w, A_HISTOGRAM, slot) + 4 * token
    m.put_i32(word, m.get_i32(word) + 1)
    generated = m.get_i32(at(w, A_GENERATED, slot)) + 1
    m.put_i32(at(w, A_GENERATED, slot), generated)
    stops = at(w, A_STOPS, slot)
    ended = RUNNING
    if generated >= m.get_i32(at(w, A_LIMIT, slot)):
        ended = LIMIT
    if generated > m.get_i32(at(w, A_MINIMUM, slot)):
        for j in range(w[A_STOP_COUNT]):
            if m.get_i32(stops + 4 * j) == token:
                ended = EOS
    m.put_i32(at(w, A_STATUS, slot), ended)


@kernel(boundscheck=False)
def put_tokens(w, lane, index, token):
    """An emitted token into the lane's completion record."""
    m.put_i32(w[A_OUT_TOKENS] + lane * w[A_OUT_TOKENS_STRIDE] + 4 * index, token)


@kernel(boundscheck=False)
def write_record(w, lane, slot, offered, accepted, emitted, endpoint):
    """The rest of the lane's completion record."""
    m.put_i32(w[A_OUT_SLOT] + 4 * lane, slot)
    m.put_i32(w[A_OUT_GENERATION] + 4 * lane, m.get_i32(at(w, A_GENERATION, lane)))
    m.put_i32(w[A_OUT_STATUS] + 4 * lane, m.get_i32(at(w, A_STATUS, slot)))
    m.put_i32(w[A_OUT_OFFERED] + 4 * lane, offered)
    m.put_i32(w[A_OUT_ACCEPTED] + 4 * lane, accepted)
    m.put_i32(w[A_OUT_EMITTED] + 4 * lane, emitted)
    m.put_i32(w[A_OUT_ENDPOINT] + 4 * lane, endpoint)
    m.put_i32(w[A_OUT_CURSOR] + 4 * lane, -1)
    m.put_i32(w[A_OUT_RESERVED] + 4 * lane, -1)


@kernel(boundscheck=False)
def advance(w, lanes, sampled):
    """Commits the sampled tokens and writes the completion record of every live lane."""
    for i in range(lanes):
        slot = m.get_i32(at(w, A_SLOT, i))
        emitted, token = np.int64(0), np.int64(-1)
        drawn = np.int64(-1)
        if i < sampled and m.get_i32(at(w, A_STATUS, slot)) == RUNNING:
            drawn = m.get_i32(at(w, A_SAMPLED, i))
        if drawn >= 0:  # -1: its row found the slot ended
            emitted, token = np.int64(1), drawn
            commit_token(w, slot, token)
        put_tokens(w, i, np.int64(0), token)
        endpoint = m.get_i32(at(w, A_CONSUMED, i)) + m.get_i32(at(w, A_LENGTH, i))
        write_record(w, i, slot, np.int64(0), np.int64(0), emitted, endpoint)

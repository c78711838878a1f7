"""The loops of an upload's threads, without the GIL: some fill pinned buffers from a file, one
hands them to the device, so that calls of the driver wait for no lock.

Chunk i goes through buffer i modulo their count. Each buffer has a word, LINE apart: twice the
number of times that it was emptied, plus one while it is full.
"""

import ctypes

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from helios_dod.executors.host.memory import pause
from helios_dod.system import kernel, load_acquire, store_release

WORD = ir.IntType(64)
LINE = 8  # words of a cache line
ANSWER = 0xFFFFFFFF  # bits of a call's answer
NOT_READY = 600  # CUDA_ERROR_NOT_READY
DRIVER_CALLS = ("cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventQuery")


@intrinsic
def called(typing_context, function, a, b, c, d):
    """What the C function at an address returns, as 64 bits, for four integers or pointers."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(WORD, [WORD] * 4).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 5), generate


@kernel(boundscheck=False)
def fill(read, file, offset, nbytes, chunk, first, step, buffers, turns, stop):
    """Reads every step-th chunk from `first` on into its buffer, once that is empty.

    read: address of pread, or of memcpy where file is -1 and offset an address. stop: [1], set if
    anything failed. Returns the byte that a read failed at, or -1."""
    for number in range(first, (nbytes + chunk - 1) // chunk, step):
        which, turn = number % len(buffers), 2 * (number // len(buffers))
        start = number * chunk
        count, filled = min(chunk, nbytes - start), 0
        while load_acquire(turns, which * LINE) != turn:
            if load_acquire(stop, 0):
                return -1
            pause()
        while file < 0 and filled < count:
            called(read, buffers[which], offset + start, count, 0)
            filled = count
        while filled < count:
            got = called(read, file, buffers[which] + filled, count - filled,
                         offset + start + filled)
            if got <= 0:
                store_release(stop, 0, 1)
                return start + filled
            filled += got
        store_release(turns, which * LINE, turn + 1)
    return -1


@kernel(boundscheck=False)
def send(functions, address, nbytes, chunk, buffers, events, stream, turns, stop):
    """Copies full buffers to a device address in order, and frees each behind its event.

    functions: addresses of DRIVER_CALLS. Returns (call that failed or -1, its answer)."""
    chunks, slots = (nbytes + chunk - 1) // chunk, len(buffers)
    sent = done = 0
    while done < chunks and not load_acquire(stop, 0):
        which, at = sent % slots, sent * chunk
        if sent < chunks and load_acquire(turns, which * LINE) == 2 * (sent // slots) + 1:
            answer = called(functions[0], address + at, buffers[which], min(chunk, nbytes - at),
                            stream) & ANSWER
            if answer == 0:
                answer = called(functions[1], events[which], stream, 0, 0) & ANSWER
            if answer != 0:
                store_release(stop, 0, 1)
                return 0, answer
            sent += 1
        elif done < sent:
            which = done % slots
            answer = called(functions[2], events[which], 0, 0, 0) & ANSWER
            if answer == 0:
                store_release(turns, which * LINE, 2 * (done // slots) + 2)
                done += 1
            elif answer != NOT_READY:
                store_release(stop, 0, 1)
                return 1, answer
        else:
            pause()
    return -1, 0


def addresses(library: ctypes.CDLL, *names: str) -> list[int]:
    """Addresses of C functions."""
    return [int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0) for name in names]

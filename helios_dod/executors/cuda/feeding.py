"""The loops of an upload's threads, without the GIL: some fill a ring of pinned buffers from a
file, one hands them to the device, so that calls of the driver wait for no lock. That one asks the
driver for nothing: its lock is needed by whoever builds graphs meanwhile.

Chunk i goes through buffer i modulo their count; buffers lie behind one another, so that one copy
takes all that are full: the device rests some microseconds between copies. Each buffer has a word,
LINE apart: twice the number of times that it was emptied, plus one while it is full.
"""

import ctypes

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from helios_dod.executors.host.memory import pause
from helios_dod.system import fetch_add, kernel, load_acquire, store_release

WORD = ir.IntType(64)
LINE = 8  # words of a cache line
ANSWER = 0xFFFFFFFF  # bits of a call's answer
NOT_READY = 600  # CUDA_ERROR_NOT_READY
PATIENCE = 400_000  # pauses without progress before the driver is asked: some 20 ms
DRIVER_CALLS = ("cuMemcpyHtoDAsync_v2", "cuStreamWriteValue32_v2", "cuStreamQuery")


@intrinsic
def called(typing_context, function, a, b, c, d):
    """What the C function at an address returns, as 64 bits, for four integers or pointers."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(WORD, [WORD] * 4).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 5), generate


@kernel(boundscheck=False)
def fill(read, file, offset, nbytes, chunk, memory, turns, next_chunk, stop):
    """Reads the chunks that it takes from next_chunk [1] into their buffers, once those are empty.

    read: address of pread, or of memcpy where file is -1 and offset an address. memory: address of
    the buffers. stop: [1], set if anything failed. Returns the byte that a read failed at, or -1.
    """
    slots = len(turns) // LINE
    number = fetch_add(next_chunk, 0, 1)
    while number * chunk < nbytes:
        which, turn = number % slots, 2 * (number // slots)
        start = number * chunk
        count, filled = min(chunk, nbytes - start), 0
        buffer = memory + which * chunk
        while load_acquire(turns, which * LINE) != turn:
            if load_acquire(stop, 0):
                return -1
            pause()
        while file < 0 and filled < count:
            called(read, buffer, offset + start, count, 0)
            filled = count
        while filled < count:
            got = called(read, file, buffer + filled, count - filled, offset + start + filled)
            if got <= 0:
                store_release(stop, 0, 1)
                return start + filled
            filled += got
        store_release(turns, which * LINE, turn + 1)
        number = fetch_add(next_chunk, 0, 1)
    return -1


@kernel(boundscheck=False)
def full(turns, first, chunks):
    """How many buffers from chunk `first` on are full and lie behind one another."""
    slots = len(turns) // LINE
    which, turn, count = first % slots, 2 * (first // slots) + 1, 0
    while (first + count < chunks and which + count < slots
           and load_acquire(turns, (which + count) * LINE) == turn):
        count += 1
    return count


@kernel(boundscheck=False)
def send(functions, address, nbytes, chunk, memory, arrived, arrived_address, least, stream, turns,
         stop):
    """Copies full buffers to a device address in order, and frees them once they are there.

    functions: addresses of DRIVER_CALLS. arrived: int64 [1] in host memory, 0; behind each copy the
    device writes there, at arrived_address, how many chunks it has. least: chunks that a copy waits
    for while another is under way. Returns (call that failed or -1, its answer)."""
    chunks, slots = (nbytes + chunk - 1) // chunk, len(turns) // LINE
    sent = done = waited = 0
    while done < chunks and not load_acquire(stop, 0):
        count = full(turns, sent, chunks)
        last = sent + count == chunks or (sent + count) % slots == 0
        now = load_acquire(arrived, 0)
        if now > done:
            for number in range(done, now):
                store_release(turns, number % slots * LINE, 2 * (number // slots) + 2)
            done, waited = now, 0
        elif count >= least or (count > 0 and (last or done == sent)):
            at = sent * chunk
            answer = called(functions[0], address + at, memory + sent % slots * chunk,
                            min(count * chunk, nbytes - at), stream) & ANSWER
            if answer == 0:
                answer = called(functions[1], stream, arrived_address, sent + count, 0) & ANSWER
            if answer != 0:
                store_release(stop, 0, 1)
                return 0, answer
            sent += count
        else:
            pause()
            waited += 1
            if waited > PATIENCE:
                answer, waited = called(functions[2], stream, 0, 0, 0) & ANSWER, 0
                if answer != 0 and answer != NOT_READY:
                    store_release(stop, 0, 1)
                    return 1, answer
    return -1, 0


def addresses(library: ctypes.CDLL, *names: str) -> list[int]:
    """Addresses of C functions."""
    return [int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0) for name in names]

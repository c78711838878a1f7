"""The loop of an upload's thread, without the GIL: chunks of a file into pinned buffers, and on.

Python between chunks would cost as much as a chunk that fits into the processor's own cache.
"""

import ctypes

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from helios_dod.system import kernel

WORD = ir.IntType(64)


@intrinsic
def called(typing_context, function, a, b, c, d):
    """What the C function at an address returns, as 64 bits, for four integers or pointers."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(WORD, [WORD] * 4).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 5), generate


@kernel(boundscheck=False)
def feed(functions, file, offset, address, nbytes, chunk, first, step, buffers, events, stream):
    """Copies every step-th chunk from `first` on to a device address over two pinned buffers.

    functions: addresses of pread (or memcpy, where file is -1 and offset an address),
    cuMemcpyHtoDAsync, cuEventRecord, cuEventSynchronize. Returns (call that failed or -1, its
    answer); a read's is the byte that it failed at."""
    for used, start in enumerate(range(first * chunk, nbytes, step * chunk)):
        which, count, filled = used % 2, min(chunk, nbytes - start), 0
        if used >= 2:
            answer = called(functions[3], events[which], 0, 0, 0) & 0xFFFFFFFF
            if answer != 0:
                return 3, answer
        while file < 0 and filled < count:
            called(functions[0], buffers[which], offset + start, count, 0)
            filled = count
        while filled < count:
            got = called(functions[0], file, buffers[which] + filled, count - filled,
                         offset + start + filled)
            if got <= 0:
                return 0, start + filled
            filled += got
        answer = called(functions[1], address + start, buffers[which], count, stream) & 0xFFFFFFFF
        if answer != 0:
            return 1, answer
        answer = called(functions[2], events[which], stream, 0, 0) & 0xFFFFFFFF
        if answer != 0:
            return 2, answer
    return -1, 0


def addresses(library: ctypes.CDLL, *names: str) -> list[int]:
    """Addresses of C functions."""
    return [int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0) for name in names]

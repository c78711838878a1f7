"""The only module that applies numba: `@system` and `@kernel`, and the atomics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from helios_dod.code_cache import CodeCache

# Without numba's memory manager references to arrays are not counted: counting took most of a tick,
# two atomic operations for each array of each call. What would allocate does not compile then.
FLAGS = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: Callable | None = None, *, boundscheck: bool = True, **options: Any) -> Any:
    """Jits a plain function (no declared tables): table helpers, host kernels.

    inline="always" may be passed; boundscheck=False only where a caller proved the extents."""

    def apply(target: Callable) -> Callable:
        flags = {"boundscheck": boundscheck, **FLAGS, **options}
        jitted = numba.njit(target, **flags)
        if not numba.config.DISABLE_JIT:
            jitted._cache = CodeCache(target, str(sorted(flags.items())))
        return jitted

    return apply if function is None else apply(function)


@dataclass(frozen=True)
class System:
    """One step of the tick: a jitted function of the world and the columns it may touch."""

    name: str
    run: Callable
    plain: Callable
    reads: frozenset[str]
    writes: frozenset[str]

    def __call__(self, world: Any) -> None:
        self.run(world)


def system(*, reads: str = "", writes: str = "") -> Callable[[Callable], System]:
    """Declares a system. `reads` and `writes` are space-separated `table.column` or `table.*`.

    The simulator checks after each run that nothing outside `writes` changed."""

    def declare(function: Callable) -> System:
        return System(
            function.__name__, kernel(function), function,
            frozenset(reads.split()), frozenset(writes.split()),
        )

    return declare


def _element(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any,
             index: Any) -> Any:
    """Pointer to array[index], unchecked."""
    struct = context.make_array(array_type)(context, builder, array)
    position = context.cast(builder, index, index_type, types.intp)
    return cgutils.get_item_pointer(
        context, builder, array_type, struct, [position], wraparound=False, boundscheck=False)


def _is_word(array: Any, index: Any) -> bool:
    return (isinstance(array, types.Array) and isinstance(array.dtype, types.Integer)
            and array.ndim == 1 and isinstance(index, types.Integer))


@intrinsic
def load_acquire(typing_context, array, index):
    """array[index], ordered before every later access."""
    if not _is_word(array, index):
        return None

    def generate(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        return builder.load_atomic(pointer, "acquire", align=array.dtype.bitwidth // 8)

    return array.dtype(array, index), generate


@intrinsic
def store_release(typing_context, array, index, value):
    """array[index] = value, ordered after every earlier access."""
    if not _is_word(array, index):
        return None

    def generate(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        word = context.cast(builder, args[2], signature.args[2], array.dtype)
        builder.store_atomic(word, pointer, "release", align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def fetch_add(typing_context, array, index, value):
    """Adds atomically; the former value."""
    if not _is_word(array, index):
        return None

    def generate(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        word = context.cast(builder, args[2], signature.args[2], array.dtype)
        return builder.atomic_rmw("add", pointer, word, "acq_rel")

    return array.dtype(array, index, value), generate


@intrinsic
def compare_exchange(typing_context, array, index, expected, desired):
    """True if array[index] was `expected` and is now `desired`."""
    if not _is_word(array, index):
        return None

    def generate(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        old = context.cast(builder, args[2], signature.args[2], array.dtype)
        new = context.cast(builder, args[3], signature.args[3], array.dtype)
        result = builder.cmpxchg(pointer, old, new, "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(array, index, expected, desired), generate


@intrinsic
def float_bits(typing_context, value):
    """The 32 bits of a float32 as an int32 (tables hold integers only)."""
    if value != types.float32:
        return None

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(value), generate


@intrinsic
def bits_float(typing_context, value):
    """The float32 whose bits are an int32."""
    if value != types.int32:
        return None

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(value), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Asks for the cache line of array[index] (one axis); the value is not needed yet."""
    if not _is_word(array, index):
        return None

    def generate(context, builder, signature, args):
        pointer = _element(
            context, builder, signature.args[0], args[0], signature.args[1], args[1])
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0i8")
        read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [builder.bitcast(pointer, byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, index), generate

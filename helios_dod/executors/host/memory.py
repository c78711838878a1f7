"""Scalars at int64 addresses, and the few calls out of jitted code, as cacheable intrinsics."""

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from helios_dod.executors.host.vectors import F16, F32, I16, I32, I64, read, write

X86 = binding.get_default_triple().startswith("x86_64")


@intrinsic
def get_f32(typing_context, address):
    """f32 at an address."""
    return types.float32(types.int64), lambda context, builder, signature, args: read(
        builder, args[0], F32, align=4
    )


@intrinsic
def get_f16(typing_context, address):
    """f16 at an address, as f32."""
    return types.float32(types.int64), lambda context, builder, signature, args: builder.fpext(
        read(builder, args[0], F16, align=2), F32
    )


@intrinsic
def get_bf16(typing_context, address):
    """bfloat16 at an address, as f32."""
    return types.float32(types.int64), lambda context, builder, signature, args: builder.bitcast(
        builder.shl(builder.zext(read(builder, args[0], I16, align=2), I32), ir.Constant(I32, 16)),
        F32,
    )


@intrinsic
def get_i32(typing_context, address):
    """i32 at an address, as int64."""
    return types.int64(types.int64), lambda context, builder, signature, args: builder.sext(
        read(builder, args[0], I32, align=4), I64
    )


@intrinsic
def get_u32(typing_context, address):
    """u32 at an address, as int64."""
    return types.int64(types.int64), lambda context, builder, signature, args: builder.zext(
        read(builder, args[0], I32, align=4), I64
    )


@intrinsic
def get_i64(typing_context, address):
    """i64 at an address."""
    return types.int64(types.int64), lambda context, builder, signature, args: read(
        builder, args[0], I64, align=4
    )


@intrinsic
def put_f32(typing_context, address, value):
    """Stores an f32."""

    def generate(context, builder, signature, args):
        write(builder, args[0], args[1], align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def put_i32(typing_context, address, value):
    """Stores the low 32 bits."""

    def generate(context, builder, signature, args):
        write(builder, args[0], builder.trunc(args[1], I32), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def put_i64(typing_context, address, value):
    """Stores an i64."""

    def generate(context, builder, signature, args):
        write(builder, args[0], args[1], align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def put_bf16(typing_context, address, value):
    """Stores an f32 rounded to bfloat16, ties to even; NaN stays NaN."""

    def generate(context, builder, signature, args):
        bits = builder.bitcast(args[1], I32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(I32, 0x7FFF)), odd)
        quiet = builder.or_(bits, ir.Constant(I32, 0x400000))
        kept = builder.select(builder.fcmp_ordered("==", args[1], args[1]), rounded, quiet)
        top = builder.trunc(builder.lshr(kept, ir.Constant(I32, 16)), I16)
        write(builder, args[0], top, align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def copy_bytes(typing_context, destination, source, count):
    """memcpy; the ranges do not overlap."""

    def generate(context, builder, signature, args):
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(args[0], ir.IntType(8).as_pointer()),
            builder.inttoptr(args[1], ir.IntType(8).as_pointer()),
            args[2],
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def pause(typing_context):
    """A spin-loop hint."""

    def generate(context, builder, signature, args):
        if X86:
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            )
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def yield_processor(typing_context):
    """sched_yield(2)."""

    def generate(context, builder, signature, args):
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(I32, []), "sched_yield"
        )
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


MONOTONIC = 1  # CLOCK_MONOTONIC
SECOND_NS = 1_000_000_000


@intrinsic
def monotonic_ns(typing_context):
    """clock_gettime(2) of the monotonic clock, in nanoseconds."""

    def generate(context, builder, signature, args):
        place = cgutils.alloca_once(builder, I64, 2)  # seconds, nanoseconds
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(I32, [I32, place.type]), "clock_gettime")
        builder.call(function, [ir.Constant(I32, MONOTONIC), place])
        seconds, rest = (builder.load(builder.gep(place, [ir.Constant(I32, i)])) for i in range(2))
        return builder.add(builder.mul(seconds, ir.Constant(I64, SECOND_NS)), rest)

    return types.int64(), generate


def _transfer(builder, name, descriptor, value):
    """read(2) or write(2) of one 64-bit word, the unit of an eventfd."""
    slot = cgutils.alloca_once_value(builder, value)
    buffer = builder.bitcast(slot, ir.IntType(8).as_pointer())
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(I64, [I32, buffer.type, I64]), name
    )
    return builder.call(function, [builder.trunc(descriptor, I32), buffer, ir.Constant(I64, 8)])


@intrinsic
def signal(typing_context, descriptor, count):
    """Adds `count` to an eventfd; the result of write(2)."""
    return types.int64(
        types.int64, types.int64
    ), lambda context, builder, signature, args: _transfer(builder, "write", *args)


@intrinsic
def sleep_until_signal(typing_context, descriptor):
    """Blocks on an eventfd; the result of read(2)."""
    return types.int64(types.int64), lambda context, builder, signature, args: _transfer(
        builder, "read", args[0], ir.Constant(I64, 0)
    )

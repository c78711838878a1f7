"""Explicit vectors for jitted code: a numba type that is one LLVM vector of f32.

LLVM's auto-vectoriser drops to scalar code on small edits, so kernels write their vectors out.
LLVM legalises them on any processor; LANES follows the host (16 on AVX-512, else 8). Addresses are
int64. All operations are IEEE f32 without contraction; `fma` is the only fused one.
"""

from typing import Any

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

F32, F64, I8, I16 = ir.FloatType(), ir.DoubleType(), ir.IntType(8), ir.IntType(16)
I32, I64, F16, BIT = ir.IntType(32), ir.IntType(64), ir.HalfType(), ir.IntType(1)


def host_lanes() -> int:
    """16 where the jit's target has AVX-512, else 8."""
    chosen = numba.config.CPU_FEATURES
    if chosen is None:
        return 16 if binding.get_host_cpu_features().get("avx512f") else 8
    return 16 if "+avx512f" in chosen.split(",") else 8


LANES = host_lanes()
# Coefficients of (exp(r) - 1 - r) / r**2, highest power first (power_of_e).
POWERS = (0.0013926213, 0.0083632031, 0.0416665561, 0.1666657627, 0.5)


class VectorType(types.Type):
    """One vector of LANES f32."""

    def __init__(self) -> None:
        super().__init__(name=f"vector{LANES}")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A vector lives in registers as itself."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(F32, LANES))


vector = VectorType()


def vec(kind: ir.Type, lanes: int = LANES) -> ir.VectorType:
    """LLVM vector type."""
    return ir.VectorType(kind, lanes)


def full(kind: ir.Type, value: float, lanes: int = LANES) -> ir.Constant:
    """LLVM vector constant with every lane `value`."""
    return ir.Constant(vec(kind, lanes), [value] * lanes)


def pointer(builder: Any, address: Any, kind: ir.Type, offset: int = 0) -> Any:
    """Typed pointer from an int64 address and a constant byte offset."""
    base = builder.inttoptr(address, I8.as_pointer())
    if offset:
        base = builder.gep(base, [ir.Constant(I64, offset)])
    return builder.bitcast(base, kind.as_pointer())


def read(builder: Any, address: Any, kind: ir.Type, offset: int = 0, align: int = 1) -> Any:
    """LLVM load."""
    return builder.load(pointer(builder, address, kind, offset), align=align)


def write(builder: Any, address: Any, value: Any, offset: int = 0, align: int = 1) -> None:
    """LLVM store."""
    builder.store(value, pointer(builder, address, value.type, offset), align=align)


def spread(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A scalar in every lane."""
    kind = vec(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(vec(I32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def suffix(kind: ir.VectorType) -> str:
    """The overload suffix of LLVM's vector intrinsics."""
    element = {F32: "f32", F64: "f64", I32: "i32"}[kind.element]
    return f"v{kind.count}{element}"


def call(builder: Any, name: str, *arguments: Any) -> Any:
    """An overloaded LLVM intrinsic whose result and arguments share one vector type."""
    kind = arguments[0].type
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [a.type for a in arguments]),
        f"llvm.{name}.{suffix(kind)}",
    )
    return builder.call(function, arguments)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return call(builder, "fma", a, b, c)


def widen_bf16(builder: Any, words: Any) -> Any:
    """<n x i16> holding bf16 -> <n x float>."""
    lanes = words.type.count
    wide = builder.shl(builder.zext(words, vec(I32, lanes)), full(I32, 16, lanes))
    return builder.bitcast(wide, vec(F32, lanes))


@intrinsic
def load(typing_context, address):
    """LANES f32 from an address."""
    return vector(types.int64), lambda context, builder, signature, args: read(
        builder, args[0], vec(F32), align=4
    )


@intrinsic
def store(typing_context, address, value):
    """LANES f32 to an address."""

    def generate(context, builder, signature, args):
        write(builder, args[0], args[1], align=4)
        return context.get_dummy_value()

    return types.void(types.int64, vector), generate


def _head_mask(builder: Any, count: Any) -> Any:
    """Lanes below an int64 count."""
    index = ir.Constant(vec(I32), list(range(LANES)))
    return builder.icmp_signed("<", index, spread(builder, builder.trunc(count, I32)))


@intrinsic
def load_head(typing_context, address, count):
    """The first `count` f32 of an address, else zeros; touches no byte beyond them."""

    def generate(context, builder, signature, args):
        kind = vec(F32)
        at = pointer(builder, args[0], kind)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(kind, [at.type, I32, vec(BIT), kind]),
            f"llvm.masked.load.{suffix(kind)}.p0",
        )
        return builder.call(
            function, [at, ir.Constant(I32, 4), _head_mask(builder, args[1]), full(F32, 0.0)]
        )

    return vector(types.int64, types.int64), generate


@intrinsic
def store_head(typing_context, address, value, count):
    """Stores the first `count` lanes and touches no byte beyond them."""

    def generate(context, builder, signature, args):
        at = pointer(builder, args[0], args[1].type)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [args[1].type, at.type, I32, vec(BIT)]),
            f"llvm.masked.store.{suffix(args[1].type)}.p0",
        )
        builder.call(function, [args[1], at, ir.Constant(I32, 4), _head_mask(builder, args[2])])
        return context.get_dummy_value()

    return types.void(types.int64, vector, types.int64), generate


@intrinsic
def splat(typing_context, value):
    """An f32 in every lane."""
    return vector(types.float32), lambda context, builder, signature, args: spread(builder, args[0])


@intrinsic
def ramp(typing_context):
    """0, 1, 2, ... as f32."""
    return vector(), lambda context, builder, signature, args: ir.Constant(
        vec(F32), [float(i) for i in range(LANES)]
    )


@intrinsic
def add(typing_context, a, b):
    """a + b."""
    return vector(vector, vector), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def sub(typing_context, a, b):
    """a - b."""
    return vector(vector, vector), lambda context, builder, signature, args: builder.fsub(*args)


@intrinsic
def mul(typing_context, a, b):
    """a * b."""
    return vector(vector, vector), lambda context, builder, signature, args: builder.fmul(*args)


@intrinsic
def div(typing_context, a, b):
    """a / b."""
    return vector(vector, vector), lambda context, builder, signature, args: builder.fdiv(*args)


@intrinsic
def fma(typing_context, a, b, c):
    """a * b + c, rounded once."""
    return vector(vector, vector, vector), lambda context, builder, signature, args: fused(
        builder, *args
    )


def greater(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two, `b` where they are unordered."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def larger(typing_context, a, b):
    """a where a > b, else b."""
    return vector(vector, vector), lambda context, builder, signature, args: greater(builder, *args)


@intrinsic
def where_greater(typing_context, a, b, yes, no):
    """yes where a > b, else no."""
    return vector(
        vector, vector, vector, vector
    ), lambda context, builder, signature, args: builder.select(
        builder.fcmp_ordered(">", args[0], args[1]), args[2], args[3]
    )


def fold(builder: Any, value: Any, combine: Any) -> Any:
    """Reduces a vector by halves: lanes i and i + n/2 first."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        undefined = ir.Constant(value.type, ir.Undefined)
        low = builder.shuffle_vector(
            value, undefined, ir.Constant(vec(I32, lanes), list(range(lanes)))
        )
        high = builder.shuffle_vector(
            value, undefined, ir.Constant(vec(I32, lanes), list(range(lanes, 2 * lanes)))
        )
        value = combine(low, high)
    return builder.extract_element(value, ir.Constant(I32, 0))


@intrinsic
def total(typing_context, value):
    """Sum of the lanes, by halves."""
    return types.float32(vector), lambda context, builder, signature, args: fold(
        builder, args[0], builder.fadd
    )


@intrinsic
def largest(typing_context, value):
    """Largest lane."""
    return types.float32(vector), lambda context, builder, signature, args: fold(
        builder, args[0], lambda a, b: greater(builder, a, b)
    )


def _any(builder: Any, mask: Any) -> Any:
    bits = builder.bitcast(mask, ir.IntType(LANES))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


@intrinsic
def any_greater(typing_context, a, b):
    """Whether a > b in some lane."""
    return types.boolean(vector, vector), lambda context, builder, signature, args: _any(
        builder, builder.fcmp_ordered(">", *args)
    )


@intrinsic
def any_at_least(typing_context, a, b):
    """Whether a >= b in some lane."""
    return types.boolean(vector, vector), lambda context, builder, signature, args: _any(
        builder, builder.fcmp_ordered(">=", *args)
    )


def power_of_e(builder: Any, x: Any, bounded: bool) -> Any:
    """exp(x) to 1e-7 relative: 2**n * exp(r), |r| <= ln(2) / 2; 0 below -87, NaN stays NaN.

    exp(r) = 1 + r + r**2 * q(r), q of degree 4 interpolated at Chebyshev nodes: 1e-8 off. n is
    rounded by adding 1.5 * 2**23, whose low bits then are n. bounded: exp(88) above 88."""
    kind, lanes = x.type, x.type.count

    def number(value):
        return full(F32, value, lanes)

    def word(value):
        return full(I32, value, lanes)

    low = builder.fcmp_ordered("<", x, number(-87.0))
    x = builder.select(builder.fcmp_ordered(">", number(-87.0), x), number(-87.0), x)
    if bounded:
        x = builder.select(builder.fcmp_ordered("<", number(88.0), x), number(88.0), x)
    shifted = fused(builder, x, number(1.4426950408889634), number(12582912.0))
    n = builder.fsub(shifted, number(12582912.0))
    r = fused(builder, n, number(-0.693145751953125), x)  # ln 2 in two parts
    r = fused(builder, n, number(-1.42860682030941723212e-6), r)
    p = number(POWERS[0])
    for factor in (*POWERS[1:], 1.0, 1.0):
        p = fused(builder, p, r, number(factor))
    exponent = builder.shl(builder.bitcast(shifted, vec(I32, lanes)), word(23))
    scale = builder.bitcast(builder.add(exponent, word(127 << 23)), kind)
    return builder.select(low, number(0.0), builder.fmul(p, scale))


@intrinsic
def exp(typing_context, x):
    """exp(x) to 1e-7 relative; 0 below -87, exp(88) above 88."""
    return vector(vector), lambda context, builder, signature, args: power_of_e(
        builder, args[0], True
    )


@intrinsic
def exp_below(typing_context, x):
    """exp of x <= 0 to 1e-7 relative; 0 below -87."""
    return vector(vector), lambda context, builder, signature, args: power_of_e(
        builder, args[0], False
    )

"""Rows of 4-byte words, several at a time: what a loop over single words keeps scalar, because an
index of an array may be negative. Positions are unchecked: callers prove the extents."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WORD = ir.IntType(32)
OFFSET = ir.IntType(64)
WORD_BYTES_LOG = 2


def _is_rows(array: Any, *indices: Any) -> bool:
    return (isinstance(array, types.Array) and isinstance(array.dtype, types.Integer)
            and array.dtype.bitwidth == 32 and array.ndim == 2 and array.layout == "C"
            and all(isinstance(index, types.Integer) for index in indices))


def _load(context: Any, builder: Any, kind: Any, array_type: Any, array: Any, row: Any,
          at: Any) -> Any:
    """A value of `kind` from the words array[row, at], array[row, at + 1] and so on."""
    struct = context.make_array(array_type)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, struct.strides, 2)[0]
    offset = builder.add(builder.mul(row, stride),
                         builder.shl(at, ir.Constant(OFFSET, WORD_BYTES_LOG)))
    address = builder.add(builder.ptrtoint(struct.data, OFFSET), offset)
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


@intrinsic
def load_pair(typing_context, rows, row, at):
    """rows[row, at] and rows[row, at + 1] as the lower and upper half of a uint64."""
    if not _is_rows(rows, row, at):
        return None

    def generate(context, builder, signature, args):
        kinds = signature.args
        row, at = (context.cast(builder, args[i], kinds[i], types.int64) for i in (1, 2))
        return _load(context, builder, OFFSET, kinds[0], args[0], row, at)

    return types.uint64(rows, row, at), generate


@intrinsic
def equal_sixteen(typing_context, rows, row, others, other, at):
    """Is rows[row, :16] equal to others[other, at : at + 16]?"""
    if not (_is_rows(rows, row) and _is_rows(others, other, at)):
        return None

    def generate(context, builder, signature, args):
        kinds, vector = signature.args, ir.VectorType(WORD, 16)
        row, other, at = (context.cast(builder, args[i], kinds[i], types.int64) for i in (1, 3, 4))
        ours = _load(context, builder, vector, kinds[0], args[0], row, ir.Constant(OFFSET, 0))
        theirs = _load(context, builder, vector, kinds[2], args[2], other, at)
        differ = builder.bitcast(builder.icmp_unsigned("!=", ours, theirs), ir.IntType(16))
        return builder.icmp_unsigned("==", differ, ir.Constant(ir.IntType(16), 0))

    return types.boolean(rows, row, others, other, at), generate

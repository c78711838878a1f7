"""Bytes of an element of each data type."""

from helios_dod.contract.wire import manifest_pb2 as wire

ELEMENT_BYTES = {
    wire.F32: 4, wire.F16: 2, wire.BF16: 2, wire.I32: 4, wire.U32: 4, wire.I64: 8, wire.U64: 8,
    wire.U8: 1, wire.I8: 1, wire.F8_E4M3: 1,
}

"""The stored form of executable resources: one zstd frame, in signed chunks."""

import zstandard

from helios_dod.contract.wire import core_pb2
from helios_dod.cores.chunks import Chunks, read_verified
from helios_dod.cores.errors import CoreError
from helios_dod.cores.layout import WINDOW_NBYTES_MAX
from helios_dod.cores.places import Place

EMPTY_FRAME_NBYTES_MAX = 64
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def read_resource(resource: core_pb2.ExecutableResource, chunks: Chunks, place: Place) -> bytes:
    """Verifies the stored chunks; then, unless they are sealed, decodes the frame that they are."""
    data = read_verified(chunks, place)
    if chunks.cipher is not None:
        return data
    return decode_frame(data, resource.decoded_nbytes, place, chunks.what)


def decode_frame(data: bytes, decoded_nbytes: int, place: Place, what: str) -> bytes:
    """Decodes data that must be exactly one zstd frame of exactly that content.

    The frame declares its content size, so memory is bounded by the signed length in advance.
    Format: RFC 8878."""
    where = str(place)
    if data[:4] != ZSTD_MAGIC:
        raise CoreError(where, f"{what}: not a zstd frame")
    try:
        header = zstandard.get_frame_parameters(data)
        if header.content_size != decoded_nbytes:
            raise CoreError(where, f"{what}: the frame declares {header.content_size} bytes, "
                                   f"the signed length is {decoded_nbytes}")
        if header.window_size > WINDOW_NBYTES_MAX:
            raise CoreError(where, f"{what}: a decoder window of {header.window_size} bytes; at "
                                   f"most {WINDOW_NBYTES_MAX} are accepted")
        if header.dict_id:
            raise CoreError(where, f"{what}: needs a dictionary")
        decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_NBYTES_MAX)
        if decoded_nbytes == 0:
            return _decode_empty(decoder, data, place, what)
        decoded = decoder.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CoreError(where, f"{what}: not exactly one whole zstd frame ({error})") from error
    if len(decoded) != decoded_nbytes:
        raise CoreError(where, f"{what}: {len(decoded)} bytes decoded, "
                               f"the signed length is {decoded_nbytes}")
    return decoded


def _decode_empty(
    decoder: zstandard.ZstdDecompressor, data: bytes, place: Place, what: str,
) -> bytes:
    """The library's one-shot call looks at nothing but the header of an empty frame."""
    where = str(place)
    if len(data) <= EMPTY_FRAME_NBYTES_MAX:
        stream = decoder.decompressobj()
        if stream.decompress(data) == b"" and stream.eof and not stream.unused_data:
            return b""
    raise CoreError(where, f"{what}: not exactly one empty zstd frame")

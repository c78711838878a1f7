"""The stored form of resources: signed chunks, one zstd frame or raw weights."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zstandard

from helios_dod.contract.wire import core_pb2
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import check_size, read_bounded
from helios_dod.cores.layout import CHUNK_NBYTES, WINDOW_NBYTES_MAX

EMPTY_FRAME_NBYTES_MAX = 64
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def read_resource(resource: core_pb2.ExecutableResource, path: Path) -> bytes:
    """Verifies the stored chunks, then decodes the one frame that they are."""
    what = f"resource {resource.id}"
    check_size(path, resource.stored.nbytes, what)
    data = read_bounded(path, resource.stored.nbytes)
    for i, digest in enumerate(resource.chunk_sha256):
        chunk = memoryview(data)[i * CHUNK_NBYTES : (i + 1) * CHUNK_NBYTES]
        if hashlib.sha256(chunk).digest() != digest:
            raise CoreError(path, f"{what}: chunk {i} does not match its signed digest")
    return decode_frame(data, resource.decoded_nbytes, path, what)


def decode_frame(data: bytes, decoded_nbytes: int, place: Path, what: str) -> bytes:
    """Decodes data that must be exactly one zstd frame of exactly that content.

    The frame declares its content size, so memory is bounded by the signed length in advance.
    Format: RFC 8878."""
    if data[:4] != ZSTD_MAGIC:
        raise CoreError(place, f"{what}: not a zstd frame")
    try:
        header = zstandard.get_frame_parameters(data)
        if header.content_size != decoded_nbytes:
            raise CoreError(place, f"{what}: the frame declares {header.content_size} bytes, "
                                   f"the signed length is {decoded_nbytes}")
        if header.window_size > WINDOW_NBYTES_MAX:
            raise CoreError(place, f"{what}: a decoder window of {header.window_size} bytes; at "
                                   f"most {WINDOW_NBYTES_MAX} are accepted")
        if header.dict_id:
            raise CoreError(place, f"{what}: needs a dictionary")
        decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_NBYTES_MAX)
        if decoded_nbytes == 0:
            return _decode_empty(decoder, data, place, what)
        decoded = decoder.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CoreError(place, f"{what}: not exactly one whole zstd frame ({error})") from error
    if len(decoded) != decoded_nbytes:
        raise CoreError(place, f"{what}: {len(decoded)} bytes decoded, "
                               f"the signed length is {decoded_nbytes}")
    return decoded


def _decode_empty(
    decoder: zstandard.ZstdDecompressor, data: bytes, place: Path, what: str,
) -> bytes:
    """The library's one-shot call looks at nothing but the header of an empty frame."""
    if len(data) <= EMPTY_FRAME_NBYTES_MAX:
        stream = decoder.decompressobj()
        if stream.decompress(data) == b"" and stream.eof and not stream.unused_data:
            return b""
    raise CoreError(place, f"{what}: not exactly one empty zstd frame")


def check_weight(
    weight: core_pb2.WeightResource, data: np.ndarray, path: Path,
    progress: Callable[[int], None] | None,
) -> None:
    """Compares every chunk of a mapped weight resource with its signed digest, on all cores."""

    def verify(i: int) -> int:
        chunk = data[i * CHUNK_NBYTES : (i + 1) * CHUNK_NBYTES]
        if hashlib.sha256(chunk.data).digest() != weight.chunk_sha256[i]:
            first = i * CHUNK_NBYTES
            raise CoreError(path, f"weight resource {weight.id}: chunk {i} (bytes {first} to "
                                  f"{first + chunk.size}) does not match its signed digest")
        return int(chunk.size)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            for size in pool.map(verify, range(len(weight.chunk_sha256))):
                if progress is not None:
                    progress(size)
        except CoreError:
            pool.shutdown(cancel_futures=True)
            raise

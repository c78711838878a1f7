"""CUDA C++ kernels: sources compiled by NVRTC, and the shared memory that constants ask for."""

from collections.abc import Mapping
from pathlib import Path

from helios_dod.executors.base import DeviceError
from helios_dod.executors.cuda.compiler import cubin_of
from helios_dod.ignition.prepared import PreparationError

SOURCES = Path(__file__).resolve().parents[1] / "kernels" / "native"
HEADER = "instructions.cuh"
PADDED_ROWS = 20
QUERIES = 8  # rows of decode.cu that one matrix instruction keeps
SUM_FLOATS = 16  # of decode.cu's largest scores and totals


def few_shared(tokens: int, warps: int) -> int:
    """Bytes of shared memory of few.cu: the sums of every warp."""
    return warps * -(-tokens // 8) * 8 * PADDED_ROWS * 4


def decode_shared(head: int, group: int, warps: int, depth: int, page_tokens: int = 16) -> int:
    """Bytes of shared memory of decode.cu: rings of pages, or sums; then rotated heads."""
    ring = warps * depth * 2 * head * page_tokens * 2
    sums = warps * QUERIES * (head + 2) * 4
    return max(ring, sums) + (group + 1) * head * 4 + SUM_FLOATS * 4 + (QUERIES + 2) * head * 2


def compile_native(source: str, constants: Mapping[str, int], architecture: int) -> bytes:
    """The cubin of a source with its constants. Raises PreparationError with the compiler's log."""
    options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17", *(
        f"-D{name}={int(value)}" for name, value in constants.items())]
    headers = {HEADER: (SOURCES / HEADER).read_bytes()}
    try:
        return cubin_of(source, (SOURCES / source).read_bytes(), headers, options)
    except DeviceError as error:
        raise PreparationError(f"{source} with {dict(constants)}: {error}") from error

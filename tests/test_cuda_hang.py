"""A program that never ends on the device is an error within the limit, and its process can go."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cuda_device import OPTIONS, executor, gpu_count

from helios_dod.executors.base import DeviceError

triton = pytest.importorskip("triton", reason="kernels are compiled by Triton")
tl = pytest.importorskip("triton.language", reason="kernels are compiled by Triton")
pytestmark = [pytest.mark.cuda,
              pytest.mark.skipif(gpu_count() == 0, reason="no NVIDIA GPU here")]
PATIENCE_S = 120


@triton.jit
def spin(flag):
    while tl.load(flag, volatile=True) == 0:
        pass


def hang() -> None:
    """Puts a kernel without end in front of a program, as a process of its own."""
    import numpy as np
    from cuda_models import SMALL_SHAPES, build, random_checkpoint
    from host_harness import Harness

    from helios_dod.contract.wire import manifest_pb2 as wire
    from helios_dod.executors.cuda import executor as executors
    from helios_dod.executors.cuda.driver import call
    from helios_dod.ignition.cuda.layouts import LAYOUT
    from helios_dod.ignition.cuda.library import Library, Pointer

    executors.HANG_S = 1.0
    LAYOUT["spin"] = []
    made = build(random_checkpoint(SMALL_SHAPES["windowed"]), OPTIONS, cuda=True)
    harness = Harness(made, executor(), slots=4, pages=64)
    cuda = harness.executor
    manifest = wire.ExecutionManifest()
    manifest.buffers.add(name="flag", kind=wire.SCRATCH, dtype=wire.I32,
                         shape=[wire.Extent(multiplier=1)])
    kernel = Library(manifest).kernel(spin, (1, 1, 1), dict(flag=Pointer(0)), {})
    module = call("cuModuleLoadData", manifest.modules[0].cubin)
    function = call("cuModuleGetFunction", module, kernel.entry.encode())
    flag = np.array([cuda.memory.allocate(4), 0, 0], np.uint64)
    places = flag.ctypes.data + 8 * np.arange(3, dtype=np.uint64)
    call("cuLaunchKernel", function, 1, 1, 1, kernel.block[0], 1, 1, kernel.shared_nbytes,
         cuda._stream, places.ctypes.data, 0)
    begun = time.monotonic()
    with pytest.raises(DeviceError, match="no program has ended for 1 s"):
        harness.admit(slot=0)
    cuda.close()
    print(f"told after {time.monotonic() - begun:.1f} s", flush=True)


def test_a_program_that_never_ends_is_told():
    here = Path(__file__).resolve().parent
    code = f"import sys; sys.path[:0] = [{str(here)!r}]; import test_cuda_hang as t; t.hang()"
    done = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, capture_output=True,
                          text=True, cwd=here.parent)
    assert done.returncode == 0 and "told after" in done.stdout, done.stderr[-2000:]

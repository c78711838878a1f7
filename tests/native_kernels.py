"""CUDA C++ kernels compiled for the processor by emulated_device.h, called with numpy arrays."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

NATIVE = Path(__file__).resolve().parents[1] / "helios_dod/ignition/kernels/native"
HERE = Path(__file__).resolve().parent
CPLUSPLUS = shutil.which("g++") or shutil.which("clang++")


class Emulated:
    """One entry of a source with its constants."""

    def __init__(self, folder: Path, source: str, entry: str, **constants: int) -> None:
        text = (NATIVE / source).read_text()
        found = re.search(rf"{entry}\(([^)]*)\)", text[text.index("KERNEL") :])
        assert found is not None
        self.types = [part.rsplit(None, 1)[0].replace("const ", "").strip()
                      for part in found[1].split(",")]
        values = ", ".join(
            f"*({kind}*)arguments[{i}]" if "*" not in kind else f"({kind})arguments[{i}]"
            for i, kind in enumerate(self.types))
        code = "\n".join([
            '#include "emulated_device.h"',
            *(f"#define {name} {int(value)}" for name, value in constants.items()),
            f'#include "{NATIVE / source}"',
            'extern "C" void run(int* grid, int threads, int splits, int bytes,',
            "                    void** arguments) {",
            "    emulate({grid[0], grid[1], grid[2]}, threads, splits, bytes, "
            f"[&] {{ {entry}({values}); }});",
            "}"])
        name = f"{entry}_{abs(hash(tuple(sorted(constants.items()))))}"
        (folder / f"{name}.cpp").write_text(code)
        subprocess.run(
            [str(CPLUSPLUS), "-O1", "-w", "-std=c++20", "-shared", "-fPIC", f"-I{HERE}",
             f"-I{NATIVE}", "-o", folder / f"{name}.so", folder / f"{name}.cpp"], check=True)
        self.library = ctypes.CDLL(str(folder / f"{name}.so"))

    def __call__(self, grid: tuple[int, int, int], threads: int, splits: int, shared: int,
                 *arguments: Any) -> None:
        assert len(arguments) == len(self.types)
        kept = []
        for kind, value in zip(self.types, arguments, strict=True):
            if "*" in kind:
                assert isinstance(value, np.ndarray) and value.flags.c_contiguous
                kept.append(ctypes.c_void_p(value.ctypes.data))
            else:
                number = (ctypes.c_float if kind == "float" else ctypes.c_int)(value)
                kept.append(ctypes.cast(ctypes.pointer(number), ctypes.c_void_p))
                kept[-1].held = number  # type: ignore[attr-defined]
        self.library.run((ctypes.c_int * 3)(*grid), threads, splits, shared,
                         (ctypes.c_void_p * len(kept))(*(one.value for one in kept)))

"""Host matrix products side by side: time a weight vector, and its ratio to the floor.

    python perf/host_products.py [--json] [--repeats 9]

One thread, no executor threads. A matrix [rows, columns] costs rows * columns / 16 vectors of 16
weights, each used once for every activation row. The floor of a vector is the larger of its fused
multiply-adds at the rate of a loop that does nothing else, and its bytes at the rate of a plain
read of memory; both are measured first, in the same run. Medians and least times; every variant
runs in turn in each repeat, so that a disturbed moment hits all alike.
"""

import argparse
import json
import statistics
import time

import numpy as np

from helios_dod.executors.host import products
from helios_dod.executors.host.buffers import aligned_zeros
from helios_dod.executors.host.microkernels import tile, variant_of
from helios_dod.executors.host.panels import PANEL_ROWS, panel_shape
from helios_dod.system import kernel

MATRICES = (
    ("Q4_1", 24_576, 1536),
    ("Q8_0", 49_152, 576),
    ("Q6_K", 24_576, 1024),
    ("BF16", 24_576, 576),
)
BATCHES = (1, 2, 4, 8, 16, 32, 128)
LANES, VECTORS, ROUNDS = products.LANES, products.VECTORS, 2000
READ_BYTES = 1 << 28  # beyond every cache


@kernel(boundscheck=False)
def multiply_adds(buffer, x, out, rounds):
    """Four activation rows over 128 columns that stay in the first-level cache."""
    for _ in range(rounds):
        tile(LANES, VECTORS, 4, buffer, 0, 128, x, 512, out, buffer, 0)


class Matrix:
    """A matrix with activations, and the words of its product."""

    def __init__(self, kind: str, rows: int, columns: int) -> None:
        self.shape = panel_shape(kind, rows, columns)
        self.kind, self.vectors = kind, rows * columns / 16
        self.data = aligned_zeros(self.shape.matrix_bytes)
        self.data[:] = 1  # touched, so that pages are its own
        self.x = aligned_zeros(max(BATCHES) * columns * 4).view(np.float32)
        self.x[:] = np.random.default_rng(0).standard_normal(self.x.size)
        self.y = aligned_zeros(max(BATCHES) * rows * 4)
        block = max(self.shape.block_columns, 1)
        self.words = np.zeros(48, np.int64)
        self.words[2:15] = (
            self.x.ctypes.data,
            columns * 4,
            self.y.ctypes.data,
            rows * 4,
            self.data.ctypes.data,
            variant_of(self.shape),
            rows,
            columns,
            self.shape.panel_bytes,
            block,
            self.shape.block_bytes,
            0,
            0,
        )
        self.scratch = aligned_zeros(products.SCRATCH_BYTES)
        self.control = aligned_zeros(1024).view(np.int64)

    def seconds(self, batch: int) -> float:
        """One product."""
        self.control[:] = 0
        total = products.product_chunks(self.words, batch, 1)
        start = time.perf_counter()
        products.product(self.words, batch, 1, self.control, 0, total, self.scratch.ctypes.data)
        return time.perf_counter() - start


def floors() -> tuple[float, float]:
    """Nanoseconds of 16 fused multiply-adds, and of a byte read."""
    buffer, x, out = (aligned_zeros(128 * PANEL_ROWS * 4) for _ in range(3))
    addresses = [a.ctypes.data for a in (buffer, x, out)]
    multiply_adds(*addresses, 1)
    adds, reads = [], []
    words = np.ones(READ_BYTES // 8, np.int64)
    for _ in range(9):
        start = time.perf_counter()
        multiply_adds(*addresses, ROUNDS)
        adds.append((time.perf_counter() - start) / (ROUNDS * 128 * 4 * VECTORS * LANES / 16))
        start = time.perf_counter()
        words.max()
        reads.append((time.perf_counter() - start) / words.nbytes)
    return min(adds) * 1e9, min(reads) * 1e9


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    matrices = [Matrix(*m) for m in MATRICES]
    add_ns, byte_ns = floors()
    times: dict[tuple[str, int], list[float]] = {}
    for repeat in range(options.repeats + 1):
        for matrix in matrices:
            for batch in BATCHES:
                taken = matrix.seconds(batch)
                if repeat:  # the first one compiles and warms
                    times.setdefault((matrix.kind, batch), []).append(taken)
    results = []
    for matrix in matrices:
        for batch in BATCHES:
            each = times[matrix.kind, batch]
            ns = statistics.median(each) * 1e9 / matrix.vectors
            least = min(each) * 1e9 / matrix.vectors
            floor = max(batch * add_ns, matrix.shape.matrix_bytes / matrix.vectors * byte_ns)
            results.append(
                {
                    "storage": matrix.kind,
                    "batch": batch,
                    "ns_per_vector": round(ns, 3),
                    "floor_ns": round(floor, 3),
                    "ratio": round(ns / floor, 2),
                    "least_ratio": round(least / floor, 2),
                }
            )
    if options.json:
        print(json.dumps({"multiply_add_ns": add_ns, "byte_ns": byte_ns, "products": results}))
        return
    print(
        f"16 fused multiply-adds: {add_ns:.3f} ns; memory: {1 / byte_ns:.1f} GB/s; "
        f"vectors of {LANES}"
    )
    print("storage  batch  ns/vector  floor  ratio  least")
    for r in results:
        print(
            f"{r['storage']:7}  {r['batch']:5}  {r['ns_per_vector']:9.3f}  {r['floor_ns']:5.3f}"
            f"  {r['ratio']:5.2f}  {r['least_ratio']:5.2f}"
        )


if __name__ == "__main__":
    main()

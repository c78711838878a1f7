"""Times product tiles on a GPU, for helios_dod/ignition/cuda/tiles.py. Needs torch and Triton.

    python perf/h200/tune.py > tune.txt        # best tiles of each product
"""

import itertools
import multiprocessing
import time

PEAK = 4657e9
LAUNCHES = 24
SHAPES = {  # name: rows, columns, gated
    "8b qkv": (6144, 4096, False), "8b out": (4096, 4096, False), "8b down": (4096, 14336, False),
    "8b gate": (14336, 4096, True), "8b head": (128256, 4096, False),
    "1b qkv": (3072, 2048, False), "1b out": (2048, 2048, False), "1b down": (2048, 8192, False),
    "1b gate": (8192, 2048, True), "1b head": (128256, 2048, False),
}


def configs(rows, columns, gated, tokens):
    """(rows, step, splits, warps, stages) worth trying."""
    splits = (1,) if gated or rows > 100_000 else (1, 2, 4, 8)
    for block, step, split, (warps, stages) in itertools.product(
            (32, 64, 128), (64, 128, 256), splits, ((4, 3), (4, 4), (4, 6), (8, 4))):
        blocks = rows // block * split
        stage = (block * (2 if gated else 1) + max(tokens, 16)) * step * 2
        if columns // split % step or blocks < 100 or (blocks > 2500 and rows < 100_000):
            continue
        if stage * stages > 220_000 or stage * stages < 40_000 or (block == 128 and warps == 4
                                                                  and tokens == 64):
            continue
        if columns // split < 4 * step or (warps == 8 and block == 32):
            continue
        yield block, step, split, warps, stages


def launch(weight, x, out, live, tokens, rows, columns, gated, config, width, warm=False):
    """Runs or compiles one configuration."""
    from helios_dod.ignition.kernels import products

    block, step, split, warps, stages = config
    kernel = products.gated_product if gated else products.product
    constants = dict(SCALED=False, ROWS=rows, COLUMNS=columns, BLOCK_R=block, BLOCK_N=width,
                     BLOCK_K=step, num_warps=warps, num_stages=stages)
    if not gated:
        constants["SPLITS"] = split
    grid = (-(-rows // block), 1, split)
    if warm:
        kernel.warmup(weight, x, out, live, tokens, weight, weight, grid=grid, **constants)
    else:
        kernel[grid](weight, x, out, live, tokens, weight, weight, **constants)


def compile_one(task):
    """Compiles into Triton's cache, in a process of its own."""
    import torch

    name, tokens, config = task
    rows, columns, gated = SHAPES[name]
    b, f, i = torch.bfloat16, torch.float32, torch.int32
    try:
        launch(b, b, b if gated else f, i, tokens, rows, columns, gated, config,
               max(16, tokens), warm=True)
        return None
    except Exception as error:
        return f"{task}: {str(error)[:100]}"


def main():
    """Compiles everything in parallel, then times it."""
    import torch

    tasks = [(name, tokens, config) for name, (rows, columns, gated) in SHAPES.items()
             for tokens in (16, 64) for config in configs(rows, columns, gated, tokens)]
    started = time.time()
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        bad = [line for line in pool.map(compile_one, tasks, chunksize=8) if line]
    print(f"{len(tasks)} configurations compiled in {time.time() - started:.0f} s, "
          f"{len(bad)} failed", bad[:3], flush=True)
    live = torch.full((1,), 1 << 20, dtype=torch.int32, device="cuda")
    for name, (rows, columns, gated) in SHAPES.items():
        size = rows * columns * (2 if gated else 1)
        copies = max(2, min(LAUNCHES, int(400e6 / (2 * size)) + 1))
        weights = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for tokens in (16, 64):
            x = torch.randn(tokens * columns, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(tokens * rows * 8, device="cuda",
                              dtype=torch.bfloat16 if gated else torch.float32)
            results = []
            for config in configs(rows, columns, gated, tokens):
                try:
                    results.append((timed(weights, x, out, live, tokens, rows, columns, gated,
                                          config), config))
                except Exception as error:
                    print("failed", name, config, str(error)[:80])
            results.sort()
            for us, config in results[:4]:
                print(f"{name} tokens {tokens}: {us:.2f} us {2 * size / us / 1e-6 / PEAK:.3f} "
                      f"block {config[0]} step {config[1]} splits {config[2]} warps {config[3]} "
                      f"stages {config[4]}", flush=True)
        del weights


def timed(weights, x, out, live, tokens, rows, columns, gated, config):
    """Microseconds of one launch, over different weights."""
    def run():
        for i in range(LAUNCHES):
            launch(weights[i % len(weights)], x, out, live, tokens, rows, columns, gated, config,
                   max(16, tokens))

    return graph_us(run)


def graph_us(run):
    """Microseconds of one of the launches that `run` makes, within a graph of them."""
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    best = 1e9
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / LAUNCHES)
    return best


def vector_configs(columns, gated):
    """(rows, step, warps) worth trying for one token."""
    for block, step, warps in itertools.product((1, 2, 4, 8, 16), (256, 512, 1024, 2048, 4096),
                                                (1, 2, 4, 8)):
        each = block * step * (2 if gated else 1) / (32 * warps)
        if columns % step == 0 and 8 <= each <= 96:
            yield block, step, warps


def vector(buffers, name, config, warm=False):
    """Runs or compiles one configuration of a one-token product."""
    from helios_dod.ignition.kernels import products

    rows, columns, gated = SHAPES[name]
    block, step, warps = config
    kernel = products.gated_vector_product if gated else products.vector_product
    grid = (-(-rows // block),)
    (kernel.warmup if warm else kernel[grid])(
        *buffers, buffers[0], SCALED=False, ROWS=rows, COLUMNS=columns, BLOCK_R=block,
        BLOCK_K=step, num_warps=warps, **({"grid": grid} if warm else {}))


def warm_vector(task):
    """Compiles into Triton's cache."""
    import torch

    name, config = task
    b, f = torch.bfloat16, torch.float32
    vector((b, b, b if SHAPES[name][2] else f), name, config, warm=True)


def tune_vector():
    """Best tiles of one-token products, us and share of 4,657 GB/s."""
    import torch

    tasks = [(name, config) for name, (_, columns, gated) in SHAPES.items()
             for config in vector_configs(columns, gated)]
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        pool.map(warm_vector, tasks, chunksize=8)
    for name, (rows, columns, gated) in SHAPES.items():
        size = rows * columns * (2 if gated else 1)
        copies = max(2, min(LAUNCHES, int(400e6 / (2 * size)) + 1))
        weights = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        x = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(rows, device="cuda", dtype=torch.bfloat16 if gated else torch.float32)
        results = []
        for config in vector_configs(columns, gated):
            def run(config=config, name=name, weights=weights, x=x, out=out):
                for n in range(LAUNCHES):
                    vector((weights[n % len(weights)], x, out), name, config)
            results.append((graph_us(run), config))
        results.sort()
        for us, config in results[:4]:
            print(f"vector {name}: {us:.2f} us {2 * size / us / 1e-6 / PEAK:.3f} rows {config[0]} "
                  f"step {config[1]} warps {config[2]}", flush=True)
        del weights


if __name__ == "__main__":
    import sys

    {"vector": tune_vector}.get("".join(sys.argv[1:]), main)()

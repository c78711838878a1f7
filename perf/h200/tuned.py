"""Start-up tuning on the device: what two starts take and select, and steps of 16 lanes with what
was selected and with each alternative alone.

    LANES=16 PACKED=4096 python perf/h200/tuned.py 8b 1b
"""

import sys

import measure
import numpy as np

from helios_dod.executors.cuda import executor as executors

LANES = 16
tune = executors.tune


def forced(value: int):
    """Every choice is this alternative; nothing is timed."""
    def choose(manifest, programs, bench):
        for graph in manifest.tuning:
            bench.write(graph.outputs[0], np.int32(value).tobytes())

    return choose


def start(name: str, text: str) -> None:
    """One start, its selections, and a step."""
    harness = measure.loaded(name, LANES)
    manifest, memory = harness.manifest, harness.executor.memory
    print(f"{name}, {text}: {harness.executor.tuned or 'not timed'}")
    for graph in manifest.tuning if harness.executor.tuned else ():
        launch = next(node.kernel for node in manifest.cuda_bodies[graph.cuda_body].nodes[1:])
        function = manifest.modules[launch.module].functions[launch.function]
        shape = {one.name: one.value for one in function.constants}
        selected, best = (memory.read(index) for index in graph.outputs)
        print(f"    {launch.entry} [{shape['ROWS']}, {shape['COLUMNS']}]: tiles, few "
              f"{(best.view(np.int64) / 1e3).round(1).tolist()} us: "
              f"{('tiles', 'few')[selected.view(np.int32)[0]]}")
    measure.fill(harness, LANES)
    for _ in range(3):
        harness.decode(list(range(LANES)))
    number = [p.name for p in manifest.programs].index(f"decode_{LANES}")
    words = harness.world[0]["staging"]["words"]
    words[1 - harness.frame] = words[harness.frame]
    times = [measure.back_to_back(harness, number, (0, 1)) for _ in range(measure.REPETITIONS)]
    print(f"    step {np.median(times):.3f} ms ({min(times):.3f} to {max(times):.3f})", flush=True)
    harness.close()


def main() -> None:
    """Every start of every shape."""
    for name in sys.argv[1:]:
        for text, chosen in (("first start", tune), ("second start", tune), ("tiles", forced(0)),
                             ("few", forced(1))):
            executors.tune = chosen
            start(name, text)


if __name__ == "__main__":
    main()

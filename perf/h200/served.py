"""A core through the whole engine on the device: what `helios serve` runs, without HTTP.

    helios prepare --target cuda-sm90 --checkpoint CHECKPOINT --out CORE
    python perf/h200/served.py CORE OUT.npz      # of greedy.py host; without it, random weights

Then 10,000 steps with every function of the driver counted.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

from embedded import Embedded
from greedy import TOKENS, compare, prompts

from helios_dod.cores.acceptance import authorize
from helios_dod.cores.reader import open_core
from helios_dod.edges import Edge, Submission
from helios_dod.executors.cuda.driver import driver
from helios_dod.ignition.prepare_command import DEFAULT_NAMESPACE
from helios_dod.runtime.devices import plan_for_device
from helios_dod.runtime.native_model import NativeModel
from helios_dod.runtime.selection import Options

STEPS = 10_000


def trace(ask: Callable[[], object]) -> None:
    """Counts every function of the driver that is called while requests run for STEPS steps."""
    calls: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def one(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return one

    functions = {name: getattr(driver, name) for name in dir(driver) if name.startswith("cu")
                 and callable(getattr(driver, name))}
    for name, function in functions.items():
        setattr(driver, name, counted(name, function))
    while calls["cuGraphLaunch"] < STEPS:
        ask()
    for name, function in functions.items():
        setattr(driver, name, function)
    print(f"driver functions in {calls['cuGraphLaunch']} steps: {dict(calls)}", flush=True)


def main() -> None:
    """Loads, answers every prompt at once, and compares tokens with the host executor's."""
    begun = time.monotonic()
    known = sys.argv[2:]
    authorize(open_core(Path(sys.argv[1])), DEFAULT_NAMESPACE)
    made, executor = plan_for_device(Path(sys.argv[1]), Options(), 0, random_weights=not known)
    model = NativeModel.of(made, executor, trust_weights=True)
    print(f"to a loaded engine {time.monotonic() - begun:.2f} s; {model.phases}; "
          f"{executor.load_ns}; {model.report() if 'weights' in model.phases else ''}")
    running = Embedded.__new__(Embedded)
    running.engine, running.edge = model.engine, Edge(model.engine.world, 0)
    texts = prompts()
    for repetition in range(3):
        begun = time.monotonic()
        answers = running.ask([Submission(i + 1, np.array(text, np.int32), TOKENS)
                               for i, text in enumerate(texts)])
        spent = time.monotonic() - begun
        count = sum(len(answer.tokens) for answer in answers)
        print(f"run {repetition}: {count} tokens of {len(texts)} requests in {spent:.2f} s, "
              f"{count / spent:.0f} a second")
    trace(lambda: running.ask([Submission(i + 1, np.array(text, np.int32), TOKENS)
                               for i, text in enumerate(texts)]))
    if known:
        compare(np.load(known[0]), np.array([answer.tokens for answer in answers]))
    model.close()


if __name__ == "__main__":
    main()

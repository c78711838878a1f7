"""A closed loop of requests of ShareGPT's lengths through a core with random weights, in process.

    python perf/h200/closed.py CORE 64 256     # CORE: prepare --random-weights llama-3.1-8b

Prompts of 220 tokens and answers of 200 in the mean, drawn; six requests a place. The host's share
is the engine thread's processor time against the wall: it sleeps while the device works.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from helios_dod.perf.record import record, warm_up
from helios_dod.perf.simulate import lines, summary
from helios_dod.runtime.devices import plan_for_device
from helios_dod.runtime.native_model import NativeModel
from helios_dod.runtime.selection import Options
from helios_dod.simulation.observed import observe_file
from helios_dod.simulation.traces import Lengths, Trace, make_trace

PROMPT, ANSWER = Lengths(110, 220, 4, 1024), Lengths(140, 200, 4, 1024)
ROUNDS = 6  # requests of each place


def drawn(count: int, seed: int) -> Trace:
    """So many requests, all there at once."""
    rng = np.random.default_rng(seed)
    return make_trace(np.zeros(count, np.int64), PROMPT.draw(rng, count), ANSWER.draw(rng, count))


def main() -> None:
    """Loads once, then one loop of each size."""
    made, executor = plan_for_device(Path(sys.argv[1]), Options(), 0, random_weights=True)
    model = NativeModel.of(made, executor, trust_weights=True)
    model.engine.warm()
    print(model.report(), flush=True)
    for number, places in enumerate(int(text) for text in sys.argv[2:]):
        trace = drawn(places * ROUNDS, number)
        warm_up(model.engine, trace.first(32), 100 + number)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "closed.rec"
            wall, busy = time.monotonic(), time.thread_time()
            record(model, trace, places, number, out)
            wall, busy = time.monotonic() - wall, time.thread_time() - busy
            result = summary(observe_file(out).outcome)
        print(f"closed loop of {places}: prompts of {trace.prompt_tokens.mean():.0f} tokens, "
              f"answers of {trace.output_tokens.mean():.0f}")
        print("\n".join(lines(result)))
        print(f"host: {busy / wall:.3f} of the wall, {busy / result['steps'] * 1e6:.1f} us of "
              f"{wall / result['steps'] * 1e3:.3f} ms a step, saving the recording included",
              flush=True)
    model.close()


if __name__ == "__main__":
    main()

"""Flight recordings for `perf fit` and `perf validate`: runs of two traces in turn through a core
with random weights, loaded once.

    python perf/h200/recorded.py CORE FOLDER       # CORE: prepare --random-weights llama-3.1-8b
"""

import sys
from pathlib import Path

from helios_dod.perf.record import record, warm_up
from helios_dod.runtime.devices import plan_for_device
from helios_dod.runtime.native_model import NativeModel
from helios_dod.runtime.selection import Options
from helios_dod.simulation.traces import read_trace

TRACES = Path(__file__).resolve().parents[1] / "traces"
ORDER = ("validation", "fitting") * 3 + ("validation",) * 2
WARM_UP = 32  # requests, before the first


def loaded(core: Path) -> NativeModel:
    """The core on the device, with everything compiled."""
    made, executor = plan_for_device(core, Options(), 0, random_weights=True)
    model = NativeModel.of(made, executor, trust_weights=True)
    model.engine.warm()
    print(model.report(), model.phases, executor.load_ns, flush=True)
    return model


def runs(model: NativeModel, folder: Path) -> None:
    """Every run with prompts of its own, so that no prefix is found again."""
    traces = {name: read_trace(TRACES / f"h200_{name}.jsonl") for name in set(ORDER)}
    warm_up(model.engine, traces["fitting"].first(WARM_UP), len(ORDER))
    for number, name in enumerate(ORDER):
        record(model, traces[name], 0, number, folder / f"{name}{number}.rec")


def main() -> None:
    """Loads, then records."""
    model = loaded(Path(sys.argv[1]))
    runs(model, Path(sys.argv[2]))
    model.close()


if __name__ == "__main__":
    main()

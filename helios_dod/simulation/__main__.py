"""python -m helios_dod.simulation --seed N --ticks N: replays a seed; the digest is the last line.

--seeds A-B runs every seed from A to B in --jobs processes and prints what they did together.
"""

import argparse
import sys
import time

from helios_dod.cli import INTERRUPTED
from helios_dod.simulation.simulator import Simulator
from helios_dod.simulation.swarm import FUSED, ORACLE, WALKED, Tally, run_seeds, shape


def span(text: str) -> range:
    """Seeds A-B, both included."""
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected seeds such as 1-1000, got {text!r}") from None


def swarm(options: argparse.Namespace, mode: str) -> int:
    """Runs every seed; 1 if one broke a rule."""
    tally, began = Tally(), time.perf_counter()
    flag = "" if mode == WALKED else f" --{mode}"
    interrupted = False
    try:
        for run in run_seeds(options.seeds, options.ticks, mode, options.jobs):
            tally.add(run)
            if run.violation:
                print(f"seed {run.seed}: {run.violation}\n    python -m helios_dod.simulation "
                      f"--seed {run.seed} --ticks {options.ticks}{flag}", flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print(f"interrupted behind {tally.seeds} of {len(options.seeds)} seeds", file=sys.stderr)
    print(f"{tally.seeds} seeds, {tally.ticks} {mode} ticks, {tally.finished} answers judged, "
          f"{len(tally.violations)} violations, {time.perf_counter() - began:.0f} s, "
          f"{tally.seconds:.0f} s of processor in {options.jobs} processes")
    marks = len(tally.counters)
    print(f"{marks - len(tally.untaken)} of {marks} marks hit; "
          f"missing: {', '.join(tally.untaken) or 'none'}")
    print(tally.digest)
    return INTERRUPTED if interrupted else int(bool(tally.violations))


def main() -> int:
    """Runs one seed, or many, and prints what happened, the digest last."""
    parser = argparse.ArgumentParser(prog="python -m helios_dod.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=span, metavar="A-B")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--ticks", type=int, default=1000)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--fused", action="store_const", dest="mode", const=FUSED, default=WALKED,
                       help="the fused tick, without checks in between; answers are judged")
    modes.add_argument("--oracle", action="store_const", dest="mode", const=ORACLE,
                       help="the walked tick, and all that the device holds is judged after each")
    options = parser.parse_args()
    if options.seeds is not None:
        return swarm(options, options.mode)
    simulator = Simulator(options.seed, walked=options.mode != FUSED,
                          contents=options.mode == ORACLE, **shape(options.seed))
    result = simulator.run(options.ticks)
    print(f"seed {options.seed}: {shape(options.seed)} {simulator.workload} {simulator.kinds}")
    print(f"{simulator.finished} finished, {simulator.rejected} rejected")
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m helios_dod.simulation --seed N --ticks N: replays a seed; the digest is the last
line."""

import argparse

from helios_dod.simulation.simulator import Simulator


def main() -> None:
    """Runs one seed and prints what happened, the digest last."""
    parser = argparse.ArgumentParser(prog="python -m helios_dod.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ticks", type=int, default=1000)
    parser.add_argument("--fused", action="store_true",
                        help="the fused tick, without checks in between")
    options = parser.parse_args()
    simulator = Simulator(options.seed, walked=not options.fused)
    result = simulator.run(options.ticks)
    print(f"seed {options.seed}: {simulator.workload}")
    print(f"{simulator.finished} finished, {simulator.rejected} rejected")
    print(result)


if __name__ == "__main__":
    main()

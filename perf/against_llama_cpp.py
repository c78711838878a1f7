"""Decode and prefill beside llama.cpp: same file, two threads, alternating processes, one run.

    python perf/against_llama_cpp.py CORE GGUF --peer-python PYTHON [--rounds 3] [--json]

PYTHON is an interpreter that has `llama-cpp-python`, built natively. Each round runs both engines,
each in its own process; medians over the rounds are compared. Nothing else should
run on the machine.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
BARS = {"1": 1.5, "8": 2.5, "32": 3.0, "prefill": 3.0}


def measure(command: list[str]) -> dict[str, Any]:
    """The JSON object that a measuring process prints last."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def rates(result: dict[str, Any]) -> dict[str, float]:
    """Tokens per second by number of streams, and of prefill."""
    found = {str(part["streams"]): part["tokens_per_second"] for part in result["decode"]}
    return {**found, "prefill": result["prefill"]["tokens_per_second"]}


def main() -> int:
    """Alternates both engines and prints medians, spread and ratios."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours = [sys.executable, "-m", "helios_dod.perf", "throughput", str(options.core), "--json",
            "--threads", "2", "--repeats", "1", "--steps", str(options.steps)]
    theirs = [options.peer_python, str(HERE / "llama_cpp_baseline.py"), str(options.gguf), "--json",
              "--threads", "2", "--steps", str(options.steps)]
    rounds, flags = [], ""
    for number in range(options.rounds):
        peer, own = measure(theirs), measure(ours)
        flags = peer["system_info"]
        rounds.append((rates(own), rates(peer)))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    table = {}
    for name, bar in BARS.items():
        own = [turn[0][name] for turn in rounds]
        peer = [turn[1][name] for turn in rounds]
        table[name] = {"helios": round(median(own), 1), "helios_all": own,
                       "llama_cpp": round(median(peer), 1), "llama_cpp_all": peer,
                       "ratio": round(median(own) / median(peer), 2), "bar": bar}
    if options.json:
        print(json.dumps({"system_info": flags, "results": table}))
        return 0
    print(flags.strip())
    for name, row in table.items():
        print(f"{name:>8}: {row['helios']:8.1f} against {row['llama_cpp']:8.1f} tokens/s: "
              f"{row['ratio']:.2f}x (bar {row['bar']}x)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks and times everything of the CUDA target in one run, under ten minutes on an H200.

    python perf/h200/everything.py OUT [--checkpoint FILE --host OUT.npz --saved FILE] [--core CORE]

Writes OUT/h200.json and OUT/h200.txt with every row that comes in: what was measured beside its
bar. Every part is a process of its own with a time limit, so that one that fails costs only its
rows; whatever a part printed is in OUT/NAME.log. A part that cannot run says why; --parts NAME ...
runs some. Shapes that were saved by `measure.py save` are used where they are in .cuda, else they
are compiled while the tests run; the 8B core of the first token is prepared and served once, which
compiles what a server runs, beside the tests, the checkpoint and transformers. What is timed of
ours comes behind all of that, alone on the machine.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ("tests/test_cuda_kernels.py", "tests/test_cuda_kernels_heads.py",
         "tests/test_cuda_device.py")
HANGING = "tests/test_cuda_hang.py"  # by itself: nothing else of the device runs beside it
BARS = {("8b", 1): 4.0, ("8b", 8): 4.3, ("8b", 64): 6.9,
        ("1b", 1): 0.85, ("1b", 8): 0.95, ("1b", 64): 1.7}
BESIDES = 300  # steps of batches whose host time has no bar
HOST_US, GRAPHS_S, UPLOAD_SHARE, LOGITS_RMS = 3.0, 1.0, 0.8, 2e-2
WARM_S = 150  # that a core and its first start take behind what ran beside them
FIRST_TOKEN_S = 2.3  # 16.1 GB at the rate of uploads, and 2 s
STEP = re.compile(r"(\w+) batch (\d+): graphs [\d.]+ ms .*?stepped ([\d.]+) ms "
                  r"\(([\d.]+) to ([\d.]+)\), host (-?[\d.]+) us")


@dataclass
class Report:
    """Rows as they come in; `put` also prints them."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    beside: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # under way

    def put(self, row: str, what: str, value: Any, bar: str = "", met: bool | None = None) -> None:
        """A row of the issue, what it is of, what was measured."""
        self.rows.append(dict(row=row, what=what, value=value, bar=bar, met=met))
        print(self.line(self.rows[-1]), flush=True)
        self.save()

    def line(self, row: dict[str, Any]) -> str:
        """The row for a person."""
        verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
        return f"{row['row']:10} {row['what']:44} {row['value']!s:44} {row['bar']:14} {verdict}"

    def start(self, name: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """A part, which writes its log; it leads a group of processes, which end with it."""
        with open(self.folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment)

    def run(self, name: str, limit_s: float, *words: str, **environment: str) -> str:
        """What a part printed; a failure is a row."""
        return self.end(name, self.start(name, *words, **environment), limit_s)

    def end(self, name: str, process: subprocess.Popen[bytes], limit_s: float) -> str:
        """Waits for a part."""
        begun = time.monotonic()
        try:
            status = str(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = f"stopped after {limit_s:.0f} s"
        except BaseException:  # whoever interrupts this ends what it waits for
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.seconds[name] = round(time.monotonic() - begun, 1)
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        if status != "0":
            last = (text.strip().splitlines() or ["nothing printed"])[-1]
            self.put("FAILED", name, f"{status}: {last[:120]}", met=False)
        return text

    def finish(self, name: str, limit_s: float) -> str:
        """Waits for what is under way."""
        return self.end(name, self.beside.pop(name), limit_s)

    def stop(self) -> None:
        """Ends what is still under way."""
        for process in self.beside.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def save(self) -> None:
        """The JSON and the table."""
        (self.folder / "h200.json").write_text(json.dumps(
            {"rows": self.rows, "seconds": self.seconds}, indent=1))
        (self.folder / "h200.txt").write_text("\n".join(map(self.line, self.rows)) + "\n")


def tests(report: Report, args: argparse.Namespace) -> None:
    """Every test of the device, beside processes that compile shapes which nobody saved."""
    limit_s = args.tests_limit
    saving = {name: report.start(f"save-{name}", "perf/h200/measure.py", "save", name,
                                 f".cuda/{name}.pickle")
              for name in ("8b", "1b") if not (ROOT / ".cuda" / f"{name}.pickle").exists()}
    # Neighbours share what a module's fixtures compiled; who is done takes from the others.
    text = report.run("tests", limit_s, "-m", "pytest", "-q", "-m", "cuda", "-p",
                      "no:cacheprovider", "-n", "8", "--dist", "worksteal", *TESTS,
                      OMP_NUM_THREADS="2")  # of the references in numpy
    last = (text.strip().splitlines() or [""])[-1]
    report.put("right", "tests of every kernel and program", last[-120:], "all pass",
               "passed" in last and not re.search("failed|error", last))
    for line in re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE):
        report.put("right", "  a test", line[:140], met=False)
    for name, process in saving.items():
        report.end(f"save-{name}", process, limit_s)


def right(report: Report, args: argparse.Namespace) -> None:
    """A real checkpoint against the host executor and float64, sampling and containment."""
    if "right" not in report.beside:
        report.put("right", "checkpoint", "not run: no --checkpoint, --host and --saved")
        return
    text = report.finish("right", 120)
    for wanted in ("greedy: .*", "logits of prompt .*", "sampling .*", "containment: .*"):
        for line in re.findall(wanted, text):
            rms = re.search(r"float64: rms ([\d.]+)", line)
            report.put("contained" if wanted[0] == "c" else "right", wanted.split()[0].strip(":"),
                       line, f"{LOGITS_RMS}" if rms else "",
                       float(rms[1]) < LOGITS_RMS if rms else None)


def decode(report: Report, args: argparse.Namespace) -> None:
    """Steps of both shapes, what the host adds to them, and how long graphs take to load."""
    steps = {1: args.steps, 8: min(args.steps, BESIDES), 64: args.steps}  # bars of the host: 1, 64
    for name in ("8b", "1b"):
        text = report.run(f"decode-{name}", 120, "perf/h200/measure.py", "decode", name,
                          *(f"{batch}:{count}" for batch, count in steps.items()))
        loaded = re.search(r"graphs: (\d+) ms.*?(\d+) graphs of (\d+) nodes", text.replace("'", ""))
        if loaded:
            graphs_s = int(loaded[1]) / 1e3
            report.put("start", f"{name}, {loaded[2]} graphs of {loaded[3]} nodes", f"{graphs_s} s",
                       f"{GRAPHS_S} s", graphs_s <= GRAPHS_S)
        for shape, batch, ms, low, high, host in STEP.findall(text):
            bar = BARS[shape, int(batch)]
            report.put("decode", f"{shape} batch {batch}, ms a step", f"{ms} ({low} to {high})",
                       f"{bar}", float(ms) <= bar)
            report.put("host", f"{shape} batch {batch}, {steps[int(batch)]} steps, us a step",
                       host, f"{HOST_US}", float(host) <= HOST_US)


def start(report: Report, args: argparse.Namespace) -> None:
    """Uploads, and the first token of a second start."""
    text = report.run("upload", 60, "perf/h200/measure.py", "upload", "8")
    rates = re.findall(r"([\d.]+) median", text)
    pinned = re.search(r"pinned copy: ([\d.]+)", text)
    if rates and pinned:
        share = float(rates[-1]) / float(pinned[1])
        report.put("start", "upload, GB/s of the pinned rate", f"{rates[-1]} of {pinned[1]}",
                   f"{UPLOAD_SHARE:.0%}", share >= UPLOAD_SHARE)
    text = report.run("first-token", 90, "perf/h200/first_token.py", args.core, "3")
    for line in re.findall(r"first token with .*", text):
        trusted = "trust" in line
        spans = sorted(map(float, re.findall(r"[\d.]+(?=,| s)", line)))
        report.put("start", "first token", line, f"{FIRST_TOKEN_S} s" if trusted else "",
                   spans[len(spans) // 2] <= FIRST_TOKEN_S if trusted else None)


def against(report: Report, args: argparse.Namespace) -> None:
    """transformers on the same device."""
    for name in ("8b", "1b"):
        text = report.run(f"baseline-{name}", 100, "perf/h200/baseline.py", name, "1", "64")
        for line in re.findall(r"^\{.*\}$", text, re.MULTILINE):
            one = json.loads(line)
            report.put("against", f"transformers {one['transformers']}, {one['shape']} batch "
                       f"{one['batch']}", f"{one['ms']:.3f} ({one['lowest']:.3f} to "
                       f"{one['highest']:.3f})")


def hang(report: Report, args: argparse.Namespace) -> None:
    """A kernel that never ends."""
    text = report.run("hang", 150, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider",
                      HANGING)
    last = (text.strip().splitlines() or [""])[-1]
    report.put("contained", "a kernel that never ends is told", last, "passes", "1 passed" in last)


# What may run beside the core's preparation comes first; of what must not, what was measured
# least comes first, in case that a run is cut off.
PARTS = dict(tests=tests, right=right, against=against, start=start, decode=decode, hang=hang)


def run(report: Report, args: argparse.Namespace, folder: str) -> None:
    """Every part; beside the first ones the core that a server starts with, and the checkpoint."""
    if "start" in args.parts:
        args.core = args.core or f"{folder}/core"
        report.beside["warm"] = report.start("warm", "perf/h200/first_token.py", "warm", args.core)
    checkpoint = args.checkpoint, args.host, args.saved
    if "right" in args.parts and None not in checkpoint:
        report.beside["right"] = report.start("right", "perf/h200/greedy.py", "cuda", *checkpoint)
    try:
        for part in [name for name in PARTS if name in args.parts]:
            if part == "start":
                report.finish("warm", WARM_S)
            PARTS[part](report, args)
    finally:
        report.stop()


def main() -> int:
    """Runs every part; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Checks and times everything on one H200.")
    parser.add_argument("out", type=Path)
    for name in ("checkpoint", "host", "saved", "core"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tests-limit", type=float, default=150)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (ROOT / ".cuda").mkdir(exist_ok=True)
    report = Report(args.out)
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(report, args, folder)
    finally:
        report.seconds["all"] = round(time.monotonic() - begun, 1)
        report.save()
    return int(any(row["met"] is False for row in report.rows))


if __name__ == "__main__":
    sys.exit(main())

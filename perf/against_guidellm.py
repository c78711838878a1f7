"""What `perf serve` measures beside what guidellm measures, on one server, in turn.

    python perf/against_guidellm.py --guidellm VENV/bin/guidellm --streams 4 --rounds 5 -- \\
        --executor simulated --step-ms 40

Serves the demo core (words behind `--` go to `helios serve`), then lets each client ask the same
number of chats of the same lengths, so many at a time, in rounds that alternate. Prompts are as
many tokens by the server's own count: a first load tells how many words ours must send. Ratios are
medians over rounds; each must be within 5 %. Needs guidellm 0.3 in an environment of its own."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from helios_dod.cores.demo import demo_core
from helios_dod.perf.machine import machine
from helios_dod.perf.served import Served
from helios_dod.server.bootstrap import load_assets

FIGURES = ("first token, ms", "between tokens, ms", "sent to last token, ms", "output tokens/s")
WITHIN = 0.05


def words_for(python: str, url: str, tokens: int) -> int:
    """Words of a prompt that has so many tokens in the mean, the chat template's included."""
    words = tokens
    for _ in range(3):
        run = ours(python, url, 1, 8, words, 2)
        words += tokens - round(run["prompt_tokens"] / run["requests"])
    return words


def ours(python: str, url: str, streams: int, requests: int, words: int, output: int,
         seed: int = 1) -> dict[str, Any]:
    """One load of `perf serve`."""
    done = subprocess.run(
        [python, "-m", "helios_dod.perf", "serve", "--url", url, "--concurrency", str(streams),
         "--requests", str(requests), "--prompt-tokens", str(words), "--output-tokens",
         str(output), "--warm-up", str(streams), "--ignore-eos", "--seed", str(seed), "--json"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)["runs"][0]


def theirs(command: str, url: str, streams: int, requests: int, tokens: int, output: int,
           tokenizer: str, seed: int) -> dict[str, Any]:
    """One load of guidellm; its report's metrics and requests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        done = subprocess.run(
            [command, "benchmark", "run", "--target", url, "--processor", tokenizer, "--data",
             f"prompt_tokens={tokens},output_tokens={output}", "--rate-type", "concurrent",
             "--rate", str(streams), "--max-requests", str(requests), "--random-seed", str(seed),
             "--disable-console-outputs", "--disable-progress", "--output-path", str(path)],
            capture_output=True, text=True, check=False, env={
                **os.environ, "GUIDELLM__PREFERRED_ROUTE": "chat_completions"})
        if not path.exists():
            raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
        return json.loads(path.read_text())["benchmarks"][0]


def our_figures(run: dict[str, Any]) -> list[float]:
    """In the order of FIGURES."""
    assert not run["failed"], run["errors"]
    return [run["ttft_ms"]["p50"], run["between_tokens_ms"]["p50"], run["latency_ms"]["p50"],
            run["output_tokens_per_s"]]


def their_figures(report: dict[str, Any]) -> list[float]:
    """The same, of guidellm's report; tokens over the time of all its requests."""
    metrics, asked = report["metrics"], report["requests"]["successful"]
    seconds = max(one["end_time"] for one in asked) - min(one["start_time"] for one in asked)

    def median(name: str) -> float:
        return float(metrics[name]["successful"]["median"])

    latency = statistics.median(one["end_time"] - one["start_time"] for one in asked)
    return [median("time_to_first_token_ms"), median("inter_token_latency_ms"), latency * 1e3,
            sum(one["output_tokens"] for one in asked) / seconds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--guidellm", required=True)
    add("--streams", type=int, default=4)
    add("--requests", type=int, default=32)
    add("--prompt-tokens", type=int, default=128)
    add("--output-tokens", type=int, default=32)
    add("--rounds", type=int, default=5)
    add("--json", type=Path)
    add("words", nargs="*", help="of helios serve, behind --")
    args = parser.parse_args()
    core = demo_core()
    server = Served(core, ["--cache-memory", "400M", *args.words])
    rounds, sizes = [], {}
    try:
        url = f"http://127.0.0.1:{server.port}"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_bytes(load_assets(core).tokenizer_json)
            (Path(folder) / "tokenizer_config.json").write_text(
                '{"tokenizer_class": "PreTrainedTokenizerFast"}')
            shape = args.streams, args.requests
            report = theirs(args.guidellm, url, *shape, args.prompt_tokens, args.output_tokens,
                            folder, 99)
            sizes["tokens of a prompt"] = round(server.metrics()[
                "helios_prompt_tokens_total"] / args.requests)
            words = words_for(sys.executable, url, sizes["tokens of a prompt"])
            sizes["words of ours"] = words
            for seed in range(args.rounds):
                report = theirs(args.guidellm, url, *shape, args.prompt_tokens,
                                args.output_tokens, folder, seed)
                run = ours(sys.executable, url, *shape, words, args.output_tokens, seed)
                rounds.append([our_figures(run), their_figures(report)])
                print(seed, *(f"{a:.2f}/{b:.2f}" for a, b in zip(*rounds[-1], strict=True)),
                      flush=True)
    finally:
        server.stop()
    rows = {}
    for number, name in enumerate(FIGURES):
        mine, other = ([pair[side][number] for pair in rounds] for side in (0, 1))
        rows[name] = {"perf serve": round(statistics.median(mine), 3),
                      "guidellm": round(statistics.median(other), 3),
                      "ratio": round(statistics.median(
                          a / b for a, b in zip(mine, other, strict=True)), 4)}
        print(f"{name:24} {rows[name]}")
    if args.json:
        args.json.write_text(json.dumps({
            "machine": machine(), "serve": args.words, "streams": args.streams,
            "requests": args.requests, "output_tokens": args.output_tokens, **sizes,
            "figures": rows, "rounds": rounds}, indent=1) + "\n")
    return int(any(abs(row["ratio"] - 1) > WITHIN for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())

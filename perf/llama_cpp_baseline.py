"""Measure llama.cpp on a GGUF file: the baseline that the speed bars are ratios of.

    python perf/llama_cpp_baseline.py MODEL.gguf [--streams 1 8 32] [--steps 64] [--json]

Uses the low-level API of llama-cpp-python: one llama_batch with a token of every sequence a step.
Tokens are chosen by argmax over the logits in numpy; `decode_only_tokens_per_second` leaves the
choice out and counts llama_decode alone. Measure each engine in a process of its own; a driver
that alternates two engines calls `measure` through `--json`, which prints one line.
"""

import argparse
import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np

THREADS = 2
PROMPT_TOKENS = 50
PREFILL_TOKENS = 400
BATCH_TOKENS = 512
WARM_STEPS = 4
# llama.cpp keeps the pointer, so the callback lives as long as the module.
QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


def system_info() -> str:
    """llama.cpp's own list of the processor features that it was built with."""
    return llama_cpp.llama_print_system_info().decode()


class Session:
    """A model, a context for some parallel sequences, and a batch of BATCH_TOKENS rows."""

    def __init__(self, model_path: Path, streams: int, tokens_per_stream: int, threads: int):
        llama_cpp.llama_backend_init()
        model_settings = llama_cpp.llama_model_default_params()
        model_settings.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(model_path).encode(), model_settings)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model_path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = streams * ((tokens_per_stream + 255) // 256 * 256)
        settings.n_batch = settings.n_ubatch = BATCH_TOKENS
        settings.n_threads = settings.n_threads_batch = threads
        settings.n_seq_max = streams
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context for {streams} streams")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def close(self) -> None:
        """Free the batch, the context and the model."""
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> float:
        """Run rows of (token id, position, sequence, wants logits); seconds in llama_decode."""
        for index, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[index] = token
            self.batch.pos[index] = position
            self.batch.n_seq_id[index] = 1
            self.batch.seq_id[index][0] = sequence
            self.batch.logits[index] = wanted
        self.batch.n_tokens = len(rows)
        start = time.perf_counter()
        status = llama_cpp.llama_decode(self.context, self.batch)
        llama_cpp.llama_synchronize(self.context)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status} for {len(rows)} rows")
        return time.perf_counter() - start

    def argmax(self, row: int) -> int:
        """The best token of one row of the last batch."""
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def forget(self) -> None:
        """Drop the cache of all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)


def prompt_ids(count: int, stream: int, vocabulary: int) -> list[int]:
    """Token ids of a made-up prompt, different for each stream; special tokens left out."""
    generator = np.random.default_rng(stream)
    return generator.integers(100, vocabulary, count).tolist()


def measure_decode(session: Session, streams: int, steps: int) -> dict:
    """Decode `steps` tokens on every stream after a prompt of PROMPT_TOKENS each."""
    session.forget()
    tokens = []
    for stream in range(streams):
        ids = prompt_ids(PROMPT_TOKENS, stream, session.vocabulary)
        last = len(ids) - 1
        session.decode([(token, i, stream, i == last) for i, token in enumerate(ids)])
        tokens.append(session.argmax(last))
    decode_s, step_s = [], []
    for step in range(WARM_STEPS + steps):
        start = time.perf_counter()
        position = PROMPT_TOKENS + step
        rows = [(token, position, stream, True) for stream, token in enumerate(tokens)]
        inside = session.decode(rows)
        tokens = [session.argmax(row) for row in range(streams)]
        if step >= WARM_STEPS:
            decode_s.append(inside)
            step_s.append(time.perf_counter() - start)
    return {
        "streams": streams,
        "steps": steps,
        "tokens_per_second": streams * steps / sum(step_s),
        "decode_only_tokens_per_second": streams * steps / sum(decode_s),
        "tokens_per_second_p50": streams / statistics.median(step_s),
        "step_ms_p50": 1000 * statistics.median(step_s),
    }


def measure_prefill(session: Session, repeats: int) -> dict:
    """Prefill one prompt of PREFILL_TOKENS in one batch; logits of the last position alone."""
    seconds = []
    for repeat in range(repeats + 1):
        session.forget()
        ids = prompt_ids(PREFILL_TOKENS, repeat, session.vocabulary)
        rows = [(token, i, 0, i == PREFILL_TOKENS - 1) for i, token in enumerate(ids)]
        seconds.append(session.decode(rows))
    return {
        "prompt_tokens": PREFILL_TOKENS,
        "repeats": repeats,
        "tokens_per_second": PREFILL_TOKENS * repeats / sum(seconds[1:]),
        "best_tokens_per_second": PREFILL_TOKENS / min(seconds[1:]),
    }


def measure(
    model_path: str | Path,
    streams: list[int] | int = (1, 8, 32),
    steps: int = 64,
    prefill_repeats: int = 4,
    threads: int = THREADS,
) -> dict:
    """Decode tokens/s at each number of streams, and prefill tokens/s (0 repeats: left out).

    Returns the build's flags and settings beside the figures, all JSON values. Throughputs are
    in tokens a second over all streams, with the choice of tokens (argmax) included. The p50
    form is of the median step: where another process holds a core, llama.cpp's spinning threads
    make single steps a hundred times longer, and the two forms part.
    """
    counts = [streams] if isinstance(streams, int) else list(streams)
    report: dict = {
        "engine": "llama.cpp",
        "llama_cpp_python": version("llama-cpp-python"),
        "system_info": system_info(),
        "threads": threads,
        "choice": "argmax over the logits in numpy",
        "decode": [],
    }
    llama_cpp.llama_log_set(QUIET, None)
    for count in counts:
        session = Session(Path(model_path), count, PROMPT_TOKENS + WARM_STEPS + steps, threads)
        report["decode"].append(measure_decode(session, count, steps))
        session.close()
    if prefill_repeats:
        session = Session(Path(model_path), 1, BATCH_TOKENS, threads)
        report["prefill"] = measure_prefill(session, prefill_repeats)
        session.close()
    return report


def show(report: dict) -> None:
    """Print a report for people."""
    print(f"llama-cpp-python {report['llama_cpp_python']}: {report['system_info']}")
    print(f"threads {report['threads']}, tokens by {report['choice']}")
    for entry in report["decode"]:
        print(
            f"decode {entry['streams']:3d} streams: {entry['tokens_per_second']:7.1f} tokens/s"
            f" ({entry['decode_only_tokens_per_second']:.1f} in llama_decode alone;"
            f" median step {entry['step_ms_p50']:.2f} ms,"
            f" {entry['tokens_per_second_p50']:.1f} tokens/s)"
        )
    if "prefill" in report:
        entry = report["prefill"]
        print(f"prefill {entry['prompt_tokens']} tokens: {entry['tokens_per_second']:.1f} tokens/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--prefill-repeats", type=int, default=4, help="0 leaves prefill out")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    report = measure(
        options.model, options.streams, options.steps, options.prefill_repeats, options.threads
    )
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

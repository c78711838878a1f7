"""Traces: when requests arrive, how long they are, what they share. Files, and drawn ones."""

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.bounds import INT64_MAX, shown
from helios_dod.errors import UserError

ALONE = -1  # shares nothing
COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "prefix", "prefix_tokens")
ARRIVAL_NS_MAX = 10**18  # 31 years, so that times of a simulation fit int64
TOKENS_MAX = 1 << 29  # of a prompt and of an answer
PREFIX_MAX = 1 << 61  # its number is doubled where a text is drawn


@dataclass(frozen=True)
class Trace:
    """Requests in the order of arrival, one an element of int64 arrays of one length.

    The first `prefix_tokens` of a prompt are those of the text number `prefix`, which grows as
    far as anyone needs it: so a shared system prompt is one number, and a conversation is one
    number with a growing share. All else of a prompt is its own."""

    arrival_ns: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    prefix: np.ndarray
    prefix_tokens: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.arrival_ns)
        for name in COLUMNS:
            column = getattr(self, name)
            if column.shape != (count,) or column.dtype != np.int64:
                raise UserError(f"trace.{name}: expected int64 of shape ({count},), got "
                                f"{column.dtype} of {column.shape}")
        for name, broken in (
                ("arrival_ns", (np.diff(self.arrival_ns, prepend=0) < 0)
                 | (self.arrival_ns > ARRIVAL_NS_MAX)),
                ("prompt_tokens", (self.prompt_tokens < 1) | (self.prompt_tokens > TOKENS_MAX)),
                ("output_tokens", (self.output_tokens < 1) | (self.output_tokens > TOKENS_MAX)),
                ("prefix", (self.prefix < ALONE) | (self.prefix > PREFIX_MAX)),
                ("prefix_tokens", (self.prefix_tokens < 0)
                 | (self.prefix_tokens > self.prompt_tokens)
                 | ((self.prefix == ALONE) & (self.prefix_tokens > 0)))):
            if broken.any():
                at = int(np.argmax(broken))
                raise UserError(f"trace.{name}[{at}]: out of order or range, got "
                                f"{int(getattr(self, name)[at])}")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def first(self, count: int) -> "Trace":
        """Its first requests."""
        return Trace(*(getattr(self, name)[:count] for name in COLUMNS))

    def text_tokens(self, output_limit: int = 0) -> np.ndarray:
        """What each request may come to hold, if it asks for so many tokens or its own."""
        return self.prompt_tokens + np.maximum(self.output_tokens, output_limit)

    @property
    def context_tokens(self) -> int:
        """The most that one request holds."""
        return int((self.prompt_tokens + self.output_tokens).max()) if len(self) else 0


def make_trace(arrival_ns: np.ndarray, prompt: np.ndarray, output: np.ndarray,
               prefix: np.ndarray | None = None,
               prefix_tokens: np.ndarray | None = None) -> Trace:
    """A trace of whatever integers; without a prefix all prompts are their own."""
    count = len(arrival_ns)
    columns = (arrival_ns, prompt, output,
               np.full(count, ALONE) if prefix is None else prefix,
               np.zeros(count) if prefix_tokens is None else prefix_tokens)
    return Trace(*(np.asarray(column).astype(np.int64) for column in columns))


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt or an answer: log-normal, cut to low..high. median and mean in tokens."""

    median: float
    mean: float
    low: int = 1
    high: int = 1 << 30

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int64 [count]. The spread of a log-normal follows from mean over median."""
        sigma = np.sqrt(2 * np.log(max(self.mean / self.median, 1.0)))
        drawn = rng.lognormal(np.log(self.median), sigma, count)
        return np.clip(np.rint(drawn), self.low, self.high).astype(np.int64)


# (prompt, answer): medians and means of the conversation and code traces that Patel et al. describe
# in "Splitwise" (ISCA 2024, Azure's production services), cut to the traces' largest values.
SHAPES = {
    "conversation": (Lengths(1020, 1155, 1, 14_000), Lengths(129, 211, 1, 1000)),
    "code": (Lengths(1500, 2048, 1, 7500), Lengths(13, 28, 1, 2000)),
}


def arrivals(rng: np.random.Generator, count: int, rate: float, burstiness: float) -> np.ndarray:
    """int64 [count], nanoseconds: gaps of a gamma law of mean 1 / rate (a second) and a coefficient
    of variation of `burstiness`: 0 is a clock, 1 is Poisson. rate 0: all at once."""
    if rate <= 0:
        return np.zeros(count, np.int64)
    if burstiness <= 0:
        return (np.arange(count) * 1e9 / rate).astype(np.int64)
    shape = burstiness ** -2
    gaps = rng.gamma(shape, 1e9 / rate / shape, count)
    return np.cumsum(gaps).astype(np.int64)


def drawn_trace(shape: str, count: int, rate: float, seed: int = 1, burstiness: float = 1.0,
                shared_tokens: int = 0, groups: int = 1) -> Trace:
    """`count` requests of a named shape. shared_tokens: of each prompt, with 1 / groups of the
    others. Raises UserError for an unknown shape."""
    if shape not in SHAPES:
        raise UserError(f"--shape: expected one of {', '.join(SHAPES)}, got {shape}")
    rng = np.random.default_rng(seed)
    prompts, answers = SHAPES[shape]
    prompt, output = prompts.draw(rng, count), answers.draw(rng, count)
    if shared_tokens == 0:
        return make_trace(arrivals(rng, count, rate, burstiness), prompt, output)
    return make_trace(arrivals(rng, count, rate, burstiness), prompt + shared_tokens, output,
                      rng.integers(0, groups, count), np.full(count, shared_tokens))


def read_trace(path: Path) -> Trace:
    """A trace by its file's ending: .jsonl, .parquet, or .csv as the public ones are written.

    Raises UserError naming file, line and field."""
    readers: dict[str, Callable[[Path], Iterable[dict]]] = {
        ".jsonl": _json_lines, ".parquet": _parquet, ".csv": _csv_rows}
    if path.suffix not in readers:
        raise UserError(f"{path}: expected a name that ends in {', '.join(readers)}")
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    try:
        for number, row in enumerate(readers[path.suffix](path), 1):
            for name in COLUMNS:
                value = row.get(name, {"prefix": ALONE, "prefix_tokens": 0}.get(name))
                if not isinstance(value, int) or isinstance(value, bool) or (
                        abs(value) > INT64_MAX):
                    raise UserError(f"{path}: line {number}: {name}: expected an integer of 64 "
                                    f"bits, got {shown(value)}")
                columns[name].append(value)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise UserError(f"{path}: {error}") from None
    if path.suffix == ".csv" and columns["arrival_ns"]:
        start = min(columns["arrival_ns"])  # public traces count from some date
        columns["arrival_ns"] = [when - start for when in columns["arrival_ns"]]
    order = np.argsort(columns["arrival_ns"], kind="stable")
    return Trace(*(np.array(columns[name], np.int64)[order] for name in COLUMNS))


def write_trace(trace: Trace, path: Path) -> None:
    """Writes .jsonl, or .parquet where pyarrow is installed. Raises UserError, OSError."""
    rows = zip(*(getattr(trace, name).tolist() for name in COLUMNS), strict=True)
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            for row in rows:
                file.write(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n")
    elif path.suffix == ".parquet":
        arrow = _pyarrow()
        table = arrow.table({name: getattr(trace, name) for name in COLUMNS})
        arrow.parquet.write_table(table, path)
    else:
        raise UserError(f"{path}: expected a name that ends in .jsonl or .parquet")


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet files need the package pyarrow, which is not installed: "
                        "pip install 'helios-dod[parquet]'") from None
    return pyarrow


def _json_lines(path: Path) -> Iterable[dict]:
    with path.open(encoding="utf-8", errors="replace") as file:  # what is no text is no JSON
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}: line {number}: {error}") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}: line {number}: expected an object, got {shown(row)}")
            yield row


def _parquet(path: Path) -> Iterable[dict]:
    try:
        return _pyarrow().parquet.read_table(path).to_pylist()
    except ValueError as error:  # UserError is one
        raise UserError(f"{path}: {error}") from None


# Column names of public traces: Azure's (a date) and BurstGPT's (seconds).
CSV_NAMES = (("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
             ("Timestamp", "Request tokens", "Response tokens"))


def _csv_rows(path: Path) -> Iterable[dict]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        header = reader.fieldnames or []
        names = next((names for names in CSV_NAMES if set(names) <= set(header)), None)
        if names is None:
            raise UserError(f"{path}: expected columns "
                            f"{' or '.join(', '.join(names) for names in CSV_NAMES)}, got "
                            f"{', '.join(header)}")
        for number, row in enumerate(reader, 2):
            try:
                when = _nanoseconds(row[names[0]])
                prompt, output = int(row[names[1]]), int(row[names[2]])
            except (TypeError, ValueError, OverflowError) as error:
                raise UserError(f"{path}: line {number}: {error}") from None
            if prompt > 0 and output > 0:  # the public files hold failed requests, with 0 tokens
                yield {"arrival_ns": when, "prompt_tokens": prompt, "output_tokens": output}


def _nanoseconds(text: str) -> int:
    """Of seconds, or of a date with up to seven digits of a second."""
    try:
        return round(float(text) * 1e9)
    except ValueError:
        whole, _, part = text.partition(".")
        moment = datetime.fromisoformat(whole)
        return int((moment - datetime(1970, 1, 1)).total_seconds()) * 10**9 + int(
            (part + "0" * 9)[:9])

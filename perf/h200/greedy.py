"""Greedy tokens, sampling and containment of a checkpoint on CUDA against the host executor.

    python perf/h200/greedy.py host CHECKPOINT OUT.npz     # no GPU: the same bf16 weights
    python perf/h200/greedy.py save CHECKPOINT FILE [fp8]  # no GPU: compiles
    python perf/h200/greedy.py eighths CHECKPOINT OUT.npz [head]   # no GPU, in numpy
    python perf/h200/greedy.py cuda CHECKPOINT OUT.npz FILE [fp8]    # compares, lists differences
"""

import json
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cuda_models import rounded
from host_harness import Harness
from plain_device import PlainDevice

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints import open_checkpoint
from helios_dod.ignition.cuda.prepare import for_cuda
from helios_dod.ignition.cuda.weights import dense_checkpoint, in_e4m3, row_major
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.recipes import prepare

LANES = 32
TOKENS = 64
CHUNK = 512
PAGES = 2048
EXACT = 4  # prompts whose logits are computed in float64
LOGITS_RMS = 2e-2  # relative, of bf16 against float64
TOP = 8
DRAWS = 4096
SERIES = 8


def core(checkpoint: str, **fields: Any) -> Any:
    """The checkpoint prepared for the host, with every matrix rounded to bf16."""
    options = Options(lanes=LANES, context=8192, packed=(64, CHUNK), **fields)
    return prepare(dense_checkpoint(open_checkpoint(Path(checkpoint))), options)


def save(checkpoint: str, path: str, weight_type: str = "bf16") -> None:
    """Keeps what a checkpoint's core for CUDA has beside its weights."""
    made = for_cuda(core(checkpoint), weight_type)
    Path(path).write_bytes(pickle.dumps(
        (made.manifest.SerializeToString(), made.contract.SerializeToString())))


def compiled(checkpoint: str, path: str, weight_type: str = "bf16") -> Any:
    """The core that was saved, with its weights."""
    made, manifest = core(checkpoint), wire.ExecutionManifest()
    manifest.CopyFrom(made.manifest)
    weights = row_major(manifest, made.weights)
    if weight_type == "fp8":
        weights = in_e4m3(manifest, weights)
    code, serving = pickle.loads(Path(path).read_bytes())
    return replace(made, manifest=wire.ExecutionManifest.FromString(code),
                   contract=contract.ServingContract.FromString(serving), weights=weights)


def prompts() -> list[list[int]]:
    """Token ids of the recorded prompts."""
    recorded = json.loads((ROOT / "tests/fixtures/smollm2_greedy.json").read_text())
    return [row["prompt_ids"] for row in recorded["prompts"]][:LANES]


def generate(harness: Harness, forced: np.ndarray | None = None
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [prompts, TOKENS], and the largest logits of each step: ids and values. forced: the
    tokens that each goes on with, whatever it would have said."""
    texts = prompts()
    tokens = np.zeros((len(texts), TOKENS), np.int32)
    ids = np.zeros((len(texts), TOKENS, TOP), np.int32)
    values = np.zeros((len(texts), TOKENS, TOP), np.float32)

    def note(row: int, step: int, token: int, logits: np.ndarray) -> None:
        best = np.argsort(-logits, kind="stable")[:TOP]
        tokens[row, step], ids[row, step], values[row, step] = token, best, logits[best]

    for row, text in enumerate(texts):
        harness.admit(row)
        while len(text) > CHUNK:
            harness.step(f"prefill_{CHUNK}", {row: text[:CHUNK]}, 0)
            text = text[CHUNK:]
        token = int(harness.prefill({row: text})[0])
        note(row, 0, token, harness.logits(1)[0])
    slots = list(range(len(texts)))
    for step in range(1, TOKENS):
        found = harness.decode(slots) if forced is None else harness.decode_host(
            dict(enumerate(forced[:, step - 1].tolist())))
        logits = harness.logits(len(slots))
        for row in slots:
            note(row, step, int(found[row]), logits[row])
    return tokens, ids, values


def host(checkpoint: str, path: str) -> None:
    """Records what the host executor generates."""
    from helios_dod.executors.host.executor import HostExecutor

    harness = Harness(core(checkpoint), HostExecutor(), slots=LANES, pages=PAGES)
    precise = exact(checkpoint)
    begun = time.monotonic()
    tokens, ids, values = generate(harness)
    print(f"host: {len(tokens)} prompts in {time.monotonic() - begun:.1f} s")
    harness.admit(0)
    first = harness.prefill({0: prompts()[0]})
    np.savez_compressed(path, tokens=tokens, ids=ids, values=values, first=first,
                        logits=harness.logits(1)[0], exact=precise)
    harness.close()


def exact(checkpoint: str) -> np.ndarray:
    """Logits behind the first EXACT prompts in float64, nothing rounded: [EXACT, vocabulary]."""
    harness = Harness(core(checkpoint, cache="f32"), PlainDevice(real=np.float64), slots=LANES,
                      pages=64)
    return np.array([last_logits(harness, text) for text in prompts()[:EXACT]])


def last_logits(harness: Harness, text: list[int]) -> np.ndarray:
    """Logits behind a prompt of at most CHUNK tokens."""
    assert len(text) <= CHUNK
    harness.admit(0)
    harness.prefill({0: text})
    logits = np.array(harness.logits(1)[0])
    harness.release(0)
    return logits


def compare(known: Any, tokens: np.ndarray) -> None:
    """Counts equal prompts; for each other, the first difference and the host's logit gap."""
    wanted = known["tokens"]
    equal, worst = 0, 0.0
    for row in range(len(wanted)):
        differs = np.nonzero(wanted[row] != tokens[row])[0]
        if not len(differs):
            equal += 1
            continue
        step = int(differs[0])
        ids, values = known["ids"][row, step], known["values"][row, step]
        at = np.nonzero(ids == tokens[row, step])[0]
        gap = float(values[0] - values[at[0]]) if len(at) else float("inf")
        worst = max(worst, gap)
        print(f"    prompt {row}, token {step}: host {wanted[row, step]}, here "
              f"{tokens[row, step]}, logit gap {gap:.4f} of {values[0]:.2f}")
    print(f"greedy: {equal} of {len(wanted)} prompts equal over {TOKENS} tokens; largest logit gap "
          f"at a first difference {worst:.4f}")


def cuda(checkpoint: str, path: str, *saved: str) -> None:
    """Compares greedy tokens and logits, then checks sampling and containment."""
    from helios_dod.executors.cuda.executor import CudaExecutor

    begun = time.monotonic()
    prepared = compiled(checkpoint, *saved) if saved else for_cuda(core(checkpoint))
    print(f"prepared in {time.monotonic() - begun:.1f} s", flush=True)
    begun = time.monotonic()
    harness = Harness(prepared, CudaExecutor(), slots=LANES, pages=PAGES)
    load = harness.executor.load_ns
    print(f"loaded in {time.monotonic() - begun:.2f} s, {load}", flush=True)
    known = np.load(path)
    begun = time.monotonic()
    tokens, _, _ = generate(harness)
    print(f"cuda: {len(tokens)} prompts in {time.monotonic() - begun:.1f} s")
    compare(known, tokens)
    harness.admit(0)
    harness.prefill({0: prompts()[0]})
    report_logits(known, harness.logits(1)[0])
    for number, wanted in enumerate(known["exact"]):
        found = last_logits(harness, prompts()[number]).astype(np.float64)
        rms = np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean())
        print(f"logits of prompt {number} against float64: rms {rms:.5f} relative, "
              f"{'within' if rms < LOGITS_RMS else 'BEYOND'} {LOGITS_RMS}", flush=True)
    sampling(harness)
    contain(harness)
    harness.close()


def report_logits(known: Any, logits: np.ndarray) -> None:
    """Differences of the first prompt's logits."""
    error = logits - known["logits"]
    scale = np.sqrt((known["logits"] ** 2).mean())
    print(f"logits of prompt 0 against the host: rms {np.sqrt((error**2).mean()) / scale:.5f}, "
          f"largest {np.abs(error).max() / np.abs(known['logits']).max():.5f} relative", flush=True)


def eighths(checkpoint: str, path: str, *head: str) -> None:
    """Compares a plain executor that rounds weights and rows to e4m3 as the kernels do; head: those
    of the head too."""
    options = Options(lanes=LANES, context=8192, packed=(64, CHUNK))
    given = dense_checkpoint(open_checkpoint(Path(checkpoint)))
    made = prepare(rounded(given, bool(head)), options)
    known = np.load(path)
    harness = Harness(made, PlainDevice(True, head=bool(head)), slots=LANES, pages=PAGES)
    tokens, _, _ = generate(harness, known["tokens"])
    compare(known, tokens)  # a text that agrees at every step is the text that it would write
    same = tokens == known["tokens"]
    print(f"behind the host's own tokens {same.sum()} of {same.size} are the host's")
    harness.admit(0)
    harness.prefill({0: prompts()[0]})
    report_logits(known, harness.logits(1)[0])


def sampling(harness: Harness) -> None:
    """Chi-square of draws against the exact distribution that the filters leave of the logits that
    the device drew from: each submission's own, since another packing rounds them otherwise."""
    prompt = prompts()[0][:CHUNK // LANES]
    parts = dict.fromkeys(range(LANES), prompt)
    for settings in ({"temperature": 1.0, "top_k": 20}, {"temperature": 0.8, "top_p": 0.8},
                     {"temperature": 1.2, "min_p": 0.05, "top_k": 50}):
        values = []
        for series in range(SERIES):
            counts, expected = np.zeros(1, int), None
            for first in range(0, DRAWS, LANES):
                for slot in range(LANES):
                    harness.admit(slot, seed=series * DRAWS + first + slot + 1, **settings)
                tokens = harness.prefill(parts)
                if expected is None:
                    logits = harness.logits(LANES).astype(np.float64)
                    expected = distribution(logits, **settings)
                counts = counts + np.bincount(tokens, minlength=expected.shape[1])
                for slot in range(LANES):
                    harness.release(slot)
            assert expected is not None
            values.append(chi_square(counts, DRAWS * expected.mean(axis=0)))
        print(f"sampling {settings}, {SERIES} times {DRAWS} draws: chi-square over degrees of "
              f"freedom, draws outside the filters: "
              f"{', '.join(f'{chi:.1f} / {free}, {out}' for chi, free, out in values)}",
              flush=True)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int, int]:
    """(chi-square of the tokens that are expected five times, degrees of freedom, impossible)."""
    kept = expected >= 5
    rest = np.array([counts[~kept].sum()]), np.array([expected[~kept].sum()])
    parts = [(counts[kept], expected[kept])] + ([rest] if rest[1][0] >= 5 else [])
    chi = sum(float(((seen - due) ** 2 / due).sum()) for seen, due in parts)
    free = sum(len(due) for _, due in parts) - 1
    return chi, free, int(counts[expected == 0].sum())


def distribution(logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0,
                 min_p: float = 0.0) -> np.ndarray:
    """Probabilities of each row of logits behind temperature, top-k, top-p and min-p. Ties at a
    threshold stay together, as they do on the device."""
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    for row in weights:
        ordered = np.sort(row)[::-1]
        if top_k:
            row[row < ordered[top_k - 1]] = 0
        if top_p < 1:
            shares = np.cumsum(np.sort(row)[::-1]) / row.sum()
            row[row < ordered[np.searchsorted(shares, top_p)]] = 0
        row[row < min_p] = 0
    return weights / weights.sum(axis=1, keepdims=True)


def contain(harness: Harness) -> None:
    """A lane whose history is not finite ends alone; its neighbours' logits stay bitwise."""
    from helios_dod.executors.cuda.driver import call

    kept = []
    for poisoned in (False, True):
        for slot in range(4):
            harness.admit(slot)
        for slot in range(4):
            harness.prefill({slot: prompts()[slot]})
        if poisoned:
            page = int(harness.buffer("page_table")[2, 0])
            plane = harness.executor.memory.caches()[0]
            call("cuMemsetD16", plane.address[0] + page * plane.row_bytes, 0x7FC0,
                 plane.row_bytes // 2)
            call("cuCtxSynchronize")
        tokens = harness.decode([0, 1, 2, 3])
        status = harness.world[0]["completions"]["status"][harness.frame][:4].tolist()
        kept.append((harness.logits(4)[[0, 1, 3]], tokens, status))
        for slot in range(4):
            harness.release(slot)
    same = np.array_equal(kept[0][0], kept[1][0])
    print(f"containment: status {kept[1][2]}, tokens {kept[1][1].tolist()}, neighbours bitwise "
          f"equal: {same}", flush=True)


if __name__ == "__main__":
    {"host": host, "save": save, "eighths": eighths, "cuda": cuda}[sys.argv[1]](*sys.argv[2:])

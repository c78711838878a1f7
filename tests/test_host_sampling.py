"""Sampling on the host executor against plain numpy: filters, penalties, draws, ends."""

from typing import Any

import numpy as np
import pytest
from host_machine import Machine

from helios_dod.contract.wire import manifest_pb2 as wire

VOCABULARY, SLOTS = 1003, 16
MASK_WORDS = -(-VOCABULARY // 32)
NEUTRAL: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "top_k": 0,
    "seed": 0,
    "repetition": 1.0,
    "presence": 0.0,
    "frequency": 0.0,
    "bias_count": 0,
    "minimum": 0,
    "limit": 1000,
    "top_count": -1,
    "generated": 0,
    "status": 0,
    "stop_tokens": -1,
}
F32_STATE = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
I32_STATE = (
    "top_k",
    "bias_count",
    "minimum",
    "generated",
    "status",
    "top_count",
    "limit",
    "pending",
)


def declare(m: Machine) -> None:
    """Every buffer."""
    for name in ("slot", "generation", "consumed", "length", "row"):
        m.staging(name, wire.I32, (16,))
    m.staging("position", wire.I32, (256,))
    m.staging("mask", wire.U32, (16, MASK_WORDS))
    m.state("logits", wire.F32, (16, VOCABULARY), wire.SCRATCH)
    m.state("sampled", wire.I32, (16,), wire.SCRATCH)
    for name in F32_STATE:
        m.state(name, wire.F32, (SLOTS,))
    for name in I32_STATE:
        m.state(name, wire.I32, (SLOTS,))
    m.state("seed", wire.U64, (SLOTS,))
    m.state("histogram", wire.I32, (SLOTS, VOCABULARY))
    m.state("bias_tokens", wire.I32, (SLOTS, 32))
    m.state("bias_values", wire.F32, (SLOTS, 32))
    m.state("stop_tokens", wire.I32, (SLOTS, 8))
    m.completion("logprob", wire.COMPLETION_LOGPROB, wire.F32, (16,))
    m.completion("top_tokens", wire.COMPLETION_TOP_TOKENS, wire.I32, (16, 20))
    m.completion("top_logprobs", wire.COMPLETION_TOP_LOGPROBS, wire.F32, (16, 20))


def program(m: Machine) -> None:
    """Adjust, sample, advance."""

    def same(*names: str) -> dict[str, Any]:
        return {name: m.part(name) for name in names}

    m.program(
        wire.AdjustLogits(
            mask=m.part("mask"),
            has_mask=True,
            **same(
                "logits",
                "slot",
                "histogram",
                "repetition",
                "presence",
                "frequency",
                "bias_tokens",
                "bias_values",
                "bias_count",
                "stop_tokens",
                "minimum",
                "generated",
                "status",
            )
        ),
        wire.Sample(
            sample_row=m.part("row"),
            output=m.part("sampled"),
            **same(
                "logits",
                "slot",
                "temperature",
                "top_p",
                "min_p",
                "top_k",
                "seed",
                "position",
                "top_count",
                "logprob",
                "top_tokens",
                "top_logprobs",
                "status",
            ),
        ),
        wire.Advance(
            query_length=m.part("length"),
            **same(
                "sampled",
                "slot",
                "generation",
                "consumed",
                "pending",
                "histogram",
                "generated",
                "limit",
                "minimum",
                "stop_tokens",
                "status",
            ),
        ),
    )


@pytest.fixture(scope="module")
def machine():
    m = Machine()
    declare(m)
    program(m)
    m.load()
    yield m
    m.executor.close()


@pytest.fixture(autouse=True)
def neutral(machine: Machine) -> None:
    for name, value in NEUTRAL.items():
        machine.view(name)[:] = value
    machine.view("histogram")[:] = 0
    machine.view("mask")[:] = 0xFFFFFFFF
    machine.view("slot")[:] = np.arange(15, -1, -1)
    machine.view("row")[:] = np.arange(16) * 2
    machine.view("position")[:] = np.arange(256)
    machine.view("consumed")[:], machine.view("length")[:] = 30, 2
    machine.view("generation")[:] = np.arange(16) + 1


def logits_of(seed: int = 0, scale: float = 3.0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((16, VOCABULARY)) * scale
    return values.astype(np.float32)


def run(m: Machine, logits: np.ndarray, lanes: int = 16, sampled: int = 16) -> np.ndarray:
    m.view("logits")[:] = logits
    m.run(lanes=lanes, sampled=sampled)
    return m.view("sampled")[:sampled].copy()


def completions(m: Machine) -> Any:
    return m.world[0]["completions"]


def philox(seed: int, counter: int) -> float:
    """Salmon et al. 2011, in Python integers."""
    words, key = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            b >> 32 ^ words[1] ^ key[0],
            b & 0xFFFFFFFF,
            a >> 32 ^ words[3] ^ key[1],
            a & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


def kept(x: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Probabilities after temperature and filters, in float64."""
    x = x.astype(np.float64)
    keep = np.ones(len(x), bool)
    if 0 < top_k < len(x):
        keep &= x >= np.sort(x)[-top_k]
    p = np.where(keep, np.exp((x - x.max()) / temperature), 0)
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        least = p[order][before < top_p * p.sum()].min()
        p = np.where(p >= least, p, 0)
    p = np.where(p >= min_p * p.max(), p, 0)
    return p / p.sum()


def test_known_philox_words() -> None:
    """The published vector for counter and key zero: 6627e8d5 e169c58d."""
    assert philox(0, 0) == (0x6627E8D5E169C58D >> 11) * 2.0**-53


def masked(m: Machine, share: float, seed: int) -> np.ndarray:
    """Random masks, some words all set and some empty: which tokens each row allows."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((16, 32 * MASK_WORDS)) < share
    words = allowed.reshape(16, MASK_WORDS, 32)
    words[:, ::5], words[:, 1::5] = False, True
    m.view("mask")[:] = np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)
    return allowed[:, :VOCABULARY]


def test_masks_come_before_everything_else(machine: Machine) -> None:
    """The largest allowed logit, whatever penalties and biases make of the others."""
    machine.view("repetition")[:] = 1.3
    machine.view("histogram")[:] = 1
    machine.view("bias_count")[:] = 1
    machine.view("bias_tokens")[:, 0], machine.view("bias_values")[:, 0] = 7, 1000.0
    for seed in range(6):
        x, allowed = logits_of(seed), masked(machine, 0.3, seed)
        adjusted = np.where(x > 0, x / np.float32(1.3), x * np.float32(1.3))
        adjusted[:, 7] += 1000
        wanted = np.where(allowed, adjusted, -np.inf).argmax(axis=1)
        assert (run(machine, x) == wanted).all()


def test_draws_stay_in_the_mask(machine: Machine) -> None:
    machine.view("temperature")[:] = 2.0
    machine.view("top_k")[:] = [0, 50, 2000, 1] * 4
    machine.view("top_p")[:] = [1.0, 0.9] * 8
    machine.view("top_count")[:] = 5
    for seed in range(6):
        machine.view("seed")[:] = np.arange(16) + 100 * seed
        allowed = masked(machine, 0.02, seed)
        tokens = run(machine, logits_of(seed))
        assert allowed[np.arange(16), tokens].all()
        assert np.isfinite(completions(machine)["logprob"][0][:16].view(np.float32)).all()


def test_greedy_takes_the_lowest_of_ties(machine: Machine) -> None:
    x = logits_of()
    x[0, [5, 900]] = 50
    x[1, [1002, 1001]] = 50
    x[2, :] = -3
    tokens = run(machine, x)
    assert tokens.tolist() == x.argmax(axis=1).tolist() and tokens[:3].tolist() == [5, 1001, 0]


FILTERS = [
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (7, 1.0, 0.0),
    (0, 0.8, 0.0),
    (40, 0.9, 0.0),
    (0, 1.0, 0.2),
    (300, 0.95, 0.01),
    (5000, 0.999, 0.0),
    (0, 1e-6, 0.0),
]


@pytest.mark.parametrize("top_k,top_p,min_p", FILTERS)
def test_draw_is_the_inverse_of_the_distribution(
    machine: Machine, top_k: int, top_p: float, min_p: float
) -> None:
    """The token is the one whose share of the cumulative probability holds the uniform number."""
    for seed in range(8):
        x = logits_of(seed)
        machine.view("temperature")[:], machine.view("top_k")[:] = 0.7, top_k
        machine.view("top_p")[:], machine.view("min_p")[:] = top_p, min_p
        machine.view("seed")[:] = np.arange(SLOTS, dtype=np.uint64) * 2**33 + seed
        tokens = run(machine, x)
        for i, token in enumerate(tokens):
            p = kept(x[i], 0.7, top_k, np.float32(top_p), min_p)
            uniform = philox(int((15 - i) * 2**33 + seed), 2 * i + 1)
            assert p[token] > 0
            assert p[:token].sum() - 1e-5 <= uniform <= p[: token + 1].sum() + 1e-5


def test_draws_follow_the_distribution(machine: Machine) -> None:
    """Chi-square over 6,400 draws of 12 likely tokens; the quantile is that of 1e-6."""
    x = np.full((16, VOCABULARY), -np.float32(100))
    x[:, 100:112] = np.linspace(-1, 1, 12)
    machine.view("temperature")[:] = 1.3
    counts = np.zeros(VOCABULARY)
    for seed in range(400):
        machine.view("seed")[:] = seed
        counts += np.bincount(run(machine, x), minlength=VOCABULARY)
    expected = 6400 * kept(x[0], 1.3, 0, 1.0, 0.0)[100:112]
    assert counts[100:112].sum() == 6400
    assert ((counts[100:112] - expected) ** 2 / expected).sum() < 48.0


def test_a_draw_depends_on_seed_and_position_alone(machine: Machine) -> None:
    x = logits_of(3)
    x[:] = x[4]
    machine.view("temperature")[:], machine.view("top_p")[:] = 1.0, 0.9
    machine.view("seed")[:] = 7
    machine.view("row")[:] = 9
    tokens = run(machine, x)
    assert len(set(tokens.tolist())) == 1
    machine.view("slot")[:] = np.arange(16)
    machine.view("status")[:] = 0
    assert run(machine, x, lanes=3, sampled=2).tolist() == tokens[:2].tolist()


def test_penalties_and_bias(machine: Machine) -> None:
    x = logits_of(5)
    rng = np.random.default_rng(6)
    histogram = np.where(
        rng.random((SLOTS, VOCABULARY)) < 0.2, rng.integers(1, 4, (SLOTS, VOCABULARY)), 0
    )
    prompt = rng.random((SLOTS, VOCABULARY)) < 0.1
    machine.view("histogram")[:] = histogram + (prompt.astype(np.int32) << 30)
    machine.view("repetition")[:], machine.view("presence")[:] = 1.3, 0.5
    machine.view("frequency")[:], machine.view("bias_count")[:] = 0.25, 2
    machine.view("bias_tokens")[:, :2] = [3, 1002]
    machine.view("bias_values")[:, :2] = [-5, 4]
    run(machine, x)
    wanted = x.astype(np.float64)
    counts, seen = histogram[::-1], (histogram > 0)[::-1] | prompt[::-1]
    wanted = np.where(seen, np.where(wanted > 0, wanted / 1.3, wanted * 1.3), wanted)
    wanted -= np.where(counts > 0, 0.5 + 0.25 * counts, 0)
    wanted[:, 3] -= 5
    wanted[:, 1002] += 4
    assert np.max(np.abs(machine.view("logits") - wanted)) < 1e-5


def test_log_probabilities(machine: Machine) -> None:
    x = logits_of(8)
    x[2, [10, 20, 30]] = 40
    machine.view("top_count")[:] = np.array([-1] + [0] + [20] * 14)
    machine.view("temperature")[:] = 0.5
    tokens = run(machine, x)
    exact = x - np.log(np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True))
    record = completions(machine)
    for i in range(15):
        found = record["logprob"][0][i : i + 1].view(np.float32)[0]
        assert abs(found - exact[i, tokens[i]]) < 2e-5
    for i in range(14):
        order = np.argsort(-x[i], kind="stable")[:20]
        assert record["top_tokens"][0][i].tolist() == order.tolist()
        found = record["top_logprobs"][0][i].view(np.float32)
        assert np.max(np.abs(found - exact[i, order])) < 2e-5


def test_a_row_that_is_not_finite_ends_alone(machine: Machine) -> None:
    x = logits_of(9)
    clean = run(machine, x)
    machine.view("generated")[:], machine.view("histogram")[:] = 0, 0
    x[3, 1002], x[5, 0], x[7, 500] = np.nan, np.inf, -np.inf
    tokens = run(machine, x)
    bad = np.isin(np.arange(16), [3, 5, 7])
    assert np.all(tokens[bad] == -1) and np.all(tokens[~bad] == clean[~bad])
    record = completions(machine)
    assert np.array_equal(record["status"][0][:16], np.where(bad, 3, 0))
    assert np.array_equal(record["emitted"][0][:16], np.where(bad, 0, 1))
    assert np.array_equal(machine.view("generated")[::-1], np.where(bad, 0, 1))
    assert np.all(machine.view("histogram")[12] == 0)


def test_ends_and_completion_records(machine: Machine) -> None:
    """EOS by any stop id, not before the minimum; the limit; a slot that ended changes nothing."""
    x = logits_of(10, 1.0)
    x[:, 77] = 30
    stops = machine.view("stop_tokens")
    stops[:, 7] = 77
    stops[3] = -1  # EOS is ignored
    machine.view("minimum")[2] = 1
    machine.view("limit")[3] = 1
    machine.view("limit")[4] = 1  # EOS at the limit is EOS
    machine.view("status")[5] = 2
    before = machine.view("histogram")[5].copy()
    tokens = run(machine, x, lanes=16, sampled=15)
    record = {n: completions(machine)[n][0][:16] for n in completions(machine).dtype.names[:10]}
    status = np.ones(16, int)
    status[[15 - 2, 15 - 3, 15 - 5, 15]] = [0, 2, 2, 0]
    assert np.array_equal(record["status"], status)
    emitted = np.ones(16, int)
    emitted[[15 - 5, 15]] = 0
    assert np.array_equal(record["emitted"], emitted)
    assert np.array_equal(record["slot"], np.arange(15, -1, -1))
    assert np.array_equal(record["generation"], np.arange(16) + 1)
    assert np.all(record["endpoint"] == 32) and np.all(record["cursor"] == -1)
    assert np.all(record["reserved"] == -1) and np.all(record["offered"] == 0)
    assert tokens[15 - 2] != 77 and record["tokens"][15 - 2, 0] == tokens[15 - 2]
    assert tokens[15 - 5] == -1 and np.array_equal(machine.view("histogram")[5], before)
    assert machine.view("pending")[1] == 77 and machine.view("histogram")[1, 77] == 1
    assert np.array_equal(machine.view("generated")[::-1], emitted)

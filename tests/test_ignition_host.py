"""Prepared models on the host executor: transformers' logits, and bitwise equal batches."""

from collections.abc import Iterator

import numpy as np
import pytest
from host_harness import Harness
from ignition_fixtures import EVERY, expected, prepared

from helios_dod.executors.host.executor import HostExecutor

LOGIT_GAP = 1e-4
LANES = 16


@pytest.fixture
def load() -> Iterator:
    """Loads a tiny model onto a host executor of two threads, and closes it afterwards."""
    opened = []

    def start(name: str, cache_type: str = "f32") -> Harness:
        core = prepared(name, cache_type)
        opened.append(Harness(core, HostExecutor(threads=2), slots=LANES, pages=160))
        return opened[-1]

    yield start
    for harness in opened:
        harness.close()


@pytest.mark.parametrize("name", EVERY)
def test_logits_and_greedy_tokens(load, name):
    known, device = expected(name), load(name)
    for length in ("short", "long"):
        prompt, logits = known[f"prompt_{length}"].tolist(), known[f"logits_{length}"]
        device.admit(slot=3)
        found, scores = device.scored(3, prompt)
        assert np.abs(found - logits).max() < LOGIT_GAP
        exact = logits.astype(np.float64)
        exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
        assert np.abs(scores - exact[np.arange(len(prompt) - 1), prompt[1:]]).max() < LOGIT_GAP
        device.admit(slot=3)
        tokens = [int(device.prefill({3: prompt})[0])]
        while len(tokens) < len(known[f"greedy_{length}"]):
            tokens.append(int(device.decode([3])[0]))
        assert tokens == known[f"greedy_{length}"].tolist()


@pytest.mark.parametrize("name", ["qwen2_window", "gpt2", "all_types.gguf"])
def test_chunks_and_batches_are_bitwise_equal(load, name):
    """A request's logits do not depend on chunking, on other lanes, on its slot or its pages."""
    device, prompt = load(name), expected(name)["prompt_long"].tolist()
    device.admit(slot=0)
    first = int(device.prefill({0: prompt})[0])
    whole = device.logits(1)[0]
    assert int(device.decode([0])[0]) >= 0
    after = device.logits(1)[0]
    generator = np.random.default_rng(5)
    for slot in range(1, LANES):
        device.admit(slot)
    for cut in (1, 7, 50):
        device.admit(slot=4)
        at = 0
        while len(prompt) - at > cut:
            device.step("prefill_64", {4: prompt[at : at + cut]}, sampled=0)
            at += cut
        assert int(device.prefill({4: prompt[at:]})[0]) == first
        assert np.array_equal(device.logits(1)[0], whole)
    others = {slot: generator.integers(5, 300, 3 + slot % 5).tolist() for slot in range(1, LANES)}
    del others[4]
    device.prefill(others)
    device.decode([*others, 4])
    assert np.array_equal(device.logits(LANES - 1)[LANES - 2], after)


def test_every_program_continues_alike(load):
    """Mixed, host-owned pending tokens and a resumed history continue like decode."""
    known, device = expected("qwen3"), load("qwen3")
    prompt, greedy = known["prompt_long"].tolist(), known["greedy_long"].tolist()
    short, short_greedy = known["prompt_short"].tolist(), known["greedy_short"].tolist()
    device.admit(slot=0)
    device.admit(slot=2)
    assert device.prefill({2: short}).tolist() == [short_greedy[0]]
    device.step("prefill_64", {0: prompt[:50]}, sampled=0)
    assert device.mixed({2: [-1], 0: prompt[50:]}).tolist() == [short_greedy[1], greedy[0]]
    assert device.decode([0, 2]).tolist() == [greedy[1], short_greedy[2]]
    assert device.decode_host({2: short_greedy[2], 0: greedy[1]}).tolist() == [
        short_greedy[3], greedy[2]]
    device.admit(slot=3)
    history = prompt + greedy[:2]
    device.resume(3, history[:100], pending=-1, generated=0)
    device.resume(3, history[100:], pending=greedy[2], generated=3)
    assert device.decode([3, 0]).tolist() == [greedy[3], greedy[3]]
    assert device.buffer("generated")[[3, 0]].tolist() == [4, 4]


def test_restored_pages_continue(load):
    known, device = expected("mistral"), load("mistral")
    prompt, greedy = known["prompt_short"].tolist(), known["greedy_short"].tolist()
    device.admit(slot=0)
    device.prefill({0: prompt})
    device.restore(slot=1, source=0)
    assert device.prefill({1: prompt[-1:]}).tolist() == greedy[:1]


def test_bf16_cache_is_bitwise_batch_invariant(load):
    device, prompt = load("llama2", "bf16"), expected("llama2")["prompt_long"].tolist()
    device.admit(slot=0)
    device.prefill({0: prompt})
    whole = device.logits(1)[0]
    device.admit(slot=1)
    device.step("prefill_64", {1: prompt[:33]}, sampled=0)
    device.prefill({1: prompt[33:]})
    assert np.array_equal(device.logits(1)[0], whole)

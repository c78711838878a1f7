"""What the recipes emit, run by the plain executor, computes what transformers computes."""

import numpy as np
import pytest
from host_harness import Harness
from ignition_fixtures import EVERY, expected, prepared
from plain_device import PlainDevice

LOGIT_GAP = 1e-4


def harness(name: str, cache_type: str = "f32") -> Harness:
    return Harness(prepared(name, cache_type), PlainDevice(), slots=4, pages=32)


@pytest.mark.parametrize("name", EVERY)
def test_logits_and_greedy_tokens(name):
    known, device = expected(name), harness(name)
    for length in ("short", "long"):
        prompt, logits = known[f"prompt_{length}"].tolist(), known[f"logits_{length}"]
        device.admit(slot=1)
        found, scores = device.scored(1, prompt)
        assert np.abs(found - logits).max() < LOGIT_GAP
        exact = logits.astype(np.float64)
        exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
        assert np.abs(scores - exact[np.arange(len(prompt) - 1), prompt[1:]]).max() < LOGIT_GAP
        device.admit(slot=1)
        tokens = [int(device.prefill({1: prompt})[0])]
        while len(tokens) < len(known[f"greedy_{length}"]):
            tokens.append(int(device.decode([1])[0]))
        assert tokens == known[f"greedy_{length}"].tolist()


@pytest.mark.parametrize("name", ["qwen2_window", "gpt2"])
def test_every_program_continues_alike(name):
    """Chunked prefill, mixed, host-owned pending tokens and a resumed history agree."""
    known, device = expected(name), harness(name)
    prompt, greedy = known["prompt_long"].tolist(), known["greedy_long"].tolist()
    short, short_greedy = known["prompt_short"].tolist(), known["greedy_short"].tolist()
    device.admit(slot=0)
    device.admit(slot=2)
    assert device.prefill({2: short}).tolist() == [short_greedy[0]]
    device.step("prefill_64", {0: prompt[:50]}, sampled=0)
    assert device.mixed({2: [-1], 0: prompt[50:]}).tolist() == [short_greedy[1], greedy[0]]
    assert device.decode([0, 2]).tolist() == [greedy[1], short_greedy[2]]
    found = device.decode_host({2: short_greedy[2], 0: greedy[1]})
    assert found.tolist() == [short_greedy[3], greedy[2]]
    device.admit(slot=3)
    history = prompt + greedy[:2]
    device.resume(3, history[:100], pending=-1, generated=0)
    device.resume(3, history[100:], pending=greedy[2], generated=3)
    assert device.decode([3, 0]).tolist() == [greedy[3], greedy[3]]
    assert device.buffer("generated")[[3, 0]].tolist() == [4, 4]


def test_restore_copies_pages_and_admits():
    """A private copy of another row's page serves as the restored row's history."""
    name = "mistral"
    known, device = expected(name), harness(name)
    prompt, greedy = known["prompt_short"].tolist(), known["greedy_short"].tolist()
    device.admit(slot=0)
    device.prefill({0: prompt})
    device.restore(slot=1, source=0)
    assert device.prefill({1: prompt[-1:]}).tolist() == greedy[:1]
    assert device.buffer("page_table")[0, 0] != device.buffer("page_table")[1, 0]


def test_bf16_cache_is_close():
    known, device = expected("smollm2"), harness("smollm2", "bf16")
    device.admit(slot=0)
    found, _ = device.scored(0, known["prompt_long"].tolist())
    gap = np.abs(found - known["logits_long"]).max()
    assert LOGIT_GAP < gap < 0.2

"""Whole programs of tiny models on the host executor, against what transformers computed."""

import numpy as np
import pytest
from host_harness import Harness
from ignition_fixtures import EVERY, expected, prepared

from helios_dod.executors.host.executor import HostExecutor

LOGIT_GAP = 1e-4


@pytest.fixture
def harness():
    """Makes harnesses and closes them."""
    made: list[Harness] = []

    def make(name: str, cache_type: str = "f32", **more: int) -> Harness:
        device = Harness(prepared(name, cache_type), HostExecutor(2), slots=17, pages=200, **more)
        made.append(device)
        return device

    yield make
    for device in made:
        device.close()


@pytest.mark.parametrize("name", EVERY)
def test_logits_and_greedy_tokens(name, harness):
    known, device = expected(name), harness(name)
    for length in ("short", "long"):
        prompt, logits = known[f"prompt_{length}"].tolist(), known[f"logits_{length}"]
        device.admit(slot=1)
        found, _ = device.scored(1, prompt)
        assert np.abs(found - logits).max() < LOGIT_GAP
        device.admit(slot=1)
        tokens = [int(device.prefill({1: prompt})[0])]
        while len(tokens) < len(known[f"greedy_{length}"]):
            tokens.append(int(device.decode([1])[0]))
        assert tokens == known[f"greedy_{length}"].tolist()


def test_bf16_cache_is_close(harness):
    known, device = expected("smollm2"), harness("smollm2", "bf16")
    device.admit(slot=0)
    found, _ = device.scored(0, known["prompt_long"].tolist())
    gap = np.abs(found - known["logits_long"]).max()
    assert LOGIT_GAP < gap < 0.2

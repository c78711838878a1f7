"""The real model through the whole engine against tokens that transformers computed in fp32."""

import json
from pathlib import Path

import numpy as np
from embedded import Embedded

from helios_dod.edges import Submission
from helios_dod.terms import FINISH_LIMIT

GAP = 1e-3  # logits nearer than this may be ordered either way
FIXTURE = Path(__file__).parent / "fixtures" / "smollm2_greedy.json"


def test_greedy_tokens_equal_transformers(f32_core):
    """32 prompts of 1 to over 4,000 tokens, 64 tokens each, all of them in one batch."""
    prompts = json.loads(FIXTURE.read_text())["prompts"]
    assert len(prompts) == 32 and max(len(p["prompt_ids"]) for p in prompts) > 4000
    requests = [Submission(i + 1, np.array(p["prompt_ids"], np.int32), 64)
                for i, p in enumerate(prompts)]
    with Embedded(f32_core) as engine:
        answers = engine.ask(requests)
    different = []
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.reason == FINISH_LIMIT and len(answer.tokens) == 64
        for step, (got, known) in enumerate(
                zip(answer.tokens, prompt["generated_ids"], strict=True)):
            if got != known:
                ids, logits = prompt["top2_ids"][step], prompt["top2_logits"][step]
                different.append((prompt["name"], step, got, known, logits[0] - logits[1]))
                assert got == ids[1] and logits[0] - logits[1] < GAP, different
                break
    print(f"\n{len(prompts) - len(different)} of {len(prompts)} equal; near ties: {different}")
    assert len(different) <= 2

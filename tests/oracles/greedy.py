"""Greedy decoding, with what a test needs to judge a difference: each step's two best logits."""

import numpy as np
import torch
from transformers import DynamicCache


def greedy(model, prompt_ids: list[int], token_count: int) -> dict:
    """Greedy continuation of one prompt, never stopped by an end-of-sequence token.

    Returns generated_ids [token_count], top2_ids and top2_logits [token_count, 2] (best first) and
    last_logits float32 [vocabulary]: the logits after the whole prompt.
    """
    cache = DynamicCache(config=model.config)
    step_ids = torch.tensor([prompt_ids])
    generated, top2_ids, top2_logits, last_logits = [], [], [], None
    with torch.inference_mode():
        for _ in range(token_count):
            output = model(
                input_ids=step_ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            logits = output.logits[0, -1]
            if last_logits is None:
                last_logits = logits.to(torch.float32).numpy().copy()
            best = torch.topk(logits, 2)
            top2_ids.append(best.indices.tolist())
            top2_logits.append(best.values.tolist())
            generated.append(top2_ids[-1][0])
            step_ids = torch.tensor([[generated[-1]]])
    return {
        "generated_ids": generated,
        "top2_ids": top2_ids,
        "top2_logits": np.asarray(top2_logits, dtype=np.float32).round(6).tolist(),
        "last_logits": last_logits,
    }


def all_logits(model, token_ids: list[int]) -> np.ndarray:
    """Logits of every position of one sequence in one pass: [tokens, vocabulary]."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0].numpy()

"""transformers with a static cache and one captured CUDA graph a step, on random weights.

    python perf/h200/baseline.py 8b 1 64      # needs torch and transformers; nothing else here does

Greedy, context 1,024, bf16, medians of 3 repetitions. Prints one JSON object a batch.
"""

import json
import sys
from typing import Any

import numpy as np
import torch
import transformers

CONTEXT, ROOM, STEPS, REPETITIONS = 1024, 1280, 60, 3  # a cache counts its own tokens: all fit
SHAPES: dict[str, dict[str, Any]] = {
    "8b": dict(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, intermediate_size=14_336,
               tie_word_embeddings=False),
    "1b": dict(num_hidden_layers=16, hidden_size=2048, num_attention_heads=32,
               num_key_value_heads=8, head_dim=64, intermediate_size=8192,
               tie_word_embeddings=True),
}


def model_of(name: str) -> Any:
    """The shape in bf16 on the device, its weights as torch draws them."""
    config = transformers.LlamaConfig(
        vocab_size=128_256, max_position_embeddings=131_072, rms_norm_eps=1e-5, **SHAPES[name])
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


@torch.inference_mode()
def step_ms(model: Any, batch: int) -> list[float]:
    """Milliseconds of a captured step, of every repetition."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=ROOM)
    tokens = torch.randint(0, 128_000, (batch, CONTEXT), device="cuda")
    for first in range(0, CONTEXT, 256):
        at = torch.arange(first, first + 256, device="cuda")
        model(input_ids=tokens[:, first : first + 256], past_key_values=cache, cache_position=at,
              position_ids=at[None], use_cache=True, logits_to_keep=1)
    token = tokens[:, -1:].clone()
    at = torch.full((1,), CONTEXT, device="cuda")
    mask = torch.zeros((batch, 1, 1, ROOM), device="cuda", dtype=torch.bfloat16)
    mask[..., CONTEXT + 1 :] = float("-inf")

    def step() -> None:
        found = model(input_ids=token, past_key_values=cache, cache_position=at,
                      position_ids=at[None], attention_mask=mask, use_cache=True)
        token.copy_(found.logits[:, -1:].argmax(dim=-1))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(REPETITIONS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(STEPS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / STEPS)
    return times


def main() -> None:
    """Times the batches of one shape."""
    name, *batches = sys.argv[1:]
    model = model_of(name)
    for batch in map(int, batches):
        times = step_ms(model, batch)
        print(json.dumps({
            "shape": name, "batch": batch, "ms": float(np.median(times)), "lowest": min(times),
            "highest": max(times), "transformers": transformers.__version__,
            "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()

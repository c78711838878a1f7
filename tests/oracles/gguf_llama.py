"""Hugging Face's LlamaForCausalLM over a GGUF file's weights, dequantised by the gguf library.

The weights do not pass through the GGUF loader of transformers: tensors are dequantised one by one
in float32, and the rows of the query and key matrices are put back into the order that
transformers' rotary embedding expects (`rows_in_half_order`).
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def rows_in_half_order(weight: np.ndarray, head_count: int) -> np.ndarray:
    """Undo GGUF's row order of a [head_count * head_size, columns] query or key matrix.

    GGUF's llama architecture rotates neighbouring rows (0, 1), (2, 3), ...; transformers rotates
    row i with row i + head_size / 2. So row 2i + j of a head moves to row j * head_size / 2 + i.
    """
    rows, columns = weight.shape
    paired = weight.reshape(head_count, rows // head_count // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def field(reader: gguf.GGUFReader, key: str, default=None):
    """Value of one metadata key, or the default where the file does not have it."""
    found = reader.get_field(key)
    return default if found is None else found.contents()


def llama_config(reader: gguf.GGUFReader) -> LlamaConfig:
    """The LlamaConfig that a GGUF file of architecture 'llama' without rope scaling describes."""
    assert field(reader, "general.architecture") == "llama"
    names = {tensor.name for tensor in reader.tensors}
    assert "rope_freqs.weight" not in names, "rope scaling is not handled here"
    assert field(reader, "llama.rope.scaling.type", "none") == "none"
    heads = field(reader, "llama.attention.head_count")
    embedding = field(reader, "llama.embedding_length")
    head_size = field(reader, "llama.attention.key_length", embedding // heads)
    assert field(reader, "llama.rope.dimension_count", head_size) == head_size
    theta = field(reader, "llama.rope.freq_base", 10000.0)
    return LlamaConfig(
        vocab_size=len(field(reader, "tokenizer.ggml.tokens")),
        hidden_size=embedding,
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field(reader, "llama.attention.head_count_kv", heads),
        head_dim=head_size,
        max_position_embeddings=field(reader, "llama.context_length"),
        rms_norm_eps=field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings="output.weight" not in names,
        attn_implementation="eager",
    )


def state_name(tensor_name: str) -> str:
    """The transformers parameter that a GGUF tensor fills: blk.3.attn_q.weight and the like."""
    if tensor_name in TOP_NAMES:
        return TOP_NAMES[tensor_name]
    prefix, layer, kind, suffix = tensor_name.split(".")
    assert prefix == "blk"
    return f"model.layers.{layer}.{BLOCK_NAMES[kind]}.{suffix}"


def state_dict(reader: gguf.GGUFReader) -> dict[str, torch.Tensor]:
    """Every tensor of the file in float32, under transformers' names and row order."""
    heads = field(reader, "llama.attention.head_count")
    heads_kv = field(reader, "llama.attention.head_count_kv", heads)
    state = {}
    for tensor in reader.tensors:
        shape = tuple(int(extent) for extent in reversed(tensor.shape))
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weight = np.asarray(weight, dtype=np.float32).reshape(shape)
        if tensor.name.endswith("attn_q.weight"):
            weight = rows_in_half_order(weight, heads)
        if tensor.name.endswith("attn_k.weight"):
            weight = rows_in_half_order(weight, heads_kv)
        state[state_name(tensor.name)] = torch.from_numpy(weight.copy())
    return state


def load(path: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The model in evaluation mode: dequantised weights, eager attention, cache in `dtype`.

    Weights are dequantised in float32 whatever `dtype` is; float64 widens the arithmetic alone.
    """
    reader = gguf.GGUFReader(path)
    config = llama_config(reader)
    model = LlamaForCausalLM(config).to(dtype).eval()
    state = {name: weight.to(dtype) for name, weight in state_dict(reader).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    assert missing == tied and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model

"""The tiny checkpoints: config.json as published checkpoints of the family have it, and the rest.

Most configurations use the older keys (rope_theta, rope_scaling, torch_dtype), which is what
published checkpoints have; 'llama32' and 'qwen3' use the newer rope_parameters and dtype.
"""

from dataclasses import dataclass, field
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
INSTRUCTION = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
PLAIN = ("{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
         "{% endfor %}")

LLAMA3_SPECIALS = [
    "<|begin_of_text|>", "<|end_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip
CHATML_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Spec:
    """One checkpoint: its configuration, storage type, tokenizer and generation defaults."""

    config: dict[str, Any]
    tokenizer: str  # a kind of tiny_tokenizers.byte_level, or "byte_fallback"
    specials: list[str]
    bos: str | None
    eos: str
    template: str
    generation: dict[str, Any] = field(default_factory=dict)
    shard_count: int = 1
    seed: int = 0
    adds_bos: bool = False


def llama(**changes) -> dict[str, Any]:
    """A two-layer Llama configuration in the older form; keyword arguments replace entries."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | changes


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The configuration with some entries left out."""
    return {key: value for key, value in config.items() if key not in keys}


def llama3_spec(config: dict[str, Any], seed: int) -> Spec:
    """A checkpoint with the tokenizer, template and end tokens of Llama 3."""
    generation = {"bos_token_id": 0, "eos_token_id": [1, 4], "do_sample": True}
    generation |= {"temperature": 0.6, "top_p": 0.9}
    return Spec(
        config, "llama3", LLAMA3_SPECIALS, LLAMA3_SPECIALS[0], LLAMA3_SPECIALS[4], HEADERS,
        generation, seed=seed, adds_bos=True,
    )  # fmt: skip


def chatml_spec(config: dict[str, Any], tokenizer: str, seed: int, **changes) -> Spec:
    """A checkpoint with ChatML messages that end by <|im_end|>."""
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True}
    generation |= {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    return Spec(
        config, tokenizer, CHATML_SPECIALS, None, "<|im_end|>", CHATML, generation,
        seed=seed, **changes,
    )  # fmt: skip


def byte_fallback_spec(config: dict[str, Any], seed: int) -> Spec:
    """A checkpoint with a tokenizer of Llama 2's shape and [INST] messages."""
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    config = config | {"bos_token_id": 1, "eos_token_id": 2}
    return Spec(
        config, "byte_fallback", ["<unk>", "<s>", "</s>"], "<s>", "</s>", INSTRUCTION, generation,
        seed=seed, adds_bos=True,
    )  # fmt: skip


def llama_specs() -> dict[str, Spec]:
    """Llama 2, 3.1, 3.2, SmolLM2, and the scaled rotary embeddings."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    newer = scaling | {"factor": 32.0, "rope_theta": 500000.0}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    heads24 = {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3}
    llama32 = llama(
        hidden_size=96, num_key_value_heads=1, head_dim=24, tie_word_embeddings=True,
        rope_parameters=newer, dtype="bfloat16", eos_token_id=[1, 4],
    )  # fmt: skip
    smollm2 = llama(
        hidden_size=96, num_attention_heads=3, num_key_value_heads=1, rope_theta=100000,
        intermediate_size=72, tie_word_embeddings=True, torch_dtype="float32", eos_token_id=2,
    )  # fmt: skip
    return {
        "llama2": byte_fallback_spec(llama(**heads24, torch_dtype="float16"), 1),
        "llama31": llama3_spec(
            llama(rope_theta=500000.0, rope_scaling=scaling, eos_token_id=[1, 4]), 2
        ),
        "llama32": llama3_spec(without(llama32, "rope_theta", "rope_scaling", "torch_dtype"), 3),
        "llama_linear": llama3_spec(llama(rope_scaling={"type": "linear", "factor": 4.0}), 4),
        "llama_yarn": llama3_spec(llama(rope_scaling=yarn, num_hidden_layers=3), 15),
        "llama_bias": llama3_spec(llama(attention_bias=True, mlp_bias=True, head_dim=20), 16),
        "smollm2": chatml_spec(smollm2, "smollm", 7),
    }


def mistral_and_qwen_specs() -> dict[str, Spec]:
    """Attention windows, QKV bias and QK norm."""
    mistral = llama(
        architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=16, head_dim=24,
        num_hidden_layers=3,
    )  # fmt: skip
    mistral = without(mistral, "attention_bias", "mlp_bias", "rope_scaling")
    qwen2 = llama(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", rms_norm_eps=1e-6, eos_token_id=2,
        rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False,
        sliding_window=512, max_window_layers=2,
    )  # fmt: skip
    qwen2 = without(qwen2, "attention_bias", "mlp_bias", "rope_scaling")
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    qwen2_window = qwen2 | window | {"num_hidden_layers": 3, "tie_word_embeddings": False}
    qwen3 = llama(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", rms_norm_eps=1e-6, head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, eos_token_id=2,
        tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    qwen3 = without(qwen3, "rope_theta", "rope_scaling", "mlp_bias", "torch_dtype")
    return {
        "mistral": byte_fallback_spec(mistral, 8),
        "qwen2": chatml_spec(qwen2, "qwen2", 19, shard_count=2),
        "qwen2_window": chatml_spec(qwen2_window, "qwen2", 10),
        "qwen3": chatml_spec(qwen3, "qwen2", 11),
    }


def gpt2_specs() -> dict[str, Spec]:
    """GPT-2: layer norm, the tanh form of GELU, learned positions, tied head."""
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 300,
        "n_embd": 56,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": None,
        "n_positions": 256,
        "n_ctx": 256,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    generation = {"bos_token_id": 0, "eos_token_id": 0}
    end = "<|endoftext|>"
    return {"gpt2": Spec(config, "gpt2", [end], end, end, PLAIN, generation, seed=14)}


def all_specs() -> dict[str, Spec]:
    """Name of the fixture folder -> checkpoint."""
    return llama_specs() | mistral_and_qwen_specs() | gpt2_specs()

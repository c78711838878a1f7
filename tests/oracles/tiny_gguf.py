"""Write tiny GGUF files, what transformers computes with them, and llama.cpp's tokenisations.

    python tests/oracles/tiny_gguf.py

Writes into tests/fixtures/tiny/:
  all_types.gguf  random llama with every tensor type that the reader knows; BPE 'llama-bpe'
  spm.gguf        random llama with a tied F16 embedding and an SPM tokenizer with scores
  llama31.gguf, qwen2.gguf, qwen3.gguf  the checkpoints of the same name, BF16: their logits are
                  NAME/expected.npz
  NAME.expected.npz for the first two, NAME.tokens.json for all but qwen3
Each file's logits are also compared with llama.cpp's, which is printed and bounded.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_llama import load as load_gguf
from safetensors.torch import load_file
from smollm2_text import LlamaCppTokenizer, write
from text_cases import tricky_strings
from tiny_family import FIXTURES, expected
from tokenizers import Tokenizer

LAYER_TYPES = [
    {"attn_q": Kind.Q4_0, "attn_k": Kind.F32, "attn_v": Kind.F16, "attn_output": Kind.Q4_1,
     "ffn_gate": Kind.Q5_0, "ffn_up": Kind.Q5_1, "ffn_down": Kind.Q8_0},
    {"attn_q": Kind.Q4_K, "attn_k": Kind.BF16, "attn_v": Kind.Q6_K, "attn_output": Kind.Q5_K,
     "ffn_gate": Kind.Q6_K, "ffn_up": Kind.Q4_K, "ffn_down": Kind.Q5_K},
]  # fmt: skip
SPM_TYPES = [
    {"attn_q": Kind.Q8_0, "attn_k": Kind.Q8_0, "attn_v": Kind.Q8_0, "attn_output": Kind.Q4_0,
     "ffn_gate": Kind.Q4_0, "ffn_up": Kind.Q4_0, "ffn_down": Kind.F16},
] * 2  # fmt: skip
# Offsets of the float16 scales in a block, by type: ggml's block_q4_K, block_q5_K, block_q6_K.
SCALE_OFFSETS = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
# A minimum stands for about half of the code range, so that the weights are centred.
MINIMUM_RATIO = {Kind.Q4_K: 7.5, Kind.Q5_K: 15.5}
ROPE_FREQS = "rope_freqs.weight"
FOLDER_TYPES = {"llama31": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}
FOLDER_TYPES |= {"qwen3": gguf.MODEL_ARCH.QWEN3}


def random_blocks(kind: Kind, shape: tuple[int, int], deviation: float, seed: int) -> np.ndarray:
    """Random but valid bytes of a K type: uint8 [rows, row bytes] of about this deviation.

    Codes and sub-block scales are any bits; the float16 scales are set, half of them negative
    where the type has no minimum.
    """
    generator = np.random.default_rng(seed)
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = shape
    blocks = generator.integers(
        0, 256, (rows, columns // block_weights, block_bytes), dtype=np.uint8
    )
    spread = generator.uniform(0.5, 1.5, blocks.shape[:2])
    signs = np.where(generator.random(blocks.shape[:2]) < 0.5, -1.0, 1.0)

    def with_scale(scale: float) -> np.ndarray:
        offsets = SCALE_OFFSETS[kind]
        first = scale * spread * (signs if len(offsets) == 1 else 1.0)
        for offset, ratio in zip(offsets, (1.0, MINIMUM_RATIO.get(kind)), strict=False):
            value = (first * ratio).astype(np.float16)
            blocks[..., offset : offset + 2] = value[..., None].view(np.uint8)
        return blocks.reshape(rows, -1)

    unit = gguf.quants.dequantize(with_scale(2.0**-10), kind).std()
    return with_scale(2.0**-10 * deviation / unit)


def encoded(weight: np.ndarray, kind: Kind, seed: int) -> np.ndarray:
    """The weight in a type's storage; K types keep only its shape and deviation."""
    if kind in SCALE_OFFSETS:
        return random_blocks(kind, weight.shape, float(weight.std()), seed)
    return gguf.quants.quantize(weight.astype(np.float32), kind)


def random_llama(hidden: int, inner: int, heads: int, heads_kv: int, types, head_types, seed: int):
    """Yield name, bytes and type of every tensor of a random llama model of 300 tokens."""
    generator = np.random.default_rng(seed)
    head_size = hidden // heads
    shapes = {
        "attn_q": (hidden, hidden), "attn_k": (heads_kv * head_size, hidden),
        "attn_v": (heads_kv * head_size, hidden), "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip

    def norm() -> np.ndarray:
        return (1.0 + 0.25 * generator.standard_normal(hidden)).astype(np.float32)

    for name, (kind, deviation) in head_types.items():
        weight = generator.standard_normal((300, hidden)) * deviation
        yield f"{name}.weight", encoded(weight, kind, seed + len(name)), kind
    yield "output_norm.weight", norm(), Kind.F32
    for layer, kinds in enumerate(types):
        yield f"blk.{layer}.attn_norm.weight", norm(), Kind.F32
        yield f"blk.{layer}.ffn_norm.weight", norm(), Kind.F32
        for index, (name, kind) in enumerate(kinds.items()):
            weight = generator.standard_normal(shapes[name]) * 1.3 / np.sqrt(shapes[name][1])
            blocks = encoded(weight, kind, seed + 100 * layer + index)
            yield f"blk.{layer}.{name}.weight", blocks, kind


def add_sizes(writer: gguf.GGUFWriter, config: dict) -> None:
    """Write the model's sizes from a config.json of the older form."""
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(head_size)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> None:
    """Write a folder's tokenizer: byte-level BPE with merges, or SPM with scores."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    specials = {entry["content"] for entry in tokenizer["added_tokens"]}
    types = [gguf.TokenType.CONTROL if t in specials else gguf.TokenType.NORMAL for t in tokens]
    spm = bool(model["byte_fallback"])
    writer.add_tokenizer_model("llama" if spm else "gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    if spm:
        byte_rows = [row for row, token in enumerate(tokens) if token.startswith("<0x")]
        for row in byte_rows:
            types[row] = gguf.TokenType.BYTE
        types[tokens.index("<unk>")] = gguf.TokenType.UNKNOWN
        first = byte_rows[-1] + 1
        writer.add_token_scores([float(min(0, first - row)) for row in range(len(tokens))])
        writer.add_unk_token_id(tokens.index("<unk>"))
    else:
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_token_types(types)
    if settings["bos_token"] is not None:
        writer.add_bos_token_id(tokens.index(settings["bos_token"]))
    writer.add_eos_token_id(tokens.index(settings["eos_token"]))
    writer.add_add_bos_token(settings["bos_token"] is not None)
    writer.add_chat_template(settings["chat_template"])


def write_gguf(name: str, architecture, config: dict, folder: Path, pre: str, tensors) -> Path:
    """Write one file from (name, array, type) triples; the tokenizer comes from a tiny folder."""
    path = FIXTURES / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(f"tiny {name}")
    add_sizes(writer, config)
    add_tokenizer(writer, folder, pre)
    for tensor_name, array, kind in tensors:
        plain = kind in (Kind.F32, Kind.F16)
        writer.add_tensor(tensor_name, array, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rope_factors(config: dict) -> np.ndarray:
    """Frequency divisors of Llama 3.1's rope scaling, float32 [head_size / 2]."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), torch.device("cpu"))
    size = 2 * scaled.numel()
    plain = 1.0 / config["rope_theta"] ** (np.arange(0, size, 2) / size)
    return (plain / scaled.numpy()).astype(np.float32)


def folder_tensors(name: str, config: dict):
    """Yield a checkpoint folder's tensors under GGUF names: matrices BF16, vectors F32."""
    weights = {}
    for file in sorted((FIXTURES / name).glob("*.safetensors")):
        weights |= load_file(file)
    names = gguf.get_tensor_name_map(FOLDER_TYPES[name], config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for key, weight in weights.items():
        array = weight.to(torch.float32).numpy()
        head_count = heads.get(key.split(".")[-2])
        if name == "llama31" and head_count is not None:
            paired = array.reshape(head_count, 2, -1, array.shape[1]).swapaxes(1, 2)
            array = np.ascontiguousarray(paired.reshape(array.shape))
        kind = Kind.BF16 if array.ndim == 2 else Kind.F32
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        yield target, gguf.quants.quantize(array, kind), kind
    if name == "llama31":
        yield ROPE_FREQS, rope_factors(config), Kind.F32


def llama_cpp_logits(path: Path, token_ids: list[int]) -> np.ndarray:
    """Logits of every position by llama.cpp with a float32 cache and no flash attention."""
    import llama_cpp

    settings = {"type_k": 0, "type_v": 0, "flash_attn": False, "logits_all": True}
    model = llama_cpp.Llama(
        str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False, **settings
    )
    model.eval(token_ids)
    return np.array(model.scores[: len(token_ids)])


def check_with_llama_cpp(path: Path, arrays) -> None:
    """Print llama.cpp's largest difference on the long prompt and bound it loosely.

    llama.cpp rounds activations to 8 bits before products with quantised weights.
    """
    logits = llama_cpp_logits(path, arrays["prompt_long"].tolist())
    difference = np.abs(logits - arrays["logits_long"])
    spread = arrays["logits_long"].std()
    print(path.name, f"llama.cpp max {difference.max():.4f} mean {difference.mean():.4f} of",
          f"deviation {spread:.2f}", flush=True)  # fmt: skip
    assert difference.mean() < 0.05 * spread


def record_tokens(path: Path, folder: Path) -> None:
    """NAME.tokens.json: llama.cpp's ids, and those of the folder's tokenizer where they differ."""
    tokenizer = LlamaCppTokenizer(path)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = [token.content for token in library.get_added_tokens_decoder().values()]
    texts = tricky_strings() + [f"a {token} b{token}{token}\n1" for token in specials]
    entries = []
    for text in texts:
        entry = {"text": text, "token_ids": tokenizer.encode(text)}
        ids = library.encode(text, add_special_tokens=False).ids
        if ids != entry["token_ids"]:
            entry["tokenizers_ids"] = ids
        entries.append(entry)
    different = [entry["text"] for entry in entries if "tokenizers_ids" in entry]
    print(path.name, len(different), "of", len(entries), "tokenised differently", different[:12])
    write(path.with_suffix(".tokens.json"), "texts", entries)


def config_of(name: str) -> dict:
    """config.json of a tiny folder."""
    return json.loads((FIXTURES / name / "config.json").read_text(encoding="utf-8"))


def write_random(name: str, source: str, pre: str, sizes: dict, head_types, types) -> None:
    """One random llama file with a folder's tokenizer, its expectations and tokens."""
    seed = 40 + len(name)
    config = config_of("llama_linear") | sizes
    tensors = random_llama(
        sizes["hidden_size"], sizes["intermediate_size"], sizes["num_attention_heads"],
        sizes["num_key_value_heads"], types, head_types, seed,
    )  # fmt: skip
    architecture = gguf.MODEL_ARCH.LLAMA
    path = write_gguf(name, architecture, config, FIXTURES / source, pre, tensors)
    arrays = expected(name, load_gguf(path), load_gguf(path, torch.float64), seed)
    np.savez_compressed(path.with_suffix(".expected.npz"), **arrays)
    check_with_llama_cpp(path, arrays)
    record_tokens(path, FIXTURES / source)


def write_from_folder(name: str, pre: str) -> None:
    """The GGUF form of one tiny folder, checked against the folder's own expectations."""
    config = config_of(name)
    tensors = folder_tensors(name, config)
    path = write_gguf(name, FOLDER_TYPES[name], config, FIXTURES / name, pre, tensors)
    check_with_llama_cpp(path, np.load(FIXTURES / name / "expected.npz"))
    if name != "qwen3":
        record_tokens(path, FIXTURES / name)


def main() -> int:
    torch.set_num_threads(1)
    wide = {"hidden_size": 256, "intermediate_size": 256}
    wide |= {"num_attention_heads": 4, "num_key_value_heads": 1}
    heads = {"token_embd": (Kind.Q8_0, 0.25), "output": (Kind.Q6_K, 0.08)}
    write_random("all_types", "llama_linear", "llama-bpe", wide, heads, LAYER_TYPES)
    narrow = {"hidden_size": 64, "intermediate_size": 96}
    narrow |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    write_random("spm", "llama2", "default", narrow, {"token_embd": (Kind.F16, 0.2)}, SPM_TYPES)
    for name, pre in (("llama31", "llama-bpe"), ("qwen2", "qwen2"), ("qwen3", "qwen2")):
        write_from_folder(name, pre)
    return 0


if __name__ == "__main__":
    sys.exit(main())

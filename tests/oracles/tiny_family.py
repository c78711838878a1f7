"""Write tiny random checkpoints of each family member and what transformers computes with them.

    python tests/oracles/tiny_family.py [NAME ...]

Writes tests/fixtures/tiny/NAME/: a Hugging Face folder, expected.npz and chat.json. The folder is
written first and then read back by transformers, so its files alone determine what is expected.
"""

import argparse
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from greedy import all_logits, greedy
from safetensors.torch import save_file
from tiny_specs import Spec, all_specs
from tiny_tokenizers import byte_fallback, byte_level
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"
PROMPT_LENGTHS = {"short": 5, "long": 120}
GREEDY_COUNT = 24
MESSAGE_LISTS = [
    [{"role": "user", "content": "Hello, where is the reef?"}],
    [
        {"role": "user", "content": " Count: 1 22 333 "},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Café 日本 😀"},
    ],
]


def dump(path: Path, value) -> None:
    """Indented JSON with a newline at the end."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_text_files(folder: Path, spec: Spec) -> None:
    """config.json, generation_config.json, tokenizer.json and tokenizer_config.json."""
    dump(folder / "config.json", spec.config)
    dump(folder / "generation_config.json", spec.generation)
    bos = spec.bos if spec.adds_bos else None
    if spec.tokenizer == "byte_fallback":
        tokenizer = byte_fallback(spec.specials, bos)
    else:
        tokenizer = byte_level(spec.tokenizer, spec.specials, bos)
    tokenizer.save(str(folder / "tokenizer.json"))
    entries = {
        str(tokenizer.token_to_id(token)): {"content": token, "special": True}
        for token in spec.specials
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": entries}
    settings |= {"bos_token": spec.bos, "eos_token": spec.eos, "chat_template": spec.template}
    settings |= {"model_max_length": 512, "clean_up_tokenization_spaces": False}
    if spec.tokenizer == "byte_fallback":
        settings["unk_token"] = "<unk>"
    dump(folder / "tokenizer_config.json", settings)


def deviation(name: str, weight: torch.Tensor) -> float:
    """Standard deviation of one parameter's random values: larger than any default."""
    if "embed" in name or name.startswith("wte"):
        return 0.25
    if name.startswith("wpe"):
        return 0.2
    if name.endswith("bias"):
        return 0.3
    return 1.3 / math.sqrt(weight.shape[0 if "c_" in name else -1])


def random_weights(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Random parameters for the folder's config.json, in its storage type and published names."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config)
    generator = np.random.default_rng(seed)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    weights = {}
    for name, weight in model.state_dict().items():
        name = name.removeprefix("transformer.")
        if name in tied:
            continue
        values = generator.standard_normal(tuple(weight.shape))
        if weight.dim() == 1 and not name.endswith("bias"):
            values = 1.0 + 0.25 * values
        else:
            values = values * deviation(name, weight)
        weights[name] = torch.from_numpy(values.astype(np.float32)).to(config.dtype)
    return weights


def write_weights(folder: Path, weights: dict[str, torch.Tensor], shard_count: int) -> None:
    """One model.safetensors, or shards with their index."""
    if shard_count == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    index: dict[str, str] = {}
    for shard in range(shard_count):
        file = f"model-{shard + 1:05d}-of-{shard_count:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::shard_count]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    dump(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))},
    )


def load(folder: Path, dtype: torch.dtype):
    """The folder's model in evaluation mode with eager attention; every weight must be found."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.eval()


def expected(name: str, model, wide, seed: int) -> dict[str, np.ndarray]:
    """Prompts, logits of every position, and greedy tokens with their top-2 logits.

    `wide` is the same model in float64: it tells how far float32 arithmetic is from exact.
    """
    generator = np.random.default_rng(1000 + seed)
    arrays: dict[str, np.ndarray] = {}
    difference = 0.0
    for prompt_name, length in PROMPT_LENGTHS.items():
        prompt = generator.integers(5, model.config.vocab_size, length)
        logits = all_logits(model, prompt.tolist())
        result = greedy(model, prompt.tolist(), GREEDY_COUNT)
        exact = all_logits(wide, prompt.tolist())
        difference = max(difference, float(np.abs(exact - logits).max()))
        arrays[f"prompt_{prompt_name}"] = prompt.astype(np.int32)
        arrays[f"logits_{prompt_name}"] = logits.astype(np.float32)
        arrays[f"greedy_{prompt_name}"] = np.asarray(result["generated_ids"], dtype=np.int32)
        arrays[f"top2_ids_{prompt_name}"] = np.asarray(result["top2_ids"], dtype=np.int32)
        arrays[f"top2_logits_{prompt_name}"] = np.asarray(result["top2_logits"], dtype=np.float32)
    arrays["float64_difference"] = np.float64(difference)
    report(model, name, arrays)
    return arrays


def report(model, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Print whether the random model is a useful test: spread, sharpness, near ties."""
    with torch.inference_mode():
        tokens = torch.tensor([arrays["prompt_long"].tolist()])
        attentions = model(input_ids=tokens, output_attentions=True).attentions
    sharpness = [float(layer[0, :, 60:].max(dim=-1).values.mean()) for layer in attentions]
    top2 = np.concatenate([arrays["top2_logits_short"], arrays["top2_logits_long"]])
    print(
        f"{name:14s} logits std {arrays['logits_long'].std():.2f}",
        "attention max", [round(value, 2) for value in sharpness],
        f"gap min {(top2[:, 0] - top2[:, 1]).min():.4f}",
        f"float64 {float(arrays['float64_difference']):.1e}",
        "distinct", len(set(arrays["greedy_long"].tolist())),
        flush=True,
    )  # fmt: skip


def chats(folder: Path) -> list[dict]:
    """Renders and token ids of two message lists by transformers' tokenizer of the folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    entries = []
    for messages in MESSAGE_LISTS:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        entries.append({"messages": messages, "text": text, "token_ids": token_ids})
    return entries


def write_fixture(name: str, spec: Spec) -> None:
    """The whole folder of one checkpoint, made anew."""
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_text_files(folder, spec)
    write_weights(folder, random_weights(folder, spec.seed), spec.shard_count)
    models = load(folder, torch.float32), load(folder, torch.float64)
    np.savez_compressed(folder / "expected.npz", **expected(name, *models, spec.seed))
    dump(folder / "chat.json", chats(folder))
    for file in folder.glob("*.safetensors"):
        assert file.stat().st_size < 500_000, (file, file.stat().st_size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="checkpoints to write (all)")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    specs = all_specs()
    for name in names or specs:
        write_fixture(name, specs[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())

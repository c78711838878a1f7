"""GGUF files. Format and key names: ggml's docs/gguf.md and the constants of the `gguf` library."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from helios_dod.ignition.checkpoints.checkpoint import (
    BLOCKS,
    Checkpoint,
    GenerationDefaults,
    ModelConfig,
    Rotary,
    RotaryScaling,
    Tensor,
)
from helios_dod.ignition.checkpoints.gguf_tokenizer import text_data
from helios_dod.ignition.prepared import PreparationError

TOP_NAMES = {
    "token_embd": "embedding",
    "position_embd": "positions",
    "output_norm": "final_norm",
    "output": "head",
    "rope_freqs": "rotary_factors",
}
LAYER_NAMES = {
    "attn_norm": "attention_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_qkv": "query_key_value",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "attn_output": "attention_output",
    "ffn_norm": "feed_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
# Architectures whose query and key rows the converter reordered: neighbours rotate together.
INTERLEAVED = {"llama"}


class Fields:
    """Metadata of one file, by key; `{arch}` keys through `model`."""

    def __init__(self, path: Path, reader: gguf.GGUFReader) -> None:
        self.path = path
        self.reader = reader
        self.architecture = str(self.required("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a key, or `default`."""
        found = self.reader.get_field(key)
        return default if found is None else found.contents()

    def required(self, key: str) -> Any:
        """Value of a key that must be there."""
        value = self.get(key)
        if value is None:
            raise PreparationError(f"{self.path}: missing metadata {key}")
        return value

    def model(self, key: str, default: Any = None) -> Any:
        """Value of `ARCHITECTURE.key`, or `default`."""
        return self.get(f"{self.architecture}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        """An integer of `ARCHITECTURE.key`; per-layer lists must have one value throughout."""
        value = self.model(key, default)
        if value is None:
            raise PreparationError(f"{self.path}: missing metadata {self.architecture}.{key}")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise PreparationError(
                    f"{self.path}: metadata {self.architecture}.{key} differs by layer: {value}"
                )
            value = value[0]
        return int(value)


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file; tensors stay memory-mapped. Unknown element types are refused by name."""
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, KeyError, IndexError) as error:
        raise PreparationError(
            f"{path}: not a GGUF file, or damaged, or not all of it: {error}") from error
    fields = Fields(path, reader)
    if int(fields.get("split.count", 0)) > 1:
        raise PreparationError(f"{path}: one part of a split file; merge the parts first")
    tensors = {canonical(found.name): tensor(path, found) for found in reader.tensors}
    return Checkpoint(
        name=path.stem,
        config=config(fields, tensors),
        tensors=tensors,
        text=text_data(path, fields.get),
        generation=generation(fields.get),
        license_text=str(fields.get("general.license", "")),
    )


def canonical(name: str) -> str:
    """Canonical name of a GGUF tensor; unknown names stay as they are."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match:
        return name
    layer, part, leaf = match.groups()
    if layer is None:
        return f"{TOP_NAMES[part]}.{leaf}" if part in TOP_NAMES else name
    return f"layers.{layer}.{LAYER_NAMES[part]}.{leaf}" if part in LAYER_NAMES else name


def tensor(path: Path, found: gguf.ReaderTensor) -> Tensor:
    """A tensor over the mapped file."""
    kind = found.tensor_type.name
    if kind not in BLOCKS:
        raise PreparationError(
            f"{path}: tensor {found.name}: expected a type of {', '.join(BLOCKS)}, got {kind}"
        )
    shape = tuple(int(extent) for extent in reversed(found.shape))
    data = found.data
    return Tensor(found.name, kind, shape, lambda: np.asarray(data).reshape(-1).view(np.uint8))


def config(fields: Fields, tensors: dict[str, Tensor]) -> ModelConfig:
    """Sizes from metadata; the vocabulary is what the embedding has rows for."""
    heads = fields.size("attention.head_count")
    hidden = fields.size("embedding_length")
    head = fields.size("attention.key_length", hidden // heads)
    value = fields.size("attention.value_length", head)
    if value != head:
        raise PreparationError(
            f"{fields.path}: value heads of {value} columns, key heads of {head}: not supported"
        )
    embedding = tensors.get("embedding.weight")
    if embedding is None:
        raise PreparationError(f"{fields.path}: missing tensor token_embd.weight")
    epsilon = fields.model("attention.layer_norm_rms_epsilon") or fields.model(
        "attention.layer_norm_epsilon"
    )
    if epsilon is None:
        raise PreparationError(
            f"{fields.path}: missing metadata {fields.architecture}.attention."
            "layer_norm_rms_epsilon"
        )
    layers = fields.size("block_count")
    window = fields.size("attention.sliding_window", 0)
    return ModelConfig(
        architecture=fields.architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_heads=fields.size("attention.head_count_kv", heads),
        head=head,
        intermediate=fields.size("feed_forward_length"),
        vocabulary=embedding.shape[0],
        context=fields.size("context_length"),
        norm_epsilon=decimal(epsilon),
        rotary=None if "positions.weight" in tensors else rotary(fields, head, tensors),
        windows=(window,) * layers,
        tied="head.weight" not in tensors,
    )


def decimal(value: float) -> float:
    """The shortest decimal whose float32 is `value`: what was written before conversion."""
    return float(np.format_float_positional(np.float32(value)))


def rotary(fields: Fields, head: int, tensors: dict[str, Tensor]) -> Rotary:
    """Rotary settings. YaRN's magnitude is attn_factor * (1 + 0.1 ln factor), as in ggml's rope."""
    older = fields.model("rope.scale_linear")  # before rope.scaling.type
    scaling = str(fields.model("rope.scaling.type", "linear" if older else "none"))
    factor = float(fields.model("rope.scaling.factor", older or 1.0))
    kinds = {"none": RotaryScaling.NONE, "linear": RotaryScaling.LINEAR, "yarn": RotaryScaling.YARN}
    if scaling not in kinds:
        raise PreparationError(
            f"{fields.path}: metadata {fields.architecture}.rope.scaling.type: "
            f"expected one of {', '.join(kinds)}, got {scaling}"
        )
    kind = kinds[scaling] if factor != 1.0 else RotaryScaling.NONE
    if "rotary_factors.weight" in tensors:
        if kind is not RotaryScaling.NONE:
            raise PreparationError(
                f"{fields.path}: tensor rope_freqs beside rope scaling {scaling}"
            )
        kind = RotaryScaling.FACTORS
    magnitude = 1.0
    if kind is RotaryScaling.YARN:
        if fields.model("rope.scaling.yarn_log_multiplier"):
            raise PreparationError(
                f"{fields.path}: metadata {fields.architecture}.rope.scaling.yarn_log_multiplier: "
                "expected none"
            )
        magnitude = float(fields.model("rope.scaling.attn_factor", 1.0)) * (
            1.0 + 0.1 * math.log(factor)
        )
    return Rotary(
        base=decimal(fields.model("rope.freq_base", 10000.0)),
        dimension=fields.size("rope.dimension_count", head),
        interleaved=fields.architecture in INTERLEAVED,
        scaling=kind,
        factor=factor,
        original_context=fields.size(
            "rope.scaling.original_context_length", fields.size("context_length")
        ),
        beta_fast=float(fields.model("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(fields.model("rope.scaling.yarn_beta_slow", 1.0)),
        magnitude=magnitude,
    )


def generation(get: Callable[..., Any]) -> GenerationDefaults:
    """Sampling recommendations of the newer `general.sampling` keys."""
    floats = {
        name: get(f"general.sampling.{key}")
        for name, key in (
            ("temperature", "temp"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("repetition_penalty", "penalty_repeat"),
        )
    }
    top_k = get("general.sampling.top_k")
    values = {name: None if value is None else decimal(value) for name, value in floats.items()}
    return GenerationDefaults(top_k=None if top_k is None else int(top_k), **values)

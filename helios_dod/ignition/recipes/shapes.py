"""Shapes of published models, for cores whose weights are made where they are used. Data, and the
checkpoint without values that each stands for."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from helios_dod.frontend.token_text import byte_of_character
from helios_dod.ignition.checkpoints.checkpoint import (
    BLOCKS,
    Checkpoint,
    ModelConfig,
    Rotary,
    RotaryScaling,
    Tensor,
    TextData,
)
from helios_dod.ignition.prepared import PreparationError, Prepared

END = "<|end|>"
TEMPLATE = ("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
            "assistant: ")


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    intermediate: int
    vocabulary: int
    tied: bool
    context: int
    rotary: Rotary


def _banded(head: int, factor: float) -> Rotary:
    """Rotary positions of a model that was trained at 8,192 tokens first."""
    return Rotary(500_000.0, head, scaling=RotaryScaling.BANDED, factor=factor,
                  original_context=8192)


SHAPES = {
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 128, 14_336, 128_256, False, 131_072, _banded(128, 8.0)),
    "llama-3.2-1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256, True, 131_072, _banded(64, 32.0)),
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 1536, 49_152, True, 8192, Rotary(100_000.0, 64)),
}


def checkpoint_of(name: str) -> Checkpoint:
    """A checkpoint of a shape: norms of ones, matrices that are zero. Raises PreparationError."""
    if name not in SHAPES:
        raise PreparationError(
            f"random weights: expected one of {', '.join(SHAPES)}, got {name}")
    shape = SHAPES[name]
    config = ModelConfig(
        architecture="llama", layers=shape.layers, hidden=shape.hidden, heads=shape.heads,
        key_heads=shape.key_heads, head=shape.head, intermediate=shape.intermediate,
        vocabulary=shape.vocabulary, context=shape.context, norm_epsilon=1e-5,
        rotary=shape.rotary, windows=(0,) * shape.layers, tied=shape.tied)
    made = _tensors(shape)
    return Checkpoint(f"{name}-random", config, {tensor.name: tensor for tensor in made},
                      _text(shape.vocabulary))


def _tensors(shape: Shape) -> list[Tensor]:
    query, key = shape.heads * shape.head, shape.key_heads * shape.head
    sizes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (shape.vocabulary, shape.hidden), "final_norm.weight": (shape.hidden,)}
    if not shape.tied:
        sizes["head.weight"] = (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        for part, size in (
                ("attention_norm", (shape.hidden,)), ("feed_norm", (shape.hidden,)),
                ("query", (query, shape.hidden)), ("key", (key, shape.hidden)),
                ("value", (key, shape.hidden)), ("attention_output", (shape.hidden, query)),
                ("gate", (shape.intermediate, shape.hidden)),
                ("up", (shape.intermediate, shape.hidden)),
                ("down", (shape.hidden, shape.intermediate))):
            sizes[f"layers.{layer}.{part}.weight"] = size
    return [Tensor(name, "BF16" if len(size) == 2 else "F32", size, _values(size))
            for name, size in sizes.items()]


def _values(size: tuple[int, ...]) -> Callable[[], np.ndarray]:
    if len(size) == 1:
        return lambda: np.ones(size, np.float32).view(np.uint8)
    return lambda: np.zeros(int(np.prod(size, dtype=np.int64)) * BLOCKS["BF16"][1], np.uint8)


def _text(vocabulary: int) -> TextData:
    """A tokenizer of bytes; every other token is its own number, and the last ends a text."""
    tokens = dict(byte_of_character())
    tokens |= {f"<{number}>": number for number in range(256, vocabulary - 1)}
    document: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{
            "id": vocabulary - 1, "content": END, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": tokens, "merges": []},
    }
    return TextData(json.dumps(document).encode(), TEMPLATE, (vocabulary - 1,), None, False,
                    {"eos_token": END})


def without_values(prepared: Prepared) -> Prepared:
    """The core with matrices that are zero without being read: zeros pass through no packing."""
    matrices = {buffer.name for buffer in prepared.manifest.buffers if buffer.resource_nbytes
                and len(buffer.shape) == 2}
    parts = tuple(
        replace(part, produce=_zeros(part.nbytes)) if part.name in matrices else part
        for part in prepared.weights.parts)
    return replace(prepared, weights=replace(prepared.weights, parts=parts))


def _zeros(nbytes: int) -> Callable[[], np.ndarray]:
    return lambda: np.zeros(nbytes, np.uint8)

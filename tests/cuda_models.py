"""Small decoders with random weights, prepared for the host and for CUDA."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from plain_device import E4M3

from helios_dod.ignition.checkpoints.checkpoint import (
    Checkpoint,
    ModelConfig,
    Rotary,
    Tensor,
    TextData,
)
from helios_dod.ignition.cuda.prepare import lower
from helios_dod.ignition.cuda.weights import Quantised, in_e4m3, row_major
from helios_dod.ignition.floats import to_bf16
from helios_dod.ignition.preparation.builder import Builder
from helios_dod.ignition.preparation.contract import declare_shared
from helios_dod.ignition.preparation.options import PAGE_TOKENS, Options
from helios_dod.ignition.preparation.programs import TextModel, TextPrograms
from helios_dod.ignition.prepared import Weights
from helios_dod.ignition.recipes.decoder import Decoder
from helios_dod.ignition.recipes.gpt2 import Gpt2


def shape(**fields: Any) -> ModelConfig:
    """A configuration with the usual choices filled in."""
    layers = fields["layers"]
    chosen = {"architecture": "llama", "norm_epsilon": 1e-5, "windows": (0,) * layers,
              "context": 8192, "rotary": Rotary(10_000.0, 64)}
    return ModelConfig(**(chosen | fields))


SMALL_SHAPES: dict[str, ModelConfig] = {
    "small": shape(layers=3, hidden=576, heads=9, key_heads=3, head=64, intermediate=1536,
                   vocabulary=49_152, tied=True, context=8192, rotary=Rotary(10_000.0, 64)),
    "windowed": shape(layers=3, hidden=512, heads=8, key_heads=2, head=64, intermediate=1024,
                      vocabulary=5000, tied=True, context=8192, rotary=Rotary(10_000.0, 64),
                      windows=(0, 40, 0)),
    "layered": shape(architecture="gpt2", layers=2, hidden=256, heads=4, key_heads=4, head=64,
                     intermediate=512, vocabulary=5000, tied=True, context=4096, rotary=None),
}


@dataclass
class Model:
    """What an executor and a harness need of a core."""

    manifest: Any
    weights: Weights
    contract: Any  # model.graphs, model.cache.page_tokens, context_tokens
    vectors: dict[int, np.ndarray] | None = None  # those of random weights, where saved


def contract_of(graphs: list[Any], context: int) -> Any:
    """The few fields of a serving contract that a harness reads."""
    return SimpleNamespace(
        model=SimpleNamespace(graphs=graphs, cache=SimpleNamespace(page_tokens=PAGE_TOKENS)),
        context_tokens=context)


def random_checkpoint(config: ModelConfig, seed: int = 0) -> Checkpoint:
    """Matrices of bf16 noise, norms of ones; nothing is made before it is read."""
    tensors: dict[str, Tensor] = {}
    layered = config.architecture == "gpt2"

    def add(name: str, *shape_: int) -> None:
        order = len(tensors)
        if layered and name.startswith(("layers.", "final_norm.")) and name.endswith(".weight"):
            bias = name.removesuffix("weight") + "bias"
            tensors[bias] = Tensor(bias, "F32", shape_[:1], lambda: np.random.default_rng(
                (seed, order)).standard_normal(shape_[:1], np.float32).view(np.uint8))

        def matrix() -> np.ndarray:
            noise = np.random.default_rng((seed, order)).standard_normal(shape_, np.float32)
            return to_bf16(noise * np.float32(0.04)).reshape(-1).view(np.uint8)

        def vector() -> np.ndarray:
            return np.ones(shape_, np.float32).view(np.uint8)

        read: Callable[[], np.ndarray] = matrix if len(shape_) == 2 else vector
        tensors[name] = Tensor(name, "BF16" if len(shape_) == 2 else "F32", shape_, read)

    c = config
    add("embedding.weight", c.vocabulary, c.hidden)
    add("final_norm.weight", c.hidden)
    if not c.tied:
        add("head.weight", c.vocabulary, c.hidden)
    if layered:
        add("positions.weight", c.context, c.hidden)
    for i in range(c.layers):
        at = f"layers.{i}."
        if layered:
            for norm in ("attention_norm", "feed_norm"):
                add(f"{at}{norm}.weight", c.hidden)
            add(at + "query_key_value.weight", 3 * c.hidden, c.hidden)
            add(at + "attention_output.weight", c.hidden, c.hidden)
            add(at + "up.weight", c.intermediate, c.hidden)
            add(at + "down.weight", c.hidden, c.intermediate)
            continue
        add(at + "attention_norm.weight", c.hidden)
        add(at + "feed_norm.weight", c.hidden)
        add(at + "query.weight", c.heads * c.head, c.hidden)
        for name in ("key", "value"):
            add(f"{at}{name}.weight", c.key_heads * c.head, c.hidden)
        add(at + "attention_output.weight", c.hidden, c.heads * c.head)
        add(at + "gate.weight", c.intermediate, c.hidden)
        add(at + "up.weight", c.intermediate, c.hidden)
        add(at + "down.weight", c.hidden, c.intermediate)
    return Checkpoint("random", config, tensors, TextData(b"", "", (), None, False, {}))


def rounded(checkpoint: Checkpoint, head: bool = False) -> Checkpoint:
    """The checkpoint with the matrices of its layers as e4m3 keeps them, F32; head: its head too,
    which of a tied model is a second matrix beside the embedding then."""
    def of(tensor: Tensor) -> Tensor:
        matrix = Quantised(*tensor.shape, tensor.read)
        bits = matrix.bits().reshape(tensor.shape)
        values = E4M3[bits] * matrix.factors().view(np.float32)[:, None]
        return replace(tensor, kind="F32", read=lambda: values.reshape(-1).view(np.uint8))

    tensors = dict(checkpoint.tensors)
    if head and checkpoint.config.tied:
        tensors["head.weight"] = replace(tensors["embedding.weight"], name="head.weight")
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, tied=False))
    return replace(checkpoint, tensors={
        name: of(tensor) if len(tensor.shape) == 2 and (
            name.startswith("layers.") or (head and name == "head.weight")) else tensor
        for name, tensor in tensors.items()})


def build(checkpoint: Checkpoint, options: Options, cuda: bool, weight_type: str = "bf16"
          ) -> Model:
    """The decoder's programs for the host, or for CUDA."""
    builder = Builder()
    shared = declare_shared(builder, options, checkpoint.config.vocabulary)
    family = Gpt2 if checkpoint.config.architecture == "gpt2" else Decoder
    decoder = family(builder, shared, checkpoint, options)
    text = TextModel(decoder.buffers.logits, decoder.embed, decoder.run_layers, decoder.head)
    TextPrograms(builder, shared, text, options).emit()
    weights, graphs = builder.weights(), builder.graphs
    if cuda:
        weights = row_major(builder.manifest, weights)
        if weight_type != "bf16":
            weights = in_e4m3(builder.manifest, weights, head=weight_type == "fp8-head")
        graphs = lower(builder.manifest, graphs, PAGE_TOKENS)
    context = options.context_of(checkpoint.config.context)
    return Model(builder.manifest, weights, contract_of(graphs, context))

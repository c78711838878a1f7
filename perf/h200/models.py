"""Shapes of known models with random weights, for measurements."""

import numpy as np
from cuda_models import SMALL_SHAPES, Model, build, contract_of, random_checkpoint, shape

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.cuda.upload import RandomWeights, eighths_of
from helios_dod.ignition.checkpoints.checkpoint import ModelConfig, Rotary, RotaryScaling
from helios_dod.ignition.cuda.weights import EMPTY_FACTOR

__all__ = ["SHAPES", "Model", "build", "contract_of", "random_checkpoint", "random_weights"]


def rotary(head: int, factor: float) -> Rotary:
    """Banded scaling of a trained context of 8,192 tokens."""
    return Rotary(500_000.0, head, scaling=RotaryScaling.BANDED, factor=factor,
                  original_context=8192)


SHAPES: dict[str, ModelConfig] = SMALL_SHAPES | {
    "8b": shape(layers=32, hidden=4096, heads=32, key_heads=8, head=128, intermediate=14_336,
                vocabulary=128_256, tied=False, context=131_072, rotary=rotary(128, 8.0)),
    "1b": shape(layers=16, hidden=2048, heads=32, key_heads=8, head=64, intermediate=8192,
                vocabulary=128_256, tied=True, context=131_072, rotary=rotary(64, 32.0)),
}


def random_weights(model: Model) -> RandomWeights:
    """The model's weights made on the device; vectors as they are, factors of e4m3 as of zeros."""
    buffers = {buffer.name: buffer for buffer in model.manifest.buffers
               if buffer.kind == wire.WEIGHT and buffer.dtype == wire.F32}
    made = {part.offset: np.full(part.nbytes // 4, EMPTY_FACTOR, np.float32).view(np.uint8)
            if part.name.endswith(".scale") else part.produce()
            for part in model.weights.parts if part.name in buffers}
    return RandomWeights(model.weights.nbytes, made, eighths_of(model.manifest.buffers))

"""Shapes of known models with random weights, for measurements."""

from cuda_models import SMALL_SHAPES, Model, build, contract_of, random_checkpoint, shape

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.cuda.upload import RandomWeights
from helios_dod.ignition.checkpoints.checkpoint import ModelConfig, Rotary, RotaryScaling

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
    """The model's weights made on the device; vectors as they are."""
    vectors = {buffer.resource_offset for buffer in model.manifest.buffers
               if buffer.kind == wire.WEIGHT and buffer.dtype == wire.F32}
    made = {part.offset: part.produce() for part in model.weights.parts if part.offset in vectors}
    return RandomWeights(model.weights.nbytes, made)

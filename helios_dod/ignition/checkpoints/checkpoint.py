"""What a checkpoint is, whatever form it was stored in: sizes, tensors by name, text data.

Canonical tensor names: `embedding.weight`, `positions.weight`, `final_norm.weight`, `head.weight`,
`rotary_factors.weight`, and `layers.N.PART.weight` or `.bias`, where PART is attention_norm, query,
key, value, query_key_value, query_norm, key_norm, attention_output, feed_norm, gate, up or down.
Matrices are [outputs, inputs].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from helios_dod.ignition.prepared import PreparationError

BLOCKS = {  # element type -> (weights of one block, bytes of one block); ggml's block layouts
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}


def storage_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; its last axis must be whole blocks."""
    weights, nbytes = BLOCKS[kind]
    columns = shape[-1] if shape else 1
    if columns % weights:
        raise PreparationError(
            f"{columns} columns of type {kind}: expected a multiple of {weights}"
        )
    return int(np.prod(shape, dtype=np.int64)) // weights * nbytes


@dataclass(frozen=True)
class Tensor:
    """One tensor; `read` returns its raw bytes, mapped from the file where possible."""

    name: str  # as the file names it
    kind: str  # a key of BLOCKS
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def data(self) -> np.ndarray:
        """Raw bytes, uint8 [storage_bytes(kind, shape)]."""
        data = self.read()
        assert data.dtype == np.uint8 and data.size == storage_bytes(self.kind, self.shape), (
            self.name
        )
        return data

    def floats(self) -> np.ndarray:
        """Values of a plain tensor as float32, in `shape`."""
        if self.kind == "F32":
            values = self.data.view(np.float32)
        elif self.kind == "F16":
            values = self.data.view(np.float16).astype(np.float32)
        elif self.kind == "BF16":
            values = (self.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            raise PreparationError(
                f"tensor {self.name}: expected F32, F16 or BF16, got {self.kind}"
            )
        return values.reshape(self.shape)


class RotaryScaling(Enum):
    """How rotary frequencies are stretched beyond the context of a model's first training."""

    NONE = "none"
    LINEAR = "linear"  # every frequency divided by `factor`
    BANDED = "banded"  # low frequencies divided, high ones kept, a smooth band between
    YARN = "yarn"  # a ramp over dimensions between both
    FACTORS = "factors"  # divided by the tensor rotary_factors


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of queries and keys."""

    base: float
    dimension: int  # columns of a head that are rotated
    interleaved: bool = False  # pairs (2i, 2i + 1) instead of (i, i + dimension / 2)
    scaling: RotaryScaling = RotaryScaling.NONE
    factor: float = 1.0
    original_context: int = 0  # BANDED and YARN
    low_factor: float = 1.0  # BANDED
    high_factor: float = 4.0  # BANDED
    beta_fast: float = 32.0  # YARN
    beta_slow: float = 1.0  # YARN
    truncate: bool = True  # YARN: the ramp begins and ends at whole dimensions
    magnitude: float = 1.0  # factor of cosine and sine


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and choices of a decoder. `windows`: attention window of each layer, 0 for none."""

    architecture: str  # as the checkpoint names it
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head: int  # columns of one head
    intermediate: int
    vocabulary: int  # rows of the embedding
    context: int
    norm_epsilon: float
    rotary: Rotary | None
    windows: tuple[int, ...]
    tied: bool  # the head is the embedding
    activation: str | None = None  # as the checkpoint names it; None where it does not say

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "hidden",
            "heads",
            "key_heads",
            "head",
            "intermediate",
            "vocabulary",
            "context",
        ):
            value = getattr(self, name)
            if value < 1:
                raise PreparationError(f"config {name}: expected at least 1, got {value}")
        if self.heads % self.key_heads:
            raise PreparationError(
                f"config key_heads: expected a divisor of {self.heads}, got {self.key_heads}"
            )
        if self.rotary and not 0 < self.rotary.dimension <= self.head:
            raise PreparationError(
                f"config rotary dimension: expected 2..{self.head}, got {self.rotary.dimension}"
            )
        assert len(self.windows) == self.layers


@dataclass(frozen=True)
class GenerationDefaults:
    """What the checkpoint recommends for sampling; None where it does not say."""

    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class TextData:
    """Tokenizer and template."""

    tokenizer_json: bytes  # `tokenizers` JSON
    chat_template: str  # Jinja source, empty where there is none
    eos: tuple[int, ...]  # ids that end generation
    bos: int | None
    add_bos: bool  # a completion prompt begins with bos
    template_tokens: Mapping[str, str]  # bos_token, eos_token ... -> text


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Tensors that no canonical name fits keep the file's own name."""

    name: str
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    text: TextData
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    license_text: str = ""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a canonical name; an error names what is missing or misshapen."""
        found = self.tensors.get(name)
        if found is None:
            raise PreparationError(f"checkpoint {self.name}: missing tensor {name}")
        if found.shape != shape:
            raise PreparationError(
                f"checkpoint {self.name}: tensor {found.name} ({name}): "
                f"expected shape {list(shape)}, got {list(found.shape)}"
            )
        return found

"""config.json of a Hugging Face folder. Keys are those of transformers' configuration classes."""

import math
from pathlib import Path
from typing import Any

from helios_dod.ignition.checkpoints.checkpoint import ModelConfig, Rotary, RotaryScaling, Tensor
from helios_dod.ignition.prepared import PreparationError

SCALINGS = {
    "default": RotaryScaling.NONE,
    "linear": RotaryScaling.LINEAR,
    "llama3": RotaryScaling.BANDED,
    "yarn": RotaryScaling.YARN,
}
WINDOWED, FULL = "sliding_attention", "full_attention"


class Entries:
    """A JSON object of one file, with errors that name file and field."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that is there and not null."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return default

    def number(self, *names: str, default: float | None = None) -> float:
        """A number; an error names the field that is missing or something else."""
        value = self.get(*names, default=default)
        if value is None:
            raise PreparationError(f"{self.path}: missing field {' or '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PreparationError(
                f"{self.path}: field {names[0]}: expected a number, got {value!r}"
            )
        return value

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number."""
        value = self.number(*names, default=default)
        if value != int(value):
            raise PreparationError(f"{self.path}: field {names[0]}: expected a size, got {value!r}")
        return int(value)


def model_config(entries: Entries, tensors: dict[str, Tensor]) -> ModelConfig:
    """Sizes and choices; keys of the older and of the newer form."""
    architecture = entries.get("model_type")
    if architecture is None:
        raise PreparationError(f"{entries.path}: missing field model_type")
    hidden = entries.size("hidden_size", "n_embd")
    heads = entries.size("num_attention_heads", "n_head")
    head = entries.size("head_dim", default=hidden // max(heads, 1))
    layers = entries.size("num_hidden_layers", "n_layer")
    learned = "positions.weight" in tensors
    return ModelConfig(
        architecture=str(architecture),
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_heads=entries.size("num_key_value_heads", default=heads),
        head=head,
        intermediate=entries.size("intermediate_size", "n_inner", default=4 * hidden),
        vocabulary=entries.size("vocab_size"),
        context=entries.size("max_position_embeddings", "n_positions"),
        norm_epsilon=entries.number("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
        rotary=None if learned else rotary(entries, head),
        windows=windows(entries, layers),
        tied=bool(entries.get("tie_word_embeddings", default=learned)),
        activation=entries.get("hidden_act", "activation_function"),
    )


def windows(entries: Entries, layers: int) -> tuple[int, ...]:
    """Attention window of each layer. `layer_types` says which have one; without it all have, from
    max_window_layers on where use_sliding_window is a choice."""
    if not entries.get("use_sliding_window", default=True):
        return (0,) * layers
    window = entries.size("sliding_window", default=0)
    kinds = entries.get("layer_types")
    if kinds is None:
        first = (
            entries.size("max_window_layers", default=0)
            if "use_sliding_window" in entries.values
            else 0
        )
        kinds = [WINDOWED if layer >= first else FULL for layer in range(layers)]
    if len(kinds) != layers:
        raise PreparationError(f"{entries.path}: layer_types: expected {layers}, got {len(kinds)}")
    unknown = sorted(set(kinds) - {WINDOWED, FULL})
    if unknown:
        raise PreparationError(
            f"{entries.path}: layer_types: expected {WINDOWED} or {FULL}, got {unknown[0]}"
        )
    return tuple(window if kind == WINDOWED else 0 for kind in kinds)


def rotary(entries: Entries, head: int) -> Rotary:
    """Rotary settings: `rope_parameters`, or in the older form `rope_theta` and `rope_scaling`."""
    older = entries.get("rope_scaling", default={})
    found = Entries(entries.path, entries.get("rope_parameters", default=older))
    base = float(found.number("rope_theta", default=entries.number("rope_theta", default=10000.0)))
    name = found.get("rope_type", "type", default="default")
    if name not in SCALINGS:
        raise PreparationError(
            f"{entries.path}: rope_type: expected one of {', '.join(SCALINGS)}, got {name}"
        )
    scaling = SCALINGS[name]
    share = float(
        found.number(
            "partial_rotary_factor", default=entries.number("partial_rotary_factor", default=1.0)
        )
    )
    context = entries.size("max_position_embeddings")
    factor = 1.0 if scaling is RotaryScaling.NONE else float(found.number("factor"))
    banded = scaling is RotaryScaling.BANDED
    return Rotary(
        base=base,
        dimension=int(head * share),
        scaling=scaling,
        factor=factor,
        original_context=found.size("original_max_position_embeddings", default=context),
        low_factor=float(found.number("low_freq_factor")) if banded else 1.0,
        high_factor=float(found.number("high_freq_factor")) if banded else 4.0,
        beta_fast=float(found.number("beta_fast", default=32.0)),
        beta_slow=float(found.number("beta_slow", default=1.0)),
        truncate=bool(found.get("truncate", default=True)),
        magnitude=yarn_magnitude(found, factor) if scaling is RotaryScaling.YARN else 1.0,
    )


def yarn_magnitude(found: Entries, factor: float) -> float:
    """Factor of cosine and sine: given, or 0.1 m ln(factor) + 1 as YaRN suggests, with mscale over
    mscale_all_dim as m where a checkpoint has both."""

    def suggested(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = found.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, all_dimensions = found.get("mscale"), found.get("mscale_all_dim")
    if mscale and all_dimensions:
        return suggested(float(mscale)) / suggested(float(all_dimensions))
    return suggested(1.0)

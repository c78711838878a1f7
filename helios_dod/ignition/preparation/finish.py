"""The last step of every text recipe: what was built, as a Prepared core."""

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.preparation.builder import Builder
from helios_dod.ignition.preparation.contract import serving_contract
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.prepared import PreparationError, Prepared
from helios_dod.ignition.tokenizer import token_bytes

ACTIVATIONS = {  # as configurations name them
    "silu": wire.SILU,
    "swish": wire.SILU,
    "relu": wire.RELU,
    "gelu": wire.GELU_ERF,
    "gelu_new": wire.GELU_TANH,
    "gelu_fast": wire.GELU_TANH,
    "gelu_pytorch_tanh": wire.GELU_TANH,
}


def activation(checkpoint: Checkpoint, default: str) -> wire.ActivationKind:
    """ActivationKind of the checkpoint's activation; unknown ones are refused by name."""
    name = checkpoint.config.activation or default
    if name not in ACTIVATIONS:
        raise PreparationError(
            f"checkpoint {checkpoint.name}: activation: expected one of {', '.join(ACTIVATIONS)}, "
            f"got {name}"
        )
    return ACTIVATIONS[name]


def finish(
    builder: Builder,
    checkpoint: Checkpoint,
    options: Options,
    regions: list[contract.HistoryRegion],
) -> Prepared:
    """Everything that the builder and the checkpoint's text data make."""
    text = checkpoint.text
    return Prepared(
        manifest=builder.manifest,
        contract=serving_contract(builder, checkpoint, options, regions),
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        token_bytes=token_bytes(text.tokenizer_json, checkpoint.config.vocabulary),
        weights=builder.weights(),
        license_text=checkpoint.license_text,
    )

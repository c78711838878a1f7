"""From a checkpoint on disk to a signed core on disk."""

from pathlib import Path

from helios_dod.cores.index import check_namespace
from helios_dod.cores.keys import user_key
from helios_dod.cores.writer import Publisher, check_target, write_core
from helios_dod.frontend.prompt import PromptEncoder
from helios_dod.frontend.template import ChatTemplate
from helios_dod.ignition.checkpoints import open_checkpoint
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.preparation.tuning import with_tuning
from helios_dod.ignition.prepared import PreparationError, Prepared
from helios_dod.ignition.recipes import prepare
from helios_dod.ignition.recipes.shapes import checkpoint_of as open_shape
from helios_dod.ignition.recipes.shapes import without_values
from helios_dod.progress import Progress


def make_core(
    checkpoint: Path | None,
    target: Path,
    options: Options,
    *,
    namespace: str,
    target_device: str = "host",
    weight_type: str = "bf16",
    recipe: str | None = None,
    random_weights: str | None = None,
    key_path: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Prepares `checkpoint` into the core folder `target`, accepted by this user, with progress.

    random_weights: a shape instead of a checkpoint, whose matrices are zero in the core and are
    made by `serve --random-weights`.

    target_device: `host`, or `cuda-sm90`, which compiles kernels and keeps matrices as bf16, or
    those of layers as e4m3 where weight_type is `fp8`; with
    `fp8-head` the head too.
    Raises PreparationError, CoreError, ContractError, UserError."""
    check_namespace(namespace, target)
    check_target(target, overwrite)  # before the work; the writer looks again under its lock
    key = user_key(key_path)
    if random_weights is None:
        opened = open_checkpoint(_given(checkpoint))
    else:
        opened = open_shape(random_weights)
        if target_device == "host":
            raise PreparationError("random weights: expected target cuda-sm90, got host")
    if weight_type != "bf16" and target_device == "host":
        raise PreparationError(f"weights {weight_type}: expected target cuda-sm90, got host")
    if target_device == "host":
        prepared = with_tuning(prepare(opened, options, recipe))
    else:
        prepared = _for_cuda(opened, options, recipe, weight_type)
    if random_weights is not None:
        prepared = without_values(prepared)
    check_frontend(prepared)
    with Progress(f"preparing {target.name}", prepared.weights.nbytes) as progress:
        write_core(
            prepared,
            target,
            Publisher(key, namespace),
            accept=True,
            overwrite=overwrite,
            progress=progress,
        )


def _given(checkpoint: Path | None) -> Path:
    if checkpoint is None:
        raise PreparationError("expected a checkpoint, or a shape for random weights")
    return checkpoint


def check_frontend(prepared: Prepared) -> None:
    """Refuses a tokenizer or chat template that no server would start with, before any weight is
    written. Raises UserError."""
    model = prepared.contract.model
    PromptEncoder(prepared.tokenizer_json, model.frontend.output.tokens, model.input_vocabulary)
    if prepared.chat_template:
        ChatTemplate(prepared.chat_template, dict(model.frontend.template_tokens))


def _for_cuda(opened: Checkpoint, options: Options, recipe: str | None, weight_type: str
              ) -> Prepared:
    if options.widths:
        raise PreparationError("option widths: speculative programs are for the host only")
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise PreparationError(
            "target cuda-sm90 compiles kernels with Triton, which is not installed: "
            "pip install 'helios-dod[prepare-cuda]'") from error
    from helios_dod.ignition.cuda.prepare import for_cuda
    from helios_dod.ignition.cuda.weights import dense_checkpoint

    return for_cuda(prepare(dense_checkpoint(opened), options, recipe), weight_type)

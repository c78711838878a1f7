"""From a checkpoint on disk to a signed core on disk."""

from pathlib import Path

from helios_dod.cores.keys import user_key
from helios_dod.cores.writer import Publisher, check_target, write_core
from helios_dod.ignition.checkpoints import open_checkpoint
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.recipes import prepare
from helios_dod.progress import Progress


def make_core(
    checkpoint: Path,
    target: Path,
    options: Options,
    *,
    namespace: str,
    recipe: str | None = None,
    key_path: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Prepares `checkpoint` into the core folder `target`, accepted by this user, with progress.

    Raises PreparationError, CoreError, ContractError."""
    check_target(target, overwrite)  # before the work; the writer looks again under its lock
    key = user_key(key_path)
    prepared = prepare(open_checkpoint(checkpoint), options, recipe)
    with Progress(f"preparing {target.name}", prepared.weights.nbytes) as progress:
        write_core(
            prepared,
            target,
            Publisher(key, namespace),
            accept=True,
            overwrite=overwrite,
            progress=progress,
        )

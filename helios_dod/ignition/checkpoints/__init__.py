"""Checkpoint readers. The only place that imports `gguf`."""

from pathlib import Path

from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.prepared import PreparationError


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder of safetensors."""
    path = Path(path)
    if path.is_dir():
        from helios_dod.ignition.checkpoints.folder import open_folder

        return open_folder(path)
    if not path.exists():
        raise PreparationError(f"checkpoint {path}: no such file or folder")
    from helios_dod.ignition.checkpoints.gguf_file import open_gguf

    return open_gguf(path)

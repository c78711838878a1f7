"""Checkpoint readers. The only place that imports `gguf`."""

from pathlib import Path

from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.prepared import PreparationError

# What parsing a damaged file raises below the checks that name a field.
DAMAGE = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder of safetensors; raises PreparationError."""
    path = Path(path)
    if not path.exists():
        raise PreparationError(f"checkpoint {path}: no such file or folder")
    try:
        return _open(path)
    except PreparationError:
        raise
    except OSError as error:
        raise PreparationError(
            f"checkpoint {path}: cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        raise PreparationError(
            f"checkpoint {path}: damaged: {type(error).__name__}: {error}") from error


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        from helios_dod.ignition.checkpoints.folder import open_folder

        return open_folder(path)
    from helios_dod.ignition.checkpoints.gguf_file import open_gguf

    return open_gguf(path)

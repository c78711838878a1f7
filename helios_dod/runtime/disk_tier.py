"""The file behind host memory: mapped, reserved in full, and without a name, so that nothing is
left behind however the engine ends."""

import errno
import mmap
import os
import tempfile
from pathlib import Path

from helios_dod.progress import format_bytes
from helios_dod.runtime.selection import SelectionError


def unnamed_file(folder: Path) -> int:
    """A descriptor of a new file in a folder, readable by this user only, that has no name."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    descriptor, name = tempfile.mkstemp(prefix="helios-", dir=folder)  # mode 0600
    os.unlink(name)
    return descriptor


def map_file(folder: Path, nbytes: int) -> mmap.mmap:
    """`nbytes` of a new unnamed file in a folder. Its blocks are reserved now: a full disk is an
    error here, not a signal later. Raises SelectionError."""
    try:
        descriptor = unnamed_file(folder)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            return mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SelectionError("disk_folder", folder,
                             f"but {format_bytes(nbytes)} there: {error.strerror}") from None

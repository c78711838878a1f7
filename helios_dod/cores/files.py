"""Files of a core, read without trust: regular, of the right length, bounded; and replaced.

Links that stand in a file's place are not followed: what a core's folder says is in it."""

import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from helios_dod.cores.errors import CoreError

LOCK_LOOKED_S = 0.05  # between two looks whether another process has ended its writing
LOCK_TOLD_S = (1.0, 30.0)  # a wait is told of after so long, and then each time


def regular(path: Path, follow: bool = False) -> os.stat_result:
    """What the file system says of a regular file; CoreError for anything else. follow: a link to
    one is as good, for files that are the user's own."""
    try:
        found = path.stat(follow_symlinks=follow)
    except OSError as error:
        raise CoreError(path, f"cannot be read: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise CoreError(path, "a symbolic link, which is not followed; a file is expected")
    if not stat.S_ISREG(found.st_mode):
        raise CoreError(path, "not a regular file")
    return found


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file, to read. Raises CoreError, also where reading it fails.

    What was looked at by its name may be something else by now: it is looked at again, and a pipe
    that has come into its place is not waited for."""
    regular(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CoreError(path, "not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CoreError(path, f"cannot be read: {error.strerror}") from error


def check_size(descriptor: int, path: Path, nbytes: int, what: str) -> None:
    """CoreError unless an opened file has exactly so many bytes."""
    size = os.fstat(descriptor).st_size
    if size < nbytes:
        raise CoreError(path, f"{what}: truncated at byte {size} of {nbytes}")
    if size > nbytes:
        raise CoreError(path, f"{what}: {size - nbytes} bytes after its end at {nbytes}")


def read_bounded(path: Path, nbytes_max: int) -> bytes:
    """A whole regular file; CoreError when it is longer or cannot be read."""
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        size = os.fstat(descriptor).st_size
        if size > nbytes_max:
            raise CoreError(path, f"{size} bytes; at most {nbytes_max} are accepted")
        return file.read(size)


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Puts a file into its place, whole or not at all. OSError when it cannot be written.

    The folder may be a stranger's: the partial file is a new one under a name that nobody can know,
    so no link that lies there is followed."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def wait_for_lock(descriptor: int, target: Path) -> None:
    """Locks an open file or folder. A wait for who has it, which ends with that process at the
    latest, names what is to be written and how long it has lasted."""
    began, told = time.monotonic(), LOCK_TOLD_S[0]
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        waited = time.monotonic() - began
        if waited >= told:
            print(f"{target}: another process is writing there; waiting for it since "
                  f"{waited:.0f} s", file=sys.stderr, flush=True)
            told += LOCK_TOLD_S[1]
        time.sleep(LOCK_LOOKED_S)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Locks the folder that holds `target`, made if it is not there: one process writes there,
    others wait, and say so. Raises CoreError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CoreError(target, f"cannot be written: {error.strerror}") from error
    try:
        wait_for_lock(descriptor, target)
        yield
    finally:
        os.close(descriptor)

"""Files of the user's cache folder that hold what took long: an entry that is not whole is none."""

import contextlib
import hashlib
import os
from pathlib import Path

DIGEST_NBYTES = hashlib.sha256().digest_size


def kept(entry: Path) -> bytes | None:
    """What is in an entry; None where there is none, or where it is not whole."""
    try:
        data = entry.read_bytes()
        os.utime(entry)
    except OSError:
        return None
    digest, rest = data[:DIGEST_NBYTES], data[DIGEST_NBYTES:]
    return rest if hashlib.sha256(rest).digest() == digest else None


def keep(entry: Path, data: bytes, most: int) -> None:
    """Writes beside, then renames: a reader sees the whole entry or none. Where the folder cannot
    be written the next start does the work again, and that is all. Entries of the folder beyond
    the `most` that were used last go, and what a process left that ended while it wrote."""
    fresh = entry.with_suffix(f".{os.getpid()}.new")
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(hashlib.sha256(data).digest() + data)
        fresh.replace(entry)
        entries = [(found.stat().st_mtime_ns, found.path) for found in os.scandir(entry.parent)]
        for _, path in sorted(entries)[:-most]:
            os.unlink(path)

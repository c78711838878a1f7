"""Authenticated chunks of logical-resource cores of index version 4: AES-256-GCM, 4 MiB each.

The user's secret never signs or encrypts anything itself: HKDF-SHA256 (RFC 5869) over it and the
core's own salt makes the key, so a nonce (resource number, chunk number) is used once. The
associated data binds a chunk to its resource, its place and the resource's length, so chunks cannot
be swapped, repeated, dropped or cut off. AES-GCM: NIST SP 800-38D.
"""

import os
import struct
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import regular
from helios_dod.cores.layout import CHUNK_NBYTES, chunk_count
from helios_dod.folders import config_home

SECRET_NBYTES = 32
SALT_NBYTES = 32
TAG_NBYTES = 16
INFO = b"helios core 4"
SECRET_VARIABLE = "HELIOS_CORE_KEY"  # 64 hexadecimal digits
SECRET_FILE_VARIABLE = "HELIOS_CORE_KEY_FILE"  # a file that holds them


def sealed_count(nbytes: int) -> int:
    """Chunks of so many plain bytes; an empty resource has one, which authenticates that."""
    return max(1, chunk_count(nbytes))


def sealed_nbytes(nbytes: int) -> int:
    """Stored bytes of so many plain ones."""
    return nbytes + TAG_NBYTES * sealed_count(nbytes)


class Cipher:
    """The key of one core. Its secret is in no attribute, text or error."""

    def __init__(self, secret: bytes, salt: bytes) -> None:
        assert len(secret) == SECRET_NBYTES and len(salt) == SALT_NBYTES
        key = HKDF(algorithm=SHA256(), length=SECRET_NBYTES, salt=salt, info=INFO).derive(secret)
        self._gcm = AESGCM(key)

    def __repr__(self) -> str:
        return "Cipher()"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Cipher is not copied to other processes")

    def seal(self, name: str, number: int, nbytes: int, chunk: int, plain: bytes) -> bytes:
        """The stored form of one chunk of resource `number`, which has `nbytes` plain bytes."""
        assert len(plain) <= CHUNK_NBYTES
        return self._gcm.encrypt(_nonce(number, chunk), plain, _bound(name, nbytes, chunk))

    def unseal(self, name: str, number: int, nbytes: int, chunk: int,
               stored: bytes | memoryview) -> bytes | None:
        """The plain bytes of a stored chunk; None where they were changed or the key is another."""
        try:
            return self._gcm.decrypt(_nonce(number, chunk), stored, _bound(name, nbytes, chunk))
        except InvalidTag:
            return None


def _nonce(number: int, chunk: int) -> bytes:
    return struct.pack(">IQ", number, chunk)


def _bound(name: str, nbytes: int, chunk: int) -> bytes:
    return name.encode() + b"\0" + struct.pack(">QQ", nbytes, chunk)


def secret_path() -> Path:
    """Where the user's secret for sealed cores is, unless the environment says otherwise."""
    return Path(os.environ.get(SECRET_FILE_VARIABLE) or config_home() / "core.key")


def load_secret(place: Path) -> bytes:
    """The 32-byte secret from the environment or the user's file. Raises CoreError, which names
    where it was looked for and never what was found. place: the core that needs it."""
    text = os.environ.get(SECRET_VARIABLE)
    path = secret_path()
    where = f"the environment variable {SECRET_VARIABLE}"
    if text is None:
        where = str(path)
        try:
            mode = regular(path, follow=True).st_mode
            with open(path, encoding="ascii", errors="replace") as file:
                text = file.read(1024)
        except (CoreError, OSError) as error:
            why = error.problem if isinstance(error, CoreError) else error.strerror
            raise CoreError(place, f"is sealed and needs its key: set {SECRET_VARIABLE}, or "
                                   f"{SECRET_FILE_VARIABLE} to a file of it, or put it into {path} "
                                   f"({why}; helios keygen --sealing makes one, for cores that are "
                                   "sealed from then on)") from None
        if mode & 0o077:
            raise CoreError(path, f"a core key that others may read; run: chmod 600 {path}")
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_NBYTES:
        raise CoreError(place, f"the key in {where} is not {2 * SECRET_NBYTES} hexadecimal digits")
    return secret


def make_secret(path: Path) -> None:
    """Writes a fresh secret that only the user can read. Raises CoreError; replaces nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(SECRET_NBYTES).hex() + "\n")
    except OSError as error:
        raise CoreError(path, f"cannot store a core key: {error.strerror}") from error

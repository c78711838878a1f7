"""The user's Ed25519 key: signs the cores and acceptances that this user makes."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from helios_dod.cores.errors import CoreError
from helios_dod.folders import config_home

KEY_NBYTES_MAX = 4096
PRIME = 2**255 - 19  # of the field of Curve25519
ORDER_8_Y = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# The y coordinates of the 8 points whose order divides 8; a public key is y and the sign of x.
SMALL_ORDER_Y = frozenset({0, 1, PRIME - 1, ORDER_8_Y, PRIME - ORDER_8_Y})


def user_key_path() -> Path:
    """Where the user's key is kept, readable by the user alone."""
    return config_home() / "signing.key"


def load_key(path: Path) -> Ed25519PrivateKey:
    """Reads a private key (PEM, PKCS 8). CoreError when missing, open to others or not one."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise CoreError(path, "cannot read the signing key: not a regular file")
        with open(path, "rb") as file:
            data = file.read(KEY_NBYTES_MAX + 1)
    except OSError as error:
        raise CoreError(path, f"cannot read the signing key: {error.strerror}") from error
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:  # so the library says that it needs a password
        raise CoreError(path, "a key with a passphrase; expected one without, that nobody else may "
                              "read") from error
    except ValueError as error:
        raise CoreError(path, "not a private key in PEM form") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise CoreError(path, "expected an Ed25519 key, got another kind")
    if mode & 0o077:
        raise CoreError(path, f"a signing key that others may read; run: chmod 600 {path}")
    return key


def make_key(path: Path) -> Ed25519PrivateKey:
    """Makes the key at `path`, mode 0600, unless another process just did. The key there."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(pem)
            with suppress(FileExistsError):
                os.link(partial, path)  # never replaces a key
        finally:
            os.unlink(partial)
    except OSError as error:
        raise CoreError(path, f"cannot store a signing key: {error.strerror}") from error
    return load_key(path)


def user_key(path: Path | None = None) -> Ed25519PrivateKey:
    """The key at `path`, which must exist, or the user's own, made on first use."""
    if path is not None:
        return load_key(path)
    own = user_key_path()
    return load_key(own) if own.exists() else make_key(own)


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of its public half."""
    return key.public_key().public_bytes_raw()


def is_signed(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """True if `signature` is that key's over `data`. Malformed keys have signed nothing, nor have
    points of small order, for which anybody makes signatures (RFC 8032, section 8.9)."""
    if (int.from_bytes(public_key, "little") & (1 << 255) - 1) % PRIME in SMALL_ORDER_Y:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True

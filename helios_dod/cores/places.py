"""Where resources lie: files inside the core's folder, or http(s) addresses that serve ranges.

A LocationSet is unsigned. It can make a core unreadable, never different: whatever is found there
is compared with what is signed.
"""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from helios_dod.contract.wire import core_pb2
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import regular

ADDRESS_MAX = 2048


@dataclass(frozen=True)
class Remote:
    """An http(s) address without credentials or fragment."""

    url: str

    def __str__(self) -> str:
        return self.url


Place = Path | Remote


def locate(found: core_pb2.LocationSet, wanted: Set[str], folder: Path,
           index: Path) -> dict[str, Place]:
    """Resource id -> place, for every resource that is wanted. Raises CoreError."""
    root = folder.resolve()
    places: dict[str, Place] = {}
    for location in found.locations:
        name = location.resource_id
        if name not in wanted or name in places:
            raise CoreError(index, f"resource {name!r}: not a resource of the core, or named twice")
        if location.path.startswith(("http://", "https://")):
            places[name] = _remote(location.path, index, name)
        else:
            places[name] = _inside(root, location.path, index, name)
    for name in sorted(wanted - places.keys()):
        raise CoreError(index, f"resource {name!r}: no location")
    return places


def _remote(address: str, index: Path, name: str) -> Remote:
    plain = len(address) <= ADDRESS_MAX and address.isascii() and address.isprintable()
    try:
        parts = urlsplit(address)
        usable = bool(parts.hostname) and not parts.fragment and "@" not in parts.netloc
        (parts.hostname or "").encode("idna")  # as a look-up does: raises where no name is like it
        _ = parts.port  # raises where it is no number
    except ValueError:
        usable = False
    if not plain or " " in address or not usable:
        raise CoreError(index, f"resource {name!r}: expected an http(s) address without "
                               f"credentials or fragment, got {address[:200]!r}")
    return Remote(address)


def _inside(root: Path, text: str, index: Path, name: str) -> Path:
    path = PurePosixPath(text)
    plain = text and "\0" not in text and not path.is_absolute()
    if not plain or ".." in path.parts or "\\" in text or "://" in text:
        raise CoreError(index, f"resource {name!r}: expected a path inside the core or an http(s) "
                               f"address, got {text!r}")
    try:
        resolved = (root / path).resolve()
    except (OSError, RuntimeError) as error:
        raise CoreError(index, f"resource {name!r}: {text!r} leads nowhere") from error
    if not resolved.is_relative_to(root):
        raise CoreError(index, f"resource {name!r}: {text!r} leads out of the core")
    regular(resolved)
    return resolved

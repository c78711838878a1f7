"""Bytes of a request to pixels: PNG, JPEG and WebP, bounded before anything is decoded."""

import base64
import binascii
import io
from collections.abc import Callable
from typing import Any

from helios_dod.frontend.requests import RequestError

IMAGE_NBYTES_MAX = 32 << 20
PIXELS_MAX = 1 << 26
SIDE_MAX = 1 << 15
SCANNED_PIXELS_MAX = 1 << 30  # of a progressive JPEG: its pixels, once a scan
FORMATS = ("PNG", "JPEG", "WEBP")
MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp")
Fetch = Callable[[str], bytes]  # raises FetchError


class FetchError(ValueError):
    """A remote image that was not fetched, and why."""


def refuse(field: str, problem: str, code: str = "invalid_value") -> RequestError:
    """The error of one image. field: where the request has it."""
    return RequestError(f"'{field}': {problem}.", field, code)


def read_bytes(url: str, field: str, fetch: Fetch | None) -> bytes:
    """An image's file. fetch: of http(s) addresses; None: they are refused. Raises RequestError."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "data":
        return from_data_url(rest, field)
    if scheme not in ("http", "https"):
        raise refuse(field, f"an image is a data URL or an http(s) one, got {url[:40]!r}")
    if fetch is None:
        raise refuse(field, "this server fetches no remote images; send a data URL",
                     "unsupported_value")
    try:
        return fetch(url)
    except FetchError as error:
        raise refuse(field, f"the image was not fetched: {error}") from None


def from_data_url(rest: str, field: str) -> bytes:
    """The bytes of a data URL (RFC 2397) without its scheme."""
    head, comma, body = rest.partition(",")
    media, *parameters = [part.strip().lower() for part in head.split(";")]
    if not comma or media not in MEDIA_TYPES or parameters[-1:] != ["base64"]:
        raise refuse(field, f"a data URL of an image begins with data:TYPE;base64, and TYPE is one "
                            f"of {', '.join(MEDIA_TYPES)}, got {'data:' + head[:40]!r}")
    if len(body) * 3 // 4 > IMAGE_NBYTES_MAX + 2:
        raise refuse(field, f"an image has at most {IMAGE_NBYTES_MAX} bytes, this one has about "
                            f"{len(body) * 3 // 4}")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise refuse(field, f"the data URL is not valid base64: {error}") from None


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Height and width in a WebP header (RFC 9649, section 2), None without one. Pillow allocates
    the whole canvas as soon as it opens such a file."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return (int.from_bytes(body[7:10], "little") + 1, int.from_bytes(body[4:7], "little") + 1)
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = (int.from_bytes(body[i:i + 2], "little") & 0x3FFF for i in (6, 8))
        return height, width
    return None


def check_size(height: int, width: int, field: str) -> None:
    """Raises RequestError for an image that is too large to decode."""
    if height * width > PIXELS_MAX or max(height, width) > SIDE_MAX:
        raise refuse(field, f"an image has at most {PIXELS_MAX} pixels and sides of {SIDE_MAX}, "
                            f"this one has {height} x {width}")


def decode(data: bytes, field: str) -> Any:
    """A PIL image in RGB, upright as its EXIF orientation says. Raises RequestError."""
    # Imported late: few workers ever see an image.
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(data) > IMAGE_NBYTES_MAX:
        raise refuse(field, f"an image has at most {IMAGE_NBYTES_MAX} bytes, this one has "
                            f"{len(data)}")
    if data[8:12] == b"WEBP":
        size = webp_size(data)
        if size is None:
            raise refuse(field, "the image is a WebP file without a size")
        check_size(*size, field)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        check_size(image.height, image.width, field)
        scans = data.count(b"\xff\xda") if data[:2] == b"\xff\xd8" else 1
        if scans * image.height * image.width > SCANNED_PIXELS_MAX:
            raise refuse(field, f"a JPEG of {image.height} x {image.width} pixels has at most "
                                f"{SCANNED_PIXELS_MAX // (image.height * image.width)} scans, this "
                                f"one has {scans}")
        return ImageOps.exif_transpose(image).convert("RGB")
    except UnidentifiedImageError:
        raise refuse(field, f"the image is none of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError as error:
        raise refuse(field, f"the image is too large: {error}") from None
    except RequestError:
        raise
    except Exception as error:  # the library raises errors of all kinds for damaged files
        raise refuse(field, f"the image cannot be decoded: {error}") from None

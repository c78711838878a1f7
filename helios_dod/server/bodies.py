"""How much a worker reads of requests before it admits them: their time, their bytes, and the
bytes of all of them together."""

from dataclasses import dataclass

from helios_dod.server.errors import (
    InvalidRequest,
    RequestTimeout,
    TooManyRequests,
    UnsupportedMedia,
)

BODY_SECONDS = 120  # for a whole request body, from its first wait to its last byte
BODIES_HELD = 8  # bodies of the largest size that a worker holds at once before admission
HELD_BYTES_MIN = 64 << 20
RETRY_SECONDS = 1
CLOSE = (b"connection", b"close")  # what is left unread cannot be told from a next request


@dataclass
class Holding:
    """Bytes that a worker holds in bodies that no permit bounds: of requests being received, and
    of those that need no permit. body_bytes_max: of one body."""

    body_bytes_max: int
    used: int = 0

    @property
    def capacity(self) -> int:
        """Bytes of all such bodies together."""
        return max(BODIES_HELD * self.body_bytes_max, HELD_BYTES_MIN)

    def take(self, count: int) -> None:
        """Counts bytes that came. Raises TooManyRequests where there is no room for them."""
        if self.used + count > self.capacity:
            raise TooManyRequests(
                f"The request bodies that are being received hold {self.used} bytes of at most "
                f"{self.capacity}, {count} more came; try again in about {RETRY_SECONDS} s.",
                code="bodies_full",
                headers=((b"retry-after", b"%d" % RETRY_SECONDS), CLOSE))
        self.used += count

    def give(self, count: int) -> None:
        """Takes bytes off the count."""
        assert 0 <= count <= self.used
        self.used -= count


def check_media(kind: bytes | None, encoding: bytes | None, from_page: bool) -> None:
    """Raises UnsupportedMedia for a body that is not JSON by its headers. A program may leave its
    kind out; a page may not: browsers ask nobody before they send what has no kind or a plain one
    to another origin."""
    media = (kind or b"").split(b";")[0].strip().lower()
    json = media == b"application/json" or media.endswith(b"+json")
    if not json and (kind is not None or from_page):
        got = "none" if kind is None else repr(kind[:200].decode("latin-1"))
        raise UnsupportedMedia(f"Content-Type: expected application/json, got {got}.",
                               code="unsupported_media_type")
    if encoding is not None and encoding.strip().lower() != b"identity":
        raise UnsupportedMedia("Content-Encoding: expected identity or none, got "
                               f"{encoding[:200].decode('latin-1')!r}.",
                               code="unsupported_encoding")


def too_large(limit: int, got: str) -> InvalidRequest:
    """A body over the limit."""
    return InvalidRequest(f"The request body must have at most {limit} bytes, got {got}.",
                          code="request_too_large", headers=(CLOSE,))


def broken_off(told: bytes | None, size: int) -> InvalidRequest:
    """A body whose framing is wrong, or whose client went away: then nobody reads this."""
    expected = "chunks" if told is None else f"{told.decode('latin-1')} bytes"
    return InvalidRequest(f"The request body is malformed or breaks off: expected {expected}, got "
                          f"{size} bytes.", code="malformed_body", headers=(CLOSE,))


def too_slow(size: int) -> RequestTimeout:
    """A body that did not arrive in time."""
    return RequestTimeout(
        f"The request body did not end within {BODY_SECONDS} s; {size} bytes of it came.",
        code="body_timeout", headers=(CLOSE,))

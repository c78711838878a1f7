"""Byte ranges over http(s). A server must answer ranges exactly (RFC 9110, section 14); redirects,
whole answers and other lengths are refused.

An https server shows a certificate for its name that this machine trusts. SSL_CERT_FILE and
SSL_CERT_DIR name other authorities than the system's, as for every program that uses OpenSSL."""

import http.client
import os
import re
import ssl
import time
from functools import cache
from urllib.parse import urlsplit

from helios_dod.cores.errors import CoreError
from helios_dod.cores.places import Remote

TIMEOUT_S = 30  # without a byte
RATE_MIN = 64 << 10  # bytes a second; a server that only drips is not waited for
ATTEMPTS = 4
PAUSE_S = 0.25  # before the second attempt; doubled before each later one
PARTIAL = 206
TRANSIENT = (408, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")


class _Transient(Exception):
    """Worth another attempt."""


def read_range(place: Remote, first: int, nbytes: int, whole: int) -> bytes:
    """Bytes first .. first + nbytes of a resource of `whole` bytes. Raises CoreError after several
    attempts, or at once where the server answers something else."""
    assert nbytes > 0 and first + nbytes <= whole
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            return _attempt(place, first, nbytes, whole)
        except ssl.SSLCertVerificationError as error:  # the same however often it is asked
            raise CoreError(place.url, "the server's certificate is not trusted: "
                                       f"{error.verify_message}; SSL_CERT_FILE names other "
                                       "authorities") from error
        except (OSError, http.client.HTTPException, _Transient) as error:
            problem = str(error) or type(error).__name__
    raise CoreError(place.url, f"bytes {first} to {first + nbytes} cannot be fetched: {problem}")


@cache
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The authorities that the environment names, read once."""
    return ssl.create_default_context()


def _connect(place: Remote) -> http.client.HTTPConnection:
    parts = urlsplit(place.url)
    assert parts.hostname
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    context = _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=TIMEOUT_S, context=context)


def _attempt(place: Remote, first: int, nbytes: int, whole: int) -> bytes:
    parts = urlsplit(place.url)
    connection = _connect(place)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={
            "Range": f"bytes={first}-{first + nbytes - 1}", "Accept-Encoding": "identity"})
        answer = connection.getresponse()
        if answer.status in TRANSIENT:
            raise _Transient(f"status {answer.status}")
        if answer.status != PARTIAL:
            raise CoreError(place.url, f"expected status {PARTIAL} for a byte range, "
                                       f"got {answer.status}")
        got = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        expected = (first, first + nbytes - 1, whole)
        if got is None or tuple(map(int, got.groups())) != expected:
            raise CoreError(place.url, "Content-Range: expected bytes "
                                       f"{first}-{first + nbytes - 1}/{whole}, "
                                       f"got {got.group() if got else 'none'}")
        data = _read_by(answer, nbytes, time.monotonic() + TIMEOUT_S + nbytes / RATE_MIN)
    finally:
        connection.close()
    if len(data) != nbytes:
        raise _Transient(f"{len(data)} of {nbytes} bytes came")
    return data


def _read_by(answer: http.client.HTTPResponse, nbytes: int, deadline: float) -> bytes:
    """Up to `nbytes` of the answer, in whatever pieces they come."""
    data = bytearray()
    while len(data) < nbytes and (piece := answer.read1(nbytes - len(data))):
        data += piece
        if time.monotonic() > deadline:
            raise _Transient(f"{len(data)} of {nbytes} bytes came in time")
    return bytes(data)

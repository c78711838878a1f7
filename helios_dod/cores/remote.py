"""Byte ranges over http(s). A server must answer ranges exactly (RFC 9110, section 14); redirects,
whole answers and other lengths are refused.

A server has one deadline for all its answers, attempts included: see `deadline`. Looking up its
name takes as long as the system's resolver waits, before the time is looked at again.

An https server shows a certificate for its name that this machine trusts. SSL_CERT_FILE and
SSL_CERT_DIR name other authorities than the system's, as for every program that uses OpenSSL."""

import http.client
import io
import os
import re
import socket
import ssl
import time
from functools import cache
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from helios_dod.cores.errors import CoreError
from helios_dod.cores.places import Remote

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIMEOUT_S = 30  # without a byte; and what a deadline has beside the time of its bytes
RATE_MIN = 64 << 10  # bytes a second
ATTEMPTS = 4
PAUSE_S = 0.25  # before the second attempt; doubled before each later one
PARTIAL = 206
TRANSIENT = (408, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")


class _Transient(Exception):
    """Worth another attempt."""


class _Received(io.RawIOBase):
    """What a socket receives. No read ends after `end`, or waits TIMEOUT_S for a byte.

    A status line, headers, interim answers and chunk lengths are read in many reads, so that a
    timeout of the socket alone bounds none of them."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As a socket's, for http.client."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Raises TimeoutError."""
        self._sock.settimeout(_wait(self._end))
        return self._sock.recv_into(buffer)


def deadline(nbytes: int) -> float:
    """When so many bytes must have come that are asked for from now on, on the monotonic clock: at
    RATE_MIN, and TIMEOUT_S later."""
    return time.monotonic() + TIMEOUT_S + nbytes / RATE_MIN


def read_range(place: Remote, first: int, nbytes: int, whole: int, end: float) -> bytes:
    """Bytes first .. first + nbytes of a resource of `whole` bytes. Raises CoreError after several
    attempts, or at once where the server answers something else.

    All attempts end by the deadline of these bytes, and by `end`, that of all that is fetched."""
    assert nbytes > 0 and first + nbytes <= whole
    problem, end = "", min(end, deadline(nbytes))
    for attempt in range(ATTEMPTS):
        if attempt:
            pause = PAUSE_S * 2 ** (attempt - 1)
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        try:
            return _attempt(place, first, nbytes, whole, end)
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


def _wait(end: float) -> float:
    """Seconds that one step may wait. Raises TimeoutError after `end`."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return min(left, TIMEOUT_S)


def _connect(place: Remote, end: float) -> http.client.HTTPConnection:
    parts = urlsplit(place.url)
    host, secure = parts.hostname, parts.scheme == "https"
    assert host
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, parts.port or kind.default_port)
    connection.sock = _reach(host, connection.port, end)
    if secure:
        context = _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        try:
            connection.sock.settimeout(_wait(end))
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        except BaseException:
            connection.close()
            raise
    return connection


def _reach(host: str, port: int, end: float) -> socket.socket:
    """A connection to the first address of a name that takes one, however many it has."""
    problem = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM):
        wait = _wait(end)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            problem = error
            continue
        try:
            sock.settimeout(wait)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            problem = error
    raise problem


def _attempt(place: Remote, first: int, nbytes: int, whole: int, end: float) -> bytes:
    began = time.monotonic()
    try:
        return _ask(place, first, nbytes, whole, end)
    except TimeoutError as error:
        late = time.monotonic() >= end
        raise _Transient(f"no whole answer in time; the last attempt had {end - began:.1f} s"
                         if late else f"no byte within {TIMEOUT_S} s") from error


def _ask(place: Remote, first: int, nbytes: int, whole: int, end: float) -> bytes:
    parts = urlsplit(place.url)
    connection = _connect(place, end)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.sock.settimeout(_wait(end))
        connection.request("GET", target, headers={
            "Range": f"bytes={first}-{first + nbytes - 1}", "Accept-Encoding": "identity"})
        received = cast(socket.socket, _Received(connection.sock, end))  # makefile is all it needs
        answer = http.client.HTTPResponse(received, method="GET")
        answer.begin()
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
        data = bytearray()
        while len(data) < nbytes and (piece := answer.read1(nbytes - len(data))):
            data += piece
    finally:
        connection.close()
    if len(data) != nbytes:
        raise _Transient(f"{len(data)} of {nbytes} bytes came")
    return bytes(data)

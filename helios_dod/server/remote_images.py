"""Images at http(s) addresses, for servers that were told to fetch them.

A name is resolved once; all of its addresses must be public, and the connection goes to one of
those that were checked, so a name that later resolves elsewhere reaches nothing. Each redirect is
checked like the first address. Proxies of the environment are not used."""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, urljoin, urlsplit

from helios_dod import __version__
from helios_dod.frontend.images.decoding import IMAGE_NBYTES_MAX, FetchError

REDIRECTS_MAX = 3
SECONDS_MAX = 10.0  # of one image, redirects included
URL_MAX = 8192
CHUNK = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
PORTS = {"http": 80, "https": 443}
EMBEDDING = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48")))  # RFC 6052, 8215

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]


def resolve(host: str, port: int) -> list[str]:
    """Numeric addresses of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: Address) -> bool:
    """Whether an address is one of the open internet, also behind what embeds IPv4 in IPv6."""
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network in EMBEDDING):
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None and not is_public(inner):
            return False
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast


@cache
def tls_context() -> ssl.SSLContext:
    """Certificates are checked against the system's authorities."""
    return ssl.create_default_context()


@dataclass(frozen=True)
class Fetcher:
    """Fetches an image. Called on any thread."""

    resolve: Resolve = resolve
    allowed: Callable[[Address], bool] = is_public
    seconds_max: float = SECONDS_MAX

    def __call__(self, url: str) -> bytes:
        """The image's bytes. Raises FetchError."""
        deadline = time.monotonic() + self.seconds_max
        for _ in range(REDIRECTS_MAX + 1):
            parts = checked(url)
            try:
                found = self.get(parts, deadline)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if isinstance(error, FetchError):
                    raise
                raise FetchError(f"{parts.hostname}: {error}") from None
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise FetchError(f"more than {REDIRECTS_MAX} redirects")

    def get(self, parts: SplitResult, deadline: float) -> bytes | str:
        """The body at one address, or where it redirects to."""
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        sock = self.connect(host, port, deadline)
        sockets = [sock]
        timer = threading.Timer(left(deadline), hang_up, (sockets,))  # whatever it then waits for
        timer.start()
        try:
            if parts.scheme == "https":
                sock = tls_context().wrap_socket(sock, server_hostname=host)
                sockets.append(sock)
            connection = http.client.HTTPConnection(host, port)
            connection.sock = sock
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={
                "Accept": "image/png, image/jpeg, image/webp", "Accept-Encoding": "identity",
                "User-Agent": f"helios-dod/{__version__}", "Connection": "close"})
            answer = connection.getresponse()
            target = answer.getheader("Location")
            if answer.status in REDIRECTS and target is not None:
                return target
            if answer.status != 200:
                raise FetchError(f"{host} answered {answer.status}")
            body = body_of(answer)
            left(deadline)  # an answer without a length may have been cut
            return body
        except (OSError, http.client.HTTPException):
            left(deadline)  # the cause, if it is that
            raise
        finally:
            timer.cancel()
            sock.close()

    def connect(self, host: str, port: int, deadline: float) -> socket.socket:
        """A connection to an address that was checked. Raises FetchError, OSError."""
        addresses = self.resolve(host, port)
        if not addresses:
            raise FetchError(f"{host} has no address")
        for text in addresses:
            if not self.allowed(ipaddress.ip_address(text.partition("%")[0])):
                raise FetchError(f"{host} is not a public address")
        sock = socket.create_connection((addresses[0], port), timeout=left(deadline))
        sock.settimeout(None)
        return sock


def hang_up(sockets: list[socket.socket]) -> None:
    """Ends the connection, whoever reads from it."""
    with contextlib.suppress(OSError):
        sockets[-1].shutdown(socket.SHUT_RDWR)


def left(deadline: float) -> float:
    """Seconds until a deadline. Raises FetchError once it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise FetchError("it took too long")
    return seconds


def checked(url: str) -> SplitResult:
    """The parts of an address that may be asked. Raises FetchError."""
    if len(url) > URL_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise FetchError(f"an address is at most {URL_MAX} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchError(f"not an address: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname or port == 0:
        raise FetchError("an address is http://HOST or https://HOST")
    if parts.username is not None or parts.password is not None:
        raise FetchError("an address holds no user")
    return parts


def body_of(answer: http.client.HTTPResponse) -> bytes:
    """The body, at most as large as an image may be. Raises FetchError."""
    if answer.length is not None and answer.length > IMAGE_NBYTES_MAX:
        raise FetchError(f"it has {answer.length} bytes, at most {IMAGE_NBYTES_MAX} are possible")
    chunks: list[bytes] = []
    size = 0
    while True:
        chunk = answer.read1(CHUNK)
        if not chunk:
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        if size > IMAGE_NBYTES_MAX:
            raise FetchError(f"it has more than {IMAGE_NBYTES_MAX} bytes")

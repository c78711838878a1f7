"""Remote images: public addresses only, whatever names and redirects say."""

import ipaddress
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helios_dod.frontend.images.decoding import FetchError
from helios_dod.server import remote_images
from helios_dod.server.remote_images import Fetcher, is_public

HERE = ["127.0.0.1"]


class Pages(BaseHTTPRequestHandler):
    """/image is bytes; /to/ADDRESS redirects; /slow never ends; /long says that it is."""

    def do_GET(self) -> None:
        kind, _, rest = self.path[1:].partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
            return
        self.send_response(200 if kind != "missing" else 404)
        if kind == "long":
            self.send_header("Content-Length", str(1 << 40))
        if kind == "cut":
            self.send_header("Content-Length", "100")
        self.end_headers()
        try:
            self.wfile.write(b"image")
            while kind in ("slow", "endless"):
                self.wfile.write(bytes(1 if kind == "slow" else 1 << 16))
                time.sleep(0.01 if kind == "slow" else 0)
        except OSError:
            pass  # the other side hung up, as it should

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("text, public", [
    ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False),
    ("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False), ("0.0.0.0", False),
    ("100.64.0.1", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False),
    ("::", False), ("fe80::1", False), ("fd00::1", False), ("ff02::1", False),
    ("::ffff:127.0.0.1", False), ("::ffff:10.0.0.1", False), ("2002:7f00:1::", False),
    ("2002:0a00:0001::", False), ("64:ff9b::7f00:1", False), ("64:ff9b::808:808", False),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
])
def test_public_addresses(text: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(text)) == public


def test_an_image_is_fetched(port: int) -> None:
    fetch = Fetcher(resolve=lambda host, port: HERE, allowed=lambda address: True)
    assert fetch(f"http://images.example:{port}/image") == b"image"
    assert fetch(f"http://images.example:{port}/to//image") == b"image"


@pytest.mark.parametrize("path, words", [
    ("missing", "answered 404"), ("long", "at most 33554432"), ("cut", "IncompleteRead"),
    ("to//to//to//to//to//image", "more than 3 redirects"),
    ("to/file:///etc/passwd", "http://HOST"),
    ("to/http://u:p@images.example/", "holds no user"),
])
def test_answers_that_are_refused(port: int, path: str, words: str) -> None:
    fetch = Fetcher(resolve=lambda host, port: HERE, allowed=lambda address: True)
    with pytest.raises(FetchError, match=words):
        fetch(f"http://images.example:{port}/{path}")


def test_no_private_address(port: int) -> None:
    """Neither directly, nor as one of several addresses, nor behind a redirect."""
    with pytest.raises(FetchError, match=r"127\.0\.0\.1 is not a public address"):
        Fetcher()(f"http://127.0.0.1:{port}/image")
    with pytest.raises(FetchError, match="not a public address"):
        Fetcher()(f"http://localhost:{port}/image")
    for text in ("2130706433", "0x7f000001", "127.1"):  # other spellings of this machine
        with pytest.raises(FetchError):
            Fetcher()(f"http://{text}:{port}/image")
    mixed = Fetcher(resolve=lambda host, port: ["8.8.8.8", *HERE])
    with pytest.raises(FetchError, match="not a public address"):
        mixed(f"http://images.example:{port}/image")
    answers = {"images.example": HERE, "inside.example": ["10.0.0.1"]}
    fetch = Fetcher(resolve=lambda host, port: answers[host],
                    allowed=lambda address: str(address) in HERE)
    with pytest.raises(FetchError, match=r"inside\.example is not a public address"):
        fetch(f"http://images.example:{port}/to/http://inside.example/")


def test_a_name_is_resolved_once(port: int) -> None:
    """The address that was checked is the one that is asked."""
    answers = [HERE, ["10.0.0.1"]]
    fetch = Fetcher(resolve=lambda host, port: answers.pop(0),
                    allowed=lambda address: str(address) in HERE)
    assert fetch(f"http://images.example:{port}/image") == b"image"
    assert answers == [["10.0.0.1"]]


def test_what_takes_too_long_or_is_too_large(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Fetcher(resolve=lambda host, port: HERE, allowed=lambda address: True,
                    seconds_max=0.3)
    with pytest.raises(FetchError, match="took too long"):
        fetch(f"http://images.example:{port}/slow")
    monkeypatch.setattr(remote_images, "IMAGE_NBYTES_MAX", 1 << 20)
    with pytest.raises(FetchError, match="more than 1048576 bytes"):
        Fetcher(resolve=lambda host, port: HERE, allowed=lambda address: True)(
            f"http://images.example:{port}/endless")


@pytest.mark.parametrize("url", ["http://", "http://a b/", "http://[::1/", "http://h:99999/",
                                 "http://h:0/", "ftp://h/", "http://é/", "http://h/" + "a" * 9000])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(FetchError):
        Fetcher(resolve=lambda host, port: pytest.fail("resolved"))(url)

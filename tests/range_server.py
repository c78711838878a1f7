"""A small http server on 127.0.0.1 that serves ranges of a folder, and misbehaves on request."""

import datetime
import ipaddress
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def make_certificate(folder):
    """A certificate for 127.0.0.1, signed by itself, and its key: one PEM file, for both sides."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1)).add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256()))
    path = folder / "server.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


class RangeServer:
    """with RangeServer(folder) as server: server.url. `misbehave` maps a request to an answer.

    certificate: a PEM file with its key; the server then speaks TLS."""

    def __init__(self, folder, certificate=None):
        self.requests = []
        self.misbehave = lambda path, first, data: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self, folder)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = self.url.replace("http:", "https:")

    def answer(self, handler, folder):
        first, last = map(int, re.match(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
        whole = (folder / handler.path.lstrip("/")).read_bytes()
        data = whole[first : last + 1]
        self.requests.append((handler.path, first))
        status, headers = 206, {"Content-Range": f"bytes {first}-{last}/{len(whole)}"}
        other = self.misbehave(handler.path, first, data)
        if other is not None:
            status, headers, data = other[0], headers | other[1], other[2]
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if "Content-Length" not in headers:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

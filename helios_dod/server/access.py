"""Who may ask, from where, and what is written down about it: API keys, CORS, request ids, logs."""

import hashlib
import hmac
import json
import re
import secrets
import sys
import time
from collections.abc import Sequence

from helios_dod.server.errors import Unauthorized
from helios_dod.server.http import Exchange, Headers

OPEN_PATHS = frozenset(("/", "/health", "/ready", "/version", "/metrics", "/openapi.json"))
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
PLAIN = re.compile(r"[!#-<>-\[\]-~]+")  # of a text log line: no space, quote, = or backslash
PREFLIGHT_SECONDS = b"600"
ALLOWED_HEADERS = b"authorization, content-type, x-api-key, x-request-id, anthropic-version"


def key_digest(key: str) -> bytes:
    """What is kept of an API key."""
    return hashlib.sha256(key.encode()).digest()


def request_id(exchange: Exchange) -> bytes:
    """The client's own id if it is a plain word, else a new one."""
    given = exchange.header(b"x-request-id")
    if given is not None and REQUEST_ID.fullmatch(given):
        return given
    return secrets.token_hex(12).encode()


def check_key(exchange: Exchange, digests: Sequence[bytes]) -> None:
    """Raises Unauthorized where keys are asked for and the request has none of them. Both
    `Authorization: Bearer KEY` and `x-api-key: KEY` will do."""
    if not digests or exchange.path in OPEN_PATHS:
        return
    given = exchange.header(b"x-api-key")
    bearer = exchange.header(b"authorization")
    if given is None and bearer is not None and bearer[:7].lower() == b"bearer ":
        given = bearer[7:].strip()
    digest = hashlib.sha256(given or b"").digest()
    matches = [hmac.compare_digest(digest, known) for known in digests]  # all, in equal time
    if given is None or not any(matches):
        raise Unauthorized("A valid API key is required: send 'Authorization: Bearer KEY'.",
                           code="invalid_api_key", headers=((b"www-authenticate", b"Bearer"),))


def allowed_origin(exchange: Exchange, origins: Sequence[str]) -> Headers:
    """CORS headers for an origin that is allowed; none by default."""
    origin = exchange.header(b"origin") if origins else None
    if origin is None:
        return ()
    if "*" in origins:
        return ((b"access-control-allow-origin", b"*"),)
    if origin.decode("latin-1") in origins:
        return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
    return ()


async def preflight(exchange: Exchange, methods: Sequence[str]) -> int:
    """Answers a CORS preflight request of an allowed origin."""
    return await exchange.send_bytes(204, b"", (
        (b"access-control-allow-methods", ", ".join(methods).encode()),
        (b"access-control-allow-headers", ALLOWED_HEADERS),
        (b"access-control-max-age", PREFLIGHT_SECONDS)))


def log_request(exchange: Exchange, form: str, request: bytes, status: int, began_ns: int) -> None:
    """One line on standard error, never with content. form: text or json; else nothing."""
    if form not in ("text", "json"):
        return
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": "request",
        "request_id": request.decode("ascii"), "method": exchange.method, "path": exchange.path,
        "status": status, "ms": (time.monotonic_ns() - began_ns) // 1_000_000, **exchange.notes}
    if form == "json":
        line = json.dumps(entry)
    else:
        line = " ".join(f"{name}={value if PLAIN.fullmatch(str(value)) else json.dumps(value)}"
                        for name, value in entry.items())
    print(line, file=sys.stderr, flush=True)

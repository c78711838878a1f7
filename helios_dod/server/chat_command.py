"""`helios chat`: a streaming terminal client for any server of OpenAI's chat completions."""

import argparse
import http.client
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from helios_dod.errors import UserError

LINE_BYTES_MAX = 16 << 20
CONTENT, REASONING = "content", "reasoning_content"
DIM = "\x1b[2m{}\x1b[22m"  # ECMA-48, select graphic rendition
HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops the answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `helios chat`."""
    add = parser.add_argument
    add("prompt", nargs="*", help="ask once and leave; without it, a conversation")
    add("--url", default="http://127.0.0.1:8000", metavar="URL",
        help="the server, with or without /v1 (default %(default)s)")
    add("--model", metavar="ID", help="default: the first model that the server lists")
    add("--system", metavar="TEXT", help="a system message")
    add("--temperature", type=float, metavar="T")
    add("--max-tokens", type=int, metavar="N")
    add("--seed", type=int, metavar="N")


class Client:
    """One server. The environment's OPENAI_API_KEY is sent if it is set."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"--url: expected http://host:port, got {url!r}")
        try:
            self.port = parts.port
        except ValueError:
            raise UserError(f"--url: no such port in {url!r}") from None
        self.secure, self.host = parts.scheme == "https", parts.hostname
        path = parts.path.rstrip("/")
        self.base = path if path.endswith("/v1") else path + "/v1"
        self.url = url

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) \
            -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Sends a request; the open connection and the response. Raises UserError."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port)
        headers = {"content-type": "application/json"}
        key = os.environ.get("OPENAI_API_KEY")
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            connection.request(method, self.base + path,
                               None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UserError(f"cannot reach {self.url}: {error}; is `helios serve` running?") \
                from None
        if response.status != 200:
            with closing(connection):
                raise UserError(refusal(response.status, response.read(LINE_BYTES_MAX)))
        return connection, response

    def first_model(self) -> str:
        """The id of the first model served."""
        connection, response = self.request("GET", "/models")
        with closing(connection), closing(response):
            try:
                return str(json.loads(response.read())["data"][0]["id"])
            except (ValueError, KeyError, IndexError, TypeError):
                raise UserError(f"{self.url} does not list its models; give --model") from None

    def stream(self, body: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """The answer in pieces: field and text. Closing the iterator ends it on the server."""
        connection, response = self.request("POST", "/chat/completions", {**body, "stream": True})
        with closing(connection), closing(response):
            try:
                while line := response.readline(LINE_BYTES_MAX):
                    data = line.strip().removeprefix(b"data:").strip()
                    if not line.startswith(b"data:") or not data:
                        continue
                    if data == b"[DONE]":
                        return
                    yield from pieces(data)
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                raise UserError(f"the answer broke off: {error}") from None
        raise UserError("the server ended the answer before it was complete")


def pieces(data: bytes) -> Iterator[tuple[str, str]]:
    """Reasoning and text of one event. Raises UserError if it is an error event."""
    event = json.loads(data)
    if "error" in event:
        raise UserError(refusal(500, data))
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        for name in (REASONING, CONTENT):
            if delta.get(name):
                yield name, delta[name]


def refusal(status: int, body: bytes) -> str:
    """What an error answer says."""
    try:
        return f"{json.loads(body)['error']['message']} (status {status})"
    except (ValueError, KeyError, TypeError):
        return f"status {status}: {body[:200].decode('utf-8', 'replace')}"


class Conversation:
    """Messages so far, and how to ask for the next one."""

    def __init__(self, client: Client, args: argparse.Namespace) -> None:
        self.client = client
        fields = {"temperature": args.temperature, "max_tokens": args.max_tokens,
                  "seed": args.seed}
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.fields["model"] = args.model or client.first_model()
        self.start = [{"role": "system", "content": args.system}] if args.system else []
        self.messages = list(self.start)

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = list(self.start)

    def ask(self, text: str) -> bool:
        """Prints the answer as it comes and keeps it; False if Ctrl-C stopped it."""
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        shows, reasoned = sys.stderr.isatty(), False  # reasoning is never part of the output
        whole = True
        pieces_left = self.client.stream({**self.fields, "messages": self.messages})
        try:
            with closing(pieces_left):  # type: ignore[type-var]
                for name, piece in pieces_left:
                    if name == CONTENT:
                        if reasoned:
                            print(file=sys.stderr, flush=True)
                        reasoned = False
                        answer.append(piece)
                        print(piece, end="", flush=True)
                    elif shows:
                        reasoned = True
                        print(DIM.format(piece), end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            whole = False
        except UserError:
            self.messages.pop()
            raise
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(answer)})
        return whole


def run(args: argparse.Namespace) -> int:
    """Asks once, or talks until the end of input."""
    conversation = Conversation(Client(args.url), args)
    if args.prompt:
        return 0 if conversation.ask(" ".join(args.prompt)) else 130
    if not sys.stdin.isatty():
        return 0 if conversation.ask(sys.stdin.read()) else 130
    return converse(conversation)


def converse(conversation: Conversation) -> int:
    """The interactive loop."""
    import readline  # noqa: F401, line editing for input()

    print(f"{conversation.fields['model']} at {conversation.client.url}. {HELP}")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line in ("/exit", "/quit"):
            return 0
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(HELP)
        elif line:
            try:
                conversation.ask(line)
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)

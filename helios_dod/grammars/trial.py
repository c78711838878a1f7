"""Trying a grammar where it can do no harm: a helper process forks a child for each, which compiles
it, computes masks, and is killed by its own timer or memory limit.

`python -m helios_dod.grammars.trial FD` is the helper; it makes the tokenizer once and serves until
its socket closes. One message is one grammar, with a socket for the verdict."""

import array
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NoReturn

import msgspec

from helios_dod.errors import UserError
from helios_dod.grammars.library import (
    ROW_ITEMS_MAX,
    GrammarError,
    Library,
    Source,
    decode,
    is_too_wide,
    on_large_stack,
)

SECONDS_MAX = 2.0  # of one trial
MEMORY_MAX = 1 << 30  # bytes that a trial may map beyond the helper's and its stack's
WALKS, STEPS = 4, 32  # random answers that a trial begins, and tokens of each at most
VERDICTS_MAX = 4096
GOOD = b"\x01"
READY = b"\x02"
LENGTH = struct.Struct("<Q")


class Hello(msgspec.Struct):
    """The helper's first message."""

    tokenizer_json: bytes
    vocabulary: int
    eos: tuple[int, ...]


def trial(library: Library, data: bytes) -> None:
    """Compiles a grammar and begins a few answers. Raises GrammarError."""
    text = decode(data)
    compiled = library.compile(text)
    for seed in range(WALKS):
        matcher, rng = compiled.deep_copy(), random.Random(seed)
        for _ in range(STEPS):
            mask = matcher.compute_bitmask()
            if matcher.is_error():
                empty = "NoExtension" in matcher.get_error()
                raise GrammarError("no answer fulfils it" if empty else
                                   "a mask of it costs more than it may")
            token = some_bit(mask, rng)
            if token < 0:
                raise GrammarError("no answer fulfils it")
            if token in library.source.eos:
                break
            if not matcher.consume_token(token):
                raise GrammarError(
                    f"its parser would hold more than {ROW_ITEMS_MAX} items behind one token"
                    if is_too_wide(matcher) else "a token of it costs more than it may")


def some_bit(mask: bytes, rng: random.Random) -> int:
    """A token of a mask, or -1: the first one from a random place on, around its end."""
    value, count = int.from_bytes(mask, "little"), 8 * len(mask)
    first = rng.randrange(count)
    behind = value >> first << first
    chosen = behind or value
    return (chosen & -chosen).bit_length() - 1


def run_child(library: Library, connection: socket.socket, data: bytes) -> NoReturn:
    """One trial's process: the verdict is a byte for good, or the reason."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)  # SIGALRM, not handled, kills
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    most = mapped + (512 << 20) + MEMORY_MAX
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verdict = [b"the compiler ended without a verdict"]

    def work() -> None:
        try:
            trial(library, data)
            verdict[0] = GOOD
        except GrammarError as error:
            verdict[0] = str(error).encode()[:2000]
        except BaseException as error:  # also what the library makes of a panic
            verdict[0] = f"{type(error).__name__}: {error}".encode()[:2000]

    on_large_stack(work, "trial").join()
    connection.sendall(verdict[0])
    os._exit(0)


def receive_all(connection: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes; less at the end of the stream."""
    parts: list[bytes] = []
    while count > 0 and (part := connection.recv(min(count, 1 << 20))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def helper(control: socket.socket) -> None:
    """The helper's life."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    size, = LENGTH.unpack(receive_all(control, LENGTH.size))
    hello = msgspec.msgpack.decode(receive_all(control, size), type=Hello)
    library = Library(Source(hello.tokenizer_json, hello.vocabulary, hello.eos))
    while True:
        head, ancillary, _, _ = control.recvmsg(LENGTH.size, socket.CMSG_SPACE(4))
        if not head:
            return
        head += receive_all(control, LENGTH.size - len(head))
        data = receive_all(control, LENGTH.unpack(head)[0])
        descriptor = array.array("i")
        descriptor.frombytes(ancillary[0][2][:4])
        with socket.socket(fileno=descriptor[0]) as connection:
            try:  # what the child would wait for is made here, once
                library.tokenizer(decode(data).delimiters)
                connection.sendall(READY)
                if os.fork() == 0:
                    control.close()
                    run_child(library, connection, data)
            except (UserError, OSError, ValueError) as error:
                connection.sendall(READY + str(error).encode()[:2000])


class Trials:
    """A process's access to a helper, which it starts at first need. Verdicts are kept by content.

    Thread-safe; a trial blocks its caller."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, data: bytes) -> None:
        """Returns if the grammar can be served. Raises GrammarError with the reason."""
        with self._lock:
            known = self.verdicts.get(data)
        if known is None:
            known = self._ask(data)
            with self._lock:
                self.verdicts[data] = known
                if len(self.verdicts) > VERDICTS_MAX:
                    self.verdicts.popitem(last=False)
        if known:
            raise GrammarError(known)

    def _ask(self, data: bytes) -> str:
        """An empty text, or the reason why not. A helper that is gone is started once more."""
        try:
            return self._ask_helper(data)
        except OSError:
            return self._ask_helper(data)

    def _ask_helper(self, data: bytes) -> str:
        mine, theirs = socket.socketpair()
        with mine, theirs:
            with self._lock:
                control = self._helper()
                try:
                    socket.send_fds(control, [LENGTH.pack(len(data))], [theirs.fileno()])
                    control.sendall(data)
                except OSError:
                    self._forget()
                    raise
            theirs.close()
            if mine.recv(1) != READY:
                with self._lock:
                    if self._control is control:
                        self._forget()
                raise ConnectionResetError("the grammar compiler's helper ended")
            verdict = b"".join(iter(lambda: mine.recv(4096), b""))
        if verdict == GOOD:
            return ""
        return verdict.decode("utf-8", "replace") or (
            f"it takes more than {SECONDS_MAX:g} s or {MEMORY_MAX >> 20} MiB to compile")

    def _helper(self) -> socket.socket:
        if self._control is not None:
            return self._control
        control, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parent.parent.parent)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "helios_dod.grammars.trial", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(
                    filter(None, [root, os.environ.get("PYTHONPATH")]))})
        hello = msgspec.msgpack.encode(Hello(
            self.source.tokenizer_json, self.source.vocabulary, self.source.eos))
        control.sendall(LENGTH.pack(len(hello)) + hello)
        self._control = control
        return control

    def _forget(self) -> None:
        """The helper is gone: the next grammar starts another."""
        assert self._control is not None and self._process is not None
        self._control.close()
        self._control = None
        self._process.wait()

    def close(self) -> None:
        """Ends the helper."""
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._process is not None:
                self._process.wait()
                self._process = None


if __name__ == "__main__":
    helper(socket.socket(fileno=int(sys.argv[1])))

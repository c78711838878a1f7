"""Encoding in child processes that a timer kills.

The `tokenizers` library cannot be interrupted, and no reading of a pattern says what it takes of
the worst text that may come. So what a request sends is encoded by a fork of this process, which
has the tokenizer already, within processor time that goes by the text's length. The caller waits
without the interpreter's lock.
"""

import gc
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np

from helios_dod.frontend.tokenizer_data import TokenizerError, by_name

SECONDS_BASE = 0.5  # of processor for any text, and
RATE_MIN = 128 << 10  # bytes a second; honest tokenizers take five times as many and more
WALL_RATIO = 10  # of elapsed time to processor time, where other programs take the processors
MEMORY_MAX = 1 << 30  # bytes that a child may map beyond what it was forked with
HEAD = struct.Struct("<QB")  # bytes that follow; asked: whether places are, answered: whether well
LATE = (signal.SIGPROF, signal.SIGALRM)  # sent by the child's own timer, and by its caller
Place = Sequence[int]  # first character of a token, and the one behind it
Encode = Callable[[str, bool], tuple[list[int], Sequence[Place]]]  # places: only where asked for


def seconds_for(nbytes: int) -> float:
    """Of processor time that so many bytes of text may take."""
    return SECONDS_BASE + nbytes / RATE_MIN


class Ended(Exception):
    """The child is gone; its exit code is negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Child:
    """The caller's side of one child."""

    def __init__(self, encode: Encode) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                serve(encode, theirs)

    def ask(self, data: bytes, placed: bool) -> tuple[bytes, bool]:
        """The answer's bytes, and whether they are tokens or else a reason. Raises Ended."""
        self.connection.settimeout(WALL_RATIO * seconds_for(len(data)))
        try:
            self.connection.sendall(HEAD.pack(len(data), placed))
            self.connection.sendall(data)
            size, good = HEAD.unpack(receive(self.connection, HEAD.size))
            return receive(self.connection, size), bool(good)
        except TimeoutError:
            os.kill(self.pid, signal.SIGALRM)
            raise Ended(self.close()) from None
        except (OSError, EOFError):
            raise Ended(self.close()) from None

    def close(self) -> int:
        """Ends it; its exit code."""
        self.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Isolated:
    """`encode`, in children: one for each call at a time, forked at need. Thread-safe.

    slow: a text has taken too long, so that the next one may as well."""

    def __init__(self, encode: Encode) -> None:
        self.encode, self.slow = encode, False
        self.idle = [Child(encode)]

    def __call__(self, text: str, placed: bool) -> tuple[list[int], Sequence[Place]]:
        """As `encode`. Raises TokenizerError, also where a child does not end in time."""
        with by_name():
            data = text.encode()
        try:
            answer, good = self.answer(data, placed, self.taken())
        except Ended as ended:
            if -ended.code in LATE:
                self.refuse(data, ended.code)
            try:  # it may have ended while it waited
                answer, good = self.answer(data, placed, Child(self.encode))
            except Ended as again:
                self.refuse(data, again.code)
        if not good:
            raise TokenizerError(answer.decode())
        numbers = np.frombuffer(answer, np.int32)
        if not placed:
            return numbers.tolist(), ()
        ids, places = numbers[: len(numbers) // 3], numbers[len(numbers) // 3:]
        return ids.tolist(), places.reshape(-1, 2).tolist()

    def taken(self) -> Child:
        """A child that waits, or a new one."""
        try:
            return self.idle.pop()
        except IndexError:
            return Child(self.encode)

    def answer(self, data: bytes, placed: bool, child: Child) -> tuple[bytes, bool]:
        """What a child answers, which then waits for the next text. Raises Ended."""
        answer = child.ask(data, placed)
        self.idle.append(child)
        return answer

    def refuse(self, data: bytes, code: int) -> NoReturn:
        """Says how a child ended over a text."""
        self.slow = True
        if -code in LATE:
            raise TokenizerError(f"{len(data)} bytes of text take more than "
                                 f"{seconds_for(len(data)):.2f} s to encode")
        raise TokenizerError(memory_words(len(data), f"exit code {code}"))

    def close(self) -> None:
        """Ends the children that wait."""
        while self.idle:
            self.idle.pop().close()


def memory_words(nbytes: int, how: str) -> str:
    """What is said of a text that took all memory that it has."""
    return f"encoding {nbytes} bytes of text ended with {how}; it has {MEMORY_MAX >> 20} MiB"


def peak() -> int:
    """The most bytes of addresses that this process has had."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmPeak:"))
    return int(line.split()[1]) << 10


def receive(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes. Raises EOFError."""
    data = bytearray(count)
    left = memoryview(data)
    while left:
        got = connection.recv_into(left)
        if got == 0:
            raise EOFError
        left = left[got:]
    return bytes(data)


def serve(encode: Encode, connection: socket.socket) -> NoReturn:
    """A child's life: it ends when the other side closes."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for ending in (signal.SIGTERM, *LATE):
            signal.signal(ending, signal.SIG_DFL)
        gc.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic is answered, and not written too
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != connection.fileno():
                with suppress(OSError):  # the listing's own is closed by now
                    os.close(number)  # connections of clients and of other children
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + MEMORY_MAX
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or hard > most:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        while True:
            size, placed = HEAD.unpack(receive(connection, HEAD.size))
            text = receive(connection, size).decode()
            signal.setitimer(signal.ITIMER_PROF, seconds_for(size))
            full = False
            try:
                ids, places = encode(text, bool(placed))
                answer, good = np.array(ids, np.int32).tobytes(), True
                answer += np.array(places, np.int32).tobytes()
            except (TokenizerError, MemoryError) as error:
                full = isinstance(error, MemoryError) or peak() > most - MEMORY_MAX // 2
                words = memory_words(size, repr(error)) if full else str(error)
                answer, good = words.encode(), False
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(HEAD.pack(len(answer), good))
            connection.sendall(answer)
            if full:
                raise EOFError  # the next text's peak is its own
    except EOFError:
        code = 0
    finally:
        os._exit(code)

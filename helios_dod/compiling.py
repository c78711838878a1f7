"""A progress line for compiling: jitted code is made at first start, then kept in the cache."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from numba.core import event

REDRAW_S = 0.2


class _Count(event.Listener):
    """Draws the number of functions that were compiled."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self.label, self.stream = label, stream
        self.count = 0
        self.drawn = 0.0

    def on_start(self, event: event.Event) -> None:
        """A function, maybe one that another needs, was not in the cache."""
        self.count += 1
        now = time.monotonic()
        if self.stream.isatty():
            if now - self.drawn >= REDRAW_S:
                self.drawn = now
                self._write(f"\r{self.label}: {self.count} functions ...\x1b[K")
        elif self.count == 1:
            self._write(f"{self.label} ...\n")

    def on_end(self, event: event.Event) -> None:
        """Nothing is shown."""

    def finish(self, seconds: float) -> None:
        """The last line, if anything was compiled."""
        if self.count:
            start, clear = ("\r", "\x1b[K") if self.stream.isatty() else ("", "")
            self._write(f"{start}{self.label}: {self.count} functions in {seconds:.1f} s{clear}\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


@contextmanager
def compile_line(label: str, stream: TextIO | None = None) -> Iterator[None]:
    """Shows what is compiled inside the block; silent where all code comes from the cache."""
    count = _Count(label, sys.stderr if stream is None else stream)
    started = time.monotonic()
    with event.install_listener("numba:compile", count):
        yield
    count.finish(time.monotonic() - started)

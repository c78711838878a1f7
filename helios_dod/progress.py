"""One line of progress on standard error: a bar on a terminal, start and end elsewhere."""

import sys
import time
from types import TracebackType
from typing import TextIO

BAR_CELLS = 24
REDRAW_S = 0.1


def format_bytes(count: float) -> str:
    """A byte count in the largest unit that leaves at least 1: `93.8 MB` (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Progress:
    """Use as a context manager and call it with the amount done since the last call.

    total: bytes when `unit` is "B", else a count of `unit`s."""

    def __init__(
        self, label: str, total: int, unit: str = "B", stream: TextIO | None = None,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.done = 0
        self.started = self.drawn = time.monotonic()

    def __enter__(self) -> "Progress":
        if not self.live:
            self._write(f"{self.label}: {self._amount(self.total)} ...\n")
        return self

    def __call__(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        if self.live and now - self.drawn >= REDRAW_S:
            self.drawn = now
            share = min(1.0, self.done / max(self.total, 1))
            bar = ("#" * round(BAR_CELLS * share)).ljust(BAR_CELLS, ".")
            of = f"{self._amount(self.done)} of {self._amount(self.total)}"
            self._write(f"\r{self.label}: [{bar}] {share:4.0%}  {of}\x1b[K")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        ended = "done" if kind is None else "stopped"
        seconds = time.monotonic() - self.started
        start, clear = ("\r", "\x1b[K") if self.live else ("", "")
        self._write(f"{start}{self.label}: {self._amount(self.done)}, {ended} in "
                    f"{seconds:.1f} s{clear}\n")

    def _amount(self, count: int) -> str:
        return format_bytes(count) if self.unit == "B" else f"{count} {self.unit}"

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

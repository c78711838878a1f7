"""`helios replay FILE`."""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from helios_dod.errors import UserError
from helios_dod.ledger import UNFINISHED
from helios_dod.limits import NO_ROW
from helios_dod.recording import Crash, Divergence, load, replay
from helios_dod.server.names import read_id
from helios_dod.simulation.waits import find_request, in_ring, why
from helios_dod.terms import FREE

SHOWN = 20  # requests that the summary lists
TAG_DIGITS = 19  # of a 64-bit number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `helios replay`."""
    parser.add_argument("file", type=Path, help="what `helios serve --record FILE` wrote")
    parser.add_argument("--request", metavar="ID",
                        help="say for this request why it waited at each tick: an answer's id (its "
                             "first choice), or a tag")
    parser.add_argument("--frontend", type=int, default=0, metavar="ROW",
                        help="the HTTP worker that a tag came through (default %(default)s); an id "
                             "says it itself")


def run(args: argparse.Namespace) -> int:
    """0: every tick ran again to the same decisions, and to the same world. 1: one raised, as
    recorded or not, or decided otherwise. Raises UserError."""
    file = load(args.file)
    lines = Timeline() if args.request is None else Timeline(*asked(args.request, args.frontend))
    ended, ran = "", 0
    try:
        for world in replay(file):
            lines.see(world)
            ran += 1
    except Divergence as error:
        ended = f"replay ended in tick {lines.tick + 1}: {error}"
    except Crash as error:
        recorded = ran + 1 == len(file.entries) and str(error) == file.ended
        ended = f"tick {lines.tick + 1} raised {'the same again' if recorded else error}"
    lines.finish()
    print(f"recording ended: {file.ended}")
    if ended:
        print(ended)
        return 1
    last = file.entries[-1].decisions == UNFINISHED if file.entries else False
    print(f"{len(file.entries)} ticks ran again to the same decisions"
          + ("; the last had not ended when the engine did" if last else ""))
    print(f"digest {file.digest}" if file.digest else "no digest: a tick had begun")
    return 0


def asked(request: str, frontend: int) -> tuple[int, int]:
    """(tag, frontend) of a `--request`. Raises UserError."""
    named = read_id(request)
    if named is not None:
        return named[1], named[0]
    if not request.isdecimal() or len(request) > TAG_DIGITS:
        raise UserError(f"--request: expected an answer's id or a tag, got {request!r}")
    return int(request), frontend


class Timeline:
    """Prints a request's spans of equal reasons, or without one, which requests there were."""

    def __init__(self, tag: int | None = None, frontend: int = 0) -> None:
        self.tag, self.frontend = tag, frontend
        self.tick = 0
        self.reason = ""
        self.first = self.last = (0, 0)  # tick, now_ns
        self.seen: Counter[tuple[int, int]] = Counter()

    def see(self, world: np.ndarray) -> None:
        """Looks at the world after a tick."""
        clock, requests = world[0]["clock"], world[0]["requests"]
        self.tick = int(clock["tick"])
        if self.tag is None:
            for row in np.nonzero(requests["state"] != FREE)[0].tolist():
                self.seen[int(requests["frontend"][row]), int(requests["tag"][row])] += 1
            return
        row = find_request(world, self.tag, self.frontend)
        reason = in_ring(world, self.tag, self.frontend) if row == NO_ROW else why(world, row)
        now = (self.tick, int(clock["now_ns"]))
        if reason != self.reason:
            self.show()
            self.reason, self.first = reason, now
        self.last = now
        self.seen[self.frontend, self.tag] += reason != ""

    def show(self) -> None:
        """Prints the span that has ended."""
        if self.reason:
            span = (self.last[1] - self.first[1]) / 1e6
            print(f"ticks {self.first[0]}-{self.last[0]} ({span:.3f} ms): {self.reason}")

    def finish(self) -> None:
        """The last span, or the summary. Raises UserError for a request that was never there."""
        if self.tag is None:
            for (frontend, tag), ticks in self.seen.most_common(SHOWN):
                print(f"--frontend {frontend} --request {tag}: {ticks} ticks")
            if len(self.seen) > SHOWN:
                print(f"and {len(self.seen) - SHOWN} more requests")
            return
        self.show()
        if not self.seen[self.frontend, self.tag]:
            raise UserError(f"--request {self.tag}: not seen in frontend {self.frontend}")

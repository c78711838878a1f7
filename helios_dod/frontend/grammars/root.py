"""A schema that is rewritten, and what its rewriting may cost: a short one can ask for more parts
than memory holds, and patterns can take years where every way to match is tried."""

import time
from typing import Any

from helios_dod.frontend.output.expressions import Expressions
from helios_dod.frontend.references import target_of

PARTS_MAX = 120_000  # no grammar has room for more, at a byte each
PATTERN_SECONDS_MAX = 0.5  # of processor time, to hold names against patterns
REQUEST_PARTS_MAX = 500_000  # of all schemas of one request: two seconds of work at most
REQUEST_BYTES_MAX = 4 << 20  # of the same; definitions count at each parameter that has them
UNFOLDED_DEPTH_MAX = 500  # containers inside containers, in what was made


class Costly(ValueError):
    """The rewriting costs too much; the text completes "'field' ..."."""


class Room:
    """What all schemas of one request may still cost."""

    def __init__(self) -> None:
        self.parts, self.nbytes = REQUEST_PARTS_MAX, REQUEST_BYTES_MAX
        self.seconds = PATTERN_SECONDS_MAX

    def spend(self, parts: int) -> None:
        """So many parts are made or read. Raises Costly."""
        self.parts -= parts
        if self.parts < 0:
            raise Costly(f"and what is before it have more than {REQUEST_PARTS_MAX} parts once "
                         "their keywords are rewritten")

    def write(self, nbytes: int) -> None:
        """So many bytes of schema are written. Raises Costly."""
        self.nbytes -= nbytes
        if self.nbytes < 0:
            raise Costly(f"and what is before it have more than {REQUEST_BYTES_MAX} bytes, "
                         "definitions counted at each parameter")


class Root:
    """The root of one schema; the parts that are left."""

    def __init__(self, schema: Any, room: Room) -> None:
        self.schema, self.room = schema, room
        self.left = PARTS_MAX
        self.expressions = Expressions(patterns=PARTS_MAX, matches=PARTS_MAX)

    def target(self, reference: Any) -> Any:
        """What a reference leads to, or None."""
        return target_of(self.schema, reference)

    def spend(self, count: int) -> None:
        """So many parts are made or read. Raises Costly."""
        self.left -= count
        if self.left < 0:
            raise Costly(f"has more than {PARTS_MAX} parts once its keywords are rewritten")
        self.room.spend(count)

    def has(self, name: str, pattern: str) -> bool | None:
        """Whether a pattern is found in a name; None where nobody can say. Raises Costly."""
        began = time.thread_time()
        found = self.expressions.match(pattern, name)
        self.room.seconds -= time.thread_time() - began
        if self.room.seconds < 0:
            raise Costly(f"takes more than {PATTERN_SECONDS_MAX} s to hold the names of its "
                         "properties against its patterns")
        return found


def check_unfolded(schema: Any, most: int) -> None:
    """Raises Costly where a schema, written out, has more than `most` bytes, whatever it holds
    several times over; where it holds itself; or where it is too deep to be written."""
    known: dict[int, tuple[int, int]] = {}  # by container: bytes at least, depth
    path: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(schema, False)]
    while waiting:
        part, entered = waiting.pop()
        inner = [*part, *part.values()] if isinstance(part, dict) else part
        inside = [value for value in inner if isinstance(value, (dict, list))]
        if not entered and id(part) not in known:
            if id(part) in path:
                raise Costly("holds itself once its keywords are rewritten")
            path.add(id(part))
            waiting += [(part, True), *((value, False) for value in inside)]
        elif entered:
            path.discard(id(part))
            size = 2 + sum(len(value) + 2 if isinstance(value, str) else 2 for value in inner)
            size += sum(known[id(value)][0] for value in inside)
            depth = 1 + max((known[id(value)][1] for value in inside), default=0)
            if size > most:
                raise Costly(f"has more than {most} bytes once its keywords are rewritten")
            if depth > UNFOLDED_DEPTH_MAX:
                raise Costly(f"is nested deeper than {UNFOLDED_DEPTH_MAX} once its keywords are "
                             "rewritten")
            known[id(part)] = size, depth

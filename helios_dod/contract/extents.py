"""Row domains: which axis 0 holds all rows that an operation of a body runs over or names.

Extents are chosen at load, so this is decided by symbols: of a program with batch B and packed
capacity P, at most B lanes and P packed tokens are live, and LANES and PACKED are at least that
while it is loaded. A lane is of a slot of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

WHOLE_LOGITS = (wire.SCORED_PREFILL, wire.SPECULATIVE)  # LOGIT_ROWS holds every packed row
COVERS = {"sampled": ("lanes",)}  # a domain -> others that it is a part of
NAMED = {"slot": wire.SLOTS, "state row": wire.STATE_ROWS, "drawn state row": wire.STATE_ROWS,
         "snapshot row": wire.SNAPSHOT_ROWS}  # axes whose rows values of a kind are numbers of
Axis = tuple[int, int]  # symbol, multiplier


@dataclass(frozen=True)
class Value:
    """What an i32 may be: the number of a row of a domain, or another quantity.

    offset: added to it by a binding. For `constant` it is the value itself."""

    kind: str
    offset: int = 0

    def __str__(self) -> str:
        if self.kind == "constant":
            return f"constant {self.offset}"
        return self.kind + (f" + {self.offset}" if self.offset else "")


class Extents:
    """What the programs of one body need, and the numbers of the contract that bound values."""

    def __init__(self, serving: contract.ServingContract, programs: Iterable[wire.Program],
                 state_rows: int = 0) -> None:
        self.programs = [(p.batch_capacity, p.packed_token_capacity, p.operation)
                         for p in programs]
        self.batch = max((batch for batch, _, _ in self.programs), default=1)
        self.packed = max((packed for _, packed, _ in self.programs), default=1)
        self.state_rows = state_rows  # of one request, of the program that has the fewest
        self.snapshots = serving.snapshots
        self.slots = serving.concurrency
        self._held: dict[tuple[Axis, str], bool] = {}
        model = serving.model
        self.bounds = {  # values of a kind are below, before their offset
            "slot": self.slots, "lane": self.batch, "packed row": self.packed,
            "token": model.vocabulary,  # input ids beyond it stand for images, and are no text
            "position": serving.context_tokens}

    def holds(self, axis: Axis, domain: str) -> bool:
        """Whether axis 0 has every row of a domain."""
        key = (axis, domain)
        if key not in self._held:
            self._held[key] = self._holds(axis, domain)
        return self._held[key]

    def _holds(self, axis: Axis, domain: str) -> bool:
        symbol, times = axis
        if domain == "one":
            return True
        if domain == "updates":
            return symbol == wire.UPDATES
        if domain in ("lanes", "sampled", "drawn"):
            if symbol == wire.PACKED:
                return all(batch <= packed * times for batch, packed, _ in self.programs)
            return symbol in (wire.LANES, wire.LOGIT_ROWS, wire.SLOTS) or (
                symbol == 0 and times >= self.batch)
        assert domain == "packed", domain
        if symbol in (wire.LANES, wire.LOGIT_ROWS):
            return all(packed <= batch * times or (
                symbol == wire.LOGIT_ROWS and operation in WHOLE_LOGITS)
                for batch, packed, operation in self.programs)
        return symbol == wire.PACKED or (symbol == 0 and times >= self.packed)

    def names(self, axis: Axis, value: Value) -> bool:
        """Whether axis 0 has every row that a value may be the number of."""
        symbol, times = axis
        if value.kind == "constant":
            if value.offset == 0 and symbol == wire.SNAPSHOT_ROWS:
                return self.snapshots > 0 and self.state_rows > 0
            if value.offset == 0 and symbol == wire.STATE_ROWS:
                return self.state_rows > 0
            return value.offset == 0 or (symbol == 0 and 0 < value.offset < times)
        if symbol == 0 and value.kind in self.bounds:
            return value.offset >= 0 and self.bounds[value.kind] + value.offset <= times
        if value.offset:
            return False
        if value.kind in ("lane", "sample row", "packed row"):
            return self.holds(axis, "lanes" if value.kind == "lane" else "packed")
        return NAMED.get(value.kind) == symbol


def covered(domain: str, written: Iterable[str]) -> bool:
    """Whether rows of a domain are among those that were written."""
    written = set(written)
    return domain in written or any(other in written for other in COVERS.get(domain, ()))

"""What a program of a simulated device takes: a linear function of what the frame holds, or the
larger of two, bytes moved and operations done.

Coefficients are integers, picoseconds of each feature, so that a cost is the same on every machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod import terms
from helios_dod.bounds import whole
from helios_dod.errors import UserError
from helios_dod.executors.acceptance import Acceptance, acceptance_in
from helios_dod.system import kernel

# Of one frame: itself, its lanes, packed tokens, lanes that sample, tokens of history that its
# lanes read (their own included), and pairs of a token and one that it sees.
FEATURES = ("program", "lanes", "packed", "sampled", "history", "pairs")
SIDES = ("bytes", "operations")
SCALE = "thousandths"  # in files
OPERATIONS = {name[3:].lower(): value for name, value in vars(terms).items()
              if name.startswith("OP_")}
TABLE_SHAPE = (max(OPERATIONS.values()) + 1, len(SIDES), len(FEATURES))
PROGRAM_NS_MAX, PACKED_NS_MAX = 10**15, 10**11  # of a fixed cost
PS = 1000  # picoseconds of a nanosecond
# Few tokens take what their number of rows takes, which no sum of features follows: a sum is scaled
# by thousandths, for each operation and so many packed tokens.
SCALED_MAX = 16
SCALE_SHAPE = (TABLE_SHAPE[0], SCALED_MAX + 1)
WHOLE = 1000
SCALE_MAX = 1000 * WHOLE
FORMAT = 1


@kernel
def count_features(world, frame, out):
    """Fills int64 [6] in the order of FEATURES."""
    frames, lanes = world[0].frames, world[0].lanes
    out[0], out[1] = 1, frames.lane_count[frame]
    out[2], out[3] = frames.packed_count[frame], frames.sampled_count[frame]
    history, pairs = 0, 0
    for lane in range(frames.lane_count[frame]):
        consumed, length = lanes.consumed[frame, lane], np.int64(lanes.query_length[frame, lane])
        history += consumed + length
        pairs += consumed * length + length * (length + 1) // 2
    out[4], out[5] = history, pairs


@kernel
def program_ns(world, frame, operation, costs, features):
    """Nanoseconds of a submitted frame: the larger side of table[operation], scaled. costs: table
    and scale as in `Costs`. features: int64 [6], overwritten."""
    table, scale = costs
    count_features(world, frame, features)
    most = 0
    for side in range(table.shape[1]):
        total = 0
        for i in range(features.shape[0]):
            total += table[operation, side, i] * features[i]
        most = max(most, total)
    packed = world[0].frames.packed_count[frame]
    if packed < scale.shape[1]:
        most = most // WHOLE * scale[operation, packed]
    return most // PS


def unscaled() -> np.ndarray:
    """A scale that changes nothing."""
    return np.full(SCALE_SHAPE, WHOLE, np.int64)


@dataclass(frozen=True)
class Costs:
    """table: int64 [operation, side, feature], picoseconds, not negative. host_ns: between a tick
    and the start of what it launched on an idle device. scale: int64 [operation, packed tokens],
    thousandths of what the table says. acceptance: how often drafts were right where the costs are
    from; None: unknown."""

    table: np.ndarray
    host_ns: int = 0
    scale: np.ndarray = field(default_factory=unscaled)
    acceptance: Acceptance | None = None

    def __post_init__(self) -> None:
        if self.table.shape != TABLE_SHAPE or self.table.dtype != np.int64:
            raise UserError(f"costs.table: expected int64 of shape {TABLE_SHAPE}, got "
                            f"{self.table.dtype} of {self.table.shape}")
        if self.scale.shape != SCALE_SHAPE or self.scale.dtype != np.int64:
            raise UserError(f"costs.scale: expected int64 of shape {SCALE_SHAPE}, got "
                            f"{self.scale.dtype} of {self.scale.shape}")
        least = min(int(self.table.min()), int(self.scale.min()), self.host_ns)
        if least < 0:
            raise UserError(f"costs: expected nothing negative, got {least}")

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """As `program_ns` takes them."""
        return self.table, self.scale

    def plain(self) -> dict[str, Any]:
        """As JSON values; what costs nothing is left out."""
        operations: dict[str, Any] = {}
        for name, row in OPERATIONS.items():
            sides = {side: {feature: int(value) for feature, value in zip(
                FEATURES, self.table[row, at], strict=True) if value}
                for at, side in enumerate(SIDES) if self.table[row, at].any()}
            if (self.scale[row] != WHOLE).any():
                sides[SCALE] = {str(packed): int(value) for packed, value in enumerate(
                    self.scale[row]) if value != WHOLE}
            if sides:
                operations[name] = sides
        return {"format": FORMAT, "unit": "picoseconds", "host_ns": self.host_ns,
                "operations": operations, **(
                    {} if self.acceptance is None else {"acceptance": self.acceptance.plain()})}


@dataclass(frozen=True)
class FixedCost:
    """Nanoseconds of a program, whatever its operation: a constant and a part for every packed
    token."""

    program_ns: int = 1_000_000
    packed_ns: int = 10_000
    host_ns: int = 0

    def __post_init__(self) -> None:
        """Raises UserError. Picoseconds of the largest frame fit int64."""
        whole("program_ns", self.program_ns, 0, PROGRAM_NS_MAX)
        whole("packed_ns", self.packed_ns, 0, PACKED_NS_MAX)
        whole("host_ns", self.host_ns, 0, PROGRAM_NS_MAX)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """As `Costs.arrays`."""
        table = np.zeros(TABLE_SHAPE, np.int64)
        table[:, 0, FEATURES.index("program")] = self.program_ns * PS
        table[:, 0, FEATURES.index("packed")] = self.packed_ns * PS
        return table, unscaled()


def read_costs(path: Path) -> Costs:
    """What `Costs.plain` gave. Raises UserError naming file, field and value."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UserError(f"{path}: format: expected {FORMAT}, got "
                        f"{value.get('format') if isinstance(value, dict) else value!r}")
    table, scale = np.zeros(TABLE_SHAPE, np.int64), unscaled()
    counts = tuple(str(packed) for packed in range(1, SCALED_MAX + 1))
    for name in _part(path, value, "operations"):
        if name not in OPERATIONS:
            raise UserError(f"{path}: operations: expected one of {', '.join(OPERATIONS)}, got "
                            f"{name}")
        for side in _part(path, value["operations"], name, (*SIDES, SCALE)):
            if side == SCALE:
                for packed, number in _part(
                        path, value["operations"][name], SCALE, counts).items():
                    scale[OPERATIONS[name], int(packed)] = _number(
                        path, f"operations.{name}.{SCALE}.{packed}", number, SCALE_MAX)
                continue
            features = _part(path, value["operations"][name], side, FEATURES)
            for feature, number in features.items():
                table[OPERATIONS[name], SIDES.index(side), FEATURES.index(feature)] = _number(
                    path, f"operations.{name}.{side}.{feature}", number)
    return Costs(table, _number(path, "host_ns", value.get("host_ns", 0)), scale,
                 acceptance_in(path, value))


def _part(path: Path, value: Mapping[str, Any], name: str,
          keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    part = value.get(name)
    if not isinstance(part, dict):
        raise UserError(f"{path}: {name}: expected an object, got {part!r}")
    for key in part:
        if keys is not None and key not in keys:
            raise UserError(f"{path}: {name}: expected one of {', '.join(keys)}, got {key}")
    return part


def _number(path: Path, name: str, value: object, most: int = (1 << 53) - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UserError(f"{path}: {name}: expected a whole number from 0 to {most}, got {value!r}")
    return value

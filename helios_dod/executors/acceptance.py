"""How often the drafts of a simulated device are right, by their place behind the pending token.

A draft's confidence lies around the chance of its place, and it is right just as often as its
confidence says: so what a device allocates by confidence, the more hopeful prefixes, is accepted
more often than the rest. All shares are of 65,536, so that a model is the same on every machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.bounds import INT64_MAX, real, shown, whole
from helios_dod.errors import UserError
from helios_dod.executors.simulated_device import mix
from helios_dod.system import kernel

ONE = 1 << 16
PLACES_MAX = 16  # of one lane's drafts
SPREAD, SEED, CHANCES = range(3)  # words of a model: then one chance a place
NO_MODEL = np.zeros(0, np.int64)
KEY = 0x5851F42D4C957F2D


@dataclass(frozen=True)
class Acceptance:
    """chances: of the first draft and those behind it, each given that all before it are accepted;
    the last one counts for every later place. spread: how far the confidence of one draft lies from
    its chance at most, evenly. seed: other drafts are right for another one."""

    chances: tuple[int, ...]
    spread: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UserError."""
        if not isinstance(self.chances, tuple) or not 1 <= len(self.chances) <= PLACES_MAX:
            raise UserError(f"acceptance.chances: expected a tuple of 1 to {PLACES_MAX}, got "
                            f"{shown(self.chances)}")
        for place, chance in enumerate(self.chances):
            whole(f"acceptance.chances[{place}]", chance, 0, ONE)
        whole("acceptance.spread", self.spread, 0, ONE)
        whole("acceptance.seed", self.seed, 0, INT64_MAX)

    @classmethod
    def of(cls, shares: Sequence[float], spread: float = 0.0) -> "Acceptance":
        """Of shares from 0 to 1. Raises UserError."""
        chances = [round(real(f"acceptance.chances[{place}]", share, 0, 1) * ONE)
                   for place, share in enumerate(shares)]
        return cls(tuple(chances), round(real("acceptance.spread", spread, 0, 1) * ONE))

    @property
    def model(self) -> np.ndarray:
        """As `foretell` takes it: int64 [2 + places]."""
        return np.array([self.spread, self.seed, *self.chances], np.int64)

    def expected_tokens(self, drafts: int) -> float:
        """Tokens of a lane in a round of so many drafts, on average, if all are verified."""
        share, total = 1.0, 1.0
        for place in range(drafts):
            share *= self.chances[min(place, len(self.chances) - 1)] / ONE
            total += share
        return total

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"chances": list(self.chances), "spread": self.spread}


@kernel
def foretell(model, seed, position, place):
    """(whether a draft is right, its confidence as float32). seed: of the request. position: of the
    token before the draft. place: of the draft, 0 behind the pending token."""
    drawn = mix(mix(np.uint64(position) ^ np.uint64(model[SEED])) ^ np.uint64(seed)
                ^ np.uint64(KEY))
    low = np.int64(drawn & np.uint64(ONE - 1))
    high = np.int64((drawn >> np.uint64(32)) & np.uint64(ONE - 1))
    chance = model[min(CHANCES + place, model.shape[0] - 1)]
    reach = min(model[SPREAD], chance, ONE - chance)
    sure = chance + reach * (2 * low + 1 - ONE) // ONE
    return high < sure, np.float32(sure) / np.float32(ONE)


def fitted(offered: np.ndarray, accepted: np.ndarray) -> Acceptance | None:
    """Of what was counted by place, int64 [places]: drafts that were verified behind accepted ones,
    and those of them that were accepted. None where there were none."""
    places = int(np.count_nonzero(offered))
    if places == 0:
        return None
    shares = accepted[:places] / offered[:places]
    return Acceptance(tuple(np.rint(shares * ONE).astype(int).tolist()))


def acceptance_in(path: Path, value: Mapping[str, Any]) -> Acceptance | None:
    """What the contents of a file of costs say of drafts, `Acceptance.plain` under "acceptance";
    None: nothing. Raises UserError naming file, field and value."""
    found = value.get("acceptance")
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("chances"), list):
        raise UserError(f"{path}: acceptance: expected an object with chances, got {shown(found)}")
    try:
        return Acceptance(tuple(found["chances"]), found.get("spread", 0))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None

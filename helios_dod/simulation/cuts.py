"""Atomic spans and boundary endpoints of simulated prompts."""

import random
from typing import Any

from helios_dod.limits import BOUNDARIES_MAX, SPANS_MAX


def random_cuts(rng: random.Random, count: int, longest: int, share: float) -> dict[str, Any]:
    """Fields of a Submission of `count` prompt tokens: none, or spans of up to `longest` tokens,
    rarely more, and boundaries beside them."""
    if rng.random() >= share:
        return {}
    spans: list[tuple[int, int, int]] = []
    at = rng.randint(0, count)
    while at < count and len(spans) < SPANS_MAX:
        end = at + rng.randint(1, longest + (rng.random() < 0.05))
        if end > count:
            break
        spans.append((at, end, rng.randint(1, 3)))
        at = end + rng.choice((0, 1, rng.randint(0, 40)))
    outside = [e for e in range(1, count + 1) if not any(a < e < b for a, b, _ in spans)]
    picked = rng.sample(outside, min(len(outside), rng.randint(0, 3), BOUNDARIES_MAX))
    return {"spans": tuple(spans), "boundaries": tuple(sorted(picked))}

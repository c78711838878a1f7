"""GET /live: what the tables say now, without content: requests, frames, programs, pages, waits."""

from typing import Any

import numpy as np

from helios_dod import terms
from helios_dod.server.metrics import OPERATIONS, Tables
from helios_dod.tables.requests import AGING_NS
from helios_dod.terms import FREE, RUNNING, WAITING

ROWS_MAX = 256  # requests that one answer lists
FRAME_STATES = {getattr(terms, name): name.removeprefix("FRAME_").lower()
                for name in vars(terms) if name.startswith("FRAME_")} | {FREE: "free"}
STATES = {WAITING: "waiting", RUNNING: "running", terms.FINISHED: "finishing"}


def waiting_reason(world: np.void, row: int) -> str:
    """Why a waiting request has no slot yet."""
    if row != int(world["requests"]["waiting_first"]):
        return "behind others"
    if int(world["slots"]["live_count"]) >= int(world["settings"]["slot_count"]):
        return "no free slot"
    return "no free pages"


def requests_of(world: np.void) -> list[dict[str, Any]]:
    """The accepted requests, at most ROWS_MAX, running ones first."""
    table, now = world["requests"], int(world["clock"]["now_ns"])
    states = np.array(table["state"])
    rows = [*np.nonzero(states == RUNNING)[0].tolist(), *np.nonzero(states == WAITING)[0].tolist(),
            *np.nonzero(states == terms.FINISHED)[0].tolist()]
    listed = []
    for row in rows[:ROWS_MAX]:
        state = int(states[row])
        prompt, priority = int(table["prompt_count"][row]), int(table["priority"][row])
        arrival = int(table["order_ns"][row]) - priority * AGING_NS
        listed.append({
            "row": row, "state": STATES[state], "worker": int(table["frontend"][row]),
            "priority": priority, "prompt_tokens": prompt,
            "cached_tokens": int(table["cached_count"][row]),
            "generated_tokens": int(table["token_count"][row]) - prompt,
            "output_limit": int(table["output_limit"][row]),
            "age_ms": max(now - arrival, 0) // 1_000_000,
            "slot": int(table["slot"][row]) if state == RUNNING else None,
            "waits_for": waiting_reason(world, row) if state == WAITING else None})
    return listed


def live_of(tables: Tables) -> dict[str, Any]:
    """The whole view. Rows are read while the engine writes them: each value is one that was."""
    world = tables.world[0]
    frames = world["frames"]
    operations = world["programs"]["operation"]
    shown = []
    for frame in range(len(frames["state"])):
        state, program = int(frames["state"][frame]), int(frames["program"][frame])
        busy = state != FREE and program < len(operations)
        shown.append({
            "state": FRAME_STATES.get(state, "unknown"), "sequence": int(frames["sequence"][frame]),
            "operation": OPERATIONS.get(int(operations[program])) if busy else None,
            "lanes": int(frames["lane_count"][frame]) if busy else 0,
            "packed": int(frames["packed_count"][frame]) if busy else 0})
    names = ("operation", "batch", "packed", "launches", "mean_ns")
    return {
        "gauges": {name: value for name, (_, value) in tables.gauges().items()},
        "counters": {name: int(tables.counters[name]) for name in tables.counters.dtype.names},
        "permits_full": int(tables.workers["permits_full"].sum()),
        "frames": shown,
        "programs": [dict(zip(names, program, strict=True)) for program in tables.programs()
                     if program[3]],
        "requests": requests_of(world)}

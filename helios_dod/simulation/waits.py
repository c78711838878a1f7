"""Why a request did not advance in a tick, read from the world after it."""

import numpy as np

from helios_dod import terms
from helios_dod.limits import NO_ROW
from helios_dod.systems.admit import fits, promise_of
from helios_dod.systems.compose import room_tokens

FINISHES = {value: name.removeprefix("FINISH_").lower().replace("_", " ")
            for name, value in vars(terms).items() if name.startswith("FINISH_")}
OPERATIONS = {value: name.removeprefix("OP_").lower().replace("_", " ")
              for name, value in vars(terms).items() if name.startswith("OP_")}


def find_request(world: np.ndarray, tag: int, frontend: int) -> int:
    """The row of a frontend's request, or NO_ROW."""
    requests = world[0]["requests"]
    rows = np.nonzero((requests["state"] != terms.FREE) & (requests["tag"] == tag)
                      & (requests["frontend"] == frontend))[0]
    return int(rows[0]) if len(rows) else NO_ROW


def in_ring(world: np.ndarray, tag: int, frontend: int) -> str:
    """What a frontend's request waits for that was not received yet; "" for none of its ring."""
    ring = world[0]["ingress"]
    if frontend not in range(ring["kind"].shape[0]):
        return ""
    rows, first = ring["kind"].shape[1], int(ring["first"][frontend, 0])
    for position in range(first, int(ring["seen"][frontend])):
        row = position % rows
        if ring["kind"][frontend, row] != terms.INGRESS_SUBMIT or ring["tag"][frontend, row] != tag:
            continue
        if position > first:
            return f"waits in its worker's ring behind {position - first} rows"
        requests, tokens = world[0]["requests"], world[0]["tokens"]
        return (f"waits in its worker's ring for room: {int(requests['waiting_count'])} requests "
                f"wait, {int(requests['free_count'])} request rows and {int(tokens['free_count'])} "
                "token blocks are free")
    return ""


def why(world: np.ndarray, row: int) -> str:
    """What a request did in the tick that has ended, or what it waited for."""
    state = world[0]["requests"]["state"][row]
    if state == terms.WAITING:
        return waiting(world, row)
    if state == terms.RUNNING:
        return running(world, int(world[0]["requests"]["slot"][row]))
    requests = world[0]["requests"]
    left = int(requests["token_count"][row] - requests["prompt_count"][row]
               - requests["emitted_count"][row])
    reason = FINISHES[int(requests["finish"][row])]
    if requests["delivered"][row]:
        return f"ended ({reason}), delivered; its slot drains"
    return f"ended ({reason}); {left} tokens and the end wait for room in the egress ring"


def waiting(world: np.ndarray, row: int) -> str:
    """Of a request without a slot."""
    requests, slots = world[0]["requests"], world[0]["slots"]
    first, settings = int(requests["waiting_first"]), world[0]["settings"]
    if row != first:
        ahead, at = 0, first
        while at != row:
            ahead, at = ahead + 1, int(requests["waiting_next"][at])
        return f"waits behind {ahead} requests; the first of them {waiting(world, first)}"
    if slots["live_count"] >= settings["slot_count"] or slots["free_count"] == 0:
        return f"waits for a slot: all {int(settings['slot_count'])} are held"
    if not fits(world, row):
        pages = world[0]["pages"]
        return (f"waits for pages: it needs {promise_of(world, row)} at once, "
                f"{int(requests['match_count'][row])} of them cached; {int(pages['free_count'])} "
                f"are free, {int(pages['idle_count'])} idle, {int(pages['promised_count'])} "
                f"promised, {int(slots['live_count'])} kept for growth")
    return "waits for the next tick"


def running(world: np.ndarray, slot: int) -> str:
    """Of a request in a slot."""
    frames, lanes, slots = world[0]["frames"], world[0]["lanes"], world[0]["slots"]
    newest = int(frames["next_sequence"]) - 1
    in_flight = []
    for frame in np.nonzero(frames["state"] == terms.FRAME_SUBMITTED)[0].tolist():
        if slot not in lanes["slot"][frame, :frames["lane_count"][frame]]:
            continue
        sequence = int(frames["sequence"][frame])
        operation = OPERATIONS[int(world[0]["programs"]["operation"][frames["program"][frame]])]
        if sequence == newest and frames["submitted_ns"][frame] == world[0]["clock"]["now_ns"]:
            return f"advances ({operation})"
        in_flight.append(f"{sequence} ({operation})")
    if slots["closing"][slot] == terms.CLOSING_PAUSED:
        return "waits for a snapshot of its text so far"
    if (frames["state"] != terms.FREE).sum() >= frames["frame_count"]:
        return "waits for a frame: all are in flight" + (
            f", it is in {' and '.join(in_flight)}" if in_flight else "")
    if in_flight and slots["feedback"][slot]:
        return f"waits for frame {in_flight[0]}, which must complete before its next step"
    if slots["state"][slot] == terms.SLOT_ADMITTED:
        return "waits to be initialised"
    if slots["scores_held"][slot].all():
        return "waits until its log-probabilities are delivered"
    if room_tokens(world, 0, slot) < 1:
        return "waits for pages to grow"
    if in_flight:
        return f"waits for frame {in_flight[0]}: its last step is in flight"
    if slots["state"][slot] == terms.SLOT_PREFILL:
        return "waits for its turn: the frame's prompt tokens went to earlier requests"
    return "waits for the next frame"

"""Ids of answers: which worker has the request, its tag there, and what makes an id no guess."""

import re
import secrets

NAME = re.compile(r"([0-9a-f]{2})([0-9a-f]{14})[0-9a-f]{8}")


def name_of(worker: int, tag: int) -> str:
    """24 hexadecimal digits, an id behind its prefix."""
    return f"{worker:02x}{tag:014x}{secrets.token_hex(4)}"


def read_id(id: str) -> tuple[int, int] | None:
    """The worker and the tag of an answer's id, with its prefix (`chatcmpl-`, `resp_`) or without;
    None if it is none."""
    found = NAME.fullmatch(id.rpartition("-")[2].rpartition("_")[2])
    return None if found is None else (int(found[1], 16), int(found[2], 16))

"""Halves of surrogate pairs in JSON, of which a decoder only says that something is wrong."""

import re

ESCAPE = re.compile(  # (high half, low half behind it, low half alone), or another escape
    rb"\\(?:u([dD][89abAB][0-9a-fA-F]{2})(\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.S)


def half_pair(body: bytes) -> str:
    """What is wrong with the first escape of half a pair; empty if there is none."""
    for found in ESCAPE.finditer(body):
        if (found[1] and not found[2]) or found[3]:
            return (f"{found.group().decode()} at byte {found.start()} is half of a surrogate "
                    "pair, which is no character")
    return ""

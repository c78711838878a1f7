"""SentencePiece's table of replacements, checked so that no text can lead out of it.

Format: a count of bytes (u32, little endian), so many bytes of a double array (u32 units as of
darts-clone: bits 0-7 a label, 8 a leaf, 10-30 an offset, shifted by 8 where bit 9 is set; bit 31
marks the value of a leaf), then the replacements, each ended by a zero byte.
"""

import base64

import numpy as np

from helios_dod.errors import UserError


def check_charsmap(text: str) -> None:
    """Raises UserError unless every node's children and every leaf's replacement are there."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UserError(f"precompiled_charsmap: not base 64: {error}") from None
    nbytes = int.from_bytes(data[:4], "little")
    if not 4 <= nbytes <= len(data) - 4 or nbytes % 4:
        raise UserError(f"precompiled_charsmap: expected whole units, at most {len(data) - 4} "
                        f"bytes of them, got {nbytes}")
    units = np.frombuffer(data, "<u4", nbytes // 4, 4).astype(np.int64)
    replaced = np.frombuffer(data, np.uint8, -1, 4 + nbytes)
    inner = units >> 31 == 0
    inner[:1] = True  # the root, whatever it is marked as
    offsets = (units >> 10) << ((units & 1 << 9) >> 6)
    children = np.arange(len(units)) ^ offsets  # each at this position with a byte exclusive-or'd
    out = inner & (children | 255 >= len(units))
    if out.any():
        raise UserError(f"precompiled_charsmap: unit {int(out.argmax())} leads out of the "
                        f"{len(units)} units")
    values = units[children[inner & (units >> 8 & 1 == 1)]] & (1 << 31) - 1
    starts = np.append(replaced & 0xC0 != 0x80, True)  # where a character, or the end, is
    if (values >= len(starts)).any() or not starts[values].all():
        raise UserError("precompiled_charsmap: a leaf that is at no character of the "
                        f"{len(replaced)} bytes of replacements")
    try:
        replaced.tobytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"precompiled_charsmap: replacements: {error}") from None

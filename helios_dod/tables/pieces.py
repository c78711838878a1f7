"""The byte table of the vocabulary: what text each token stands for. Installed at load."""

import numpy as np

from helios_dod.errors import UserError
from helios_dod.schema import i32, scalar, table, u8


@table(rows="vocabulary_max")
class Pieces:
    """One row a token: its bytes are data[begin[t]:begin[t + 1]]; rows from token_count on are
    unused. `begin` never falls and ends at the bytes in use."""

    special: u8  # 1: text omits the token
    begin: scalar(i32["piece_ends_max"])
    data: scalar(u8["piece_bytes_max"])
    token_count: scalar(i32)  # 0: none installed, so stop strings are refused
    strip: scalar(u8)  # 1: the first byte of a text is dropped if it is a space


def install_pieces(world: np.ndarray, data: np.ndarray, offsets: np.ndarray, special: np.ndarray,
                   strip: bool) -> None:
    """Copies a byte table into a fresh world: uint8 data, offsets [tokens + 1], uint8 special.

    Raises UserError where it does not fit the world's size."""
    pieces = world[0]["pieces"]
    for name, count, most in (("tokens", len(special), len(pieces["special"])),
                              ("bytes", len(data), len(pieces["data"]))):
        if count > most:
            raise UserError(f"token_bytes: {count} {name}, at most {most} possible")
    pieces["special"][: len(special)] = special
    pieces["begin"][: len(offsets)] = offsets
    pieces["data"][: len(data)] = data
    pieces["token_count"] = len(special)
    pieces["strip"] = strip

"""The token arena: prompt and output tokens of all accepted requests, in blocks."""

from helios_dod.schema import i32, scalar, table


@table(rows="blocks_max")
class Tokens:
    """One row per block. Token t of request r is ids[requests.blocks[r, t // 256], t % 256]."""

    ids: i32["TOKEN_BLOCK"]
    owner: i32  # request row or NO_ROW
    free: scalar(i32["blocks_max"])
    free_count: scalar(i32)

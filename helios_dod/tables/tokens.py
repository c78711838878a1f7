"""The token arena: prompt and output tokens of all accepted requests, in blocks."""

from helios_dod.limits import TOKEN_BLOCK
from helios_dod.schema import i32, scalar, table
from helios_dod.system import kernel


@table(rows="blocks_max")
class Tokens:
    """One row per block. Token t of request r is ids[requests.blocks[r, t // 256], t % 256]."""

    ids: i32["TOKEN_BLOCK"]
    owner: i32  # request row or NO_ROW
    free: scalar(i32["blocks_max"])
    free_count: scalar(i32)


@kernel
def take_blocks(world, row, count):
    """Gives a request `count` blocks; the caller has checked that they are free."""
    requests, tokens = world[0].requests, world[0].tokens
    assert count <= tokens.free_count and count <= requests.blocks.shape[1]
    for index in range(count):
        tokens.free_count -= 1
        block = tokens.free[tokens.free_count]
        tokens.owner[block] = row
        requests.blocks[row, index] = block
    requests.block_count[row] = count


@kernel
def token_at(world, row, position):
    """Token of a request at a position below its token_count."""
    block = world[0].requests.blocks[row, position // TOKEN_BLOCK]
    return world[0].tokens.ids[block, position % TOKEN_BLOCK]


@kernel
def append_token(world, row, token):
    """Adds a generated token."""
    requests = world[0].requests
    position = requests.token_count[row]
    assert position < requests.block_count[row] * TOKEN_BLOCK
    world[0].tokens.ids[requests.blocks[row, position // TOKEN_BLOCK],
                        position % TOKEN_BLOCK] = token
    requests.token_count[row] = position + 1

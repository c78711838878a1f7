"""Which tiles a kernel uses for a shape. Behind the choices: perf/h200/tune.py."""

from dataclasses import dataclass, replace

from helios_dod.ignition.prepared import PreparationError

PROCESSORS = 132  # of an H200
ATTENTION_BLOCKS = 512  # of heads of 64 that run at once; of wider heads, fewer
SPAN_MIN = 256  # columns of one split at least


@dataclass(frozen=True)
class Tile:
    """Tile of a product: rows, tokens and columns of a step; splits of the columns."""

    rows: int
    tokens: int
    columns: int
    splits: int
    warps: int
    stages: int


VECTOR_BYTES = 4096  # of a row of weights in a step of a one-token product
VECTOR_VALUES = 2048  # bytes of weights of a step at least
VECTOR_STEP_MIN = 1024  # columns of a step of several rows
OVERLAP_TOKENS = 16  # programs of more tokens are slower with kernels that overlap,
OVERLAP_LANES = 64  # decode programs of more lanes
EARLY_TOKENS = 16  # and of more than these, where small kernels let the next begin early,
EARLY_EIGHTHS = 64  # or than these where weights are e4m3


VECTOR_ROWS = 4  # of a step of weights in e4m3, gated ones 2 of each half


def vector_tile(columns: int, gated: bool, item: int = 2) -> Tile:
    """Tile of a product with one token; item: bytes of a weight."""
    step = VECTOR_BYTES // item
    while columns % step:
        step //= 2
    if item == 1 and step >= VECTOR_STEP_MIN:  # more of a row to each thread: values are widened
        return Tile(VECTOR_ROWS // (1 + gated), 1, step, 1, 4, 2)
    rows = max(1, VECTOR_VALUES // (step * item))
    return Tile(rows, 1, step, 1, max(1, rows * step * item // (512 if gated else 1024)), 2)


def quantise_warps(columns: int) -> int:
    """Warps of a row that is quantised."""
    return 16 if columns > 8192 else 8 if columns >= 2048 else 4


def step_columns(columns: int, most: int) -> int:
    """The largest step that divides the columns."""
    for step in (256, 128, 64, 32, 16):
        if step <= most and columns % step == 0:
            return step
    raise PreparationError(f"{columns} columns: expected a multiple of 16")


def split_count(rows: int, columns: int, step: int, tile_rows: int, wanted: int) -> int:
    """Fewest splits of whole steps that give `wanted` blocks, as far as spans stay long."""
    blocks, best = -(-rows // tile_rows), 1
    for splits in range(1, 17):
        if columns % (splits * step) or (splits > 1 and columns // splits < SPAN_MIN):
            continue
        best = splits
        if blocks * splits >= wanted:
            break
    return best


def product_tile(rows: int, columns: int, tokens: int, splits: bool, item: int = 2) -> Tile:
    """Tile of a product of a [rows, columns] weight with at most FEWER_TOKENS tokens; item: bytes
    of a weight."""
    step = step_columns(columns, 256 // item)
    width = max(16, 1 << (tokens - 1).bit_length())
    count = split_count(rows, columns, step, 64, PROCESSORS) if splits else 1
    return Tile(64, width, step, count, 4, 4 if width <= 32 else 3)


def gated_tile(columns: int, tokens: int, item: int = 2) -> Tile:
    """Tile of a gated product of at most FEWER_TOKENS tokens; `rows` are those of each half."""
    width = max(16, 1 << (tokens - 1).bit_length())
    step = step_columns(columns, (256 if width <= 32 else 128) // item)
    return Tile(64, width, step, 1, 4, 3)


FEWER_TOKENS = 64  # with more, tokens are a product's first operand
GROUP = 8  # blocks of tokens that take turns over all rows
WIDE_SPLITS = 4
WIDE_BLOCKS = 90  # a product's blocks of the larger tile at least


def wide_tile(rows: int, columns: int, tokens: int, gated: bool, splits: bool, item: int = 2
              ) -> Tile:
    """Tile of a product of more tokens; of a gated one `rows` are those of each half."""
    step = step_columns(columns, 128 // item)
    for tile in (Tile(256, 128, step, 1, 8, 4), Tile(128, 128, step, 1, 4, 4)):
        blocks = -(-rows * (1 + gated) // tile.rows) * -(-tokens // tile.tokens)
        while splits and 2 * blocks <= PROCESSORS and tile.splits < WIDE_SPLITS and not (
                columns % (2 * tile.splits * step) or columns // (2 * tile.splits) < SPAN_MIN):
            tile, blocks = replace(tile, splits=2 * tile.splits), 2 * blocks
        if blocks >= WIDE_BLOCKS:
            break
    return replace(tile, rows=tile.rows // (1 + gated))


MANY_QUERIES = 512  # packed rows of programs whose attention has larger tiles


@dataclass(frozen=True)
class AttentionTile:
    """Tile of attention of many queries: rows (queries times heads of a key head), positions of a
    step."""

    rows: int
    tokens: int
    warps: int
    stages: int


def attention_tile(packed: int, head: int) -> AttentionTile:
    """Tile of attention of so many packed rows."""
    if packed < MANY_QUERIES or head > 128:
        return AttentionTile(64, 64, 4, 2)
    return AttentionTile(128, 128, 8, 3)


@dataclass(frozen=True)
class DecodeTile:
    """Tile of decode attention: positions of a step, splits of the history (a power of two), and
    whether the first step is read before the kernels before have ended."""

    tokens: int
    splits: int
    warps: int
    stages: int
    ahead: bool


SPLITS_MAX = 32


def decode_tile(lanes: int, key_heads: int, head: int) -> DecodeTile:
    """Tile of attention of one query a lane."""
    splits, blocks = SPLITS_MAX, ATTENTION_BLOCKS * 64 // max(head, 64)
    while splits > 1 and lanes * key_heads * splits > blocks:
        splits //= 2
    if splits == 1:
        return DecodeTile(64, 1, 2, 3, False)
    return DecodeTile(64, splits, 8 if head > 64 and splits < SPLITS_MAX else 4, 1, True)


FEW_TOKENS = 8  # of products whose weights go straight into registers, at most,
NARROW = 2048  # but twice as many where columns are at most these
MANY_ROWS = 65536  # products of one token have them too where narrow, or of so many rows
FEW_STEP = 32  # columns that such a product's divide into
FEW_ROWS = 16  # rows of a block
FEW_BLOCKS = 256  # that a product is split into at least
SHARE_LANES = range(5, 9)  # whose programs ask for a share of shared memory,
SHARE_PERCENT = 31  # so much: one ring of attention, the rest is L1 cache for products


@dataclass(frozen=True)
class FewTile:
    """Tile of a product of few tokens: warps of a block, steps in flight of each, blocks that a
    processor holds at once, and splits of the columns."""

    warps: int
    depth: int
    blocks: int
    splits: int = 1


def few_splits(rows: int, columns: int, warps: int, wanted: int) -> int:
    """Fewest splits that give `wanted` blocks, as far as every warp has two steps."""
    blocks, splits = -(-rows // FEW_ROWS), 1
    while blocks * splits < wanted and columns % (4 * splits * warps * FEW_STEP) == 0:
        splits *= 2
    return splits


def few_tile(rows: int, columns: int, tokens: int, split: bool) -> FewTile | None:
    """Tile of a product of few tokens; None where another is needed, or faster."""
    narrow = columns <= NARROW
    most = 2 * FEW_TOKENS if narrow else FEW_TOKENS
    if tokens > most or columns % FEW_STEP or not (tokens > 1 or narrow or rows >= MANY_ROWS):
        return None
    warps = 8 if columns >= 2048 else 4
    depth, blocks = 4, (32 if tokens <= 8 else 16) // warps
    if tokens in SHARE_LANES and columns >= 2048:  # beside attention that has a share
        warps, depth, blocks = (8, 6, 2) if narrow else (16, 4, 2)
    splits = few_splits(rows, columns, warps, FEW_BLOCKS) if split else 1
    return FewTile(warps, depth, blocks, splits)


TUNED_TOKENS = range(9, 17)  # of products without splits that are timed at start


def tuned_few_tile(columns: int, tokens: int) -> FewTile | None:
    """Tile of a product of few tokens whose alternative is timed; None where nothing is."""
    if tokens not in TUNED_TOKENS or columns % FEW_STEP:
        return None
    warps = 8 if columns >= 2048 else 4
    return FewTile(warps, 4, 16 // warps)


@dataclass(frozen=True)
class RingTile:
    """Tile of decode attention whose pages lie in shared memory: splits of the history (a cluster
    of blocks), warps of a block, pages in flight of each; per cent of a processor's memory that
    the program's kernels ask to have as shared, None: the driver chooses."""

    splits: int
    warps: int
    depth: int
    shared: int | None = None


CLUSTER_MAX = 8  # blocks of a cluster on every device of the architecture
RING_QUERIES = 8  # heads of a key head at most
RING_LANES = range(3, OVERLAP_LANES + 1)  # it gains by overlapping
RING_HEAD = 64  # columns of heads that are in rings with more lanes too
RING_FEW = 16  # lanes whose rings are short: products of few tokens need the L1 cache


def ring_tile(lanes: int, heads: int, key_heads: int, head: int, page_tokens: int
              ) -> RingTile | None:
    """Tile of attention of one query a lane; None where the shape has to be another one's."""
    if heads // key_heads > RING_QUERIES or head > 128 or page_tokens != 16:
        return None
    if lanes not in RING_LANES and not (lanes > OVERLAP_LANES and head <= RING_HEAD):
        return None
    shares = lanes in SHARE_LANES
    splits, blocks = CLUSTER_MAX, PROCESSORS if shares else 2 * PROCESSORS
    while splits > 1 and lanes * key_heads * splits > blocks:
        splits //= 2
    if shares:
        return RingTile(splits, 4, 2, SHARE_PERCENT)
    return RingTile(splits, 4, 1 if lanes <= RING_FEW else 3)

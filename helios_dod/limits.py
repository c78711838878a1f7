"""Every capacity of the engine. A size is part of the world's type; what a machine really has
(pages that fit, selected concurrency) is a scalar in `settings`, at most the capacity here."""

from dataclasses import dataclass

NO_ROW = 2**31 - 1  # a link to nothing; -1 would wrap silently as an index

EOS_MAX = 8  # end-of-sequence ids of one request
STOP_IDS_MAX = 16  # stop_token_ids of one request
STOP_STRINGS_MAX = 4  # stop strings of one request
STOP_STRING_BYTES_MAX = 4096  # UTF-8 bytes of all of them
STOP_SEQUENCES_MAX = 16  # stop_token_sequences of one request
STOP_SEQUENCE_TOKENS_MAX = 64  # tokens of one of them
STOP_PATTERNS_MAX = max(STOP_STRINGS_MAX, STOP_SEQUENCES_MAX)
STOP_PATTERN_ENDS_MAX = STOP_PATTERNS_MAX + 1
BYTE_BITS = 4  # 64-bit words of a set of bytes
STOP_ROW_PAD = 64  # symbols that part two rows of stop patterns
DELIMITERS_MAX = 32  # special tokens that the parser of one request's output reads as text
DECODING_WORDS = 8  # state of a text that is being decoded
DECODED_MAX = 7  # bytes that one byte of a token can decide: a replacement and a character
BIAS_MAX = 512  # logit_bias entries of one request
TOP_LOGPROBS_MAX = 20
SCORES_MAX = 64  # prompt scores of one request that wait for its frontend
TOKEN_BLOCK = 256  # tokens of one block of the token arena
FRAMES_MAX = 2  # programs in flight
PAGE_TOKENS_MAX = 16  # tokens of one page
MASK_BITS = 32  # tokens of one word of a grammar mask
DRAFTED_MAX = 8  # requests that have room for masks behind drafts at the largest vocabulary
MATCH_AHEAD = 16  # pages between what `match` asks the memory for, and what it then looks at
MATCH_RING = 64  # pages that it remembers: a power of two, more than twice so many
ENTRY_PAGE, ENTRY_PARENT, ENTRY_WORDS = 0, 1, 2  # words of an entry of the content index
GROUPS_MAX = 2  # page groups (windowed and full histories)
TIERS_MAX = 2  # where pages go from the device: host memory, disk
COPY_QUEUES = 2  # copies between device and memory; copies that the disk takes part in
DRAFT_SOURCES = 2  # drawn by the program, copied from the request's own text
DRAFT_KINDS = 3  # of a cohort's drafts: only drawn, only copied, copied where there is a copy
COPY_ROWS = 1024  # n-grams of one slot's text that are remembered; a power of two
CAUSES_MAX = 5  # causes of snapshots
SPANS_MAX = 16  # atomic spans of one prompt
BOUNDARIES_MAX = 16  # boundary endpoints of one prompt
LINE = 8  # 64-bit words of a cache line: positions of two sides never share one


@dataclass(frozen=True)
class Limits:
    """One named size. Relations are asserted: they are the proof that no table overflows."""

    name: str
    requests_max: int  # accepted requests, waiting ones included
    slots_max: int  # physical request rows on the device
    lanes_max: int  # submitted rows of one frame
    packed_max: int  # packed tokens of one frame
    width_max: int  # tokens that one lane can emit in one frame (W)
    pages_max: int
    pages_per_request_max: int
    snapshots_max: int
    window_pages_max: int  # pages of a windowed history that one request holds
    context_max: int  # prompt and output tokens of one request
    blocks_max: int  # token blocks of the arena, shared by all accepted requests
    programs_max: int
    bindings_max: int
    staging_words_max: int  # 4-byte words of one frame's staging
    page_updates_max: int  # page-table entries uploaded by one frame
    copies_max: int  # copies of pages in flight of one queue
    frontends_max: int
    mask_words_max: int  # of one grammar mask
    drafted_max: int  # constrained requests with masks behind their drafts, at mask_words_max
    grammar_words_max: int  # of one grammar's text
    ingress_rows_max: int  # submissions in flight of one frontend; a power of two
    ingress_words_max: int  # payload words of one frontend's ingress; a power of two
    egress_rows_max: int  # events in flight of one frontend; a power of two
    vocabulary_max: int  # tokens of the byte table
    piece_bytes_max: int  # bytes of all of them
    stop_bytes_max: int = STOP_STRING_BYTES_MAX  # of one request's stop strings
    stop_tokens_max: int = STOP_SEQUENCES_MAX * STOP_SEQUENCE_TOKENS_MAX  # of its stop sequences

    def __post_init__(self) -> None:
        assert self.lanes_max <= self.slots_max <= self.requests_max
        assert self.packed_max >= self.lanes_max * self.width_max
        assert self.drafted_max <= min(self.slots_max, DRAFTED_MAX)
        assert self.width_max <= 16, "grammars.answer has four bits for the drafts of a lane"
        assert self.context_max % TOKEN_BLOCK == 0
        assert self.stop_bytes_max <= STOP_STRING_BYTES_MAX
        assert self.stop_tokens_max <= STOP_SEQUENCES_MAX * STOP_SEQUENCE_TOKENS_MAX
        assert self.stop_symbols_max < 1 << 16, "stops.failures are 16 bits"
        assert self.piece_bytes_max < 1 << 31, "pieces.begin is 32 bits"
        assert self.blocks_max >= self.blocks_per_request_max
        assert self.ingress_words_max >= 2 * (
            self.context_max + 2 * BIAS_MAX + self.stop_words_max + self.grammar_words_max)
        assert self.grammar_words_max % TOKEN_BLOCK == 0
        for power in (self.ingress_rows_max, self.ingress_words_max, self.egress_rows_max):
            assert power & (power - 1) == 0

    @property
    def prefix_rows_max(self) -> int:
        """Rows of the content index: a power of two, at least twice the pages."""
        return 1 << (2 * self.pages_max - 1).bit_length()

    @property
    def mask_area_max(self) -> int:
        """Words of all grammar masks: one a slot, and those behind the drafts of some."""
        rows = self.slots_max + self.drafted_max * (self.width_max - 1)
        return rows * self.mask_words_max

    @property
    def piece_ends_max(self) -> int:
        """Where tokens begin in the byte table, and where the last one ends."""
        return self.vocabulary_max + 1

    @property
    def stop_bytes_row(self) -> int:
        """A row of stop bytes. Not a power of two: rows would all lie in one set of the cache."""
        return self.stop_bytes_max + STOP_ROW_PAD

    @property
    def stop_symbols_row(self) -> int:
        """The same of failure links."""
        return self.stop_symbols_max + STOP_ROW_PAD

    @property
    def stop_symbols_max(self) -> int:
        """Symbols of one request's stop patterns: bytes of strings or tokens of sequences."""
        return max(self.stop_bytes_max, self.stop_tokens_max)

    @property
    def stop_words_max(self) -> int:
        """Payload words of one request's stops: counts, ids, delimiters, lengths, patterns."""
        symbols = max(-(-self.stop_bytes_max // 4), self.stop_tokens_max)
        return 4 + STOP_IDS_MAX + DELIMITERS_MAX + STOP_PATTERNS_MAX + symbols

    @property
    def blocks_per_request_max(self) -> int:
        """Token blocks of one request: its tokens, then its grammar."""
        return (self.context_max + self.grammar_words_max) // TOKEN_BLOCK


TEST_MIN = Limits(
    "TEST_MIN", requests_max=6, slots_max=4, lanes_max=3, packed_max=16, width_max=4,
    pages_max=48, pages_per_request_max=32, snapshots_max=8, window_pages_max=32,
    context_max=512, blocks_max=12,
    programs_max=32, bindings_max=512, staging_words_max=8192, page_updates_max=64,
    mask_words_max=64, drafted_max=2, grammar_words_max=256,
    frontends_max=2, ingress_rows_max=4, ingress_words_max=4096, egress_rows_max=16,
    copies_max=4, vocabulary_max=64, piece_bytes_max=512, stop_bytes_max=64, stop_tokens_max=64,
)
SMALL = Limits(
    "SMALL", requests_max=256, slots_max=64, lanes_max=64, packed_max=1024, width_max=8,
    pages_max=65_536, pages_per_request_max=1024, snapshots_max=64, window_pages_max=256,
    context_max=16_384, blocks_max=16_384,
    programs_max=64, bindings_max=2048, staging_words_max=786_432, page_updates_max=2048,
    mask_words_max=8192, drafted_max=8, grammar_words_max=32_768,
    frontends_max=4, ingress_rows_max=256, ingress_words_max=131_072, egress_rows_max=4096,
    copies_max=256, vocabulary_max=524_288, piece_bytes_max=8_388_608,
)
MEDIUM = Limits(
    "MEDIUM", requests_max=1024, slots_max=256, lanes_max=256, packed_max=4096, width_max=8,
    pages_max=262_144, pages_per_request_max=2048, snapshots_max=256, window_pages_max=512,
    context_max=32_768, blocks_max=32_768,
    programs_max=128, bindings_max=4096, staging_words_max=2_621_440, page_updates_max=8192,
    mask_words_max=8192, drafted_max=8, grammar_words_max=65_536,
    frontends_max=8, ingress_rows_max=512, ingress_words_max=262_144, egress_rows_max=8192,
    copies_max=512, vocabulary_max=524_288, piece_bytes_max=8_388_608,
)
LARGE = Limits(
    "LARGE", requests_max=4096, slots_max=1024, lanes_max=1024, packed_max=16_384, width_max=8,
    pages_max=1_048_576, pages_per_request_max=8192, snapshots_max=1024, window_pages_max=1024,
    context_max=131_072, blocks_max=131_072,
    programs_max=256, bindings_max=8192, staging_words_max=9_437_184, page_updates_max=32_768,
    mask_words_max=8192, drafted_max=8, grammar_words_max=65_536,
    frontends_max=16, ingress_rows_max=1024, ingress_words_max=524_288, egress_rows_max=16_384,
    copies_max=1024, vocabulary_max=524_288, piece_bytes_max=8_388_608,
)
HUGE = Limits(
    "HUGE", requests_max=8192, slots_max=4096, lanes_max=4096, packed_max=32_768, width_max=8,
    pages_max=1_048_576, pages_per_request_max=2048, snapshots_max=1024,
    window_pages_max=1024, context_max=32_768, blocks_max=131_072,
    programs_max=256, bindings_max=8192, staging_words_max=25_165_824, page_updates_max=32_768,
    frontends_max=16, ingress_rows_max=1024, ingress_words_max=524_288, egress_rows_max=32_768,
    mask_words_max=8192, drafted_max=8, grammar_words_max=65_536,
    copies_max=1024, vocabulary_max=524_288, piece_bytes_max=8_388_608,
)
SIZES = {size.name: size for size in (TEST_MIN, SMALL, MEDIUM, LARGE, HUGE)}

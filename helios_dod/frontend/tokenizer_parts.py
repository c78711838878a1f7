"""The parts of a tokenizer's JSON, by type and fields: those of the `tokenizers` library."""

from typing import Annotated, Any

import msgspec

IDS_MAX = 2**31 - 1  # token ids are below it
PATTERN_MAX = 4096  # characters of a pattern
TEXT_MAX = 256  # characters of a control token, or of what a normalizer writes

Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]
Expression = Annotated[str, msgspec.Meta(max_length=PATTERN_MAX)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=IDS_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Score = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]


class Known(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    """A part that names its type. Its tag is the class's name."""


class BertNormalizer(Known):
    """Cleans, strips accents, lowers."""

    clean_text: bool = True
    handle_chinese_chars: bool = True
    strip_accents: bool | None = None
    lowercase: bool = True


class Strip(Known):
    """Strips white space at either end."""

    strip_left: bool
    strip_right: bool


class StripAccents(Known):
    """Without fields, as the other forms of Unicode below."""


class NFC(Known):
    """Unicode normalization form C."""


class NFD(Known):
    """Unicode normalization form D."""


class NFKC(Known):
    """Unicode normalization form KC."""


class NFKD(Known):
    """Unicode normalization form KD."""


class Lowercase(Known):
    """Lowers every letter."""


class Nmt(Known):
    """Control characters as machine translation treats them."""


class Precompiled(Known):
    """SentencePiece's own table of replacements, in base 64."""

    precompiled_charsmap: str


class Replace(Known):
    """Writes `content` for every match."""

    pattern: dict[str, Expression]
    content: Text


class Prepend(Known):
    """Writes a text before every input."""

    prepend: Text


class ByteLevel(Known):
    """Bytes as printable characters. A normalizer has no fields."""

    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True


class BertPreTokenizer(Known):
    """Splits at white space and punctuation."""


class CharDelimiterSplit(Known):
    """Splits at one character."""

    delimiter: Character


class Metaspace(Known):
    """Writes spaces as one character; str_rep and add_prefix_space are of older files."""

    replacement: Character
    prepend_scheme: str = "always"
    split: bool = True
    add_prefix_space: bool = True
    str_rep: Text | None = None


class Whitespace(Known):
    r"""Splits by \w+|[^\w\s]+."""


class WhitespaceSplit(Known):
    """Splits at white space."""


class Split(Known):
    """Splits at matches."""

    pattern: dict[str, Expression]
    behavior: str
    invert: bool = False


class Punctuation(Known):
    """Splits at punctuation."""

    behavior: str = "Isolated"


class Digits(Known):
    """Splits numbers from text."""

    individual_digits: bool = False


class UnicodeScripts(Known):
    """Splits where the script changes."""


class FixedLength(Known):
    """Splits into pieces of so many characters."""

    length: Positive


class BPE(Known):
    """Byte-pair encoding. Merges are pairs, or texts of two tokens in older files."""

    vocab: dict[str, Id]
    merges: list[str | tuple[str, str]]
    dropout: Share | None = None
    unk_token: Text | None = None
    continuing_subword_prefix: Text | None = None
    end_of_word_suffix: Text | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class Unigram(Known):
    """Tokens with scores; a token's id is its position."""

    vocab: list[tuple[str, Score]]
    unk_id: Id | None = None
    byte_fallback: bool = False


class WordPiece(Known):
    """Longest token first."""

    vocab: dict[str, Id]
    unk_token: Text
    continuing_subword_prefix: Text = "##"
    max_input_chars_per_word: Positive = 100


class WordLevel(Known):
    """Whole words."""

    vocab: dict[str, Id]
    unk_token: Text


Normalizer = (BertNormalizer | Strip | StripAccents | NFC | NFD | NFKC | NFKD | Lowercase | Nmt
              | Precompiled | Replace | Prepend | ByteLevel)
PreTokenizer = (BertPreTokenizer | ByteLevel | CharDelimiterSplit | Metaspace | Whitespace
                | WhitespaceSplit | Split | Punctuation | Digits | UnicodeScripts | FixedLength)
Model = BPE | Unigram | WordPiece | WordLevel


class AddedToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token beside the model's."""

    id: Id
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The parts that encoding uses; normalizers and pre-tokenizers are read one by one, and the
    last four not at all."""

    version: str
    model: Model
    added_tokens: list[AddedToken] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    truncation: Any = None
    padding: Any = None
    post_processor: Any = None
    decoder: Any = None

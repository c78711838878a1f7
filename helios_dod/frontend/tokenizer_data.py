"""A tokenizer's JSON, read by type and field with bounds before the `tokenizers` library sees it.

The library believes what it reads: some values make it panic, others grow a text without end. So
nothing reaches it that is not described in tokenizer_parts.py, and what only decodes, pads or cuts
is left out: prompts are encoded whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from helios_dod.errors import UserError
from helios_dod.frontend.charsmap import check_charsmap
from helios_dod.frontend.patterns import PatternError, check_pattern
from helios_dod.frontend.tokenizer_parts import (
    BPE,
    TEXT_MAX,
    Document,
    Normalizer,
    Precompiled,
    PreTokenizer,
    Replace,
    Split,
    Unigram,
)

PARTS_MAX = 64  # normalizers, or pre-tokenizers, of one tokenizer
GROWTH_MAX = 256  # bytes that normalizers may make of one byte
PANIC = "PanicException"  # how a panic in Rust is raised here; derives from BaseException alone
PARTS = {"normalizer": ("normalizers", Normalizer),
         "pre_tokenizer": ("pretokenizers", PreTokenizer)}
UNUSED = ("truncation", "padding", "post_processor", "decoder")  # by encoding without special ones


class TokenizerError(UserError):
    """Tokenizer data that cannot be used; the text names the field."""

    def __init__(self, problem: object) -> None:
        super().__init__(f"tokenizer: {problem}")


class GaveUp(TokenizerError):
    """The library panicked."""


def read_tokenizer(data: bytes, vocabulary: int) -> dict[str, Any]:
    """A tokenizer's JSON as a value that is safe to hand to the library, `UNUSED` parts left out.

    vocabulary: every id is below. Raises TokenizerError."""
    try:
        described = msgspec.json.decode(data)
        if not isinstance(described, dict):
            raise TokenizerError("expected an object")
        if isinstance(model := described.get("model"), dict) and "type" not in model:
            model["type"] = _kind_of(model)
        checked = msgspec.convert(described, Document)
        for name in PARTS:
            _check_parts(described.get(name), name)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(error) from None
    _check_ids(checked, vocabulary)
    described.setdefault("added_tokens", [])
    return {name: part for name, part in described.items()
            if name in ("version", "model", "added_tokens", *PARTS)} | dict.fromkeys(UNUSED)


def _kind_of(model: dict[str, Any]) -> str:
    """The type of a model in files that are older than the field."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _check_parts(part: Any, name: str) -> None:
    """Each part of a normalizer or pre-tokenizer, sequences unfolded."""
    inside, kinds = PARTS[name]
    waiting, seen, growth = [part] if part is not None else [], 0, 1.0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > PARTS_MAX:
            raise TokenizerError(f"{name}: more than {PARTS_MAX} parts")
        if isinstance(one, dict) and one.get("type") == "Sequence":
            if set(one) != {"type", inside} or not isinstance(one[inside], list):
                raise TokenizerError(f"{name}: a Sequence of {inside} and no other field expected")
            waiting += one[inside]
            continue
        growth *= _check_part(msgspec.convert(one, kinds), name)
        if growth > GROWTH_MAX:
            raise TokenizerError(f"{name}: one byte may become more than {GROWTH_MAX}")


def _check_part(part: Any, name: str) -> float:
    """How many bytes it makes of one at most."""
    if isinstance(part, Replace | Split):
        kinds = list(part.pattern)
        if kinds not in (["String"], ["Regex"]) or part.pattern == {"String": ""}:
            raise TokenizerError(f"{name}.pattern: one String or Regex expected, got {kinds}")
        if "Regex" in part.pattern:
            try:
                check_pattern(part.pattern["Regex"])
            except PatternError as error:
                raise TokenizerError(f"{name}.pattern: {error}") from None
        if isinstance(part, Replace):
            written, text = len(part.content.encode()), part.pattern.get("String")
            return max(1.0, written / len(text.encode())) if text else 1.0 + written
    if isinstance(part, Precompiled):
        try:
            check_charsmap(part.precompiled_charsmap)
        except UserError as error:
            raise TokenizerError(f"{name}.{error}") from None
    return 1.0


def _check_ids(document: Document, vocabulary: int) -> None:
    """Ids are below the vocabulary, each once."""
    model = document.model
    if isinstance(model, Unigram):
        largest = len(model.vocab) - 1
        if model.unk_id is not None and model.unk_id > largest:
            raise TokenizerError(f"model.unk_id: at most {largest} expected, got {model.unk_id}")
    else:
        largest = max(model.vocab.values(), default=-1)
        if len(set(model.vocab.values())) != len(model.vocab):
            raise TokenizerError("model.vocab: an id is given to two tokens")
    largest = max((largest, *(token.id for token in document.added_tokens)))
    if largest >= vocabulary:
        raise TokenizerError(f"ids below the input vocabulary, {vocabulary}, expected, "
                             f"got {largest}")
    if isinstance(model, BPE) and (prefix := model.continuing_subword_prefix):
        for i, pair in enumerate(model.merges):
            right = pair.partition(" ")[2] if isinstance(pair, str) else pair[1]
            if not right.startswith(prefix):  # its first bytes are cut off unseen
                raise TokenizerError(f"model.merges[{i}]: a right part that begins with "
                                     f"{prefix!r} expected, got {right[:TEXT_MAX]!r}")


@contextmanager
def by_name() -> Iterator[None]:
    """What the library raises over its data or a text, as TokenizerError."""
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            raise TokenizerError(error) from None
        if type(error).__name__ != PANIC:
            raise
        raise GaveUp(error) from None

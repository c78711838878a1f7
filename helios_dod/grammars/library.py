"""llguidance over one vocabulary: its tokenizer, the limits of every grammar, compiling.

A grammar that this library would crash on (its compiler recurses) must have passed `bounds`, and
compiles on a thread with STACK_BYTES of stack."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llguidance
import msgspec

from helios_dod.errors import UserError

STACK_BYTES = 512 << 20  # mapped, not used, until a grammar needs it
LEXER_STATES_MAX = 20_000  # of one grammar, 1 to 2 kB each
STEP_FUEL_MAX = 200_000  # of one mask: about 15 ms
ITEMS_MAX = 50_000  # of one mask
# Of the parser behind one token. What it costs grows with their square where a grammar is
# ambiguous; an object needs four for each optional property, 998 public schemas at most 200.
ROW_ITEMS_MAX = 1_000


class GrammarError(UserError):
    """The library refuses a grammar, or would take too long over it; the text is its reason."""


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """What a constrained request carries through the ring, as JSON.

    grammar: in llguidance's syntax (Lark, or its JSON list of grammars). delimiters: tokens that
    the grammar names by id and that ordinary text never holds, beside the special ones."""

    grammar: str
    delimiters: tuple[str, ...] = ()


DECODER = msgspec.json.Decoder(Text)


def encode(text: Text) -> bytes:
    """The bytes of `Submission.grammar`."""
    return msgspec.json.encode(text)


def decode(data: bytes) -> Text:
    """Inverse of `encode`. Raises GrammarError."""
    try:
        return DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GrammarError(f"not a grammar of this engine: {error}") from None


@dataclass(frozen=True)
class Source:
    """What a vocabulary is made of. tokenizer_json: `tokenizers` JSON. vocabulary: sampled ids."""

    tokenizer_json: bytes
    vocabulary: int
    eos: tuple[int, ...]


def limits() -> Any:
    """What one grammar may cost; the library ends a grammar that costs more."""
    return llguidance.LLParserLimits(
        step_lexer_fuel=STEP_FUEL_MAX, step_max_items=ITEMS_MAX, max_lexer_states=LEXER_STATES_MAX,
        max_items_in_row=ROW_ITEMS_MAX, verbose_errors=False)


def is_too_wide(matcher: Any) -> bool:
    """Whether a matcher refused a token since its parser would hold more than ROW_ITEMS_MAX."""
    return f"items; max is {ROW_ITEMS_MAX}" in matcher.get_error()


def with_delimiters(tokenizer_json: bytes, delimiters: tuple[str, ...]) -> str:
    """The tokenizer's JSON with delimiters as special tokens, which text cannot hold."""
    described = msgspec.json.decode(tokenizer_json)
    plain = [token for token in described["added_tokens"]
             if token["content"] in delimiters and not token["special"]]
    for token in plain:
        token["special"] = True
    return (msgspec.json.encode(described) if plain else tokenizer_json).decode()


class Library:
    """Compiles grammars over one vocabulary. Making a tokenizer takes a second for 150,000 tokens
    and holds the interpreter's lock; it is made once for each set of delimiters."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokenizers: dict[tuple[str, ...], Any] = {}
        self._making = threading.Lock()

    def tokenizer(self, delimiters: tuple[str, ...]) -> Any:
        """The library's tokenizer in which these texts are no ordinary text."""
        with self._making:
            if delimiters not in self.tokenizers:
                self.tokenizers[delimiters] = llguidance.LLTokenizer(
                    with_delimiters(self.source.tokenizer_json, delimiters),
                    n_vocab=self.source.vocabulary, eos_token=list(self.source.eos) or None)
            return self.tokenizers[delimiters]

    def idle(self, delimiters: tuple[str, ...]) -> Any:
        """A matcher of no grammar, which takes no token."""
        return llguidance.LLMatcher(self.tokenizer(delimiters), "", log_level=0)

    def compile(self, text: Text) -> Any:
        """A matcher before its first token. Raises GrammarError."""
        matcher = llguidance.LLMatcher(
            self.tokenizer(text.delimiters), text.grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise GrammarError(reason(matcher.get_error()))
        return matcher


def reason(error: str) -> str:
    """The part of the library's error that is about the grammar."""
    return error.partition("\n<state>")[0].strip()[:1000]


def on_large_stack(work: Callable[[], None], name: str) -> threading.Thread:
    """A started daemon thread with STACK_BYTES of stack."""
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread

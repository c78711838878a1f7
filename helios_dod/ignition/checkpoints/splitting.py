"""How byte-level BPE tokenizers split a text before merging, by the name in tokenizer.ggml.pre.

Patterns are those of the published tokenizer.json files; llama.cpp's src/llama-vocab.cpp lists the
names. A rule is a list of patterns, each of which isolates its matches in what the former left.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios_dod.ignition.prepared import PreparationError

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
UPPER_THEN_LOWER = CASED + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER_ONLY = CASED + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
HAN = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def letters_and_digits(digits: str) -> str:
    """The later pattern: case-blind contractions, a word with one mark before it, digits."""
    return (
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        + SPACES
    )


def case_changes(contractions: str, digits: str) -> str:
    """Words also end where upper case follows lower case."""
    return (
        UPPER_THEN_LOWER
        + contractions
        + "|"
        + UPPER_ONLY
        + contractions
        + "|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        + SPACES
    )


@dataclass(frozen=True)
class SplittingRule:
    """Patterns, and what else the name implies about the tokenizer."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a whole word that is a token is not merged from parts
    adds_bos: bool = False  # default of add_bos_token
    composes: bool = False  # NFC normalisation

    def splits(self) -> list[dict[str, Any]]:
        """Pre-tokenizer entries of a tokenizer.json."""
        return [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            }
            for pattern in self.patterns
        ]


DIGITS_APART = SplittingRule((r"\p{N}", WORDS))
THREE_DIGITS = SplittingRule(
    (letters_and_digits(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True
)
ONE_DIGIT = SplittingRule((letters_and_digits(r"\p{N}"),), composes=True)
RULES = {
    "default": SplittingRule((r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": SplittingRule((WORDS,)),
    "phi-2": SplittingRule((WORDS,)),
    "olmo": SplittingRule((WORDS,)),
    "smollm": DIGITS_APART,
    "starcoder": DIGITS_APART,
    "codeshell": DIGITS_APART,
    "command-r": DIGITS_APART,
    "llama-bpe": THREE_DIGITS,
    "llama3": THREE_DIGITS,
    "llama-v3": THREE_DIGITS,
    "qwen2": ONE_DIGIT,
    "deepseek-r1-qwen": ONE_DIGIT,
    "tekken": SplittingRule((case_changes("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "gpt-4o": SplittingRule((case_changes(CONTRACTIONS + "?", r"\p{N}{1,3}"),)),
    "deepseek-llm": SplittingRule(
        (
            r"[\r\n]",
            r"\s?(?:(?![\x{1d400}-\x{1d7ff}])[\p{Lu}\p{Ll}\p{Lt}])+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            HAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": SplittingRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}")),
    "deepseek-v3": SplittingRule(
        (
            r"\p{N}{1,3}",
            "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
        )
    ),
}


def splitting_rule(path: Path, name: str) -> SplittingRule:
    """The rule of a name; unknown names are refused, since a wrong split is silently worse text."""
    if name not in RULES:
        raise PreparationError(
            f"{path}: metadata tokenizer.ggml.pre: expected one of {', '.join(RULES)}, got {name}"
        )
    return RULES[name]

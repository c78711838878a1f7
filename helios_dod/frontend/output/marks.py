"""Delimiters over symbols.

A symbol is one character of a Python string: below U+0100 a byte of output, from FIRST_TOKEN on a
delimiter that is a token of its own. So a delimiter that mixes both is a plain string, and one
regular expression finds a complete delimiter or the beginning of one at the end of the text.
"""

import re
from collections.abc import Iterable, Mapping

from helios_dod.frontend.output.syntax import OutputSyntax

FIRST_TOKEN = 0x100


def nested(words: Iterable[str]) -> str:
    """A pattern of words, or of the beginning of one at the end of the text."""
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[0], []).append(word[1:])
    parts = []
    for head, tails in heads.items():
        assert tails == [""] or "" not in tails, "a delimiter begins another"
        tail = "" if tails == [""] else rf"(?:{nested(tails)}|\Z)"
        parts.append(re.escape(head) + tail)
    return "|".join(parts)


class Marks:
    """The delimiters that are live in one state. extra: pattern that only slows the quick path."""

    def __init__(self, words: Mapping[str, int], extra: str = "") -> None:
        for word in words:
            assert word and not any(
                word in other and not other.endswith(word) for other in words), word
        self.words = dict(words)
        pattern = nested(dict.fromkeys(words)) if words else r"(?!)"
        self.scan = re.compile(pattern, re.S).search
        self.quick = re.compile(f"{pattern}|{extra}", re.S).search if extra else self.scan


def with_lead(word: str, lead: str) -> list[str]:
    """The delimiter alone and after each end of `lead`: the template's newlines are markup."""
    return [lead[i:] + word for i in range(len(lead) + 1)]


class Vocabulary:
    """Token ids and bytes of a tokenizer."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.bound: dict[OutputSyntax, Bound] = {}

    def bind(self, syntax: OutputSyntax) -> "Bound":
        """The syntax over this vocabulary; made once."""
        if syntax not in self.bound:
            self.bound[syntax] = Bound(syntax, self)
        return self.bound[syntax]


class Bound:
    """A syntax over a vocabulary: which delimiters are tokens, and what each such token means."""

    def __init__(self, syntax: OutputSyntax, vocabulary: Vocabulary) -> None:
        self.syntax = syntax
        wanted = {text.encode(): text for text in (*syntax.tokens, *syntax.dropped)}
        single = {wanted[data]: i for i, data in enumerate(vocabulary.tokens) if data in wanted}
        atoms = [text for text in dict.fromkeys(syntax.tokens) if text in single]
        self.atoms = {text: chr(FIRST_TOKEN + i) for i, text in enumerate(atoms)}
        self.spelling = {ord(symbol): text.encode().decode("latin-1")
                         for text, symbol in self.atoms.items()}
        self.split = re.compile("|".join(map(re.escape, sorted(atoms, key=len, reverse=True)))
                                or "(?!)")
        self.symbols: dict[int, str] = {}  # token id -> symbols, for tokens with a delimiter
        if atoms:
            inside = re.compile(b"|".join(re.escape(text.encode()) for text in atoms))
            for i, data in enumerate(vocabulary.tokens):
                if inside.search(data):
                    self.symbols[i] = self.encode(data.decode("utf-8", "replace"))
        for text in syntax.dropped:
            if text in single:
                self.symbols[single[text]] = ""
        self.marks: dict[str, Marks] = {}
        self.boundaries: dict[int, str] | None = None  # of prompts; see start.py

    def encode(self, text: str) -> str:
        """Symbols of text in which every token delimiter stands for its token."""
        parts, at = [], 0
        for match in self.split.finditer(text):
            parts.append(text[at:match.start()].encode().decode("latin-1"))
            parts.append(self.atoms[match.group()])
            at = match.end()
        parts.append(text[at:].encode().decode("latin-1"))
        return "".join(parts)

    def is_token(self, text: str) -> bool:
        """Whether the delimiter is a token of its own."""
        return text in self.atoms

    def bytes_of(self, symbols: str) -> bytes:
        """The bytes of symbols; a delimiter's token is its spelling."""
        try:
            return symbols.encode("latin-1")
        except UnicodeEncodeError:
            return symbols.translate(self.spelling).encode("latin-1")

    def text_of(self, symbols: str) -> str:
        """Text of complete symbols."""
        return symbols if symbols.isascii() else self.bytes_of(symbols).decode("utf-8", "replace")

    def compiled(self, name: str, words: Mapping[str, int], extra: str = "") -> Marks:
        """Marks by name, compiled once. words: delimiters as text -> their meaning."""
        if name not in self.marks:
            self.marks[name] = Marks(
                {self.encode(word): meaning for word, meaning in words.items() if word}, extra)
        return self.marks[name]

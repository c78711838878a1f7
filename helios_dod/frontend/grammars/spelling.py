"""Delimiters as a grammar spells them."""

import json

from helios_dod.frontend.output.marks import Bound


def token_ids(bound: Bound) -> dict[str, int]:
    """Delimiter -> token id, of those that are tokens."""
    symbols = {symbol: text for text, symbol in bound.atoms.items()}
    return {symbols[found]: token for token, found in bound.symbols.items() if found in symbols}


def literal(bound: Bound, text: str) -> str:
    """Text in Lark, its delimiters as tokens."""
    parts, at, ids = [], 0, token_ids(bound)
    for match in bound.split.finditer(text):
        parts.append(text[at:match.start()])
        parts.append(f"<[{ids[match.group()]}]>")
        at = match.end()
    parts.append(text[at:])
    return " ".join(part if i % 2 else json.dumps(part, ensure_ascii=False)
                    for i, part in enumerate(parts) if part)

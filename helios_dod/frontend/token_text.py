"""What a tokenizer's JSON says of each token's text, and the bytes that it stands for.

Sources: the decoders ByteLevel, ByteFallback and Metaspace of the `tokenizers` library."""

import json
from typing import Any

from helios_dod.contract.errors import ContractError, describe
from helios_dod.frontend.text import ByteTable

SPACE = "\u2581"  # SentencePiece writes a space as this
BYTE_LEVEL = 1  # proto TextDecoding


def byte_of_character() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, other bytes for U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


def added_ids(document: dict[str, Any]) -> dict[int, tuple[str, bool]]:
    """Id -> (text, special) of the tokens beside the model's vocabulary."""
    return {
        entry["id"]: (entry["content"], bool(entry["special"]))
        for entry in document.get("added_tokens", [])
    }


def strings_by_id(document: dict[str, Any]) -> dict[int, str]:
    """Id -> token string. Vocabularies are a map, or a list of (string, score)."""
    vocabulary = document["model"]["vocab"]
    pairs = (
        vocabulary.items()
        if isinstance(vocabulary, dict)
        else ((entry[0], index) for index, entry in enumerate(vocabulary))
    )
    return {index: text for text, index in pairs} | {
        index: text for index, (text, _) in added_ids(document).items()
    }


def level_bytes(text: str, alphabet: dict[str, int]) -> bytes:
    """Bytes of a token string of byte-level BPE; an added token is text as it stands."""
    codes = [alphabet.get(character) for character in text]
    return text.encode() if None in codes else bytes(code for code in codes if code is not None)


def raw_byte(text: str) -> int | None:
    """The byte of a token <0xNN>, which byte fallback has."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            pass
    return None


def check_token_bytes(tokenizer_json: bytes, table: ByteTable, decoding: int) -> None:
    """Raises ContractError unless a byte table has the bytes of the tokenizer's own vocabulary.

    Where a decoder would write spaces, or bytes, of what is not byte-level, both readings hold:
    decoders are not read."""
    alphabet, strings = byte_of_character(), strings_by_id(json.loads(tokenizer_json))
    data = table.data.tobytes()
    for token in range(len(table)):
        got = data[table.offsets[token]:table.offsets[token + 1]]
        text = strings.get(token, "")
        wanted = [level_bytes(text, alphabet)]
        if decoding != BYTE_LEVEL:
            byte = raw_byte(text)
            wanted = [text.replace(SPACE, " ").encode(), text.encode()]
            wanted += [] if byte is None else [bytes([byte])]
        if got not in wanted:
            raise ContractError(f"token_bytes[{token}]", f"{describe(wanted[0])}, the bytes of "
                                f"{describe(text)} in the tokenizer", got)

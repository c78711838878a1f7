"""Token text from a `tokenizers` JSON: bytes of every token, and how bytes become text."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.ignition.prepared import PreparationError

SPACE = "\u2581"  # SentencePiece writes a space as this


@dataclass(frozen=True)
class TextRule:
    """The decoder of a tokenizer, as far as the serving contract states it."""

    decoding: contract.TextDecoding
    strip_leading_space: bool
    space: str | None  # what stands for a space in token strings
    byte_fallback: bool  # tokens <0xNN> are raw bytes


def text_rule(tokenizer_json: bytes) -> TextRule:
    """The rule of a tokenizer's decoder. Sources: the decoders ByteLevel, ByteFallback, Replace,
    Fuse, Strip and Metaspace of the `tokenizers` library; any other is refused by name."""
    decoder = json.loads(tokenizer_json).get("decoder") or {"type": "none"}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return TextRule(contract.BYTE_LEVEL, False, None, False)
    space, strip = None, False
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and step["pattern"] == {"String": SPACE} and step["content"] == " ":
            space = SPACE
        elif kind == "Metaspace" and step.get("replacement", SPACE) == SPACE:
            space = SPACE
            strip = strip or step.get("prepend_scheme", "always") != "never"
        elif kind == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0):
            strip = True
        elif kind not in ("ByteFallback", "Fuse"):
            raise PreparationError(
                f"tokenizer decoder {kind}: expected ByteLevel, or a sequence of Replace U+2581, "
                "ByteFallback, Fuse, Metaspace and Strip of one leading space"
            )
    return TextRule(contract.BYTE_FALLBACK, strip, space, "ByteFallback" in kinds)


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


def bytes_of(text: str, rule: TextRule, alphabet: dict[str, int]) -> tuple[bytes, bool]:
    """Bytes of a token string, and whether it is one raw byte."""
    if rule.decoding == contract.BYTE_LEVEL:
        codes = [alphabet.get(character) for character in text]
        return (
            text.encode() if None in codes else bytes(code for code in codes if code is not None)
        ), False
    if rule.byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)]), True
        except ValueError:
            pass
    return (text.replace(rule.space, " ") if rule.space else text).encode(), False


def token_bytes(tokenizer_json: bytes, vocabulary: int) -> core_pb2.TokenBytes:
    """The byte table of token ids 0 .. vocabulary - 1. Ids without a token, which a padded
    vocabulary has, are empty. A token outside the vocabulary is an error."""
    document = json.loads(tokenizer_json)
    rule, alphabet = text_rule(tokenizer_json), byte_of_character()
    strings, added = strings_by_id(document), added_ids(document)
    if strings and max(strings) >= vocabulary:
        raise PreparationError(
            f"tokenizer token {strings[max(strings)]!r}: expected an id below {vocabulary}, rows "
            f"of the embedding, got {max(strings)}"
        )
    data = bytearray()
    offsets = np.zeros(vocabulary + 1, np.uint32)
    special, fallback = bytearray(vocabulary), bytearray(vocabulary)
    for index in range(vocabulary):
        if index in strings:
            piece, fallback[index] = bytes_of(strings[index], rule, alphabet)
            data += piece
        special[index] = index in added and added[index][1]
        offsets[index + 1] = len(data)
    return core_pb2.TokenBytes(
        data=bytes(data), offsets=offsets.tolist(), special=bytes(special), fallback=bytes(fallback)
    )

"""Token text from a `tokenizers` JSON: bytes of every token, and how bytes become text."""

import json
from dataclasses import dataclass

import numpy as np

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.frontend.token_text import (
    SPACE,
    added_ids,
    byte_of_character,
    level_bytes,
    raw_byte,
    strings_by_id,
)
from helios_dod.ignition.prepared import PreparationError


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


def bytes_of(text: str, rule: TextRule, alphabet: dict[str, int]) -> tuple[bytes, bool]:
    """Bytes of a token string, and whether it is one raw byte."""
    if rule.decoding == contract.BYTE_LEVEL:
        return level_bytes(text, alphabet), False
    byte = raw_byte(text) if rule.byte_fallback else None
    if byte is not None:
        return bytes([byte]), True
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

"""GGUF's tokenizer metadata as `tokenizers` JSON.

Two models: `gpt2` is byte-level BPE with a splitting rule named by tokenizer.ggml.pre, `llama` is
SentencePiece's BPE, where a piece's score says how early it is merged.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helios_dod.ignition.checkpoints.checkpoint import TextData
from helios_dod.ignition.checkpoints.splitting import splitting_rule
from helios_dod.ignition.prepared import PreparationError

SPACE = "\u2581"  # SentencePiece writes a space as this
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type
KEY = "tokenizer.ggml."
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def text_data(path: Path, get: Callable[..., Any]) -> TextData:
    """Tokenizer, template and special tokens. `get(key, default)` reads the file's metadata."""
    model = get(KEY + "model")
    builders = {"gpt2": byte_level_json, "llama": sentence_piece_json}
    if model not in builders:
        raise PreparationError(
            f"{path}: metadata {KEY}model: expected one of {', '.join(builders)}, got {model}"
        )
    tokens = get(KEY + "tokens")
    if not tokens:
        raise PreparationError(f"{path}: missing metadata {KEY}tokens")
    ids = {
        key: get(KEY + key)
        for key in (*END_KEYS, "bos_token_id", "unknown_token_id", "padding_token_id")
    }
    for key, token in ids.items():
        if token is not None and not 0 <= token < len(tokens):
            raise PreparationError(
                f"{path}: metadata {KEY}{key}: expected below {len(tokens)}, got {token}"
            )
    bos = ids["bos_token_id"]
    rule = splitting_rule(path, get(KEY + "pre", "default")) if model == "gpt2" else None
    add_bos = bool(get(KEY + "add_bos_token", rule.adds_bos if rule else True)) and bos is not None
    document = builders[model](path, get, tokens)
    if add_bos:
        document["post_processor"] = bos_template(tokens[bos], bos)
    named = {
        "bos_token": bos,
        "eos_token": ids["eos_token_id"],
        "unk_token": ids["unknown_token_id"],
        "pad_token": ids["padding_token_id"],
    }
    return TextData(
        tokenizer_json=json.dumps(document, ensure_ascii=False).encode(),
        chat_template=str(get("tokenizer.chat_template", "")),
        eos=tuple(sorted({int(ids[key]) for key in END_KEYS if ids[key] is not None})),
        bos=None if bos is None else int(bos),
        add_bos=add_bos,
        template_tokens={name: tokens[token] for name, token in named.items() if token is not None},
    )


def bos_template(text: str, token: int) -> dict[str, Any]:
    """Post-processor that puts the begin token before a text."""
    begin = {"SpecialToken": {"id": text, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, begin, second],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }


def document(
    added: list[dict], normalizer: Any, pre_tokenizer: Any, decoder: Any, model: dict
) -> dict[str, Any]:
    """A tokenizer.json."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe(vocabulary: dict[str, int], merges: list, **changes: Any) -> dict[str, Any]:
    """The BPE model entry."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    } | changes


def added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    """Tokens that are found in a text before it is split: special where control or unknown."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": tokens[index], **flags, "special": kind != USER_DEFINED}
        for index, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def token_types(path: Path, get: Callable[..., Any], tokens: list[str]) -> list[int]:
    """Type of each token, all normal where the file does not say."""
    types = get(KEY + "token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise PreparationError(
            f"{path}: metadata {KEY}token_type: expected {len(tokens)} entries, got {len(types)}"
        )
    return types


def byte_level_json(path: Path, get: Callable[..., Any], tokens: list[str]) -> dict[str, Any]:
    """Byte-level BPE from tokens and merges."""
    merges = get(KEY + "merges")
    if merges is None:
        raise PreparationError(f"{path}: missing metadata {KEY}merges")
    rule = splitting_rule(path, get(KEY + "pre", "default"))
    prefix = bool(get(KEY + "add_space_prefix", False))
    plain = {
        "type": "ByteLevel",
        "add_prefix_space": prefix,
        "trim_offsets": True,
        "use_regex": False,
    }
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = bpe(
        vocabulary, [merge.split(" ", 1) for merge in merges], ignore_merges=rule.ignore_merges
    )
    return document(
        added_tokens(tokens, token_types(path, get, tokens)),
        {"type": "NFC"} if rule.composes else None,
        {"type": "Sequence", "pretokenizers": [*rule.splits(), plain]},
        plain | {"use_regex": True},
        model,
    )


def sentence_piece_json(path: Path, get: Callable[..., Any], tokens: list[str]) -> dict[str, Any]:
    """SentencePiece BPE: merges in falling order of the merged piece's score, bytes at last."""
    scores = get(KEY + "scores")
    if scores is None or len(scores) != len(tokens):
        raise PreparationError(f"{path}: metadata {KEY}scores: expected {len(tokens)} entries")
    prefix = bool(get(KEY + "add_space_prefix", True))
    types = token_types(path, get, tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = get(KEY + "unknown_token_id", types.index(UNKNOWN) if UNKNOWN in types else None)
    model = bpe(
        vocabulary,
        merges_of(vocabulary, scores),
        byte_fallback=BYTE in types,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    return document(
        added_tokens(tokens, types),
        {"type": "Sequence", "normalizers": [*steps, replace]},
        None,
        {"type": "Sequence", "decoders": decoders},
        model,
    )


def merges_of(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that joins to a piece, in the order of published conversions: highest
    score of the joined piece first, then its id, then the ids of the halves."""
    merges = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if left is not None and right is not None:
                merges.append((-scores[index], index, left, right, piece[:cut], piece[cut:]))
    return [(left, right) for *_, left, right in sorted(merges)]

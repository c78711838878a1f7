"""Small tokenizers of both kinds, made in the test, and byte tables read from `tokenizers` JSON.

The byte table here is made independently of preparation's, so that each checks the other."""

import json
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from helios_dod.frontend.text import ByteTable

TEXTS = [
    "Hello world, it's me. Don't stop now; the quick brown fox jumps over the lazy dog.",
    "漢字とかな 中文 한국어 العربية עברית ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 é e\u0301 ñ n\u0303 🙂🙃 👍🏽",
    "  leading and   double  spaces ", "\n\n\ttab\r\n end", "naïve café — “quotes” …",
    "ﷺ ௵ ꧅ 𒐫 🜁", "<|im_end|> literal </s> <s>", "x = [1, 2, 3]\nif x:\n    return 12345",
    'a "quoted" \\ back\\slash \u0001 control \x7f', "\ufffd is itself a character \ufffd",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


@dataclass(frozen=True)
class Sample:
    """A tokenizer with what our side needs to know of it."""

    name: str
    tokenizer: Tokenizer
    table: ByteTable
    special: frozenset[int]
    fallback: frozenset[int]  # raw byte tokens of a byte-fallback tokenizer
    strip: bool


def byte_alphabet() -> dict[str, int]:
    """The printable characters by which GPT-2's byte-level vocabulary writes bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(other)}


def sample_of(name: str, text: str) -> Sample:
    """Reads a `tokenizers` JSON."""
    described = json.loads(text)
    tokenizer = Tokenizer.from_str(text)
    decoder = described["decoder"]
    special = {t["id"] for t in described["added_tokens"] if t["special"]}
    alphabet = byte_alphabet()
    pieces, fallback = [], set()
    for index in range(tokenizer.get_vocab_size()):
        token = tokenizer.id_to_token(index) or ""
        if "ByteLevel" in json.dumps(decoder):
            known = all(c in alphabet for c in token)
            pieces.append(bytes(alphabet[c] for c in token) if known else token.encode())
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            pieces.append(bytes([int(token[3:5], 16)]))
            fallback.add(index)
        else:
            pieces.append(token.replace("▁", " ").encode())
    offsets = [0]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    flags = bytes(int(i in special) for i in range(len(pieces)))
    strip = any(part.get("type") == "Strip" for part in decoder.get("decoders", []))
    table = ByteTable.of(b"".join(pieces), offsets, flags)
    return Sample(name, tokenizer, table, frozenset(special), frozenset(fallback), strip)


@cache
def byte_level() -> Sample:
    """A ByteLevel BPE of 700 tokens, trained here."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    return sample_of("byte_level", tokenizer.to_str())


@cache
def tagged() -> Sample:
    """The ByteLevel one with the tags of reasoning and tool calls as tokens, not special ones."""
    tokenizer = Tokenizer.from_str(byte_level().tokenizer.to_str())
    tokenizer.add_tokens(TAGS)
    return sample_of("tagged", tokenizer.to_str())


@cache
def byte_fallback() -> Sample:
    """A BPE with byte fallback as Llama 2's: spaces as U+2581, one leading space stripped."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    plain = [text for text in TEXTS if text.isascii()] * 4
    trained.train_from_iterator(plain, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [token for token in model["vocab"] if token not in names]
    tokenizer = Tokenizer(models.BPE(
        vocab={token: i for i, token in enumerate(names)},
        merges=[tuple(pair) for pair in model["merges"]],
        unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return sample_of("byte_fallback", tokenizer.to_str())

"""Small tokenizers for the tiny checkpoints, trained here in the shape that each family uses."""

from prompts import sensor_module, ship_log
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

VOCABULARY = 300
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def corpus() -> list[str]:
    """The text that merges are learned from."""
    return [ship_log(60), sensor_module(10), "Café, naïve: 12 + 34 = 46. It's what they're after."]


def pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """The byte-level splitting rule of a family: gpt2, smollm, llama3 or qwen2."""
    if kind == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizer("gpt2")])
    pattern = Regex({"llama3": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}[kind])
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, plain])


def with_bos(tokenizer: Tokenizer, bos: str | None) -> Tokenizer:
    """Add the start token that the post-processor of some families puts before a text."""
    if bos is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def byte_level(kind: str, specials: list[str], bos: str | None = None) -> Tokenizer:
    """A byte-level BPE of VOCABULARY entries: special tokens first, then bytes, then merges."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return with_bos(tokenizer, bos)


def byte_fallback(specials: list[str], bos: str) -> Tokenizer:
    """A Llama-2-shaped BPE: spaces as U+2581, one put in front, unknown characters as <0xNN>.

    The characters and merges come from a plain BPE training; the 256 byte tokens follow the
    special tokens, as in the original.
    """
    text = [piece.replace(" ", "\u2581") for piece in corpus()]
    learned = Tokenizer(models.BPE())
    bytes_start = len(specials)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 256 - bytes_start, limit_alphabet=24, show_progress=False
    )
    learned.train_from_iterator(text, trainer)
    entries = specials + [f"<0x{byte:02X}>" for byte in range(256)]
    model = learned.model
    by_id = sorted(learned.get_vocab().items(), key=lambda item: item[1])
    entries += [token for token, _ in by_id]
    merges = merges_of(learned)
    vocabulary = {token: index for index, token in enumerate(entries)}
    model = models.BPE(
        vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(specials)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    assert tokenizer.get_vocab_size() == VOCABULARY
    return with_bos(tokenizer, bos)


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The merges of a BPE tokenizer, first one first, as pairs."""
    import json

    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]

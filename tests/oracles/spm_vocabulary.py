"""Write a GGUF file that is only an SPM vocabulary, and llama.cpp's tokenisations with it.

    python tests/oracles/spm_vocabulary.py

The vocabulary is trained by sentencepiece (BPE with byte fallback), so that many pieces can be
made in several ways and only the scores decide. Writes spm_vocabulary.gguf (no tensors) and
spm_vocabulary.tokens.json into tests/fixtures/tiny/; sentencepiece itself must agree on texts
without special tokens.
"""

import io
import sys

import gguf
import sentencepiece
from smollm2_text import LlamaCppTokenizer, write
from text_cases import tricky_strings
from tiny_family import FIXTURES
from tiny_specs import INSTRUCTION
from tiny_tokenizers import corpus

VOCABULARY = 700


def train() -> sentencepiece.SentencePieceProcessor:
    """A processor with Llama 2's normalisation: none, a space put in front, spaces kept."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(corpus()).split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def token_type(processor: sentencepiece.SentencePieceProcessor, row: int) -> gguf.TokenType:
    """GGUF's type of one piece."""
    if processor.is_unknown(row):
        return gguf.TokenType.UNKNOWN
    if processor.is_control(row):
        return gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if processor.is_byte(row) else gguf.TokenType.NORMAL


def write_vocabulary(processor: sentencepiece.SentencePieceProcessor) -> None:
    """The GGUF file: metadata of a llama model without layers, and the tokenizer."""
    rows = range(processor.vocab_size())
    writer = gguf.GGUFWriter(FIXTURES / "spm_vocabulary.gguf", "llama")
    writer.add_name("tiny spm vocabulary")
    writer.add_vocab_size(len(rows))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([processor.id_to_piece(row) for row in rows])
    writer.add_token_scores([processor.get_score(row) for row in rows])
    writer.add_token_types([token_type(processor, row) for row in rows])
    writer.add_unk_token_id(processor.unk_id())
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_chat_template(INSTRUCTION)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    processor = train()
    write_vocabulary(processor)
    tokenizer = LlamaCppTokenizer(FIXTURES / "spm_vocabulary.gguf")
    words = "\n".join(corpus()).split()
    texts = tricky_strings() + corpus()[0].split("\n")[:20] + ["".join(words[:40])]
    entries = []
    for text in texts:
        entry = {"text": text, "token_ids": tokenizer.encode(text)}
        entries.append(entry)
        special = any(token in text for token in ("<s>", "</s>", "<unk>"))
        if not special and processor.encode(text) != entry["token_ids"]:
            entry["sentencepiece_ids"] = processor.encode(text)
            print("sentencepiece differs:", repr(text), entry)
    write(FIXTURES / "spm_vocabulary.tokens.json", "texts", entries)
    print(len(entries), "texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())

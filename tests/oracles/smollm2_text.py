"""Record chat template renders and tokenisations of SmolLM2-135M-Instruct.

    python tests/oracles/smollm2_text.py MODEL.gguf

Renders come from transformers' `apply_chat_template`, token ids from llama.cpp.
Writes tests/fixtures/smollm2_chat.json and smollm2_tokenize.json.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import gguf
from gguf_llama import field
from text_cases import MESSAGE_LISTS, tricky_strings
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


class LlamaCppTokenizer:
    """llama.cpp's tokenizer of a GGUF file; special tokens in the text are recognised."""

    def __init__(self, path: Path):
        from llama_cpp import Llama

        self.llama = Llama(str(path), vocab_only=True, verbose=False)

    def encode(self, text: str) -> list[int]:
        """Token ids without a token of its own at the start or the end."""
        return self.llama.tokenize(text.encode("utf-8"), add_bos=False, special=True)

    def bytes_of(self, token_ids: list[int]) -> bytes:
        """Bytes of the tokens, special tokens as their text."""
        return self.llama.detokenize(token_ids, special=True)


def render(template: str, messages: list[dict], generation_prompt: bool = True) -> str:
    """The text that transformers' chat template machinery makes of a message list."""
    rendered, _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=generation_prompt
    )
    return rendered[0]


def chat_entries(template: str, tokenizer: LlamaCppTokenizer, theirs) -> list[dict]:
    """Each message list with and without the generation prompt: text and token ids."""
    entries = []
    for messages in MESSAGE_LISTS:
        for generation_prompt in (False, True):
            text = render(template, messages, generation_prompt)
            by_tokenizer = theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation_prompt
            )
            assert by_tokenizer == text
            entries.append(
                {
                    "messages": messages,
                    "add_generation_prompt": generation_prompt,
                    "text": text,
                    "token_ids": tokenizer.encode(text),
                }
            )
    return entries


def text_entries(tokenizer: LlamaCppTokenizer, theirs) -> list[dict]:
    """Each tricky string with llama.cpp's ids and whether transformers' conversion agrees."""
    entries = []
    for text in tricky_strings():
        token_ids = tokenizer.encode(text)
        agrees = theirs.encode(text, add_special_tokens=False) == token_ids
        entry = {"text": text, "token_ids": token_ids, "transformers_agrees": agrees}
        entry["lossless"] = tokenizer.bytes_of(token_ids) == text.encode("utf-8")
        entries.append(entry)
    return entries


def write(path: Path, key: str, entries: list[dict]) -> None:
    """One JSON object, one entry a line."""
    head = {"made_by": "tests/oracles/smollm2_text.py"}
    head |= {name: version(name) for name in ("llama-cpp-python", "transformers")}
    lines = [json.dumps(entry, ensure_ascii=True) for entry in entries]
    text = json.dumps(head, indent=1)[:-2] + f',\n "{key}": [\n' + ",\n".join(lines) + "\n]}\n"
    assert json.loads(text)[key] == entries
    path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    template = field(gguf.GGUFReader(path), "tokenizer.chat_template")
    tokenizer = LlamaCppTokenizer(path)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    write(FIXTURES / "smollm2_chat.json", "chats", chat_entries(template, tokenizer, theirs))
    entries = text_entries(tokenizer, theirs)
    write(FIXTURES / "smollm2_tokenize.json", "texts", entries)
    for entry in entries:
        if not (entry["transformers_agrees"] and entry["lossless"]):
            print(entry)
    print(len(entries), "strings")
    return 0


if __name__ == "__main__":
    sys.exit(main())

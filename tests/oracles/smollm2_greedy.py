"""Record greedy tokens and logits of SmolLM2-135M-Instruct by Hugging Face transformers.

    python tests/oracles/smollm2_greedy.py MODEL.gguf

Writes tests/fixtures/smollm2_greedy.json (one prompt a line) and smollm2_logits.npz.
Weights are dequantised by the gguf library (`gguf_llama`), arithmetic and cache are float32.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf_llama import field, load
from greedy import all_logits, greedy
from prompts import chat_prompts, raw_prompts
from smollm2_text import LlamaCppTokenizer, render

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TOKEN_COUNT = 64
LOGITS_OF = ("raw_one_token", "chat_capital", "raw_mixed")
FLOAT64_TOKENS_MAX = 400


def check_against_transformers_loader(path: Path, model) -> dict[str, float]:
    """Largest absolute difference of each weight kind to what transformers' own loader reads."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).state_dict()
    differences: dict[str, float] = {}
    for name, weight in model.state_dict().items():
        kind = name.split(".", 3)[-1] if name.startswith("model.layers.") else name
        difference = float((weight - theirs[name]).abs().max())
        differences[kind] = max(differences.get(kind, 0.0), difference)
    return differences


def float64_difference(wide_model, result: dict, prompt_ids: list[int]) -> float:
    """Largest difference of the recorded top-2 logits to those of float64 arithmetic."""
    tokens = prompt_ids + result["generated_ids"][:-1]
    logits = all_logits(wide_model, tokens)[len(prompt_ids) - 1 :]
    exact = np.take_along_axis(logits, np.asarray(result["top2_ids"]), axis=1)
    return float(np.abs(exact - np.asarray(result["top2_logits"])).max())


def prompt_texts(template: str) -> dict[str, str]:
    """Name -> text of all prompts, chats rendered with the generation prompt."""
    chats = {name: render(template, messages) for name, messages in chat_prompts().items()}
    return chats | raw_prompts()


def record(model, wide_model, tokenizer, name: str, text: str) -> dict:
    """The fixture's entry for one prompt; last_logits is dropped by the caller."""
    prompt_ids = tokenizer.encode(text)
    result = greedy(model, prompt_ids, TOKEN_COUNT)
    gap_min = min(best - second for best, second in result["top2_logits"])
    entry = {"name": name, "text": text, "prompt_ids": prompt_ids, **result}
    entry["gap_min"] = round(gap_min, 6)
    entry["float64_difference"] = None
    if len(prompt_ids) <= FLOAT64_TOKENS_MAX:
        entry["float64_difference"] = round(float64_difference(wide_model, result, prompt_ids), 7)
    print(name, len(prompt_ids), "gap", entry["gap_min"], entry["float64_difference"], flush=True)
    return entry


def write_json(path: Path, head: dict, entries: list[dict]) -> None:
    """One JSON object; its prompts one a line, so that differences are readable."""
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    text = json.dumps(head, indent=1)[:-2] + ',\n "prompts": [\n' + ",\n".join(lines) + "\n]}\n"
    assert json.loads(text)["prompts"] == entries
    path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    torch.set_num_threads(1)
    model, wide_model = load(path), load(path, torch.float64)
    differences = check_against_transformers_loader(path, model)
    print("weights against transformers' loader:", differences)
    template = field(gguf.GGUFReader(path), "tokenizer.chat_template")
    tokenizer = LlamaCppTokenizer(path)
    texts = prompt_texts(template)
    assert len(texts) == 32 and max(len(tokenizer.encode(text)) for text in texts.values()) > 4000
    entries, logits = [], {}
    for name, text in texts.items():
        entry = record(model, wide_model, tokenizer, name, text)
        last_logits = entry.pop("last_logits")
        if name in LOGITS_OF:
            logits[name] = last_logits
        entries.append(entry)
    head = {
        "made_by": "tests/oracles/smollm2_greedy.py",
        "versions": {name: version(name) for name in ("transformers", "torch", "gguf")},
        "weight_difference_to_transformers_loader": max(differences.values()),
    }
    write_json(FIXTURES / "smollm2_greedy.json", head, entries)
    np.savez_compressed(FIXTURES / "smollm2_logits.npz", **logits)
    return 0


if __name__ == "__main__":
    sys.exit(main())

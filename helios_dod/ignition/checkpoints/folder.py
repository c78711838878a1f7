"""Hugging Face folders: config.json, safetensors (one file, or shards by index), tokenizer.json."""

import json
from pathlib import Path
from typing import Any

from helios_dod.ignition.checkpoints.checkpoint import Checkpoint, GenerationDefaults, TextData
from helios_dod.ignition.checkpoints.folder_config import Entries, model_config
from helios_dod.ignition.checkpoints.safetensors_file import folder_tensors
from helios_dod.ignition.prepared import PreparationError

TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md")


def open_folder(path: Path) -> Checkpoint:
    """Opens a folder; tensors stay memory-mapped. Errors name the missing file, tensor or field."""
    config = Entries(path / "config.json", read_json(path / "config.json"))
    tensors = folder_tensors(path)
    generation = read_json(path / "generation_config.json", optional=True)
    return Checkpoint(
        name=path.resolve().name,
        config=model_config(config, tensors),
        tensors=tensors,
        text=text_data(path, config, generation),
        generation=generation_defaults(generation),
        license_text=license_text(path),
    )


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object; optional files may be missing and are then empty."""
    if not path.exists():
        if optional:
            return {}
        raise PreparationError(f"checkpoint {path.parent}: missing file {path.name}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PreparationError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise PreparationError(f"{path}: expected an object, got {type(value).__name__}")
    return value


def license_text(path: Path) -> str:
    """The folder's licence file, empty where there is none."""
    for name in LICENSE_FILES:
        if (path / name).exists():
            return (path / name).read_text(encoding="utf-8")
    return ""


def text_data(path: Path, config: Entries, generation: dict[str, Any]) -> TextData:
    """Tokenizer, template and special tokens."""
    file = path / "tokenizer.json"
    document = read_json(file)
    settings = read_json(path / "tokenizer_config.json", optional=True)
    special = settings | read_json(path / "special_tokens_map.json", optional=True)
    texts = {name: token_text(special.get(name)) for name in TEMPLATE_TOKENS}
    named = {name: text for name, text in texts.items() if text is not None}
    ids = token_ids(document)
    eos = id_list(file, generation.get("eos_token_id", config.get("eos_token_id")))
    if "eos_token" in named:
        eos.append(id_of(file, ids, named["eos_token"]))
    bos = id_of(file, ids, named["bos_token"]) if "bos_token" in named else None
    return TextData(
        tokenizer_json=file.read_bytes(),
        chat_template=chat_template(path, settings),
        eos=tuple(sorted(set(eos))),
        bos=bos,
        add_bos=bos is not None and begins_with(document, named["bos_token"], settings),
        template_tokens=named,
    )


def token_text(entry: Any) -> str | None:
    """A special token's text: a string, or an object with `content`."""
    return entry.get("content") if isinstance(entry, dict) else entry


def token_ids(document: dict[str, Any]) -> dict[str, int]:
    """Token string -> id of a tokenizer.json."""
    vocabulary = document["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
    added = document.get("added_tokens") or []
    return vocabulary | {entry["content"]: entry["id"] for entry in added}


def id_of(file: Path, ids: dict[str, int], text: str) -> int:
    """Id of a special token, which the tokenizer must have."""
    if text not in ids:
        raise PreparationError(f"{file}: missing token {text!r}")
    return ids[text]


def id_list(file: Path, value: Any) -> list[int]:
    """One id, a list of them or nothing."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and token >= 0 for token in found):
        raise PreparationError(f"{file.parent}: eos_token_id: expected ids, got {value}")
    return list(found)


def begins_with(document: dict[str, Any], bos: str, settings: dict[str, Any]) -> bool:
    """Whether the tokenizer puts the begin token before a text: its post-processor says so, or
    where that is silent the folder's settings."""
    processor = document.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        if step.get("type") == "TemplateProcessing":
            return step["single"][0].get("SpecialToken", {}).get("id") == bos
    return bool(settings.get("add_bos_token", False))


def chat_template(path: Path, settings: dict[str, Any]) -> str:
    """Jinja source: a file of its own, or in the settings as a string or a list of named ones."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    found = settings.get("chat_template") or ""
    if isinstance(found, list):
        by_name = {entry["name"]: entry["template"] for entry in found}
        if "default" not in by_name:
            raise PreparationError(
                f"{path / 'tokenizer_config.json'}: chat_template: expected one named default, "
                f"got {', '.join(by_name)}"
            )
        found = by_name["default"]
    return str(found)


def generation_defaults(generation: dict[str, Any]) -> GenerationDefaults:
    """Sampling recommendations of generation_config.json."""
    top_k = generation.get("top_k")
    return GenerationDefaults(
        top_k=None if top_k is None else int(top_k),
        **{
            name: None if generation.get(name) is None else float(generation[name])
            for name in ("temperature", "top_p", "min_p", "repetition_penalty")
        },
    )

"""Schemas that public packages ship, for `structured_answers.py`: the JSON Schema Test Suite and
collections on npm and PyPI, read from downloaded archives (.tgz, .tar.gz, .whl)."""

import json
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUITE_DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
SCHEMA_BYTES_MAX = 100_000


def files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Every JSON file of an archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if name.endswith(".json"):
                    yield name, opened.read(name)
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".json") else None
            if file is not None:
                yield member.name, file.read()


def schemas(archive: Path) -> Iterator[tuple[str, Any, list[Any]]]:
    """(name, schema, instances that fulfil it, where a test suite says so) of an archive."""
    for name, data in files(archive):
        try:
            content = json.loads(data)
        except ValueError:
            continue
        if isinstance(content, list):
            draft = next((part for part in name.split("/") if part in SUITE_DRAFTS), None)
            if draft is None:
                continue
            for group in content:
                if isinstance(group, dict) and isinstance(group.get("schema"), dict):
                    good = [test["data"] for test in group.get("tests", []) if test.get("valid")]
                    if good:
                        yield (f"{archive.name}:{name.split('/tests/')[-1]}:"
                               f"{group['description']}"), group["schema"], good
        elif isinstance(content, dict) and is_schema(content):
            yield f"{archive.name}:{name}", content, []


def is_schema(content: dict[str, Any]) -> bool:
    """Whether a file is a schema rather than a document."""
    declared = content.get("$schema")
    return isinstance(declared, str) and "json-schema.org" in declared


def remote(schema: Any) -> bool:
    """Whether a schema cannot be read alone."""
    text = json.dumps(schema)
    return any(f'"{name}"' in text for name in ("$dynamicRef", "$recursiveRef", "$anchor",
                                                 "$dynamicAnchor", "$vocabulary")) or any(
        isinstance(part, dict) and isinstance(part.get("$ref"), str)
        and not part["$ref"].startswith("#") for part in parts(schema))


def parts(value: Any) -> Iterator[Any]:
    """Every value inside."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def chosen(archives: list[Path], count: int, seed: int = 1) -> list[tuple[str, Any, list[Any]]]:
    """A repeatable choice of distinct schemas that stand alone."""
    found: dict[str, tuple[str, Any, list[Any]]] = {}
    for archive in sorted(archives):
        for name, schema, good in schemas(archive):
            text = json.dumps(schema, sort_keys=True)
            if len(text) <= SCHEMA_BYTES_MAX and not remote(schema):
                found.setdefault(text, (name, schema, good))
    every = [found[text] for text in sorted(found)]
    random.Random(seed).shuffle(every)
    return every[:count]

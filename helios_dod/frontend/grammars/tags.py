"""Structural tags: text in which a trigger begins a part that has to fit a schema.

Sources of the format: vLLM's and XGrammar's documentation of `structural_tag`, in both its spelling
with `structures` and `triggers`, and the nested one with `format`."""

import json
from collections.abc import Callable
from typing import Any

from helios_dod.frontend.grammars.bounds import check_bytes, refuse
from helios_dod.frontend.grammars.expressed import lark_of_grammar, lark_of_regex
from helios_dod.frontend.grammars.root import Room

TAGS_MAX = 256
NESTING_MAX = 32
SchemaGrammar = Callable[..., dict[str, Any]]


class Tags:
    """Collects rules of one Lark grammar, and the grammars that it names."""

    def __init__(self, field: str, schema_grammar: SchemaGrammar) -> None:
        self.field, self.schema_grammar = field, schema_grammar
        self.rules: list[str] = []
        self.others: list[dict[str, Any]] = []
        self.count = 0
        self.room = Room()

    def name(self, prefix: str) -> str:
        """A rule's name."""
        self.count += 1
        if self.count > 8 * TAGS_MAX:
            raise refuse(self.field, f"has more than {8 * TAGS_MAX} parts")
        return f"{prefix}_{self.count}"

    def rule(self, prefix: str, body: str, options: str = "") -> str:
        """Adds a rule; its name."""
        name = self.name(prefix)
        self.rules.append(f"{name}{options}: {body}")
        return name

    def other(self, grammar: dict[str, Any]) -> str:
        """Adds a grammar; how rules name it."""
        name = self.name(self.field.replace(".", "_") + "_part")
        self.others.append({"name": name, **grammar})
        return f"@{name}"

    def schema(self, value: Any) -> str:
        """A JSON value."""
        return self.other(self.schema_grammar(value, self.field, room=self.room))

    def grammars(self, start: str) -> list[dict[str, Any]]:
        """The list of grammars whose first one begins with `start`."""
        lark = "\n".join([f"start: {start}", *self.rules, "TEXT: /(.|\\n)+/"])
        check_bytes(lark, self.field)
        return [{"lark_grammar": lark}, *self.others]


def literal(text: str) -> str:
    """A text in Lark; nothing if it is empty."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def text_of(value: Any, name: str, field: str) -> str:
    """A string of a tag."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise refuse(field, f"has a tag without '{name}'")
    return found


def structural_tag(tag: Any, field: str, schema_grammar: SchemaGrammar) -> list[dict[str, Any]]:
    """Grammar entries of a structural tag. Raises RequestError."""
    if not isinstance(tag, dict):
        raise refuse(field, "must be a JSON object")
    tags = Tags(field, schema_grammar)
    if "format" in tag:
        return tags.grammars(nested(tags, tag["format"], 0))
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise refuse(field, "needs 'structures' and 'triggers', or 'format'")
    parts = [(text_of(part, "begin", field), tags.schema(part.get("schema", {})),
              text_of(part, "end", field)) for part in structures]
    return tags.grammars(triggered(tags, parts, triggers))


def triggered(tags: Tags, parts: list[tuple[str, str, str]], triggers: list[Any],
              least: int = 0, once: bool = False) -> str:
    """Free text in which each trigger begins one of the parts (begin, body, end)."""
    if not parts or len(parts) > TAGS_MAX:
        raise refuse(tags.field, f"has {len(parts)} tags; 1 to {TAGS_MAX} are accepted")
    options = []
    for begin, body, end in parts:
        found = [text for text in triggers if isinstance(text, str) and text
                 and begin.startswith(text)]
        if not found:
            raise refuse(tags.field, f"has a tag {begin[:100]!r} that no trigger begins")
        trigger = max(found, key=len)
        head = tags.rule("head", f"/(.|\\n)*/ {literal(trigger)}", "[lazy]")
        options.append(tags.rule(
            "tag", f"{head} {literal(begin[len(trigger):])} {body} {literal(end)}"))
    one = tags.rule("tags", " | ".join(options))
    if once:
        return one if least else f"{one}? TEXT?"
    return f"{one}{'+' if least else '*'} TEXT?"


def nested(tags: Tags, value: Any, depth: int) -> str:
    """The expression of a `format` object."""
    if depth > NESTING_MAX:
        raise refuse(tags.field, f"is nested deeper than {NESTING_MAX}")
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "const_string":
        return literal(text_of(value, "value", tags.field)) or '""'
    if kind == "json_schema":
        return tags.schema(value.get("json_schema", {}))
    if kind == "regex":
        return lark_of_regex(text_of(value, "pattern", tags.field), tags.field)
    if kind == "grammar":
        text = text_of(value, "grammar", tags.field)
        return tags.other({"lark_grammar": lark_of_grammar(text, tags.field)})
    if kind == "any_text":
        return "TEXT?"
    if kind in ("sequence", "or"):
        parts = value.get("elements")
        if not isinstance(parts, list) or not 0 < len(parts) <= TAGS_MAX:
            raise refuse(tags.field, f"needs 1 to {TAGS_MAX} 'elements' in {kind!r}")
        made = [nested(tags, part, depth + 1) for part in parts]
        return tags.rule(kind if kind == "sequence" else "either",
                         (" " if kind == "sequence" else " | ").join(made))
    if kind == "tag":
        begin, body, end = tag_parts(tags, value, depth)
        return tags.rule("tag", f"{literal(begin)} {body} {literal(end)}")
    if kind == "triggered_tags":
        given = value.get("tags")
        if not isinstance(given, list) or not isinstance(value.get("triggers"), list):
            raise refuse(tags.field, "needs 'tags' and 'triggers' in 'triggered_tags'")
        return tags.rule("parts", triggered(
            tags, [tag_parts(tags, tag, depth) for tag in given], value["triggers"],
            int(bool(value.get("at_least_one"))), bool(value.get("stop_after_first"))))
    if kind == "tags_with_separator":
        given = value.get("tags")
        if not isinstance(given, list) or not 0 < len(given) <= TAGS_MAX:
            raise refuse(tags.field, f"needs 1 to {TAGS_MAX} 'tags' in {kind!r}")
        one = tags.rule("tags", " | ".join(nested(tags, tag, depth + 1) for tag in given))
        more = f"({literal(text_of(value, 'separator', tags.field))} {one})*"
        if value.get("stop_after_first"):
            more = ""
        return tags.rule("list", f"{one} {more}") + ("" if value.get("at_least_one") else "?")
    raise refuse(tags.field, f"has a format of type {kind!r}, which is not supported")


def tag_parts(tags: Tags, value: Any, depth: int) -> tuple[str, str, str]:
    """Begin, body and end of a `tag` format. Text up to the end is read lazily."""
    begin, end = text_of(value, "begin", tags.field), text_of(value, "end", tags.field)
    content = value.get("content")
    if isinstance(content, dict) and content.get("type") == "any_text" and end:
        return begin, tags.rule("rest", f"/(.|\\n)*/ {literal(end)}", "[lazy]"), ""
    return begin, nested(tags, content, depth + 1), end

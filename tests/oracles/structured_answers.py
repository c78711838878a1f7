"""A served model answers schemas of public packages; every complete answer is validated by the
`jsonschema` library.

    npm pack json-schema-test-suite har-schema geojson-schema ... ; pip download jsonschema ...
    python tests/oracles/structured_answers.py http://127.0.0.1:8000 FOLDER --count 300

FOLDER holds the archives. Strings, arrays and objects without a bound of their own are given one,
since a small model writes on; the answer is validated against the schema as it was shipped."""

import argparse
import json
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parent))

from structured_schemas import chosen

TOKENS = 512
PLAIN = {"type": ["string", "integer", "boolean", "null"], "maxLength": 12, "minimum": -999,
         "maximum": 999}
SHOWN = 400  # characters of a schema that the model is shown
VALIDATORS = {"draft4": jsonschema.Draft4Validator, "draft6": jsonschema.Draft6Validator,
              "draft7": jsonschema.Draft7Validator,
              "draft2019-09": jsonschema.Draft201909Validator}
PLACES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
COMBINED = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "$ref",
            "dependentSchemas", "dependencies", "dependentRequired")
KNOWN = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
         "uri")
FREE = ("string", "integer", "boolean", "null", "array", "object")
ABOUT = {
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "contains", "minItems", "maxItems",
                     "uniqueItems", "unevaluatedItems", "minContains", "maxContains"), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required",
                     "propertyNames", "minProperties", "maxProperties", "dependentRequired",
                     "dependentSchemas", "dependencies", "unevaluatedProperties"), "object"),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string")}
SINGLE = ("additionalProperties", "items", "additionalItems", "contains")


def limited(schema: Any, beside: bool = False) -> Any:
    """A narrower schema, with a bound wherever strings, arrays, numbers or objects have none.

    beside: another schema speaks of the same value, so that names of it are not known here."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in PLACES:
        if isinstance(made.get(name), dict):
            made[name] = {key: limited(value) for key, value in made[name].items()}
    for name in LISTS:
        if isinstance(made.get(name), list):
            made[name] = [limited(value, name != "prefixItems") for value in made[name]]
    for name in SINGLE:
        if isinstance(made.get(name), list):
            made[name] = [limited(value) for value in made[name]]
        elif name in made:
            made[name] = limited(made[name])
    if "$ref" in made or "enum" in made or "const" in made:
        return made
    kinds = made.get("type", list(FREE))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not beside and isinstance(made.get("multipleOf", 1), int):  # a fraction has no last digit
        kinds = ["integer" if kind == "number" else kind for kind in kinds]
        made["type"] = kinds if len(kinds) > 1 else kinds[0]
    bound_numbers(made, kinds)
    if "string" in kinds and "maxLength" not in made and made.get("format") not in KNOWN:
        made["maxLength"] = max(24 if "pattern" in made else 12, int(made.get("minLength", 0)))
    if "array" in kinds and "maxItems" not in made:
        made["maxItems"] = max(2, int(made.get("minItems", 0)),
                               len(made.get("prefixItems", ())))
    if beside:
        return made
    if "array" in kinds and made.get("items", True) is True and not set(made) & set(COMBINED):
        made["items"] = PLAIN
    if "object" in kinds and made.get("additionalProperties", True) is True:
        made["additionalProperties"] = PLAIN
        mentioned = names_beside(schema)
        made["properties"] = mentioned | made.get("properties", {})
        if not made["properties"]:
            del made["properties"]
    if "object" in kinds and not set(made) & {"maxProperties", "minProperties",
                                              "patternProperties"}:
        named = set(made.get("properties", {})) | set(made.get("required", []))
        made["maxProperties"] = len(named) + (0 if named else 2)
    return made


def spoken_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that names no type, with the one that all its keywords are about."""
    about = {ABOUT[name] for name in schema if name in ABOUT}
    if "type" in schema or len(about) != 1 or set(schema) & {"enum", "const", "$ref"}:
        return schema
    return {**schema, "type": about.pop()}


def narrowed_form(schema: dict[str, Any]) -> dict[str, Any]:
    """What the model is held to. Names and items that a bound adds would count as spoken of, so
    schemas that ask for that get a type only."""
    typed = spoken_of(schema)
    return typed if "unevaluated" in json.dumps(schema) else limited(typed)


def bound_numbers(made: dict[str, Any], kinds: list[str]) -> None:
    """Bounds of digits before the point."""
    if not set(kinds) & {"number", "integer"}:
        return
    if not set(made) & {"minimum", "exclusiveMinimum"}:
        most = made.get("exclusiveMaximum", made.get("maximum", 0))
        made["minimum"] = min(-999, made.get("maximum", 0) if most is True else most) - 999
    if not set(made) & {"maximum", "exclusiveMaximum"}:
        least = made.get("exclusiveMinimum", made.get("minimum", 0))
        made["maximum"] = max(999, made.get("minimum", 0) if least is True else least) + 999


def names_beside(schema: dict[str, Any]) -> dict[str, Any]:
    """Names of properties that schemas about the same value speak of: free where those say what
    they are, else plain values."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        found = {**dict.fromkeys(part.get("required", []), PLAIN), **found,
                 **{key: {} for key in part.get("properties", {})}}
        for name in COMBINED:
            value = part.get(name)
            if isinstance(value, list):
                waiting += value
            elif isinstance(value, dict) and name.startswith("depend"):
                named = [*value, *(text for demand in value.values() if isinstance(demand, list)
                                   for text in demand)]
                found = {**dict.fromkeys(named, PLAIN), **found}
                waiting += value.values()
            else:
                waiting.append(value)
    return found


def ask(client: httpx.Client, url: str, schema: Any) -> tuple[int, Any]:
    """(status, choice or error) of one request; as shipped, where the narrower schema has none."""
    status, result = 400, None
    for form in (narrowed_form(schema), schema):
        answer = client.post(f"{url}/v1/chat/completions", json={
            "model": "default", "max_tokens": TOKENS, "seed": 1, "messages": [{
                "role": "user", "content": "Write a short JSON document that fits this JSON "
                "schema: " + json.dumps(schema)[:SHOWN]}],
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "document", "schema": form}}})
        body, status = answer.json(), answer.status_code
        result = body["choices"][0] if status == 200 else body["error"]
        if status != 400:
            break
    return status, result


def judge(name: str, schema: Any, status: int, result: Any) -> tuple[str, str]:
    """(verdict, why) of one answer."""
    if status == 400:
        return "unsupported", result["message"]
    if status != 200:
        return "failed", f"{status} {result['message']}"
    if result["finish_reason"] != "stop":
        return "cut", result["message"]["content"][:100]
    try:
        document = json.loads(result["message"]["content"])
    except ValueError:
        return "invalid", "not JSON: " + result["message"]["content"][:100]
    draft = next((draft for draft in VALIDATORS if f"{draft}/" in name), None)
    validator = VALIDATORS[draft] if draft else jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator)
    try:
        problems = list(validator(schema).iter_errors(document))
    except re.error as error:  # a pattern that Python's expressions cannot say
        return "unchecked", str(error)
    return ("invalid", problems[0].message) if problems else ("valid", "")


def main() -> None:
    """Asks, judges and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    archives = [path for path in options.folder.iterdir() if path.suffix in (".tgz", ".gz", ".whl")]
    schemas = chosen(archives, options.count, options.seed)
    with httpx.Client(timeout=600) as client, ThreadPoolExecutor(options.streams) as pool:
        answers = list(pool.map(lambda item: ask(client, options.url, item[1]), schemas))
    verdicts: Counter[str] = Counter()
    for (name, schema, _), (status, result) in zip(schemas, answers, strict=True):
        verdict, why = judge(name, schema, status, result)
        verdicts[verdict] += 1
        if verdict != "valid":
            print(f"{verdict}: {name}: {' '.join(why.split())[:200]}")
    total = sum(verdicts.values())
    asked = total - verdicts["unsupported"]
    checked = verdicts["valid"] + verdicts["invalid"]
    print(json.dumps({
        "schemas": total, **verdicts,
        "unsupported_share": round(verdicts["unsupported"] / total, 3),
        "complete_share": round((checked + verdicts["unchecked"]) / asked, 3),
        "valid_share_of_checked": round(verdicts["valid"] / max(checked, 1), 4)}))


if __name__ == "__main__":
    main()

"""What a grammar that cannot be compiled costs: time to the 400, and the processor time that the
server's processes take in the second after it.

    helios serve CORE --port 8000 &
    python perf/hostile_grammars.py http://127.0.0.1:8000 PID_OF_SERVE
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import httpx

PATTERNS = {"type": "string", "allOf": [
    {"pattern": f"(a|b)*a(a|b){{{count}}}"} for count in range(20, 40)]}
REFERENCES = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
              for i in range(120)}
HOSTILE: dict[str, dict[str, Any]] = {
    "regex, a mask without end": {"guided_regex": "(.{1,9999}){1,9999}z"},
    "regex, nested deep": {"guided_regex": "(" * 5000 + "a" + ")*" * 5000},
    "schema, patterns that meet": {"guided_json": PATTERNS},
    "schema, options that multiply": {"guided_json": {"allOf": [{"anyOf": [
        {"properties": {f"p{i}{j}": {"type": "string"}}} for j in range(8)]} for i in range(12)]}},
    "schema, references in a row": {"guided_json": {
        "$ref": "#/$defs/d0", "$defs": {**REFERENCES, "d120": {"$ref": "#/$defs/d0"}}}},
    "Lark, rules in a row": {"guided_grammar": "start: r0\n" + "".join(
        f'r{i}: r{i + 1} "x" | r{i + 1}\n' for i in range(1900)) + 'r1900: "y"'},
    "structural tag": {"structured_outputs": {"structural_tag": {"triggers": ["<"], "structures": [
        {"begin": "<a>", "schema": PATTERNS, "end": "</a>"}]}}},
}


def processor_seconds(root: int) -> float:
    """Processor time of a process and its descendants so far; of ended children too."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.name)] = int(fields[1])
        ticks[int(path.name)] = sum(map(int, fields[11:13]))
    mine, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine, grown = mine | more, bool(more)
    return sum(ticks.get(pid, 0) for pid in mine) / 100


def main() -> None:
    """Asks each hostile grammar and prints what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("pid", type=int)
    options = parser.parse_args()
    with httpx.Client(timeout=60) as client:
        for name, fields in {"warm": {"guided_regex": "a"}, **HOSTILE}.items():
            began = time.monotonic()
            answer = client.post(f"{options.url}/v1/chat/completions", json={
                "model": "default", "max_tokens": 16,
                "messages": [{"role": "user", "content": "Hello"}], **fields})
            took, before = time.monotonic() - began, processor_seconds(options.pid)
            time.sleep(1)
            spent = processor_seconds(options.pid) - before
            said = answer.json().get("error", {}).get("message", "answered")
            print(json.dumps({"grammar": name, "status": answer.status_code,
                              "seconds": round(took, 2), "processor_s_after": round(spent, 2),
                              "said": said[:120]}))


if __name__ == "__main__":
    main()

"""Speculation against plain decode on the real model: acceptance and tokens a second.

    helios prepare --checkpoint MODEL.gguf --out plain.core
    helios prepare --checkpoint MODEL.gguf --out speculative.core --speculative-widths 4 \\
        --draft-layers 4
    python perf/speculation.py plain.core speculative.core [--json FILE] [--texts schema]

One greedy stream. `early`: drafts by the model's own first layers; `history`: those and copies of
the request's own text. A first answer of each kind lets costs become known; then the engines take
turns over all answers, so that a disturbed moment hits all alike. `copy` asks for a text to be
repeated, `free` for one to be written, `schema` for records under a JSON schema. Answers have to be
the same tokens in all engines.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jinja2
import numpy as np
import tokenizers

from helios_dod.edges import Edge, Submission
from helios_dod.grammars.library import Text, encode
from helios_dod.runtime.load import load_host
from helios_dod.runtime.selection import Options
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN

TEXT = (
    "The harbour lies east of the old town. Every morning forty-two boats leave before sunrise, "
    "and by noon most of them are back with cod, herring and mackerel. The fish hall opens at one. "
    "Buyers from seven villages come with small carts, argue about prices for an hour, and drive "
    "home along the river road, past the mill and the two stone bridges.")
ASKED = {
    "copy": f"Repeat the following text exactly, twice, without any changes:\n\n{TEXT}",
    "free": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "schema": "List ten cities of Europe as JSON, each with its country and population.",
}
SCHEMA = {"type": "array", "minItems": 10, "maxItems": 10, "items": {
    "type": "object", "additionalProperties": False,
    "properties": {"city_name": {"type": "string", "maxLength": 20},
                   "country_name": {"type": "string", "maxLength": 20},
                   "population_in_thousands": {"type": "integer", "maximum": 99999}},
    "required": ["city_name", "country_name", "population_in_thousands"]}}
GRAMMARS = {"schema": encode(Text("start: %json " + json.dumps(SCHEMA)))}
OUTPUT = 160
COUNTERS = ("drafts_offered", "drafts_accepted", "drafts_copied_offered", "drafts_copied_accepted",
            "drafts_grammar_refused", "rounds_speculative")


class Stream:
    """One engine that answers one request at a time."""

    def __init__(self, core: Path, **options) -> None:
        self.plan, self.engine = load_host(
            core, Options(concurrency=1, context_tokens=1024, caching=False, **options))
        self.edge, self.tag = Edge(self.engine.world, 0), 0

    def prompt(self, text: str) -> np.ndarray:
        """Tokens of a user's message, as the core's chat template writes it."""
        core = self.plan.core
        rendered = jinja2.Template(core.chat_template()).render(
            messages=[{"role": "user", "content": text}], add_generation_prompt=True)
        ids = tokenizers.Tokenizer.from_str(core.tokenizer().decode()).encode(
            rendered, add_special_tokens=False).ids
        return np.array(ids, np.int32)

    def counts(self) -> dict[str, int]:
        """What the scheduler has counted of drafts."""
        counters = self.engine.world[0]["counters"]
        return {name: int(counters[name]) for name in COUNTERS}

    def answer(self, prompt: np.ndarray, grammar: bytes) -> tuple[list[int], float]:
        """Tokens, and tokens a second from the first one on."""
        self.tag += 1
        assert self.edge.submit(Submission(
            self.tag, prompt, OUTPUT, grammar=grammar,
            eos=self.plan.contract.frontend.eos_tokens if grammar else ()))
        tokens, times, ended = [], [], False

        def stop() -> bool:
            nonlocal ended
            for event in self.edge.events():
                if event["kind"] == EGRESS_TOKEN:
                    tokens.append(int(event["token"]))
                    times.append(time.perf_counter())
                ended |= bool(event["kind"] == EGRESS_FINISHED)
            return ended and self.engine.idle()

        self.engine.run(stop)
        return tokens, (len(tokens) - 1) / (times[-1] - times[0])


def measure(plain: Path, speculative: Path, rounds: int, texts: list[str]) -> dict:
    """Rates and acceptance by text and engine."""
    streams = {
        "plain": Stream(plain), "early": Stream(speculative),
        "history": Stream(speculative, history_drafting=True)}
    found: dict = {}
    for kind in texts:
        prompt, grammar = streams["plain"].prompt(ASKED[kind]), GRAMMARS.get(kind, b"")
        expected = [stream.answer(prompt, grammar)[0] for stream in streams.values()]
        assert expected[0] == expected[1] == expected[2], kind
        before = {name: stream.counts() for name, stream in streams.items()}
        rates: dict[str, list[float]] = {name: [] for name in streams}
        for _ in range(rounds):
            for name, stream in streams.items():
                rates[name].append(stream.answer(prompt, grammar)[1])
        for name, stream in streams.items():
            counts = {key: value - before[name][key] for key, value in stream.counts().items()}
            found[f"{kind} {name}"] = {
                "tokens_per_second": round(statistics.median(rates[name]), 1),
                "ratio_to_plain": round(statistics.median(
                    own / base for own, base in zip(rates[name], rates["plain"], strict=True)), 3),
                "rates": [round(rate, 1) for rate in rates[name]], **counts}
    for stream in streams.values():
        stream.engine.close()
    return found


def main() -> None:
    """Prints one line a text and engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plain", type=Path)
    parser.add_argument("speculative", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", nargs="+", choices=ASKED, default=list(ASKED))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure(args.plain, args.speculative, args.rounds, args.texts)
    for name, values in found.items():
        print(name, json.dumps(values))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Prompt text to token ids, so that only what the template wrote can be a control token.

Control tokens are the tokenizer's special tokens and the delimiters of the output syntax. Inside
the tokenizer they carry a seal, characters drawn at random, so no text spells them. Strings of a
request are marked wherever they spell a control token or end in the beginning of one; what a
rendered prompt spells without a mark is the template's, and is sealed. Marks are taken out before
the text is encoded, so a spelled control token stays in the prompt, as ordinary text.
"""

import os
import re
import secrets
import string
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from helios_dod.frontend.isolation import Encode, Isolated, Place
from helios_dod.frontend.sandbox import MARK
from helios_dod.frontend.tokenizer_data import GaveUp, TokenizerError, by_name, read_tokenizer
from helios_dod.frontend.tokenizer_parts import IDS_MAX, TEXT_MAX

PRIVATE_FIRST, PRIVATE_COUNT = 0x100000, 0xFF00  # of Unicode's last private plane
SEAL_CHARACTERS = 4
LOOKED_FOR = ("String", "Regex", "content", "prepend", "delimiter", "replacement")
CONTROLS_MAX = 1 << 18  # characters of all control tokens: their pattern takes 150 bytes for each
TRIAL_SIZES = (32, 256)  # characters, of one kind each; few show a pattern of very many ways
TRIAL_SIZES_LONG = tuple(1 << i for i in range(9, 13))
TRIAL_KINDS_MAX = 48
TRIAL_END = string.printable  # behind all of those: what a pattern may spell otherwise
TRIAL_SECONDS_MAX = 0.25  # of this thread's processor, for the longest; an honest one takes 1 ms
TRIAL_SECONDS_BASE = 1.0  # and of all of them, beside
TRIAL_RATE_MIN = 256 << 10  # bytes a second: twice what a server waits for


def make_seal() -> str:
    """Private characters that no request can know."""
    return "".join(chr(PRIVATE_FIRST + secrets.randbelow(PRIVATE_COUNT))
                   for _ in range(SEAL_CHARACTERS))


def any_of(words: Iterable[str]) -> str:
    """A pattern of the longest word that matches. Words share their beginnings in it, so that a
    hostile text costs a few steps a character, however many words there are."""
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[0], []).append(word)
    parts = []
    for group in heads.values():
        low, high = min(group), max(group)
        shared = low[:next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b),
                           len(low))]
        tails = [word[len(shared):] for word in group]
        rest = [tail for tail in tails if tail]
        inner = f"(?:{any_of(rest)})" if rest else ""
        parts.append(re.escape(shared) + inner + ("?" if inner and "" in tails else ""))
    return "|".join(parts)


def control_tokens(described: dict[str, Any], delimiters: Iterable[str],
                   ids: Collection[int]) -> dict[str, int]:
    """Text -> id of a tokenizer's control tokens: special ones, delimiters, and some by their ids.
    described: its `tokenizers` JSON. Raises TokenizerError where they are too long to look for."""
    wanted, found = set(delimiters), {}
    for i, token in enumerate(described["added_tokens"]):
        text = token["content"]
        if text and (token["special"] or text in wanted or token["id"] in ids):
            if len(text) > TEXT_MAX:
                raise TokenizerError(f"added_tokens[{i}].content: at most {TEXT_MAX} characters "
                                     f"expected, got {len(text)}")
            found[text] = token["id"]
    if (total := sum(map(len, found))) > CONTROLS_MAX:
        raise TokenizerError(f"added_tokens: control tokens of at most {CONTROLS_MAX} characters "
                             f"together expected, got {total}")
    return found


def named_characters(parts: list[Any]) -> list[str]:
    """Characters of the texts and patterns that normalizers and pre-tokenizers look for or write,
    each once, in their order."""
    found: dict[str, None] = {}
    waiting = parts[::-1]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part[::-1]
        elif isinstance(part, dict):
            waiting += [value for value in part.values() if isinstance(value, list | dict)][::-1]
            for text in map(part.get, LOOKED_FOR):
                found |= dict.fromkeys(text if isinstance(text, str) else "")
    return list(found)


def text_ids(vocabulary: dict[str, int] | list[Any]) -> np.ndarray:
    """Ids of a model's tokens that have text, int64."""
    if isinstance(vocabulary, list):
        return np.array([i for i, (text, _) in enumerate(vocabulary) if text], np.int64)
    ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
    return ids[ids != vocabulary.get("", -1)]


def merged(model: dict[str, Any]) -> set[str]:
    """Tokens that a BPE model makes of others."""
    return {"".join(pair) if isinstance(pair, list) else pair.replace(" ", "", 1)
            for pair in model.get("merges") or ()}


def seal_tokens(described: dict[str, Any], controls: Iterable[str], seal: str) -> None:
    """Renames control tokens in a tokenizer's JSON; ids stay."""
    model = described["model"]
    names = {text: seal + text + seal for text in controls}
    for token in described["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    kept = merged(model)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        for text, name in names.items():
            if text in vocabulary and text not in kept:
                vocabulary[name] = vocabulary.pop(text)
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names and model["unk_token"] not in kept:
        model["unk_token"] = names[model["unk_token"]]


class PromptEncoder:
    """A tokenizer whose control tokens cannot be forged. delimiters: of the output syntax.
    reserved: other tokens that no text may become.

    vocabulary: every id is below. Raises TokenizerError for data that makes no tokenizer."""

    def __init__(self, tokenizer_json: bytes, delimiters: Iterable[str] = (),
                 vocabulary: int = IDS_MAX, reserved: Collection[int] = ()) -> None:
        from tokenizers import Tokenizer  # imported late: a worker listens before it tokenises

        os.environ["RUST_BACKTRACE"] = "0"  # of a panic it loads 50 MiB of symbols and more
        described = read_tokenizer(tokenizer_json, vocabulary)
        self.ids = text_ids(described["model"]["vocab"])
        controls = control_tokens(described, delimiters, reserved)
        self.seal = make_seal()
        seal_tokens(described, controls, self.seal)
        named = named_characters([described.get("pre_tokenizer"), described.get("normalizer")])
        self.kinds = list(dict.fromkeys([*"a1 \n.\u4e00", *named]))[:TRIAL_KINDS_MAX]
        with by_name():
            self.tokenizer = Tokenizer.from_str(msgspec.json.encode(described).decode())
        self.library: Encode = self.encode_here
        self.moved = {}  # ids that the sealed tokenizer numbers anew -> the real ones
        for text, token in controls.items():
            found = self.tokenizer.token_to_id(self.seal + text + self.seal)
            if found != token:
                self.moved[found] = token
        for token in self.tokenizer.get_added_tokens_decoder():
            if self.moved.get(token, token) >= vocabulary:
                raise TokenizerError(f"added_tokens: an id below {vocabulary} expected, "
                                     f"got {token}")
        try:
            spelled = any_of(controls) or "(?!)"
            self.spelled = re.compile(spelled)
            self.begins = re.compile(f"(?=(?:{spelled}))(.)", re.S)
        except RecursionError:
            raise TokenizerError("added_tokens: control tokens begin with others too many deep"
                                 ) from None
        self.controls = sorted(controls)
        self.beginning_max = max(map(len, controls), default=1) - 1

    def encode_here(self, text: str, placed: bool) -> tuple[list[int], Sequence[Place]]:
        """The library's ids of sealed text and, if `placed`, where each token is in it.

        Raises TokenizerError where it gives up."""
        with by_name():
            encoded = self.tokenizer.encode(text, add_special_tokens=False)
            return encoded.ids, encoded.offsets if placed else ()

    def keep_no_words(self) -> None:
        """From now on the library keeps no words that it has encoded. Those of a BPE model are kept
        by each thread until it ends, also when the tokenizer is gone: whoever tries one core after
        another would keep them all. A server's children keep those of one tokenizer, 10,000."""
        from tokenizers.models import BPE

        if isinstance(self.tokenizer.model, BPE):
            self.tokenizer.model._resize_cache(0)

    def isolate(self) -> None:
        """From now on texts are encoded in children, which are killed where they take too long."""
        self.library = Isolated(self.encode_here)

    @property
    def slow(self) -> bool:
        """Whether a text has taken too long."""
        return isinstance(self.library, Isolated) and self.library.slow

    def check_speed(self) -> None:
        """Encodes runs of each character that splitting may look for, with each other one behind,
        without which a pattern may not be tried at all, then longer ones with all of them behind.

        Raises TokenizerError where the library gives up on one, or one takes far too long, as a
        pattern that is tried in very many ways does, or all so far together do."""
        total, nbytes = 0.0, 0
        ends = [*((size, kind) for size in TRIAL_SIZES for kind in self.kinds),
                *((size, "".join(self.kinds) + TRIAL_END) for size in TRIAL_SIZES_LONG)]
        for kind in self.kinds:
            for size, end in ends:
                text, began = f"{kind * size}\1{end}", time.thread_time()  # \1: a match ends
                try:
                    self.encode(text)
                except GaveUp as error:
                    raise TokenizerError(f"a library that does not give up on {size} times "
                                         f"{kind!r} expected; {error}") from None
                except TokenizerError:
                    pass  # a text that it has no tokens for is refused when it comes
                seconds = time.thread_time() - began
                total, nbytes = total + seconds, nbytes + len(text.encode())
                if seconds > TRIAL_SECONDS_MAX:
                    raise TokenizerError(f"{size} times {kind!r} took {seconds:.2f} s to encode; "
                                         f"at most {TRIAL_SECONDS_MAX} s expected")
                if total > TRIAL_SECONDS_BASE + nbytes / TRIAL_RATE_MIN:
                    raise TokenizerError(f"{nbytes} bytes took {total:.2f} s to encode; at least "
                                         f"{TRIAL_RATE_MIN >> 10} KiB in a second expected")

    def begins_one(self, text: str) -> bool:
        """Whether a control token begins with a text, and goes on."""
        at = bisect_right(self.controls, text)
        return at < len(self.controls) and self.controls[at].startswith(text)

    def guard(self, text: str) -> str:
        """Text of a request, marked where it would spell a control token."""
        if MARK in text:
            text = text.replace(MARK, MARK + MARK)
        if self.spelled.search(text):
            text = self.begins.sub(rf"\1{MARK}", text)
        for at in range(max(0, len(text) - self.beginning_max), len(text)):
            if self.begins_one(text[at:]):
                return text[:at + 1] + MARK + text[at + 1:]
        return text

    def guarded(self, value: Any) -> Any:
        """A copy of a JSON value with every string guarded, keys too."""
        root = [value]
        waiting: list[tuple[Any, Any]] = [(root, 0)]
        while waiting:
            container, key = waiting.pop()
            part = container[key]
            if isinstance(part, str):
                container[key] = self.guard(part)
            elif isinstance(part, list):
                container[key] = copy = list(part)
                waiting += [(copy, i) for i in range(len(copy))]
            elif isinstance(part, dict):
                fresh = {self.guard(name): item for name, item in part.items()}
                container[key] = fresh
                waiting += [(fresh, name) for name in fresh]
        return root[0]

    def sealed(self, text: str) -> str:
        """Rendered text with its control tokens sealed and without marks."""
        seal = self.seal
        text = self.spelled.sub(lambda found: f"{seal}{found[0]}{seal}", text)
        if MARK in text:
            text = re.sub(f"{MARK}({MARK}?)", r"\1", text)
        return text

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text. What it spells without a mark are control tokens.

        Raises TokenizerError where the library gives up on it."""
        return self.encode_parted(text, ())[0]

    def encode_parted(self, text: str, beginnings: Sequence[str]) -> tuple[list[int], list[int]]:
        """The same, and how many tokens make each of some beginnings of the text; those that end
        inside a token are left out. Raises TokenizerError."""
        whole = self.sealed(text)
        ids, places = self.library(whole, bool(beginnings))
        if self.moved:
            ids = [self.moved.get(token, token) for token in ids]
        if not beginnings:
            return ids, []
        counts = []
        ends = [end for _, end in places]
        for beginning in map(self.sealed, beginnings):
            count = bisect_right(ends, len(beginning))
            inside = count < len(ids) and places[count][0] < len(beginning)
            if not inside and whole.startswith(beginning):
                counts.append(count)
        return ids, counts

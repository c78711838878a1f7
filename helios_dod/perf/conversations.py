"""Conversations of several turns for `perf serve`: of a file as ShareGPT's dumps are written, or
drawn. Every user turn is a request that holds the turns before it, answers as written there, so
that what a server caches of a conversation is found again.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios_dod.errors import UserError

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
         "assistant": "assistant", "system": "system"}
TOKEN_LETTERS = 4  # about; the server's own count is reported
# Short words that most vocabularies hold whole: about one token each.
TEXT = ("time year people way day man thing woman life child world school state family student "
        "group country problem hand part place case week company system program question work "
        "night point home water room mother area money story fact month lot right study book "
        "eye job word business issue side kind head house service friend father power hour game "
        "line end member law car city name team minute idea body back parent face level office "
        "door health person art war history party result change morning reason research girl "
        "guy moment air teacher force")
Messages = tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Turn:
    """A request: its messages, the last one a user's, and about how many tokens answer it."""

    messages: Messages
    output_tokens: int

    def salted(self, seed: int) -> list[dict[str, str]]:
        """Its messages behind a first word that is the seed's, so that no cache knows them from
        another repetition."""
        first, *others = self.messages
        return [{**first, "content": f"{seed} {first['content']}"}, *others]


def words(seed: str, count: int) -> list[str]:
    """`count` words, the same for the same seed."""
    return random.Random(seed).choices(TEXT.split(), k=count)


def in_turn(conversations: list[list[Turn]]) -> list[Turn]:
    """First turns, then second ones, ...: a turn comes when the ones before it have been asked."""
    longest = max(map(len, conversations), default=0)
    return [turns[at] for at in range(longest) for turns in conversations if at < len(turns)]


def drawn_turns(count: int, turns: int, prompt: int, output: int, seed: int) -> list[Turn]:
    """`count` requests of conversations of `turns` turns, each of `prompt` words that `output` more
    answer."""
    def conversation(number: int) -> list[Turn]:
        messages: list[dict[str, str]] = []
        made = []
        for at in range(turns):
            messages.append({"role": "user", "content": " ".join(
                words(f"{seed} asked {number} {at}", prompt))})
            made.append(Turn(tuple(messages), output))
            messages.append({"role": "assistant", "content": " ".join(
                words(f"{seed} answered {number} {at}", output))})
        return made

    return in_turn([conversation(number) for number in range(-(-count // turns))])[:count]


def read_turns(path: Path, count: int) -> list[Turn]:
    """The first `count` requests of a file: a JSON list of objects whose `conversations` (or
    `messages`) are turns, each of `from` and `value` (or `role` and `content`). What is behind the
    last answer of a conversation is left out. Raises UserError naming file, place and value."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, list):
        raise UserError(f"{path}: expected a list of conversations")
    found: list[list[Turn]] = []
    for number, item in enumerate(value):
        if sum(map(len, found)) >= count:
            break
        found.append(_turns(f"{path}: [{number}]", item))
    made = in_turn(found)[:count]
    if not made:
        raise UserError(f"{path}: expected a user's turn with an answer, got none")
    return made


def _turns(place: str, item: Any) -> list[Turn]:
    parts = (item.get("conversations", item.get("messages")) if isinstance(item, dict) else None)
    if not isinstance(parts, list):
        raise UserError(f"{place}: expected an object with `conversations` or `messages`")
    messages: list[dict[str, str]] = []
    turns = []
    for at, part in enumerate(parts):
        if not isinstance(part, dict):
            raise UserError(f"{place}[{at}]: expected an object, got {part!r}"[:200])
        who, text = (part.get("from", part.get("role")), part.get("value", part.get("content")))
        if who not in ROLES or not isinstance(text, str):
            raise UserError(f"{place}[{at}]: expected one of {', '.join(ROLES)} and a text, got "
                            f"{who!r} and {text!r}"[:300])
        if ROLES[who] == "assistant" and messages and messages[-1]["role"] == "user":
            turns.append(Turn(tuple(messages), max(1, len(text) // TOKEN_LETTERS)))
        messages.append({"role": ROLES[who], "content": text})
    return turns

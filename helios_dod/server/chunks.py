"""The bytes that answers of all dialects are made of."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from helios_dod.frontend.text import ByteTable

FLOOR_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity
DONE = b"data: [DONE]\n\n"


def as_json(value: Any) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(value)


def escaped(text: str) -> bytes:
    """Text as it stands between the quotes of a JSON string."""
    return msgspec.json.encode(text)[1:-1]


def call_json(name: str, id: str, arguments: bytes) -> bytes:
    """A tool call's fields, without braces. arguments: escaped JSON text."""
    return (b'"id":%b,"type":"function","function":{"name":%b,"arguments":"%b"}'
            % (as_json(id), as_json(name), arguments))


def usage_json(prompt: int, generated: int, cached: int) -> bytes:
    """OpenAI's usage object. cached: prompt tokens that were not computed."""
    return as_json({
        "prompt_tokens": prompt, "completion_tokens": generated,
        "total_tokens": prompt + generated, "prompt_tokens_details": {"cached_tokens": cached}})


class LogprobEntries:
    """OpenAI's log-probability entries from events, token texts from the byte table."""

    def __init__(self, table: ByteTable) -> None:
        self.table = table
        self._heads: dict[int, bytes] = {}

    def head(self, token: int) -> bytes:
        """`"token":...,"bytes":[...],"logprob":` of a token."""
        known = self._heads.get(token)
        if known is None:
            data = self.table.token(token)
            text = as_json(data.decode("utf-8", "replace"))
            known = b'"token":%b,"bytes":%b,"logprob":' % (text, as_json(list(data)))
            if len(self._heads) >= 4096:
                self._heads.clear()
            self._heads[token] = known
        return known

    def one(self, token: int, logprob: float) -> bytes:
        """The fields of one token, without braces."""
        return self.head(token) + b"%.6g" % number(logprob)

    def entry(self, event: np.void) -> bytes:
        """The entry of one token event."""
        count = int(event["top_count"])
        tokens = event["top_tokens"][:count].tolist()
        values = event["top_logprobs"][:count].tolist()
        top = b",".join(b"{%b}" % self.one(t, v) for t, v in zip(tokens, values, strict=True))
        chosen = self.one(int(event["token"]), float(event["logprob"]))
        return b'{%b,"top_logprobs":[%b]}' % (chosen, top)


Score = tuple[int, float]  # a prompt token and its log-probability


def number(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return logprob if np.isfinite(logprob) else FLOOR_LOGPROB


def prompt_logprobs_json(scores: Sequence[Score], table: ByteTable) -> bytes:
    """vLLM's prompt_logprobs: null for the first token, then {id: {...}} of each."""
    return as_json([None] + [
        {str(token): {"logprob": number(logprob),
                      "decoded_token": table.token(token).decode("utf-8", "replace")}}
        for token, logprob in scores])


def stopped_field(stopped: str | int | list[int] | None) -> bytes:
    """`,"stop_reason":...`, vLLM's name for the stop that ended a choice; empty if none did."""
    return b"" if stopped is None else b',"stop_reason":' + as_json(stopped)


def error_event(body: bytes) -> bytes:
    """The terminal event of a stream that failed."""
    return b"data: " + body + b"\n\n"


def named_event(name: str, fields: dict[str, Any]) -> bytes:
    """A server-sent event whose data repeats its name as the type."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), as_json({"type": name, **fields}))

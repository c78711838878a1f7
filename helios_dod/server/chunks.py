"""The bytes of chat completion answers: fixed prefix, escaped text, fixed suffix."""

from typing import Any

import msgspec
import numpy as np

from helios_dod.frontend.text import ByteTable

FLOOR_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity
DONE = b"data: [DONE]\n\n"


def as_json(value: Any) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(value)


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
        finite = logprob if np.isfinite(logprob) else FLOOR_LOGPROB
        return self.head(token) + b"%.6g" % finite

    def entry(self, event: np.void) -> bytes:
        """The entry of one token event."""
        count = int(event["top_count"])
        tokens = event["top_tokens"][:count].tolist()
        values = event["top_logprobs"][:count].tolist()
        top = b",".join(b"{%b}" % self.one(t, v) for t, v in zip(tokens, values, strict=True))
        chosen = self.one(int(event["token"]), float(event["logprob"]))
        return b'{%b,"top_logprobs":[%b]}' % (chosen, top)


class ChunkForm:
    """The parts of one streamed choice's chunks."""

    def __init__(self, head: bytes, index: int, usage: bool) -> None:
        """head: `"id":...,"created":...,"model":...`. usage: chunks carry "usage":null."""
        tail = b',"usage":null}\n\n' if usage else b"}\n\n"
        self.before = (
            b'data: {"object":"chat.completion.chunk",%b,"choices":[{"index":%d,"delta":'
            % (head, index))
        self.text = self.before + b'{"content":"'
        self.after_text = b'"},"logprobs":null,"finish_reason":null}]' + tail
        self.tail = tail

    def role(self) -> bytes:
        """The first chunk."""
        return (self.before + b'{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}]' + self.tail)

    def scored(self, text: bytes, entries: bytes) -> bytes:
        """A text chunk with log-probabilities."""
        return (b'%b%b"},"logprobs":{"content":[%b],"refusal":null},"finish_reason":null}]%b'
                % (self.text, text, entries, self.tail))

    def finish(self, reason: str) -> bytes:
        """The last chunk of the choice."""
        return (b'%b{},"logprobs":null,"finish_reason":"%b"}]%b'
                % (self.before, reason.encode(), self.tail))


def usage_chunk(head: bytes, usage: bytes) -> bytes:
    """The chunk with choices=[] that carries usage."""
    return (b'data: {"object":"chat.completion.chunk",%b,"choices":[],"usage":%b}\n\n'
            % (head, usage))


def error_event(body: bytes) -> bytes:
    """The terminal event of a stream that failed."""
    return b"data: " + body + b"\n\n"


def completion_json(head: bytes, choices: list[bytes], usage: bytes) -> bytes:
    """A whole answer."""
    return (b'{"object":"chat.completion",%b,"choices":[%b],"usage":%b}'
            % (head, b",".join(choices), usage))


def choice_json(index: int, text: bytes, entries: bytes | None, reason: str) -> bytes:
    """One choice of a whole answer. text: escaped. entries: joined log-probability entries."""
    scores = b"null" if entries is None else b'{"content":[%b],"refusal":null}' % entries
    return (b'{"index":%d,"message":{"role":"assistant","content":"%b","refusal":null},'
            b'"logprobs":%b,"finish_reason":"%b"}' % (index, text, scores, reason.encode()))

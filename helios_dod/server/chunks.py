"""The bytes of chat completion answers: fixed prefix, escaped text, fixed suffix."""

from typing import Any

import msgspec
import numpy as np

from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, REASONING, Event
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
        self.reasoning = self.before + b'{"reasoning_content":"'
        self.after_call = b']},"logprobs":null,"finish_reason":null}]' + tail

    def role(self) -> bytes:
        """The first chunk."""
        return (self.before + b'{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}]' + self.tail)

    def scored(self, text: bytes, entries: bytes) -> bytes:
        """A text chunk with log-probabilities."""
        return (b'%b%b"},"logprobs":{"content":[%b],"refusal":null},"finish_reason":null}]%b'
                % (self.text, text, entries, self.tail))

    def said(self, event: Event) -> bytes:
        """The chunk of one event of the parser; the end of a call has none."""
        kind = event.kind
        if kind == CONTENT:
            return self.text + escaped(event.text) + self.after_text
        if kind == REASONING:
            return self.reasoning + escaped(event.text) + self.after_text
        if kind == ARGUMENTS:
            fields = b'"function":{"arguments":"%b"}}' % escaped(event.text)
        elif kind == BEGIN:
            fields = call_json(event.text, event.id, b"") + b"}"
        else:
            return b""
        return self.call_before(event.index) + fields + self.after_call

    def call_before(self, index: int) -> bytes:
        """The beginning of a chunk of call `index`."""
        return b'%b{"tool_calls":[{"index":%d,' % (self.before, index)

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


def message_json(text: bytes, reasoning: bytes, calls: list[bytes]) -> bytes:
    """The message of a whole answer. text, reasoning: escaped. calls: fields of finished calls."""
    content = b"null" if calls and not text else b'"%b"' % text
    extra = b',"reasoning_content":"%b"' % reasoning if reasoning else b""
    if calls:
        extra += b',"tool_calls":[%b]' % b",".join(b"{%b}" % call for call in calls)
    return b'{"role":"assistant","content":%b,"refusal":null%b}' % (content, extra)


def choice_json(index: int, message: bytes, entries: bytes | None, reason: str) -> bytes:
    """One choice of a whole answer. entries: joined log-probability entries."""
    scores = b"null" if entries is None else b'{"content":[%b],"refusal":null}' % entries
    return (b'{"index":%d,"message":%b,"logprobs":%b,"finish_reason":"%b"}'
            % (index, message, scores, reason.encode()))

"""The dialect of POST /v1/chat/completions: fixed prefix, escaped text, fixed suffix."""

from collections.abc import Sequence

from helios_dod.frontend.output.terms import ARGUMENTS, BEGIN, CONTENT, REASONING, Event
from helios_dod.frontend.preparation import Prepared, Preparer
from helios_dod.frontend.requests import ChatRequest, decode_chat
from helios_dod.frontend.text import ByteTable
from helios_dod.server.answers import Answer, Collected, Whole
from helios_dod.server.choices import Stopped
from helios_dod.server.chunks import (
    DONE,
    Score,
    as_json,
    call_json,
    error_event,
    escaped,
    prompt_logprobs_json,
    stopped_field,
    usage_json,
)
from helios_dod.server.errors import ApiError


def usage_of(answer: Answer) -> bytes:
    """OpenAI's usage object of a complete answer."""
    return usage_json(answer.prompt_count, answer.generated, answer.cached)


def observations(answer: Answer) -> bytes:
    """Top-level fields of an observed answer that is complete, each behind a comma."""
    prepared = answer.prepared
    if not prepared.observed:
        return b""
    fields = b',"reused_prompt_tokens":%d' % answer.cached
    if prepared.timed:
        fields += (b',"performance":{"ingress_ns":%d,"enqueue_ns":%d,"reused_prompt_tokens":%d}'
                   % (answer.ingress_ns, answer.enqueue_ns, answer.cached))
    return fields


def prompt_ids(prepared: Prepared) -> bytes:
    """The prompt's token ids as a top-level field, if they are asked for. Of several prompts, a
    list of each."""
    if not prepared.observed:
        return b""
    lists = [prompt.tolist() for prompt in prepared.prompts]
    return b',"prompt_token_ids":%b' % as_json(lists[0] if len(lists) == 1 else lists)


def running_usage(prepared: Prepared, generated: int) -> bytes:
    """Usage so far, behind a comma; what was cached is told at the end."""
    return b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
        prepared.prompt_count, generated, prepared.prompt_count + generated)


def observed_fields(token: int, completed_ns: int, timed: bool) -> bytes:
    """A choice's observation of one token, behind a comma."""
    fields = b',"token_ids":[%d]' % token
    return fields + b',"token_timestamps_ns":[%d]' % completed_ns if timed else fields


class ChunkForm:
    """The parts of one streamed choice's chunks."""

    def __init__(self, head: bytes, index: int, usage: bool) -> None:
        """head: `"id":...,"created":...,"model":...`. usage: chunks carry "usage":null."""
        self.before = (
            b'data: {"object":"chat.completion.chunk",%b,"choices":[{"index":%d,"delta":'
            % (head, index))
        self.text = self.before + b'{"content":"'
        self.empty = self.before + b'{},"logprobs":null,"finish_reason":null'
        self.reasoning = self.before + b'{"reasoning_content":"'
        self.set_usage(b',"usage":null' if usage else b"")

    def set_usage(self, usage: bytes) -> None:
        """What every chunk says of usage, behind a comma."""
        self.usage, self.tail = usage, usage + b"}\n\n"
        self.after_text = b'"},"logprobs":null,"finish_reason":null}]' + self.tail
        self.after_call = b']},"logprobs":null,"finish_reason":null}]' + self.tail

    def call_before(self, index: int) -> bytes:
        """The beginning of a chunk of call `index`."""
        return b'%b{"tool_calls":[{"index":%d,' % (self.before, index)


class ChatScript:
    """Chat completion chunks."""

    def __init__(self, head: bytes, prepared: Prepared, table: ByteTable) -> None:
        self.head, self.prepared, self.table = head, prepared, table
        self.usage = prepared.include_usage
        self.forms = [ChunkForm(head, index, self.usage)
                      for index in range(len(prepared.submissions))]
        self.generated = 0
        if prepared.counted:
            self.count(0)

    def count(self, tokens: int) -> None:
        """Tells usage so far from now on."""
        self.generated += tokens
        usage = running_usage(self.prepared, self.generated)
        for form in self.forms:
            form.set_usage(usage)

    def begin(self) -> bytes:
        """Every choice's role; the prompt's ids go with the first."""
        chunks, ids = b"", prompt_ids(self.prepared)
        for form in self.forms:
            chunks += (form.before + b'{"role":"assistant","content":""},"logprobs":null,'
                       b'"finish_reason":null}]' + ids + form.tail)
            ids = b""
        return chunks

    def text(self, index: int, text: bytes) -> bytes:
        """A content delta."""
        form = self.forms[index]
        return form.text + text + form.after_text

    def scored(self, index: int, text: bytes, entries: bytes) -> bytes:
        """A content delta with log-probabilities."""
        form = self.forms[index]
        return (b'%b%b"},"logprobs":{"content":[%b],"refusal":null},"finish_reason":null}]%b'
                % (form.text, text, entries, form.tail))

    def said(self, index: int, event: Event) -> bytes:
        """The chunk of one event of the parser; the end of a call has none."""
        kind, form = event.kind, self.forms[index]
        if kind == CONTENT:
            return form.text + escaped(event.text) + form.after_text
        if kind == REASONING:
            return form.reasoning + escaped(event.text) + form.after_text
        if kind == ARGUMENTS:
            fields = b'"function":{"arguments":"%b"}}' % escaped(event.text)
        elif kind == BEGIN:
            fields = call_json(event.text, event.id, b"") + b"}"
        else:
            return b""
        return form.call_before(event.index) + fields + form.after_call

    def observed(self, index: int, token: int, completed_ns: int) -> bytes:
        """An empty delta with the token's id, if ids are asked for."""
        if self.prepared.counted:
            self.count(1)
        if not self.prepared.observed:
            return b""
        form = self.forms[index]
        fields = observed_fields(token, completed_ns, self.prepared.timed)
        return form.empty + fields + b"}]" + form.tail

    def prompt_scored(self, index: int, scores: Sequence[Score]) -> bytes:
        """An empty delta beside the scores."""
        form = self.forms[index]
        return b'%b}],"prompt_logprobs":%b%b' % (
            form.empty, prompt_logprobs_json(scores, self.table), form.tail)

    def finish(self, index: int, reason: str, stopped: Stopped, answer: Answer | None) -> bytes:
        """The choice's last chunk; the answer's last one carries what an observer asked for."""
        form = self.forms[index]
        fields, usage, stop = b"", form.usage, stopped_field(stopped)
        if answer is not None:
            fields = observations(answer)
            if self.prepared.observed and not self.usage:
                usage = b',"usage":' + usage_of(answer)
        return (b'%b{},"logprobs":null,"finish_reason":"%b"%b}]%b%b}\n\n'
                % (form.before, reason.encode(), stop, fields, usage))

    def close(self, answer: Answer) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        if not self.usage:
            return DONE
        return (b'data: {"object":"chat.completion.chunk",%b,"choices":[],"usage":%b}\n\n%b'
                % (self.head, usage_of(answer), DONE))

    def error(self, error: ApiError) -> bytes:
        """OpenAI's error object."""
        return error_event(error.body())


def message_json(collected: Collected) -> bytes:
    """The message of a whole answer."""
    text, calls = b"".join(collected.texts), collected.message.call_fields()
    reasoning = b"".join(collected.message.reasoning)
    content = b"null" if calls and not text else b'"%b"' % text
    extra = b',"reasoning_content":"%b"' % reasoning if reasoning else b""
    if calls:
        extra += b',"tool_calls":[%b]' % b",".join(b"{%b}" % call for call in calls)
    return b'{"role":"assistant","content":%b,"refusal":null%b}' % (content, extra)


def collected_observation(collected: Collected, prepared: Prepared) -> bytes:
    """A whole choice's observations, behind commas."""
    if not prepared.observed:
        return b""
    fields = b',"token_ids":' + as_json(collected.tokens)
    if prepared.timed:
        fields += b',"token_timestamps_ns":' + as_json(collected.times)
    return fields


def choice_json(index: int, collected: Collected, prepared: Prepared) -> bytes:
    """One choice of a whole answer."""
    scores = b"null"
    if prepared.logprobs:
        scores = b'{"content":[%b],"refusal":null}' % b",".join(collected.entries)
    return (b'{"index":%d,"message":%b,"logprobs":%b,"finish_reason":"%b"%b}'
            % (index, message_json(collected), scores, collected.reason.encode(),
               stopped_field(collected.stopped) + collected_observation(collected, prepared)))


class ChatEndpoint:
    """POST /v1/chat/completions."""

    path, prefix = "/v1/chat/completions", "chatcmpl-"

    def __init__(self, preparer: Preparer) -> None:
        self.preparer, self.table = preparer, preparer.assets.byte_table

    def decode(self, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return decode_chat(body)

    def prepare(self, request: ChatRequest, context: int) -> Prepared:
        """Raises RequestError."""
        return self.preparer.prepare(request, context)

    def script(self, request: ChatRequest, id: str, created: int, prepared: Prepared) -> ChatScript:
        """The words of a streamed answer."""
        return ChatScript(self.head(id, created), prepared, self.table)

    def head(self, id: str, created: int) -> bytes:
        """The fields that every object of one answer repeats."""
        return b'"id":"%b","created":%d,"model":%b' % (
            id.encode(), created, as_json(self.preparer.assets.served_id))

    def whole(self, request: ChatRequest, id: str, created: int, answer: Whole) -> bytes:
        """A complete answer."""
        prepared = answer.prepared
        choices = b",".join(choice_json(index, collected, prepared)
                            for index, collected in enumerate(answer.choices))
        extra = prompt_ids(prepared) + observations(answer)
        if prepared.scored:
            extra += b',"prompt_logprobs":' + prompt_logprobs_json(
                answer.choices[0].prompt_scores, self.table)
        return (b'{"object":"chat.completion",%b,"choices":[%b],"usage":%b%b}'
                % (self.head(id, created), choices, usage_of(answer), extra))

"""The dialect of POST /v1/completions: text choices, prompts echoed and scored."""

from collections.abc import Sequence

import msgspec

from helios_dod.frontend.completions import CompletionRequest, decode_completion
from helios_dod.frontend.output.terms import Event
from helios_dod.frontend.preparation import Prepared, Preparer
from helios_dod.frontend.text import ByteTable, TextStream
from helios_dod.server.answers import Answer, Collected, Whole
from helios_dod.server.chat import (
    collected_observation,
    observations,
    observed_fields,
    prompt_ids,
    running_usage,
    usage_of,
)
from helios_dod.server.choices import Stopped
from helios_dod.server.chunks import (
    DONE,
    Score,
    as_json,
    error_event,
    number,
    prompt_logprobs_json,
    stopped_field,
)
from helios_dod.server.errors import ApiError


class Entry(msgspec.Struct):
    """A log-probability entry as bridge and chat write it; extra fields are ignored."""

    token: str
    logprob: float
    top_logprobs: list["Entry"] = []


ENTRIES = msgspec.json.Decoder(list[Entry])


def logprobs_json(entries: bytes, offset: int, table: ByteTable,
                  prompt: Sequence[int] = (), scores: Sequence[Score] = ()) -> bytes:
    """OpenAI's completion log-probabilities. entries: joined entries of generated tokens. prompt:
    echoed token ids, scored by `scores` from the second on; their alternatives are null.

    offset: of the first token's text in the choice's text."""
    texts = [table.token(token).decode("utf-8", "replace") for token in prompt]
    values: list[float | None] = [None, *(number(score) for _, score in scores)][:len(texts)]
    tops: list[dict[str, float] | None] = [None] * len(texts)
    for entry in ENTRIES.decode(b"[" + entries + b"]"):
        texts.append(entry.token)
        values.append(entry.logprob)
        tops.append({top.token: top.logprob for top in entry.top_logprobs})
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return as_json({"tokens": texts, "token_logprobs": values, "top_logprobs": tops,
                    "text_offset": offsets})


def characters(escaped_text: bytes) -> int:
    """Characters of a JSON string's inside."""
    return len(msgspec.json.decode(b'"%b"' % escaped_text))


class CompletionScript:
    """Text completion chunks."""

    def __init__(self, head: bytes, request: CompletionRequest, prepared: Prepared,
                 table: ByteTable, echoes: list[bytes]) -> None:
        """echoes: each choice's escaped prompt text, or nothing."""
        self.head, self.request, self.prepared, self.table = head, request, prepared, table
        self.echoes = echoes
        self.offsets = [characters(echo) for echo in echoes]  # of the text behind what was scored
        self.usage = prepared.include_usage
        self.generated = 0
        self.set_usage(b',"usage":null' if self.usage else b"")
        if prepared.counted:
            self.set_usage(running_usage(prepared, 0))
        count = len(prepared.submissions)
        self.before = [b'data: {"object":"text_completion",%b,"choices":[{"index":%d,"text":"'
                       % (head, index) for index in range(count)]
        self.silent = request.max_tokens == 0
        self.waits = bool(request.echo and prepared.logprobs)  # the echo goes with its scores

    def set_usage(self, usage: bytes) -> None:
        """What every chunk says of usage, behind a comma."""
        self.tail = usage + b"}\n\n"
        self.after = b'","logprobs":null,"finish_reason":null}]' + self.tail

    def begin(self) -> bytes:
        """What is echoed; the prompt's ids go with the first chunk."""
        chunks, ids = b"", prompt_ids(self.prepared)
        for index, echo in enumerate(self.echoes):
            if (echo and not self.waits) or ids:
                shown = b"" if self.waits else echo
                chunks += (self.before[index] + shown
                           + b'","logprobs":null,"finish_reason":null}]' + ids + self.tail)
                ids = b""
        return chunks

    def text(self, index: int, text: bytes) -> bytes:
        """A piece of text."""
        return b"" if self.silent else self.before[index] + text + self.after

    def scored(self, index: int, text: bytes, entries: bytes) -> bytes:
        """A piece of text with log-probabilities."""
        if self.silent:
            return b""
        logprobs = logprobs_json(entries, self.offsets[index], self.table)
        self.offsets[index] += characters(text)
        return b'%b%b","logprobs":%b,"finish_reason":null}]%b' % (
            self.before[index], text, logprobs, self.tail)

    def said(self, index: int, event: Event) -> bytes:
        """Nothing: completions are not parsed."""
        raise AssertionError("completion: its output is not parsed")

    def observed(self, index: int, token: int, completed_ns: int) -> bytes:
        """No text, with the token's id, if ids are asked for."""
        if self.silent:
            return b""
        if self.prepared.counted:
            self.generated += 1
            self.set_usage(running_usage(self.prepared, self.generated))
        if not self.prepared.observed:
            return b""
        return b'%b","logprobs":null,"finish_reason":null%b}]%b' % (
            self.before[index], observed_fields(token, completed_ns, self.prepared.timed),
            self.tail)

    def prompt_scored(self, index: int, scores: Sequence[Score]) -> bytes:
        """The echoed prompt with its scores, in every choice of that prompt, or they alone."""
        if not self.waits:
            return b'%b","logprobs":null,"finish_reason":null}],"prompt_logprobs":%b%b' % (
                self.before[index], prompt_logprobs_json(scores, self.table), self.tail)
        chunks = b""
        per_prompt = len(self.echoes) // len(self.prepared.prompts)
        prompt = self.prepared.prompts[index // per_prompt].tolist()
        for i in range(index, index + per_prompt):
            chunks += b'%b%b","logprobs":%b,"finish_reason":null}]%b' % (
                self.before[i], self.echoes[i], logprobs_json(b"", 0, self.table, prompt, scores),
                self.tail)
        return chunks

    def finish(self, index: int, reason: str, stopped: Stopped, answer: Answer | None) -> bytes:
        """The choice's last chunk."""
        fields, tail, stop = b"", self.tail, stopped_field(stopped)
        if answer is not None:
            if self.silent:  # what was generated only ended the prompt
                answer.generated, reason, stop = 0, "length", b""
            fields = observations(answer)
            if self.prepared.observed and not self.usage:
                tail = b',"usage":' + usage_of(answer) + b"}\n\n"
        return b'%b","logprobs":null,"finish_reason":"%b"%b}]%b%b' % (
            self.before[index], reason.encode(), stop, fields, tail)

    def close(self, answer: Answer) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        if not self.usage:
            return DONE
        return (b'data: {"object":"text_completion",%b,"choices":[],"usage":%b}\n\n%b'
                % (self.head, usage_of(answer), DONE))

    def error(self, error: ApiError) -> bytes:
        """OpenAI's error object."""
        return error_event(error.body())


class CompletionEndpoint:
    """POST /v1/completions."""

    path, prefix = "/v1/completions", "cmpl-"

    def __init__(self, preparer: Preparer) -> None:
        self.preparer, self.assets = preparer, preparer.assets

    def decode(self, body: bytes) -> CompletionRequest:
        """Raises RequestError."""
        return decode_completion(body)

    def prepare(self, request: CompletionRequest, context: int) -> Prepared:
        """Raises RequestError."""
        return self.preparer.complete(request, context)

    def head(self, id: str, created: int) -> bytes:
        """The fields that every object of one answer repeats."""
        return b'"id":"%b","created":%d,"model":%b' % (
            id.encode(), created, as_json(self.assets.served_id))

    def echoes(self, request: CompletionRequest, prepared: Prepared) -> list[bytes]:
        """Each choice's escaped prompt text, empty without `echo`."""
        count = len(prepared.submissions) // len(prepared.prompts)
        if not request.echo:
            return [b""] * len(prepared.submissions)
        texts = [TextStream(self.assets.byte_table, self.assets.strip_leading_space).feed(
            prompt.tolist(), last=True, escape=True) for prompt in prepared.prompts]
        return [text for text in texts for _ in range(count)]

    def script(self, request: CompletionRequest, id: str, created: int,
               prepared: Prepared) -> CompletionScript:
        """The words of a streamed answer."""
        return CompletionScript(self.head(id, created), request, prepared,
                                self.assets.byte_table, self.echoes(request, prepared))

    def whole(self, request: CompletionRequest, id: str, created: int, answer: Whole) -> bytes:
        """A complete answer."""
        prepared = answer.prepared
        if request.max_tokens == 0:  # what was generated only ended the prompt
            answer.generated = 0
        choices = b",".join(
            self.choice(request, index, collected, prepared, echo, answer)
            for index, (collected, echo) in enumerate(
                zip(answer.choices, self.echoes(request, prepared), strict=True)))
        extra = prompt_ids(prepared) + observations(answer)
        if request.prompt_logprobs is not None:
            extra += b',"prompt_logprobs":' + prompt_logprobs_json(
                answer.choices[0].prompt_scores, self.assets.byte_table)
        return (b'{"object":"text_completion",%b,"choices":[%b],"usage":%b%b}'
                % (self.head(id, created), choices, usage_of(answer), extra))

    def choice(self, request: CompletionRequest, index: int, collected: Collected,
               prepared: Prepared, echo: bytes, answer: Whole) -> bytes:
        """One choice of a complete answer."""
        if request.max_tokens == 0:
            collected.texts, collected.entries, collected.tokens = [], [], []
            collected.times, collected.reason, collected.stopped = [], "length", None
        logprobs, entries = b"null", b",".join(collected.entries)
        if prepared.logprobs and echo:
            per_prompt = len(prepared.submissions) // len(prepared.prompts)
            row = index // per_prompt
            scores = answer.choices[row * per_prompt].prompt_scores
            logprobs = logprobs_json(entries, 0, self.assets.byte_table,
                                     prepared.prompts[row].tolist(), scores)
        elif prepared.logprobs:
            logprobs = logprobs_json(entries, 0, self.assets.byte_table)
        return (b'{"index":%d,"text":"%b%b","logprobs":%b,"finish_reason":"%b"%b}'
                % (index, echo, b"".join(collected.texts), logprobs, collected.reason.encode(),
                   stopped_field(collected.stopped) + collected_observation(collected, prepared)))

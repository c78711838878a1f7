"""From a decoded request to submissions: template, tokens, limits, sampling, seeds."""

import gc
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from helios_dod.edges import Submission, salt_of
from helios_dod.errors import UserError
from helios_dod.frontend.assets import Assets
from helios_dod.frontend.boundaries import boundary_places
from helios_dod.frontend.completions import CompletionRequest, common_of, prompts_of
from helios_dod.frontend.grammars.constrainer import Constrainer
from helios_dod.frontend.grammars.structured import answer_of
from helios_dod.frontend.images.decoding import Fetch
from helios_dod.frontend.images.layout import TENSORS, Layout, lay
from helios_dod.frontend.images.pictures import Picture, picture_of
from helios_dod.frontend.images.syntax import ImageSyntax
from helios_dod.frontend.isolation import WALL_RATIO, seconds_for
from helios_dod.frontend.messages import (
    REASONING_KEYS,
    plain_messages,
    plain_tool,
    template_variables,
)
from helios_dod.frontend.output.parser import CALLS_MAX
from helios_dod.frontend.prompt import PromptEncoder
from helios_dod.frontend.reading import Readers, Reading
from helios_dod.frontend.requests import ChatRequest, RequestError
from helios_dod.frontend.sandbox import MARK
from helios_dod.frontend.sizes import TemplateError
from helios_dod.frontend.stop_fields import stop_strings
from helios_dod.frontend.template import RENDER_SECONDS_MAX, ChatTemplate
from helios_dod.frontend.text import ByteTable
from helios_dod.frontend.tokenizer_data import TokenizerError
from helios_dod.limits import SPANS_MAX

GREEDY_BELOW = 1e-4  # logits over a smaller temperature leave float32's range
WORD = (1 << 64) - 1
ANY_MODEL = "default"  # a request may call the served model so, whatever its id
CONTINUED = "\U0010fff1"  # stands where the continued message's text ends


@dataclass
class Prepared:
    """One request's prompts and choices; every submission's tag is still to be set.

    Choice i answers prompt i * len(prompts) // len(submissions)."""

    prompts: list[np.ndarray]  # int32 token ids
    submissions: list[Submission]
    logprobs: bool
    stream: bool
    include_usage: bool
    observed: bool  # token ids are returned
    timed: bool  # and when each was accepted
    scored: bool  # the prompts' tokens are scored, in the first choice of each
    counted: bool = False  # every chunk tells usage so far
    readings: list[Reading] = field(default_factory=list)  # one a choice; none: all is text

    @property
    def prompt(self) -> np.ndarray:
        """The first prompt."""
        return self.prompts[0]

    @property
    def prompt_count(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a choice: output choice + 1 of SplitMix64 from `seed` (Steele et al. 2014)."""
    z = (seed + (choice + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def check_table(table: ByteTable, ids: np.ndarray) -> None:
    """Refuses a byte table in which tokens that the tokenizer has as text are no bytes."""
    ids = ids[ids < len(table)]
    bare = ids[np.diff(table.offsets)[ids] == 0]
    if bare.size:
        raise UserError(f"token bytes: no bytes for {bare.size} tokens that are text in the "
                        f"tokenizer, the first is {bare.min()}")


def check_tensors(syntax: ImageSyntax | None) -> None:
    """Refuses a syntax whose programs bind image tensors that no layout makes."""
    for name in syntax.tensors if syntax else ():
        if name not in TENSORS:
            raise UserError(f"image tensors: one of {', '.join(TENSORS)} expected, got {name!r}")


def image_places(request: ChatRequest) -> list[tuple[str, str]]:
    """Where a conversation has images: the field's name, and the image's address."""
    return [(f"messages[{i}].content[{j}].image_url", part.image_url.url)
            for i, message in enumerate(request.messages) if isinstance(message.content, list)
            for j, part in enumerate(message.content) if part.image_url is not None]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Without garbage collection: a tokenizer's data is a hundred thousand containers, all of them
    in use, and looking through them again and again takes longer than making them."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


class Preparer:
    """Tokenizer and template of one core. Loading takes up to a second for large vocabularies.
    fetch: of remote images; None: they are refused.

    Raises UserError, naming what of the core makes no tokenizer, template or parser."""

    def __init__(self, assets: Assets, fetch: Fetch | None = None) -> None:
        self.assets, self.fetch = assets, fetch
        check_tensors(assets.image)
        syntax = assets.output
        with collection_paused():
            self.encoder = PromptEncoder(
                assets.tokenizer_json, syntax.tokens if syntax else (), assets.input_vocabulary,
                assets.image.reserved if assets.image else ())
        check_table(assets.byte_table, self.encoder.ids)
        self.template = ChatTemplate(assets.chat_template, assets.template_tokens) \
            if assets.chat_template else None
        self.readers = None if syntax is None else Readers(
            syntax, assets.byte_table, assets.strip_leading_space)
        self.constrainer = Constrainer(assets, self.readers)
        self.names = {assets.served_id, *assets.aliases, ANY_MODEL}

    def prompt_tokens(self, request: ChatRequest) -> np.ndarray:
        """Token ids of a conversation, int32, its images laid in. Raises RequestError."""
        return self.layout(request).ids

    def layout(self, request: ChatRequest) -> Layout:
        """A conversation's tokens and images. Raises RequestError where the template refuses."""
        pictures = self.pictures(request)
        if self.template is None:
            raise RequestError("This model has no chat template.", "messages", "unsupported_value")
        known = self.template.variables
        self.check_shown(request, known)
        variables = template_variables(request, known)
        syntax = self.assets.output
        messages = plain_messages(request, syntax.think if syntax else None)
        continued = bool(request.continue_final_message)
        generated = not continued
        if request.add_generation_prompt is not None:
            generated = request.add_generation_prompt
        guarded = self.encoder.guarded
        messages = guarded(messages)
        if continued:
            last = messages[-1]
            reasons = not last["content"] and REASONING_KEYS[0] in last
            for name in REASONING_KEYS if reasons else ("content",):
                last[name] += CONTINUED
        tools = None
        if request.tools and request.tool_choice != "none":
            tools = guarded([plain_tool(tool) for tool in request.tools])
        rest = tools, guarded(request.documents or None), guarded(variables)
        try:
            text = self.template.render(messages, generated, *rest)
        except TemplateError as error:
            raise RequestError(f"The chat template refused the messages: {error}.", "messages",
                               "invalid_value") from None
        if continued:
            text, found, _ = text.rpartition(CONTINUED)
            if not found:
                raise RequestError("The chat template does not show the final message, so it "
                                   "cannot be continued.", "continue_final_message",
                                   "unsupported_value")
        self.check_size(text)
        ids, parted = self.parted(text, self.beginnings(text, messages, rest))
        if self.assets.add_bos and (not ids or ids[0] != self.assets.bos):
            ids.insert(0, self.assets.bos)
            parted = [count + 1 for count in parted]
        parted = sorted({count for count in parted if count > 0})
        if self.assets.image is None:
            return Layout(np.array(ids, dtype=np.int32), tuple(parted))
        shown = ids.count(self.assets.image.placeholder_token)
        if shown != len(pictures):
            raise RequestError(f"The chat template shows {shown} of {len(pictures)} images.",
                               "messages", "unsupported_value")
        return lay(ids, pictures, self.assets.image, self.encode_text, parted)

    def beginnings(self, text: str, messages: list[dict[str, Any]], rest: tuple[Any, Any, Any],
                   ) -> list[str]:
        """Beginnings of a rendered conversation where the core says that others may part. A few
        messages alone that the template refuses make none. rest: tools, documents, variables."""
        places = boundary_places([message["role"] for message in messages],
                                 self.assets.boundaries, rest[0] is not None)
        found: list[str] = []
        deadline = time.thread_time() + RENDER_SECONDS_MAX
        for count in places:
            if time.thread_time() > deadline:
                break
            assert self.template is not None
            with suppress(TemplateError):
                beginning = self.template.render(messages[:count], False, *rest)
                if text.startswith(beginning):
                    found.append(beginning)
        return found

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text, whatever it spells. Raises TokenizerError."""
        return self.encoder.encode(self.encoder.guard(text))

    def pictures(self, request: ChatRequest) -> list[Picture]:
        """The images of a conversation, prepared. Raises RequestError."""
        places = image_places(request)
        syntax = self.assets.image
        if not places:
            return []
        if syntax is None:
            raise RequestError(f"'{places[0][0]}': this model takes no images.", places[0][0],
                               "unsupported_value")
        most = min(SPANS_MAX, syntax.feature_slots)
        if len(places) > most:
            raise RequestError(f"'messages' has {len(places)} images; at most {most} are "
                               "accepted.", "messages", "invalid_value")
        return [picture_of(url, field, syntax, self.fetch) for field, url in places]

    def check_shown(self, request: ChatRequest, known: set[str]) -> None:
        """Refuses tools, calls and documents that the core's template or syntax does not show."""
        def refuse(name: str, why: str) -> NoReturn:
            raise RequestError(f"'{name}': {why}.", name, "unsupported_value")

        syntax = self.assets.output
        if request.tools and request.tool_choice != "none":
            if "tools" not in known:
                refuse("tools", "this model's chat template takes no tools")
            if syntax is None or syntax.tool is None:
                refuse("tools", "this server declares no tool syntax for the model")
        if "tool_calls" not in self.assets.chat_template:
            for i, message in enumerate(request.messages):
                if message.tool_calls:
                    refuse(f"messages[{i}].tool_calls",
                           "this model's chat template shows no tool calls")
        if request.documents and "documents" not in known:
            refuse("documents", "this model's chat template takes no documents")

    def readings(self, request: ChatRequest, prompt: np.ndarray,
                 submissions: list[Submission]) -> list[Reading]:
        """How each choice's output is read; none: all of it is text."""
        if self.readers is None:
            return []
        declared = request.tools if request.tool_choice != "none" else None
        tools = {tool.function.name: tool.function.parameters for tool in declared or ()}
        strings = bool(submissions[0].stop_strings)
        if strings:
            for submission in submissions:
                submission.delimiters = self.readers.delimiters(bool(tools))
        return self.readers.readings(
            prompt.tolist(), tools, [secrets.randbits(62) for _ in submissions],
            1 if request.parallel_tool_calls is False else CALLS_MAX,
            request.include_reasoning is not False, strings, answer_of(request) is not None)

    def check_size(self, text: str, source: str = "messages") -> None:
        """Refuses text that no tokens within the context can hold, before it costs the time and
        memory of encoding it."""
        context = self.assets.context_tokens
        most = context * self.assets.byte_table.token_bytes_max
        size = len(text.encode())
        if size > most:
            raise RequestError(
                f"This model's context is {context} tokens, which hold at most {most} bytes of "
                f"text, but '{source}' makes {size} bytes of it.", source,
                "context_length_exceeded")

    def output_limit(self, request: ChatRequest, prompt_count: int, context: int,
                     source: str) -> int:
        """Tokens that the request may generate. Raises RequestError where it cannot fit."""
        field = "max_tokens" if request.max_tokens else "max_completion_tokens"
        asked = request.max_completion_tokens or request.max_tokens
        least = asked or 1
        if prompt_count + least > context:
            raise RequestError(
                f"This model's context is {context} tokens, but '{source}' has {prompt_count} "
                f"tokens and {f'{field!r} asks for' if asked else 'the answer needs at least'} "
                f"{least}, {prompt_count + least} together.",
                field if asked and prompt_count < context else source,
                "context_length_exceeded")
        return asked or context - prompt_count

    def check_tokens(self, request: ChatRequest, limit: int) -> None:
        """Token ids against the vocabulary, and min_tokens against the limit."""
        vocabulary = self.assets.vocabulary
        ids = [("logit_bias", int(token)) for token in request.logit_bias or {}]
        ids += [("stop_token_ids", token) for token in request.stop_token_ids or []]
        ids += [("stop_token_sequences", token)
                for sequence in request.stop_token_sequences or [] for token in sequence]
        for name, token in ids:
            if not 0 <= token < vocabulary:
                raise RequestError(f"'{name}': token {token} is not below the vocabulary, "
                                   f"{vocabulary}.", name, "invalid_value")
        if (request.min_tokens or 0) > limit:
            raise RequestError(f"'min_tokens' is {request.min_tokens}, more than the {limit} "
                               "tokens that may be generated.", "min_tokens", "invalid_value")

    def prepare(self, request: ChatRequest, context: int) -> Prepared:
        """Submissions of a request's choices. context: tokens of prompt and output at most."""
        places = image_places(request)
        if places and self.assets.image is not None and not self.assets.image_encoder:
            raise RequestError(
                f"'{places[0][0]}': this server has no image encoder for the model.",
                places[0][0], "unsupported_value")
        layout = self.layout(request)
        prompt = layout.ids
        prepared = self.submissions(request, [prompt], context, "messages")
        if prepared.scored and layout.spans and layout.spans[-1][1] == len(prompt):
            raise RequestError("'prompt_logprobs': a prompt that ends with an image is not scored.",
                               "prompt_logprobs", "unsupported_value")
        grammar = self.constrainer.grammar(request, prompt.tolist())
        for submission in prepared.submissions:
            submission.grammar, submission.spans = grammar, layout.spans
            submission.boundaries = layout.boundaries
        prepared.readings = self.readings(request, prepared.prompt, prepared.submissions)
        return prepared

    def complete(self, request: CompletionRequest, context: int) -> Prepared:
        """The same for a completion request, whose answers are all text."""
        common, prompts, given = common_of(request), [], prompts_of(request)
        nbytes = sum(len(prompt.encode(errors="surrogatepass")) for prompt in given
                     if isinstance(prompt, str))
        until = time.monotonic() + WALL_RATIO * seconds_for(nbytes)
        for i, prompt in enumerate(given):
            if time.monotonic() > until:
                raise RequestError(f"'prompt': {i} of {len(given)} texts took the time that all "
                                   f"{nbytes} bytes may take to encode.", "prompt",
                                   "invalid_value")
            prompts.append(self.plain_tokens(prompt, request.add_special_tokens is not False))
        scored = bool(request.echo and request.logprobs is not None)
        prepared = self.submissions(common, prompts, context, "prompt", scored)
        grammar = self.constrainer.grammar(common, (), plain=True)
        for submission in prepared.submissions:
            submission.grammar = grammar
        return prepared

    def encoded(self, text: str, field: str) -> list[int]:
        """Token ids. Raises RequestError where the tokenizer gives up on the text."""
        return self.parted(text, (), field)[0]

    def parted(self, text: str, beginnings: Sequence[str], field: str = "messages",
               ) -> tuple[list[int], list[int]]:
        """The same, and the numbers of tokens of some beginnings. Raises RequestError."""
        try:
            ids, counts = self.encoder.encode_parted(text, beginnings)
            return self.of_text(ids, field), counts
        except TokenizerError as error:
            raise RequestError(f"The tokenizer refused '{field}': {error}.", field,
                               "invalid_value") from None

    def of_text(self, ids: list[int], field: str) -> list[int]:
        """Ids of the vocabulary; beyond it lie only those that an image brings with it."""
        brought = self.assets.image.reserved if self.assets.image else frozenset()
        for token in ids:
            if not 0 <= token < self.assets.vocabulary and token not in brought:
                raise RequestError(
                    f"'{field}': token {token} is not below the vocabulary, "
                    f"{self.assets.vocabulary}.", field, "invalid_value")
        return ids

    def plain_tokens(self, prompt: str | list[int], special: bool, field: str = "prompt",
                     ) -> np.ndarray:
        """Token ids, int32, of a text that no template has touched, or given ids checked."""
        if isinstance(prompt, str):
            self.check_size(prompt, field)
            ids = self.encoded(prompt.replace(MARK, MARK + MARK), field)
            if special and self.assets.add_bos and (not ids or ids[0] != self.assets.bos):
                ids.insert(0, self.assets.bos)
            if not ids:
                ids = list(self.assets.eos[:1])  # an empty text continues nothing
        else:
            ids = self.of_text(prompt, field)
            for token in ids:
                if self.assets.image is not None and token in self.assets.image.tokens:
                    raise RequestError(f"'{field}': token {token} stands for an image, which only "
                                       "messages have.", field, "invalid_value")
        return np.array(ids, dtype=np.int32)

    def submissions(self, request: ChatRequest, prompts: list[np.ndarray], context: int,
                    source: str, scored: bool = False) -> Prepared:
        """Every choice of every prompt. source: the field that holds the prompts. scored: their
        tokens are scored even if the request does not say so."""
        scored = scored or request.prompt_logprobs is not None
        if scored and not self.assets.scores:
            field = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
            raise RequestError(f"'{field}': this model has no program that scores prompts.",
                               field, "unsupported_value")
        seed = request.seed if request.seed is not None else secrets.randbits(64)
        count, made = request.n or 1, []
        for row, prompt in enumerate(prompts):
            limit = self.output_limit(request, len(prompt), context, source)
            self.check_tokens(request, limit)
            made += [self.submission(request, prompt, limit, choice_seed(seed, row * count + i))
                     for i in range(count)]
            made[-count].scored = scored
        options = request.stream_options
        if options is not None and not request.stream:
            raise RequestError("'stream_options' requires 'stream' to be true.", "stream_options",
                               "invalid_value")
        return Prepared(prompts, made, bool(request.logprobs), bool(request.stream),
                        bool(options and options.include_usage), bool(request.return_token_ids),
                        bool(request.return_token_timestamps), scored,
                        bool(options and options.continuous_usage_stats))

    def submission(self, request: ChatRequest, prompt: np.ndarray, limit: int,
                   seed: int) -> Submission:
        """One choice of one prompt."""
        defaults = self.assets.sampling

        def chosen(name: str) -> Any:
            value = getattr(request, name)
            return getattr(defaults, name) if value is None else value

        temperature, top_k = chosen("temperature"), chosen("top_k")
        greedy = temperature < GREEDY_BELOW
        return Submission(
            tag=0, prompt=prompt, output_limit=limit,
            output_minimum=request.min_tokens or 0,
            temperature=0.0 if greedy else temperature,
            top_p=chosen("top_p"), min_p=chosen("min_p"),
            top_k=min(max(top_k, 0), self.assets.vocabulary),
            repetition_penalty=chosen("repetition_penalty"),
            presence_penalty=chosen("presence_penalty"),
            frequency_penalty=chosen("frequency_penalty"),
            seed=0 if greedy else seed,  # what draws no token repeats, on any device
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else -1,
            eos=() if request.ignore_eos else self.assets.eos,
            stop_ids=tuple(dict.fromkeys(request.stop_token_ids or ())),
            stop_sequences=tuple(dict.fromkeys(
                tuple(sequence) for sequence in request.stop_token_sequences or ())),
            stop_strings=tuple(dict.fromkeys(text.encode() for text in stop_strings(request))),
            keep_stop=bool(request.include_stop_str_in_output),
            bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
            priority=request.priority or 0, salt=salt_of(request.cache_salt),
            timed=bool(request.return_token_timestamps))

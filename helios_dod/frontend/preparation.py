"""From a decoded request to submissions: template, tokens, limits, sampling, seeds."""

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.edges import Submission
from helios_dod.frontend.assets import Assets
from helios_dod.frontend.requests import ChatRequest, RequestError, plain_messages
from helios_dod.frontend.template import ChatTemplate, TemplateError

GREEDY_BELOW = 1e-4  # logits over a smaller temperature leave float32's range
WORD = (1 << 64) - 1
ANY_MODEL = "default"  # a request may call the served model so, whatever its id


@dataclass
class PreparedChat:
    """One request's prompt and its choices; every submission's tag is still to be set."""

    prompt: np.ndarray  # int32 token ids
    submissions: list[Submission]
    logprobs: bool
    stream: bool
    include_usage: bool


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a choice: output choice + 1 of SplitMix64 from `seed` (Steele et al. 2014)."""
    z = (seed + (choice + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


class Preparer:
    """Tokenizer and template of one core. Loading takes up to a second for large vocabularies."""

    def __init__(self, assets: Assets) -> None:
        from tokenizers import Tokenizer  # imported late: a worker listens before it tokenises

        self.assets = assets
        self.tokenizer = Tokenizer.from_str(assets.tokenizer_json.decode())
        self.template = ChatTemplate(assets.chat_template, assets.template_tokens) \
            if assets.chat_template else None
        self.names = {assets.served_id, *assets.aliases, ANY_MODEL}

    def prompt_tokens(self, messages: list[dict[str, Any]]) -> np.ndarray:
        """Token ids of a conversation, int32. Control tokens in the text become control tokens, as
        with the `tokenizers` library. Raises RequestError where the template refuses."""
        if self.template is None:
            raise RequestError("This model has no chat template.", "messages", "unsupported_value")
        try:
            text = self.template.render(messages)
        except TemplateError as error:
            raise RequestError(f"The chat template refused the messages: {error}.", "messages",
                               "invalid_value") from None
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        if self.assets.add_bos and (not ids or ids[0] != self.assets.bos):
            ids.insert(0, self.assets.bos)
        return np.array(ids, dtype=np.int32)

    def output_limit(self, request: ChatRequest, prompt_count: int, context: int) -> int:
        """Tokens that the request may generate. Raises RequestError where it cannot fit."""
        field = "max_tokens" if request.max_tokens else "max_completion_tokens"
        asked = request.max_completion_tokens or request.max_tokens
        least = asked or 1
        if prompt_count + least > context:
            raise RequestError(
                f"This model's context is {context} tokens, but 'messages' have {prompt_count} "
                f"tokens and {f'{field!r} asks for' if asked else 'the answer needs at least'} "
                f"{least}, {prompt_count + least} together.",
                field if asked and prompt_count < context else "messages",
                "context_length_exceeded")
        return asked or context - prompt_count

    def check_tokens(self, request: ChatRequest, limit: int) -> None:
        """Token ids against the vocabulary, and min_tokens against the limit."""
        vocabulary = self.assets.vocabulary
        ids = [("logit_bias", int(token)) for token in request.logit_bias or {}]
        ids += [("stop_token_ids", token) for token in request.stop_token_ids or []]
        for name, token in ids:
            if not 0 <= token < vocabulary:
                raise RequestError(f"'{name}': token {token} is not below the vocabulary, "
                                   f"{vocabulary}.", name, "invalid_value")
        if (request.min_tokens or 0) > limit:
            raise RequestError(f"'min_tokens' is {request.min_tokens}, more than the {limit} "
                               "tokens that may be generated.", "min_tokens", "invalid_value")

    def prepare(self, request: ChatRequest, context: int) -> PreparedChat:
        """Submissions of a request's choices. context: tokens of prompt and output at most."""
        prompt = self.prompt_tokens(plain_messages(request))
        limit = self.output_limit(request, len(prompt), context)
        self.check_tokens(request, limit)
        defaults = self.assets.sampling

        def chosen(name: str) -> Any:
            value = getattr(request, name)
            return getattr(defaults, name) if value is None else value

        temperature, top_k = chosen("temperature"), chosen("top_k")
        seed = request.seed if request.seed is not None else secrets.randbits(64)
        submissions = [
            Submission(
                tag=0, prompt=prompt, output_limit=limit,
                output_minimum=request.min_tokens or 0,
                temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
                top_p=chosen("top_p"), min_p=chosen("min_p"),
                top_k=min(max(top_k, 0), self.assets.vocabulary),
                repetition_penalty=chosen("repetition_penalty"),
                presence_penalty=chosen("presence_penalty"),
                frequency_penalty=chosen("frequency_penalty"),
                seed=choice_seed(seed, choice),
                top_logprobs=(request.top_logprobs or 0) if request.logprobs else -1,
                eos=() if request.ignore_eos else self.assets.eos,
                stop_ids=tuple(dict.fromkeys(request.stop_token_ids or ())),
                bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
                priority=request.priority or 0)
            for choice in range(request.n or 1)]
        options = request.stream_options
        if options is not None and not request.stream:
            raise RequestError("'stream_options' requires 'stream' to be true.", "stream_options",
                               "invalid_value")
        return PreparedChat(prompt, submissions, bool(request.logprobs), bool(request.stream),
                            bool(options and options.include_usage))

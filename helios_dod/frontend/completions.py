"""Requests of /v1/completions: a prompt of text or token ids, answered by text.

Field names and meanings are those of OpenAI's API reference ("Create completion"); what they share
with chat requests is checked and prepared as there.
"""

from typing import Any, NoReturn

from helios_dod.frontend.requests import (
    ChatRequest,
    Generation,
    RequestError,
    Shape,
    check_lists,
    check_numbers,
    check_observation,
    check_stops,
)
from helios_dod.limits import TOP_LOGPROBS_MAX

PROMPTS_MAX = 128
MAX_TOKENS = 16  # OpenAI's default


class CompletionRequest(Generation, kw_only=True):
    """The body of a completion request."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: None = None
    add_special_tokens: bool | None = None


COMPLETION = Shape.of(CompletionRequest)
SHARED = tuple(name for name in Generation.__struct_fields__ if name != "max_tokens")


def refuse(name: str, problem: str, code: str = "invalid_value") -> NoReturn:
    """Raises RequestError for a field."""
    raise RequestError(f"'{name}' {problem}.", name, code)


def decode_completion(body: bytes) -> CompletionRequest:
    """A request from JSON, its own fields checked. Raises RequestError."""
    request: CompletionRequest = COMPLETION.decode(body)
    if request.logprobs is not None and not 0 <= request.logprobs <= TOP_LOGPROBS_MAX:
        refuse("logprobs", f"must be between 0 and {TOP_LOGPROBS_MAX}, got {request.logprobs}")
    if request.best_of is not None and request.best_of != (request.n or 1):
        refuse("best_of", f"other than 'n' is not supported, got {request.best_of}",
               "unsupported_value")
    if request.max_tokens == 0 and not request.echo:
        refuse("max_tokens", "may be 0 only with 'echo'")
    prompts = prompts_of(request)
    if len({type(prompt) for prompt in prompts}) > 1 or any(isinstance(p, int) for p in prompts):
        refuse("prompt", "must be a text, texts, token ids or lists of token ids, all of one kind")
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        refuse("prompt", f"must be 1 to {PROMPTS_MAX} prompts, got {len(prompts)}")
    for prompt in prompts:
        if isinstance(prompt, list) and not prompt:
            refuse("prompt", "must not hold an empty list of tokens")
    common = common_of(request)
    check_numbers(common)
    check_lists(common)
    check_stops(common)
    check_observation(common)
    return request


def prompts_of(request: CompletionRequest) -> list[Any]:
    """The prompts: each a text, or token ids."""
    prompt = request.prompt
    if isinstance(prompt, str) or (prompt and all(isinstance(part, int) for part in prompt)):
        return [prompt]
    return prompt


def common_of(request: CompletionRequest) -> ChatRequest:
    """What the request shares with a chat request, as one without messages."""
    fields = {name: getattr(request, name) for name in SHARED}
    limit = MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return ChatRequest(
        messages=[], max_tokens=limit or 1, logprobs=request.logprobs is not None,
        top_logprobs=request.logprobs, **fields)


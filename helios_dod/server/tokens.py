"""/tokenize, /detokenize and abort by id. Field names are those of vLLM's endpoints."""

from typing import Any

from helios_dod.frontend.assets import Assets
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.requests import (
    ChatRequest,
    Message,
    RequestError,
    Shape,
    Strict,
    Tool,
    check_request,
)
from helios_dod.frontend.text import TextStream
from helios_dod.server.chunks import as_json

TOKENS_MAX = 1 << 20


class TokenizeRequest(Strict):
    """A text (prompt), or a conversation (messages and what goes with them)."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Strict):
    """Token ids."""

    tokens: list[int]
    model: str | None = None


class AbortRequest(Strict):
    """The id of a live request's answer."""

    id: str


TOKENIZE = Shape.of(TokenizeRequest, Message)
DETOKENIZE = Shape.of(DetokenizeRequest)
ABORT = Shape.of(AbortRequest)
OF_MESSAGES = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


def decode_abort(body: bytes) -> AbortRequest:
    """Raises RequestError."""
    request: AbortRequest = ABORT.decode(body)
    return request


def decode_detokenize(body: bytes) -> DetokenizeRequest:
    """Raises RequestError."""
    request: DetokenizeRequest = DETOKENIZE.decode(body)
    if len(request.tokens) > TOKENS_MAX:
        raise RequestError(f"'tokens' has {len(request.tokens)} entries; at most {TOKENS_MAX} are "
                           "accepted.", "tokens", "invalid_value")
    return request


def decode_tokenize(body: bytes) -> TokenizeRequest:
    """Raises RequestError."""
    request: TokenizeRequest = TOKENIZE.decode(body)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("Give either 'prompt' or 'messages'.", "prompt", "invalid_value")
    for name in OF_MESSAGES:
        if request.messages is None and getattr(request, name) is not None:
            raise RequestError(f"'{name}' belongs to 'messages'.", name, "invalid_value")
    return request


def tokenize(preparer: Preparer, request: TokenizeRequest, context: int) -> bytes:
    """The answer's body. Raises RequestError."""
    if request.prompt is not None:
        ids = preparer.plain_tokens(request.prompt, request.add_special_tokens is not False)
    else:
        chat = ChatRequest(model="", messages=request.messages or [],
                           **{name: getattr(request, name) for name in OF_MESSAGES})
        check_request(chat)
        ids = preparer.prompt_tokens(chat)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": context, "tokens": ids.tolist()}
    if request.return_token_strs:
        table = preparer.assets.byte_table
        answer["token_strs"] = [table.token(token).decode("utf-8", "replace")
                                for token in ids.tolist()]
    return as_json(answer)


def detokenize(assets: Assets, request: DetokenizeRequest) -> bytes:
    """The answer's body. Raises RequestError."""
    for token in request.tokens:
        if not 0 <= token < assets.vocabulary:
            raise RequestError(f"'tokens': token {token} is not below the vocabulary, "
                               f"{assets.vocabulary}.", "tokens", "invalid_value")
    text = TextStream(assets.byte_table, assets.strip_leading_space).feed(
        request.tokens, last=True)
    return as_json({"prompt": text.decode()})

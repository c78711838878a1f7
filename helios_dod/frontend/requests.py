"""Requests of /v1/chat/completions: decoded strictly, each refusal naming the field.

Field names and meanings are those of OpenAI's API reference ("Create chat completion"), and of vLLM
for top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids and priority.
"""

import re
from typing import Any, Literal, NoReturn

import msgspec

from helios_dod.limits import BIAS_MAX, STOP_IDS_MAX, TOP_LOGPROBS_MAX

BODY_BYTES_MAX = 8 << 20
MESSAGES_MAX = 4096
CHOICES_MAX = 128
PRIORITY_MAX = 1 << 20
METADATA_MAX = 16

# Inclusive bounds of numeric fields.
BOUNDS: dict[str, tuple[float, float]] = {
    "n": (1, CHOICES_MAX), "max_tokens": (1, 2**31 - 2), "max_completion_tokens": (1, 2**31 - 2),
    "min_tokens": (0, 2**31 - 2), "temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1),
    "top_k": (-1, 2**31 - 2), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100), "top_logprobs": (0, TOP_LOGPROBS_MAX),
    "seed": (-(2**63), 2**64 - 1), "priority": (-PRIORITY_MAX, PRIORITY_MAX),
}


class RequestError(ValueError):
    """A request that cannot be served as it stands: the reason, the field, and OpenAI's code."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Refuses fields it does not declare."""


class TextPart(Strict, tag_field="type", tag="text"):
    """One text part of a message's content."""

    text: str


class Message(Strict):
    """One message. Fields typed None are OpenAI's, not supported here; null is accepted."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = None


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(Strict):
    """The answer's form; only text for now."""

    type: str


class ChatRequest(Strict):
    """The body of a chat completion request. Fields typed None are refused by name."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    ignore_eos: bool | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    priority: int | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: bool | None = None
    audio: None = None
    functions: None = None
    function_call: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None
    prompt_cache_retention: None = None
    moderation: None = None


DECODER = msgspec.json.Decoder(ChatRequest)
UNSUPPORTED = {
    info.name for struct in (ChatRequest, Message) for info in msgspec.structs.fields(struct)
    if info.type is type(None)
}
PATH = re.compile(r" - at `\$\.?(.*)`$")
UNKNOWN = re.compile(r"^Object contains unknown field `(.*?)`")
MISSING = re.compile(r"^Object missing required field `(.*?)`")


def decode_chat(body: bytes) -> ChatRequest:
    """A request from JSON, every field checked against its type and bounds. Raises RequestError."""
    if len(body) > BODY_BYTES_MAX:
        raise RequestError(
            f"The request body has {len(body)} bytes; at most {BODY_BYTES_MAX} are accepted.",
            code="request_too_large")
    try:
        request = DECODER.decode(body)
    except msgspec.ValidationError as error:
        refuse_shape(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The request body is not valid JSON: {error}.",
                           code="invalid_json") from None
    check_numbers(request)
    check_lists(request)
    check_supported(request)
    return request


def refuse_shape(problem: str) -> NoReturn:
    """Turns msgspec's words into an error that names the field."""
    found = PATH.search(problem)
    path, reason = (found[1], problem[: found.start()]) if found else ("", problem)
    unknown, missing = UNKNOWN.match(reason), MISSING.match(reason)
    if unknown or missing:
        name = (unknown or missing)[1]  # type: ignore[index]
        path = f"{path}.{name}" if path else name
        if missing:
            raise RequestError(f"Missing required parameter: '{path}'.", path,
                               "missing_required_parameter")
        raise RequestError(f"Unrecognized request argument supplied: {path}.", path,
                           "unknown_parameter")
    if path.rsplit(".", 1)[-1] in UNSUPPORTED:
        raise RequestError(f"'{path}' is not supported.", path, "unsupported_parameter")
    if reason.startswith("Invalid value") and path.endswith(".type"):
        raise RequestError(f"'{path}': only text parts are supported. {reason}.", path,
                           "unsupported_value")
    where = f"Invalid value for '{path}': " if path else "Invalid request: "
    raise RequestError(f"{where}{reason}.", path or None, "invalid_type")


def check_numbers(request: ChatRequest) -> None:
    """Bounds of every number, and NaN."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise RequestError(
                f"'{name}' must be between {low} and {high}, got {value}.", name, "invalid_value")
    if request.top_p == 0:
        raise RequestError("'top_p' must be greater than 0, got 0.", "top_p", "invalid_value")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise RequestError(
            f"'max_tokens' is {both[0]} and 'max_completion_tokens' {both[1]}; give one.",
            "max_tokens", "invalid_value")
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("'top_logprobs' requires 'logprobs' to be true.", "top_logprobs",
                           "invalid_value")


def check_lists(request: ChatRequest) -> None:
    """Extents of lists and maps, and the values in them."""
    sizes: tuple[tuple[str, Any, int], ...] = (
        ("messages", request.messages, MESSAGES_MAX),
        ("logit_bias", request.logit_bias, BIAS_MAX),
        ("stop_token_ids", request.stop_token_ids, STOP_IDS_MAX),
        ("metadata", request.metadata, METADATA_MAX))
    for name, value, high in sizes:
        if value is not None and len(value) > high:
            raise RequestError(f"'{name}' has {len(value)} entries; at most {high} are accepted.",
                               name, "invalid_value")
    if not request.messages:
        raise RequestError("'messages' must hold at least one message.", "messages",
                           "invalid_value")
    for token, bias in (request.logit_bias or {}).items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise RequestError(f"'logit_bias': {token!r} is not a token id.", "logit_bias",
                               "invalid_value")
        if not -100 <= bias <= 100:
            raise RequestError(
                f"'logit_bias' of token {token} must be between -100 and 100, got {bias}.",
                "logit_bias", "invalid_value")


def check_supported(request: ChatRequest) -> None:
    """Values that are OpenAI's but not served here are refused by name."""
    def refuse(name: str, what: str) -> NoReturn:
        raise RequestError(f"'{name}': {what} not supported.", name, "unsupported_value")

    if request.stop is not None and request.stop != []:
        refuse("stop", "string stops are")
    if request.tools:
        refuse("tools", "tools are")
    if request.store:
        refuse("store", "stored completions are")
    if request.response_format is not None and request.response_format.type != "text":
        refuse("response_format", f"the type {request.response_format.type!r} is")
    if request.modalities not in (None, ["text"]):
        refuse("modalities", "modalities other than text are")
    for i, message in enumerate(request.messages):
        if message.tool_calls:
            refuse(f"messages[{i}].tool_calls", "tool calls are")
        if message.content is None:
            if message.role != "assistant":
                raise RequestError(f"'messages[{i}].content' must be a string or text parts.",
                                   f"messages[{i}].content", "invalid_value")


def plain_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text parts joined by newlines, developer as system."""
    plain = []
    for message in request.messages:
        content = message.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        role = "system" if message.role == "developer" else message.role
        entry = {"role": role, "content": content or ""}
        if message.name is not None:
            entry["name"] = message.name
        if message.tool_call_id is not None:
            entry["tool_call_id"] = message.tool_call_id
        plain.append(entry)
    return plain
